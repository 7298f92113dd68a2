/* split.c: words of a text. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "token/split.h"

#include "base/text.h"

#include <string.h>
#ifdef LL_libpcre2_8
#include <pcre2.h>
#endif

/* What the families cut by, as their own tokenizer.json files have it. */
#define GPT2 "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define AFTER_LLAMA3 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3(digits)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits AFTER_LLAMA3
static const struct {
    const char *name, *patterns[4];
} known[] = {
    {LL_PRETOK_GPT2, {GPT2}},
    {"gpt2", {GPT2}},
    {"mpt", {GPT2}},
    {"smollm", {"\\p{N}", GPT2}},
    {"starcoder", {"\\p{N}", GPT2}},
    {"refact", {"\\p{N}", GPT2}},
    {"command-r", {"\\p{N}", GPT2}},
    {"llama-bpe", {LLAMA3("\\p{N}{1,3}")}},
    {"llama3", {LLAMA3("\\p{N}{1,3}")}},
    {"qwen2", {LLAMA3("\\p{N}")}},
};
enum { KNOWN = sizeof known / sizeof *known };

const char *const *ll_pretok_known(const char *name)
{
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(known[i].name, name)) return known[i].patterns;
    return NULL;
}

const char *ll_pretok_name(int i)
{
    return i < KNOWN ? known[i].name : NULL;
}

bool ll_pretok_whole(const char *name)
{
    return !strcmp(name, "llama-bpe") || !strcmp(name, "llama3");
}

#ifdef LL_libpcre2_8
enum { MOST = 8, TRIES = 10000000 }; /* of patterns that never end */

/* Unicode's white space, in a class: PCRE2's \s has U+180E too, which is none since Unicode 6.3. It
 * ends with a class of its own, so that a - around it is what it was. */
#define SPACE "\\p{Z}\\t-\\r\\x{85}\\p{Z}"
#define NO_SPACE "\\S\\x{180e}\\S"

/* Bytes of a pattern's next item: "\s", "[:alpha:]" of a class, or one byte. */
static size_t item(const char *p, bool in_class)
{
    if (*p == '\\' && p[1]) return 2;
    if (!in_class || strncmp(p, "[:", 2)) return 1;
    size_t n = 2 + strspn(p + 2, "^abcdefghijklmnopqrstuvwxyz");
    return strncmp(p + n, ":]", 2) ? 1 : n + 2;
}

/* The pattern with \s and \S as those who wrote it mean them. */
static const char *with_spaces(ll_arena *a, const char *p)
{
    ll_buf b = {.arena = a};
    const char *first = NULL; /* of a class: where a ']' is one of its characters */
    for (size_t n; *p; p += n) {
        n = item(p, first != NULL);
        bool s = !strncmp(p, "\\s", 2), no = !strncmp(p, "\\S", 2);
        if (s || no)
            ll_buf_printf(&b, first ? "%s" : "[%s]", s ? SPACE : NO_SPACE);
        else
            ll_buf_add(&b, p, n);
        if (!first && *p == '[')
            first = p + (p[1] == '^' ? 2 : 1);
        else if (first && *p == ']' && p != first)
            first = NULL;
    }
    return b.text ? b.text : "";
}

struct ll_pretok {
    pcre2_code *code[MOST];
    int n;
    const char *path;
    ll_arena *arena;
};

ll_err ll_pretok_open(const char *const *patterns, int n, const char *path, ll_pretok **out)
{
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_pretok) s = LL_NEW(a, ll_pretok);
    *s = (ll_pretok){.path = ll_arena_strdup(a, path), .arena = a};
    *out = NULL;
    CHECK(n <= MOST, LL_E_IO, "%s: more than %d patterns", path, MOST);
    for (; s->n < n; s->n++) {
        int code;
        PCRE2_SIZE at;
        uint32_t how = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
        const char *p = with_spaces(a, patterns[s->n]);
        s->code[s->n] = pcre2_compile((PCRE2_SPTR)p, PCRE2_ZERO_TERMINATED, how, &code, &at, NULL);
        PCRE2_UCHAR text[120];
        if (!s->code[s->n]) pcre2_get_error_message(code, text, sizeof text);
        CHECK(s->code[s->n], LL_E_IO, "%s: the pattern '%.60s' is wrong at %zu: %s", path, p,
              (size_t)at, (const char *)text);
        pcre2_jit_compile(s->code[s->n], PCRE2_JIT_COMPLETE); /* where it can be */
    }
    return LL_HAND(out, s);
}

void ll_pretok_close(ll_pretok *s)
{
    if (!s) return;
    for (int i = 0; i < s->n; i++) pcre2_code_free(s->code[i]);
    ll_arena_free(s->arena);
}

typedef struct cutter {
    const ll_pretok *s;
    pcre2_match_data *found;
    pcre2_match_context *limits;
    ll_pretok_piece *f;
    void *user;
} cutter;

static ll_err cut(const cutter *c, int level, const char *text, size_t n)
{
    if (!n) return LL_OK;
    if (level == c->s->n) {
        c->f(c->user, text, n);
        return LL_OK;
    }
    size_t done = 0, at = 0;
    while (at < n) {
        int rc = pcre2_match(c->s->code[level], (PCRE2_SPTR)text, n, at, 0, c->found, c->limits);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        CHECK(rc > 0, LL_E_IO, "%s: its pattern takes too long on this text (PCRE2's error %d)",
              c->s->path, rc);
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(c->found);
        size_t from = v[0], to = v[1];
        if (to <= from) { /* nothing: goes on behind the character */
            at = (to > at ? to : at) + 1;
            while (at < n && ((unsigned char)text[at] & 0xC0) == 0x80) at++;
            continue;
        }
        TRY(cut(c, level + 1, text + done, from - done));
        TRY(cut(c, level + 1, text + from, to - from));
        done = at = to;
    }
    return cut(c, level + 1, text + done, n - done);
}

ll_err ll_pretok_text(const ll_pretok *s, const char *text, size_t n, ll_pretok_piece *f,
                      void *user)
{
    cutter c = {s, NULL, pcre2_match_context_create(NULL), f, user};
    CHECK(c.limits, LL_E_MEM, "not enough memory to split text");
    pcre2_set_match_limit(c.limits, TRIES);
    ll_err rc = LL_OK;
    /* levels use one result: its numbers are copied before the next is asked */
    c.found = pcre2_match_data_create(16, NULL);
    if (c.found) rc = cut(&c, 0, text, n);
    pcre2_match_data_free(c.found);
    pcre2_match_context_free(c.limits);
    CHECK(c.found, LL_E_MEM, "not enough memory to split text");
    return rc;
}
#else

ll_err ll_pretok_open(const char *const *, int, const char *path, ll_pretok **out)
{
    *out = NULL;
    return RAISE(LL_E_CONFIG,
                 "%s: tokenizers need PCRE2, which this program was built without: install it "
                 "(Debian: libpcre2-dev) and build again",
                 path);
}

void ll_pretok_close(ll_pretok *)
{
}

ll_err ll_pretok_text(const ll_pretok *, const char *, size_t, ll_pretok_piece *, void *)
{
    return LL_OK; /* none is open */
}
#endif
