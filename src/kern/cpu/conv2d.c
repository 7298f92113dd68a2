/* conv2d.c: the convolution kernels of the CPU machine, which op/conv2d.c lists as solvers:
 *
 *     direct   conv2d, conv2d_dw of very few channels: vectors along the image's rows
 *     joined   conv2d_dx of few channels: vectors along taps and channels of a filter row
 *     gather   conv2d, conv2d_dx: a matrix product that reads the image in place
 *     outer    conv2d_dw: sums of outer products over pixels
 *     im2col   all three: what each output reads is copied, and multiplied as one matrix
 *     winograd4, winograd2  all three, 3 x 3 (winograd2: and 5 x 5) filters, stride 1: tiles of
 *              4 x 4 or 2 x 2 outputs with fewer products; f32, and only where it is asked for, but
 *              for winograd2 of 3 x 3 and many channels, which rounds no more than gather does
 *     fft16, fft32  all three, 4 x 4 filters and larger, stride 1: Fourier transforms of tiles of
 *              16 x 16 or 32 x 32 pixels; f32, and only where it is asked for
 *     plain    the reference: needs no room, and is slow
 *
 * f32, f64, or (gather, outer, im2col) bf16 operands with an f32 result. Images may go a few at
 * once (ll_kcall.at_once), which needs less room; conv2d_dw then adds up what they give, in order.
 */
#include "kern/cpu/conv2d_int.h"
#include "kern/cpu/gemm_int.h"
#include "kern/cpu/team.h"

extern const ll_solver conv2d_cpu[], conv2d_dx_cpu[], conv2d_dw_cpu[];
ll_kernel conv2d_ref, conv2d_dx_ref, conv2d_dw_ref;

static ll_conv_shape shape_of(ll_conv_direction d, const ll_kcall *c)
{
    const ll_tensor *const sets[3][3] = {
        {&c->in[0], &c->in[1], &c->out[0]}, /* image, filter, output */
        {&c->out[0], &c->in[1], &c->in[0]},
        {&c->in[1], &c->out[0], &c->in[0]},
    };
    const int64_t *x = sets[d][0]->shape.d, *w = sets[d][1]->shape.d, *y = sets[d][2]->shape.d;
    ll_conv_shape v = {.d = d, .a = *(const ll_conv_attr *)c->attr};
    v.bf16 = c->in[0].dtype == LL_BF16;
    v.f64 = c->in[0].dtype == LL_F64;
    v.start = ll_sum_start(v.a.bits);
    v.n = x[0], v.h = x[1], v.w = x[2], v.c = x[3];
    v.f = w[0], v.r = w[1], v.s = w[2];
    v.oh = y[1], v.ow = y[2];
    v.groups = v.a.groups;
    v.cg = v.c / v.groups, v.fg = v.f / v.groups;
    double work = (double)(v.n * v.oh * v.ow) * (double)(v.f * v.r * v.s * v.cg);
    v.threads = ll_team_for_products(c->threads, work);
    return v;
}

static bool few_channels(const ll_conv_shape *v)
{
    return v->groups == 1 && v->a.stride[1] == 1 && v->c * v->s <= 8 && !v->bf16;
}

/* Where lanes would hold channels of the image, most of them none; at stride 1. */
static bool few_results(const ll_conv_shape *v)
{
    return v->groups == 1 && v->a.stride[0] == 1 && v->a.stride[1] == 1 && 2 * v->c <= LL_LANES &&
           !v->bf16;
}

/* Filters whose tiles of 2 x 2 round no more than plain sums, and channels enough that products,
 * not changes of tiles, take the time: 1.2 to 1.6 times gather's speed. Of images of a pixel or two
 * taps see padding alone, and have gradients of 0, not of what rounding leaves. */
static bool tiles_pay(const ll_conv_shape *v)
{
    return v->r == 3 && v->s == 3 && ll_min64(v->c, v->f) >= 48 && ll_min64(v->oh, v->ow) >= 4 &&
           ll_min64(v->h, v->w) >= 4 && ll_conv_winograd_fits(v, 2);
}

/* Where columns and a product are the quickest: of bf16 the one way to the CPU's own bf16 tiles, if
 * they have enough to multiply; dx of few channels at a stride, where lanes would hold channels. */
static bool columns_pay(const ll_conv_shape *v)
{
    bool tiles = v->bf16 && ll_gemm_bf16();
    bool stride = v->a.stride[0] > 1 || v->a.stride[1] > 1;
    if (tiles && v->r * v->s * v->cg >= 64 && v->fg >= 32) return true;
    return v->d == LL_CONV_DX && stride && 4 * v->cg <= LL_LANES && v->fg >= 32 && !v->f64;
}

/* An algorithm for one of the three: [f64]. */
typedef double flops(const ll_conv_shape *v);
typedef struct way {
    ll_conv_direction d;
    int m;        /* of tiles */
    flops *flops; /* that it makes; NULL: those inside the image */
    ll_conv_room *room[2];
    ll_conv_run *run[2];
} way;

static ll_conv_shape shape_by(const way *w, const ll_kcall *c, int64_t images)
{
    ll_conv_shape v = shape_of(w->d, c);
    v.m = w->m;
    v.n = images;
    return v;
}

static int64_t at_once(const ll_kcall *c, int64_t images)
{
    return c->at_once > 0 ? ll_min64(c->at_once, images) : images;
}

/* What the pieces need, the last of which may be smaller; of conv2d_dw also room for a piece's. */
static size_t piece_room(const way *w, const ll_kcall *c, int64_t images, int64_t some)
{
    ll_conv_shape v = shape_by(w, c, some), last = shape_by(w, c, images % some);
    size_t room = w->room[v.f64](&v), other = images % some ? w->room[v.f64](&last) : 0;
    return ll_align64(other > room ? other : room);
}

static size_t room_by(const way *w, const ll_kcall *c)
{
    ll_conv_shape v = shape_of(w->d, c);
    int64_t some = at_once(c, v.n);
    v.m = w->m;
    if (some == v.n) return w->room[v.f64](&v);
    size_t sum = w->d == LL_CONV_DW ? ll_tensor_bytes(c->out[0].dtype, &c->out[0].shape) : 0;
    return piece_room(w, c, v.n, some) + sum;
}

/* Images [from, from + n) of a tensor that has some. */
static ll_tensor part_of(ll_tensor t, int64_t from, int64_t n)
{
    int64_t one = ll_numel(&t.shape) / ll_max64(t.shape.d[0], 1);
    t.data = (char *)t.data + (size_t)(from * one) * ll_dtype_bytes(t.dtype);
    t.shape.d[0] = n;
    return t;
}

static void add_to(const ll_tensor *sum, const ll_tensor *more)
{
    int64_t n = ll_numel(&sum->shape);
    double *wide = (double *)sum->data;
    float *narrow = (float *)sum->data;
    if (sum->dtype == LL_F64)
        for (int64_t i = 0; i < n; i++) wide[i] += ((const double *)more->data)[i];
    else
        for (int64_t i = 0; i < n; i++) narrow[i] += ((const float *)more->data)[i];
}

static ll_err run_by(const way *w, const ll_kcall *c)
{
    ll_conv_shape v = shape_of(w->d, c);
    int64_t images = v.n, some = at_once(c, images);
    bool dw = w->d == LL_CONV_DW;
    v.m = w->m;
    if (some == images) {
        w->run[v.f64](&v, c);
        return LL_OK;
    }
    char *spare = (char *)c->scratch + piece_room(w, c, images, some);
    for (int64_t i = 0; i < images; i += some) {
        int64_t n = ll_min64(some, images - i);
        ll_tensor in[2] = {part_of(c->in[0], i, n), dw ? part_of(c->in[1], i, n) : c->in[1]};
        ll_tensor out = dw ? c->out[0] : part_of(c->out[0], i, n);
        if (dw && i) out.data = spare;
        ll_kcall piece = *c;
        piece.in = in, piece.out = &out;
        v = shape_by(w, c, n); /* on as many threads as the room is for */
        w->run[v.f64](&v, &piece);
        if (dw && i) add_to(&c->out[0], &out);
    }
    return LL_OK;
}

/* Pairs of an output and a tap along axis k, all of them or those inside the image. */
static double pairs(const ll_conv_shape *v, int k, bool inside)
{
    int64_t out = k ? v->ow : v->oh, taps = k ? v->s : v->r, size = k ? v->w : v->h, n = 0;
    for (int64_t o = 0; inside && o < out; o++)
        for (int64_t t = 0; t < taps; t++) {
            int64_t at = o * v->a.stride[k] - v->a.pad[2 * k] + t * v->a.dilation[k];
            n += at >= 0 && at < size;
        }
    return (double)(inside ? n : out * taps);
}

/* With those in the padding. */
static double all_flops(const ll_conv_shape *v)
{
    return 2.0 * (double)v->n * (double)(v->f * v->cg) * pairs(v, 0, false) * pairs(v, 1, false);
}

/* With those beside the image, but not those above or below. */
static double joined_flops(const ll_conv_shape *v)
{
    return 2.0 * (double)v->n * (double)(v->f * v->c) * pairs(v, 0, true) * pairs(v, 1, false);
}

static void work_by(const way *w, const ll_kcall *c, double *done, double *padded)
{
    ll_conv_shape v = shape_of(w->d, c);
    double each = 2.0 * (double)v.n * (double)(v.f * v.cg);
    double inside = each * pairs(&v, 0, true) * pairs(&v, 1, true);
    v.m = w->m;
    *padded = each * pairs(&v, 0, false) * pairs(&v, 1, false) - inside;
    *done = w->flops ? w->flops(&v) : inside;
}

#define SOLVER(name, direction, tile, flops, room32, room64, run32, run64)                         \
    static const way name##_way = {direction, tile, flops, {room32, room64}, {run32, run64}};      \
    static size_t name##_room(const ll_kcall *c)                                                   \
    {                                                                                              \
        return room_by(&name##_way, c);                                                            \
    }                                                                                              \
    static ll_err name(const ll_kcall *c)                                                          \
    {                                                                                              \
        return run_by(&name##_way, c);                                                             \
    }                                                                                              \
    static void name##_work(const ll_kcall *c, double *done, double *padded)                       \
    {                                                                                              \
        work_by(&name##_way, c, done, padded);                                                     \
    }
#define BOTH(name, direction, algorithm)                                                           \
    SOLVER(name, direction, 0, NULL, algorithm##_room_f32, algorithm##_room_f64, algorithm##_f32,  \
           algorithm##_f64)
#define ANY(name, direction, algorithm)                                                            \
    SOLVER(name, direction, 0, all_flops, algorithm##_room, algorithm##_room, algorithm,           \
           algorithm)                                                                              \
    FITS(name, direction, !columns_pay(&v))                                                        \
    FITS(name##_first, direction, columns_pay(&v))
#define FITS(name, direction, test)                                                                \
    static bool name##_fits(const ll_kcall *c)                                                     \
    {                                                                                              \
        ll_conv_shape v = shape_of(direction, c);                                                  \
        return test;                                                                               \
    }
#define TILED(name, direction, tile, algorithm, where)                                             \
    SOLVER(name, direction, tile, algorithm##_flops, algorithm##_room, NULL, algorithm, NULL)      \
    FITS(name, direction, algorithm##_fits(&v, tile) && (where))
#define ALL(name, tile, algorithm, where)                                                          \
    TILED(name, LL_CONV, tile, algorithm, where)                                                   \
    TILED(dx_##name, LL_CONV_DX, tile, algorithm, where)                                           \
    TILED(dw_##name, LL_CONV_DW, tile, algorithm, where)
BOTH(direct, LL_CONV, ll_conv_direct)
BOTH(gather, LL_CONV, ll_conv_gather)
BOTH(dx_gather, LL_CONV_DX, ll_conv_gather)
BOTH(dx_direct, LL_CONV_DX, ll_conv_direct)
BOTH(dw_direct, LL_CONV_DW, ll_conv_direct_dw)
ANY(im2col, LL_CONV, ll_conv_im2col)
ANY(dx_im2col, LL_CONV_DX, ll_conv_im2col)
ANY(dw_im2col, LL_CONV_DW, ll_conv_im2col)
BOTH(dw_outer, LL_CONV_DW, ll_conv_outer)
SOLVER(dx_joined, LL_CONV_DX, 0, joined_flops, ll_conv_joined_room, NULL, ll_conv_joined, NULL)
FITS(dx_joined, LL_CONV_DX, ll_conv_joined_fits(&v))
FITS(direct, LL_CONV, few_channels(&v))
FITS(dx_direct, LL_CONV_DX, few_results(&v))
FITS(dw_direct, LL_CONV_DW, few_channels(&v))
ALL(winograd4, 4, ll_conv_winograd, true)
ALL(winograd2, 2, ll_conv_winograd, !tiles_pay(&v))
FITS(winograd2_first, LL_CONV, tiles_pay(&v))
FITS(dx_winograd2_first, LL_CONV_DX, tiles_pay(&v))
FITS(dw_winograd2_first, LL_CONV_DW, tiles_pay(&v))
ALL(fft16, 16, ll_conv_fft, true)
ALL(fft32, 32, ll_conv_fft, true)

#define ROW(name, f, ...)                                                                          \
    {                                                                                              \
        name, .scratch = f##_room, .run = f, .work = f##_work, .cuts = true, __VA_ARGS__           \
    }
#define ASKED(p, name) ROW(#name, p##name, .fits = p##name##_fits, .asked = true)
/* Listed first where they are the quickest, and last elsewhere. */
#define FIRST(p)                                                                                   \
    ROW("im2col", p##im2col, .fits = p##im2col_first_fits),                                        \
        ROW("winograd2", p##winograd2, .fits = p##winograd2_first_fits)
#define OTHERS(p, ref)                                                                             \
    ROW("im2col", p##im2col, .fits = p##im2col_fits), ASKED(p, winograd4), ASKED(p, winograd2),    \
        ASKED(p, fft16), ASKED(p, fft32),                                                          \
    {                                                                                              \
        "plain", .run = ref, .asked = true                                                         \
    }
const ll_solver conv2d_cpu[] = {FIRST(),
                                ROW("direct", direct, .fits = direct_fits, .parts = true),
                                ROW("gather", gather, .parts = true),
                                OTHERS(, conv2d_ref),
                                {0}};
const ll_solver conv2d_dx_cpu[] = {FIRST(dx_),
                                   ROW("joined", dx_joined, .fits = dx_joined_fits, .parts = true),
                                   ROW("direct", dx_direct, .fits = dx_direct_fits, .parts = true),
                                   ROW("gather", dx_gather, .parts = true),
                                   OTHERS(dx_, conv2d_dx_ref),
                                   {0}};
const ll_solver conv2d_dw_cpu[] = {FIRST(dw_),
                                   ROW("direct", dw_direct, .fits = dw_direct_fits, .parts = true),
                                   ROW("outer", dw_outer, .parts = true),
                                   OTHERS(dw_, conv2d_dw_ref),
                                   {0}};
