/* tensors.h: what tests of single kernels share: tensors with guard bytes, calls with scratch. */
#pragma once
#include "base/rng.h"
#include "kern/attr.h"
#include "kern/kern.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SEED = 11, GUARD = 64, POISON = 0x7f };

static inline size_t bytes_of(const ll_tensor *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

/* Poisoned: huge numbers or NaN, whatever the type; as is the guard after it. */
static inline ll_tensor new_tensor(ll_dtype dtype, ll_shape shape)
{
    ll_tensor t = {NULL, dtype, shape};
    t.data = malloc(bytes_of(&t) + GUARD);
    memset(t.data, POISON, bytes_of(&t) + GUARD);
    return t;
}

/* Normal numbers; integers 0 to 6. */
static inline ll_tensor new_random(ll_dtype dtype, ll_shape shape, uint64_t stream)
{
    ll_tensor t = new_tensor(dtype, shape);
    int64_t n = ll_numel(&shape);
    for (int64_t i = 0; i < n; i++) {
        double v = ll_dtype_is_float(dtype) ? ll_normal_at(SEED, stream, (uint64_t)i)
                                            : (double)ll_below_at(SEED, stream, (uint64_t)i, 7);
        ll_store(t.data, dtype, i, v);
    }
    return t;
}

/* Checks the guard too. */
static inline void free_tensor(ll_tensor *t)
{
    const unsigned char *end = (const unsigned char *)t->data + bytes_of(t);
    for (int i = 0; i < GUARD; i++) assert_int_equal(end[i], POISON);
    free(t->data);
    t->data = NULL;
}

static inline void call(ll_kernel *kernel, ll_scratch *scratch, const void *attr, int n_in,
                        const ll_tensor *in, int n_out, const ll_tensor *out, int threads)
{
    ll_kcall c = {.attr = attr,
                  .n_in = n_in,
                  .n_out = n_out,
                  .in = in,
                  .out = out,
                  .threads = threads,
                  .n_micro = 1};
    size_t bytes = scratch ? scratch(&c) : 0, room = (bytes + GUARD + 63) / 64 * 64;
    unsigned char *p = aligned_alloc(64, room);
    memset(p, POISON, room);
    c.scratch = p;
    assert_int_equal(kernel(&c), LL_OK);
    for (size_t i = bytes; i < room; i++) assert_int_equal(p[i], POISON);
    free(p);
}

/* Every element within tolerance of the larger of 1 and its value; NaN and inf alike. */
static inline void check_near(const char *what, const ll_tensor *want, const ll_tensor *got,
                              double tolerance)
{
    int64_t n = ll_numel(&want->shape);
    for (int64_t i = 0; i < n; i++) {
        double a = ll_load(want->data, want->dtype, i), b = ll_load(got->data, got->dtype, i);
        bool same = isnan(a) ? isnan(b) : a == b || fabs(a - b) <= tolerance * fmax(1, fabs(a));
        if (!same)
            fail_msg("%s: element %lld of %lld is %.9g, want %.9g (seed %d)", what, (long long)i,
                     (long long)n, b, a, SEED);
    }
}
