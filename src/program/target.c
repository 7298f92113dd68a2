/* target.c: the machines that programs are compiled for. */
#include "program/target.h"

#include "pass/pass.h"

#include <string.h>

static const char *const precisions[] = {
#define X(name) #name,
    LL_PRECISIONS(X)
#undef X
};

const char *ll_precision_name(ll_precision p)
{
    return precisions[p];
}

ll_err ll_precision_parse(const char *name, ll_precision *out)
{
    *out = LL_PRECISION_f32;
    for (int p = 0; p < LL_N_PRECISION; p++)
        if (!name || !strcmp(name, precisions[p])) {
            *out = (ll_precision)p;
            return LL_OK;
        }
    FAIL(LL_E_ARG, "precision %s is not known: f32, tf32, bf16 or fp8", name);
}

enum {
    F32 = 1 << LL_PRECISION_f32,
    TF32 = 1 << LL_PRECISION_tf32,
    BF16 = 1 << LL_PRECISION_bf16,
    FP8 = 1 << LL_PRECISION_fp8,
    SHORT = BF16 | FP8
};

static bool pick_ref(const ll_op *op, const ll_kcall *c, ll_solver *out)
{
    (void)c;
    *out = (ll_solver){.run = op->ref};
    return out->run;
}

static bool pick_from(const ll_solver *list, const ll_kcall *c, ll_solver *out)
{
    const ll_solver *s = ll_solver_for(list, c);
    if (s) *out = *s;
    return s;
}

static bool pick_cpu(const ll_op *op, const ll_kcall *c, ll_solver *out)
{
    return pick_from(op->cpu, c, out);
}

static bool pick_cuda(const ll_op *op, const ll_kcall *c, ll_solver *out)
{
    return pick_from(op->cuda, c, out);
}

#define PLAIN                                                                                      \
    {ll_lower_precision, BF16, false},                                                             \
    {                                                                                              \
        ll_simplify, BF16, false                                                                   \
    }

const ll_target ll_target_ref = {
    .name = "ref",
    .precisions = F32 | BF16,
    .f64 = true,
    .stages = (const ll_stage[]){PLAIN, {0}},
    .pick = pick_ref,
};

const ll_target ll_target_cpu = {
    .name = "cpu",
    .precisions = F32 | BF16,
    .stages = (const ll_stage[]){PLAIN, {ll_fuse, 0, true}, {0}},
    .pick = pick_cpu,
};

const ll_target ll_target_cuda = {
    .name = "cuda",
    .precisions = F32 | TF32 | BF16 | FP8,
    .any_order = true,
    .f64 = true,
    .stages = (const ll_stage[]){{ll_narrow, SHORT, false},
                                 {ll_simplify, SHORT, false},
                                 {ll_even_logits, SHORT, true},
                                 {ll_epilogues, 0, true},
                                 {ll_join, 0, true},
                                 {ll_join_batchnorms, 0, true},
                                 {ll_fp8, FP8, false},
                                 {ll_simplify, FP8, false},
                                 {ll_slopes, SHORT, true},
                                 {ll_classify, SHORT, true},
                                 {ll_fuse_lone, 0, true},
                                 {0}},
    .pick = pick_cuda,
};

const ll_target *ll_target_find(const char *name)
{
    static const ll_target *const all[] = {&ll_target_ref, &ll_target_cpu, &ll_target_cuda};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i]->name, name)) return all[i];
    return NULL;
}
