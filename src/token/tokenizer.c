/* tokenizer.c: tokenizers of others' files. */
#define _GNU_SOURCE /* qsort_r */
#include "token/tokenizer.h"

#include "base/file.h"
#include "base/text.h"
#include "token/bpe.h"
#include "token/gguf.h"

#include <jansson.h>
#include <math.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST = 1 << 22, LIMIT = 1 << 28 }; /* tokens; bytes of a JSON file */

ll_tokenizer *ll_tokenizer_new(const char *path)
{
    ll_arena *a = ll_arena_new();
    ll_tokenizer *t = LL_NEW(a, ll_tokenizer);
    *t = (ll_tokenizer){.arena = a, .path = ll_arena_strdup(a, path), .bos = -1, .eos = -1};
    return t;
}

void ll_tokenizer_close(ll_tokenizer *t)
{
    if (!t) return;
    ll_pretok_close(t->split);
    ll_arena_free(t->arena);
}

/* ---- what all have ---- */

ll_err ll_tokenizer_cuts(ll_tokenizer *t, const char *const *patterns, int n)
{
    CHECK(n <= LL_CUTS, LL_E_IO, "%s: more than %d patterns", t->path, LL_CUTS);
    for (t->n_cut = 0; t->n_cut < n; t->n_cut++)
        t->cuts[t->n_cut] = ll_arena_strdup(t->arena, patterns[t->n_cut]);
    return ll_pretok_open(patterns, n, t->path, &t->split);
}

/* Token k, as its vocabulary spells it. */
static void set_token(ll_tokenizer *t, int k, const char *text, size_t n, int kind)
{
    char *bytes = (char *)ll_arena_alloc(t->arena, n + 1);
    int length = kind ? -1 : ll_byte_text(text, n, bytes);
    if (length < 0) { /* as it is spelled */
        memcpy(bytes, text, n);
        length = (int)n;
    }
    bytes[length] = '\0';
    t->tokens[k] = (ll_token){bytes, length, kind};
}

typedef struct merges {
    ll_merge *v;
    int n;
} merges;

/* "a b" or two strings, into tokens; before the tables are made they are looked for in a JSON
 * object or, of GGUF, in one that is made for it. */
static ll_err add_merge(ll_tokenizer *t, const json_t *ids, merges *m, const char *a, size_t na,
                        const char *b, size_t nb)
{
    char both[8192];
    CHECK(na && nb && na + nb < sizeof both, LL_E_IO, "%s: merge %d is not a pair of tokens",
          t->path, m->n);
    json_t *one = json_object_getn(ids, a, na), *two = json_object_getn(ids, b, nb);
    memcpy(both, a, na);
    memcpy(both + na, b, nb);
    json_t *to = json_object_getn(ids, both, na + nb);
    CHECK(one && two && to, LL_E_IO, "%s: merge %d, %.*s %.*s, uses unknown tokens", t->path, m->n,
          (int)(na < 40 ? na : 40), a, (int)(nb < 40 ? nb : 40), b);
    m->v[m->n] = (ll_merge){(int)json_integer_value(one), (int)json_integer_value(two),
                            (int)json_integer_value(to), m->n};
    m->n++;
    return LL_OK;
}

static ll_err split_merge(ll_tokenizer *t, const json_t *ids, merges *m, const char *text, size_t n)
{
    const char *blank = (const char *)memchr(text, ' ', n);
    CHECK(blank, LL_E_IO, "%s: merge %d, %.*s, has no blank", t->path, m->n, (int)(n < 40 ? n : 40),
          text);
    return add_merge(t, ids, m, text, (size_t)(blank - text), blank + 1,
                     n - (size_t)(blank - text) - 1);
}

static ll_err open_split(ll_tokenizer *t, const char *name)
{
    const char *const *p = ll_pretok_known(name);
    int n = 0;
    ll_buf b = {.arena = t->arena};
    for (int i = 0; ll_pretok_name(i); i++)
        ll_buf_printf(&b, "%s%s", i ? ", " : "", ll_pretok_name(i));
    CHECK(p, LL_E_IO, "%s: cuts words as %.40s does, which is not known: %s are", t->path, name,
          b.text);
    while (p[n]) n++;
    t->whole = ll_pretok_whole(name);
    return ll_tokenizer_cuts(t, p, n);
}

/* {"token": number}: makes room for all of them. */
static ll_err read_vocab(ll_tokenizer *t, json_t *vocab)
{
    const char *key;
    json_t *v;
    json_int_t most = -1;
    CHECK(json_is_object(vocab), LL_E_IO, "%s: has no vocabulary", t->path);
    json_object_foreach(vocab, key, v)
    {
        CHECK(json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < MOST,
              LL_E_IO, "%s: token %.40s has no number below %d", t->path, key, MOST);
        if (json_integer_value(v) > most) most = json_integer_value(v);
    }
    t->n = (int)most + 1;
    return LL_OK;
}

static ll_err fill_vocab(ll_tokenizer *t, json_t *vocab)
{
    const char *key;
    size_t length;
    json_t *v;
    t->tokens = LL_NEW_ARRAY(t->arena, ll_token, t->n + 1);
    json_object_keylen_foreach(vocab, key, length, v)
    {
        int k = (int)json_integer_value(v);
        CHECK(!t->tokens[k].bytes, LL_E_IO, "%s: %.40s has number %d, which another token has",
              t->path, key, k);
        set_token(t, k, key, length, LL_TOKEN_TEXT);
    }
    return LL_OK;
}

/* ---- tokenizer.json ---- */

static const char *text_at(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

typedef struct cuts {
    const char *v[8];
    int n;
} cuts;

static ll_err one_cut(ll_tokenizer *t, json_t *j, cuts *c)
{
    const char *type = text_at(j, "type");
    CHECK(c->n < 7, LL_E_IO, "%s: too many pre_tokenizers", t->path);
    if (!strcmp(type, "ByteLevel")) {
        const json_t *regex = json_object_get(j, "use_regex");
        CHECK(!json_is_true(json_object_get(j, "add_prefix_space")), LL_E_IO,
              "%s: add_prefix_space is not done here", t->path);
        if (!regex || json_is_true(regex)) c->v[c->n++] = *ll_pretok_known(LL_PRETOK_GPT2);
        return LL_OK;
    }
    if (!strcmp(type, "Digits")) {
        c->v[c->n++] = json_is_true(json_object_get(j, "individual_digits")) ? "\\p{N}" : "\\p{N}+";
        return LL_OK;
    }
    const char *regex = text_at(json_object_get(j, "pattern"), "Regex");
    CHECK(!strcmp(type, "Split") && *regex && !strcmp(text_at(j, "behavior"), "Isolated"), LL_E_IO,
          "%s: pre_tokenizer %.40s is not known here: ByteLevel, Digits, and Split by a Regex, "
          "Isolated, are",
          t->path, type);
    c->v[c->n++] = ll_arena_strdup(t->arena, regex);
    return LL_OK;
}

static ll_err read_cuts(ll_tokenizer *t, json_t *root)
{
    json_t *pre = json_object_get(root, "pre_tokenizer"), *each;
    size_t i;
    cuts c = {0};
    const json_t *norm = json_object_get(root, "normalizer");
    CHECK(!norm || json_is_null(norm), LL_E_IO, "%s: normalizer %.40s is not known here", t->path,
          text_at(norm, "type"));
    if (!strcmp(text_at(pre, "type"), "Sequence")) {
        json_array_foreach(json_object_get(pre, "pretokenizers"), i, each)
            TRY(one_cut(t, each, &c));
    } else
        TRY(one_cut(t, pre, &c));
    return ll_tokenizer_cuts(t, c.v, c.n);
}

static ll_err count_added(ll_tokenizer *t, json_t *added)
{
    json_t *x;
    size_t i;
    json_array_foreach(added, i, x)
    {
        const json_t *id = json_object_get(x, "id");
        CHECK(json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < MOST,
              LL_E_IO, "%s: added token %zu has no number", t->path, i);
        if (json_integer_value(id) >= t->n) t->n = (int)json_integer_value(id) + 1;
    }
    return LL_OK;
}

enum { ADDED = 4096 }; /* bytes of an added token */

/* Is it this token, as it is or as a vocabulary spells it? */
static bool is_token(const ll_token *k, const char *text, size_t n)
{
    char bytes[ADDED];
    int length = ll_byte_text(text, n, bytes);
    return ((size_t)k->length == n && !memcmp(k->bytes, text, n)) ||
           (k->length == length && !memcmp(k->bytes, bytes, (size_t)length));
}

static ll_err fill_added(ll_tokenizer *t, json_t *added)
{
    json_t *x;
    size_t i;
    json_array_foreach(added, i, x)
    {
        const json_t *content = json_object_get(x, "content");
        const char *text = json_string_value(content);
        size_t n = json_string_length(content);
        int k = (int)json_integer_value(json_object_get(x, "id"));
        bool special = json_is_true(json_object_get(x, "special"));
        CHECK(text && n < ADDED, LL_E_IO, "%s: added token %d has no content of less than %d bytes",
              t->path, k, ADDED);
        CHECK(!t->tokens[k].bytes || is_token(&t->tokens[k], text, n), LL_E_IO,
              "%s: added token %.40s has number %d, which another token has", t->path, text, k);
        set_token(t, k, text, n, special ? LL_TOKEN_SPECIAL : LL_TOKEN_ALWAYS);
    }
    return LL_OK;
}

/* Of what other tokenizers do, nothing may be asked for. */
static ll_err check_settings(const ll_tokenizer *t, const json_t *model)
{
    static const char *const none[] = {"dropout", "end_of_word_suffix", "continuing_subword_prefix",
                                       "byte_fallback"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        const json_t *v = json_object_get(model, none[i]);
        bool asked = json_is_true(v) || json_number_value(v) != 0 || json_string_length(v);
        CHECK(!asked, LL_E_IO, "%s: %s is not done here: byte-level BPE without it is", t->path,
              none[i]);
    }
    return LL_OK;
}

/* What is put around a text: nothing, or one token before it. */
static ll_err read_post(ll_tokenizer *t, const json_t *post)
{
    const char *type = text_at(post, "type");
    const json_t *single = json_object_get(post, "single"), *each;
    size_t i;
    json_array_foreach(json_object_get(post, "processors"), i, each) TRY(read_post(t, each));
    if (!*type || !strcmp(type, "ByteLevel") || !strcmp(type, "Sequence")) return LL_OK;
    size_t n = json_array_size(single);
    const char *first = text_at(json_object_get(json_array_get(single, 0), "SpecialToken"), "id");
    bool text_last = json_object_get(json_array_get(single, n - 1), "Sequence") != NULL;
    CHECK(!strcmp(type, "TemplateProcessing") && text_last && n == (*first ? 2 : 1), LL_E_IO,
          "%s: post_processor %.40s adds tokens in a way that is not done here: one token before a "
          "text (TemplateProcessing) is",
          t->path, type);
    if (!*first) return LL_OK;
    t->bos = ll_tokenizer_find(t, first);
    CHECK(t->bos >= 0, LL_E_IO, "%s: post_processor adds %.40s, which is not a token", t->path,
          first);
    return LL_OK;
}

static ll_err read_json(ll_tokenizer *t, json_t *root)
{
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    json_t *list = json_object_get(model, "merges"), *added = json_object_get(root, "added_tokens");
    json_t *x;
    size_t i;
    const char *type = text_at(model, "type");
    CHECK(!*type || !strcmp(type, "BPE"), LL_E_IO, "%s: tokenizer type is %.40s, expected BPE",
          t->path, type);
    CHECK(json_is_array(list), LL_E_IO, "%s: has no list of merges", t->path);
    TRY(check_settings(t, model));
    TRY(read_vocab(t, vocab));
    TRY(count_added(t, added));
    TRY(fill_vocab(t, vocab));
    TRY(fill_added(t, added));
    merges m = {LL_NEW_ARRAY(t->arena, ll_merge, json_array_size(list) + 1), 0};
    json_array_foreach(list, i, x)
    {
        const json_t *a = json_array_get(x, 0), *b = json_array_get(x, 1);
        if (json_is_string(x))
            TRY(split_merge(t, vocab, &m, json_string_value(x), json_string_length(x)));
        else
            TRY(add_merge(t, vocab, &m, json_string_value(a), json_string_length(a),
                          json_string_value(b), json_string_length(b)));
    }
    TRY(read_cuts(t, root));
    t->whole = json_is_true(json_object_get(model, "ignore_merges"));
    TRY(ll_tokenizer_finish(t, m.v, m.n));
    return read_post(t, json_object_get(root, "post_processor"));
}

/* ---- GGUF ---- */

/* -1: it is not said. */
static ll_err token_at(const ll_tokenizer *t, const ll_gguf *g, const char *key, int *out)
{
    const ll_gguf_pair *p = ll_gguf_find(g, key);
    double v = NAN;
    *out = -1;
    if (!p) return LL_OK;
    CHECK(!p->array && ll_gguf_number(p, &v) && v >= 0 && v < t->n && v == floor(v), LL_E_IO,
          "%s: %s is %g, which is none of its %d tokens", t->path, key, v, t->n);
    *out = (int)v;
    return LL_OK;
}

static ll_err gguf_merges(ll_tokenizer *t, const ll_gguf_pair *p, json_t *ids, merges *m)
{
    int *length;
    const char **text = ll_gguf_texts(p, t->arena, &length);
    CHECK(text, LL_E_IO, "%s: has no tokenizer.ggml.merges", t->path);
    m->v = LL_NEW_ARRAY(t->arena, ll_merge, p->n + 1);
    for (int64_t i = 0; i < p->n; i++) TRY(split_merge(t, ids, m, text[i], (size_t)length[i]));
    return LL_OK;
}

/* ---- GGUF: SentencePiece's vocabularies ---- */

enum { UNKNOWN = 2, CONTROL, OF_USER, UNUSED, BYTE }; /* token_type; 1: of text */

/* Token k, of which neighbours are made in the order of scores. */
static ll_err set_piece(ll_tokenizer *t, int k, const char *text, size_t n, int type)
{
    char *bytes = (char *)ll_arena_alloc(t->arena, n + 1);
    unsigned byte;
    int kind = type == OF_USER                      ? LL_TOKEN_ALWAYS
               : type == CONTROL || type == UNKNOWN ? LL_TOKEN_SPECIAL
                                                    : LL_TOKEN_TEXT;
    size_t length = ll_plain_blanks(text, n, bytes);
    if (type == BYTE) {
        bool digits =
            n == 6 && isxdigit((unsigned char)text[3]) && isxdigit((unsigned char)text[4]);
        CHECK(digits && text[5] == '>' && sscanf(text, "<0x%2x", &byte) == 1, LL_E_IO,
              "%s: token %d, %.20s, is not a byte such as <0x0A>", t->path, k, text);
        bytes[0] = (char)byte;
        length = 1;
        kind = LL_TOKEN_BYTE;
    }
    bytes[length] = '\0';
    t->tokens[k] = (ll_token){bytes, (int)length, kind};
    return LL_OK;
}

static int by_score(const void *a, const void *b, void *scores)
{
    const double *s = (const double *)scores;
    double x = s[*(const int *)a], y = s[*(const int *)b];
    return (x < y) - (x > y);
}

/* The best score has rank 0; equal ones have one rank. */
static void set_ranks(ll_tokenizer *t, double *scores)
{
    int *order = LL_NEW_ARRAY(t->arena, int, t->n + 1);
    int *rank = LL_NEW_ARRAY(t->arena, int, t->n + 1);
    for (int i = 0; i < t->n; i++) order[i] = i;
    qsort_r(order, (size_t)t->n, sizeof *order, by_score, scores);
    for (int i = 1; i < t->n; i++)
        rank[order[i]] = rank[order[i - 1]] + (scores[order[i]] < scores[order[i - 1]]);
    t->rank = rank;
}

static bool is_off(const ll_gguf *g, const char *key)
{
    double v;
    return ll_gguf_number(ll_gguf_find(g, key), &v) && !v;
}

static ll_err read_pieces(ll_tokenizer *t, const ll_gguf *g)
{
    const ll_gguf_pair *p = ll_gguf_find(g, "tokenizer.ggml.tokens");
    const ll_gguf_pair *types = ll_gguf_find(g, "tokenizer.ggml.token_type");
    const ll_gguf_pair *of = ll_gguf_find(g, "tokenizer.ggml.scores");
    int *length;
    const char **text = ll_gguf_texts(p, t->arena, &length);
    double *kind = ll_gguf_numbers(types, t->arena), *scores = ll_gguf_numbers(of, t->arena);
    CHECK(text && p->n < MOST && kind && scores && types->n == p->n && of->n == p->n, LL_E_IO,
          "%s: tokenizer.ggml.tokens, scores and token_type are not lists of equal length",
          t->path);
    t->n = (int)p->n;
    t->tokens = LL_NEW_ARRAY(t->arena, ll_token, t->n + 1);
    for (int i = 0; i < t->n; i++) {
        CHECK(isfinite(scores[i]), LL_E_IO, "%s: token %d has no score", t->path, i);
        int type = kind[i] >= 0 && kind[i] <= BYTE ? (int)kind[i] : 1;
        TRY(set_piece(t, i, text[i], (size_t)length[i], type));
    }
    set_ranks(t, scores);
    t->leads = !is_off(g, "tokenizer.ggml.add_space_prefix");
    TRY(token_at(t, g, "tokenizer.ggml.eos_token_id", &t->eos));
    if (!is_off(g, "tokenizer.ggml.add_bos_token"))
        TRY(token_at(t, g, "tokenizer.ggml.bos_token_id", &t->bos));
    t->chat = ll_gguf_text(ll_gguf_find(g, "tokenizer.chat_template"), t->arena);
    return ll_tokenizer_finish(t, NULL, 0);
}

static ll_err read_gguf(ll_tokenizer *t, const ll_gguf *g, json_t *ids)
{
    const ll_gguf_pair *p = ll_gguf_find(g, "tokenizer.ggml.tokens");
    const ll_gguf_pair *types = ll_gguf_find(g, "tokenizer.ggml.token_type");
    const char *model = ll_gguf_text(ll_gguf_find(g, "tokenizer.ggml.model"), t->arena);
    const char *pre = ll_gguf_text(ll_gguf_find(g, "tokenizer.ggml.pre"), t->arena);
    int *length;
    if (model && !strcmp(model, "llama")) return read_pieces(t, g);
    CHECK(model && !strcmp(model, "gpt2"), LL_E_IO,
          "%s: its tokenizer is %.40s; byte-level BPE (gpt2) and SentencePiece's (llama) are known "
          "here",
          t->path, model ? model : "none");
    const char **text = ll_gguf_texts(p, t->arena, &length);
    double *kind = ll_gguf_numbers(types, t->arena);
    CHECK(text && p->n < MOST && (!kind || types->n == p->n), LL_E_IO,
          "%s: tokenizer.ggml.tokens is not a list of tokens, or token_type has another length",
          t->path);
    t->n = (int)p->n;
    t->tokens = LL_NEW_ARRAY(t->arena, ll_token, t->n + 1);
    for (int i = 0; i < t->n; i++) {   /* 3: control; 4: of the user's; 2 and 5: unknown, unused */
        double k = kind ? kind[i] : 1; /* any number: the file says */
        set_token(t, i, text[i], (size_t)length[i],
                  k == 4             ? LL_TOKEN_ALWAYS
                  : k == 3 || k == 2 ? LL_TOKEN_SPECIAL
                                     : LL_TOKEN_TEXT);
        json_object_setn_new_nocheck(ids, text[i], (size_t)length[i], json_integer(i));
    }
    merges m = {0};
    TRY(gguf_merges(t, ll_gguf_find(g, "tokenizer.ggml.merges"), ids, &m));
    TRY(open_split(t, pre ? pre : LL_PRETOK_GPT2));
    TRY(token_at(t, g, "tokenizer.ggml.eos_token_id", &t->eos));
    double bos;
    if (ll_gguf_number(ll_gguf_find(g, "tokenizer.ggml.add_bos_token"), &bos) && bos)
        TRY(token_at(t, g, "tokenizer.ggml.bos_token_id", &t->bos));
    t->chat = ll_gguf_text(ll_gguf_find(g, "tokenizer.chat_template"), t->arena);
    return ll_tokenizer_finish(t, m.v, m.n);
}

/* ---- files ---- */

ll_err ll_tokenizer_parse(const uint8_t *bytes, size_t size, const char *path, ll_tokenizer **out)
{
    LL_OWN(ll_tokenizer) t = ll_tokenizer_new(path);
    *out = NULL;
    if (size > 4 && !memcmp(bytes, "GGUF", 4)) {
        ll_gguf g;
        json_auto_t *ids = json_object();
        TRY(ll_gguf_parse(bytes, size, path, t->arena, &g));
        TRY(read_gguf(t, &g, ids));
    } else {
        json_error_t e;
        json_auto_t *root = json_loadb((const char *)bytes, size, JSON_ALLOW_NUL, &e);
        CHECK(root, LL_E_IO, "%s:%d: %s", path, e.line, e.text);
        TRY(read_json(t, root));
    }
    return LL_HAND(out, t);
}

ll_err ll_tokenizer_parse_pair(const char *vocab, size_t n_vocab, const char *text, size_t n_merges,
                               const char *path, ll_tokenizer **out)
{
    LL_OWN(ll_tokenizer) t = ll_tokenizer_new(path);
    json_error_t e;
    int lines = 1;
    *out = NULL;
    json_auto_t *ids = json_loadb(vocab, n_vocab, JSON_ALLOW_NUL, &e);
    CHECK(ids, LL_E_IO, "%s: vocab.json:%d: %s", path, e.line, e.text);
    TRY(read_vocab(t, ids));
    TRY(fill_vocab(t, ids));
    const json_t *end = json_object_get(ids, "<|endoftext|>");
    if (end) t->tokens[t->eos = (int)json_integer_value(end)].kind = LL_TOKEN_SPECIAL;
    for (size_t i = 0; i < n_merges; i++) lines += text[i] == '\n';
    merges m = {LL_NEW_ARRAY(t->arena, ll_merge, lines + 1), 0};
    for (const char *p = text, *stop = text + n_merges; p < stop;) {
        const char *line = (const char *)memchr(p, '\n', (size_t)(stop - p));
        size_t n = (size_t)((line ? line : stop) - p);
        if (n && p[n - 1] == '\r') n--;
        if (n && strncmp(p, "#version", n < 8 ? n : 8)) TRY(split_merge(t, ids, &m, p, n));
        p = line ? line + 1 : stop;
    }
    TRY(open_split(t, LL_PRETOK_GPT2));
    TRY(ll_tokenizer_finish(t, m.v, m.n));
    return LL_HAND(out, t);
}

static ll_err open_pair(const char *folder, ll_arena *a, ll_tokenizer **out)
{
    LL_OWN_MEMORY uint8_t *vocab = NULL;
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t n, m;
    TRY(ll_file_read(ll_arena_printf(a, "%s/vocab.json", folder), LIMIT, &vocab, &n));
    TRY(ll_file_read(ll_arena_printf(a, "%s/merges.txt", folder), LIMIT, &text, &m));
    return ll_tokenizer_parse_pair((char *)vocab, n, (char *)text, m, folder, out);
}

/* What tokenizer_config.json beside it says: the end of a text, how chats are written. */
static void read_config(ll_tokenizer *t, const char *folder)
{
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t size;
    const char *path = ll_arena_printf(t->arena, "%s/tokenizer_config.json", folder);
    if (!ll_file_exists(path) || ll_file_read(path, LIMIT, &text, &size) != LL_OK) return;
    json_auto_t *j = json_loadb((const char *)text, size, JSON_ALLOW_NUL, NULL);
    json_t *eos = json_object_get(j, "eos_token"), *bos = json_object_get(j, "bos_token");
    const char *end = json_is_object(eos) ? text_at(eos, "content") : json_string_value(eos);
    const char *start = json_is_object(bos) ? text_at(bos, "content") : json_string_value(bos);
    if (end && *end) t->eos = ll_tokenizer_find(t, end);
    if (start && json_is_true(json_object_get(j, "add_bos_token")))
        t->bos = ll_tokenizer_find(t, start);
    if (*text_at(j, "chat_template"))
        t->chat = ll_arena_strdup(t->arena, text_at(j, "chat_template"));
}

ll_err ll_tokenizer_open(const char *path, ll_tokenizer **out)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN_MEMORY uint8_t *bytes = NULL;
    struct stat st;
    size_t size;
    const char *file = path, *folder;
    *out = NULL;
    CHECK(stat(path, &st) == 0, LL_E_IO, "%s: %m", path);
    if (S_ISDIR(st.st_mode)) {
        file = ll_arena_printf(a, "%s/tokenizer.json", path);
        folder = path;
        if (!ll_file_exists(file) && ll_file_exists(ll_arena_printf(a, "%s/vocab.json", path)))
            return open_pair(path, a, out);
    } else {
        char *above = ll_arena_strdup(a, path), *slash = strrchr(above, '/');
        if (slash) *slash = '\0';
        folder = slash ? above : ".";
    }
    TRY(ll_file_read(file, (size_t)1 << 40, &bytes, &size));
    TRY(ll_tokenizer_parse(bytes, size, file, out));
    if (bytes[0] != 'G') read_config(*out, folder);
    if ((*out)->eos < 0) (*out)->eos = ll_tokenizer_find(*out, "<|endoftext|>");
    return LL_OK;
}

/* ---- tokens ---- */

int ll_tokenizer_find(const ll_tokenizer *t, const char *token)
{
    return ll_token_find(t, token, (int)strlen(token));
}

const char *ll_tokenizer_bytes(const ll_tokenizer *t, int token, size_t *n)
{
    *n = 0;
    if (token < 0 || token >= t->n || !t->tokens[token].bytes) return NULL;
    *n = (size_t)t->tokens[token].length;
    return t->tokens[token].bytes;
}

bool ll_tokenizer_special(const ll_tokenizer *t, int token)
{
    return token >= 0 && token < t->n && t->tokens[token].kind == LL_TOKEN_SPECIAL;
}
