/* spec.c: reads "nhwc->c". */
#include "base/spec.h"

#include <string.h>

/* Letters up to something else, which is returned. */
static ll_err side(const char *text, const char *whole, char *letters, int *n, const char **end)
{
    *n = 0;
    for (; *text >= 'a' && *text <= 'z'; text++) {
        CHECK(*n < LL_MAX_DIMS, LL_E_ARG, "\"%.40s\" names more than %d dimensions", whole,
              LL_MAX_DIMS);
        CHECK(!memchr(letters, *text, (size_t)*n), LL_E_ARG, "\"%.40s\" names %c twice on one side",
              whole, *text);
        letters[(*n)++] = *text;
    }
    letters[*n] = '\0';
    *end = text;
    return LL_OK;
}

static void match(const char *a, int n, const char *b, int8_t *map)
{
    for (int i = 0; i < LL_MAX_DIMS; i++) {
        const char *at = i < n ? strchr(b, a[i]) : NULL;
        map[i] = at ? (int8_t)(at - b) : -1;
    }
}

ll_err ll_spec_parse(const char *text, ll_spec *s)
{
    const char *at;
    TRY(side(text, text, s->in, &s->n_in, &at));
    CHECK(at[0] == '-' && at[1] == '>', LL_E_ARG,
          "\"%.40s\" is not a spec; expected letters, \"->\", letters, such as \"nhwc->c\"", text);
    TRY(side(at + 2, text, s->out, &s->n_out, &at));
    CHECK(!*at, LL_E_ARG, "\"%.40s\" goes on after the result's letters with '%c'", text, *at);
    match(s->in, s->n_in, s->out, s->to);
    match(s->out, s->n_out, s->in, s->from);
    return LL_OK;
}

ll_err ll_spec_split(const char *text, ll_spec_parts *s)
{
    static const char *const between[] = {",", "->", ""};
    const char *at = text;
    for (int i = 0, n; i < 3; i++) {
        size_t len = strlen(between[i]);
        TRY(side(at, text, s->part[i], &n, &at));
        CHECK(len ? !strncmp(at, between[i], len) : !*at, LL_E_ARG,
              "\"%.40s\" is not a spec of two operands; expected one like \"mk,kn->mn\"", text);
        at += len;
    }
    return LL_OK;
}

/* Does map send its n dimensions to rising ones, leaving none out? */
static bool rises(const int8_t *map, int n)
{
    int last = -1;
    for (int i = 0; i < n; i++) {
        if (map[i] <= last) return false;
        last = map[i];
    }
    return true;
}

bool ll_spec_grows(const ll_spec *s)
{
    return rises(s->to, s->n_in);
}

bool ll_spec_shrinks(const ll_spec *s)
{
    return rises(s->from, s->n_out);
}
