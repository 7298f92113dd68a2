/* export.c: what a model is, as others describe it. */
#include "weights/export.h"

#include "base/file.h"
#include "kern/blocks.h"
#include "token/gguf.h"
#include "token/tokenizer.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>

/* ---- keys ---- */

/* Where keys go: one of both. */
typedef struct sink {
    const ll_run *r;
    json_t *config;
    ll_gguf_out *gguf;
} sink;

static void put_json(const sink *s, const char *key, const json_t *v)
{
    if (s->config) {
        if (!strchr(key, '.')) json_object_set(s->config, key, (json_t *)v);
    } else if (json_is_real(v))
        ll_gguf_put_real(s->gguf, key, json_real_value(v));
    else if (json_is_integer(v))
        ll_gguf_put_int(s->gguf, key, (uint32_t)json_integer_value(v));
    else if (json_is_string(v))
        ll_gguf_put_text(s->gguf, key, json_string_value(v));
}

/* A JSON value, or a word. */
static void put_text(const sink *s, const char *key, const char *text)
{
    json_auto_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!v) v = json_string(text);
    put_json(s, key, v);
}

static void put_number(const sink *s, const char *key, double v, bool real)
{
    json_auto_t *j = real ? json_real(v) : json_integer((json_int_t)v);
    put_json(s, key, j);
}

/* A size: its first key that is neither a number nor follows from tensors or the tokenizer. One
 * that is 0 where that is what a missing key means is not said. A lone number is all that it can
 * be. */
static ll_err put_size(const sink *s, const ll_map_key *k)
{
    bool seq = !strcmp(k->name, "seq");
    int64_t v = seq ? ll_run_places(s->r) : ll_run_size(s->r, k->name, 0);
    if (!strcmp(k->name, "places")) return LL_OK; /* seq's key has told it */
    for (int i = 0; i < k->n && !v; i++)
        if (!strcmp(k->of[i], "0")) return LL_OK;
    CHECK(k->n > 1 || !isdigit((unsigned char)*k->of[0]) || v == atoll(k->of[0]), LL_E_ARG,
          "model.%s is %ld, which this format cannot express: for model %s it supports only %s",
          k->name, v, s->r->model.name, k->of[0]);
    for (int i = 0; i < k->n; i++) {
        const char *of = k->of[i];
        if (strchr(of, ':') || isdigit((unsigned char)*of) || !strncmp(of, "tokenizer.", 10))
            continue;
        put_number(s, of, (double)v / k->times, k->real);
        break;
    }
    return LL_OK;
}

static ll_err put_keys(const sink *s, const ll_map *m)
{
    LL_EACH (const ll_map_key, k, m->keys, m->n_key) {
        if (!strcmp(k->kind, "size")) TRY(put_size(s, k));
        if (!strcmp(k->kind, "want")) put_text(s, k->name, k->of[0]);
        if (strcmp(k->kind, "put") || (k->when && !ll_run_size(s->r, k->when, 0))) continue;
        int64_t v = ll_run_size(s->r, k->of[0], -1);
        if (v >= 0)
            put_number(s, k->name, (double)v * k->times, false);
        else
            put_text(s, k->name, k->of[0]);
    }
    return LL_OK;
}

/* The first map for this model of forms that begin so ("hf:"). */
static ll_err find_map(const ll_run *r, const char *form, const char *what, ll_map **out)
{
    const char *name;
    char text[256] = "";
    *out = NULL;
    for (int i = 0; (name = ll_map_bundled(i)); i++) {
        LL_OWN(ll_map) m = NULL;
        TRY(ll_map_open(name, &m));
        LL_EACH (const ll_map_key, x, m->keys, m->n_key) {
            if (strcmp(x->kind, "model") || strncmp(x->of[0], form, strlen(form))) continue;
            if (!strcmp(x->name, r->model.name)) return LL_HAND(out, m);
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? ", " : "",
                     x->name);
        }
    }
    FAIL(LL_E_ARG, "model %s cannot be written as %s; these can: %s", r->model.name, what, text);
}

/* The run's own; of a model of bytes (all printable ones at least), one of these. NULL: none. */
static ll_err open_tokenizer(const ll_run *r, bool needed, ll_tokenizer **out)
{
    int64_t vocab = ll_run_size(r, "vocab", 0);
    *out = NULL;
    if (*r->data.tokenizer) return ll_tokenizer_open(r->data.tokenizer, out);
    CHECK(!needed || vocab > 126, LL_E_ARG,
          "a GGUF file needs a tokenizer, and %lld tokens are not bytes of text (at least 127): "
          "set data.tokenizer, or use export --hf",
          (long long)vocab);
    return vocab <= 256 && vocab > 126 ? ll_tokenizer_of_bytes((int)vocab, out) : LL_OK;
}

/* ---- Hugging Face's folders ---- */

/* A missing id would be the one that transformers knows of its own vocabularies. */
static void put_token(const sink *s, const char *key, int id)
{
    json_auto_t *j = id < 0 ? json_null() : json_integer(id);
    put_json(s, key, j);
}

/* config.json's text, which the caller frees. */
static ll_err config_of(const ll_run *r, const ll_map *m, const ll_tokenizer *t, ll_dtype type,
                        char **out)
{
    json_auto_t *config = json_object();
    *out = NULL;
    sink s = {.r = r, .config = config};
    TRY(put_keys(&s, m));
    put_text(&s, "torch_dtype",
             type == LL_F32    ? "float32"
             : type == LL_BF16 ? "bfloat16"
                               : "float16");
    put_token(&s, "bos_token_id", t ? t->bos : -1);
    put_token(&s, "eos_token_id", t ? t->eos : -1);
    *out = json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
    CHECK(*out, LL_E_MEM, "not enough memory for config.json");
    return LL_OK;
}

ll_err ll_export_hf(const ll_run *r, ll_session *s, const char *folder, const char *type,
                    const ll_clear *clear, ll_arena *a, ll_exported *out)
{
    LL_OWN(ll_map) m = NULL;
    LL_OWN(ll_tokenizer) t = NULL;
    LL_OWN(ll_stage) stage = NULL;
    LL_OWN_MEMORY char *config = NULL;
    ll_dtype dtype;
    ll_st_tensor *theirs;
    ll_st_pair pt = {"format", "pt"};
    CHECK(ll_dtype_find(type, &dtype) && (dtype == LL_F32 || dtype == LL_BF16 || dtype == LL_F16),
          LL_E_ARG, "--dtype is '%s', expected f32, bf16 or f16 with --hf", type);
    TRY(find_map(r, "hf:", "Hugging Face's", &m));
    TRY(open_tokenizer(r, false, &t));
    if (t) TRY(ll_tokenizer_can_save(t));
    TRY(config_of(r, m, t, dtype, &config));
    TRY(ll_weights_theirs(s, m, dtype, a, &theirs, &out->tensors));
    TRY(ll_stage_open(folder, clear, &stage));
    folder = ll_stage_path(stage);
    TRY(ll_st_write(
        ll_arena_printf(a, "%s/model.safetensors", folder),
        &(ll_st_content){.tensors = theirs, .n = out->tensors, .meta = &pt, .n_meta = 1}));
    TRY(ll_file_write(ll_arena_printf(a, "%s/config.json", folder), config, strlen(config)));
    if (t) TRY(ll_tokenizer_save(t, folder));
    out->map = ll_arena_strdup(a, m->name);
    out->tokenizer = t != NULL;
    return ll_stage_commit(stage);
}

/* ---- GGUF ---- */

/* Types that can be written, and what general.file_type has for them. */
static const struct kind {
    const char *name;
    int id, file;
} kinds[] = {{"f32", 0, 0}, {"f16", 1, 1}, {"bf16", 30, 32}, {"q8_0", 8, 7}, {"q4_1", 3, 3}};

/* Blocks: scale, least where there is one, elements. */
static void put_blocks(const float *x, int64_t n, int bits, uint8_t *out)
{
    int bytes = LL_PACK * bits / 8;
    uint8_t q[LL_PACK];
    uint16_t scale, least;
    for (int64_t i = 0; i < n / LL_PACK; i++) {
        ll_pack(x + i * LL_PACK, LL_PACK, bits, q, &scale, &least);
        memcpy(out, &scale, 2);
        if (bits == 4) memcpy(out + 2, &least, 2);
        out += bits == 4 ? 4 : 2;
        memcpy(out, q, (size_t)bytes);
        out += bytes;
    }
}

/* Norms and biases stay f32; rows of no whole blocks are f16. */
static ll_err encode(const ll_st_tensor *t, const struct kind *k, ll_arena *a, ll_gguf_tensor *out)
{
    int64_t n = ll_numel(&t->shape);
    const ll_quant *q = ll_quant_find(t->shape.n < 2 ? 0 : k->id);
    if (t->shape.n && t->shape.d[t->shape.n - 1] % q->block) q = ll_quant_find(1);
    *out = (ll_gguf_tensor){t->name, q->id, q, t->shape, (const uint8_t *)t->data};
    if (q->id == 0) return LL_OK;
    uint8_t *data = (uint8_t *)ll_arena_try(a, (size_t)(n / q->block * q->bytes) + 1);
    CHECK(data, LL_E_MEM, "not enough memory for %s", t->name);
    if (q->floats)
        put_blocks((const float *)t->data, n, q->id == 8 ? 8 : 4, data);
    else
        for (int64_t i = 0; i < n; i++)
            ll_store(data, q->dtype, i, (double)((const float *)t->data)[i]);
    out->data = data;
    return LL_OK;
}

static ll_err find_kind(const char *type, const struct kind **out)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, type)) {
            *out = &kinds[i];
            return LL_OK;
        }
    FAIL(LL_E_ARG, "--dtype is '%s', expected f32, f16, bf16, q8_0 or q4_1 with --gguf", type);
}

ll_err ll_export_gguf(const ll_run *r, ll_session *s, const char *path, const char *type,
                      ll_arena *a, ll_exported *out)
{
    LL_OWN(ll_map) m = NULL;
    LL_OWN(ll_tokenizer) t = NULL;
    const struct kind *k;
    ll_st_tensor *theirs;
    ll_gguf_out o = {.arena = a};
    TRY(find_kind(type, &k));
    TRY(find_map(r, "gguf:", "GGUF", &m));
    TRY(open_tokenizer(r, true, &t));
    CHECK(t, LL_E_ARG,
          "a GGUF file needs a tokenizer, but this run has none: set data.tokenizer (--set)");
    TRY(put_keys(&(sink){.r = r, .gguf = &o}, m));
    ll_gguf_put_text(&o, "general.name", r->name);
    ll_gguf_put_int(&o, "general.file_type", (uint32_t)k->file);
    ll_gguf_put_int(&o, "general.quantization_version", 2);
    TRY(ll_tokenizer_pairs(t, (int)ll_run_size(r, "vocab", 0), &o));
    TRY(ll_weights_theirs(s, m, LL_F32, a, &theirs, &out->tensors));
    ll_gguf_tensor *v = LL_NEW_ARRAY(a, ll_gguf_tensor, out->tensors + 1);
    for (int i = 0; i < out->tensors; i++) TRY(encode(&theirs[i], k, a, &v[i]));
    out->map = ll_arena_strdup(a, m->name);
    out->tokenizer = true;
    return ll_gguf_write(&o, v, out->tensors, path);
}
