/* matmul on the CPU: a product's loops, folded into as few strided matrix products as they allow.
 *
 * 1. Loops of one kind (rows: a and c; columns: b and c; summed: a and b; batch: all three) that
 *    lie side by side in both tensors become one: "btc,zhdc->btzhd" is one product with m = bt,
 *    n = zhd, k = c.
 * 2. The longest loop of each kind is the product's m, n or k. Any further ones are loops around
 *    it: rows, columns and batch in any order; sums add into C, in order.
 * 3. Threads share either the loops around (many small products) or each product. */
#include "kern/attr.h"
#include "kern/cpu/gemm.h"
#include "kern/einsum.h"

ll_kernel matmul_cpu;
ll_scratch matmul_cpu_scratch;

enum { ROW, COLUMN, SUM, BATCH, N_KIND };

typedef struct plan {
    ll_gemm_call g; /* m, n, k, strides; pointers of the first product */
    ll_einsum_loop around[LL_EINSUM_LOOPS], sum[LL_EINSUM_LOOPS];
    int n_around, n_sum;
    int64_t products, sums; /* points of these loops */
    bool share_loops;       /* threads share the loops around, not each product */
    bool tile;              /* C goes through an f32 copy of one product: bf16 and summed loops */
    size_t one;             /* scratch bytes for one product, or one thread's */
} plan;

static int kind_of(const ll_einsum_loop *l)
{
    if (!l->has[LL_EINSUM_C]) return SUM;
    if (!l->has[LL_EINSUM_B]) return ROW;
    return l->has[LL_EINSUM_A] ? BATCH : COLUMN;
}

/* Sorts loops of one kind from the widest stride (in c, or in a for sums) to the narrowest, and
 * joins neighbours. Returns how many remain. */
static int fold(ll_einsum_loop *l, int n, int by)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && l[j].stride[by] > l[j - 1].stride[by]; j--) {
            ll_einsum_loop t = l[j];
            l[j] = l[j - 1];
            l[j - 1] = t;
        }
    int kept = 0;
    for (int i = 0; i < n; i++) {
        ll_einsum_loop *outer = kept ? &l[kept - 1] : NULL;
        bool joins = outer != NULL;
        for (int t = 0; t < 3 && joins; t++)
            joins = outer->stride[t] == l[i].stride[t] * l[i].extent;
        if (!joins) {
            l[kept++] = l[i];
            continue;
        }
        outer->extent *= l[i].extent;
        memcpy(outer->stride, l[i].stride, sizeof outer->stride);
    }
    return kept;
}

/* Takes the longest loop out of l; a loop of one point when there is none. */
static ll_einsum_loop take_longest(ll_einsum_loop *l, int *n)
{
    if (*n == 0) return (ll_einsum_loop){.extent = 1, .stride = {1, 1, 1}};
    int best = 0;
    for (int i = 1; i < *n; i++)
        if (l[i].extent >= l[best].extent) best = i;
    ll_einsum_loop out = l[best];
    --*n;
    memmove(l + best, l + best + 1, sizeof *l * (size_t)(*n - best));
    return out;
}

static int64_t points(const ll_einsum_loop *l, int n)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++) p *= l[i].extent;
    return p;
}

static void plan_scratch(plan *p, int threads)
{
    ll_gemm_call *g = &p->g;
    double work = (double)g->m * (double)g->n * (double)g->k * (double)p->sums;
    p->tile = p->sums > 1 && g->bf16_out;
    if (p->tile) g->bf16_out = false;
    bool even = p->products >= 4 * threads || p->products % threads == 0;
    bool small = work < LL_PARALLEL_WORK;
    p->share_loops = p->products > 1 && (even || small || threads == 1);
    g->threads = p->share_loops || work < LL_PARALLEL_WORK ? 1 : threads;
    p->one = p->share_loops ? ll_gemm_serial_scratch(g) : ll_gemm_scratch(g);
    if (p->tile) p->one += ((size_t)(g->m * g->n) * sizeof(float) + 63) / 64 * 64;
}

static void make_plan(const ll_kcall *c, plan *p)
{
    const ll_matmul_attr *attr = (const ll_matmul_attr *)c->attr;
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_loop all[LL_EINSUM_LOOPS], l[N_KIND][LL_EINSUM_LOOPS];
    int count[N_KIND] = {0};
    *p = (plan){.g = {.a = a->data, .b = b->data, .c = y->data}};
    p->g.bf16 = a->dtype == LL_BF16;
    p->g.f64 = a->dtype == LL_F64;
    p->g.bf16_out = y->dtype == LL_BF16;
    int n = ll_einsum_read(attr->spec, &a->shape, &b->shape, &y->shape, all);
    for (int i = 0; i < n; i++) {
        if (all[i].extent == 1) continue;
        int kind = kind_of(&all[i]);
        l[kind][count[kind]++] = all[i];
    }
    for (int k = 0; k < N_KIND; k++)
        count[k] = fold(l[k], count[k], k == SUM ? LL_EINSUM_A : LL_EINSUM_C);
    ll_einsum_loop row = take_longest(l[ROW], &count[ROW]);
    ll_einsum_loop column = take_longest(l[COLUMN], &count[COLUMN]);
    ll_einsum_loop sum = take_longest(l[SUM], &count[SUM]);
    p->g.m = row.extent, p->g.n = column.extent, p->g.k = sum.extent;
    p->g.a_rs = row.stride[LL_EINSUM_A], p->g.a_cs = sum.stride[LL_EINSUM_A];
    p->g.b_rs = sum.stride[LL_EINSUM_B], p->g.b_cs = column.stride[LL_EINSUM_B];
    p->g.c_rs = row.stride[LL_EINSUM_C], p->g.c_cs = column.stride[LL_EINSUM_C];
    for (int k = 0; k < N_KIND; k++)
        for (int i = 0; i < count[k]; i++) {
            if (k == SUM)
                p->sum[p->n_sum++] = l[k][i];
            else
                p->around[p->n_around++] = l[k][i];
        }
    p->products = points(p->around, p->n_around);
    p->sums = points(p->sum, p->n_sum);
    plan_scratch(p, c->threads > 0 ? c->threads : 1);
}

/* Offsets into a, b, c of point number `at` of the loops. */
static void offsets(const ll_einsum_loop *l, int n, int64_t at, int64_t off[3])
{
    off[0] = off[1] = off[2] = 0;
    for (int i = n - 1; i >= 0; i--) {
        int64_t x = at % l[i].extent;
        at /= l[i].extent;
        for (int t = 0; t < 3; t++) off[t] += x * l[i].stride[t];
    }
}

static void round_tile(const ll_gemm_call *g, const float *tile, uint16_t *c)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++)
            c[i * g->c_rs + j * g->c_cs] = ll_f32_to_bf16(tile[i * g->n + j]);
}

/* Product number `at` of the loops around, with all its sums. */
static void product(const plan *p, int64_t at, char *scratch)
{
    ll_gemm_call g = p->g;
    size_t in = g.bf16 ? 2 : g.f64 ? 8 : 4, out = g.bf16_out || p->tile ? 2 : g.f64 ? 8 : 4;
    int64_t off[3];
    offsets(p->around, p->n_around, at, off);
    const char *a = (const char *)p->g.a + (size_t)off[LL_EINSUM_A] * in;
    const char *b = (const char *)p->g.b + (size_t)off[LL_EINSUM_B] * in;
    char *c = (char *)p->g.c + (size_t)off[LL_EINSUM_C] * out;
    g.c = c;
    g.scratch = scratch;
    if (p->tile) {
        size_t bytes = ((size_t)(g.m * g.n) * sizeof(float) + 63) / 64 * 64;
        g.c = scratch + p->one - bytes;
        g.c_rs = g.n, g.c_cs = 1;
    }
    for (int64_t s = 0; s < p->sums || s == 0; s++) {
        if (p->sums == 0) g.k = 0; /* a sum of nothing: C = 0 */
        if (p->sums) offsets(p->sum, p->n_sum, s, off);
        g.a = a + (p->sums ? (size_t)off[LL_EINSUM_A] * in : 0);
        g.b = b + (p->sums ? (size_t)off[LL_EINSUM_B] * in : 0);
        g.add = s > 0;
        if (p->share_loops)
            ll_gemm_serial(&g);
        else
            ll_gemm(&g);
    }
    if (p->tile) round_tile(&p->g, (const float *)g.c, (uint16_t *)(void *)c);
}

size_t matmul_cpu_scratch(const ll_kcall *c)
{
    plan p;
    make_plan(c, &p);
    return p.one * (p.share_loops && c->threads > 1 ? (size_t)c->threads : 1);
}

ll_err matmul_cpu(const ll_kcall *c)
{
    ll_dtype t = c->in[0].dtype;
    CHECK(t == LL_F32 || t == LL_BF16 || t == LL_F64, LL_E_ARG,
          "matmul of %s on the cpu machine, want f64, f32 or bf16", ll_dtype_name(t));
    plan p;
    make_plan(c, &p);
    if (!p.share_loops) {
        for (int64_t i = 0; i < p.products; i++) product(&p, i, (char *)c->scratch);
        return LL_OK;
    }
    double work = (double)p.products * (double)p.g.m * (double)p.g.n * (double)(p.g.k + 1);
    int threads = work * (double)p.sums < LL_PARALLEL_WORK || c->threads < 1 ? 1 : c->threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        char *scratch = (char *)c->scratch + p.one * (size_t)t;
        int64_t from = p.products * t / threads, to = p.products * (t + 1) / threads;
        for (int64_t i = from; i < to; i++) product(&p, i, scratch);
    }
    return LL_OK;
}
