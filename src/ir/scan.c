/* scan.c: the writer and the reader of ir/text_int.h: words, strings, numbers, types. */
#include "ir/text_int.h"

#include "base/near.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- writing ---- */
const char *ll_quoted(ll_arena *a, const char *text)
{
    const char *plain = "\"\\\n\t", *escaped = "\"\\nt";
    char *out = (char *)ll_arena_alloc(a, 4 * strlen(text) + 3), *at = stpcpy(out, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        const char *special = strchr(plain, c);
        if (special)
            at += sprintf(at, "\\%c", escaped[special - plain]);
        else
            at += sprintf(at, c < 32 || c == 127 ? "\\x%02x" : "%c", c);
    }
    *at = '"';
    return out;
}

const char *ll_exact(double v, char out[LL_NUMBER_TEXT])
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, LL_NUMBER_TEXT, "%.*g", digits, v);
        if (strtod(out, NULL) == v) break;
    }
    return isnan(v) ? "nan" : out; /* without the sign some libraries print */
}

const char *ll_dtype_text(ll_dtype t)
{
    return (unsigned)t < LL_N_DTYPE ? ll_dtype_name(t) : "?";
}

/* ---- reading ---- */
ll_err ll_scan_fail(const ll_scan *s, const char *from, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    FAIL(LL_E_GRAPH, "line %d, column %d: %s", s->line, (int)(from - s->line_start) + 1, text);
}

/* What stands at a place, for messages. */
#define FOUND(at) found(at, (char[40]){0})
static const char *found(const char *at, char text[40])
{
    if (!*at)
        return "the end of the text";
    else if (*at == '\n')
        return "the end of the line";
    else if (isprint((unsigned char)*at))
        snprintf(text, 40, "'%c'", *at);
    else
        snprintf(text, 40, "byte 0x%02x", (unsigned)(unsigned char)*at);
    return text;
}

void ll_scan_blank(ll_scan *s)
{
    while (*s->at == ' ' || *s->at == '\t' || *s->at == '\r') s->at++;
}

bool ll_scan_is(ll_scan *s, char c)
{
    ll_scan_blank(s);
    if (*s->at != c) return false;
    s->at++;
    return true;
}

ll_err ll_scan_want(ll_scan *s, char c)
{
    if (ll_scan_is(s, c)) return LL_OK;
    return ll_scan_fail(s, s->at, "expected '%c', found %s", c, FOUND(s->at));
}

ll_err ll_scan_word(ll_scan *s, const char *what, char word[LL_WORD_MAX + 1])
{
    int n = 0;
    ll_scan_blank(s);
    while (isalnum((unsigned char)s->at[n]) || s->at[n] == '_') n++;
    if (!n || isdigit((unsigned char)*s->at))
        return ll_scan_fail(s, s->at, "expected %s, found %s", what, FOUND(s->at));
    if (n > LL_WORD_MAX)
        return ll_scan_fail(s, s->at, "expected %s, found a word of %d letters", what, n);
    memcpy(word, s->at, (size_t)n);
    word[n] = '\0';
    s->at += n;
    return LL_OK;
}

/* The character after a backslash; 0: no such escape. A zero byte cannot be in a name. */
static int escaped(const char **at)
{
    char c = *(*at)++, hex[3] = {0};
    if (c == '"' || c == '\\') return c;
    if (c == 'n') return '\n';
    if (c == 't') return '\t';
    if (c != 'x' || !isxdigit((unsigned char)(*at)[0]) || !isxdigit((unsigned char)(*at)[1]))
        return 0;
    memcpy(hex, *at, 2);
    *at += 2;
    return (int)strtol(hex, NULL, 16);
}

ll_err ll_scan_string(ll_scan *s, const char *what, char *text, size_t bytes)
{
    size_t n = 0;
    ll_scan_blank(s);
    const char *from = s->at;
    if (*from != '"')
        return ll_scan_fail(s, from, "expected %s in quotes, found %s", what, FOUND(from));
    for (s->at++; *s->at != '"';) {
        const char *here = s->at;
        int c = (unsigned char)*s->at;
        if (!c || c == '\n') return ll_scan_fail(s, from, "%s has no closing quote", what);
        s->at++;
        if (c == '\\' && !(c = escaped(&s->at)))
            return ll_scan_fail(s, here, "expected one of \\\" \\\\ \\n \\t \\xHH (not \\x00)");
        if (n + 1 >= bytes)
            return ll_scan_fail(s, from, "%s is longer than %zu bytes", what, bytes - 1);
        text[n++] = (char)c;
    }
    s->at++;
    text[n] = '\0';
    return LL_OK;
}

ll_err ll_scan_int(ll_scan *s, const char *what, int64_t min, int64_t max, int64_t *out)
{
    ll_scan_blank(s);
    const char *from = s->at, *digits = from + (*from == '-');
    if (!isdigit((unsigned char)*digits))
        return ll_scan_fail(s, from, "expected %s, found %s", what, FOUND(from));
    char *end;
    errno = 0;
    long long v = strtoll(from, &end, 10);
    if (errno || v < min || v > max)
        return ll_scan_fail(s, from, "%s is %.*s, expected %ld to %ld", what,
                            (int)(end - from > 30 ? 30 : end - from), from, min, max);
    s->at = end;
    *out = v;
    return LL_OK;
}

ll_err ll_scan_double(ll_scan *s, const char *what, double *out)
{
    ll_scan_blank(s);
    char *end;
    *out = strtod(s->at, &end);
    if (end == s->at || isspace((unsigned char)*s->at))
        return ll_scan_fail(s, s->at, "expected %s, found %s", what, FOUND(s->at));
    s->at = end;
    return LL_OK;
}

ll_err ll_scan_dtype(ll_scan *s, ll_dtype *out)
{
    char word[LL_WORD_MAX + 1];
    ll_scan_blank(s);
    const char *from = s->at;
    TRY(ll_scan_word(s, "an element type", word));
    if (ll_dtype_find(word, out)) return LL_OK;
    ll_near near = {.word = word};
    for (int t = 0; t < LL_N_DTYPE; t++) ll_near_try(&near, ll_dtype_name((ll_dtype)t));
    return ll_scan_fail(s, from, "no element type %s%s", word, ll_near_hint(&near));
}

ll_err ll_scan_shape(ll_scan *s, ll_shape *out)
{
    *out = (ll_shape){0};
    TRY(ll_scan_want(s, '['));
    if (ll_scan_is(s, ']')) return LL_OK;
    int64_t numel = 1; /* with empty dimensions counted as 1: no product of any of them is larger */
    do {
        ll_scan_blank(s);
        const char *from = s->at;
        if (out->n == LL_MAX_DIMS)
            return ll_scan_fail(s, from, "more than %d dimensions", LL_MAX_DIMS);
        int64_t d;
        TRY(ll_scan_int(s, "a dimension", 0, LL_TEXT_NUMEL, &d));
        if (d > LL_TEXT_NUMEL / numel)
            return ll_scan_fail(s, from, "more than %ld elements", LL_TEXT_NUMEL);
        if (d) numel *= d;
        out->d[out->n++] = d;
    } while (ll_scan_is(s, ','));
    return ll_scan_want(s, ']');
}
