/* Products with packed weights: a result has the same bits alone and beside others, of x and of
 * weights, on any number of threads. (Against the reference: test_op.) */
#include "kcheck.h"
#include "kern/attr.h"
#include "kern/blocks.h"

extern ll_kernel packed_matmul_cpu;
extern ll_scratch packed_matmul_cpu_scratch;

typedef struct packed {
    int bits;
    int64_t rows, blocks;
    uint8_t *q; /* allocated to the byte: sanitizers see what is read behind it */
    uint16_t *scale, *least;
} packed;

static packed pack(int bits, int64_t rows, int64_t blocks)
{
    ll_tensor w = kc_normal(LL_SHAPE(rows, blocks * LL_PACK), 0.3, 0.01);
    size_t n = (size_t)(rows * blocks);
    packed p = {bits,
                rows,
                blocks,
                (uint8_t *)malloc(n * (size_t)bits * 4),
                (uint16_t *)malloc(n * 2),
                (uint16_t *)malloc(n * 2)};
    ll_pack((const float *)w.data, (int64_t)n * LL_PACK, bits, p.q, p.scale, p.least);
    free(w.data);
    return p;
}

static void unpack(packed *p)
{
    free(p->q);
    free(p->scale);
    free(p->least);
}

/* y [m,rows - from] of weights' rows from `from` on. */
static void product(const packed *p, const float *x, int64_t m, int64_t from, int threads, float *y)
{
    int64_t rows = p->rows - from, at = from * p->blocks;
    ll_packed_attr a = {.bits = p->bits, .rows = 1};
    ll_tensor in[4] = {{(void *)x, LL_F32, LL_SHAPE(m, p->blocks, LL_PACK)},
                       {p->q + at * p->bits * 4, LL_U8, LL_SHAPE(rows, p->blocks, p->bits * 4)},
                       {p->scale + at, LL_F16, LL_SHAPE(rows, p->blocks)},
                       {p->least + at, LL_F16, LL_SHAPE(rows, p->blocks)}};
    ll_tensor out = {y, LL_F32, LL_SHAPE(m, rows)};
    ll_kcall c = {.attr = &a, .n_in = p->bits == 4 ? 4 : 3, .n_out = 1, .in = in, .out = &out};
    c.threads = threads;
    size_t bytes = packed_matmul_cpu_scratch(&c);
    c.scratch = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(c.scratch, 0x7f, bytes);
    assert_int_equal(packed_matmul_cpu(&c), LL_OK);
    free(c.scratch);
}

static void alone_and_together(const packed *p, int64_t m)
{
    int64_t cols = p->blocks * LL_PACK, rows = p->rows;
    ll_tensor x = kc_normal(LL_SHAPE(m, cols), 1, 0);
    size_t bytes = sizeof(float) * (size_t)(m * rows);
    float *all = (float *)malloc(bytes + 1), *y = (float *)malloc(bytes + 1);
    product(p, (const float *)x.data, m, 0, 1, all);
    for (int threads = 2; threads < 4; threads++) {
        product(p, (const float *)x.data, m, 0, threads, y);
        assert_memory_equal(y, all, bytes);
    }
    for (int64_t i = 0; i < m; i++) {
        product(p, (const float *)x.data + i * cols, 1, 0, 1, y);
        assert_memory_equal(y, all + i * rows, sizeof(float) * (size_t)rows);
    }
    product(p, (const float *)x.data, m, rows - 1, 1, y);
    for (int64_t i = 0; i < m; i++)
        assert_memory_equal(&y[i], &all[i * rows + rows - 1], sizeof *y);
    free(x.data);
    free(all);
    free(y);
}

static void same_bits(void **)
{
    static const int64_t rows[] = {1, 3, 4, 6, 9, 37}, blocks[] = {1, 2, 3, 4, 5, 8, 17, 18};
    for (int bits = 4; bits <= 8; bits += 4)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
                packed p = pack(bits, rows[r], blocks[b]);
                for (int64_t m = 1; m <= 9; m++) alone_and_together(&p, m);
                unpack(&p);
            }
    packed large = pack(4, 131, 48); /* on several threads */
    alone_and_together(&large, 7);
    unpack(&large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
