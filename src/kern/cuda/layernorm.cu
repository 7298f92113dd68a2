/* layernorm.cu: layer and root-mean-square normalisation, and the ops of both and their gradients.
 *
 * A row stays in registers: a warp has it, 16 bytes a lane at a time, or 8 warps where it is long.
 * So every tensor is read once and written once. Rows that are no multiple of 16 bytes, very long
 * ones, and f64, take plain loops. Gradients: layernorm_back.cu. */
#include "kern/cuda/layernorm.cuh"

/* ---- rows in registers ---- */

enum { WARPS = 8 };

template <class T, int K, int W>
static __global__ void __launch_bounds__(W == 1 ? 128 : 32 * W) norm_rows(norming a)
{
    row_pieces<T, K, W> p;
    int64_t r = W == 1 ? blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
    if (r >= a.rows) return;
    r = a.rows - 1 - r; /* what was written last, by who made them, may still be in the cache */
    p.load(a, a.x, r, p.x);
    if (a.plus) {
        p.load(a, a.plus, r, p.plus);
        p.add_up(a, r);
    }
    float2 s = p.statistics(a, r);
#pragma unroll
    for (int k = 0; k < K; k++) {
        float v[wide<T>::N];
        if (p.column(k) >= (int)a.n) continue;
        p.norm(a, k, s, v);
        *(uint4 *)((T *)a.y + r * (int)a.n + p.column(k)) = wide<T>::pack(v);
    }
}

/* ---- which way ---- */

typedef struct way {
    int k, warps; /* k 16-byte pieces for each lane of so many warps a row; 0: plain loops */
} way;

static way way_of(ll_dtype t, int64_t n)
{
    int64_t pieces = is_wide(t, n) ? n / (16 / (int64_t)ll_dtype_bytes(t)) : 0;
    if (pieces == 0 || pieces > 32 * WARPS * 4) return way{0, 1};
    int k = (int)ll_ceil_div(pieces, 32);
    if (k <= 7) return way{k == 6 ? 7 : k, 1};
    k = (int)ll_ceil_div(pieces, 32 * WARPS);
    return way{k == 3 ? 4 : k, WARPS};
}

template <int K, int W> struct pieces {
    enum { k = K, warps = W };
};

/* f(pieces<k, warps>{}). */
template <class F> static ll_err with_pieces(way w, F f)
{
    if (w.warps == WARPS) {
        if (w.k == 1) return f(pieces<1, WARPS>{});
        return w.k == 2 ? f(pieces<2, WARPS>{}) : f(pieces<4, WARPS>{});
    }
    switch (w.k) {
    case 1: return f(pieces<1, 1>{});
    case 2: return f(pieces<2, 1>{});
    case 3: return f(pieces<3, 1>{});
    case 4: return f(pieces<4, 1>{});
    case 5: return f(pieces<5, 1>{});
    default: return f(pieces<7, 1>{});
    }
}

static ll_err run_forward(const ll_kcall *c, norming a)
{
    a.eps = ((const ll_norm_attr *)c->attr)->eps;
    way w = way_of(a.dtype, a.n);
    if (w.k == 0) return ll_norm_plain(c, &a);
    if (a.rows == 0) return LL_OK;
    return with_wide(a.dtype, [&](auto z) -> ll_err {
        return with_pieces(w, [&](auto p) -> ll_err {
            return launch(c, norm_rows<decltype(z), p.k, p.warps>,
                          p.warps == 1 ? ll_ceil_div(a.rows, 4) : a.rows,
                          p.warps == 1 ? 128 : 32 * WARPS, a);
        });
    });
}

/* ---- the ops ---- */

/* Of gradients that have sums of columns. PLAIN: operands of one without a residual. */
template <int PLAIN> static size_t back_scratch(const ll_kcall *c)
{
    norming a = norm_of(c, 1, true);
    return ll_norm_back_scratch(c, &a, c->n_out > 3 ? 3 : 2, c->n_in > PLAIN);
}

typedef norming N;
typedef const void *N::*operand;
typedef void *N::*result;
typedef struct op { /* what its operands and results are */
    operand in[6];
    result out[4];
} op;
static constexpr op layernorm = {{&N::x, &N::gain, &N::bias}, {&N::y, &N::mean_out, &N::rstd_out}};
static constexpr op add_layernorm = {{&N::x, &N::plus, &N::gain, &N::bias, &N::before},
                                     {&N::sum, &N::y, &N::mean_out, &N::rstd_out}};
static constexpr op rmsnorm = {{&N::x, &N::gain}, {&N::y, &N::rstd_out}};
static constexpr op add_rmsnorm = {{&N::x, &N::plus, &N::gain}, {&N::sum, &N::y, &N::rstd_out}};
static constexpr op layernorm_back = {{&N::dy, &N::x, &N::gain, &N::mean, &N::rstd, &N::skip},
                                      {&N::dx, &N::dgain, &N::dbias, &N::dsum}}; /* dx alone, too */
static constexpr op layernorm_dw = {{&N::dy, &N::x, &N::mean, &N::rstd}, {&N::dgain, &N::dbias}};
static constexpr op rmsnorm_back = {{&N::dy, &N::x, &N::gain, &N::rstd, &N::skip},
                                    {&N::dx, &N::dgain}}; /* dx alone, too */
static constexpr op rmsnorm_dw = {{&N::dy, &N::x, &N::rstd}, {&N::dgain}};

template <const op &OP, bool CENTRE> static ll_err run(const ll_kcall *c)
{
    bool back = OP.in[0] == &N::dy;
    norming a = norm_of(c, back, CENTRE);
    for (int k = 0; k < c->n_in; k++) a.*OP.in[k] = c->in[k].data;
    for (int k = 0; k < c->n_out; k++) a.*OP.out[k] = c->out[k].data;
    return back ? ll_norm_back(c, &a) : run_forward(c, a);
}

/* By rows in registers (of gradients: in shared memory, by TMA), or by plain loops. */
static bool rows_fit(const ll_kcall *c)
{
    return way_of(c->in[0].dtype, ll_cols(&c->in[0])).k > 0;
}

static bool back_fits(const ll_kcall *c)
{
    norming a = norm_of(c, 1, true);
    return ll_norm_back_fits(c, &a);
}

#define WAYS(quick, fit, room, f)                                                                  \
    {                                                                                              \
        {quick, fit, room, f}, {"plain", NULL, room, f},                                           \
        {                                                                                          \
        }                                                                                          \
    }
#define FORWARD(op, centre) WAYS("registers", rows_fit, NULL, (run<op, centre>))
#define BACK(op, room, centre) WAYS("TMA", back_fits, room, (run<op, centre>))
extern "C" const ll_solver layernorm_cuda[] = FORWARD(layernorm, true),
                           add_layernorm_cuda[] = FORWARD(add_layernorm, true),
                           rmsnorm_cuda[] = FORWARD(rmsnorm, false),
                           add_rmsnorm_cuda[] = FORWARD(add_rmsnorm, false),
                           layernorm_dx_cuda[] = BACK(layernorm_back, NULL, true),
                           layernorm_dw_cuda[] = BACK(layernorm_dw, back_scratch<5>, true),
                           layernorm_back_cuda[] = BACK(layernorm_back, back_scratch<5>, true),
                           rmsnorm_dx_cuda[] = BACK(rmsnorm_back, NULL, false),
                           rmsnorm_back_cuda[] = BACK(rmsnorm_back, back_scratch<4>, false),
                           rmsnorm_dw_cuda[] = BACK(rmsnorm_dw, back_scratch<5>, false);
