/* calibrate.c: weights rounded by what they meet. */
#include "infer/calibrate.h"

#include "kern/blocks.h"
#include "pass/packed.h"
#include "infer/awq.h"
#include "infer/gptq.h"

/* Scales of one input of products. */
typedef struct scaled {
    ll_val x;
    int64_t cols;
    ll_val folds[LL_AWQ_FOLDS];
    int n_fold;
    float *scale;
    struct scaled *next;
} scaled;

struct ll_calibration {
    ll_graph *g;
    ll_session *s;
    ll_calibrate how;
    ll_arena *arena;
    scaled *all;
};

/* ---- moments ---- */

static const char *moment_of(ll_arena *a, ll_val x)
{
    return ll_arena_printf(a, "moment.%d", x.id);
}

/* A state for each value that products with packed weights read: the sum of its X^T X. */
static void add_moments(ll_graph *g)
{
    int n = g->n_node;
    for (int i = 0; i < n; i++) {
        int64_t cols = ll_pack_cols(g, &g->nodes[i]);
        ll_val x = g->nodes[i].in[0];
        const char *name = moment_of(g->arena, x);
        if (!cols || ll_find(g, name).id) continue;
        ll_shape s = ll_graph_shape(g, x);
        ll_val flat = ll_reshape(g, x, LL_SHAPE(ll_numel(&s) / cols, cols));
        ll_val sum = ll_state(g, name, LL_SHAPE(cols, cols), (ll_init){LL_ZEROS, 0});
        ll_graph_update(g, sum, ll_add(g, sum, ll_matmul(g, "mc,md->cd", flat, flat)));
    }
}

static ll_err read_windows(ll_calibration *c, const ll_run *r)
{
    LL_OWN(ll_dataset) d = NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    void *data[LL_MAX_FIELDS] = {0};
    TRY(ll_run_dataset(r, &d));
    const ll_data_info *info = ll_dataset_info(d);
    ll_sampling how = ll_run_sampling(r);
    for (int i = 0; i < info->n_field; i++) data[i] = ll_arena_alloc(a, info->field_bytes[i]);
    int64_t n = ll_min64(c->how.windows, info->n[LL_TRAIN]);
    double began = ll_now();
    for (int64_t k = 0; k < n; k++) {
        TRY(ll_dataset_read(d, &how, k, 1, data));
        TRY(ll_run_set_batch(info, c->s, 0, 1, (const void *const *)data));
        TRY(ll_session_run(c->s, 0));
        if (!c->how.tell) continue;
        c->how.tell(c->how.context, k + 1, n, (ll_now() - began) / (double)(k + 1));
    }
    return LL_OK;
}

/* The moments of x, for the caller to free. */
static ll_err get_moments(const ll_calibration *c, ll_val x, int64_t cols, float **out)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    size_t bytes = sizeof(float) * (size_t)(cols * cols);
    LL_OWN_MEMORY float *h = (float *)malloc(bytes);
    CHECK(h, LL_E_MEM, "not enough memory for moments of %ld channels", cols);
    TRY(ll_session_get(c->s, moment_of(a, x), h, bytes));
    return LL_HAND(out, h);
}

/* ---- scales ---- */

/* Products that read x. None where another one has a weight of theirs: it has one x's scales. */
static int products_of(const ll_graph *g, ll_val x, const ll_node **out)
{
    int n = 0;
    for (int i = 0; i < g->n_node; i++)
        if (g->nodes[i].n_in && g->nodes[i].in[0].id == x.id && ll_pack_cols(g, &g->nodes[i]))
            out[n++] = &g->nodes[i];
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < n; k++)
            if (ll_pack_cols(g, &g->nodes[i]) && g->nodes[i].in[0].id != x.id &&
                g->nodes[i].in[1].id == out[k]->in[1].id)
                return 0;
    return n;
}

/* What can be scaled, of a graph in which nobody reads x for its moments yet. */
static void list_inputs(ll_calibration *c)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    bool *seen = LL_NEW_ARRAY(a, bool, c->g->n_value);
    for (int i = 0; i < c->g->n_node; i++) {
        int64_t cols = ll_pack_cols(c->g, &c->g->nodes[i]);
        if (!cols || seen[c->g->nodes[i].in[0].id]) continue;
        scaled *s = LL_NEW(c->arena, scaled);
        *s = (scaled){.x = c->g->nodes[i].in[0], .cols = cols, .next = c->all};
        seen[s->x.id] = true;
        s->n_fold = ll_awq_folds(c->g, s->x, cols, s->folds);
        if (s->n_fold) c->all = s;
    }
}

static ll_err find_scales(const ll_calibration *c, ll_session *from, scaled *s)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN_MEMORY float *h = NULL;
    const ll_node **of = LL_NEW_ARRAY(a, const ll_node *, c->g->n_node);
    int n = products_of(c->g, s->x, of);
    ll_awq_product *p = LL_NEW_ARRAY(a, ll_awq_product, n);
    double alpha = 0;
    if (!n) return LL_OK;
    for (int i = 0; i < n; i++) {
        const ll_value *w = ll_value_of(c->g, of[i]->in[1]);
        int64_t count = ll_numel(&w->type.shape);
        float *v = LL_NEW_ARRAY(a, float, count);
        TRY(ll_session_get(from, w->name, v, sizeof *v * (size_t)count));
        p[i] = (ll_awq_product){v, count / s->cols};
    }
    TRY(get_moments(c, s->x, s->cols, &h));
    float *scale = LL_NEW_ARRAY(c->arena, float, s->cols);
    TRY(ll_awq_search(p, n, s->cols, h, c->how.bits, from->opts.threads, scale, &alpha));
    if (alpha > 0) s->scale = scale;
    return LL_OK;
}

/* ---- opening ---- */

ll_err ll_calibration_open(const ll_run *r, ll_session *s, const ll_calibrate *how,
                           ll_calibration **out)
{
    *out = NULL;
    CHECK(!s->opts.comm, LL_E_ARG, "calibration runs on one rank: leave out --mesh");
    CHECK(!r->train.quantize, LL_E_ARG,
          "the run's weights were trained to be rounded to nearest (train.quantize=%s): leave out "
          "+awq, +gptq and --calibrate",
          ll_rounding_name(r->train.quantize));
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_calibration) c = LL_NEW(a, ll_calibration);
    *c = (ll_calibration){.arena = a, .how = *how};
    TRY(ll_run_graph(r, 1, NULL, &c->g));
    if (how->awq) list_inputs(c);
    add_moments(c->g);
    TRY(ll_graph_check(c->g));
    ll_session_opts o = s->opts;
    o.share = s;
    o.reuse = false;
    TRY(ll_session_open(c->g, &o, &c->s));
    TRY(read_windows(c, r));
    for (scaled *x = c->all; x; x = x->next) TRY(find_scales(c, s, x));
    return LL_HAND(out, c);
}

void ll_calibration_close(ll_calibration *c)
{
    if (!c) return;
    ll_session_close(c->s);
    ll_graph_free(c->g);
    ll_arena_free(c->arena);
}

/* ---- parameters ---- */

/* Makes n numbers, the parameter of that name, what makes channels that others' scales want. */
static void fold(const ll_calibration *c, const char *name, float *w, int64_t n)
{
    for (const scaled *s = c->all; s; s = s->next)
        for (int k = 0; k < s->n_fold && s->scale; k++) {
            if (strcmp(ll_value_of(c->g, s->folds[k])->name, name)) continue;
            for (int64_t i = 0; i < n; i++) w[i] /= s->scale[i / (n / s->cols)];
        }
}

/* Makes them, folded, what is to be packed: times their channels' scales and, with gptq, such that
 * ll_pack changes nothing of them. Those that no product reads in whole blocks stay as they are. */
static ll_err round_one(const ll_calibration *c, const char *name, float *w, int64_t n)
{
    LL_EACH (const ll_node, p, c->g->nodes, c->g->n_node) {
        int64_t cols = ll_pack_cols(c->g, p);
        if (!cols || strcmp(ll_value_of(c->g, p->in[1])->name, name)) continue;
        const scaled *s = c->all;
        while (s && (s->x.id != p->in[0].id || !s->scale)) s = s->next;
        for (int64_t k = 0; k < n && s; k++) w[k] *= s->scale[k % cols];
        if (c->how.bits != 4) return LL_OK;
        LL_OWN_MEMORY float *h = NULL;
        TRY(get_moments(c, p->in[0], cols, &h));
        for (int64_t k = 0; k < cols * cols && s; k++)
            h[k] /= s->scale[k / cols] * s->scale[k % cols];
        if (c->how.gptq) return ll_gptq_matrix(w, n / cols, cols, h, c->s->opts.threads);
        for (int64_t k = 0; k < cols; k++) h[k] = h[k * cols + k];
        ll_awq_round(w, n / cols, cols, h, c->s->opts.threads);
        return LL_OK;
    }
    return LL_OK;
}

ll_err ll_calibration_session(const ll_calibration *c, ll_session *s)
{
    LL_ASSERT(!c->how.awq);
    LL_EACH (const ll_value, v, s->g->values + 1, s->g->n_value - 1) {
        if (v->node >= 0 || v->kind != LL_PARAM || v->type.dtype != LL_F32) continue;
        int64_t n = ll_numel(&v->type.shape);
        LL_OWN_MEMORY float *w = (float *)malloc(sizeof *w * (size_t)n + 1);
        CHECK(w, LL_E_MEM, "not enough memory to round %s", v->name);
        TRY(ll_session_get(s, v->name, w, sizeof *w * (size_t)n));
        TRY(round_one(c, v->name, w, n));
        TRY(ll_session_set(s, v->name, 0, w, sizeof *w * (size_t)n));
    }
    return LL_OK;
}

/* ---- packing ---- */

ll_err ll_pack_weights(ll_session *from, ll_session *to, int bits, const ll_calibration *by,
                       int *count)
{
    LL_EACH (const ll_value, v, from->g->values + 1, from->g->n_value - 1) {
        LL_OWN(ll_arena) a = ll_arena_new();
        const char *names[3];
        if (v->node >= 0 || v->kind != LL_PARAM) continue;
        size_t n = (size_t)ll_numel(&v->type.shape), blocks = n / LL_PACK;
        bool packed = bits && ll_find(to->g, ll_pack_name(a, v->name, bits, 0)).id;
        if (!packed && !ll_find(to->g, v->name).id) continue;
        LL_OWN_MEMORY float *x = (float *)malloc((n + 1) * sizeof *x);
        LL_OWN_MEMORY uint8_t *q = (uint8_t *)malloc(n + 1);
        LL_OWN_MEMORY uint16_t *s = (uint16_t *)malloc((2 * blocks + 1) * sizeof *s);
        CHECK(x && q && s, LL_E_MEM, "not enough memory to pack %s", v->name);
        size_t one = ll_dtype_bytes(v->type.dtype); /* of blocks 1: they stay as they are */
        TRY(ll_session_get(from, v->name, x, n * one));
        if (by && v->type.dtype == LL_F32) fold(by, v->name, x, (int64_t)n);
        if (ll_find(to->g, v->name).id) TRY(ll_session_set(to, v->name, 0, x, n * one));
        if (!packed) continue;
        ++*count;
        if (by) TRY(round_one(by, v->name, x, (int64_t)n));
        ll_pack(x, (int64_t)n, bits, q, s, s + blocks);
        for (int k = 0; k < 3; k++) names[k] = ll_pack_name(a, v->name, bits, k);
        TRY(ll_session_set(to, names[0], 0, q, n * (size_t)bits / 8));
        TRY(ll_session_set(to, names[1], 0, s, blocks * sizeof *s));
        if (bits == 4) TRY(ll_session_set(to, names[2], 0, s + blocks, blocks * sizeof *s));
    }
    return LL_OK;
}
