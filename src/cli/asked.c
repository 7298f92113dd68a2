/* asked.c: requests read. */
#include "cli/asked.h"

#include <jansson.h>

enum { STOPS = 16 };

typedef struct key key;
typedef ll_err taker(ll_asked *r, const key *k, const json_t *v);

struct key {
    const char *name;
    int of; /* 1: completions, 2: chats, 3: both */
    taker *f;
    size_t to; /* of ll_asked, where numbers and texts go */
    double least, most;
};

static ll_err text(ll_asked *r, const char *name, const json_t *v, const char **out)
{
    CHECK(json_is_string(v), LL_E_ARG, "%s must be a string", name);
    *out = ll_arena_strdup(r->arena, json_string_value(v));
    return LL_OK;
}

/* ---- keys ---- */

static void *place(ll_asked *r, const key *k)
{
    return (char *)r + k->to;
}

static ll_err take_number(ll_asked *r, const key *k, const json_t *v)
{
    double x = json_number_value(v);
    CHECK(json_is_number(v) && x >= k->least && x <= k->most, LL_E_ARG,
          "%s must be a number from %g to %g", k->name, k->least, k->most);
    *(double *)place(r, k) = x;
    return LL_OK;
}

static ll_err take_whole(ll_asked *r, const key *k, const json_t *v)
{
    CHECK(json_is_integer(v) && json_integer_value(v) >= 0, LL_E_ARG,
          "%s must be an integer, 0 or more", k->name);
    *(int64_t *)place(r, k) = json_integer_value(v);
    return LL_OK;
}

static ll_err take_text(ll_asked *r, const key *k, const json_t *v)
{
    return text(r, k->name, v, (const char **)place(r, k));
}

/* A text, a list of one, or tokens. */
static ll_err take_prompt(ll_asked *r, const key *k, const json_t *v)
{
    size_t n = json_array_size(v);
    if (json_is_array(v) && n == 1 && json_is_string(json_array_get(v, 0)))
        v = json_array_get(v, 0);
    if (json_is_string(v)) return text(r, k->name, v, &r->prompt);
    CHECK(n, LL_E_ARG, "prompt must be a string or a list of tokens (one prompt per request)");
    r->tokens = LL_NEW_ARRAY(r->arena, int32_t, n);
    r->n_token = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(v, i);
        CHECK(json_is_integer(t) && json_integer_value(t) >= 0 &&
                  json_integer_value(t) <= INT32_MAX,
              LL_E_ARG, "prompt must be a string or a list of tokens (one prompt per request)");
        r->tokens[i] = (int32_t)json_integer_value(t);
    }
    return LL_OK;
}

/* What a message says: a text, or parts of type text, one after another. */
static ll_err content(ll_asked *r, const json_t *v, const char **out)
{
    ll_buf b = {.arena = r->arena};
    if (json_is_string(v)) return text(r, "content", v, out);
    CHECK(json_is_array(v), LL_E_ARG, "a message's content must be a string");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *part = json_array_get(v, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const char *words = json_string_value(json_object_get(part, "text"));
        CHECK(type && !strcmp(type, "text") && words, LL_E_ARG,
              "a message's content has a part that is not text: only text is supported");
        ll_buf_puts(&b, words);
    }
    *out = b.text ? b.text : "";
    return LL_OK;
}

static ll_err take_messages(ll_asked *r, const key *, const json_t *v)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    size_t n = json_array_size(v);
    CHECK(n, LL_E_ARG, "messages must be a list of at least one message");
    r->said = LL_NEW_ARRAY(r->arena, ll_said, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(v, i);
        const char *who = json_string_value(json_object_get(m, "role"));
        size_t k = 0;
        while (k < 4 && (!who || strcmp(who, roles[k]))) k++;
        CHECK(k < 4, LL_E_ARG, "a message's role must be system, user or assistant");
        ll_said *s = &r->said[r->n_said++];
        s->who = k == 1 ? roles[0] : roles[k];
        TRY(content(r, json_object_get(m, "content"), &s->text));
    }
    return LL_OK;
}

static ll_err take_seed(ll_asked *r, const key *k, const json_t *v)
{
    CHECK(json_is_integer(v), LL_E_ARG, "%s must be an integer", k->name);
    r->how.seed = (uint64_t)json_integer_value(v);
    r->seeded = true;
    return LL_OK;
}

static ll_err take_stop(ll_asked *r, const key *k, const json_t *v)
{
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    CHECK((json_is_string(v) || json_is_array(v)) && n <= STOPS, LL_E_ARG,
          "stop must be a string or a list of at most %d strings", STOPS);
    r->stop.v = LL_NEW_ARRAY(r->arena, const char *, n + 1);
    for (size_t i = 0; i < n; i++) {
        const char **at = &r->stop.v[r->stop.n++];
        TRY(text(r, k->name, json_is_string(v) ? v : json_array_get(v, i), at));
        CHECK(**at, LL_E_ARG, "stop has an empty string, which stops nothing: leave it out");
    }
    return LL_OK;
}

static ll_err take_stream(ll_asked *r, const key *k, const json_t *v)
{
    CHECK(json_is_boolean(v), LL_E_ARG, "%s must be true or false", k->name);
    r->stream = json_is_true(v);
    return LL_OK;
}

static ll_err take_stream_options(ll_asked *r, const key *k, const json_t *v)
{
    CHECK(json_is_object(v), LL_E_ARG, "%s must be an object", k->name);
    r->usage = json_is_true(json_object_get(v, "include_usage"));
    return LL_OK;
}

static ll_err pass_over(ll_asked *, const key *, const json_t *)
{
    return LL_OK;
}

/* Says what is so anyway: 0, 1 of n, false, an empty list. */
static ll_err as_it_is(ll_asked *, const key *k, const json_t *v)
{
    double usual = !strcmp(k->name, "n") || !strcmp(k->name, "best_of") ? 1 : 0;
    bool is = json_is_false(v) || (json_is_number(v) && json_number_value(v) == usual) ||
              (json_is_array(v) && !json_array_size(v)) ||
              (json_is_object(v) && !json_object_size(v));
    CHECK(is, LL_E_ARG, usual > 0 ? "%s: only 1 is supported" : "%s is not supported: leave it out",
          k->name);
    return LL_OK;
}

static ll_err take_format(ll_asked *, const key *k, const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    CHECK(type && !strcmp(type, "text"), LL_E_ARG, "%s: only {\"type\": \"text\"} is supported",
          k->name);
    return LL_OK;
}

#define AT(field) offsetof(ll_asked, field)
static const key keys[] = {{"model", 3, take_text, AT(model)},
                           {"prompt", 1, take_prompt},
                           {"messages", 2, take_messages},
                           {"max_tokens", 3, take_whole, AT(most)},
                           {"max_completion_tokens", 2, take_whole, AT(most)},
                           {"temperature", 3, take_number, AT(how.temperature), 0, 100},
                           {"top_p", 3, take_number, AT(how.top_p), 1e-9, 1},
                           {"top_k", 3, take_whole, AT(how.top_k)},
                           {"min_p", 3, take_number, AT(how.min_p), 0, 1},
                           {"repetition_penalty", 3, take_number, AT(how.repetition), 1e-3, 1e3},
                           {"seed", 3, take_seed},
                           {"stop", 3, take_stop},
                           {"stream", 3, take_stream},
                           {"stream_options", 3, take_stream_options},
                           {"response_format", 2, take_format},
                           {"user", 3, pass_over},
                           {"metadata", 3, pass_over},
                           {"store", 3, as_it_is},
                           {"n", 3, as_it_is},
                           {"best_of", 1, as_it_is},
                           {"echo", 1, as_it_is},
                           {"logprobs", 3, as_it_is},
                           {"presence_penalty", 3, as_it_is},
                           {"frequency_penalty", 3, as_it_is},
                           {"logit_bias", 3, as_it_is},
                           {"tools", 2, as_it_is}};

static ll_err take(ll_asked *r, const char *name, const json_t *v, int of)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(keys[i].name, name) && keys[i].of & of)
            return json_is_null(v) ? LL_OK : keys[i].f(r, &keys[i], v);
    FAIL(LL_E_ARG, "unknown parameter %.60s", name);
}

ll_err ll_asked_parse(const char *text, size_t n, bool chat, const ll_draw_opts *usual, ll_arena *a,
                      ll_asked *out)
{
    json_error_t e;
    const char *name;
    json_t *v;
    *out = (ll_asked){.most = -1, .how = *usual, .arena = a};
    json_auto_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    CHECK(root || json_error_code(&e) != json_error_null_character, LL_E_ARG,
          "the body has the character \\u0000, which is not supported");
    CHECK(root, LL_E_ARG, "the body is not valid JSON: %s", e.text);
    CHECK(json_is_object(root), LL_E_ARG, "the body must be a JSON object");
    json_object_foreach(root, name, v)
    {
        out->param = ll_arena_strdup(a, name);
        TRY(take(out, name, v, chat ? 2 : 1));
    }
    out->param = chat ? "messages" : "prompt";
    CHECK(out->prompt || out->tokens || out->said, LL_E_ARG, "%s is missing", out->param);
    out->param = NULL;
    return LL_OK;
}
