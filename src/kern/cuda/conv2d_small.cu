/* conv2d_small.cu: see conv2d_small.cuh.
 *
 * Outputs and images' gradients are gathered: a thread makes C channels of a pixel, from the pixels
 * that its taps reach; filters lie beside the image, [tap, channel summed over, channel made].
 * Filters' gradients: a thread makes C filters of one tap and channel over rows of outputs; what
 * blocks have made is summed by a second kernel, always in the same order. */
#include "kern/cuda/conv2d_small.cuh"

#include <utility>

enum { MOST_SHARED = 48 << 10, MOST_THREADS = 1024, SUM_WIDE = 32, SUM_TALL = 8 };
static const double MOST_FLOPS = 3e8; /* above, what a launch costs is not what counts */

/* Channels are made in groups, by a thread each: of 8, 6, 4 or 2 where a thread has one tap, of 4
 * or 2 where it has them all. */
static __host__ __device__ __forceinline__ int each_of(int channels, bool all)
{
    if (all) return channels % 4 ? 2 : 4;
    int groups = (channels + 7) / 8, each = (channels + groups - 1) / groups;
    return (each + 1) / 2 * 2;
}
static __host__ __device__ __forceinline__ int groups_of(int channels, int each)
{
    return (channels + each - 1) / each;
}

template <int C> struct many { /* C numbers that lie side by side, loaded two or four at a time */
    float v[C];
    __device__ __forceinline__ void load(const float *from)
    {
#pragma unroll
        for (int i = 0; i < C; i += C % 4 ? 2 : 4)
            if (C % 4) {
                float2 p = *(const float2 *)(from + i);
                v[i] = p.x, v[i + 1] = p.y;
            } else {
                float4 p = *(const float4 *)(from + i);
                v[i] = p.x, v[i + 1] = p.y, v[i + 2] = p.z, v[i + 3] = p.w;
            }
    }
    __device__ __forceinline__ void add(float a, const many<C> &b)
    {
#pragma unroll
        for (int i = 0; i < C; i++) v[i] = fmaf(a, b.v[i], v[i]);
    }
};

/* ---- outputs, and images' gradients ---- */

/* Forward and back alike: what is read lies in shared memory with zeros around it and, back,
 * between its pixels, so that a result's window is all there, and filters as they are summed. */
typedef struct sizes {
    int in[2], out[2], k, made; /* k: channels summed over, made: those that are made */
    int all[2], first[2];       /* of the image with zeros: extents, where the first pixel is */
    int apart[2], stride[2];    /* from one pixel to the next, from one window to the next */
    int step;                   /* from one pixel to the next in shared memory */
    int each, groups, row;      /* of filters there: from one summed channel to the next */
} sizes;

static __host__ __device__ __forceinline__ sizes sizes_of(const small_conv &v, bool back)
{
    sizes z;
    for (int i = 0; i < 2; i++) {
        int reach = (v.window[i] - 1) * v.dilation[i];
        z.in[i] = back ? v.y[i] : v.x[i], z.out[i] = back ? v.x[i] : v.y[i];
        z.stride[i] = back ? 1 : v.stride[i], z.apart[i] = back ? v.stride[i] : 1;
        z.first[i] = back ? reach - v.pad[i] : v.pad[i];
        z.all[i] = (z.out[i] - 1) * z.stride[i] + reach + 1;
    }
    z.k = back ? v.filters : v.channels;
    z.made = back ? v.channels : v.filters;
    z.step = z.k | 1; /* neighbours in banks of their own */
    z.each = each_of(z.made, true);
    z.groups = groups_of(z.made, z.each);
    z.row = (z.groups + 1) * z.each;
    return z;
}

template <bool BACK>
static __device__ __forceinline__ void stage(const small_conv &v, const sizes &z, const float *in,
                                             const float *w, float *filter, float *image)
{
    int taps = v.window[0] * v.window[1];
    for (int e = threadIdx.x; e < z.all[0] * z.all[1] * z.step; e += blockDim.x) image[e] = 0;
#pragma unroll 4
    for (int e = threadIdx.x; e < v.filters * taps * v.channels; e += blockDim.x) {
        int c = e % v.channels, t = e / v.channels % taps, f = e / v.channels / taps;
        int at = BACK ? taps - 1 - t : t;
        filter[(at * z.k + (BACK ? f : c)) * z.row + (BACK ? c : f)] = w[e];
    }
    __syncthreads();
#pragma unroll 4
    for (int e = threadIdx.x; e < z.in[0] * z.in[1] * z.k; e += blockDim.x) {
        int k = e % z.k, j = e / z.k % z.in[1], i = e / z.k / z.in[1];
        int a = z.first[0] + i * z.apart[0], b = z.first[1] + j * z.apart[1];
        bool is = a >= 0 && a < z.all[0] && b >= 0 && b < z.all[1];
        if (is) image[(a * z.all[1] + b) * z.step + k] = in[e];
    }
    __syncthreads();
}

/* C channels of a pixel. W: the window's width; 0: any. */
template <int C, int W>
static __device__ __forceinline__ many<C> window_of(const small_conv &v, const sizes &z,
                                                    const float *x, const float *f)
{
    many<C> sum = {}, u;
    int wide = W ? W : v.window[1], down = v.dilation[0] * z.all[1] * z.step;
    int right = v.dilation[1] * z.step;
    for (int r = 0; r < v.window[0]; r++, x += down) {
#pragma unroll
        for (int s = 0; s < wide; s++) {
            const float *at = x + s * right;
#pragma unroll 2
            for (int k = 0; k < z.k; k++, f += z.row) {
                u.load(f);
                sum.add(at[k], u);
            }
        }
    }
    return sum;
}

/* Forward, or (BACK) the images' gradient: a thread makes C channels of a pixel. */
template <int C, int W, bool BACK>
static __global__ void gather(const small_conv v, int parts, const float *in, const float *w,
                              float *out)
{
    extern __shared__ float4 room[];
    sizes z = sizes_of(v, BACK);
    int pixels = z.out[0] * z.out[1], part = blockIdx.x % parts;
    int64_t number = blockIdx.x / parts;
    float *filter = (float *)room, *image = filter + v.window[0] * v.window[1] * z.k * z.row;
    stage<BACK>(v, z, in + number * z.in[0] * z.in[1] * z.k, w, filter, image);
    int from = pixels * part / parts, some = pixels * (part + 1) / parts - from;
    for (int e = threadIdx.x; e < some * z.groups; e += blockDim.x) {
        int g = e / some, p = from + e % some, i = p / z.out[1], j = p % z.out[1];
        const float *x = image + (i * z.stride[0] * z.all[1] + j * z.stride[1]) * z.step;
        many<C> sum = window_of<C, W>(v, z, x, filter + g * C);
        float *to = out + (number * pixels + p) * z.made + g * C;
        for (int c = 0; c < C; c++)
            if (g * C + c < z.made) to[c] = sum.v[c];
    }
}

static size_t gather_bytes(const small_conv *v, bool back)
{
    sizes z = sizes_of(*v, back);
    int64_t filter = (int64_t)v->window[0] * v->window[1] * z.k * z.row;
    return (size_t)(filter + (int64_t)z.all[0] * z.all[1] * z.step) * sizeof(float);
}

/* Into how many parts an image is cut so that every processor has one. */
static int parts_of(const ll_kcall *c, const small_conv *v, int most)
{
    return (int)ll_max64(1, ll_min64(most, processors_of(c) / v->n));
}

template <int C, int W>
static ll_err gather_wide(const ll_kcall *c, const small_conv *v, bool back, const void *in,
                          const void *w, void *out)
{
    int parts = parts_of(c, v, sizes_of(*v, back).out[0]);
    return launch_shared(c, back ? gather<C, W, true> : gather<C, W, false>, v->n * parts, 512,
                         gather_bytes(v, back), *v, parts, in, w, out);
}

template <int C>
static ll_err gather_each(const ll_kcall *c, const small_conv *v, bool back, const void *in,
                          const void *w, void *out)
{
    if (v->window[1] == 5) return gather_wide<C, 5>(c, v, back, in, w, out);
    if (v->window[1] == 3) return gather_wide<C, 3>(c, v, back, in, w, out);
    return gather_wide<C, 0>(c, v, back, in, w, out);
}

/* ---- filters' gradients ---- */

typedef struct shares { /* how a block's threads divide the work */
    int parts, blocks;  /* of an image, by rows of outputs; of the grid */
    int items, slices;  /* taps times channels times groups of filters; rows that go side by side */
} shares;

static int items_of(const small_conv *v)
{
    int groups = groups_of(v->filters, each_of(v->filters, false));
    return v->window[0] * v->window[1] * v->channels * groups;
}

static shares shares_of(const ll_kcall *c, const small_conv *v)
{
    shares s;
    s.parts = parts_of(c, v, v->y[0]);
    s.blocks = (int)ll_min64((int64_t)v->n * s.parts, processors_of(c));
    s.items = items_of(v);
    int64_t rows = ll_ceil_div(v->y[0], s.parts);
    s.slices = (int)ll_max64(1, ll_min64(rows, MOST_THREADS / s.items));
    return s;
}

/* Outputs that tap t reads an image's pixel for, along one axis: from..to - 1. */
static __device__ __forceinline__ void range(const small_conv &v, int axis, int t, int *from,
                                             int *to)
{
    int off = v.pad[axis] - t * v.dilation[axis], s = v.stride[axis];
    *from = off > 0 ? (off + s - 1) / s : 0;
    int last = v.x[axis] - 1 + off; /* may be below 0: none */
    *to = last < 0 ? 0 : min(v.y[axis], last / s + 1);
}

template <int C>
static __global__ void filters(const small_conv v, const shares s, const float *x, const float *y,
                               float *partial)
{
    extern __shared__ float4 room[];
    int row = groups_of(v.filters, C) * C, taps = v.window[0] * v.window[1];
    float *dy = (float *)room, *image = dy + v.y[0] * v.y[1] * row;
    int item = threadIdx.x % s.items, slice = threadIdx.x / s.items;
    int ch = item % v.channels, tap = item / v.channels % taps, g = item / v.channels / taps;
    int r = tap / v.window[1], t = tap % v.window[1], top, bottom, left, right;
    range(v, 0, r, &top, &bottom);
    range(v, 1, t, &left, &right);
    many<C> sum = {}, u;
    for (int64_t unit = blockIdx.x; unit < (int64_t)v.n * s.parts; unit += gridDim.x) {
        int64_t number = unit / s.parts;
        int part = unit % s.parts;
        const float *from_x = x + number * v.x[0] * v.x[1] * v.channels;
        const float *from_y = y + number * v.y[0] * v.y[1] * v.filters;
        int first = v.y[0] * part / s.parts, last = v.y[0] * (part + 1) / s.parts;
        __syncthreads();
#pragma unroll 4
        for (int e = threadIdx.x; e < v.x[0] * v.x[1] * v.channels; e += blockDim.x)
            image[e] = from_x[e];
#pragma unroll 4
        for (int e = first * v.y[1] * v.filters + threadIdx.x; e < last * v.y[1] * v.filters;
             e += blockDim.x)
            dy[e / v.filters * row + e % v.filters] = from_y[e];
        __syncthreads();
        if (slice >= s.slices) continue;
        for (int i = first + slice; i < last; i += s.slices) {
            if (i < top || i >= bottom) continue;
            int a = i * v.stride[0] - v.pad[0] + r * v.dilation[0];
            int b = left * v.stride[1] - v.pad[1] + t * v.dilation[1];
            const float *px = image + (a * v.x[1] + b) * v.channels + ch;
            const float *py = dy + (i * v.y[1] + left) * row + g * C;
#pragma unroll 4
            for (int j = left; j < right; j++, py += row, px += v.stride[1] * v.channels) {
                u.load(py);
                sum.add(*px, u);
            }
        }
    }
    __syncthreads();
    float *all = (float *)room; /* [slice, item, C] */
    if (slice < s.slices)
        for (int c = 0; c < C; c++) all[(slice * s.items + item) * C + c] = sum.v[c];
    __syncthreads();
    partial += (int64_t)blockIdx.x * v.filters * taps * v.channels;
    for (int e = threadIdx.x; e < s.items * C; e += blockDim.x) {
        float total = 0;
        for (int k = 0; k < s.slices; k++) total += all[k * s.items * C + e];
        int of = e / C, f = of / v.channels / taps * C + e % C;
        if (f < v.filters)
            partial[(f * taps + of / v.channels % taps) * v.channels + of % v.channels] = total;
    }
}

static size_t filters_bytes(const small_conv *v, const shares *s)
{
    int each = each_of(v->filters, false);
    int64_t tensors = (int64_t)v->y[0] * v->y[1] * groups_of(v->filters, each) * each +
                      (int64_t)v->x[0] * v->x[1] * v->channels;
    int64_t sums = (int64_t)s->slices * s->items * each;
    return (size_t)ll_max64(tensors, sums) * sizeof(float);
}

static __global__ void sum_partial(const float *partial, float *w, int n, int blocks)
{
    __shared__ float all[SUM_TALL][SUM_WIDE];
    await_kernel();
    int e = blockIdx.x * SUM_WIDE + threadIdx.x;
    float sum = 0;
    for (int b = threadIdx.y; e < n && b < blocks; b += SUM_TALL)
        sum += partial[(int64_t)b * n + e];
    all[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || e >= n) return;
    for (int k = 1; k < SUM_TALL; k++) sum += all[k][threadIdx.x];
    w[e] = sum;
}

template <int C>
static ll_err filters_each(const ll_kcall *c, const small_conv *v, const void *x, void *w,
                           const void *y)
{
    shares s = shares_of(c, v);
    void *partial = workspace_of(c);
    int n = v->filters * v->window[0] * v->window[1] * v->channels;
    int threads = (int)ll_max64(128, ll_round_up((int64_t)s.items * s.slices, 32));
    TRY(launch_shared(c, filters<C>, s.blocks, threads, filters_bytes(v, &s), *v, s, x, y,
                      partial));
    return launch_early(c, sum_partial, (unsigned)ll_ceil_div(n, SUM_WIDE),
                        dim3(SUM_WIDE, SUM_TALL), partial, w, n, s.blocks);
}

/* ---- all three ---- */

extern "C" bool ll_conv_small_fits(const small_conv *v)
{
    double taps = (double)v->window[0] * v->window[1], pixels = (double)v->y[0] * v->y[1];
    if (v->channels > 32 || v->filters > 32 || taps > 49) return false;
    if (2.0 * v->n * pixels * taps * v->channels * v->filters > MOST_FLOPS) return false;
    if (items_of(v) > MOST_THREADS) return false;
    const shares none = {};
    return ll_max64(
               (int64_t)ll_max64((int64_t)gather_bytes(v, false), (int64_t)gather_bytes(v, true)),
               (int64_t)filters_bytes(v, &none)) <= MOST_SHARED;
}

extern "C" size_t ll_conv_small_scratch(const ll_kcall *c, enum which which, const small_conv *v)
{
    size_t n = (size_t)v->filters * v->window[0] * v->window[1] * v->channels * sizeof(float);
    return which == FILTER ? (size_t)shares_of(c, v).blocks * n + LL_WORKSPACE_SLACK : 0;
}

extern "C" ll_err ll_conv_small(const ll_kcall *c, enum which which, const small_conv *v, void *x,
                                void *w, void *y)
{
    bool back = which == IMAGE;
    if (which == FILTER) {
        switch (each_of(v->filters, false)) {
        case 2: return filters_each<2>(c, v, x, w, y);
        case 4: return filters_each<4>(c, v, x, w, y);
        case 6: return filters_each<6>(c, v, x, w, y);
        default: return filters_each<8>(c, v, x, w, y);
        }
    }
    if (back) std::swap(x, y);
    return each_of(back ? v->channels : v->filters, true) == 2
               ? gather_each<2>(c, v, back, x, w, y)
               : gather_each<4>(c, v, back, x, w, y);
}
