/* target.c: the machines that programs are compiled for. */
#include "pass/target.h"

#include <stdio.h>

enum {
    F32 = 1 << LL_PRECISION_f32,
    TF32 = 1 << LL_PRECISION_tf32,
    BF16 = 1 << LL_PRECISION_bf16,
    FP8 = 1 << LL_PRECISION_fp8 | 1 << LL_PRECISION_fp8block
};

static bool pick_ref(const ll_op *op, const ll_kcall *, ll_solver *out)
{
    *out = (ll_solver){.run = op->ref};
    return out->run;
}

static bool pick_from(const ll_solver *list, const ll_kcall *c, ll_solver *out)
{
    const ll_solver *s = ll_solver_for(list, c);
    if (s) *out = *s;
    return s;
}

static bool any_f64(const ll_tensor *t, int n)
{
    bool any = false;
    for (int i = 0; i < n; i++) any |= t[i].dtype == LL_F64;
    return any;
}

/* In f64, which is for proofs, an op without fast kernels runs its plain one. */
static bool pick_cpu(const ll_op *op, const ll_kcall *c, ll_solver *out)
{
    if (!op->f64 && (any_f64(c->in, c->n_in) || any_f64(c->out, c->n_out)))
        return pick_ref(op, c, out);
    return pick_from(op->cpu, c, out);
}

static const ll_solver *choices_cpu(const ll_op *op)
{
    return op->cpu;
}

static bool pick_cuda(const ll_op *op, const ll_kcall *c, ll_solver *out)
{
    return pick_from(op->cuda, c, out);
}

/* In FLOPs. */
#define IN_A_FILE                                                                                  \
    .aside = {                                                                                     \
        .what = "a file", .flop = {1, 1, 1, 1, 1}, .byte = 4, .copy = 50 * 16384, .copied = 50}

const ll_target ll_target_ref = {
    .name = "ref",
    .precisions = F32 | BF16,
    .bucket_bytes = 4 << 20,
    .narrow = ll_lower_precision,
    .pick = pick_ref,
    IN_A_FILE,
};

const ll_target ll_target_cpu = {
    .name = "cpu",
    .precisions = F32 | BF16,
    .bucket_bytes = 4 << 20,
    .narrow = ll_lower_precision,
    .fuses = true,
    .pick = pick_cpu,
    .choices = choices_cpu,
    IN_A_FILE,
};

const ll_target ll_target_cuda = {
    .name = "cuda",
    .precisions = F32 | TF32 | BF16 | FP8,
    .any_order = true,
    .bucket_bytes = 16 << 20,
    .narrow = ll_narrow,
    .device = true,
    .fuses = true,
    .pick = pick_cuda,
    /* In ns, of an H200 on PCIe 5: 45, 350, 600 and 1000 TFLOP/s, 4 TB/s of its memory, 50 GB/s of
     * the host's. What counts is how they compare, and that is much the same on older GPUs. */
    .aside = {.word = "host",
              .what = "pinned host memory",
              .node = 2000,
              .flop = {[LL_PRECISION_f32] = 2.2e-5,
                       [LL_PRECISION_tf32] = 2.9e-6,
                       [LL_PRECISION_bf16] = 1.7e-6,
                       [LL_PRECISION_fp8] = 1e-6,
                       [LL_PRECISION_fp8block] = 1.2e-6},
              .byte = 2.5e-4,
              .copy = 5000,
              .copied = 0.02},
};

const ll_target *ll_target_find(const char *name)
{
    static const ll_target *const all[] = {
#define X(name) &ll_target_##name,
        LL_TARGETS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!name || !strcmp(all[i]->name, name)) return all[i];
    return NULL;
}

const ll_target *ll_target_device(void)
{
    return &ll_target_cuda;
}

const char *ll_aside_refused(const ll_target *t, const char *offload, char out[LL_ASIDE_TEXT])
{
    const ll_target *device = ll_target_device();
    const char *word = t->aside.word;
    if (word ? !strcmp(offload, word) : strcmp(offload, device->aside.word)) return NULL;
    if (word)
        snprintf(out, LL_ASIDE_TEXT,
                 "machine %s offloads to %s, not to files: use %s, or machine cpu", t->name,
                 t->aside.what, word);
    else
        snprintf(out, LL_ASIDE_TEXT,
                 "%s is %s, next to a GPU's own, but machine %s offloads to files: name a folder "
                 "(./%s if that is one), or use machine %s",
                 device->aside.word, device->aside.what, t->name, device->aside.word, device->name);
    return out;
}
