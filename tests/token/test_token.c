/* GGUF files and tokenizers: blocks against their definition, files that lie about themselves,
 * words, merges and special tokens, a tokenizer that is learnt. LOOPLINE_VOCABS names a folder of
 * llama.cpp's ggml-vocab-*.gguf, whose .inp and .out are then held against ours. */
#include "base/file.h"
#include "base/rng.h"
#include "token/bpe.h"
#include "token/gguf.h"
#include "token/gguf_made.h"
#include "token/split.h"
#include "tmpdir.h"
#include "no_error.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static uint32_t random_at(int i)
{
    return (uint32_t)(ll_uniform_at(3, 5, (uint64_t)i) * 65536);
}

/* ---- blocks ---- */

static void set_half(uint8_t *p, double v)
{
    uint16_t h;
    ll_store(&h, LL_F16, 0, v);
    memcpy(p, &h, 2);
}

/* Numbers are put into blocks as the formats say, and come out again. */
static void blocks(void **)
{
    static const int ids[] = {2, 3, 8, 12, 14};
    for (size_t t = 0; t < sizeof ids / sizeof *ids; t++) {
        const ll_quant *q = ll_quant_find(ids[t]);
        uint8_t b[256] = {0};
        float want[256], have[256];
        double d = 0.125, m = -0.5;
        int v[256], scale[16], least[16];
        for (int i = 0; i < 256; i++) v[i] = (int)(random_at(i) % (ids[t] == 14 ? 64 : 16));
        for (int i = 0; i < 16; i++)
            scale[i] = (int)(random_at(300 + i) % 64), least[i] = (int)(random_at(400 + i) % 64);
        for (int i = 0; i < q->block; i++) {
            if (ids[t] == 2) b[2 + i % 16] |= (uint8_t)(v[i] << (i < 16 ? 0 : 4));
            if (ids[t] == 3) b[4 + i % 16] |= (uint8_t)(v[i] << (i < 16 ? 0 : 4));
            if (ids[t] == 8) b[2 + i] = (uint8_t)(v[i] - 8);
            if (ids[t] == 12) b[16 + i / 64 * 32 + i % 32] |= (uint8_t)(v[i] << (i / 32 % 2 * 4));
            if (ids[t] == 14) {
                b[i / 128 * 64 + i % 64] |= (uint8_t)((v[i] & 15) << (i % 128 / 64 * 4));
                b[128 + i / 128 * 32 + i % 32] |= (uint8_t)(v[i] >> 4 << (i % 128 / 32 * 2));
            }
            want[i] = ids[t] == 3    ? (float)(d * v[i] + m)
                      : ids[t] == 12 ? (float)(d * scale[i / 32] * v[i] - m * least[i / 32])
                      : ids[t] == 14 ? (float)(d * (scale[i / 16] - 32) * (v[i] - 32))
                                     : (float)(d * (v[i] - 8));
        }
        for (int k = 0; k < 8 && ids[t] == 12; k++) {
            b[4 + k % 4] |= (uint8_t)(k < 4 ? scale[k] : scale[k] >> 4 << 6);
            b[8 + k % 4] |= (uint8_t)(k < 4 ? least[k] : least[k] >> 4 << 6);
            if (k >= 4) b[8 + k] = (uint8_t)((scale[k] & 15) | (least[k] & 15) << 4);
        }
        for (int k = 0; k < 16 && ids[t] == 14; k++) b[192 + k] = (uint8_t)(scale[k] - 32);
        set_half(ids[t] == 14 ? b + 208 : b, d);
        if (ids[t] == 3 || ids[t] == 12) set_half(b + 2, m);
        q->floats(b, have);
        for (int i = 0; i < q->block; i++)
            if (want[i] != have[i]) fail_msg("%s: %d is %g, not %g", q->name, i, have[i], want[i]);
    }
}

/* ---- files ---- */

static ll_buf small_file(ll_arena *a)
{
    static const char *const words[] = {"one", "", "three"};
    ll_buf b = {.arena = a};
    gguf_begin(&b, 2, 4);
    gguf_pair_text(&b, "general.architecture", "llama");
    gguf_pair_int(&b, "llama.block_count", 7);
    gguf_pair_float(&b, "llama.eps", 0.5f);
    gguf_pair_texts(&b, "words", words, 3);
    gguf_tensor(&b, "a", 2, (int64_t[]){32, 3}, 8, 0);
    gguf_tensor(&b, "b", 1, (int64_t[]){5}, 0, 128);
    gguf_align(&b);
    for (int i = 0; i < 128 + 20; i++) gguf_int(&b, 60, 1);
    return b;
}

static void file(void **)
{
    ll_arena *a = ll_arena_new();
    ll_buf b = small_file(a);
    const uint8_t *bytes = (const uint8_t *)b.text;
    ll_gguf g;
    double v;
    int *length;
    no_error(ll_gguf_parse(bytes, b.len, "made", a, &g));
    assert_int_equal(g.n_tensor, 2);
    assert_int_equal(g.tensors[0].shape.d[0], 3);
    assert_int_equal(g.tensors[0].shape.d[1], 32);
    assert_string_equal(ll_gguf_text(ll_gguf_find(&g, "general.architecture"), a), "llama");
    assert_true(ll_gguf_number(ll_gguf_find(&g, "llama.block_count"), &v) && v == 7);
    assert_true(ll_gguf_number(ll_gguf_find(&g, "llama.eps"), &v) && v == 0.5);
    assert_string_equal(ll_gguf_texts(ll_gguf_find(&g, "words"), a, &length)[2], "three");
    assert_null(ll_gguf_find(&g, "none"));
    for (size_t n = 0; n < b.len; n++) { /* cut off anywhere */
        uint8_t *part = (uint8_t *)malloc(n + 1);
        memcpy(part, bytes, n);
        assert_int_equal(ll_gguf_parse(part, n, "made", a, &g), LL_E_IO);
        free(part);
    }
    for (size_t n = 4; n < b.len; n++) /* any byte changed: refused, or all inside */
        for (int bit = 0; bit < 8; bit += 7) {
            ((uint8_t *)b.text)[n] ^= (uint8_t)(1 << bit);
            if (ll_gguf_parse(bytes, b.len, "made", a, &g) == LL_OK)
                for (int i = 0; i < g.n_tensor; i++) {
                    const ll_gguf_tensor *t = &g.tensors[i];
                    if (!t->data || t->shape.n < 0) continue;
                    int64_t all = ll_numel(&t->shape) / t->quant->block * t->quant->bytes;
                    assert_true(t->data >= bytes && t->data + all <= bytes + b.len);
                }
            ((uint8_t *)b.text)[n] ^= (uint8_t)(1 << bit);
        }
    ll_arena_free(a);
}

/* ---- tokenizers ---- */

static void want_tokens(const ll_tokenizer *t, const char *text, bool special, int n,
                        const int32_t *want)
{
    int32_t *have;
    int64_t count;
    no_error(ll_tokenizer_encode(t, text, strlen(text), special, &have, &count));
    assert_int_equal(count, n);
    for (int i = 0; i < n; i++) assert_int_equal(have[i], want[i]);
    free(have);
}

/* A tokenizer.json of all bytes, "he" (257), "ll" (258), "hell" (259), " t" (260), "th" (261). */
static const char *small_json(ll_arena *a, const char *pre, const char *more)
{
    ll_buf b = {.arena = a};
    ll_buf_puts(&b,
                "{\"added_tokens\": [{\"id\": 0, \"content\": \"<|end|>\", \"special\": true}, "
                "{\"id\": 262, \"content\": \"[x]\", \"special\": false}], \"pre_tokenizer\": ");
    ll_buf_printf(&b, "%s, \"model\": {\"type\": \"BPE\", %s \"vocab\": {", pre, more);
    for (int i = 0; i < 256; i++) {
        char c[4];
        ll_byte_char(i, c);
        ll_buf_json(&b, c);
        ll_buf_printf(&b, ": %d, ", i + 1);
    }
    ll_buf_puts(&b, "\"he\": 257, \"ll\": 258, \"hell\": 259, \"\xC4\xA0t\": 260, \"th\": 261}, "
                    "\"merges\": [\"l l\", \"h e\", [\"he\", \"ll\"], \"\xC4\xA0 t\", \"t h\"]}}");
    return b.text;
}

#define PLAIN "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"

static void words(void **)
{
    ll_arena *a = ll_arena_new();
    const char *json = small_json(a, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", "");
    ll_tokenizer *t;
    no_error(ll_tokenizer_parse((const uint8_t *)json, strlen(json), "json", &t));
    want_tokens(t, "hello the", false, 4, (int32_t[]){259, 'o' + 1, 260, 257});
    want_tokens(t, "<|end|>", false, 7,
                (int32_t[]){'<' + 1, '|' + 1, 'e' + 1, 'n' + 1, 'd' + 1, '|' + 1, '>' + 1});
    want_tokens(t, "a<|end|>[x]", true, 3, (int32_t[]){'a' + 1, 0, 262});
    want_tokens(t, "a[x]", false, 2, (int32_t[]){'a' + 1, 262});
    want_tokens(t, "llllh", false, 3, (int32_t[]){258, 258, 'h' + 1});
    want_tokens(t, "\xFF\xFEhe", false, 3, (int32_t[]){256, 255, 257}); /* no UTF-8 */
    want_tokens(t, "", true, 0, NULL);
    char *many = (char *)malloc(300001); /* one word, and not the square of it */
    memset(many, 'l', 300000);
    many[300000] = '\0';
    int32_t *have;
    int64_t n;
    no_error(ll_tokenizer_encode(t, many, 300000, false, &have, &n));
    assert_int_equal(n, 150000);
    free(have);
    free(many);
    ll_tokenizer_close(t);
    json = small_json(a,
                      PLAIN ", \"post_processor\": {\"type\": \"Sequence\", \"processors\": "
                            "[{\"type\": \"ByteLevel\"}, {\"type\": \"TemplateProcessing\", "
                            "\"single\": [{\"SpecialToken\": {\"id\": \"<|end|>\"}}, "
                            "{\"Sequence\": {\"id\": \"A\"}}]}]}",
                      "\"dropout\": null, \"end_of_word_suffix\": \"\", \"byte_fallback\": false,");
    no_error(ll_tokenizer_parse((const uint8_t *)json, strlen(json), "json", &t));
    assert_int_equal(t->bos, 0);
    ll_tokenizer_close(t);
    const char *wrong[][3] = {
        {"{\"type\": \"Metaspace\"}", "", "Metaspace"},
        {"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}", "",
         "pattern"},
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": true}", "", "add_prefix_space"},
        {PLAIN, "\"dropout\": 0.5,", "dropout"},
        {PLAIN, "\"byte_fallback\": true,", "byte_fallback"},
        {PLAIN, "\"end_of_word_suffix\": \"</w>\",", "end_of_word_suffix"},
        {PLAIN ", \"post_processor\": {\"type\": \"BertProcessing\"}", "", "BertProcessing"},
        {PLAIN ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
               "[{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": \"<|end|>\"}}]}",
         "", "post_processor"},
        {PLAIN ", \"added_tokens\": [{\"id\": 5, \"content\": \"<s>\"}]", "", "<s> has number 5"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json = small_json(a, wrong[i][0], wrong[i][1]);
        assert_int_equal(ll_tokenizer_parse((const uint8_t *)json, strlen(json), "json", &t),
                         LL_E_IO);
        assert_non_null(strstr(ll_error_text(), wrong[i][2]));
        assert_null(t);
    }
    ll_arena_free(a);
}

/* ---- words ---- */

/* Unicode's White_Space, of its PropList.txt. */
static bool is_white(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static void put_char(ll_buf *b, uint32_t c)
{
    if (c < 0x80)
        gguf_int(b, c, 1);
    else if (c < 0x800)
        gguf_int(b, 0x80C0U | c >> 6 | (c & 63) << 8, 2);
    else
        gguf_int(b, 0x8080E0U | c >> 12 | (c >> 6 & 63) << 8 | (c & 63) << 16, 3);
}

static void join(void *user, const char *text, size_t n)
{
    ll_buf *b = (ll_buf *)user;
    if (b->len) ll_buf_puts(b, "|");
    ll_buf_add(b, text, n);
}

static const char *cut_by(ll_arena *a, const char *const *patterns, int n, const char *text,
                          size_t size)
{
    LL_OWN(ll_pretok) s = NULL;
    ll_buf b = {.arena = a};
    no_error(ll_pretok_open(patterns, n, "test", &s));
    no_error(ll_pretok_text(s, text, size, join, &b));
    return b.text;
}

/* Patterns mean by white space what Unicode does: U+180E, which was some, is none. */
static void spaces(void **)
{
    static const char *const runs[] = {"\\s+", "\\S+", "[\\s]+", "[^\\s]+", "[\\S]+", "[^\\S]+"};
    static const char *const all[][3] = {
        {"[]\\s]+", "a] b", "a|] |b"},    {"[^]\\s]+", "a] b", "a|] |b"},
        {"[\\s-]+", "a -b", "a| -|b"},    {"[[:digit:]\\s]+", "a1 b", "a|1 |b"},
        {"[[:\\s]+", "a:[ b", "a|:[ |b"}, {"\\[\\s", "a[ b", "a|[ |b"}};
    static const char *const names[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_buf text = {.arena = a}, want = {.arena = a};
    for (uint32_t c = 1; c < 0x10000; c++) {
        if (c == '|' || (c >= 0xD800 && c < 0xE000)) continue;
        put_char(&text, c);
        if (c > 1 && is_white(c) != is_white(c - 1)) ll_buf_puts(&want, "|");
        put_char(&want, c);
    }
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        if (strcmp(cut_by(a, &runs[i], 1, text.text, text.len), want.text)) fail_msg("%s", runs[i]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_string_equal(cut_by(a, all[i], 1, all[i][1], strlen(all[i][1])), all[i][2]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        static const char odd[] = "a\n\n\xe1\xa0\x8e";
        const char *const *p = ll_pretok_known(names[i]);
        bool three = *names[i] == 'l' || *names[i] == 'q'; /* cut lines off as they are */
        assert_string_equal(cut_by(a, p, p[1] ? 2 : 1, odd, sizeof odd - 1),
                            three ? "a|\n\n|\xe1\xa0\x8e" : "a|\n|\n|\xe1\xa0\x8e");
    }
}

/* ---- learnt ---- */

static void learnt(void **state)
{
    ll_arena *a = ll_arena_new();
    ll_buf text = {.arena = a};
    uint8_t *one, *two;
    size_t n1, n2;
    int made[2];
    for (int i = 0; i < 40000; i++) {
        static const char *const some[] = {"the", "there", "then", "we", "'ll", "42", "\xC3\xA4h"};
        ll_buf_printf(&text, "%s%s", i % 9 ? " " : "\n", some[random_at(i) % 7]);
    }
    char path[2][512];
    for (int k = 0; k < 2; k++) {
        snprintf(path[k], sizeof path[k], "%s", tmpdir_path(state, k ? "b.json" : "a.json"));
        ll_bpe_opts o = {.vocab = 300, .threads = k + 1, .split = k ? "gpt-2" : NULL};
        no_error(ll_bpe_train(&o, (const char *[]){text.text, "the the"}, (size_t[]){text.len, 7},
                              2, path[k], &made[k]));
    }
    no_error(ll_file_read(path[0], 1 << 20, &one, &n1));
    no_error(ll_file_read(path[1], 1 << 20, &two, &n2));
    assert_true(n1 == n2 && !memcmp(one, two, n1) && made[0] == made[1]);
    ll_tokenizer *t;
    no_error(ll_tokenizer_open(path[0], &t));
    assert_true(t->n == made[0] && made[0] > 265 && made[0] <= 300);
    int32_t *v;
    int64_t n;
    char odd[1000];
    for (int i = 0; i < 1000; i++) odd[i] = (char)random_at(i);
    for (int k = 0; k < 2; k++) { /* there and back: its text, and any bytes */
        const char *from = k ? odd : text.text;
        size_t size = k ? sizeof odd : text.len, at = 0, length;
        no_error(ll_tokenizer_encode(t, from, size, false, &v, &n));
        assert_true(k || n * 3 < (int64_t)size);
        for (int64_t i = 0; i < n; i++, at += length) {
            const char *bytes = ll_tokenizer_bytes(t, v[i], &length);
            assert_true(at + length <= size && !memcmp(bytes, from + at, length));
        }
        assert_int_equal(at, size);
        free(v);
    }
    assert_true(ll_tokenizer_find(t, " the") > 0 && t->eos == 0);
    ll_tokenizer_close(t);
    free(one);
    free(two);
    ll_arena_free(a);
}

/* ---- llama.cpp's ---- */

/* SentencePiece's: the best score first, of equal ones the left; bytes of what is no token. */
static void pieces(void **)
{
    static const char *const text[] = {"<unk>",
                                       "<s>",
                                       "</s>",
                                       "<0x0A>",
                                       "<0xC3>",
                                       "<0xA9>",
                                       "\xe2\x96\x81",
                                       "a",
                                       "b",
                                       "c",
                                       "ab",
                                       "bc",
                                       ("\xe2\x96\x81"
                                        "a"),
                                       "abc",
                                       "aa"};
    static const float score[] = {0, 0, 0, 0, 0, 0, -20, -21, -22, -23, -3, -2, -4, -5, -3};
    static const int kind[] = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    enum { N = sizeof kind / sizeof *kind };
    static const struct {
        const char *text;
        int want[8], n;
    } all[] = {{"abc", {12, 11}, 2}, /* bc, -2, then _a, -4, before a bc, -5 */
               {"ab", {6, 10}, 2},   /* ab, -3, before _a, -4 */
               {"a", {12}, 1},        {"aaa", {6, 14, 7}, 3}, /* the left one */
               {"c\n", {6, 9, 3}, 3}, {"\xc3\xa9", {6, 4, 5}, 3},
               {"a a", {12, 12}, 2},  {"</s>a", {2, 12}, 2},
               {"", {0}, 0}};
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_buf b = {.arena = a};
    ll_tokenizer *t;
    gguf_begin(&b, 0, 6);
    gguf_pair_text(&b, "tokenizer.ggml.model", "llama");
    gguf_pair_texts(&b, "tokenizer.ggml.tokens", text, N);
    gguf_text(&b, "tokenizer.ggml.scores");
    gguf_int(&b, 9, 4), gguf_int(&b, 6, 4), gguf_int(&b, N, 8);
    for (int i = 0; i < N; i++) ll_buf_add(&b, &score[i], 4);
    gguf_text(&b, "tokenizer.ggml.token_type");
    gguf_int(&b, 9, 4), gguf_int(&b, 5, 4), gguf_int(&b, N, 8);
    for (int i = 0; i < N; i++) gguf_int(&b, (uint64_t)kind[i], 4);
    gguf_pair_int(&b, "tokenizer.ggml.bos_token_id", 1);
    gguf_pair_int(&b, "tokenizer.ggml.eos_token_id", 2);
    no_error(ll_tokenizer_parse((const uint8_t *)b.text, b.len, "made", &t));
    assert_int_equal(t->bos, 1);
    assert_int_equal(t->eos, 2);
    assert_true(t->leads);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int32_t *v;
        int64_t n;
        no_error(ll_tokenizer_encode(t, all[i].text, strlen(all[i].text), true, &v, &n));
        assert_int_equal(n, all[i].n);
        for (int k = 0; k < n; k++) assert_int_equal(v[k], all[i].want[k]);
        free(v);
    }
    int32_t *v;
    int64_t n;
    assert_int_equal(ll_tokenizer_encode(t, "d", 1, true, &v, &n), LL_E_ARG); /* no byte */
    assert_int_equal(ll_tokenizer_encode(t, "a\0b", 3, true, &v, &n), LL_E_ARG);
    assert_int_equal(ll_tokenizer_save_json(t, "none"), LL_E_ARG);
    ll_tokenizer_close(t);
    for (size_t i = 0; i < b.len; i++) { /* any other file gets an error, or is read */
        char was = b.text[i];
        b.text[i] = (char)(was ^ (1 + (int)(random_at((int)i) % 255)));
        if (ll_tokenizer_parse((const uint8_t *)b.text, b.len, "made", &t) == LL_OK &&
            ll_tokenizer_encode(t, "abc \xc3\xa9 aab", 10, true, &v, &n) == LL_OK)
            free(v);
        ll_tokenizer_close(t);
        b.text[i] = was;
    }
}

static int one_vocabulary(const char *path)
{
    char name[2048];
    uint8_t *in, *out;
    size_t n_in, n_out;
    ll_tokenizer *t;
    int n = 0;
    snprintf(name, sizeof name, "%s.inp", path);
    no_error(ll_file_read(name, 1 << 20, &in, &n_in));
    snprintf(name, sizeof name, "%s.out", path);
    no_error(ll_file_read(name, 1 << 20, &out, &n_out));
    if (ll_tokenizer_open(path, &t) == LL_OK) {
        static const char mark[] = "\n__ggml_vocab_test__\n";
        char *p = (char *)in, *line = (char *)out;
        for (bool more = true; more; n++) {
            char *end = strstr(p, mark), *stop;
            more = end != NULL;
            size_t size = more ? (size_t)(end - p) : strlen(p);
            int32_t *v;
            int64_t count, k = 0;
            no_error(ll_tokenizer_encode(t, p, size, false, &v, &count));
            char *eol = strchr(line, '\n');
            if (eol) *eol = '\0';
            for (long want; want = strtol(line, &stop, 10), stop != line; line = stop)
                if (k >= count || v[k++] != want) fail_msg("%s: text %d differs", path, n);
            assert_int_equal(k, count);
            free(v);
            line = eol ? eol + 1 : line;
            p = more ? end + strlen(mark) : p;
        }
    } else
        printf("%s\n", ll_error_text());
    ll_tokenizer_close(t);
    free(in);
    free(out);
    return n;
}

static void vocabularies(void **)
{
    const char *folder = getenv("LOOPLINE_VOCABS");
    if (!folder) skip();
    static const char *const names[] = {"gpt-2",     "llama-bpe", "qwen2", "starcoder",
                                        "command-r", "llama-spm", "phi-3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf", folder, names[i]);
        int n = one_vocabulary(path);
        printf("%s: %d texts\n", names[i], n);
        assert_true(n > 40);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks),
        cmocka_unit_test(file),
        cmocka_unit_test(words),
        cmocka_unit_test(spaces),
        cmocka_unit_test_setup_teardown(learnt, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(pieces),
        cmocka_unit_test(vocabularies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
