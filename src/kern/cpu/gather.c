/* gather.c: gather and scatter_add on the cpu, and embeddings, which are these of a table's rows.
 * Both walk y by rows along its last dimension. A gather's rows are shared among threads; of a
 * scatter, the longest dimension that is in x too: no two threads add to one element, and each adds
 * in y's order, so that the thread count does not change a bit. */
#include "base/num.h"
#include "kern/cpu/row.h"
#include "kern/gather.h"

LL_KERNELS(gather, scatter_add, embedding, embedding_grad)

static ll_err check_index(const ll_gather_walk *g, const ll_tensor *index)
{
    const int32_t *i = (const int32_t *)index->data;
    for (int64_t k = 0; k < ll_numel(&index->shape); k++)
        CHECK(i[k] >= 0 && i[k] < g->whole, LL_E_ARG, "index %ld is %d, expected 0 to %ld", k, i[k],
              g->whole - 1);
    return LL_OK;
}

/* y's last dimension as a loop of its own: a scalar has one of 1. */
static void with_row(ll_gather_walk *g)
{
    if (!g->n) g->n = 1, g->d[0] = 1;
}

typedef struct job {
    ll_gather_walk g;
    const int32_t *index;
    void *x, *y;
    ll_dtype dtype;
    int cut; /* of a scatter: the dimension that threads share */
} job;

/* Where row r of y starts in x and in the index, with dimension cut from element `first` on. */
static void row_at(const job *j, int64_t r, int64_t *x, int64_t *index, int64_t *y, int64_t first,
                   int64_t some)
{
    const ll_gather_walk *g = &j->g;
    int64_t step = g->d[g->n - 1];
    *x = *index = *y = 0;
    for (int d = g->n - 2; d >= 0; d--) {
        int64_t size = d == j->cut ? some : g->d[d], at = r % size + (d == j->cut ? first : 0);
        r /= size;
        *x += at * g->x[d];
        *index += at * g->index[d];
        *y += at * step;
        step *= g->d[d];
    }
}

/* -0 becomes 0, as it does where parts of x are added up: `plus` is 0 for floats. */
#define ROWS(type, plus)                                                                           \
    static void rows_##type(const void *given, int64_t from, int64_t to)                           \
    {                                                                                              \
        const job *j = (const job *)given;                                                         \
        const ll_gather_walk *g = &j->g;                                                           \
        int last = g->n - 1;                                                                       \
        int64_t n = g->d[last], xs = g->x[last], is = g->index[last], x, i, at;                    \
        for (int64_t r = from; r < to; r++) {                                                      \
            row_at(j, r, &x, &i, &at, 0, 1);                                                       \
            const type *src = (const type *)j->x + x;                                              \
            type *y = (type *)j->y + r * n;                                                        \
            int64_t row = n && !is ? j->index[i] - g->from : 0;                                    \
            bool here = row >= 0 && row < g->v;                                                    \
            if (!is && here && xs == 1) {                                                          \
                _Pragma("omp simd") for (int64_t k = 0; k < n; k++) y[k] =                         \
                    (type)(src[row * g->step + k] plus);                                           \
                continue;                                                                          \
            }                                                                                      \
            for (int64_t k = 0; k < n; k++) {                                                      \
                row = j->index[i + k * is] - g->from;                                              \
                here = row >= 0 && row < g->v;                                                     \
                y[k] = here ? (type)(src[row * g->step + k * xs] plus) : (type)0;                  \
            }                                                                                      \
        }                                                                                          \
    }
ROWS(float, +0.0f)
ROWS(double, +0.0)
ROWS(uint32_t, )
ROWS(uint16_t, )
ROWS(uint8_t, )
#undef ROWS

static ll_err pick(const ll_kcall *c, const ll_gather_walk *g)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    job j = {*g, (const int32_t *)c->in[1].data, x->data, y->data, .cut = -1};
    TRY(check_index(g, &c->in[1]));
    with_row(&j.g);
    int64_t n = ll_numel(&y->shape);
    if (!n) return LL_OK;
    size_t bytes = ll_dtype_bytes(x->dtype);
    ll_thread_part *rows = x->dtype == LL_F32   ? rows_float
                           : x->dtype == LL_F64 ? rows_double
                           : bytes == 4         ? rows_uint32_t
                           : bytes == 2         ? rows_uint16_t
                                                : rows_uint8_t;
    ll_in_parts(ll_team(c, 2 * n), n / j.g.d[j.g.n - 1], rows, &j);
    return LL_OK;
}

ll_err gather_cpu(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    ll_gather_walk g;
    TRY(ll_gather_of((const ll_gather_attr *)c->attr, &x->shape, &c->in[1].shape, &y->shape, &g));
    return pick(c, &g);
}

ll_err embedding_cpu(const ll_kcall *c)
{
    ll_gather_walk g = ll_gather_rows(c->attr, &c->in[0].shape, &c->in[1].shape);
    return pick(c, &g);
}

/* Elements [from, to) of the dimension that threads share. */
#define ADD(type)                                                                                  \
    static void add_##type(const void *given, int64_t from, int64_t to)                            \
    {                                                                                              \
        const job *j = (const job *)given;                                                         \
        const ll_gather_walk *g = &j->g;                                                           \
        int last = g->n - 1;                                                                       \
        bool mine = j->cut == last;                                                                \
        int64_t k0 = mine ? from : 0, k1 = mine ? to : g->d[last], rows = 1, x, i, at;             \
        for (int d = 0; d < last; d++) rows *= d == j->cut ? to - from : g->d[d];                  \
        for (int64_t r = 0; r < rows; r++) {                                                       \
            row_at(j, r, &x, &i, &at, from, to - from);                                            \
            type *sum = (type *)j->x + x;                                                          \
            const type *y = (const type *)j->y + at;                                               \
            int64_t xs = g->x[last], is = g->index[last], row = is ? 0 : j->index[i] - g->from;    \
            if (!is && xs == 1 && row >= 0 && row < g->v) {                                        \
                sum += row * g->step;                                                              \
                _Pragma("omp simd") for (int64_t k = k0; k < k1; k++) sum[k] += y[k];              \
                continue;                                                                          \
            }                                                                                      \
            for (int64_t k = k0; k < k1; k++) {                                                    \
                row = j->index[i + k * is] - g->from;                                              \
                if (row >= 0 && row < g->v) sum[row * g->step + k * xs] += y[k];                   \
            }                                                                                      \
        }                                                                                          \
    }
ADD(float)
ADD(double)
#undef ADD

static void clear(const void *given, int64_t from, int64_t to)
{
    const job *j = (const job *)given;
    size_t bytes = ll_dtype_bytes(j->dtype);
    memset((char *)j->x + (size_t)from * bytes, 0, (size_t)(to - from) * bytes);
}

static ll_err add(const ll_kcall *c, const ll_gather_walk *g)
{
    const ll_tensor *y = &c->in[0], *x = &c->out[0];
    job j = {*g, (const int32_t *)c->in[1].data, x->data, y->data, x->dtype, -1};
    TRY(check_index(g, &c->in[1]));
    with_row(&j.g);
    int64_t n = ll_numel(&y->shape), all = ll_numel(&x->shape);
    ll_in_parts(ll_team(c, all / 16), all, clear, &j);
    if (!n) return LL_OK;
    for (int d = 0; d < j.g.n; d++)
        if (j.g.x[d] && (j.cut < 0 || j.g.d[d] > j.g.d[j.cut])) j.cut = d;
    int64_t items = j.cut < 0 ? 1 : j.g.d[j.cut];
    ll_in_parts(ll_team(c, 2 * n), items, x->dtype == LL_F32 ? add_float : add_double, &j);
    return LL_OK;
}

bool scatter_add_cpu_fits(const ll_kcall *c)
{
    ll_dtype t = c->out[0].dtype;
    return c->in[0].dtype == t && (t == LL_F32 || t == LL_F64);
}

ll_err scatter_add_cpu(const ll_kcall *c)
{
    const ll_tensor *y = &c->in[0], *x = &c->out[0];
    ll_gather_walk g;
    TRY(ll_gather_of((const ll_gather_attr *)c->attr, &x->shape, &c->in[1].shape, &y->shape, &g));
    return add(c, &g);
}

ll_err embedding_grad_cpu(const ll_kcall *c)
{
    ll_gather_walk g = ll_gather_rows(c->attr, &c->out[0].shape, &c->in[1].shape);
    return add(c, &g);
}
