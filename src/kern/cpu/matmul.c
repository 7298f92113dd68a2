/* matmul and grid_matmul (fuse/grid_matmul.c) on the CPU: a product's loops, folded into as few
 * strided matrix products as they allow.
 *
 * 1. kern/einsum.h folds the loops: "btc,zhdc->btzhd" is one product with m = bt, n = zhd, k = c.
 * 2. What does not fold is loops around it, in any order; sums add into C, in order.
 * 3. Threads share either the loops around (many small products) or each product. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/gemm_int.h"
#include "kern/cpu/row.h"
#include "kern/einsum.h"
#include "kern/grid.h"

LL_KERNELS(matmul, grid_matmul)

typedef struct plan {
    ll_gemm_call g; /* m, n, k, strides; pointers of the first product */
    ll_einsum_plan loops;
    int64_t products, sums; /* points of the loops around, and of the sums */
    bool share_loops;       /* threads share the loops around, not each product */
    bool tile;              /* C goes through an f32 copy of one product: bf16 and summed loops */
    size_t one;             /* scratch bytes of one thread, or product, where that is looked at */
    int64_t scale[2][LL_EINSUM_LOOPS]; /* strides of scales along the loops around */
} plan;

static void plan_threads(plan *p, int threads)
{
    ll_gemm_call *g = &p->g;
    double work = (double)g->m * (double)g->n * (double)g->k * (double)p->sums;
    p->tile = p->sums > 1 && g->bf16_out;
    if (p->tile) g->bf16_out = false;
    bool even = p->products >= 4 * threads || p->products % threads == 0;
    bool small = ll_team_for_products(threads, work) == 1;
    p->share_loops = p->products > 1 && (even || small || threads == 1);
    g->threads = p->share_loops || small ? 1 : threads;
}

static size_t room_of_one(const plan *p)
{
    const ll_gemm_call *g = &p->g;
    size_t tile = p->tile ? ll_align64((size_t)(g->m * g->n) * sizeof(float)) : 0;
    return tile + (p->share_loops ? ll_gemm_serial_scratch(g) : ll_gemm_scratch(g));
}

static void fold_loops(const ll_kcall *c, const char *spec, int64_t bits, plan *p)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    *p = (plan){.g = {.a = a->data, .b = b->data, .c = y->data}};
    p->g.bf16 = a->dtype == LL_BF16;
    p->g.f64 = y->dtype == LL_F64;
    p->g.bf16_out = y->dtype == LL_BF16;
    p->g.start = ll_sum_start(bits);
    ll_einsum_plan *l = &p->loops;
    ll_einsum_fold(spec, &a->shape, &b->shape, &y->shape, l);
    p->g.m = l->row.extent, p->g.n = l->column.extent, p->g.k = l->sum.extent;
    p->g.a_rs = l->row.stride[LL_EINSUM_A], p->g.a_cs = l->sum.stride[LL_EINSUM_A];
    p->g.b_rs = l->sum.stride[LL_EINSUM_B], p->g.b_cs = l->column.stride[LL_EINSUM_B];
    p->g.c_rs = l->row.stride[LL_EINSUM_C], p->g.c_cs = l->column.stride[LL_EINSUM_C];
    p->products = ll_einsum_points(l->around, l->n_around);
    p->sums = ll_einsum_points(l->sums, l->n_sums);
}

static void make_plan(const ll_kcall *c, plan *p)
{
    const ll_matmul_attr *attr = (const ll_matmul_attr *)c->attr;
    fold_loops(c, attr->spec, attr->bits, p);
    plan_threads(p, c->threads > 0 ? c->threads : 1);
}

/* Scales as powers of two go to the end of the scratch: returns how many bytes. */
static size_t plan_grid(const ll_kcall *c, plan *p)
{
    static const double one = 1;
    const ll_grid_matmul_attr *attr = (const ll_grid_matmul_attr *)c->attr;
    const ll_einsum_plan *l = &p->loops;
    fold_loops(c, attr->spec, attr->rounded, p);
    const ll_shape *a = &c->in[0].shape, *b = &c->in[1].shape;
    p->g.a_by = p->g.b_by = &one; /* for now: that there are any */
    p->g.a_bs = ll_grid_scale_stride(attr->a, a, l->row.extent, l->row.stride[LL_EINSUM_A]);
    p->g.b_bs = ll_grid_scale_stride(attr->b, b, l->column.extent, l->column.stride[LL_EINSUM_B]);
    for (int i = 0; i < l->n_around; i++)
        for (int k = 0; k < 2; k++)
            p->scale[k][i] = ll_grid_scale_stride(k ? attr->b : attr->a, k ? b : a,
                                                  l->around[i].extent, l->around[i].stride[k]);
    plan_threads(p, c->threads > 0 ? c->threads : 1);
    return sizeof(double) * (size_t)(ll_numel(&c->in[2].shape) + ll_numel(&c->in[3].shape));
}

static const double *to_powers(const ll_tensor *m, int64_t bits, double *to)
{
    for (int64_t i = 0; i < ll_numel(&m->shape); i++)
        to[i] = ll_grid_factor((double)((const float *)m->data)[i], bits);
    return to;
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
    size_t in = ll_gemm_in_bytes(&g), out = p->tile ? 2 : ll_gemm_out_bytes(&g);
    int64_t off[3];
    ll_einsum_offsets(p->loops.around, p->loops.n_around, at, off);
    const char *a = (const char *)p->g.a + (size_t)off[LL_EINSUM_A] * in;
    const char *b = (const char *)p->g.b + (size_t)off[LL_EINSUM_B] * in;
    char *c = (char *)p->g.c + (size_t)off[LL_EINSUM_C] * out;
    for (int i = p->loops.n_around - 1; g.a_by && i >= 0; i--) {
        int64_t k = at % p->loops.around[i].extent;
        at /= p->loops.around[i].extent;
        g.a_by += k * p->scale[0][i], g.b_by += k * p->scale[1][i];
    }
    g.c = c;
    g.scratch = scratch;
    if (p->tile) {
        size_t bytes = ll_align64((size_t)(g.m * g.n) * sizeof(float));
        g.c = scratch + p->one - bytes;
        g.c_rs = g.n, g.c_cs = 1;
    }
    for (int64_t s = 0; s < p->sums || s == 0; s++) {
        if (p->sums == 0) g.k = 0; /* a sum of nothing: C = 0 */
        if (p->sums) ll_einsum_offsets(p->loops.sums, p->loops.n_sums, s, off);
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

static size_t room_of(const ll_kcall *c, const plan *p)
{
    return room_of_one(p) * (p->share_loops && c->threads > 1 ? (size_t)c->threads : 1);
}

size_t matmul_cpu_scratch(const ll_kcall *c)
{
    plan p;
    make_plan(c, &p);
    return room_of(c, &p);
}

typedef struct shared {
    const plan *p;
    char *scratch;
} shared;

static void some_products(const void *given, int number, int64_t from, int64_t to)
{
    const shared *s = (const shared *)given;
    for (int64_t i = from; i < to; i++) product(s->p, i, s->scratch + s->p->one * (size_t)number);
}

static void run(const ll_kcall *c, plan *p)
{
    if (p->share_loops || p->tile) p->one = room_of_one(p);
    if (!p->share_loops) {
        for (int64_t i = 0; i < p->products; i++) product(p, i, (char *)c->scratch);
        return;
    }
    double work = (double)p->products * (double)p->g.m * (double)p->g.n * (double)(p->g.k + 1);
    int threads = ll_team_for_products(c->threads, work * (double)p->sums);
    ll_in_numbered_parts(threads, p->products, some_products, &(shared){p, (char *)c->scratch});
}

ll_err matmul_cpu(const ll_kcall *c)
{
    ll_dtype t = c->in[0].dtype;
    CHECK(t == LL_F32 || t == LL_BF16 || t == LL_F64, LL_E_ARG,
          "matmul of %s on the cpu machine, expected f64, f32 or bf16", ll_dtype_name(t));
    plan p;
    make_plan(c, &p);
    run(c, &p);
    return LL_OK;
}

size_t grid_matmul_cpu_scratch(const ll_kcall *c)
{
    plan p;
    size_t scales = plan_grid(c, &p);
    return room_of(c, &p) + scales;
}

ll_err grid_matmul_cpu(const ll_kcall *c)
{
    plan p;
    plan_grid(c, &p);
    int64_t bits = ((const ll_grid_matmul_attr *)c->attr)->bits;
    double *to = (double *)(void *)((char *)c->scratch + room_of(c, &p));
    p.g.a_by = to_powers(&c->in[2], bits, to);
    p.g.b_by = to_powers(&c->in[3], bits, to + ll_numel(&c->in[2].shape));
    run(c, &p);
    return LL_OK;
}
