/* recur on CPUs, f32: step by step, one product of the state with the weight and the cell's
 * arithmetic, which threads share by rows of the batch. */
#include "base/num.h"
#include "kern/cells.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/row.h"

LL_KERNELS(recur, recur_grad)

/* One step of one row. z: what h gives to the gates; d: the state's gradient, in place. */
typedef struct row {
    const float *x, *z, *was;
    float *is;
    const float *ds;
    float *d, *dx;
} row;

typedef struct job {
    int64_t cell, b, t, h, now;
    ll_cell_kind k;
    const float *x, *w, *s0; /* backward x has what h gives, too */
    float *s, *z;            /* forward */
    const float *ds;
    float *dx, *d, *dh; /* backward; dh: what flows through the weight */
} job;

/* ---- cells: a loop of its own for each ---- */

#define CELLS(X)                                                                                   \
    X(LL_LSTM, 2)                                                                                  \
    X(LL_GRU, 1)                                                                                   \
    X(LL_RNN_TANH, 1)                                                                              \
    X(LL_RNN_RELU, 1)
#define X(cell, states)                                                                            \
    static void cell##_step(const row *r, int64_t h)                                               \
    {                                                                                              \
        _Pragma("omp simd") for (int64_t j = 0; j < h; j++)                                        \
            ll_cell_step(cell, r->x + j, r->z + j, r->was + j, r->is + j, h);                      \
    }                                                                                              \
    static void cell##_slopes(const row *r, int64_t h)                                             \
    {                                                                                              \
        _Pragma("omp simd") for (int64_t j = 0; j < h; j++)                                        \
        {                                                                                          \
            float dh = r->d[j] + r->ds[j], dc = (states) > 1 ? r->d[h + j] + r->ds[h + j] : 0;     \
            ll_cell_slopes(cell, r->x + j, r->was + j, r->is + j, h, dh, dc, r->d + j, r->dx + j,  \
                           h);                                                                     \
        }                                                                                          \
    }
CELLS(X)
#undef X

typedef void cell(const row *r, int64_t h);
#define X(cell, states) [cell] = cell##_step,
static cell *const forward[] = {CELLS(X)};
#undef X
#define X(cell, states) [cell] = cell##_slopes,
static cell *const backward[] = {CELLS(X)};
#undef X

/* ---- steps ---- */

/* A row's state after step t; -1: before the first. */
static const float *state(const job *v, int64_t b, int64_t t)
{
    int64_t n = v->k.states * v->h;
    return t < 0 ? v->s0 + b * n : v->s + (b * v->t + t) * n;
}

static void step(const void *p, int64_t from, int64_t to)
{
    const job *v = (const job *)p;
    for (int64_t b = from; b < to; b++) {
        int64_t at = b * v->t + v->now, n = v->k.states * v->h, g = v->k.gates * v->h;
        row r = {.x = v->x + at * g, .was = state(v, b, v->now - 1), .is = v->s + at * n};
        if (v->z) {
            r.z = v->z + b * v->k.from_h * v->h;
            forward[v->cell](&r, v->h);
            continue;
        }
        r.ds = v->ds + at * n, r.d = v->d + b * n, r.dx = v->dx + at * g;
        if (v->now < v->t - 1)
            for (int64_t j = 0; j < v->h; j++) r.d[j] += v->dh[b * v->h + j];
        backward[v->cell](&r, v->h);
    }
}

static job job_of(const ll_kcall *c, const ll_tensor *x, const ll_tensor *w, const ll_tensor *s0)
{
    job v = {((const ll_recur_attr *)c->attr)->cell, x->shape.d[0], x->shape.d[1], w->shape.d[1]};
    v.k = ll_cell_kinds[v.cell];
    v.x = (const float *)x->data, v.w = (const float *)w->data, v.s0 = (const float *)s0->data;
    return v;
}

/* A product of the batch's rows with the weight. */
static ll_gemm_call product_of(const ll_kcall *c, const job *v, int64_t n, int64_t k)
{
    return (ll_gemm_call){
        .m = v->b, .n = n, .k = k, .a_cs = 1, .b = v->w, .c_rs = n, .threads = c->threads};
}

/* z [b,r] = h w', the weight's rows the columns; of the first step h is s0's. */
static ll_gemm_call product(const ll_kcall *c, const job *v)
{
    int64_t n = v->k.states * v->h;
    ll_gemm_call g = product_of(c, v, v->k.from_h * v->h, v->h);
    g.a = state(v, 0, v->now - 1), g.a_rs = v->now ? v->t * n : n;
    g.b_rs = 1, g.b_cs = v->h, g.c = v->z;
    return g;
}

/* dh [b,h] = dx w, of this step's gates that read h */
static ll_gemm_call product_grad(const ll_kcall *c, const job *v)
{
    int64_t gates = v->k.gates * v->h;
    ll_gemm_call g = product_of(c, v, v->h, v->k.from_h * v->h);
    g.a = v->dx ? v->dx + v->now * gates : NULL, g.a_rs = v->t * gates;
    g.b_rs = v->h, g.b_cs = 1, g.c = v->dh;
    return g;
}

static size_t room(int64_t n)
{
    return ll_align64((size_t)n * sizeof(float));
}

size_t recur_cpu_scratch(const ll_kcall *c)
{
    job v = job_of(c, &c->in[0], &c->in[1], &c->in[2]);
    ll_gemm_call first = product(c, &v), later = (v.now = 1, product(c, &v));
    size_t a = ll_gemm_scratch(&first), b = ll_gemm_scratch(&later);
    return room(v.b * v.k.from_h * v.h) + (a > b ? a : b);
}

ll_err recur_cpu(const ll_kcall *c)
{
    job v = job_of(c, &c->in[0], &c->in[1], &c->in[2]);
    v.s = (float *)c->out[0].data;
    v.z = (float *)c->scratch;
    if (!v.b) return LL_OK;
    int team = ll_team(c, v.b * v.h * 64);
    for (; v.now < v.t; v.now++) {
        ll_gemm_call g = product(c, &v);
        g.scratch = (char *)c->scratch + room(v.b * v.k.from_h * v.h);
        ll_gemm(&g);
        ll_in_parts(team, v.b, step, &v);
    }
    return LL_OK;
}

size_t recur_grad_cpu_scratch(const ll_kcall *c)
{
    job v = job_of(c, &c->in[1], &c->in[2], &c->in[4]);
    ll_gemm_call g = product_grad(c, &v);
    return room(v.b * v.h) + ll_gemm_scratch(&g);
}

ll_err recur_grad_cpu(const ll_kcall *c)
{
    job v = job_of(c, &c->in[1], &c->in[2], &c->in[4]);
    v.ds = (const float *)c->in[0].data, v.s = (float *)c->in[3].data;
    v.dx = (float *)c->out[0].data, v.d = (float *)c->out[1].data, v.dh = (float *)c->scratch;
    if (!v.b) return LL_OK;
    int team = ll_team(c, v.b * v.h * 64);
    memset(v.d, 0, (size_t)(v.b * v.k.states * v.h) * sizeof(float));
    for (v.now = v.t - 1; v.now >= 0; v.now--) {
        ll_in_parts(team, v.b, step, &v);
        ll_gemm_call g = product_grad(c, &v);
        g.scratch = (char *)c->scratch + room(v.b * v.h);
        ll_gemm(&g);
    }
    for (int64_t b = 0; b < v.b; b++)
        for (int64_t j = 0; j < v.h; j++) v.d[b * v.k.states * v.h + j] += v.dh[b * v.h + j];
    return LL_OK;
}
