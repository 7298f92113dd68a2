/* trial.h: a trial of an op, as the op lists it ("f32[2,3], i32[2]<3"): its operands are drawn, its
 * results poisoned, a kernel called and held against another. */
#pragma once
#include "base/rng.h"
#include "exec/exec.h"
#include "op/op_int.h"
#include "op/plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed = 1;
static bool whole_numbers, wild; /* what draw gives; wild: among others, large and tiny ones */

typedef struct trial {
    const ll_op *op;
    const char *text;
    int n_in, n_out;
    ll_type in[LL_MAX_IN], out[LL_MAX_OUT];
    int64_t limit[LL_MAX_IN];
    void *attr;
    ll_arena *arena;
} trial;

static inline void must(ll_err rc, const trial *t, const char *what)
{
    if (rc == LL_OK) return;
    fail_msg("%s, trial \"%s\", %s: %s\n%s", t->op->name, t->text, what, ll_error_text(),
             ll_error_frames());
}

static inline size_t bytes_of(const ll_type *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

/* Whether products are rounded, which are of odd numbers then (base/num.h). */
static inline bool rounds(const trial *t)
{
    for (const ll_attr_field *f = t->op ? t->op->attrs : NULL; f && f->name; f++)
        if (!strcmp(f->name, "bits") && f->kind == LL_A_BITS)
            return *(const int64_t *)(const void *)((const char *)t->attr + f->offset);
    return false;
}

static inline double draw(const trial *t, int operand, int64_t i, uint64_t salt)
{
    uint64_t stream = ll_stream(t->text, 1000 * salt + (uint64_t)operand);
    if (!ll_dtype_is_float(t->in[operand].dtype))
        return (double)ll_below_at(seed, stream, (uint64_t)i,
                                   (uint64_t)(t->limit[operand] ? t->limit[operand] : 3));
    double v = ll_normal_at(seed, stream, (uint64_t)i);
    if (t->limit[operand] < 0) {
        static const unsigned char pairs[] = {3, 5, 6, 9, 10, 12};
        uint64_t which = ll_below_at(seed, stream + 1, (uint64_t)i / 4, sizeof pairs);
        return pairs[which] >> i % 4 & 1 ? v : 0;
    }
    if (rounds(t))
        return i % 7 == 3 ? 0 : copysign(2 * floor(fmin(fabs(v) * 0x1p36, 0x1p39 - 1)) + 1, v);
    if (whole_numbers) return t->limit[operand] ? fabs(rint(1e3 * v)) + 1 : rint(1e3 * v);
    if (wild && i % 3001 == 3) return 1e7 * fabs(v);
    if (wild && i % 3001 == 5) return 1e-39 * fabs(v);
    return t->limit[operand] ? fabs(v) + 0.2 : v;
}

static inline void *new_data(const trial *t, const ll_type *type)
{
    void *p = ll_arena_alloc(t->arena, bytes_of(type) + 64);
    memset(p, 0x7f, bytes_of(type)); /* poison: huge or NaN in every type */
    return p;
}

static inline ll_tensor new_input(const trial *t, int k, const ll_type *type, uint64_t salt)
{
    ll_tensor x = {new_data(t, type), type->dtype, type->shape};
    int64_t n = ll_numel(&type->shape);
    for (int64_t i = 0; i < n; i++) ll_store(x.data, x.dtype, i, draw(t, k, i, salt));
    return x;
}

/* Results of a trial's node with these operands; not LL_OK: the op does not take them. */
static inline ll_err infer_outputs(trial *t)
{
    ll_graph *g = ll_graph_new("trial");
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    char name[16];
    for (int i = 0; i < t->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        in[i] = ll_input(g, name, LL_PARAM, t->in[i], (ll_init){0});
    }
    ll_err rc = ll_emit_all(g, t->op, t->attr, in, t->n_in, out);
    t->n_out = t->op->n_out;
    for (int o = 0; rc == LL_OK && o < t->n_out; o++) t->out[o] = ll_value_of(g, out[o])->type;
    if (rc == LL_OK) must(ll_verify(g), t, "verify");
    ll_graph_free(g);
    return rc;
}

/* What the op gives on machine ref. */
static inline void reference(const trial *t, const ll_tensor *in, const ll_tensor *out)
{
    ll_kcall c = {.attr = t->attr, .n_in = t->n_in, .n_out = t->n_out, .in = in, .out = out};
    plain_run(t->op, &c);
}

/* s: the first that fits of this list, or of what begins with it; NULL: the reference kernel.
 * The name of who ran; NULL: none fits. */
static inline const char *call(const trial *t, const ll_solver *s, const void *attr, int threads,
                               const ll_tensor *in, const ll_tensor *out)
{
    ll_kcall c = {.attr = attr,
                  .n_in = t->n_in,
                  .n_out = t->n_out,
                  .in = in,
                  .out = out,
                  .threads = threads,
                  .n_micro = 1,
                  .seed = 5,
                  .step = 3,
                  .solver = s ? s->name : NULL};
    const ll_solver ref = {.run = t->op->ref};
    if (!s && !t->op->ref) return plain_run(t->op, &c), "";
    if (s)
        s = ll_solver_for(s, &c);
    else
        s = &ref;
    if (!s) return NULL;
    if (s->scratch) {
        size_t n = s->scratch(&c);
        char *p = (char *)ll_arena_alloc(t->arena, n + 64);
        p += (64 - (uintptr_t)p % 64) % 64;
        memset(p, 0x7f, n);
        c.scratch = p;
    }
    must(s->run(&c), t, s->name ? s->name : "kernel");
    return s->name ? s->name : "";
}

static inline double worst_difference(const ll_tensor *a, const ll_tensor *b)
{
    int64_t n = ll_numel(&a->shape);
    double worst = 0, scale = 1e-3;
    for (int64_t i = 0; i < n; i++) {
        double v = fabs(ll_load(a->data, a->dtype, i));
        if (isfinite(v) && v > scale) scale = v;
    }
    for (int64_t i = 0; i < n; i++) {
        double x = ll_load(a->data, a->dtype, i), y = ll_load(b->data, b->dtype, i);
        double d = x == y ? 0 : fabs(x - y) / scale;
        if (!(d <= worst))
            worst = isnan(d) && isnan(x) && isnan(y) ? worst : isnan(d) ? INFINITY : d;
    }
    return worst;
}

static inline double tolerance(ll_dtype t)
{
    return t == LL_F64 ? 1e-10 : t == LL_F32 ? 2e-5 : t == LL_BF16 ? 2e-2 : t == LL_F16 ? 2e-3 : 0;
}

static inline void check_same(const trial *t, const char *what, const ll_tensor *want,
                              const ll_tensor *got)
{
    for (int o = 0; o < t->n_out; o++) {
        double d = worst_difference(&want[o], &got[o]);
        if (d > tolerance(want[o].dtype))
            fail_msg("%s, trial \"%s\", %s: result %d differs by %g (seed %llu)", t->op->name,
                     t->text, what, o, d, (unsigned long long)seed);
    }
}

static inline void new_outputs(const trial *t, ll_tensor *out)
{
    for (int o = 0; o < t->n_out; o++)
        out[o] = (ll_tensor){new_data(t, &t->out[o]), t->out[o].dtype, t->out[o].shape};
}
