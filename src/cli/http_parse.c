/* http_parse.c: requests of HTTP/1.1, and 1.0, strictly: lines end with CR LF, names of fields are
 * tokens, nothing is folded, the body's length is said once. */
#define _GNU_SOURCE /* memmem */
#include "cli/http.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { FIELDS = 64, PATH = 1024 };

bool ll_http_is(ll_http_text s, const char *text)
{
    return s.at && s.n == strlen(text) && !memcmp(s.at, text, s.n);
}

bool ll_http_path_is(ll_http_text s, const char *text)
{
    for (size_t i = 0; i < s.n; i++, text++) {
        char c = s.at[i];
        if (c == '%') {
            char hex[3] = {i + 2 < s.n ? s.at[i + 1] : 0, i + 2 < s.n ? s.at[i + 2] : 0};
            if (!isxdigit((unsigned char)hex[0]) || !isxdigit((unsigned char)hex[1])) return false;
            c = (char)strtol(hex, NULL, 16);
            i += 2;
        }
        if (!*text || c != *text) return false;
    }
    return s.at && !*text;
}

/* But for upper and lower case. */
static bool like(ll_http_text s, const char *text)
{
    return s.at && s.n == strlen(text) && !strncasecmp(s.at, text, s.n);
}

static bool is_token(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* Bytes up to `end`, which is passed over; false: it is not there. */
static bool until(ll_http_text *rest, char end, ll_http_text *out)
{
    const char *at = rest->n ? (const char *)memchr(rest->at, end, rest->n) : NULL;
    if (!at) return false;
    *out = (ll_http_text){rest->at, (size_t)(at - rest->at)};
    rest->at = at + 1;
    rest->n -= out->n + 1;
    return true;
}

/* "POST /v1/models HTTP/1.1"; 0 where it is right. */
static int first_line(ll_http_text line, ll_http_request *out)
{
    if (!until(&line, ' ', &out->method) || !until(&line, ' ', &out->path)) return 400;
    if (line.n != 8 || memcmp(line.at, "HTTP/", 5)) return 400;
    out->old = !memcmp(line.at, "HTTP/1.0", 8);
    if (!out->old && memcmp(line.at, "HTTP/1.1", 8)) return 505;
    if (!out->method.n || !out->path.n || *out->path.at != '/') return 400;
    if (out->path.n > PATH) return 414;
    for (size_t i = 0; i < out->method.n; i++)
        if (!is_token(out->method.at[i])) return 400;
    for (size_t i = 0; i < out->path.n; i++)
        if (out->path.at[i] <= ' ' || out->path.at[i] > '~') return 400;
    const char *query = (const char *)memchr(out->path.at, '?', out->path.n);
    if (query) out->path.n = (size_t)(query - out->path.at); /* nothing here reads one */
    return 0;
}

/* Digits alone, and not more than limit. */
static int length_of(ll_http_text v, size_t limit, size_t *out)
{
    size_t n = 0;
    if (!v.n) return 400;
    for (size_t i = 0; i < v.n; i++) {
        if (v.at[i] < '0' || v.at[i] > '9') return 400;
        n = 10 * n + (size_t)(v.at[i] - '0');
        if (n > limit) return 413;
    }
    *out = n;
    return 0;
}

/* A field that may be there once. */
static int once(ll_http_text *field, ll_http_text v)
{
    if (field->at) return 400;
    *field = v;
    return 0;
}

static int take(ll_http_text name, ll_http_text v, size_t limit, bool *sized, ll_http_request *out)
{
    if (like(name, "host")) return once(&out->host, v);
    if (like(name, "content-type")) return once(&out->type, v);
    if (like(name, "authorization")) return once(&out->auth, v);
    if (like(name, "transfer-encoding")) return 501;
    if (like(name, "expect")) {
        out->expects = like(v, "100-continue");
        return out->expects ? 0 : 417;
    }
    if (like(name, "connection")) out->last |= like(v, "close");
    if (!like(name, "content-length")) return 0;
    if (*sized) return 400;
    *sized = true;
    return length_of(v, limit, &out->body.n);
}

/* "Name: value", without the blanks around the value. */
static int field(ll_http_text line, size_t limit, bool *sized, ll_http_request *out)
{
    ll_http_text name, v;
    if (!until(&line, ':', &name) || !name.n) return 400;
    v = line;
    for (size_t i = 0; i < name.n; i++)
        if (!is_token(name.at[i])) return 400;
    while (v.n && (*v.at == ' ' || *v.at == '\t')) v.at++, v.n--;
    while (v.n && (v.at[v.n - 1] == ' ' || v.at[v.n - 1] == '\t')) v.n--;
    for (size_t i = 0; i < v.n; i++)
        if (((unsigned char)v.at[i] < ' ' && v.at[i] != '\t') || v.at[i] == 127) return 400;
    return take(name, v, limit, sized, out);
}

int ll_http_parse(const char *bytes, size_t n, size_t body_limit, ll_http_request *out)
{
    ll_http_text rest = {bytes, n < LL_HTTP_HEAD ? n : LL_HTTP_HEAD}, line;
    bool sized = false;
    int status;
    *out = (ll_http_request){0};
    const char *end = rest.n ? (const char *)memmem(bytes, rest.n, "\r\n\r\n", 4) : NULL;
    if (!end) return n >= LL_HTTP_HEAD ? 431 : 0;
    rest.n = (size_t)(end - bytes) + 2;
    for (int i = 0; rest.n; i++) {
        if (!until(&rest, '\n', &line) || !line.n || line.at[line.n - 1] != '\r') return 400;
        line.n--;
        status = i > FIELDS ? 431
                 : i        ? field(line, body_limit, &sized, out)
                            : first_line(line, out);
        if (status) return status;
    }
    if (!out->host.at && !out->old) return 400;
    out->last |= out->old;
    out->expects &= !out->old;
    out->body.at = end + 4;
    out->bytes = (size_t)(out->body.at - bytes) + out->body.n;
    return n < out->bytes ? 0 : 200;
}
