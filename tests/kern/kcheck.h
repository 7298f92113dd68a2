/* kcheck.h: holds a fast kernel against its reference kernel on given operands: 1, 2 and 3 threads,
 * outputs and scratch poisoned before every call, and the same bits when called again. */
#pragma once
#include "base/rng.h"
#include "kern/kern.h"
#include "op/plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { KC_MAX = 8, KC_GUARD = 64 };

typedef struct kcheck {
    const char *name;
    ll_kernel *ref, *cpu; /* ref NULL: of the op of this name, which machine ref expands */
    ll_scratch *scratch;
    const void *attr;
    int n_in, n_out, micro;
    ll_tensor in[KC_MAX], out[KC_MAX];
    double tolerance; /* of |a - b| / (1 + |b|) */
} kcheck;

static inline size_t kc_bytes(const ll_tensor *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

/* A tensor of normal numbers times scale, plus shift. */
static inline ll_tensor kc_normal(ll_shape s, double scale, double shift)
{
    static uint64_t stream;
    ll_tensor t = {NULL, LL_F32, s};
    t.data = malloc(kc_bytes(&t) + 1);
    stream++;
    for (int64_t i = 0; i < ll_numel(&s); i++)
        ((float *)t.data)[i] = (float)(scale * ll_normal_at(11, stream, (uint64_t)i) + shift);
    return t;
}

static inline ll_tensor kc_below(ll_shape s, int n)
{
    static uint64_t stream = 1000;
    ll_tensor t = {NULL, LL_I32, s};
    t.data = malloc(kc_bytes(&t) + 1);
    stream++;
    for (int64_t i = 0; i < ll_numel(&s); i++)
        ((int32_t *)t.data)[i] = (int32_t)ll_below_at(12, stream, (uint64_t)i, (uint64_t)n);
    return t;
}

static inline void kc_out(kcheck *k, ll_shape s)
{
    k->out[k->n_out++] = (ll_tensor){NULL, LL_F32, s};
}

static inline void kc_in(kcheck *k, ll_tensor t)
{
    k->in[k->n_in++] = t;
}

static inline ll_err kc_call(const kcheck *k, ll_kernel *f, int threads, void *data[KC_MAX])
{
    ll_tensor out[KC_MAX];
    ll_kcall c = {.attr = k->attr, .n_in = k->n_in, .n_out = k->n_out, .in = k->in, .out = out};
    c.threads = threads;
    c.micro = k->micro;
    c.n_micro = k->micro + 1;
    c.seed = 5;
    c.step = 9;
    for (int i = 0; i < k->n_out; i++) {
        out[i] = k->out[i];
        out[i].data = data[i];
        memset(data[i], 0x7f, kc_bytes(&out[i]) + KC_GUARD);
    }
    size_t bytes = f == k->cpu && k->scratch ? k->scratch(&c) : 0;
    void *scratch = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(scratch, 0xff, (bytes + 127) / 64 * 64); /* NaN */
    c.scratch = scratch;
    ll_err e = LL_OK;
    if (f)
        e = f(&c);
    else
        plain_run(ll_op_find(k->name), &c);
    for (size_t i = bytes; i < (bytes + 127) / 64 * 64; i++)
        if (((unsigned char *)scratch)[i] != 0xff) fail_msg("%s: wrote past its scratch", k->name);
    for (int i = 0; i < k->n_out; i++)
        for (int b = 0; b < KC_GUARD; b++)
            if (((unsigned char *)data[i])[kc_bytes(&out[i]) + (size_t)b] != 0x7f)
                fail_msg("%s: wrote past result %d", k->name, i);
    free(scratch);
    return e;
}

static inline void kc_compare(const kcheck *k, void *const want[], void *const got[], int threads)
{
    for (int o = 0; o < k->n_out; o++)
        for (int64_t i = 0; i < ll_numel(&k->out[o].shape); i++) {
            double a = ((float *)got[o])[i], b = ((float *)want[o])[i];
            if (isnan(a) && isnan(b)) continue;
            if (!(fabs(a - b) <= k->tolerance * (1 + fabs(b)))) {
                char s[LL_SHAPE_TEXT];
                fail_msg("%s, %s, %d threads: result %d [%lld] is %.9g, want %.9g", k->name,
                         ll_shape_print(&k->in[0].shape, s), threads, o, (long long)i, a, b);
            }
        }
}

/* Runs the comparison and frees the operands. */
static inline void kc_check(kcheck *k)
{
    void *want[KC_MAX], *got[KC_MAX], *again[KC_MAX];
    for (int i = 0; i < k->n_out; i++) {
        want[i] = malloc(kc_bytes(&k->out[i]) + KC_GUARD);
        got[i] = malloc(kc_bytes(&k->out[i]) + KC_GUARD);
        again[i] = malloc(kc_bytes(&k->out[i]) + KC_GUARD);
    }
    if (kc_call(k, k->ref, 1, want) != LL_OK) fail_msg("%s: %s", k->name, ll_error_text());
    for (int threads = 1; threads <= 3; threads++) {
        if (kc_call(k, k->cpu, threads, got) != LL_OK) fail_msg("%s: %s", k->name, ll_error_text());
        if (kc_call(k, k->cpu, threads, again) != LL_OK)
            fail_msg("%s: %s", k->name, ll_error_text());
        kc_compare(k, want, got, threads);
        for (int i = 0; i < k->n_out; i++)
            if (memcmp(got[i], again[i], kc_bytes(&k->out[i])))
                fail_msg("%s: two calls with %d threads differ in bits", k->name, threads);
    }
    for (int i = 0; i < k->n_out; i++) free(want[i]), free(got[i]), free(again[i]);
    for (int i = 0; i < k->n_in; i++) free(k->in[i].data);
}
