/* cmd_tokens.c: loopline tokens train | encode | decode. */
#include "base/file.h"
#include "cli/common.h"
#include "token/tokenizer.h"

#include <sys/stat.h>
#include <unistd.h>

enum { LIMIT = 1 << 30 }; /* bytes of a text */

/* ---- texts ---- */

typedef struct texts {
    char **v;
    size_t *size;
    int n, room, room_size;
    ll_arena *arena;
} texts;

static void texts_free(texts *t)
{
    for (int i = 0; i < t->n; i++) free(t->v[i]);
    ll_arena_free(t->arena);
}
#define OWN_TEXTS __attribute__((cleanup(texts_free))) texts

static ll_err add_file(texts *t, const char *path)
{
    uint8_t *bytes;
    size_t size;
    TRY(ll_file_read(path, LIMIT, &bytes, &size));
    t->v = (char **)ll_arena_grow(t->arena, t->v, sizeof *t->v, t->n, &t->room);
    t->size = (size_t *)ll_arena_grow(t->arena, t->size, sizeof *t->size, t->n, &t->room_size);
    t->v[t->n] = (char *)bytes;
    t->size[t->n++] = size;
    return LL_OK;
}

static ll_err add_path(texts *t, const char *path)
{
    struct stat st;
    CHECK(stat(path, &st) == 0, LL_E_IO, "%s: %m", path);
    if (!S_ISDIR(st.st_mode)) return add_file(t, path);
    int n;
    const char *const *all = ll_files(t->arena, ll_arena_printf(t->arena, "%s/*.txt", path), &n);
    CHECK(n, LL_E_IO, "%s: no file *.txt in the folder", path);
    for (int i = 0; i < n; i++) TRY(add_file(t, all[i]));
    return LL_OK;
}

/* ---- train ---- */

typedef struct train_opts {
    ll_words files;
    const char *out, *split;
    int64_t vocab, threads;
    bool json;
} train_opts;

static const ll_arg train_args[] = {
    {"TEXT...", LL_OPT(train_opts, files), NULL, "text files, or folders with *.txt"},
    {"--out|-o", LL_OPT(train_opts, out), "FILE", "file to write", "tokenizer.json"},
    {"--vocab", LL_OPT(train_opts, vocab), "N", "vocabulary size, including the 256 bytes", "8192"},
    {"--split", LL_OPT(train_opts, split), "NAME",
     "pre-tokenizer, which splits text into words: gpt-2, llama-bpe, smollm, qwen2", "gpt-2"},
    {"--threads", LL_OPT(train_opts, threads), "N", "threads; 0 = all cores", "0"},
    {"--json", LL_OPT(train_opts, json), NULL, "print one JSON object to standard output"},
    {0}};

static ll_err run_train(const void *given)
{
    const train_opts *o = (const train_opts *)given;
    OWN_TEXTS t = {.arena = ll_arena_new()};
    int made;
    for (int i = 0; i < o->files.n; i++) TRY(add_path(&t, o->files.v[i]));
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    ll_bpe_opts how = {.vocab = o->vocab < 1 << 22 ? (int)o->vocab : 1 << 22,
                       .threads = (int)(o->threads ? o->threads : cores),
                       .split = o->split};
    TRY(ll_bpe_train(&how, (const char *const *)t.v, t.size, t.n, o->out, &made));
    if (o->json) return ll_cli_json(LL_JSON(LL_IS("file", o->out), LL_IS("tokens", made)));
    printf("%s: %d tokens%s\n", o->out, made,
           made < o->vocab ? " (no other pair occurs twice)" : "");
    return LL_OK;
}

/* ---- encode ---- */

typedef struct encode_opts {
    ll_words files;
    const char *tokenizer, *out;
    bool special, json;
} encode_opts;

static const ll_arg encode_args[] = {
    {"TEXT...", LL_OPT(encode_opts, files), NULL,
     "text files, or folders with *.txt; each file is one document"},
    {"--tokenizer|-t", LL_OPT(encode_opts, tokenizer), "FILE",
     "tokenizer.json, a GGUF file, or a folder with either", "tokenizer.json"},
    {"--out|-o", LL_OPT(encode_opts, out), "FILE",
     "write tokens for training (.u16, .u32, or llm.c's .bin); if not given, print token IDs"},
    {"--special", LL_OPT(encode_opts, special), NULL,
     "parse special tokens in the text as tokens instead of plain text"},
    {"--json", LL_OPT(encode_opts, json), NULL,
     "print JSON: a list of each document's tokens or, with --out, a summary"},
    {0}};

/* Bytes of each token by the file's name; .bin has a header. */
static ll_err bytes_for(const char *path, int count, int *each, bool *header)
{
    const char *dot = strrchr(path, '.');
    *header = dot && !strcmp(dot, ".bin");
    *each = dot && !strcmp(dot, ".u32") ? 4 : 2;
    CHECK(*header || (dot && (!strcmp(dot, ".u16") || *each == 4)), LL_E_ARG,
          "--out %s: expected a name that ends in .u16, .u32 or .bin", path);
    CHECK(*each == 4 || count <= 65536, LL_E_ARG,
          "--out %s: %d different tokens do not fit into 16 bits: name it .u32", path, count);
    return LL_OK;
}

/* What ends a text stands behind each document. */
static ll_err encode_to(const encode_opts *o, const ll_tokenizer *t, const texts *x)
{
    LL_OWN(ll_atomic) f = NULL;
    int each;
    bool header;
    int64_t sum = 0;
    int32_t head[256] = {20240520, 1, 0}, eos = t->eos;
    TRY(bytes_for(o->out, t->n, &each, &header));
    TRY(ll_atomic_open(o->out, &f));
    if (header) TRY(ll_atomic_add(f, head, sizeof head));
    for (int i = 0; i < x->n; i++) {
        LL_OWN_MEMORY int32_t *v = NULL;
        int64_t n;
        TRY(ll_tokenizer_encode(t, x->v[i], x->size[i], o->special, &v, &n));
        for (int64_t k = 0; k < n && each == 2; k++) ((uint16_t *)v)[k] = (uint16_t)v[k];
        TRY(ll_atomic_add(f, v, (size_t)n * (size_t)each));
        if (eos >= 0) TRY(ll_atomic_add(f, &eos, (size_t)each));
        sum += n + (eos >= 0);
    }
    CHECK(!header || sum < INT32_MAX, LL_E_ARG, "%ld tokens are too many for one .bin file", sum);
    head[2] = (int32_t)sum;
    if (header) TRY(ll_atomic_add_at(f, head, sizeof head, 0));
    TRY(ll_atomic_commit(f));
    if (o->json)
        return ll_cli_json(
            LL_JSON(LL_IS("file", o->out), LL_IS("tokens", sum), LL_IS("documents", x->n)));
    printf("%s: %s of %s\n", o->out, LL_COUNTED(sum, "token"), LL_COUNTED(x->n, "document"));
    return LL_OK;
}

static ll_err run_encode(const void *given)
{
    const encode_opts *o = (const encode_opts *)given;
    OWN_TEXTS x = {.arena = ll_arena_new()};
    LL_OWN(ll_tokenizer) t = NULL;
    TRY(ll_tokenizer_open(o->tokenizer, &t));
    for (int i = 0; i < o->files.n; i++) TRY(add_path(&x, o->files.v[i]));
    if (o->out) return encode_to(o, t, &x);
    json_auto_t *all = json_array();
    for (int i = 0; i < x.n; i++) {
        LL_OWN_MEMORY int32_t *v = NULL;
        int64_t n;
        json_t *list = json_array();
        json_array_append_new(all, list);
        TRY(ll_tokenizer_encode(t, x.v[i], x.size[i], o->special, &v, &n));
        for (int64_t k = 0; k < n && o->json; k++) json_array_append_new(list, json_integer(v[k]));
        for (int64_t k = 0; k < n && !o->json; k++) printf("%s%d", k ? " " : "", v[k]);
        if (!o->json) printf("\n");
    }
    return o->json ? ll_cli_json(json_incref(all)) : LL_OK;
}

/* ---- decode ---- */

static const ll_arg decode_args[] = {
    {"FILE", LL_OPT(encode_opts, out), NULL,
     "file with token IDs: numbers as text, or .u16, .u32 or .bin"},
    {"--tokenizer|-t", LL_OPT(encode_opts, tokenizer), "FILE",
     "tokenizer.json, a GGUF file, or a folder with either", "tokenizer.json"},
    {"--special", LL_OPT(encode_opts, special), NULL,
     "print special tokens too, such as end of text"},
    {"--json", LL_OPT(encode_opts, json), NULL,
     "print a JSON list of each token's text; bytes that are not UTF-8 become U+FFFD"},
    {0}};

static ll_err show_token(const encode_opts *o, const ll_tokenizer *t, int64_t token, bool *leads,
                         ll_buf *json)
{
    size_t n;
    const char *bytes = token < INT32_MAX ? ll_tokenizer_bytes(t, (int)token, &n) : NULL;
    CHECK(bytes, LL_E_ARG, "%ld is not a token: the vocabulary has %d", token, t->n);
    if (!o->special && ll_tokenizer_special(t, (int)token)) return LL_OK;
    bool text = !ll_tokenizer_special(t, (int)token);
    if (*leads && text && n && *bytes == ' ') bytes++, n--; /* that of the text's beginning */
    *leads &= !text;
    if (json->arena) {
        ll_buf_puts(json, json->len ? ", " : "[");
        ll_buf_json(json, bytes);
    } else
        fwrite(bytes, 1, n, stdout);
    return LL_OK;
}

static ll_err run_decode(const void *given)
{
    const encode_opts *o = (const encode_opts *)given;
    LL_OWN(ll_tokenizer) t = NULL;
    LL_OWN_MEMORY uint8_t *bytes = NULL;
    const char *dot = strrchr(o->out, '.');
    size_t size, each = 0, from = 0;
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_buf json = {.arena = o->json ? a : NULL};
    TRY(ll_tokenizer_open(o->tokenizer, &t));
    bool leads = t->leads && !o->json;
    TRY(ll_file_read(o->out, LIMIT, &bytes, &size));
    if (dot && !strcmp(dot, ".u16")) each = 2;
    if (dot && !strcmp(dot, ".u32")) each = 4;
    if (dot && !strcmp(dot, ".bin")) each = 2, from = 1024;
    CHECK(!each || (size >= from && (size - from) % each == 0), LL_E_IO,
          "%s has %zu bytes, expected %zu plus %zu for each token", o->out, size, from, each);
    for (size_t i = from; each && i < size; i += each) {
        uint32_t v = 0;
        memcpy(&v, bytes + i, each);
        TRY(show_token(o, t, v, &leads, &json));
    }
    for (char *p = (char *)bytes, *end; !each; p = end) {
        int64_t v = strtol(p, &end, 10);
        if (end == p) {
            p += strspn(p, " \t\r\n");
            CHECK(p == (char *)bytes + size, LL_E_IO, "%s: '%.20s' is not a token number", o->out,
                  p);
            break;
        }
        TRY(show_token(o, t, v, &leads, &json));
    }
    if (o->json) printf("%s]\n", json.len ? json.text : "[");
    CHECK(fflush(stdout) == 0, LL_E_IO, "standard output cannot be written");
    return LL_OK;
}

static const ll_command train = {"tokens train", "train a tokenizer (byte-level BPE) on text",
                                 train_args, sizeof(train_opts), run_train};
static const ll_command encode_command = {"tokens encode", "convert text to tokens", encode_args,
                                          sizeof(encode_opts), run_encode};
static const ll_command decode_command = {"tokens decode", "convert tokens to text", decode_args,
                                          sizeof(encode_opts), run_decode};
static const ll_command *const subs[] = {&train, &encode_command, &decode_command, NULL};
const ll_command ll_command_tokens = {
    "tokens", "train tokenizers, and convert between text and tokens", .subs = subs};
