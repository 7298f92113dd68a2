/* batchnorm.cu: batch normalisation, alone or with the residual and the relu that follow, and its
 * gradients (two norms at once: batchnorm_two.cu). Statistics are sums of x - x[0] and of its
 * square, so that a large mean does not eat the variance. */
#include "kern/cuda/batchnorm.cuh"

/* ---- forward ---- */

template <class T, class S, int V, int U, int B>
static __global__ void __launch_bounds__(THREADS, B) sum_x(walk w, const T *x, S *parts)
{
    int64_t j = my_channel<V>(w);
    S sums[2][V] = {}, first[V];
    if (j < w.n) {
        for (int v = 0; v < V; v++) first[v] = (S)to_float(x[j + v]);
        each_rows<U, true>(w, j, [&](auto count, int64_t at) {
            constexpr int K = decltype(count)::value;
            pack<T, V> xs[K];
            load_rows<T, V, K>(w, x, at, xs);
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    S d = (S)to_float(xs[k].v[v]) - first[v];
                    sums[0][v] += d;
                    sums[1][v] += d * d;
                }
        });
    }
    fold_block(w, sums, parts);
}

template <class T, class S>
static __global__ void statistics(const S *parts, int n_part, int64_t rows, int64_t n, const T *x,
                                  channels mean, channels var)
{
    add_parts<2>(parts, n_part, n, [&](int64_t j, const double(&sums)[2]) {
        double m = sums[0] / (double)rows, s = sums[1] / (double)rows - m * m;
        put(mean, j, (double)to_float(x[j]) + m);
        put(var, j, s > 0 ? s : s < 0 ? 0 : s); /* not a number stays so */
    });
}

/* y = norm(x) [+ r], of which what is below 0 becomes 0. BITS: where it does not, a bit each. DOWN:
 * from the last row on. */
template <class T, class S, int V, int U, int B, bool ADD, bool RELU, bool BITS, bool DOWN>
static __global__ void __launch_bounds__(THREADS, B)
    normalise(walk w, const T *x, const T *res, scaling o, T *y, uint8_t *bits)
{
    int64_t j = my_channel<V>(w);
    if (j >= w.n) return;
    S m[V], scale[V], shift[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        m[v] = at<S>(o.mean, j + v);
        scale[v] = scale_of<S>(o, j + v);
        shift[v] = at<S>(o.bias, j + v);
    }
    each_rows<U, DOWN>(w, j, [&](auto count, int64_t at) {
        constexpr int K = decltype(count)::value;
        pack<T, V> xs[K], rs[K];
        load_rows<T, V, K>(w, x, at, xs);
        if (ADD) load_rows<T, V, K>(w, res, at, rs);
#pragma unroll
        for (int k = 0; k < K; k++) {
            unsigned on = 0;
#pragma unroll
            for (int v = 0; v < V; v++) {
                S s = ((S)to_float(xs[k].v[v]) - m[v]) * scale[v] + shift[v];
                if (ADD) s += (S)to_float(rs[k].v[v]);
                xs[k].v[v] = from_float<T>::of(RELU && s <= 0 ? (S)0 : s);
                if (BITS && !(s <= 0)) on |= 1u << v;
            }
            if (BITS) bits[(at + k * w.ty * w.n) / 8] = (uint8_t)on;
        }
        store_rows<T, V, K>(w, y, at, xs);
    });
}

/* ---- backward ---- */

/* dx = gain rstd (g - dbias/rows - xhat dgain/rows) */
template <class T, class S, int V, int U, int B, bool MASKED>
static __global__ void __launch_bounds__(THREADS, B) make_dx(walk w, backward o)
{
    int64_t j = my_channel<V>(w);
    if (j >= w.n) return;
    S m[V], scale[V], shift[V], p[V], q[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        S rstd = rstd_of<S>(o.k, j + v);
        m[v] = at<S>(o.k.mean, j + v);
        scale[v] = at<S>(o.k.gain, j + v) * rstd;
        if (MASKED) shift[v] = at<S>(o.k.bias, j + v);
        p[v] = scale[v] * at<S>(o.dbias, j + v) / (S)w.rows;
        q[v] = scale[v] * rstd * at<S>(o.dgain, j + v) / (S)w.rows;
    }
    each_rows<U, false>(w, j, [&](auto count, int64_t at) {
        constexpr int K = decltype(count)::value;
        pack<T, V> ds[K], xs[K];
        load_rows<T, V, K>(w, o.dy, at, ds);
        load_rows<T, V, K>(w, o.x, at, xs);
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                S g = (S)to_float(ds[k].v[v]), u = (S)to_float(xs[k].v[v]) - m[v];
                if (MASKED && !(u * scale[v] + shift[v] > 0)) g = 0;
                ds[k].v[v] = from_float<T>::of(scale[v] * g - p[v] - u * q[v]);
            }
        store_rows<T, V, K>(w, o.dx, at, ds);
    });
}

/* ---- calls ---- */

/* f(T{}, pack size): packs of 8 channels where a byte has bits of so many, else of 16 bytes. */
template <bool BITS, class F> static ll_err in_width(const ll_kcall *c, const ll_tensor *x, F f)
{
    if constexpr (BITS) {
        bool fit = in_packs(8, ll_cols(x), c->in, c->n_in);
        CHECK(fit && in_packs(8, ll_cols(x), c->out, c->n_out), LL_E_GRAPH,
              "tensors are not at multiples of 16 bytes");
        return with_float(x->dtype,
                          [&](auto z) -> ll_err { return f(z, std::integral_constant<int, 8>{}); });
    } else {
        return with_packs<16>(c, x, f);
    }
}

template <class T, int V>
static ll_err make_statistics(const ll_kcall *c, const ll_tensor *x, const scaling &o)
{
    typedef typename sum_of<T>::type S;
    constexpr int U = fewer_rows<T, V>(4), B = MOST_B;
    walk w = walk_of(c, x, V, U, B);
    TRY(launch(c, sum_x<T, S, V, U, B>, dim3(w.gx, w.gy), THREADS, w, x->data, c->scratch));
    return launch(c, statistics<T, S>, ll_ceil_div(w.n, 32), dim3(32, FOLD), c->scratch, w.gy,
                  w.rows, w.n, x->data, o.mean, o.var);
}

static ll_err run_stats(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    scaling o = {};
    o.mean = per_channel(&c->out[0]), o.var = per_channel(&c->out[1]);
    if (ll_numel(&x->shape) == 0) return clear_two(&c->out[0], c);
    return with_packs<16>(c, x, [&](auto z, auto pack_size) -> ll_err {
        return make_statistics<decltype(z), decltype(pack_size)::value>(c, x, o);
    });
}

/* KNOWN: statistics are operands, behind gain and bias. x was just written then, its last rows
 * last. */
template <bool ADD, bool RELU, bool BITS, bool KNOWN> static ll_err forward(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *gain = &c->in[ADD ? 2 : 1];
    const ll_tensor *mean = KNOWN ? gain + 2 : &c->out[1];
    scaling o = {per_channel(gain), per_channel(gain + 1), per_channel(mean), per_channel(mean + 1),
                 ((const ll_norm_attr *)c->attr)->eps};
    if (ll_numel(&x->shape) == 0) return KNOWN ? LL_OK : clear_two(mean, c);
    return in_width<BITS>(c, x, [&](auto z, auto pack_size) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        constexpr int V = decltype(pack_size)::value, U = fewer_rows<T, V>(ADD ? 4 : 8), B = 2;
        walk w = walk_of(c, x, V, U, B);
        if (!KNOWN) TRY((make_statistics<T, V>(c, x, o)));
        return launch(c, normalise<T, S, V, U, B, ADD, RELU, BITS, KNOWN>, dim3(w.gx, w.gy),
                      THREADS, w, x->data, ADD ? c->in[1].data : NULL, o, c->out[0].data,
                      BITS ? c->out[c->n_out - 1].data : NULL);
    });
}

/* in: dy (SUM: its two parts), BY_BITS: bits, x, gain, BY_X: bias, mean, var. */
template <mask MASK, bool SUM> static ll_err run_backward(const ll_kcall *c)
{
    const ll_tensor *in = c->in, *x = &c->out[0];
    backward o = {};
    o.dy = (in++)->data;
    if (SUM) o.other = (in++)->data;
    if (MASK == BY_BITS) o.bits = (const uint8_t *)(in++)->data;
    o.x = (in++)->data;
    o.k.gain = per_channel(in++);
    if (MASK == BY_X) o.k.bias = per_channel(in++);
    o.k.mean = per_channel(in), o.k.var = per_channel(in + 1);
    o.k.eps = ((const ll_norm_attr *)c->attr)->eps;
    o.dx = c->out[0].data;
    o.dgain = per_channel(&c->out[1]), o.dbias = per_channel(&c->out[2]);
    o.g = c->n_out > 3 ? c->out[3].data : NULL;
    if (ll_numel(&x->shape) == 0) return clear_two(&c->out[1], c);
    return in_width<MASK == BY_BITS>(c, x, [&](auto z, auto pack_size) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        constexpr int V = decltype(pack_size)::value;
        constexpr int U1 = fewer_rows<T, V>(MASK == BY_BITS ? 2 : 4), B1 = MASK == BY_BITS ? 3 : 2;
        constexpr int U2 = fewer_rows<T, V>(4), B2 = 2;
        walk w = walk_of(c, x, V, U1, B1), w2 = walk_of(c, x, V, U2, B2);
        TRY(launch(c, sum_dy<T, S, V, U1, B1, MASK, SUM>, dim3(w.gx, w.gy), THREADS, w, o,
                   c->scratch));
        TRY(launch(c, gather_dy<S>, ll_ceil_div(w.n, 32), dim3(32, FOLD), c->scratch, w.gy, w.n,
                   o));
        backward second = o;
        if (MASK == BY_BITS) second.dy = o.g;
        return launch(c, make_dx<T, S, V, U2, B2, MASK == BY_X>, dim3(w2.gx, w2.gy), THREADS, w2,
                      second);
    });
}

#define WAY(f)                                                                                     \
    {                                                                                              \
        {.scratch = sums_scratch<2>, .run = f},                                                    \
        {                                                                                          \
        }                                                                                          \
    }
extern "C" const ll_solver
    batchnorm_cuda[] = WAY((forward<false, false, false, false>)),
    batchnorm_stats_cuda[] = WAY(run_stats),
    batchnorm_relu_cuda[] = WAY((forward<false, true, false, false>)),
    batchnorm_add_relu_cuda[] = WAY((forward<true, true, false, false>)),
    batchnorm_add_relu_bits_cuda[] = WAY((forward<true, true, true, false>)),
    batchnorm_known_relu_cuda[] = {{.run = forward<false, true, false, true>}, {}},
    batchnorm_known_add_relu_bits_cuda[] = {{.run = forward<true, true, true, true>}, {}},
    batchnorm_grad_cuda[] = WAY((run_backward<NONE, false>)),
    batchnorm_relu_grad_cuda[] = WAY((run_backward<BY_X, false>)),
    batchnorm_add_relu_grad_cuda[] = WAY((run_backward<BY_BITS, false>)),
    batchnorm_sum_relu_grad_cuda[] = WAY((run_backward<BY_BITS, true>));
