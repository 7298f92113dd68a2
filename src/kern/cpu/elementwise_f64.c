/* elementwise_f64.c: elementwise ops in f64, for tensors that f32 would round: f64, and arithmetic
 * on i32. A tile at a time: operands of other types are converted on the way in, results on the way
 * out. Simple ops become vector code; functions are libm's, so that an element's bits depend
 * neither on its neighbours nor on the number of threads. */
#include "base/num.h"
#include "kern/cpu/chain.h"
#include "kern/cpu/row.h"

#include <math.h>

enum { TILE = LL_TILE / 2 };

typedef void loop(double *y, const double *const x[3], double k, int n);

#define X(name, operands, value)                                                                   \
    static void name##_loop(double *y, const double *const x[3], double k, int n)                  \
    {                                                                                              \
        const double *p = x[0], *q = x[1], *r = x[2];                                              \
        (void)k;                                                                                   \
        _Pragma("omp simd") for (int i = 0; i < n; i++)                                            \
        {                                                                                          \
            double a = p[i], b = (operands) > 1 ? q[i] : 0, c = (operands) > 2 ? r[i] : 0;         \
            (void)b, (void)c;                                                                      \
            y[i] = value;                                                                          \
        }                                                                                          \
    }
LL_EW(X)
#undef X

static loop *const loops[LL_N_EW] = {
#define X(name, operands, value) name##_loop,
    LL_EW(X)
#undef X
};

/* n elements of t from e on: where they lie, or converted into room. */
static const double *fetch(const ll_tensor *t, int64_t e, int n, double *room)
{
    if (t->dtype == LL_F64) return (const double *)t->data + e;
    if (t->dtype == LL_F32) {
        const float *x = (const float *)t->data + e;
#pragma omp simd
        for (int i = 0; i < n; i++) room[i] = (double)x[i];
    } else if (t->dtype == LL_I32) {
        const int32_t *x = (const int32_t *)t->data + e;
#pragma omp simd
        for (int i = 0; i < n; i++) room[i] = (double)x[i];
    } else {
        for (int i = 0; i < n; i++) room[i] = ll_load(t->data, t->dtype, e + i);
    }
    return room;
}

static void put(const ll_tensor *t, int64_t e, int n, const double *from)
{
    if (t->dtype == LL_F64) {
        double *y = (double *)t->data + e;
        if (y != from) memcpy(y, from, sizeof *y * (size_t)n);
    } else if (t->dtype == LL_F32) {
        float *y = (float *)t->data + e;
#pragma omp simd
        for (int i = 0; i < n; i++) y[i] = (float)from[i];
    } else {
        for (int i = 0; i < n; i++) ll_store(t->data, t->dtype, e + i, from[i]);
    }
}

typedef struct job {
    const ll_kcall *c;
    ll_ew op;
    double k;
} job;

static void run_tiles(const void *given, int64_t from, int64_t to)
{
    const job *j = (const job *)given;
    const ll_kcall *c = j->c;
    const ll_tensor *y = &c->out[0];
    double room[4][TILE];
    int64_t all = ll_numel(&y->shape);
    for (int64_t e = from * TILE; e < to * TILE; e += TILE) {
        int n = (int)ll_min64(all - e, TILE);
        double *result = y->dtype == LL_F64 ? (double *)y->data + e : room[3];
        const double *x[3] = {NULL, NULL, NULL};
        if (j->op == LL_EW_cast) { /* straight to the result, where it is f64 */
            put(y, e, n, fetch(&c->in[0], e, n, result));
            continue;
        }
        for (int i = 0; i < c->n_in; i++) x[i] = fetch(&c->in[i], e, n, room[i]);
        loops[j->op](result, x, j->k, n);
        put(y, e, n, result);
    }
}

void ll_elementwise_f64(const ll_kcall *c, ll_ew op, double k)
{
    job j = {c, op, k};
    int64_t n = ll_numel(&c->out[0].shape);
    ll_in_parts(ll_team(c, n * (ll_step_cost(op) + 1)), ll_ceil_div(n, TILE), run_tiles, &j);
}
