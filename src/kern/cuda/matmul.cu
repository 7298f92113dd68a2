/* matmul.cu: products through cuBLASLt (gemm.cu). A product's loops are folded into strided matrix
 * products (kern/einsum.h); cuBLASLt wants one unit stride in each matrix, and what has none goes
 * through a plain kernel of our own. The longest loop around becomes its batch.
 *
 * cuBLASLt counts columns first. A row-major C is given as its transpose: C' = B' A'. */
#include "kern/cuda/few.cuh"

#include "kern/einsum.h"

/* ---- what has no unit stride, and types that cuBLASLt does not mix ---- */

template <class T, class Y>
static __global__ void plain(matrix a, matrix b, matrix c, Y *y, int64_t k, int64_t batches,
                             bool add)
{
    typedef typename sum_of<T>::type S;
    int64_t n = c.rows * c.cols * batches;
    GRID_STRIDE(e, n)
    {
        int64_t j = e % c.cols, i = e / c.cols % c.rows, z = e / c.cols / c.rows;
        const T *p = (const T *)a.data + z * a.batch + i * a.rs;
        const T *q = (const T *)b.data + z * b.batch + j * b.cs;
        Y *to = y + z * c.batch + i * c.rs + j * c.cs;
        S sum = add ? (S)to_float(*to) : (S)0;
        for (int64_t l = 0; l < k; l++) sum += (S)to_float(p[l * a.cs]) * (S)to_float(q[l * b.rs]);
        *to = from_float<Y>::of(sum);
    }
}

static ll_err run_plain(const ll_kcall *c, matrix a, matrix b, matrix y, ll_dtype type,
                        int64_t batches, bool add)
{
    return with_floats(c->in[0].dtype, type, [&](auto s, auto t) -> ll_err {
        return launch_each(c, y.rows * y.cols * batches, plain<decltype(s), decltype(t)>, a, b, y,
                           (decltype(t) *)y.data, a.cols, batches, add);
    });
}

static ll_err run_blas(const ll_kcall *c, matrix a, matrix b, matrix y, ll_dtype type,
                       int64_t batches, bool add)
{
    bool transpose = y.rs != 1 && y.rows > 1, none;
    gemm g = {};
    g.a = transpose ? ll_blas_transposed(&b) : a;
    g.b = transpose ? ll_blas_transposed(&a) : b;
    g.y = transpose ? ll_blas_transposed(&y) : y;
    g.batches = batches;
    g.a_type = g.b_type = c->in[0].dtype;
    g.y_type = type;
    g.add = add ? y.data : NULL;
    g.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    TRY(ll_blas_run(c, &g, &none));
    return none ? run_plain(c, a, b, y, type, batches, add) : LL_OK;
}

/* ---- sums in f64 that begin at a start (base/num.h), which libraries' cannot ----
 *
 * A block makes SIDE x SIDE results of a part of k, 16 in each thread, from tiles of DEPTH of k in
 * shared memory. Such sums are exact in any order: where results are few, blocks share k, and add
 * what they have. */
enum { SIDE = 64, DEPTH = 16, EACH_WAY = 16, OF_THREAD = SIDE / EACH_WAY };

/* A tile of rows from i on, k from l on; rows beyond n and k beyond l1 are zeros. si, sl: strides.
 * Threads beside each other read what lies so, as far as it does. */
static __device__ void fetch(const double *x, int64_t i, int64_t n, int64_t l, int64_t l1,
                             int64_t si, int64_t sl, double to[DEPTH][SIDE + 1])
{
    for (int e = threadIdx.x; e < SIDE * DEPTH; e += EACH_WAY * EACH_WAY) {
        int r = sl == 1 ? e / DEPTH : e % SIDE, d = sl == 1 ? e % DEPTH : e / SIDE;
        bool is = i + r < n && l + d < l1;
        to[d][r] = is ? x[(i + r) * si + (l + d) * sl] : 0;
    }
}

static __global__ void __launch_bounds__(EACH_WAY *EACH_WAY)
    started(matrix a, matrix b, matrix c, double *y, int64_t parts, double start, bool add)
{
    __shared__ double as[DEPTH][SIDE + 1], bs[DEPTH][SIDE + 1];
    int64_t down = (c.rows + SIDE - 1) / SIDE, across = (c.cols + SIDE - 1) / SIDE;
    int64_t at = blockIdx.x, part = at % parts, z = at / parts / across / down;
    int64_t j0 = at / parts % across * SIDE, i0 = at / parts / across % down * SIDE;
    int64_t k0 = a.cols * part / parts, k1 = a.cols * (part + 1) / parts;
    const double *pa = (const double *)a.data + z * a.batch;
    const double *pb = (const double *)b.data + z * b.batch;
    int row = threadIdx.x / EACH_WAY, col = threadIdx.x % EACH_WAY;
    double sum[OF_THREAD][OF_THREAD];
    for (int i = 0; i < OF_THREAD; i++)
        for (int j = 0; j < OF_THREAD; j++) sum[i][j] = start;
    for (int64_t l = k0; l < k1; l += DEPTH) {
        fetch(pa, i0, c.rows, l, k1, a.rs, a.cs, as);
        fetch(pb, j0, c.cols, l, k1, b.cs, b.rs, bs);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            for (int i = 0; i < OF_THREAD; i++)
                for (int j = 0; j < OF_THREAD; j++)
                    sum[i][j] =
                        __fma_rn(as[d][row + i * EACH_WAY], bs[d][col + j * EACH_WAY], sum[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < OF_THREAD; i++)
        for (int j = 0; j < OF_THREAD; j++) {
            int64_t r = i0 + row + i * EACH_WAY, s = j0 + col + j * EACH_WAY;
            if (r >= c.rows || s >= c.cols) continue;
            double *to = y + z * c.batch + r * c.rs + s * c.cs, v = sum[i][j] - start;
            if (parts > 1)
                atomicAdd(to, v);
            else
                *to = add ? *to + v : v;
        }
}

static __global__ void clear(matrix c, double *y, int64_t n)
{
    GRID_STRIDE(e, n)
    {
        int64_t j = e % c.cols, i = e / c.cols % c.rows, z = e / c.cols / c.rows;
        y[z * c.batch + i * c.rs + j * c.cs] = 0;
    }
}

static ll_err run_started(const ll_kcall *c, matrix a, matrix b, matrix y, int64_t batches,
                          bool add)
{
    double start = ll_sum_start(((const ll_matmul_attr *)c->attr)->bits), *to = (double *)y.data;
    int64_t n = y.rows * y.cols * batches;
    int64_t tiles = ll_ceil_div(y.rows, SIDE) * ll_ceil_div(y.cols, SIDE) * batches;
    int64_t parts = ll_min64(4 * processors_of(c) / tiles, a.cols / (8 * DEPTH));
    parts = ll_max64(parts, 1);
    CHECK(tiles * parts <= INT32_MAX, LL_E_SHAPE, "a product of %lld tiles", (long long)tiles);
    if (parts > 1 && !add) TRY(launch_each(c, n, clear, y, to, n));
    return launch(c, started, (unsigned)(tiles * parts), EACH_WAY * EACH_WAY, a, b, y, to, parts,
                  start, add);
}

/* ---- all products of a call ---- */

typedef ll_err product(const ll_kcall *c, matrix a, matrix b, matrix y, int64_t batches, bool add);

static ll_err one(const ll_kcall *c, matrix a, matrix b, matrix y, int64_t batches, bool add)
{
    ll_dtype type = c->out[0].dtype;
    bool blas = ll_blas_fits(&a) && ll_blas_fits(&b) && ll_blas_fits(&y) && a.cols > 0 &&
                batches < INT32_MAX;
    if (!blas) return run_plain(c, a, b, y, type, batches, add);
    return run_blas(c, a, b, y, type, batches, add);
}

static ll_err plainly(const ll_kcall *c, matrix a, matrix b, matrix y, int64_t batches, bool add)
{
    return run_plain(c, a, b, y, c->out[0].dtype, batches, add);
}

/* Operand i of a folded product; 2: its result. */
static matrix matrix_of(const ll_tensor *t, int i, const ll_einsum_plan *p, int64_t batch)
{
    const ll_einsum_loop *row = i == 1 ? &p->sum : &p->row, *col = i == 0 ? &p->sum : &p->column;
    return matrix{t->data, row->extent, col->extent, row->stride[i], col->stride[i], batch};
}

static ll_err each_product(const ll_kcall *c, const char *spec, product *run)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_plan p;
    ll_einsum_fold(spec, &a->shape, &b->shape, &y->shape, &p);
    ll_einsum_loop batch = {1, {0, 0, 0}, {false, false, false}};
    int longest = -1;
    for (int i = 0; i < p.n_around; i++)
        if (longest < 0 || p.around[i].extent > p.around[longest].extent) longest = i;
    if (ll_numel(&y->shape) == 0) return LL_OK;
    if (longest >= 0) {
        batch = p.around[longest];
        p.around[longest] = p.around[--p.n_around];
    }
    matrix ma = matrix_of(a, 0, &p, batch.stride[0]), mb = matrix_of(b, 1, &p, batch.stride[1]);
    matrix my = matrix_of(y, 2, &p, batch.stride[2]);
    int64_t n = ll_einsum_points(p.around, p.n_around), sums = ll_einsum_points(p.sums, p.n_sums);
    size_t in = ll_dtype_bytes(a->dtype), out = ll_dtype_bytes(y->dtype);
    for (int64_t i = 0; i < n; i++) {
        int64_t off[3], more[3] = {0, 0, 0};
        ll_einsum_offsets(p.around, p.n_around, i, off);
        for (int64_t s = 0; s < sums || s == 0; s++) {
            matrix pa = ma, pb = mb, py = my;
            if (sums == 0) pa.cols = 0; /* a sum of nothing */
            if (sums) ll_einsum_offsets(p.sums, p.n_sums, s, more);
            pa.data = (const char *)a->data + (size_t)(off[0] + more[0]) * in;
            pb.data = (const char *)b->data + (size_t)(off[1] + more[1]) * in;
            py.data = (const char *)y->data + (size_t)off[2] * out;
            TRY(run(c, pa, pb, py, batch.extent, s > 0));
        }
    }
    return LL_OK;
}

ll_err ll_blas_product(const ll_kcall *c, const char *spec)
{
    return each_product(c, spec, one);
}

/* ---- the ways: what has no unit stride shows as plain ---- */

static const char *spec_of(const ll_kcall *c)
{
    return ((const ll_matmul_attr *)c->attr)->spec;
}

static bool has_start(const ll_kcall *c)
{
    return ((const ll_matmul_attr *)c->attr)->bits;
}

static bool has_none(const ll_kcall *c)
{
    return !has_start(c);
}

static bool blas_fits(const ll_kcall *c)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_plan p;
    ll_einsum_fold(spec_of(c), &a->shape, &b->shape, &y->shape, &p);
    const matrix m[3] = {matrix_of(a, 0, &p, 0), matrix_of(b, 1, &p, 0), matrix_of(y, 2, &p, 0)};
    for (int i = 0; i < 3; i++)
        if (!ll_blas_fits(&m[i])) return false;
    return p.sum.extent > 0 && has_none(c);
}

static size_t scratch(const ll_kcall *c)
{
    return ll_blas_scratch(c, spec_of(c));
}

static ll_err run(const ll_kcall *c)
{
    return ll_blas_product(c, spec_of(c));
}

/* One plain product. */
static bool plain_of(const ll_kcall *c, few *f)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_plan p;
    ll_einsum_fold(spec_of(c), &a->shape, &b->shape, &y->shape, &p);
    *f = few{matrix_of(a, 0, &p, 0),
             matrix_of(b, 1, &p, 0),
             matrix_of(y, 2, &p, 0),
             a->dtype,
             y->dtype,
             NULL,
             LL_ACT_NONE};
    return p.n_around == 0 && p.n_sums == 0;
}

/* Without the scratch that cuBLASLt wants. */
static ll_err run_plainly(const ll_kcall *c)
{
    return each_product(c, spec_of(c), plainly);
}

static ll_err run_from_start(const ll_kcall *c)
{
    return each_product(c, spec_of(c), run_started);
}

extern "C" const ll_solver matmul_cuda[] = {
    {"started", has_start, NULL, run_from_start},
    {"few", few_fits<plain_of>, NULL, run_few<plain_of>},
    {"small", small_fits<plain_of>, NULL, run_small<plain_of>},
    {"cublaslt", blas_fits, scratch, run},
    {"plain", has_none, NULL, run_plainly},
    {}};
