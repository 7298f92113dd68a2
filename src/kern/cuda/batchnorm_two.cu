/* batchnorm_two.cu: relu(norm(x) + norm(x2)), the end of a block whose shortcut has a norm too, and
 * its gradients: all that is read is read once for both. The relu's mask is made again from x and
 * x2, which the gradients read anyway. Statistics are there by then (batchnorm_stats). */
#include "kern/cuda/batchnorm.cuh"

struct both {
    const void *dy, *other, *x[2]; /* other: the gradient's second part */
    scaling k[2];
    channels dgain[2], dbias[2];
    void *dx[2];
};

/* What a thread keeps of its channels: norm(x) + norm(x2) = sum of (x - m) scale, + shift. */
template <class S, int V> struct kept {
    S m[2][V], scale[2][V], shift[V];
};
template <class S, int V>
__device__ __forceinline__ void keep(const scaling (&k)[2], int64_t j, kept<S, V> &to)
{
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to.m[i][v] = at<S>(k[i].mean, j + v);
            to.scale[i][v] = scale_of<S>(k[i], j + v);
        }
        to.shift[v] = at<S>(k[0].bias, j + v) + at<S>(k[1].bias, j + v);
    }
}
template <class S, int V>
__device__ __forceinline__ S result(const kept<S, V> &of, int v, S u, S u2)
{
    return u * of.scale[0][v] + (u2 * of.scale[1][v] + of.shift[v]);
}

template <class T, class S, int V, int U, int B>
static __global__ void __launch_bounds__(THREADS, B) normalise(walk w, both o, T *y)
{
    int64_t j = my_channel<V>(w);
    kept<S, V> mine;
    if (j >= w.n) return;
    keep(o.k, j, mine);
    each_rows<U, false>(w, j, [&](auto count, int64_t at) {
        constexpr int K = decltype(count)::value;
        pack<T, V> xs[K], zs[K];
        load_rows<T, V, K>(w, o.x[0], at, xs);
        load_rows<T, V, K>(w, o.x[1], at, zs);
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                S s = result(mine, v, (S)to_float(xs[k].v[v]) - mine.m[0][v],
                             (S)to_float(zs[k].v[v]) - mine.m[1][v]);
                xs[k].v[v] = from_float<T>::of(s <= 0 ? (S)0 : s);
            }
        store_rows<T, V, K>(w, y, at, xs);
    });
}

/* f(k, v, g, u, u2) for a thread's rows: the masked gradient, and x and x2 less their means; then
 * done(count, at) for those that it has of them. */
template <class T, class S, int V, int U, bool SUM, bool DOWN, class F, class D>
__device__ __forceinline__ void each_gradient(const walk &w, const both &o, int64_t j,
                                              const kept<S, V> &mine, F f, D done)
{
    each_rows<U, DOWN>(w, j, [&](auto count, int64_t at) {
        constexpr int K = decltype(count)::value;
        pack<T, V> ds[K], es[K], xs[K], zs[K];
        load_rows<T, V, K>(w, o.dy, at, ds);
        if (SUM) load_rows<T, V, K>(w, o.other, at, es);
        load_rows<T, V, K>(w, o.x[0], at, xs);
        load_rows<T, V, K>(w, o.x[1], at, zs);
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                S g = (S)to_float(ds[k].v[v]), u = (S)to_float(xs[k].v[v]) - mine.m[0][v];
                S u2 = (S)to_float(zs[k].v[v]) - mine.m[1][v];
                if (SUM) g += (S)to_float(es[k].v[v]);
                if (!(result(mine, v, u, u2) > 0)) g = 0;
                f(v, g, u, u2, xs[k].v[v], zs[k].v[v]);
            }
        done(at, xs, zs);
    });
}

template <class T, class S, int V, int U, int B, bool SUM>
static __global__ void __launch_bounds__(THREADS, B) sum_both(walk w, both o, S *parts)
{
    int64_t j = my_channel<V>(w);
    S sums[3][V] = {};
    kept<S, V> mine;
    if (j < w.n) {
        keep(o.k, j, mine);
        each_gradient<T, S, V, U, SUM, true>(
            w, o, j, mine,
            [&](int v, S g, S u, S u2, T &, T &) {
                sums[0][v] += g;
                sums[1][v] += g * u;
                sums[2][v] += g * u2;
            },
            [](int64_t, auto &, auto &) {});
    }
    fold_block(w, sums, parts);
}

template <class S> static __global__ void gather_both(const S *parts, int n_part, int64_t n, both o)
{
    add_parts<3>(parts, n_part, n, [&](int64_t j, const double(&sums)[3]) {
        for (int i = 0; i < 2; i++) {
            put(o.dbias[i], j, sums[0]);
            put(o.dgain[i], j, sums[1 + i] * rstd_of<double>(o.k[i], j));
        }
    });
}

/* dx = gain rstd (g - dbias/rows - xhat dgain/rows), of both */
template <class T, class S, int V, int U, int B, bool SUM>
static __global__ void __launch_bounds__(THREADS, B) make_dx(walk w, both o)
{
    int64_t j = my_channel<V>(w);
    kept<S, V> mine;
    S p[2][V], q[2][V];
    if (j >= w.n) return;
    keep(o.k, j, mine);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int v = 0; v < V; v++) {
            S by = mine.scale[i][v] / (S)w.rows;
            p[i][v] = by * at<S>(o.dbias[i], j + v);
            q[i][v] = by * rstd_of<S>(o.k[i], j + v) * at<S>(o.dgain[i], j + v);
        }
    each_gradient<T, S, V, U, SUM, false>(
        w, o, j, mine,
        [&](int v, S g, S u, S u2, T &dx, T &dz) {
            dx = from_float<T>::of(mine.scale[0][v] * g - p[0][v] - u * q[0][v]);
            dz = from_float<T>::of(mine.scale[1][v] * g - p[1][v] - u2 * q[1][v]);
        },
        [&](int64_t at, auto &xs, auto &zs) {
            store_rows(w, o.dx[0], at, xs);
            store_rows(w, o.dx[1], at, zs);
        });
}

/* ---- calls ---- */

/* From gain on, twice: gain, bias, mean, var. */
static void read_norms(const ll_kcall *c, const ll_tensor *in, both *o)
{
    for (int i = 0; i < 2; i++, in += 4)
        o->k[i] = scaling{per_channel(in), per_channel(in + 1), per_channel(in + 2),
                          per_channel(in + 3), ((const ll_norm_attr *)c->attr)->eps};
}

/* in: x, x2, norms; out: y */
static ll_err forward(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    both o = {};
    o.x[0] = x->data, o.x[1] = c->in[1].data;
    read_norms(c, c->in + 2, &o);
    if (ll_numel(&x->shape) == 0) return LL_OK;
    return with_packs<16>(c, x, [&](auto z, auto pack_size) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        constexpr int V = decltype(pack_size)::value, U = 4, B = 2;
        walk w = walk_of(c, x, V, U, B);
        return launch(c, normalise<T, S, V, U, B>, dim3(w.gx, w.gy), THREADS, w, o, c->out[0].data);
    });
}

/* in: dy (SUM: its two parts), x, x2, norms; out: of each norm dx, dgain, dbias. Packs of 8 bytes:
 * what is kept of 16 does not leave registers for rows under way. */
template <bool SUM> static ll_err run_backward(const ll_kcall *c)
{
    const ll_tensor *x = &c->out[0], *in = c->in;
    both o = {};
    o.dy = (in++)->data;
    if (SUM) o.other = (in++)->data;
    for (int i = 0; i < 2; i++) {
        const ll_tensor *out = &c->out[3 * i];
        o.x[i] = (in++)->data;
        o.dx[i] = out[0].data, o.dgain[i] = per_channel(&out[1]), o.dbias[i] = per_channel(&out[2]);
    }
    read_norms(c, in, &o);
    if (ll_numel(&x->shape) == 0) {
        TRY(clear_two(&c->out[1], c));
        return clear_two(&c->out[4], c);
    }
    return with_packs<8>(c, x, [&](auto z, auto pack_size) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        constexpr int V = decltype(pack_size)::value, U = 4, B = 2;
        walk w = walk_of(c, x, V, U, B);
        TRY(launch(c, sum_both<T, S, V, U, B, SUM>, dim3(w.gx, w.gy), THREADS, w, o, c->scratch));
        TRY(launch(c, gather_both<S>, ll_ceil_div(w.n, 32), dim3(32, FOLD), c->scratch, w.gy, w.n,
                   o));
        return launch(c, make_dx<T, S, V, U, B, SUM>, dim3(w.gx, w.gy), THREADS, w, o);
    });
}

extern "C" const ll_solver batchnorm_two_relu_cuda[] = {{.run = forward}, {}},
                           batchnorm_two_relu_grad_cuda[] = {{.scratch = sums_scratch<3>,
                                                              .run = run_backward<false>},
                                                             {}},
                           batchnorm_two_sum_relu_grad_cuda[] = {
                               {.scratch = sums_scratch<3>, .run = run_backward<true>}, {}};
