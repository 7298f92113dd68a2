/* write.c: tokenizers for others: tokenizer.json, and pairs of GGUF files. */
#include "base/file.h"
#include "base/text.h"
#include "token/bpe.h"
#include "token/gguf.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

ll_err ll_tokenizer_of_bytes(int n, ll_tokenizer **out)
{
    LL_OWN(ll_tokenizer) t = ll_tokenizer_new("bytes");
    *out = NULL;
    t->tokens = LL_NEW_ARRAY(t->arena, ll_token, n + 1);
    for (t->n = 0; t->n < n; t->n++) {
        const char byte[2] = {(char)t->n, 0};
        const char *bytes = (const char *)ll_arena_copy(t->arena, byte, 2);
        t->tokens[t->n] = (ll_token){bytes, 1, LL_TOKEN_TEXT};
    }
    TRY(ll_tokenizer_cuts(t, ll_pretok_known(LL_PRETOK_GPT2), 1));
    TRY(ll_tokenizer_finish(t, NULL, 0));
    return LL_HAND(out, t);
}

/* How a vocabulary spells it. */
static const char *spelled(ll_arena *a, const ll_token *k)
{
    ll_buf b = {.arena = a};
    char c[4];
    ll_buf_add(&b, "", 0);
    for (int i = 0; i < k->length; i++) {
        ll_byte_char((unsigned char)k->bytes[i], c);
        ll_buf_puts(&b, k->kind ? (const char[]){k->bytes[i], 0} : c);
    }
    return b.text ? b.text : "";
}

static int by_rank(const void *a, const void *b)
{
    int x = ((const ll_merge *)a)->rank, y = ((const ll_merge *)b)->rank;
    return (x > y) - (x < y);
}

static ll_merge *merges_of(const ll_tokenizer *t, ll_arena *a, int *n)
{
    ll_merge *m = LL_NEW_ARRAY(a, ll_merge, t->merge_mask + 2);
    *n = 0;
    for (unsigned i = 0; i <= t->merge_mask; i++)
        if (t->merge[i].rank >= 0) m[(*n)++] = t->merge[i];
    qsort(m, (size_t)*n, sizeof *m, by_rank);
    return m;
}

/* ---- tokenizer.json ---- */

static json_t *cut_json(const ll_tokenizer *t)
{
    json_t *list = json_array();
    int n = t->n_cut;
    bool gpt2 = n && !strcmp(t->cuts[n - 1], *ll_pretok_known(LL_PRETOK_GPT2));
    for (int i = 0; i < n - gpt2; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern",
                                        "Regex", t->cuts[i], "behavior", "Isolated", "invert", 0));
    json_array_append_new(list,
                          json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                                    0, "trim_offsets", 1, "use_regex", gpt2));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

/* What is put before a text. */
static json_t *post_json(const ll_tokenizer *t, const char *bos)
{
    if (t->bos < 0) return json_null();
    return json_pack("{s:s, s:[{s:{s:s,s:i}},{s:{s:s,s:i}}], "
                     "s:[{s:{s:s,s:i}},{s:{s:s,s:i}},{s:{s:s,s:i}}], s:{s:{s:s,s:[i],s:[s]}}}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", bos, "type_id",
                     0, "Sequence", "id", "A", "type_id", 0, "pair", "SpecialToken", "id", bos,
                     "type_id", 0, "Sequence", "id", "A", "type_id", 0, "Sequence", "id", "B",
                     "type_id", 0, "special_tokens", bos, "id", bos, "ids", t->bos, "tokens", bos);
}

static ll_err dump(json_t *given, const char *path)
{
    json_auto_t *root = given;
    LL_OWN_MEMORY char *out = json_dumps(root, JSON_INDENT(1));
    CHECK(out, LL_E_MEM, "%s: not enough memory, or a token that is not text", path);
    return ll_file_write(path, out, strlen(out));
}

/* Scores are not written, nor is what goes with them. */
ll_err ll_tokenizer_can_save(const ll_tokenizer *t)
{
    CHECK(!t->rank, LL_E_ARG,
          "%s: SentencePiece's vocabularies are read, not written: keep that file's tokenizer, and "
          "export --weights",
          t->path);
    return LL_OK;
}

ll_err ll_tokenizer_save_json(const ll_tokenizer *t, const char *path)
{
    TRY(ll_tokenizer_can_save(t));
    LL_OWN(ll_arena) a = ll_arena_new();
    json_t *vocab = json_object(), *merges = json_array(), *added = json_array();
    const char **text = LL_NEW_ARRAY(a, const char *, t->n + 1);
    int n;
    ll_merge *m = merges_of(t, a, &n);
    for (int i = 0; i < t->n; i++) {
        if (!t->tokens[i].bytes) continue;
        text[i] = spelled(a, &t->tokens[i]);
        if (*text[i]) /* of two that are spelled alike, the last */
            json_object_set_new(vocab, text[i], json_integer(i));
        if (t->tokens[i].kind)
            json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", i,
                                                   "content", text[i], "single_word", 0, "lstrip",
                                                   0, "rstrip", 0, "normalized", 0, "special",
                                                   t->tokens[i].kind == LL_TOKEN_SPECIAL));
    }
    for (int i = 0; i < n; i++)
        json_array_append_new(merges, json_pack("[s, s]", text[m[i].a], text[m[i].b]));
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:o, s:n, s:o, s:o, s:{s:s, s:b, s:b, s:b}, "
        "s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}}",
        "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer",
        "pre_tokenizer", cut_json(t), "post_processor",
        post_json(t, t->bos >= 0 ? text[t->bos] : NULL), "decoder", "type", "ByteLevel",
        "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE", "dropout",
        "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
        "byte_fallback", 0, "ignore_merges", t->whole, "vocab", vocab, "merges", merges);
    return dump(root, path);
}

ll_err ll_tokenizer_save(const ll_tokenizer *t, const char *folder)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    json_t *j =
        json_pack("{s:s, s:b, s:[s, s]}", "tokenizer_class", "PreTrainedTokenizerFast",
                  "add_bos_token", t->bos >= 0, "model_input_names", "input_ids", "attention_mask");
    if (t->bos >= 0)
        json_object_set_new(j, "bos_token", json_string(spelled(a, &t->tokens[t->bos])));
    if (t->eos >= 0)
        json_object_set_new(j, "eos_token", json_string(spelled(a, &t->tokens[t->eos])));
    if (t->chat) json_object_set_new(j, "chat_template", json_string(t->chat));
    TRY(dump(j, ll_arena_printf(a, "%s/tokenizer_config.json", folder)));
    return ll_tokenizer_save_json(t, ll_arena_printf(a, "%s/tokenizer.json", folder));
}

/* ---- GGUF ---- */

/* What GGUF calls the way it cuts words. */
static ll_err cut_name(const ll_tokenizer *t, const char **out)
{
    for (int i = 0; (*out = ll_pretok_name(i)); i++) {
        const char *const *p = ll_pretok_known(*out);
        int n = 0;
        while (n < t->n_cut && p[n] && !strcmp(p[n], t->cuts[n])) n++;
        if (n == t->n_cut && !p[n] && t->whole == ll_pretok_whole(*out)) return LL_OK;
    }
    FAIL(LL_E_ARG, "%s: GGUF has no name for the way it cuts words", t->path);
}

ll_err ll_tokenizer_pairs(const ll_tokenizer *t, int vocab, ll_gguf_out *o)
{
    enum { NORMAL = 1, CONTROL = 3, OF_USER = 4, UNUSED = 5 };
    static const int kinds[] = {[LL_TOKEN_TEXT] = NORMAL, CONTROL, OF_USER};
    LL_OWN(ll_arena) a = ll_arena_new();
    TRY(ll_tokenizer_can_save(t));
    const char **text = LL_NEW_ARRAY(a, const char *, vocab + 1), *cut;
    int *kind = LL_NEW_ARRAY(a, int, vocab + 1), n;
    CHECK(t->n <= vocab, LL_E_ARG, "%s has %d tokens, the model's vocabulary %d", t->path, t->n,
          vocab);
    TRY(cut_name(t, &cut));
    for (int i = 0; i < vocab; i++) {
        bool there = i < t->n && t->tokens[i].length;
        text[i] = there ? spelled(a, &t->tokens[i]) : ll_arena_printf(a, "[PAD%d]", i);
        kind[i] = there ? kinds[t->tokens[i].kind] : UNUSED;
    }
    ll_merge *m = merges_of(t, a, &n);
    const char **pairs = LL_NEW_ARRAY(a, const char *, n + 1);
    for (int i = 0; i < n; i++) pairs[i] = ll_arena_printf(a, "%s %s", text[m[i].a], text[m[i].b]);
    ll_gguf_put_text(o, "tokenizer.ggml.model", "gpt2");
    ll_gguf_put_text(o, "tokenizer.ggml.pre", cut);
    ll_gguf_put_texts(o, "tokenizer.ggml.tokens", text, vocab);
    ll_gguf_put_ints(o, "tokenizer.ggml.token_type", kind, vocab);
    ll_gguf_put_texts(o, "tokenizer.ggml.merges", pairs, n);
    ll_gguf_put_bool(o, "tokenizer.ggml.add_bos_token", t->bos >= 0);
    if (t->bos >= 0) ll_gguf_put_int(o, "tokenizer.ggml.bos_token_id", (uint32_t)t->bos);
    if (t->eos >= 0) ll_gguf_put_int(o, "tokenizer.ggml.eos_token_id", (uint32_t)t->eos);
    if (t->chat) ll_gguf_put_text(o, "tokenizer.chat_template", t->chat);
    return LL_OK;
}
