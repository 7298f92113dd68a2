/* matmul on the CPU against the reference kernel: the specs models use, and random ones with every
 * order of letters, sizes 0, 1 and odd, both element types, one to three threads; products in f64
 * that are rounded (base/num.h), to the bit. */
#include "kern/attr.h"
#include "kern/kern.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

ll_kernel matmul_ref, matmul_cpu;
ll_scratch matmul_cpu_scratch;

enum { SEED = 5 };

static void make(ll_tensor *t, uint64_t stream)
{
    int64_t n = ll_numel(&t->shape);
    t->data = malloc((size_t)n * ll_dtype_bytes(t->dtype) + 1);
    for (int64_t i = 0; i < n; i++)
        ll_store(t->data, t->dtype, i,
                 t->dtype == LL_F64 && stream < 2
                     ? ldexp((double)ll_below_at(SEED, stream, (uint64_t)i, 1u << 31) - 0x1p30, 9) +
                           1
                     : ll_normal_at(SEED, stream, (uint64_t)i));
}

static void run_cpu(const ll_matmul_attr *attr, const ll_tensor *in, const ll_tensor *out,
                    int threads)
{
    ll_kcall c = {.attr = attr, .n_in = 2, .n_out = 1, .in = in, .out = out, .threads = threads};
    size_t bytes = matmul_cpu_scratch(&c);
    char *scratch = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(scratch, 0xff, (bytes + 127) / 64 * 64);
    memset(out->data, 0xff, (size_t)ll_numel(&out->shape) * ll_dtype_bytes(out->dtype));
    c.scratch = scratch;
    assert_int_equal(matmul_cpu(&c), LL_OK);
    for (size_t i = bytes; i < (bytes + 127) / 64 * 64; i++)
        assert_int_equal((unsigned char)scratch[i], 0xff);
    free(scratch);
}

/* Runs one product and compares; extent[letter - 'a'] gives the sizes. */
static void one(const char *spec, const int64_t extent[26], ll_dtype in_type, ll_dtype out_type,
                int threads)
{
    ll_matmul_attr attr = {.out = out_type, .bits = out_type == LL_F64 ? 50 : 0};
    snprintf(attr.spec, sizeof attr.spec, "%s", spec);
    ll_tensor t[3] = {{.dtype = in_type}, {.dtype = in_type}, {.dtype = out_type}};
    int at = 0;
    for (const char *s = spec; *s; s++) {
        if (*s == ',' || *s == '>') at++;
        if (*s >= 'a' && *s <= 'z') t[at].shape.d[t[at].shape.n++] = extent[*s - 'a'];
    }
    for (int i = 0; i < 3; i++) make(&t[i], (uint64_t)i);
    run_cpu(&attr, t, &t[2], threads);
    ll_tensor want = {.dtype = LL_F64, .shape = t[2].shape};
    make(&want, 9);
    ll_kcall c = {.attr = &attr, .n_in = 2, .n_out = 1, .in = t, .out = &want, .threads = 1};
    assert_int_equal(matmul_ref(&c), LL_OK);
    double sums = (double)ll_numel(&t[0].shape) + 1;
    int64_t n = ll_numel(&want.shape);
    if (attr.bits) assert_memory_equal(t[2].data, want.data, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < n && !attr.bits; i++) {
        double a = ll_load(t[2].data, out_type, i), b = ll_load(want.data, LL_F64, i);
        double tol = 2e-6 * sqrt(sums) + 1e-5 * fabs(b);
        if (out_type == LL_BF16) tol += fabs(b) / 200;
        if (!(fabs(a - b) <= tol))
            fail_msg("%s threads %d %s->%s at %lld: %g, want %g", spec, threads,
                     ll_dtype_name(in_type), ll_dtype_name(out_type), (long long)i, a, b);
    }
    for (int i = 0; i < 3; i++) free(t[i].data);
    free(want.data);
}

static void every_way(const char *spec, const int64_t extent[26])
{
    for (int threads = 1; threads <= 3; threads++) {
        one(spec, extent, LL_F32, LL_F32, threads);
        one(spec, extent, LL_BF16, LL_F32, threads);
        one(spec, extent, LL_BF16, LL_BF16, threads);
        one(spec, extent, LL_F64, LL_F64, threads);
    }
}

static void test_models(void **state)
{
    (void)state;
    static const char *const specs[] = {
        "bc,nc->bn",       "bn,nc->bc",         "bc,bn->nc",       "btc,nc->btn",
        "btc,zhdc->btzhd", "btzhd,zhdc->btc",   "btc,btzhd->zhdc", "bthd,chd->btc",
        "btc,chd->bthd",   "bthd,btc->chd",     "bthd,bshd->bhts", "bhts,bshd->bthd",
        "bhts,bthd->bshd", "btzhd,btzhd->bthz", "k,k->",           "m,n->mn",
        "m,n->nm",         "mk,k->m",           "k,kn->n",         ",n->n",
        "b,b->b",          "mkb,knb->mnb",      "abk,kab->ab",     "apqb,qpc->cab",
        "pmqn,qkpl->mknl", "btc,vc->btv",       "btv,vc->btc",     "btv,btc->vc",
    };
    int64_t small[26], large[26];
    for (int i = 0; i < 26; i++) small[i] = 2 + i % 4, large[i] = 5 + (i * 7) % 11;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        every_way(specs[i], small);
        one(specs[i], large, LL_F32, LL_F32, 2);
    }
}

/* A random spec: each letter a member of two or three of the operands, in random order. */
static void random_spec(uint64_t trial, char *spec)
{
    uint64_t at = 0;
    char part[3][8] = {"", "", ""};
    int letters = (int)ll_below_at(SEED, trial, at++, 7);
    for (int i = 0; i < letters; i++) {
        int absent = (int)ll_below_at(SEED, trial, at++, 4);
        for (int t = 0; t < 3; t++) {
            size_t n = strlen(part[t]);
            if (t == absent || n >= LL_MAX_DIMS) continue;
            size_t where = ll_below_at(SEED, trial, at++, n + 1);
            memmove(part[t] + where + 1, part[t] + where, n + 1 - where);
            part[t][where] = (char)('a' + i);
        }
    }
    sprintf(spec, "%s,%s->%s", part[0], part[1], part[2]);
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 1500; i++) {
        static const int64_t sizes[] = {0, 1, 1, 2, 3, 5, 7, 4, 2, 3, 13};
        char spec[LL_SPEC_MAX];
        int64_t extent[26] = {0};
        random_spec(100 + i, spec);
        for (uint64_t j = 0; j < 26; j++) {
            uint64_t from = i % 4 ? 1 : 0; /* a quarter of the trials may be empty */
            extent[j] = sizes[from + ll_below_at(SEED, 50 + j, i, 11 - from)];
        }
        ll_dtype in = i % 3 ? LL_F32 : LL_BF16;
        one(spec, extent, in, i % 6 == 0 ? LL_F32 : in, (int)(i % 3) + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_random),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
