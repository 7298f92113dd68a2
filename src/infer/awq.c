/* awq.c: scales for channels that meet large inputs. */
#include "infer/awq.h"

#include "kern/blocks.h"
#include "op/ops.h"
#include "pass/packed.h"

#include <omp.h>

enum { SAMPLE = 128, ROWS = 8, STEPS = 20 }; /* rows of a product looked at, at once; of alpha */

/* ---- what makes x ---- */

static int readers_of(const ll_graph *g, ll_val v)
{
    int n = 0;
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) n += g->nodes[i].in[k].id == v.id;
    for (int i = 0; i < g->n_result; i++) n += g->results[i].value.id == v.id;
    return n;
}

/* Of a value that one node reads. */
static bool is_own(const ll_graph *g, ll_val v, int64_t rows)
{
    const ll_value *p = ll_value_of(g, v);
    int64_t n = ll_numel(&p->type.shape);
    return p->node < 0 && p->kind == LL_PARAM && p->type.dtype == LL_F32 && n && n % rows == 0 &&
           readers_of(g, v) == 1;
}

static int makers(const ll_graph *g, ll_val x, int64_t cols, ll_val folds[LL_AWQ_FOLDS])
{
    const ll_value *v = ll_value_of(g, x);
    if (v->node < 0 || v->out) return 0;
    const ll_node *n = &g->nodes[v->node];
    int made = 0, sums = (int)ll_pack_cols(g, n);
    if (sums) { /* rows of a weight are the last channels of its product */
        folds[0] = n->in[1];
        const ll_shape *w = &ll_value_of(g, n->in[1])->type.shape;
        return is_own(g, n->in[1], cols) && ll_numel(w) == cols * sums;
    }
    if (n->op == ll_ew_op(LL_EW_mul))
        for (int k = 1; k >= 0; k--)
            if (readers_of(g, n->in[k]) == 1 && (made = makers(g, n->in[k], cols, folds)))
                return made;
    for (int k = 0; k < n->n_in; k++) {
        if (!(n->op->gain >> k & 1)) continue;
        const ll_shape *p = &ll_value_of(g, n->in[k])->type.shape;
        if (made == LL_AWQ_FOLDS || ll_numel(p) != cols || !is_own(g, n->in[k], cols)) return 0;
        folds[made++] = n->in[k];
    }
    return made;
}

int ll_awq_folds(const ll_graph *g, ll_val x, int64_t cols, ll_val folds[LL_AWQ_FOLDS])
{
    int products = 0;
    for (int i = 0; i < g->n_node; i++)
        products += ll_pack_cols(g, &g->nodes[i]) == cols && g->nodes[i].in[0].id == x.id;
    return products == readers_of(g, x) ? makers(g, x, cols, folds) : 0;
}

/* ---- how large ---- */

typedef struct job {
    const float *h;
    int64_t cols;
    const ll_block_kind *kind;
    float *scale;
} job;

/* What row w is off by, packed with scales. */
static void difference(const job *j, const float *w, float *d)
{
    for (int64_t b = 0; b < j->cols; b += LL_PACK) {
        float v[LL_PACK];
        uint8_t block[2 * LL_PACK];
        for (int i = 0; i < LL_PACK; i++) v[i] = w[b + i] * j->scale[b + i];
        j->kind->pack(v, block);
        j->kind->unpack(block, v);
        for (int i = 0; i < LL_PACK; i++) d[b + i] = v[i] / j->scale[b + i] - w[b + i];
    }
}

/* d H d^T of some rows that go together, as H is large; room [2,ROWS,cols]. */
static void off_by(const job *j, const ll_awq_product *p, int64_t from, int64_t rows, float *room,
                   double off[ROWS])
{
    int64_t n = j->cols, most = p->rows < SAMPLE ? p->rows : SAMPLE;
    float *d = room, *sum = room + ROWS * n;
    memset(room, 0, sizeof *room * 2 * ROWS * (size_t)n);
    for (int64_t r = 0; r < rows; r++)
        difference(j, p->w + (from + r) * p->rows / most * n, d + r * n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t r = 0; r < ROWS; r++) {
            const float *h = j->h + i * n;
            float by = d[r * n + i], *to = sum + r * n;
#pragma omp simd
            for (int64_t k = 0; k < n; k++) to[k] += by * h[k];
        }
    for (int64_t r = 0; r < rows; r++) {
        off[r] = 0;
        for (int64_t i = 0; i < n; i++) off[r] += (double)(d[r * n + i] * sum[r * n + i]);
    }
}

/* Of all products: rows with as much between them, which stand for the others. */
static double loss_of(const job *j, const ll_awq_product *p, int n, int threads, float *room)
{
    double sum = 0;
    for (int k = 0; k < n; k++) {
        int64_t rows = p[k].rows < SAMPLE ? p[k].rows : SAMPLE;
        double off[SAMPLE];
#pragma omp parallel for num_threads(threads)
        for (int64_t i = 0; i < rows; i += ROWS)
            off_by(j, &p[k], i, rows - i < ROWS ? rows - i : ROWS,
                   room + omp_get_thread_num() * 2 * ROWS * j->cols, off + i);
        for (int64_t i = 0; i < rows; i++) sum += off[i] * (double)p[k].rows / (double)rows;
    }
    return sum;
}

/* Magnitudes to the power alpha, the largest as far above 1 as the least is below. */
static void set_scales(const job *j, double alpha)
{
    double mean = 0, low = INFINITY, high = 0;
    for (int64_t i = 0; i < j->cols; i++)
        mean += sqrt((double)j->h[i * j->cols + i]) / (double)j->cols;
    for (int64_t i = 0; i < j->cols; i++) { /* a channel of zeros is no reason for huge scales */
        double size = fmax(sqrt((double)j->h[i * j->cols + i]), 1e-4 * mean);
        double s = mean > 0 ? pow(size, alpha) : 1;
        j->scale[i] = (float)s;
        low = s < low ? s : low; /* gcc 12 fails at fmin of what is rounded too, on aarch64 */
        high = s > high ? s : high;
    }
    for (int64_t i = 0; i < j->cols; i++) j->scale[i] /= (float)sqrt(low * high);
}

ll_err ll_awq_search(const ll_awq_product *p, int n, int64_t cols, const float *h, int bits,
                     int threads, float *scale, double *alpha)
{
    const char *name = bits == 4 ? "int4" : "int8";
    job j = {.h = h, .cols = cols, .kind = ll_block_find(name, 4), .scale = scale};
    double least = 0;
    int best = 0;
    if (threads < 1) threads = 1;
    LL_OWN_MEMORY float *room =
        (float *)malloc(sizeof *room * 2 * ROWS * (size_t)(threads * cols) + 1);
    CHECK(room, LL_E_MEM, "not enough memory for scales of %ld channels", cols);
    for (int k = 0; k <= STEPS; k++) {
        set_scales(&j, (double)k / STEPS);
        double is = loss_of(&j, p, n, threads, room);
        CHECK(isfinite(is), LL_E_NUMERIC, "the inputs of products are not finite");
        if (!k || is < least) least = is, best = k;
    }
    *alpha = (double)best / STEPS;
    set_scales(&j, *alpha);
    return LL_OK;
}

void ll_awq_round(float *w, int64_t rows, int64_t cols, const float *moments, int threads)
{
#pragma omp parallel for num_threads(threads > 0 ? threads : 1)
    for (int64_t b = 0; b < rows * cols; b += LL_PACK) {
        uint16_t of[2];
        ll_pack_range(w + b, moments + b % cols, &of[0], &of[1]);
        double by = ll_load(of, LL_F16, 0), from = ll_load(of, LL_F16, 1);
        for (int i = 0; i < LL_PACK; i++) {
            double k = by > 0 ? rint(((double)w[b + i] - from) / by) : 0;
            w[b + i] = (float)(by * fmin(fmax(k, 0), 15) + from);
        }
    }
}
