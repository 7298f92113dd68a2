/* Any bytes as a request of HTTP: taken or refused with a status, its parts inside what was given,
 * the same whatever follows it, and never sooner than all of it is there. Its body, and any bytes,
 * as what OpenAI's clients ask for. */
#include "cli/asked.h"
#include "cli/http.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void inside(const char *bytes, size_t n, ll_http_text t)
{
    LL_ASSERT(!t.at || (t.at >= bytes && t.at + t.n <= bytes + n));
}

static void ask(const char *text, size_t n)
{
    ll_draw_opts usual = {.temperature = 1};
    for (int chat = 0; chat < 2; chat++) {
        LL_OWN(ll_arena) a = ll_arena_new();
        ll_asked q;
        if (ll_asked_parse(text, n, chat, &usual, a, &q) != LL_OK) {
            LL_ASSERT(*ll_error_message());
            continue;
        }
        LL_ASSERT(chat ? q.n_said > 0 : q.prompt || q.n_token > 0);
        LL_ASSERT(q.how.temperature >= 0 && q.how.top_k >= 0 && q.most >= -1);
        for (int i = 0; i < q.n_said; i++) LL_ASSERT(q.said[i].who && q.said[i].text);
        for (int i = 0; i < q.stop.n; i++) LL_ASSERT(q.stop.v[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *bytes = (char *)malloc(size + 1); /* exactly, for the address sanitizer */
    ll_http_request r, part;
    if (!bytes) return 0;
    if (size) memcpy(bytes, data, size);
    char *exact = (char *)realloc(bytes, size ? size : 1);
    if (exact) bytes = exact;
    int status = ll_http_parse(bytes, size, 1 << 20, &r);
    LL_ASSERT(status == 0 || status == 200 || (status >= 400 && status < 600 && r.why));
    if (status == 200) {
        LL_ASSERT(r.bytes <= size && r.method.n && r.path.n && (r.host.at || r.old));
        inside(bytes, r.bytes, r.method);
        inside(bytes, r.bytes, r.path);
        LL_ASSERT(!ll_http_is(r.path, "/v1/models/g") || ll_http_path_is(r.path, "/v1/models/g"));
        inside(bytes, r.bytes, r.host);
        inside(bytes, r.bytes, r.type);
        inside(bytes, r.bytes, r.auth);
        inside(bytes, r.bytes, r.body);
        LL_ASSERT(ll_http_parse(bytes, r.bytes, 1 << 20, &part) == 200 && part.bytes == r.bytes);
        LL_ASSERT(ll_http_parse(bytes, r.bytes - 1, 1 << 20, &part) == 0);
        ask(r.body.at, r.body.n);
    }
    ask(bytes, size);
    free(bytes);
    return 0;
}
