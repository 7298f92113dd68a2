/* factors.c: gradients of fully-connected layers by their sufficient factors (Xie, Kim, Zhou, Ho,
 * Kumar, Yu, Xing: Lighter-communication distributed machine learning via sufficient factor
 * broadcasting; UAI 2016). dw = sum over samples of an outer product of a row of a and a row of b:
 * all ranks gather all rows of both and each computes the whole sum.
 *
 *     4 ranks, batch 16 on each, m = n = 1024: a rank sends 3 * 16 * 2048 numbers, 0.4 MB; the
 *     dense all-reduce sends 2 * 3/4 * 1024 * 1024, 6.3 MB
 *
 * Every element of dw is summed over samples in the order of ranks and their samples, by one chain
 * of additions: the same bits on all ranks and for any number of threads. */
#include "comm/codec.h"

#include <stdlib.h>
#include <string.h>

#ifdef __AVX__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum {
    ROWS = 4,
    VECTORS = 4, /* ROWS x VECTORS sums stay in registers */
    COLUMNS = LANES * VECTORS,
    SAMPLES = 256 /* at once: a panel of their b, COLUMNS wide, stays in the first cache */
};
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* Rows of a and b of at most SAMPLES samples of one rank. */
typedef struct rows {
    const float *a, *b; /* [count,m], [count,n] */
    int64_t m, n;
    int count;
} rows;

/* out [ROWS,COLUMNS] += the outer products of the samples' a and b. */
static void tile(const float (*a)[ROWS], const float (*b)[COLUMNS], int count, float *out,
                 int64_t stride)
{
    vec sum[ROWS][VECTORS];
    for (int i = 0; i < ROWS; i++)
        for (int v = 0; v < VECTORS; v++) sum[i][v] = *(vec *)(out + i * stride + v * LANES);
    for (int s = 0; s < count; s++)
        for (int v = 0; v < VECTORS; v++) {
            vec x = *(const vec *)(b[s] + v * LANES);
            for (int i = 0; i < ROWS; i++) sum[i][v] += a[s][i] * x;
        }
    for (int i = 0; i < ROWS; i++)
        for (int v = 0; v < VECTORS; v++) *(vec *)(out + i * stride + v * LANES) = sum[i][v];
}

/* A tile at the border, of which n_row and n_column are real. */
static void border(const float (*a)[ROWS], const float (*b)[COLUMNS], int count, float *out,
                   int64_t stride, int64_t n_row, int64_t n_column)
{
    float whole[ROWS][COLUMNS] = {{0}};
    for (int64_t i = 0; i < n_row; i++)
        memcpy(whole[i], out + i * stride, sizeof(float) * (size_t)n_column);
    tile(a, b, count, whole[0], COLUMNS);
    for (int64_t i = 0; i < n_row; i++)
        memcpy(out + i * stride, whole[i], sizeof(float) * (size_t)n_column);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Columns j.. of dw. packed: a, [m / ROWS rounded up][count][ROWS]. */
static void panel(const rows *r, const float (*packed)[ROWS], int64_t j, float *dw)
{
    float b[SAMPLES][COLUMNS] = {{0}};
    int64_t n_column = least(COLUMNS, r->n - j);
    for (int s = 0; s < r->count; s++)
        memcpy(b[s], r->b + s * r->n + j, sizeof(float) * (size_t)n_column);
    for (int64_t i = 0; i < r->m; i += ROWS, packed += r->count) {
        int64_t n_row = least(ROWS, r->m - i);
        if (n_row == ROWS && n_column == COLUMNS)
            tile(packed, b, r->count, dw + i * r->n + j, r->n);
        else
            border(packed, b, r->count, dw + i * r->n + j, r->n, n_row, n_column);
    }
}

/* dw += the outer products of the samples. room: for a, packed. */
static void add_outer(const rows *r, float (*room)[ROWS], float *dw)
{
    for (int64_t i = 0; i < r->m; i++)
        for (int s = 0; s < r->count; s++)
            room[i / ROWS * r->count + s][i % ROWS] = r->a[s * r->m + i];
#pragma omp parallel for schedule(static) if (r->m * r->n * r->count > 1 << 18)
    for (int64_t j = 0; j < r->n; j += COLUMNS) panel(r, (const float(*)[ROWS])room, j, dw);
}

/* all: of each rank in turn its a, then its b. */
static void sum_all(const float *all, const int64_t *batches, int size, int64_t m, int64_t n,
                    float (*room)[ROWS], float *dw)
{
    memset(dw, 0, sizeof(float) * (size_t)(m * n));
    for (int p = 0; p < size; p++) {
        const float *a = all, *b = all + batches[p] * m;
        for (int64_t s = 0; s < batches[p]; s += SAMPLES) {
            rows r = {a + s * m, b + s * n, m, n, (int)least(SAMPLES, batches[p] - s)};
            add_outer(&r, room, dw);
        }
        all += batches[p] * (m + n);
    }
}

static ll_err gather(ll_comm *c, float *all, const int64_t *starts, const char *site)
{
    ll_coll_call call = {
        .spec = {.coll = LL_COLL_ALLGATHER, .count = starts[ll_comm_size(c)], .starts = starts},
        .data = all,
        .dtype = LL_F32,
        .site = site};
    return ll_comm_run(c, &call);
}

ll_err ll_factors_allreduce(ll_comm *c, const float *a, const float *b, const int64_t *batches,
                            int64_t m, int64_t n, float *dw, const char *site,
                            ll_codec_report *report)
{
    int size = ll_comm_size(c), rank = ll_comm_rank(c);
    CHECK(m >= 0 && n >= 0, LL_E_ARG, "factors of a gradient [%lld,%lld]", (long long)m,
          (long long)n);
    int64_t *starts = (int64_t *)calloc((size_t)size + 1, sizeof *starts);
    CHECK(starts, LL_E_MEM, "factors of %d ranks", size);
    ll_err rc = LL_OK;
    for (int i = 0; i < size; i++) starts[i + 1] = starts[i] + batches[i] * (m + n);
    float *all = (float *)malloc(sizeof(float) * (size_t)(starts[size] + 1));
    float(*room)[ROWS] = calloc((size_t)((m + ROWS - 1) / ROWS * SAMPLES + 1), sizeof *room);
    if (!all || !room)
        rc = ll_raise(LL_E_MEM, __FILE__, __LINE__, __func__, "factors: %lld numbers",
                      (long long)starts[size]);
    if (rc == LL_OK && batches[rank] > 0) {
        float *mine = all + starts[rank];
        memcpy(mine, a, sizeof(float) * (size_t)(batches[rank] * m));
        memcpy(mine + batches[rank] * m, b, sizeof(float) * (size_t)(batches[rank] * n));
    }
    if (rc == LL_OK && size > 1) rc = gather(c, all, starts, site);
    if (rc == LL_OK) {
        sum_all(all, batches, size, m, n, room, dw);
        if (report)
            *report = (ll_codec_report){
                .bytes = (size - 1) * batches[rank] * (m + n) * 4,
                .dense_bytes = (int64_t)(2.0 * (size - 1) / size * (double)(m * n) * 4),
                .form = "all-gather"};
    }
    free(all);
    free(room);
    free(starts);
    return rc;
}

bool ll_factors_cheaper(int64_t batch_total, int64_t m, int64_t n, int size)
{
    return size > 1 && (double)batch_total * (double)(m + n) < 2.0 * (double)m * (double)n;
}
