/* batchnorm_pool.cu: the max pool behind a batch norm and its relu, from the norm's operand. A norm
 * rises or falls with it, by the sign of its scale, so the place is that of the largest x (or the
 * least), and only what a window gives is normalised. Gradients of gain and bias are sums over what
 * was picked; dx gathers: a pixel asks the two by two windows that may cover it. Tensors are so
 * small that 32 bits count their elements. */
#include "kern/cuda/batchnorm.cuh"

enum { NOWHERE = 255 };

struct window {
    int size[2], stride[2], pad[2];
    int h, w, oh, ow; /* image and output */
    int tiles[2];     /* parts of the image that windows begin in, or end behind */
};

/* A row of a tensor as a pixel, and how far it goes on at a time: without division. */
struct pixel {
    int n, i, j;
};
static __device__ __forceinline__ pixel pixel_of(int row, int h, int w)
{
    unsigned r = (unsigned)row, line = r / (unsigned)w;
    return pixel{(int)(line / (unsigned)h), (int)(line % (unsigned)h), (int)(r % (unsigned)w)};
}
static __device__ __forceinline__ void advance(pixel &p, const pixel &by, int h, int w)
{
    p.j += by.j, p.i += by.i, p.n += by.n;
    if (p.j >= w) p.j -= w, p.i++;
    if (p.i >= h) p.i -= h, p.n++;
}

/* The largest of what a window has in each of a thread's channels, by a norm's sign, the first
 * where they are equal, and where in the window it is. */
template <class T, class S, int V> struct largest {
    S scale[V];
    pack<T, V> best;
    int where[V];
    __device__ __forceinline__ explicit largest(const S (&by)[V])
    {
        for (int v = 0; v < V; v++) scale[v] = by[v];
    }
    __device__ __forceinline__ void clear(void)
    {
#pragma unroll
        for (int v = 0; v < V; v++) where[v] = -1;
    }
    __device__ __forceinline__ void take(int at, const pack<T, V> &from)
    {
#pragma unroll
        for (int v = 0; v < V; v++) {
            S d = (S)to_float(from.v[v]) - (S)to_float(best.v[v]);
            bool more = where[v] < 0 || (scale[v] < 0 ? d < 0 : d > 0);
            if (more) best.v[v] = from.v[v], where[v] = at;
        }
    }
    __device__ __forceinline__ T value(int v) const
    {
        return best.v[v];
    }
    __device__ __forceinline__ int place(int v) const
    {
        return where[v];
    }
};

/* The same of bf16, two at a time: signs are flipped where the norm falls. */
template <int V> struct largest<bf16, float, V> {
    enum { N = (V + 1) / 2 };
    uint32_t turn[N], best[N], where[N], none;
    __device__ __forceinline__ explicit largest(const float (&by)[V])
    {
        for (int i = 0; i < N; i++)
            turn[i] = (by[2 * i] < 0 ? 0x8000u : 0) |
                      (2 * i + 1 < V && by[(2 * i + 1) % V] < 0 ? 0x80000000u : 0);
    }
    __device__ __forceinline__ void clear(void) { none = ~0u; }
    __device__ __forceinline__ void take(int at, const pack<bf16, V> &from)
    {
        const uint32_t both = (uint32_t)at << 16 | (uint32_t)at;
#pragma unroll
        for (int i = 0; i < N; i++) {
            __nv_bfloat162 two, old;
            uint32_t x = 0;
            memcpy(&x, from.v + 2 * i, V > 1 ? 4 : 2);
            x ^= turn[i];
            memcpy(&two, &x, 4);
            memcpy(&old, &best[i], 4);
            uint32_t more = __hgt2_mask(two, old) | none;
            best[i] = (x & more) | (best[i] & ~more);
            where[i] = (both & more) | (where[i] & ~more);
        }
        none = 0;
    }
    __device__ __forceinline__ bf16 value(int v) const
    {
        const uint16_t x = (uint16_t)((best[v / 2] ^ turn[v / 2]) >> v % 2 * 16);
        return __ushort_as_bfloat16(x);
    }
    __device__ __forceinline__ int place(int v) const
    {
        return (int)(where[v / 2] >> v % 2 * 16 & 0xffff);
    }
};

/* SIZE: of windows; 0: as o says. */
template <class T, class S, int V, int B, int SIZE>
static __global__ void __launch_bounds__(THREADS, B)
    pool_x(walk w, window o, scaling k, const T *x, T *y, T *pick, uint8_t *place)
{
    constexpr int KNOWN = SIZE * SIZE, BY = SIZE ? SIZE : 1;
    const int n = (int)w.n, j = (int)my_channel<V>(w), step = (int)gridDim.y * w.ty;
    int r = (int)blockIdx.y * w.ty + (int)threadIdx.x / w.tx;
    if (j >= n || r >= w.rows) return;
    S scale[V], shift[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        scale[v] = scale_of<S>(k, j + v);
        shift[v] = at<S>(k.bias, j + v) - at<S>(k.mean, j + v) * scale[v];
    }
    largest<T, S, V> most(scale);
    const pixel by = pixel_of(step, o.oh, o.ow);
    pixel p = pixel_of(r, o.oh, o.ow);
    for (; r < (int)w.rows; r += step, advance(p, by, o.oh, o.ow)) {
        const int top = p.i * o.stride[0] - o.pad[0], left = p.j * o.stride[1] - o.pad[1];
        const T *image = x + p.n * o.h * o.w * n + j;
        pack<T, V> in[SIZE ? KNOWN : 1];
        auto inside = [&](int a, int b) {
            return (unsigned)(top + a) < (unsigned)o.h && (unsigned)(left + b) < (unsigned)o.w;
        };
        auto load = [&](int a, int b) {
            return *(const pack<T, V> *)(image + ((top + a) * o.w + left + b) * n);
        };
        most.clear();
        /* all loads are under way before the first is looked at */
#pragma unroll
        for (int i = 0; i < KNOWN; i++)
            if (inside(i / BY, i % BY)) in[i] = load(i / BY, i % BY);
#pragma unroll
        for (int i = 0; i < KNOWN; i++)
            if (inside(i / BY, i % BY)) most.take(i, in[i]);
        for (int i = KNOWN; i < (SIZE ? 0 : o.size[0] * o.size[1]); i++)
            if (inside(i / o.size[1], i % o.size[1]))
                most.take(i, load(i / o.size[1], i % o.size[1]));
        pack<T, V> out, best;
        pack<uint8_t, V> places;
#pragma unroll
        for (int v = 0; v < V; v++) {
            best.v[v] = most.value(v);
            S s = (S)to_float(best.v[v]) * scale[v] + shift[v];
            out.v[v] = from_float<T>::of(s <= 0 ? (S)0 : s);
            places.v[v] = (uint8_t)(s > 0 ? most.place(v) : NOWHERE);
        }
        const int to = r * n + j;
        *(pack<T, V> *)(y + to) = out;
        *(pack<T, V> *)(pick + to) = best;
        *(pack<uint8_t, V> *)(place + to) = places;
    }
}

/* dx = gain rstd (g - dbias/rows - xhat dgain/rows), g: what the pool sends back to a pixel. A
 * thread has the pixels from where window (i,j) begins to where the next ones do: they are in that
 * one, and in those before it by one row, one column or both. SIZE, STRIDE: 0: as o says. */
template <class T, class S, int V, int B, int SIZE, int STRIDE>
static __global__ void __launch_bounds__(THREADS, B)
    make_dx(walk w, window o, backward b, const uint8_t *place, int64_t pixels)
{
    constexpr int KNOWN = STRIDE * STRIDE, BY = STRIDE ? STRIDE : 1;
    const int tall = STRIDE ? STRIDE : o.stride[0], wide = STRIDE ? STRIDE : o.stride[1];
    const int rows = SIZE ? SIZE : o.size[0], columns = SIZE ? SIZE : o.size[1];
    const int n = (int)w.n, j = (int)my_channel<V>(w), step = (int)gridDim.y * w.ty;
    int r = (int)blockIdx.y * w.ty + (int)threadIdx.x / w.tx;
    if (j >= n || r >= w.rows) return;
    pack<uint8_t, V> nowhere;
    S scale[V], p[V], q[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        S rstd = rstd_of<S>(b.k, j + v);
        scale[v] = at<S>(b.k.gain, j + v) * rstd;
        q[v] = scale[v] * rstd * at<S>(b.dgain, j + v) / (S)pixels;
        p[v] = scale[v] * at<S>(b.dbias, j + v) / (S)pixels - at<S>(b.k.mean, j + v) * q[v];
        nowhere.v[v] = NOWHERE;
    }
    const pixel by = pixel_of(step, o.tiles[0], o.tiles[1]);
    pixel t = pixel_of(r, o.tiles[0], o.tiles[1]);
    for (; r < (int)w.rows; r += step, advance(t, by, o.tiles[0], o.tiles[1])) {
        const int top = t.i * tall - o.pad[0], left = t.j * wide - o.pad[1];
        const int image = t.n * o.h * o.w * n + j;
        pack<T, V> dy[4], in[STRIDE ? KNOWN : 1];
        pack<uint8_t, V> from[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int row = t.i - c / 2, column = t.j - c % 2;
            const int at = ((t.n * o.oh + row) * o.ow + column) * n + j;
            const bool is = (unsigned)row < (unsigned)o.oh && (unsigned)column < (unsigned)o.ow;
            if (is) dy[c] = *(const pack<T, V> *)((const T *)b.dy + at);
            from[c] = is ? *(const pack<uint8_t, V> *)(place + at) : nowhere;
        }
        auto inside = [&](int a, int e) {
            return (unsigned)(top + a) < (unsigned)o.h && (unsigned)(left + e) < (unsigned)o.w;
        };
        auto at = [&](int a, int e) { return image + ((top + a) * o.w + left + e) * n; };
        auto make = [&](int a, int e, pack<T, V> x) {
            S g[V] = {};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int row = a + c / 2 * tall, column = e + c % 2 * wide; /* in that window */
                if (row >= rows || column >= columns) continue;
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (from[c].v[v] == row * columns + column) g[v] += (S)to_float(dy[c].v[v]);
            }
#pragma unroll
            for (int v = 0; v < V; v++)
                x.v[v] = from_float<T>::of(scale[v] * g[v] - p[v] - (S)to_float(x.v[v]) * q[v]);
            *(pack<T, V> *)((T *)b.dx + at(a, e)) = x;
        };
        auto load = [&](int a, int e) { return *(const pack<T, V> *)((const T *)b.x + at(a, e)); };
#pragma unroll
        for (int i = 0; i < KNOWN; i++)
            if (inside(i / BY, i % BY)) in[i] = load(i / BY, i % BY);
#pragma unroll
        for (int i = 0; i < KNOWN; i++)
            if (inside(i / BY, i % BY)) make(i / BY, i % BY, in[i]);
        for (int i = KNOWN; i < (STRIDE ? 0 : tall * wide); i++)
            if (inside(i / wide, i % wide)) make(i / wide, i % wide, load(i / wide, i % wide));
    }
}

/* ---- calls ---- */

static window window_of(const ll_kcall *c, const ll_tensor *x, const ll_tensor *y)
{
    const ll_norm_pool_attr *a = (const ll_norm_pool_attr *)c->attr;
    window o;
    for (int k = 0; k < 2; k++)
        o.size[k] = (int)a->size[k], o.stride[k] = (int)a->stride[k], o.pad[k] = (int)a->pad[2 * k];
    o.h = (int)x->shape.d[1], o.w = (int)x->shape.d[2];
    o.tiles[0] = (o.h - 1 + o.pad[0]) / o.stride[0] + 1;
    o.tiles[1] = (o.w - 1 + o.pad[1]) / o.stride[1] + 1;
    o.oh = (int)y->shape.d[1], o.ow = (int)y->shape.d[2];
    return o;
}

static scaling scaling_of(const ll_kcall *c, const ll_tensor *gain)
{
    return scaling{per_channel(gain), per_channel(gain + 1), per_channel(gain + 2),
                   per_channel(gain + 3), ((const ll_norm_pool_attr *)c->attr)->eps};
}

static ll_err forward(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    window o = window_of(c, x, y);
    scaling k = scaling_of(c, x + 1);
    if (ll_numel(&y->shape) == 0) return LL_OK;
    return with_packs<16>(c, y, [&](auto z, auto pack_size) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        constexpr int V = decltype(pack_size)::value, B = 2;
        walk w = walk_of(c, y, V, 1, B);
        auto run = [&](auto kernel) {
            return launch(c, kernel, dim3(w.gx, w.gy), THREADS, w, o, k, x->data, y->data,
                          c->out[1].data, c->out[2].data);
        };
        bool usual = o.size[0] == 3 && o.size[1] == 3;
        return usual ? run(pool_x<T, S, V, B, 3>) : run(pool_x<T, S, V, B, 0>);
    });
}

/* in: dy, pick, place, x, gain, bias, mean, var */
static ll_err run_backward(const ll_kcall *c)
{
    const ll_tensor *dy = &c->in[0], *x = &c->in[3];
    window o = window_of(c, x, dy);
    backward b = {};
    b.dy = dy->data, b.x = c->in[1].data, b.k = scaling_of(c, x + 1);
    b.dx = c->out[0].data;
    b.dgain = per_channel(&c->out[1]), b.dbias = per_channel(&c->out[2]);
    if (ll_numel(&x->shape) == 0) return clear_two(&c->out[1], c);
    return with_packs<16>(c, x, [&](auto z, auto pack_size) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        constexpr int V = decltype(pack_size)::value, U = 4, B = 2;
        constexpr int V2 = V > 1 ? V / 2 : 1, B2 = 3; /* of 16 bytes, too much is kept */
        walk w = walk_of(c, dy, V, U, B);
        TRY(launch(c, sum_dy<T, S, V, U, B, BY_X, false>, dim3(w.gx, w.gy), THREADS, w, b,
                   c->scratch));
        TRY(launch(c, gather_dy<S>, ll_ceil_div(w.n, 32), dim3(32, FOLD), c->scratch, w.gy, w.n,
                   b));
        backward image = b;
        image.x = x->data;
        ll_tensor tiles = *x;
        tiles.shape.d[1] = o.tiles[0], tiles.shape.d[2] = o.tiles[1];
        walk w2 = walk_of(c, &tiles, V2, 1, B2);
        auto run = [&](auto kernel) {
            return launch(c, kernel, dim3(w2.gx, w2.gy), THREADS, w2, o, image, c->in[2].data,
                          ll_rows(x));
        };
        bool usual = o.size[0] == 3 && o.size[1] == 3 && o.stride[0] == 2 && o.stride[1] == 2;
        return usual ? run(make_dx<T, S, V2, B2, 3, 2>) : run(make_dx<T, S, V2, B2, 0, 0>);
    });
}

extern "C" const ll_solver batchnorm_relu_pool_cuda[] = {{.run = forward}, {}},
                           batchnorm_relu_pool_grad_cuda[] = {
                               {.scratch = sums_scratch<2>, .run = run_backward}, {}};
