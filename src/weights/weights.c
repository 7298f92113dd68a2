/* weights.c: opening a file of weights: what it is, and what is in it. */
#include "weights/weights.h"

#include "base/file.h"
#include "kern/blocks.h"
#include "token/gguf.h"
#include "weights/pth.h"
#include "run/ranks.h"
#include "weights/safetensors.h"

#include <sys/mman.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ll_weight *)a)->name, ((const ll_weight *)b)->name);
}

const ll_weight *ll_weights_find(const ll_weights *w, const char *name)
{
    ll_weight key = {.name = name};
    if (!w->n) return NULL;
    return (const ll_weight *)bsearch(&key, w->all, (size_t)w->n, sizeof key, by_name);
}

/* Tensors of the file's own layout: the last dimension runs fastest. */
static ll_weight dense(ll_arena *a, const ll_st_entry *e)
{
    ll_weight t = {.name = ll_arena_strdup(a, e->name),
                   .type = ll_arena_strdup(a, e->type),
                   .dtype = e->is.ll};
    t.shape.n = e->n_dims <= LL_MAX_DIMS ? e->n_dims : -1;
    for (int64_t d = t.shape.n - 1, step = 1; d >= 0; step *= e->dims[d], d--) {
        t.shape.d[d] = e->dims[d];
        t.stride[d] = step;
    }
    return t;
}

/* Rows of blocks, "w.nf4", are w. */
static void unblock(ll_arena *a, ll_weight *t)
{
    size_t n;
    const ll_block_kind *k = ll_block_named(t->name, &n);
    int last = t->shape.n - 1;
    if (!k || t->dtype != LL_U8 || last < 1 || t->shape.d[last] != k->bytes ||
        t->shape.d[last - 1] > INT32_MAX)
        return;
    ll_quant *q = LL_NEW(a, ll_quant);
    *q = (ll_quant){.name = k->name, .dtype = LL_F32, .block = LL_PACK, .bytes = k->bytes};
    q->floats = k->unpack;
    t->name = ll_arena_printf(a, "%.*s", (int)n, t->name);
    t->type = k->name;
    t->dtype = LL_F32;
    t->quant = q;
    t->shape.d[--t->shape.n - 1] *= LL_PACK;
    for (int64_t d = t->shape.n - 1, step = 1; d >= 0; step *= t->shape.d[d--]) t->stride[d] = step;
}

static ll_err read_safetensors(ll_weights *w)
{
    LL_OWN(ll_st_file) f = NULL;
    TRY(ll_st_parse(w->map, w->bytes, w->bytes, w->path, &f));
    const char *format = ll_st_meta(f, "format");
    w->kind = "safetensors";
    w->torch = format && !strcmp(format, "pt");
    w->ours = ll_st_meta(f, "step");
    int n = f->n_entries;
    ll_weight *all = LL_NEW_ARRAY(w->arena, ll_weight, w->n + n);
    if (w->n) memcpy(all, w->all, sizeof *all * (size_t)w->n);
    for (int i = 0; i < n; i++) {
        const ll_st_entry *e = &f->entries[i];
        all[w->n + i] = dense(w->arena, e);
        unblock(w->arena, &all[w->n + i]);
        all[w->n + i].data = w->map + f->data_at + e->begin;
    }
    w->all = all;
    w->n += n;
    return LL_OK;
}

static ll_err read_gguf(ll_weights *w)
{
    ll_gguf *f = w->gguf = LL_NEW(w->arena, ll_gguf);
    w->kind = "GGUF";
    TRY(ll_gguf_parse(w->map, w->bytes, w->path, w->arena, f));
    w->n = f->n_tensor;
    w->all = LL_NEW_ARRAY(w->arena, ll_weight, w->n + 1);
    for (int i = 0; i < w->n; i++) {
        const ll_gguf_tensor *t = &f->tensors[i];
        const ll_quant *q = t->quant;
        ll_weight *x = &w->all[i];
        *x = (ll_weight){.name = t->name, .dtype = q ? q->dtype : LL_N_DTYPE, .shape = t->shape};
        x->type = q ? q->name : ll_arena_printf(w->arena, "GGUF's type %d ", t->type);
        x->data = t->data;
        x->quant = q && q->floats ? q : NULL;
        for (int64_t d = t->shape.n - 1, step = 1; d >= 0; step *= t->shape.d[d--])
            x->stride[d] = step;
    }
    return LL_OK;
}

size_t ll_weight_bytes(const ll_weight *t)
{
    int64_t last = 0;
    for (int d = 0; d < t->shape.n; d++) last += (t->shape.d[d] - 1) * t->stride[d];
    if (t->quant) return (size_t)((last + 1) / t->quant->block) * (size_t)t->quant->bytes;
    return (size_t)(last + 1) * ll_dtype_bytes(t->dtype);
}

/* A checksum of ours; others have none. */
static ll_err check_sum(ll_comm *c, const ll_weights *w)
{
    LL_OWN(ll_st_file) f = NULL;
    if (strcmp(w->kind, "safetensors") || w->before) return LL_OK;
    TRY(ll_ranks_agree(c, ll_st_open(w->path, &f)));
    return ll_st_check(c, f);
}

/* What wrappers of PyTorch put before the names of all. */
static void drop_prefix(ll_weights *w)
{
    static const char *const known[] = {"module.", "_orig_mod."};
    w->prefix = "";
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        size_t n = strlen(known[k]);
        bool all = w->n > 0;
        for (int i = 0; i < w->n; i++) all = all && !strncmp(w->all[i].name, known[k], n);
        for (int i = 0; i < w->n && all; i++) w->all[i].name += n;
        if (all) w->prefix = ll_arena_printf(w->arena, "%s%s", w->prefix, known[k]);
    }
}

static void unmap(const ll_weights *w)
{
    for (; w; w = w->before)
        if (w->map) munmap((void *)w->map, w->bytes);
}

static ll_err read_folder(ll_weights *w)
{
    int n;
    const char *const *shards =
        ll_files(w->arena, ll_arena_printf(w->arena, "%s/*.safetensors", w->path), &n);
    CHECK(n, LL_E_IO, "%s: no .safetensors file in this folder", w->path);
    for (int i = 0; i < n; i++) {
        ll_weights *keep = LL_NEW(w->arena, ll_weights);
        *keep = *w;
        keep->map = i ? w->map : NULL;
        w->map = NULL;
        w->before = keep;
        TRY(ll_file_map(shards[i], &w->map, &w->bytes));
        TRY(read_safetensors(w));
    }
    return LL_OK;
}

/* As a safetensors file its header would be longer than any may be. */
static bool is_pickle(const ll_weights *w)
{
    return w->bytes > 4 && w->map[0] == 0x80 && w->map[1] >= 2 && w->map[1] <= 5 && w->map[3] > 5;
}

static ll_err read_one(ll_weights *w)
{
    TRY(ll_file_map(w->path, &w->map, &w->bytes));
    w->kind = "PyTorch";
    w->torch = true;
    bool some = w->bytes >= 4;
    if (is_pickle(w) || (some && !memcmp(w->map, "PK\3\4", 4)))
        return ll_pth_parse(w->map, w->bytes, w);
    if (some && !memcmp(w->map, "GGUF", 4)) {
        w->torch = false;
        return read_gguf(w);
    }
    return read_safetensors(w);
}

static ll_err read_file(ll_weights *w)
{
    TRY(ll_is_folder(w->path) ? read_folder(w) : read_one(w));
    drop_prefix(w);
    if (w->n) qsort(w->all, (size_t)w->n, sizeof *w->all, by_name);
    for (int i = 1; i < w->n; i++)
        CHECK(strcmp(w->all[i - 1].name, w->all[i].name), LL_E_IO, "%s: two tensors are named %s",
              w->path, w->all[i].name);
    return LL_OK;
}

ll_err ll_weights_open(ll_comm *c, const char *path, ll_weights **out)
{
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_weights) w = LL_NEW(a, ll_weights);
    *w = (ll_weights){.arena = a, .path = ll_arena_strdup(a, path)};
    *out = NULL;
    TRY(ll_ranks_agree(c, read_file(w)));
    TRY(check_sum(c, w));
    return LL_HAND(out, w);
}

bool ll_weights_foreign(const char *path)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_weights w = {.arena = a, .path = path};
    bool foreign = read_file(&w) == LL_OK && !w.ours;
    unmap(&w);
    return foreign;
}

void ll_weights_close(ll_weights *w)
{
    if (!w) return;
    unmap(w);
    ll_arena_free(w->arena);
}
