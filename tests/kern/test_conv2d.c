/* conv2d and its gradients on the CPU against the reference kernels: random odd shapes with every
 * attribute, every solver that fits, sizes of zero, one to three threads, bf16; in f64 whole
 * numbers, and products that are rounded (base/num.h), to the bit. What each solver rounds, beside
 * f64, is printed and bounded. COUNT=100 draws 300 random shapes. */
#include "solve.h"

#include "base/rng.h"
#include "ir/op.h"
#include "kern/attr.h"
#include "kern/kern.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { SEED = 11, SLACK = 64, DW = 2 };
enum { IMAGES = 2 }; /* of large problems: an image that is first, one that is last */
#ifdef __SANITIZE_ADDRESS__
enum { LESS = 2 };
#else
enum { LESS = 1 };
#endif

extern const ll_op *const ll_ops_conv2d[];
static const ll_op *const *const ops = ll_ops_conv2d; /* conv2d, conv2d_dx, conv2d_dw */

typedef struct problem {
    ll_conv_attr a;
    int64_t n, h, w, c, f, r, s;
    ll_dtype type; /* of operands */
    bool rounded;  /* products of f64: odd numbers of 40 bits */
    bool pieces;   /* of all sizes, on all numbers of threads */
} problem;

static int64_t out_size(const problem *p, int k)
{
    int64_t span = ((k ? p->s : p->r) - 1) * p->a.dilation[k] + 1;
    int64_t room = (k ? p->w : p->h) + p->a.pad[2 * k] + p->a.pad[2 * k + 1] - span;
    return room < 0 ? 0 : room / p->a.stride[k] + 1;
}

/* A tensor with exactly its elements before the end of the allocation, so that a sanitizer sees a
 * read beyond it. */
static ll_tensor empty(ll_dtype type, ll_shape shape)
{
    int64_t n = ll_numel(&shape);
    return (ll_tensor){malloc((size_t)n * ll_dtype_bytes(type) + (n == 0)), type, shape};
}

static ll_tensor make(ll_dtype type, ll_shape shape, uint64_t stream)
{
    int64_t n = ll_numel(&shape);
    ll_tensor t = empty(type, shape);
    for (int64_t i = 0; i < n; i++) {
        double v = ll_normal_at(SEED, stream, (uint64_t)i);
        ll_store(t.data, type, i, type == LL_F64 ? rint(1e5 * v) : v);
    }
    return t;
}

/* Odd numbers of 40 bits, both ends and zeros among them. */
static void make_odd(const ll_tensor *t)
{
    double *x = (double *)t->data;
    for (int64_t i = 0; i < ll_numel(&t->shape); i++) {
        double v = fmin(fabs(x[i]) * 0x1p20 + (double)i, 0x1p39 - 1);
        x[i] = i % 7 == 3   ? 1 - 0x1p40
               : i % 5 == 4 ? 0x1p40 - 1
               : i % 9 == 8 ? 0
                            : copysign(2 * floor(v) + 1, x[i]);
    }
}

static void poison(const ll_tensor *t)
{
    memset(t->data, 0xff, (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype));
}

static void run_cpu(int d, ll_kcall *c, int threads)
{
    c->threads = threads;
    size_t bytes = ll_solve_scratch(ops[d]->cpu, c), room = (bytes + SLACK + 63) / 64 * 64;
    unsigned char *scratch = aligned_alloc(64, room);
    memset(scratch, 0xff, room);
    poison(&c->out[0]);
    c->scratch = scratch;
    assert_int_equal(ll_solve(ops[d]->cpu, c), LL_OK);
    for (size_t i = bytes; i < room; i++) assert_int_equal(scratch[i], 0xff);
    free(scratch);
}

static void compare(const problem *p, int d, const ll_tensor *got, const ll_tensor *want,
                    int threads, const ll_solver *by)
{
    double worst = 0, scale = 1, allowed = by->asked ? 5e-5 : 1e-5;
    for (int64_t i = 0; i < ll_numel(&want->shape); i++) {
        double a = ll_load(got->data, got->dtype, i), b = ll_load(want->data, want->dtype, i);
        if (!isnan(worst) && !(fabs(a - b) <= worst)) worst = fabs(a - b);
        if (fabs(b) > scale) scale = fabs(b);
    }
    if (!(worst <= (p->type == LL_F64 ? 0 : allowed * scale)))
        fail_msg(
            "%s by %s %s n%d %dx%dx%d f%d %dx%d stride %d,%d pad %d,%d,%d,%d dil %d,%d groups %d, "
            "%d threads: off by %g of %g",
            ops[d]->name, by->name, ll_dtype_name(p->type), (int)p->n, (int)p->h, (int)p->w,
            (int)p->c, (int)p->f, (int)p->r, (int)p->s, (int)p->a.stride[0], (int)p->a.stride[1],
            (int)p->a.pad[0], (int)p->a.pad[1], (int)p->a.pad[2], (int)p->a.pad[3],
            (int)p->a.dilation[0], (int)p->a.dilation[1], (int)p->a.groups, threads, worst, scale);
}

/* All three directions of one problem; algorithm: what conv2d must choose, or NULL. */
static void check(const problem *p, const char *algorithm)
{
    ll_dtype type = p->type;
    ll_conv_attr attr = p->a;
    ll_tensor x = make(type, LL_SHAPE(p->n, p->h, p->w, p->c), 1);
    ll_tensor w = make(type, LL_SHAPE(p->f, p->r, p->s, p->c / p->a.groups), 2);
    ll_tensor y = make(type, LL_SHAPE(p->n, out_size(p, 0), out_size(p, 1), p->f), 3);
    if (p->rounded) make_odd(&x), make_odd(&w), make_odd(&y), attr.bits = 46;
    const ll_tensor *parts[3][3] = {{&x, &w, &y}, {&y, &w, &x}, {&y, &x, &w}};
    for (int d = 0; d < 3; d++) {
        ll_dtype t = p->type == LL_BF16 ? LL_F32 : p->type;
        ll_tensor in[2] = {*parts[d][0], *parts[d][1]};
        ll_tensor got = empty(t, parts[d][2]->shape), want = empty(LL_F64, got.shape);
        poison(&want);
        ll_kcall c = {.attr = &attr, .n_in = 2, .n_out = 1, .in = in, .out = &want, .threads = 1};
        assert_int_equal(ops[d]->ref(&c), LL_OK);
        c.out = &got;
        for (const ll_solver *s = ops[d]->cpu; s->run; s++)
            for (int threads = 1; ll_solver_fits(s, &c) && threads <= (s->scratch ? 3 : 1);
                 threads++) {
                c.solver = s->name;
                c.at_once = 0;
                run_cpu(d, &c, threads);
                compare(p, d, &got, &want, threads, s);
                bool cut = s->cuts && (threads == 2 || p->pieces);
                for (c.at_once = 2; cut && c.at_once <= threads; c.at_once++) {
                    run_cpu(d, &c, threads); /* pieces, the last maybe smaller */
                    compare(p, d, &got, &want, threads, s);
                }
            }
        c.solver = NULL, c.at_once = 0;
        if (d == 0 && algorithm)
            assert_string_equal(ll_solver_for(ops[0]->cpu, &c)->name, algorithm);
        free(got.data);
        free(want.data);
    }
    free(x.data);
    free(w.data);
    free(y.data);
}

static int64_t draw(uint64_t *at, int64_t from, int64_t to)
{
    return from + (int64_t)ll_below_at(SEED, 77, (*at)++, (uint64_t)(to - from + 1));
}

static void test_random(void **state)
{
    (void)state;
    uint64_t at = 0;
    const char *count = getenv("COUNT");
    int n = count ? 3 * atoi(count) : 80;
    printf("seed %d, %d problems\n", SEED, n);
    for (int k = 0; k < n; k++) {
        problem p = {.type = k % 5 == 4 ? LL_BF16 : LL_F32};
        p.a.groups = k % 4 == 3 ? draw(&at, 2, 3) : 1;
        p.n = k % 7 ? draw(&at, 1, 2) : 0;
        p.h = draw(&at, 1, 9);
        p.w = draw(&at, 1, 11);
        p.c = p.a.groups > 1 ? p.a.groups * draw(&at, 1, 4) : draw(&at, 1, 17);
        p.f = p.a.groups > 1 ? p.a.groups * draw(&at, 1, 9) : draw(&at, 1, 19);
        p.r = draw(&at, 1, 4);
        p.s = draw(&at, 1, 5);
        bool tiles = k % 8 < 3;
        if (tiles) p.r = p.s = 3 + 2 * (k % 8);
        for (int i = 0; i < 2; i++) {
            p.a.stride[i] = k % 3 ? draw(&at, 1, 3) : 1;
            p.a.dilation[i] = k % 2 && !tiles ? draw(&at, 1, 3) : 1;
            if (tiles) p.a.stride[i] = 1, p.a.at[i] = draw(&at, 0, 40);
            for (int j = 0; j < 2; j++) p.a.pad[2 * i + j] = draw(&at, -1, 4);
            int64_t size = i ? p.w : p.h;
            if (size + p.a.pad[2 * i] < 0) p.a.pad[2 * i] = 0;
        }
        p.a.size[0] = p.h;
        p.a.size[1] = p.w;
        check(&p, NULL);
        p.type = LL_F64;
        check(&p, NULL);
        p.rounded = true;
        if (k % 2) check(&p, NULL);
    }
}

static problem square(int64_t n, int64_t size, int64_t c, int64_t f, int64_t taps, int64_t stride,
                      int64_t pad)
{
    return (problem){{{stride, stride}, {pad, pad, pad, pad}, {1, 1}, 1, {size, size}, 0, {0}},
                     n,
                     size,
                     size,
                     c,
                     f,
                     taps,
                     taps,
                     LL_F32,
                     false,
                     false};
}

/* LeNet-5's, and ResNet's with fewer pixels, where blocks, panels and parts have several of each.
 */
static void test_models(void **state)
{
    (void)state;
    problem p[] = {square(3, 28, 1, 6, 5, 1, 2),       square(5, 14, 6, 16, 5, 1, 0),
                   square(2, 29, 5, 7, 5, 1, 2),       square(2, 8, 64, 64, 3, 1, 1),
                   square(2, 5, 70, 66, 1, 2, 0),      square(5, 4, 130, 40, 3, 1, 1),
                   square(1, 19, 3, 20, 7, 2, 3),      square(IMAGES, 14 / LESS, 33, 35, 5, 1, 2),
                   square(IMAGES, 20, 17, 18, 3, 1, 1)};
    const char *algorithm[] = {"direct", "gather", "gather", "winograd2", "gather",
                               "gather", "gather", "gather", "gather"};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
        const char *whole = i == 3 ? "gather" : algorithm[i]; /* tiles are for f32 alone */
        check(&p[i], algorithm[i]);
        p[i].type = LL_F64;
        p[i].rounded = true; /* more than whole numbers are: those of small problems do */
        check(&p[i], whole);
    }
}

/* Long sums, cut at KC; images cut into row blocks; large filters shared out among threads. */
static void test_blocks(void **state)
{
    (void)state;
    problem p[] = {square(1, 3, 700, 3, 3, 1, 1), square(1, 70, 20, 1, 3, 1, 1),
                   square(IMAGES, 2, 330, 330, 3, 1, 1), square(2, 33, 1, 7, 3, 1, 4),
                   square(1, 50 / LESS, 64, 3, 5, 1, 2)};
    problem channels = square(1, 5, 1100, 48, 3, 1, 1); /* winograd2's, at once and in panels */
    check(&channels, NULL);
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
        check(&p[i], NULL);
        p[i].type = LL_F64;
        p[i].rounded = true;
        check(&p[i], NULL);
    }
}

/* All images are work for a team, and a piece of them for one thread. */
static void test_pieces(void **state)
{
    (void)state;
    problem p[] = {{.a = {.stride = {3, 1}, .pad = {2, 2, 2, 2}, .dilation = {1, 2}, .groups = 1},
                    .n = 11,
                    .h = 12,
                    .w = 19,
                    .c = 48,
                    .f = 2,
                    .r = 1,
                    .s = 2},
                   {.a = {.stride = {2, 3}, .pad = {2, 3, 0, 0}, .dilation = {2, 1}, .groups = 1},
                    .n = 5,
                    .h = 14,
                    .w = 16,
                    .c = 5,
                    .f = 17,
                    .r = 1,
                    .s = 3}};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
        p[i].pieces = true;
        p[i].type = LL_F32;
        check(&p[i], NULL);
        p[i].type = LL_BF16;
        check(&p[i], NULL);
    }
}

/* The same bits again, on the same number of threads. */
static void test_repeat(void **state)
{
    (void)state;
    problem p = square(7, 9, 5, 9, 3, 1, 1);
    ll_tensor in[2] = {make(LL_F32, LL_SHAPE(7, 9, 9, 9), 1),
                       make(LL_F32, LL_SHAPE(7, 9, 9, 5), 2)};
    ll_tensor a = make(LL_F32, LL_SHAPE(9, 3, 3, 5), 3), b = make(LL_F32, a.shape, 4);
    ll_kcall c = {.attr = &p.a, .n_in = 2, .n_out = 1, .in = in, .out = &a};
    run_cpu(DW, &c, 3);
    c.out = &b;
    for (int i = 0; i < 20; i++) {
        run_cpu(DW, &c, 3);
        assert_memory_equal(a.data, b.data, sizeof(float) * 9 * 9 * 5);
    }
    free(in[0].data);
    free(in[1].data);
    free(a.data);
    free(b.data);
}

/* What solver s rounds: root mean square of its difference to f64, over that of the result; -1: it
 * does not fit. */
static double error_of(const problem *p, int d, const ll_solver *s)
{
    ll_tensor x = make(LL_F32, LL_SHAPE(p->n, p->h, p->w, p->c), 1);
    ll_tensor w = make(LL_F32, LL_SHAPE(p->f, p->r, p->s, p->c), 2);
    ll_tensor y = make(LL_F32, LL_SHAPE(p->n, out_size(p, 0), out_size(p, 1), p->f), 3);
    ll_tensor t[2][3];
    bool fits = false;
    for (int wide = 0; wide < 2; wide++) {
        const ll_tensor *sets[3][3] = {{&x, &w, &y}, {&y, &w, &x}, {&y, &x, &w}};
        for (int i = 0; i < 3; i++) {
            t[wide][i] = make(wide ? LL_F64 : LL_F32, sets[d][i]->shape, 1);
            for (int64_t e = 0; e < ll_numel(&t[wide][i].shape); e++)
                ll_store(t[wide][i].data, t[wide][i].dtype, e,
                         ll_load(sets[d][i]->data, LL_F32, e));
        }
        ll_kcall c = {.attr = &p->a, .n_in = 2, .n_out = 1, .in = t[wide], .out = &t[wide][2]};
        c.solver = wide ? NULL : s->name;
        if (!wide) fits = ll_solver_fits(s, &c);
        run_cpu(d, &c, 2);
    }
    double off = 0, all = 0;
    for (int64_t i = 0; i < ll_numel(&t[0][2].shape); i++) {
        double want = ll_load(t[1][2].data, LL_F64, i), got = ll_load(t[0][2].data, LL_F32, i);
        off += (got - want) * (got - want);
        all += want * want;
    }
    for (int i = 0; i < 6; i++) free(t[i / 3][i % 3].data);
    free(x.data);
    free(w.data);
    free(y.data);
    return fits ? sqrt(off / all) : -1;
}

static void test_errors(void **state)
{
    (void)state;
    enum { N = 4 };
    problem p[N] = {square(2, 16 / LESS, 64 / LESS, 48 / LESS, 3, 1, 1),
                    square(2, 16 / LESS, 32 / LESS, 48 / LESS, 5, 1, 2),
                    square(1, 14, 24 / LESS, 16 / LESS, 7, 1, 3),
                    square(1, 14, 24 / LESS, 16 / LESS, 11, 1, 5)};
    printf("root mean square errors, of the result's\n%-10s %-10s %10s %10s %10s %10s\n", "", "",
           "3x3", "5x5", "7x7", "11x11");
    for (int d = 0; d < 3; d++)
        for (const ll_solver *s = ops[d]->cpu; s->run; s++) {
            if (!strcmp(s->name, "direct")) continue; /* of few channels */
            printf("%-10s %-10s", ops[d]->name, s->name);
            for (int i = 0; i < N; i++) {
                bool more = !strcmp(s->name, "winograd4") || (i && !strcmp(s->name, "winograd2"));
                double e = error_of(&p[i], d, s);
                if (e < 0)
                    printf(" %10s", "");
                else
                    printf(" %10.2g", e);
                assert_true(e < (more ? 8e-6 : 2e-6));
            }
            printf("\n");
        }
}

/* A part of the rows, by itself: where it holds whole tiles, the bits of the whole; of fft16
 * nearly, for ll_gemm sums a last row in another order. */
static void test_parts(void **state)
{
    (void)state;
    enum { SIZE = 38, C = 5, F = 7, ROW = SIZE * F, CUT = 19 };
    ll_tensor in[2] = {make(LL_F32, LL_SHAPE(1, SIZE, SIZE, C), 1),
                       make(LL_F32, LL_SHAPE(F, 7, 7, C), 2)};
    ll_tensor whole = make(LL_F32, LL_SHAPE(1, SIZE, SIZE, F), 3),
              part = make(LL_F32, whole.shape, 4);
    const struct {
        const char *name;
        int m, taps;
    } ways[] = {{"winograd2", 2, 3}, {"winograd4", 4, 3}, {"fft16", 0, 5}, {"fft16", 0, 7}};
    for (int k = 0; k < 4; k++) {
        int m = ways[k].m, halo = ways[k].taps / 2;
        problem p = square(1, SIZE, C, F, ways[k].taps, 1, halo);
        in[1].shape.d[1] = in[1].shape.d[2] = ways[k].taps;
        ll_kcall c = {.attr = &p.a, .n_in = 2, .n_out = 1, .in = in, .out = &whole};
        c.solver = ways[k].name;
        run_cpu(0, &c, 1);
        for (int from = 0; from < SIZE; from += CUT) {
            ll_conv_attr a = p.a;
            int first = from ? from - halo : 0;
            ll_tensor rows[2] = {in[0], in[1]}, y = part;
            rows[0].data = (float *)in[0].data + first * SIZE * C;
            rows[0].shape.d[1] = CUT + halo;
            a.pad[0] = from ? 0 : halo, a.pad[1] = from ? halo : 0, a.at[0] = from;
            y.shape.d[1] = CUT;
            y.data = (float *)part.data + from * ROW;
            c.attr = &a, c.in = rows, c.out = &y;
            run_cpu(0, &c, 1);
            for (int i = from; i < from + CUT; i++) {
                const float *got = (float *)part.data + i * ROW,
                            *want = (float *)whole.data + i * ROW;
                bool mine = m && i / m * m >= from && (i / m + 1) * m <= from + CUT;
                if (mine) assert_memory_equal(got, want, sizeof(float) * ROW);
                for (int e = 0; e < ROW; e++) assert_true(fabsf(got[e] - want[e]) < 1e-4f);
            }
        }
    }
    free(in[0].data);
    free(in[1].data);
    free(whole.data);
    free(part.data);
}

/* FLOPs: 4 rows of 3 taps with padding are 12 pairs, 10 of them inside; im2col multiplies zeros
 * too; F(2x2) has 16 products for each of 2 x 2 tiles, of which there are 4, F(4x4) 36 for one. */
static void test_work(void **state)
{
    (void)state;
    problem p = square(2, 4, 3, 5, 3, 1, 1);
    ll_tensor in[2] = {{NULL, LL_F32, LL_SHAPE(2, 4, 4, 3)}, {NULL, LL_F32, LL_SHAPE(5, 3, 3, 3)}};
    ll_tensor out = {NULL, LL_F32, LL_SHAPE(2, 4, 4, 5)};
    ll_kcall c = {.attr = &p.a, .n_in = 2, .n_out = 1, .in = in, .out = &out, .threads = 1};
    const double each = 2 * 2 * 3 * 5;
    const struct {
        const char *name;
        double done;
    } ways[] = {{"gather", 100}, {"im2col", 144}, {"winograd2", 64}, {"winograd4", 36}};
    for (int i = 0; i < 4; i++) {
        double done, padded;
        c.solver = ways[i].name;
        ll_solver_for(ops[0]->cpu, &c)->work(&c, &done, &padded);
        assert_true(done == each * ways[i].done && padded == each * 44);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random), cmocka_unit_test(test_models), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_pieces), cmocka_unit_test(test_errors), cmocka_unit_test(test_parts),
        cmocka_unit_test(test_work),   cmocka_unit_test(test_repeat)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
