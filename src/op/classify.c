/* classify: a classifier's last product, its cross-entropy and the gradient of that, of which the
 * logits are never stored. Made late, for GPUs (pass/classify.c).
 *
 *     x [*,k]   w [v,k]   label i32 [*]   dloss [*]   [bias [v]]
 *     l = x w' [+ bias]
 *     e     [*,v]  exp(l - l[label]), and at the label itself 1 - sum
 *     scale [*]    dloss / sum, with sum the row's of exp(l - l[label]): so dl = scale e
 *     loss  [*]    log(sum)
 *
 * The label's logit is known before all others, and a row's largest is never less: nothing that
 * counts is lost to small numbers. Sums are too large, and the scale times x too small, for a float
 * only where a loss is very large: rows whose sum is over LL_CLASSIFY_MOST are made with the
 * largest logit, m, in place of the label's: exp(l - m), less the sum of all at the label, dloss
 * over the sum, and log(sum) + m - l[label]. */
#include "op/op_int.h"
#include "op/rows.h"

#include <stdio.h>

ll_kernel classify_ref, classify_cuda;
ll_scratch classify_cuda_scratch;

static ll_err loops(const void *attr, int n_in, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    (void)attr, (void)in;
    snprintf(dims, LL_DIMS_TEXT, "*k, vk, *, *%s -> *v, *, *", n_in == 5 ? ", v" : "");
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    ll_dtype t = i->in[0].dtype;
    CHECK(i->n_in == 4 || i->n_in == 5, LL_E_ARG, "%d operands, want 4 or 5", i->n_in);
    CHECK(t == LL_F32 || t == LL_BF16, LL_E_ARG, "operand 0 is %s, want f32 or bf16",
          ll_dtype_name(t));
    for (int k = 1; k < i->n_in; k++) {
        ll_dtype want = k == 2 ? LL_I32 : k == 3 ? LL_F32 : t;
        CHECK(i->in[k].dtype == want, LL_E_ARG, "operand %d is %s, want %s", k,
              ll_dtype_name(i->in[k].dtype), ll_dtype_name(want));
    }
    TRY(ll_infer_dims(i));
    i->out[0].dtype = t;
    i->out[1].dtype = i->out[2].dtype = LL_F32;
    return LL_OK;
}

static const ll_op classify = {
    .name = "classify",
    .n_in = -1,
    .n_out = 3,
    .loops = loops,
    .whole = "kv",
    .wide_in = 1u << 3,
    .wide_out = 1u << 1 | 1u << 2,
    .infer = infer,
    .no_grad = true,
    .flop = 2,
    .ref = classify_ref,
    .cuda = LL_GPU(LL_KERNEL(.run = classify_cuda, .scratch = classify_cuda_scratch)),
    .trials = {"f32[5,3], f32[7,3], i32[5]<7, f32[5]",
               "f32[2,3,4], f32[11,4], i32[2,3]<11, f32[2,3], f32[11]",
               "f32[4], f32[9,4], i32[]<9, f32[]", "f32[0,4], f32[4,4], i32[0]<4, f32[0]",
               "f32[70,64], f32[72,64], i32[70]<72, f32[70]",
               "f32[3,100,72], f32[392,72], i32[3,100]<392, f32[3,100], f32[392]",
               "f32[66,1032], f32[136,1032], i32[66]<136, f32[66]"},
};

const ll_op *const ll_ops_classify[] = {&classify, NULL};
