/* Caches of fewer entries than tokens, against a list of all tokens of which some are crossed out;
 * caches of 4 bits: what is read from them is what they hold, as numbers; it is near what was
 * written; and it does not matter how many tokens were written at once, whether some of them were
 * none, or whether a sequence went back. */
#include "kern/cache4.h"
#include "tensors.h"

ll_kernel cached_attend_cpu, cached_attend_ref, cache_write_ref, cache_keep_cpu, cache_place_ref;
ll_scratch cached_attend_cpu_scratch, cache_keep_cpu_scratch;

enum { PLACES = 101, HEADS = 2, G = 3, RING = 48, MOST = 17, ROWS = 128 + 2 * RING };

typedef struct kept {
    int64_t d;
    ll_tensor cache[2], new[2]; /* keys, values: of all places, as they are and as written */
} kept;

static kept open_kept(int64_t d)
{
    kept k = {.d = d};
    int64_t row = ll_cache_row(4, d);
    assert_int_equal(ll_cache_rows(PLACES, RING), ROWS);
    for (int i = 0; i < 2; i++) {
        k.cache[i] = new_tensor(LL_U8, LL_SHAPE(1, i ? PLACES : ROWS, HEADS, row));
        k.new[i] = new_random(LL_F32, LL_SHAPE(1, PLACES, HEADS, d), 3 + (uint64_t)i);
        float *x = (float *)k.new[i].data; /* some channels are large, as those of keys are */
        for (int64_t j = 0; j < PLACES * HEADS * d; j++)
            if (j % d % 5 == 2) x[j] = 20 + 3 * x[j];
    }
    return k;
}

static void close_kept(kept *k)
{
    for (int i = 0; i < 2; i++) free_tensor(&k->cache[i]), free_tensor(&k->new[i]);
}

/* Writes places at to at + n, of t tokens, the others none. */
static void put(kept *k, int64_t at, int64_t n, int64_t t)
{
    int32_t from = (int32_t)at;
    for (int i = 0; i < 2; i++) {
        ll_tensor x = new_random(LL_F32, LL_SHAPE(1, t, HEADS, k->d), 77);
        memcpy(x.data, (float *)k->new[i].data + at *HEADS * k->d,
               (size_t)(n * HEADS * k->d) * sizeof(float));
        ll_tensor in[3] = {k->cache[i], x, {&from, LL_I32, LL_SHAPE(1)}};
        call(cache_write_ref, NULL, &(ll_cache_write_attr){4, i ? 0 : RING}, 3, in, 1, &k->cache[i],
             1);
        free_tensor(&x);
    }
}

/* Attention of one token behind `at` places; of whichever cache, by whichever kernel. */
static void attend(const kept *k, const ll_tensor cache[2], int64_t at, int64_t bits, bool ref,
                   float *out)
{
    int32_t from = (int32_t)at;
    ll_tensor in[6] = {new_random(LL_F32, LL_SHAPE(1, 1, HEADS, G, k->d), 21),
                       new_random(LL_F32, LL_SHAPE(1, 1, HEADS, k->d), 22),
                       new_random(LL_F32, LL_SHAPE(1, 1, HEADS, k->d), 23),
                       cache[0],
                       cache[1],
                       {&from, LL_I32, LL_SHAPE(1)}};
    ll_tensor y = new_tensor(LL_F32, LL_SHAPE(1, 1, HEADS, G, k->d));
    ll_cached_attr a = {0.05, 0, bits, bits ? RING : 0};
    call(ref ? cached_attend_ref : cached_attend_cpu, ref ? NULL : cached_attend_cpu_scratch, &a, 6,
         in, 1, &y, 2);
    memcpy(out, y.data, bytes_of(&y));
    for (int i = 0; i < 3; i++) free_tensor(&in[i]);
    free_tensor(&y);
}

/* What the file's top says of its bytes, once more. */
static double number_of(const kept *k, int i, int64_t at, int64_t p, int64_t h, int64_t c)
{
    int64_t d = k->d, e = ll_cache_row(4, d), half = (d + 1) / 2, step = HEADS * e;
    const uint8_t *first = (const uint8_t *)k->cache[i].data + h * e, *row = first + p * step;
    const uint8_t *tail = row + half + 3 * (c / 32);
    if (!i && p >= at / 32 * 32) {
        const uint8_t *pair = first + (128 + 2 * (p % RING)) * step;
        uint8_t byte = c < half ? pair[c] : pair[step + c - half];
        return (double)ll_cache8_scale(pair, half) * (int8_t)byte;
    }
    if (!i) tail = first + (p / 32 * 32 + c % 32) * step + half + 3 * (c / 32);
    int q = c < half ? row[c] & 15 : row[c - half] >> 4;
    return (double)ll_cache8_scale(tail, 0) * (q + (int8_t)tail[2] + (tail[1] >> 5) / 8.0);
}

/* The same numbers as floats; how far they are from what was written, of each one's size. */
static double unpacked(const kept *k, int64_t at, ll_tensor out[2])
{
    double most = 0;
    for (int i = 0; i < 2; i++) {
        out[i] = new_random(LL_F32, LL_SHAPE(1, PLACES, HEADS, k->d), 9);
        for (int64_t j = 0; j < at * HEADS * k->d; j++) {
            double x = ((float *)k->new[i].data)[j], d = (double)k->d;
            double y = number_of(k, i, at, j / k->d / HEADS, j / k->d % HEADS, j % k->d);
            ((float *)out[i].data)[j] = (float)y;
            /* a value's group has both large and small channels; a key's has one channel */
            double range = i && d > 2 ? 34 : 8 + (j % k->d % 5 == 2 ? 16 : 0);
            if (fabs(x - y) / range > most) most = fabs(x - y) / range;
        }
    }
    return most;
}

static void assert_alike(const float *a, const float *b, int64_t n, double allowed)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= allowed * (1 + fabs((double)b[i]))))
            fail_msg("%lld: %g, want %g", (long long)i, (double)a[i], (double)b[i]);
}

static const int64_t widths[] = {1, 2, 3, 31, 64, 97};

/* Token by token: at every place attention is that to the same numbers as floats. */
static void as_floats(void **)
{
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        kept k = open_kept(widths[w]);
        double far = 0;
        for (int64_t at = 0; at < PLACES; at++) {
            float a[HEADS * G * 97], b[HEADS * G * 97], c[HEADS * G * 97];
            ll_tensor plain[2];
            put(&k, at, 1, 1);
            far = fmax(far, unpacked(&k, at, plain));
            attend(&k, k.cache, at, 4, false, a);
            attend(&k, k.cache, at, 4, true, b);
            attend(&k, plain, at, 0, false, c);
            assert_alike(a, c, HEADS * G * k.d, 2e-6);
            assert_alike(b, c, HEADS * G * k.d, 2e-6);
            for (int i = 0; i < 2; i++) free_tensor(&plain[i]);
        }
        printf("rows of %lld: off by %.3f of their range\n", (long long)k.d, far);
        assert_true(far < 0.05); /* half of a 15th, and what scales are rounded by */
        close_kept(&k);
    }
}

/* However they were written, groups that are whole are the same, and so is what is seen. */
static void any_steps(void **)
{
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        kept one = open_kept(widths[w]), some = open_kept(widths[w]);
        int64_t at = 0, n[] = {1, 17, 3, 16, 2, 5, 17, 11, 7};
        for (int64_t p = 0; p < PLACES; p++) put(&one, p, 1, 1);
        for (int i = 0; at < PLACES - MOST; at += n[i++ % 9]) {
            put(&some, at, n[i % 9], MOST); /* and what is none behind them */
            if (at > 40 && at < 50) {
                put(&some, at, n[i % 9], MOST);                        /* the same again */
                put(&some, 32, at - 32 < MOST ? at - 32 : MOST, MOST); /* went back */
                for (int64_t p = 32; p < at; p++) put(&some, p, 1, 1);
                put(&some, at, n[i % 9], MOST);
            }
        }
        put(&one, at, 0, 1), put(&some, at, 0, 1);
        float a[HEADS * G * 97], b[HEADS * G * 97];
        attend(&one, one.cache, at, 4, false, a);
        attend(&some, some.cache, at, 4, false, b);
        assert_memory_equal(a, b, sizeof(float) * (size_t)(HEADS * G * widths[w]));
        close_kept(&one), close_kept(&some);
    }
}

/* Rows that have no numbers, and those that are all alike, or none. */
static void odd_numbers(void **)
{
    static const float ends[][2] = {{0, 0},        {5, 5},        {-3, -3}, {1e-30f, 1e-30f},
                                    {-1e8f, 1e8f}, {100, 100.5f}, {-7, 0},  {0, 1e-3f}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        uint8_t tail[3] = {POISON, POISON, POISON};
        float least = ends[i][0], most = ends[i][1];
        ll_cache4_begin(tail, least, most);
        for (int k = 0; k <= 8; k++) {
            float x = least + (most - least) * (float)k / 8;
            int q = ll_cache4_round(tail, x);
            float y = ll_cache8_scale(tail, 0) * ((float)q + ll_cache4_zero(tail));
            assert_in_range(q, 0, 15);
            double step = fmax((double)(most - least) / 15, fmax(fabs((double)x) / 110, 1e-12));
            if (fabs((double)(x - y)) > 0.7 * step)
                fail_msg("%g of %g to %g became %g", (double)x, (double)least, (double)most,
                         (double)y);
        }
    }
}

/* ---- those that are attended to ---- */

enum { TOKENS = 61, D = 5, STEP = 4 };

/* A head: all tokens, of which some are gone. */
typedef struct all_tokens {
    double k[TOKENS][D], v[TOKENS][D], mass[TOKENS];
    bool gone[TOKENS];
} all_tokens;

/* What a query at place p sees, of what was there at `at` and tokens behind it. */
static void look(all_tokens *a, const float *q, int p, double out[D])
{
    double w[TOKENS], sum = 0;
    for (int c = 0; c < D; c++) out[c] = 0;
    for (int j = 0; j <= p; j++) {
        double dot = 0;
        for (int c = 0; c < D; c++) dot += (double)q[c] * a->k[j][c];
        sum += w[j] = a->gone[j] ? 0 : exp(0.4 * dot);
    }
    for (int j = 0; j <= p; j++) {
        a->mass[j] += w[j] / sum;
        for (int c = 0; c < D; c++) out[c] += w[j] / sum * a->v[j][c];
    }
}

static void cross_out(all_tokens *a, int n, int rows)
{
    int there = 0;
    for (int j = 0; j < n; j++) there += !a->gone[j];
    for (; there > rows; there--) {
        int least = -1;
        for (int j = 0; j < n - (rows - rows / 2); j++)
            if (!a->gone[j] && (least < 0 || a->mass[j] < a->mass[least])) least = j;
        a->gone[least] = true;
    }
}

/* Tokens in steps of up to `step`, as many rows as entries stay; some runs have no new ones. */
static void check_kept(int rows, int step)
{
    all_tokens *head = (all_tokens *)calloc(HEADS, sizeof *head);
    ll_tensor cache[2], kept = new_tensor(LL_F32, LL_SHAPE(1, rows, HEADS, 2));
    for (int i = 0; i < 2; i++) cache[i] = new_tensor(LL_F32, LL_SHAPE(1, rows, HEADS, D));
    double most = 0;
    for (int at = 0, turn = 0; at + step <= TOKENS; turn++) {
        int32_t from = at, n = turn % 5 == 3 ? 0 : 1 + turn % step;
        ll_tensor q = new_random(LL_F32, LL_SHAPE(1, step, HEADS, G, D), 40 + (uint64_t)turn);
        ll_tensor k = new_random(LL_F32, LL_SHAPE(1, step, HEADS, D), 140 + (uint64_t)turn);
        ll_tensor v = new_random(LL_F32, LL_SHAPE(1, step, HEADS, D), 240 + (uint64_t)turn);
        ll_tensor y = new_tensor(LL_F32, q.shape), next = new_tensor(LL_F32, kept.shape);
        ll_tensor first = {&from, LL_I32, LL_SHAPE(1)}, count = {&n, LL_I32, LL_SHAPE(1)};
        call(cached_attend_cpu, cached_attend_cpu_scratch, &(ll_cached_attr){0.4, 0, 0, 0}, 6,
             (ll_tensor[]){q, k, v, cache[0], cache[1], first}, 1, &y, 2);
        call(cache_keep_cpu, cache_keep_cpu_scratch, &(ll_cache_keep_attr){0.4}, 6,
             (ll_tensor[]){q, k, cache[0], kept, first, count}, 1, &next, 2);
        for (int i = 0; i < 2; i++)
            call(cache_place_ref, NULL, NULL, 4, (ll_tensor[]){cache[i], i ? v : k, next, first}, 1,
                 &cache[i], 1);
        memcpy(kept.data, next.data, bytes_of(&kept));
        for (int h = 0; h < HEADS; h++) {
            for (int i = 0; i < n * D; i++) {
                int64_t j = (i / D * HEADS + h) * D + i % D;
                head[h].k[at + i / D][i % D] = (double)((float *)k.data)[j];
                head[h].v[at + i / D][i % D] = (double)((float *)v.data)[j];
            }
            for (int i = 0; i < n * G; i++) {
                double want[D];
                int64_t j = ((i / G * HEADS + h) * G + i % G) * D;
                look(&head[h], (float *)q.data + j, at + i / G, want);
                for (int c = 0; c < D; c++)
                    most = fmax(most, fabs(want[c] - (double)((float *)y.data)[j + c]));
            }
            cross_out(&head[h], at + n, rows);
        }
        at += n;
        free_tensor(&q), free_tensor(&k), free_tensor(&v), free_tensor(&y), free_tensor(&next);
    }
    printf("%d entries, %d at once: off by %.2g\n", rows, step, most);
    assert_true(most < 1e-5);
    for (int i = 0; i < 2; i++) free_tensor(&cache[i]);
    free_tensor(&kept);
    free(head);
}

static void kept_entries(void **)
{
    static const int rows[] = {1, 2, 3, 7, 32, 64};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int step = 1; step <= STEP; step += 3) check_kept(rows[i], step);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_floats), cmocka_unit_test(any_steps),
                                       cmocka_unit_test(odd_numbers),
                                       cmocka_unit_test(kept_entries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
