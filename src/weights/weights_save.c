/* weights_save.c: weights out of sessions, and adapters alone. */
#include "base/file.h"
#include "base/text.h"
#include "pass/lora.h"
#include "weights/weights_copy.h"
#include "weights/weights_load.h"

#include <string.h>

/* ---- out ---- */

typedef struct theirs {
    ll_st_tensor *t;
    int64_t *filled; /* elements */
    int n, room, filled_room;
    ll_arena *arena;
    ll_dtype dtype;
} theirs;

/* The tensor of that name; made where there is none yet. */
static int find_or_make(theirs *o, const char *name, const ll_shape *shape)
{
    for (int i = 0; i < o->n; i++)
        if (!strcmp(o->t[i].name, name)) return i;
    size_t bytes = ll_tensor_bytes(o->dtype, shape);
    o->t = (ll_st_tensor *)ll_arena_grow(o->arena, o->t, sizeof *o->t, o->n, &o->room);
    o->filled =
        (int64_t *)ll_arena_grow(o->arena, o->filled, sizeof *o->filled, o->n, &o->filled_room);
    o->filled[o->n] = 0;
    o->t[o->n] = (ll_st_tensor){name, o->dtype, *shape, ll_arena_try(o->arena, bytes + 1)};
    return o->n++;
}

static ll_err write_one(theirs *o, const ll_map *map, const ll_st_tensor *t)
{
    ll_mapped m;
    TRY(ll_map_find(map, o->arena, t->name, &t->shape, &m));
    CHECK(m.n, LL_E_CONFIG, "map %s has no line for %s", map->name, t->name);
    int64_t stride[LL_MAX_DIMS] = {0}, zero[LL_MAX_DIMS] = {0};
    for (int64_t d = m.shape.n - 1, step = 1; d >= 0; step *= m.shape.d[d--]) stride[d] = step;
    for (int k = 0; k < m.n; k++) {
        LL_OWN(ll_arena) a = ll_arena_new();
        int at = find_or_make(o, m.theirs[k], &m.shape);
        CHECK(o->t[at].data, LL_E_MEM, "not enough memory for %s", m.theirs[k]);
        ll_weights_copy c = {t->data, t->dtype, o->dtype, (uint8_t *)o->t[at].data, k, true};
        ll_map_places p = ll_map_place(&m, stride, &t->shape, zero, a);
        ll_weights_walk(&c, &t->shape, &p);
        o->filled[at] += ll_numel(&t->shape) / m.n;
    }
    return LL_OK;
}

static const ll_st_tensor *tensor_named(const ll_own_tensors *x, const char *name)
{
    for (int i = 0; i < x->n; i++)
        if (!strcmp(x->t[i].name, name)) return &x->t[i];
    return NULL;
}

/* w + B A, in arena, where w has an adapter: [N,rank] and [rank,C] come to [N,C]. */
static ll_err merged(ll_arena *a, const ll_own_tensors *x, const ll_st_tensor *w, ll_st_tensor *out)
{
    const ll_st_tensor *la = tensor_named(x, ll_arena_printf(a, "%s" LL_LORA_A, w->name));
    const ll_st_tensor *lb = tensor_named(x, ll_arena_printf(a, "%s" LL_LORA_B, w->name));
    *out = *w;
    if (!la || !lb) return LL_OK;
    int64_t rank = la->shape.d[0], rows = ll_numel(&lb->shape) / rank;
    int64_t cols = ll_numel(&la->shape) / rank;
    float *sum = LL_TRY_ARRAY(a, float, rows *cols + 1);
    CHECK(sum, LL_E_MEM, "not enough memory to merge %s", w->name);
    memcpy(sum, w->data, sizeof *sum * (size_t)(rows * cols));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t r = 0; r < rank; r++) {
            const float *of = (const float *)la->data + r * cols;
            float by = ((const float *)lb->data)[i * rank + r];
            for (int64_t k = 0; k < cols; k++) sum[i * cols + k] += by * of[k];
        }
    out->data = sum;
    return LL_OK;
}

/* A tensor of blocks as numbers, in arena. */
static ll_err unblocked(ll_arena *a, ll_own_tensors *x, int i)
{
    const ll_block_kind *k = x->blocks[i];
    int64_t n = ll_numel(&x->t[i].shape);
    if (!k) return LL_OK;
    float *w = LL_TRY_ARRAY(a, float, n + 1);
    CHECK(w, LL_E_MEM, "not enough memory for %s", x->t[i].name);
    for (int64_t b = 0; b < n / LL_PACK; b++)
        k->unpack((const uint8_t *)x->t[i].data + b * k->bytes, w + b * LL_PACK);
    x->t[i].data = w;
    x->blocks[i] = NULL;
    return LL_OK;
}

static ll_err write_all(theirs *o, const ll_map *map, ll_session *s)
{
    LL_ASSERT(!s->team);
    ll_own_tensors x = ll_weights_tensors(s, o->arena);
    for (int i = 0; i < x.n; i++) {
        ll_st_tensor t;
        if (x.moment[i] || ll_is_lora(x.t[i].name)) continue;
        CHECK(!ll_is_prompt(x.t[i].name), LL_E_ARG,
              "a trained prompt (train.prompt) is not a weight of the model: export it with "
              "--adapter");
        TRY(unblocked(o->arena, &x, i));
        TRY(merged(o->arena, &x, &x.t[i], &t));
        TRY(write_one(o, map, &t));
    }
    for (int i = 0; i < o->n; i++)
        CHECK(o->filled[i] == ll_numel(&o->t[i].shape), LL_E_CONFIG,
              "map %s does not produce every element of %s", map->name, o->t[i].name);
    return LL_OK;
}

/* Second names, for the same data. */
static void write_tied(theirs *o, const ll_map *map)
{
    LL_EACH (const ll_map_line, l, map->lines, map->n) {
        int n = o->n, k = 0;
        while (k < n && strcmp(o->t[k].name, l->theirs[0])) k++;
        bool own = false; /* the model has one that is not the other */
        for (int j = 0; j < n && !strcmp(l->kind, "tied"); j++)
            own |= !strcmp(o->t[j].name, l->ours[0]);
        if (strcmp(l->kind, "tied") || k == n || own) continue;
        ll_st_tensor again = o->t[k];
        int at = find_or_make(o, l->ours[0], &(ll_shape){.n = 1});
        again.name = l->ours[0];
        o->t[at] = again;
    }
}

ll_err ll_weights_theirs(ll_session *s, const ll_map *map, ll_dtype dtype, ll_arena *a,
                         ll_st_tensor **out, int *n)
{
    theirs o = {.arena = a, .dtype = dtype};
    TRY(write_all(&o, map, s));
    *out = o.t;
    *n = o.n;
    return LL_OK;
}

ll_err ll_weights_save(ll_session *s, const char *path, const char *map, ll_dtype dtype, int *n)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_map) m = NULL;
    theirs o = {.arena = a, .dtype = dtype};
    TRY(ll_map_open(map && *map ? map : LL_MAP_AS_IS, &m));
    TRY(write_all(&o, m, s));
    write_tied(&o, m);
    ll_st_pair pt = {"format", "pt"};
    *n = o.n;
    return ll_st_write(path, &(ll_st_content){.tensors = o.t,
                                              .n = o.n,
                                              .meta = &pt,
                                              .n_meta = strcmp(m->name, LL_MAP_AS_IS) != 0});
}

/* ---- adapters ---- */

/* Both sides have the same letters in the same order: rows and columns are theirs. */
static bool in_order(const ll_map_line *l)
{
    char a[64] = "", b[64] = "";
    for (int i = 0; i < l->left.n; i++) strcat(a, l->left.of[i]);
    for (int i = 0; i < l->right.n; i++) strcat(b, l->right.of[i]);
    return l->plain || !strcmp(a, b);
}

/* A tensor of an adapter by PEFT's name; *module: what it is beside, "q_proj". */
static ll_err adapter_tensor(const ll_map *map, const ll_own_tensors *x, const ll_st_tensor *t,
                             ll_arena *a, ll_st_tensor *out, const char **module)
{
    bool first = !strcmp(strrchr(t->name, '.'), LL_LORA_A);
    char *base = ll_arena_strdup(a, t->name), *end;
    ll_mapped m;
    *strrchr(base, '.') = '\0';
    const ll_st_tensor *w = tensor_named(x, base);
    LL_ASSERT(w);
    TRY(ll_map_find(map, a, base, &w->shape, &m));
    CHECK(m.n == 1 && in_order(&m.line), LL_E_CONFIG,
          "map %s transposes or splits %s: write adapters with a map such as hf-llama", map->name,
          base);
    char *theirs = ll_arena_strdup(a, m.theirs[0]);
    if ((end = strrchr(theirs, '.')) && !strcmp(end, ".weight")) *end = '\0';
    int64_t n = ll_numel(&t->shape), rank = first ? t->shape.d[0] : t->shape.d[t->shape.n - 1];
    const char *dot = strrchr(theirs, '.');
    *module = dot ? dot + 1 : theirs;
    *out = (ll_st_tensor){
        ll_arena_printf(a, "base_model.model.%s.lora_%c.weight", theirs, first ? 'A' : 'B'),
        t->dtype, first ? LL_SHAPE(rank, n / rank) : LL_SHAPE(n / rank, rank), t->data};
    return LL_OK;
}

static ll_err adapter_config(const char *folder, int64_t rank, const char **modules, int n,
                             ll_arena *a)
{
    ll_buf b = {.arena = a};
    ll_buf_printf(&b,
                  "{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"r\": "
                  "%ld,\n  \"lora_alpha\": %ld,\n  \"lora_dropout\": 0.0,\n  \"bias\": "
                  "\"none\",\n  \"fan_in_fan_out\": false,\n  \"inference_mode\": true,\n  "
                  "\"base_model_name_or_path\": null,\n  \"target_modules\": [",
                  rank, rank);
    for (int i = 0, made = 0; i < n; i++) {
        bool again = false;
        for (int k = 0; k < i; k++) again |= !strcmp(modules[k], modules[i]);
        if (!again) ll_buf_printf(&b, "%s\"%s\"", made++ ? ", " : "", modules[i]);
    }
    ll_buf_puts(&b, "]\n}\n");
    return ll_file_write(ll_arena_printf(a, "%s/adapter_config.json", folder), b.text, b.len);
}

/* Prompt tuning's: one tensor. */
static ll_err prompt_config(const char *folder, const ll_shape *s, ll_arena *a)
{
    const char *text = ll_arena_printf(
        a,
        "{\n  \"peft_type\": \"PROMPT_TUNING\",\n  \"task_type\": \"CAUSAL_LM\",\n  "
        "\"num_virtual_tokens\": %ld,\n  \"token_dim\": %ld,\n  \"num_transformer_submodules\": "
        "1,\n  \"prompt_tuning_init\": \"RANDOM\",\n  \"inference_mode\": true,\n  "
        "\"base_model_name_or_path\": null\n}\n",
        s->d[0], s->d[1]);
    return ll_file_write(ll_arena_printf(a, "%s/adapter_config.json", folder), text, strlen(text));
}

ll_err ll_adapters_save(ll_session *s, const char *folder, const char *map, const ll_clear *clear,
                        int *n)
{
    LL_ASSERT(!s->team);
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_map) m = NULL;
    TRY(ll_map_open(map && *map ? map : LL_MAP_AS_IS, &m));
    ll_own_tensors x = ll_weights_tensors(s, a);
    ll_st_tensor *t = LL_NEW_ARRAY(a, ll_st_tensor, x.n + 1);
    const char **modules = LL_NEW_ARRAY(a, const char *, x.n + 1);
    int64_t rank = 0;
    const ll_st_tensor *prompt = tensor_named(&x, LL_PROMPT);
    *n = 0;
    if (prompt) t[(*n)++] = *prompt;
    for (int i = 0; i < x.n; i++) {
        if (x.moment[i] || !ll_is_lora(x.t[i].name)) continue;
        TRY(adapter_tensor(m, &x, &x.t[i], a, &t[*n], &modules[*n]));
        rank = t[*n].shape.d[strstr(t[*n].name, ".lora_A.") ? 0 : 1];
        ++*n;
    }
    CHECK(*n, LL_E_ARG,
          "the model has no adapters: set train.lora (their rank) or train.prompt (vectors of the "
          "prompt)");
    LL_OWN(ll_stage) stage = NULL;
    TRY(ll_stage_open(folder, clear, &stage));
    folder = ll_stage_path(stage);
    ll_st_pair pt = {"format", "pt"};
    TRY(ll_st_write(ll_arena_printf(a, "%s/adapter_model.safetensors", folder),
                    &(ll_st_content){.tensors = t, .n = *n, .meta = &pt, .n_meta = 1}));
    TRY(prompt ? prompt_config(folder, &prompt->shape, a)
               : adapter_config(folder, rank, modules, *n, a));
    return ll_stage_commit(stage);
}
