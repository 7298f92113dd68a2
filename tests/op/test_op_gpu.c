/* test_op_gpu.c: every op's GPU kernel against its reference kernel, or what
 * it means where it has none (fuse/fuse.h), on every trial that the op
 * lists, in f32 and with floats as bf16, large ones with tf32 too; twice, for the same bits.
 * Skipped with a message where there is no GPU. SEED=7, ONLY=conv2d as in test_op.c; SHARE=1/4: of
 * four programs the second, with a quarter of the tests. */
#include "ir/graph_text.h"
#include "dev/gpu.h"
#include "gpu_context.h"
#include "kern/cuda/trouble.h"
#include "op/trial.h"

static ll_gpu *gpu;
static bool tf32;       /* operands of products may be rounded to tf32 */
static const char *way; /* the solver to try; NULL: the one that a program takes */

/* A poisoned tensor; k >= 0: with operand k's numbers. */
static ll_tensor host_tensor(const trial *t, const ll_type *type, int k)
{
    if (k >= 0) return new_input(t, k, type, 0);
    return (ll_tensor){new_data(t, type), type->dtype, type->shape};
}

static double allowed(ll_dtype t)
{
    if (t == LL_F32 && tf32) return 2e-3;                /* 11 bits of each operand */
    if (t == LL_F8_E4M3 || t == LL_F8_E5M2) return 0.15; /* a step of the largest numbers */
    return t == LL_F64 ? 1e-10 : t == LL_F32 ? 3e-5 : t == LL_BF16 ? 2e-2 : t == LL_F16 ? 3e-3 : 0;
}

typedef struct on_gpu {
    ll_tensor in[LL_MAX_IN], out[LL_MAX_OUT];
    void *scratch, *clock, *trouble;
    ll_kernel *kernel;
    ll_kcall call;
} on_gpu;

static void upload(const trial *t, on_gpu *d, const ll_tensor *in)
{
    uint64_t clock = ll_stream("", 3);
    int64_t none[LL_TROUBLE_WORDS] = {0};
    for (int i = 0; i < t->n_in; i++) {
        d->in[i] = in[i];
        must(ll_gpu_alloc(gpu, bytes_of(&t->in[i]), &d->in[i].data), t, "memory");
        must(ll_gpu_write(gpu, d->in[i].data, in[i].data, bytes_of(&t->in[i])), t, "upload");
    }
    for (int o = 0; o < t->n_out; o++) {
        d->out[o] = (ll_tensor){NULL, t->out[o].dtype, t->out[o].shape};
        must(ll_gpu_alloc(gpu, bytes_of(&t->out[o]), &d->out[o].data), t, "memory");
    }
    must(ll_gpu_alloc(gpu, 8, &d->clock), t, "memory");
    must(ll_gpu_write(gpu, d->clock, &clock, 8), t, "upload");
    must(ll_gpu_alloc(gpu, sizeof none, &d->trouble), t, "memory");
    must(ll_gpu_write(gpu, d->trouble, none, sizeof none), t, "upload");
    must(ll_gpu_wait(gpu), t, "upload");
    d->call = (ll_kcall){.attr = t->attr,
                         .n_in = t->n_in,
                         .n_out = t->n_out,
                         .in = d->in,
                         .out = d->out,
                         .threads = 1,
                         .n_micro = 1,
                         .seed = 5,
                         .step = 3,
                         .ctx = gpu_context(),
                         .stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE),
                         .clock = (const uint64_t *)d->clock,
                         .trouble = (int64_t *)d->trouble,
                         .solver = way,
                         .tf32 = tf32};
    const ll_solver *s = ll_solver_for(t->op->cuda, &d->call);
    d->kernel = NULL;
    d->scratch = NULL;
    if (s && way && (!s->name || strcmp(s->name, way) != 0)) return; /* it does not fit */
    if (!s) fail_msg("%s, trial \"%s\": no kernel for GPUs fits", t->op->name, t->text);
    d->kernel = s->run;
    size_t n = s->scratch ? s->scratch(&d->call) : 0;
    must(ll_gpu_alloc(gpu, n, &d->scratch), t, "memory");
    must(ll_gpu_fill(gpu, d->scratch, 0x7f, n), t, "poison");
    d->call.scratch = d->scratch;
}

static void release(const trial *t, on_gpu *d)
{
    for (int i = 0; i < t->n_in; i++) ll_gpu_free(gpu, d->in[i].data);
    for (int o = 0; o < t->n_out; o++) ll_gpu_free(gpu, d->out[o].data);
    ll_gpu_free(gpu, d->clock);
    ll_gpu_free(gpu, d->trouble);
    ll_gpu_free(gpu, d->scratch);
}

/* False: the way that is tried does not fit. */
static bool run_twice(const trial *t, const ll_tensor *in, ll_tensor *got, ll_tensor *again)
{
    on_gpu d;
    int64_t trouble[LL_TROUBLE_WORDS];
    upload(t, &d, in);
    bool fits = d.kernel != NULL;
    for (int k = 0; k < 2 && fits; k++) {
        for (int o = 0; o < t->n_out; o++)
            must(ll_gpu_fill(gpu, d.out[o].data, 0x7f, bytes_of(&t->out[o])), t, "poison");
        must(d.kernel(&d.call), t, "kernel");
        for (int o = 0; o < t->n_out; o++)
            must(ll_gpu_read(gpu, (k ? again : got)[o].data, d.out[o].data, bytes_of(&t->out[o])),
                 t, "download");
        must(ll_gpu_wait(gpu), t, "run");
    }
    must(ll_gpu_read(gpu, trouble, d.trouble, sizeof trouble), t, "download");
    must(ll_gpu_wait(gpu), t, "run");
    if (trouble[0])
        fail_msg("%s, trial \"%s\": trouble %lld", t->op->name, t->text, (long long)trouble[0]);
    release(t, &d);
    return fits;
}

/* Trials that reach kernels which small ones do not, too large for test_op.c; wide: how far results
 * that stay f32 may be off. */
static const struct {
    const char *op, *trial;
    double wide;
} large[] = {
    /* many rows: a block has several groups of warps, which take rows again and again */
    {"layernorm_back_sum", "f32[40003,8], f32[40003,8], f32[8], f32[40003], f32[40003]>", 0},
    {"layernorm_back_sum",
     "f32[9001,520], f32[9001,520], f32[520], f32[9001], f32[9001]>, f32[9001,520]", 0},
    {"layernorm_back", "f32[3001,1032], f32[3001,1032], f32[1032], f32[3001], f32[3001]>", 0},
    /* 2:4 weights: a tile and less; several of features, rows and k, with ends */
    {"product1",
     "bf16[3,70,80], bf16[2,72,80]%, bf16[2,72] {spec=\"btc,gfc->btgf\", out=bf16, bias=1, act=0, "
     "sparse=1}",
     0},
    {"product1",
     "bf16[1000,848], bf16[1032,848]% {spec=\"rk,nk->rn\", out=bf16, bias=0, act=0, sparse=1}", 0},
    {"sumsq", "f32[1000003] {spec=\"a->\"}", 0},
    {"sumsq", "f32[300,1200] {spec=\"ab->\"}", 0},
    {"sum", "f32[5000,264] {spec=\"ab->b\"}", 0},
    {"attention", "f32[2,40,3,1,64]", 1e-5},
    {"attention", "f32[1,128,3,3,16]", 1e-5},
    {"attention", "f32[2,77,3,1,32]", 1e-5},
    {"attention", "f32[1,300,3,1,8]", 1e-5},
    {"attention", "f32[1,33,3,1,128]", 1e-5},
    {"attention", "f32[1,40,3,1,20]", 1e-5}, /* heads that cuDNN does not take */
    {"attention", "f32[1,20,3,1,136]", 1e-5},
    {"attention", "f32[1,129,3,2,32]", 1e-5},
    {"attention", "f32[3,1,3,2,64]", 1e-5},
    {"attention_grad", "f32[2,40,1,64], f32[2,40,3,1,64], f32[2,40,1,64], f32[2,1,40]", 0},
    {"attention_grad", "f32[1,128,3,16], f32[1,128,3,3,16], f32[1,128,3,16], f32[1,3,128]", 0},
    {"attention_grad", "f32[2,77,1,32], f32[2,77,3,1,32], f32[2,77,1,32], f32[2,1,77]", 0},
    {"attention_grad", "f32[1,300,1,8], f32[1,300,3,1,8], f32[1,300,1,8], f32[1,1,300]", 0},
    {"attention_grad", "f32[1,33,1,128], f32[1,33,3,1,128], f32[1,33,1,128], f32[1,1,33]", 0},
    {"attention_grad", "f32[1,129,2,32], f32[1,129,3,2,32], f32[1,129,2,32], f32[1,2,129]", 0},
    {"attention_grad", "f32[3,1,2,64], f32[3,1,3,2,64], f32[3,1,2,64], f32[3,2,1]", 0},
    {"attention_grad", "f32[1,40,1,20], f32[1,40,3,1,20], f32[1,40,1,20], f32[1,1,40]", 0},
    /* several chunks, tiles that are not full; numbers above 0, so that sums do not cancel */
    {"linear_attend",
     "f32[2,200,2,3,64]>, f32[2,200,2,64]>, f32[2,200,2,64]> {decay=5, ahead=0, at=0}", 1e-2},
    {"linear_attend",
     "f32[1,129,1,1,72]>, f32[1,300,1,72]>, f32[1,300,1,130]> {decay=0, ahead=171, "
     "at=0}",
     1e-2},
    {"linear_attend",
     "f32[1,150,2,1,20]>, f32[1,100,2,20]>, f32[1,100,2,5]> {decay=1, ahead=-70, "
     "at=3}",
     1e-2},
    {"linear_attend_grad",
     "f32[2,200,2,3,64]>, f32[2,2,3,200]>, f32[2,200,2,3,64]>, f32[2,200,2,64]>, f32[2,200,2,64]> "
     "{decay=5, ahead=0, at=0}",
     0},
    {"linear_attend_grad",
     "f32[1,129,1,1,130]>, f32[1,1,1,129]>, f32[1,129,1,1,72]>, f32[1,300,1,72]>, "
     "f32[1,300,1,130]> "
     "{decay=0, ahead=171, at=0}",
     0},
    {"linear_attend_grad",
     "f32[1,150,2,1,5]>, f32[1,2,1,150]>, f32[1,150,2,1,20]>, f32[1,100,2,20]>, f32[1,100,2,5]> "
     "{decay=1, ahead=-70, at=3}",
     0},
    {"attend",
     "f32[2,130,2,3,64], f32[2,130,2,64], f32[2,130,2,64] {scale=0.125, causal=1, ahead=0}", 1e-2},
    {"attend", "f32[1,70,1,2,40], f32[1,197,1,40], f32[1,197,1,24] {scale=0.2, causal=1, ahead=65}",
     1e-2},
    {"attend",
     "f32[2,65,2,1,128], f32[2,64,2,128], f32[2,64,2,128], f32[2,1,1,65,64] {scale=0.1, causal=0, "
     "ahead=0}",
     1e-2},
    {"attend", "f32[1,129,1,1,16], f32[1,60,1,16], f32[1,60,1,16] {scale=0.3, causal=1, ahead=-40}",
     1e-2},
    {"attend_grad",
     "f32[2,130,2,3,64], f32[2,130,2,3,64], f32[2,130,2,64], f32[2,130,2,64], f32[2,2,3,130], "
     "f32[2,2,3,130] {scale=0.125, causal=1, ahead=0}",
     0},
    {"attend_grad",
     "f32[1,70,1,2,24], f32[1,70,1,2,40], f32[1,197,1,40], f32[1,197,1,24], f32[1,1,2,70], "
     "f32[1,1,2,70] {scale=0.2, causal=1, ahead=65}",
     0},
    {"attend_grad",
     "f32[2,65,2,1,128], f32[2,65,2,1,128], f32[2,64,2,128], f32[2,64,2,128], f32[2,2,1,65], "
     "f32[2,2,1,65], f32[2,1,1,65,64] {scale=0.1, causal=0, ahead=0}",
     0},
    {"attend_grad",
     "f32[1,129,1,1,16], f32[1,129,1,1,16], f32[1,60,1,16], f32[1,60,1,16], f32[1,1,1,129], "
     "f32[1,1,1,129] {scale=0.3, causal=1, ahead=-40}",
     0},
    {"matmul", "f32[64,400], f32[120,400] {spec=\"mk,nk->mn\", out=f32}", 0},
    {"matmul", "f32[64,120], f32[64,401] {spec=\"km,kn->mn\", out=f32}", 0},
    {"matmul", "f32[331,53], f32[53,337] {spec=\"mk,kn->mn\", out=f32}", 0},
    {"product1", "f32[64,84], f32[10,84], f32[10] {spec=\"rk,nk->rn\", out=f32, bias=1, act=0}", 0},
    {"product1", "f32[61,257], f32[130,257], f32[130] {spec=\"rk,nk->rn\", out=f32, bias=1, act=1}",
     0},
#define FIVE "stride=[1,1], pad=[0,0,0,0], dilation=[1,1], groups=1"
#define ONE_TAP "stride=[2,3], pad=[0,0,0,0], dilation=[1,1], groups=1"
    {"conv2d", "f32[150,14,14,6], f32[16,5,5,6] {" FIVE "}", 0},
    {"conv2d_dx", "f32[150,10,10,16], f32[16,5,5,6] {" FIVE ", size=[14,14]}", 0},
    {"conv2d_dw", "f32[150,10,10,16], f32[150,14,14,6] {" FIVE ", size=[5,5]}", 0},
    {"conv2d_dw", "f32[3,24,24,6], f32[3,28,28,1] {" FIVE ", size=[5,5]}", 0},
    {"conv2d", "f32[2,9,8,5], f32[7,1,1,5] {" ONE_TAP "}", 0},
    {"conv2d", "f32[2,9,8,12], f32[7,1,1,12] {" ONE_TAP "}", 0},
    {"conv2d_dx", "f32[2,5,3,7], f32[7,1,1,5] {" ONE_TAP ", size=[9,8]}", 0},
    {"conv2d_dx", "f32[2,5,3,7], f32[7,1,1,12] {" ONE_TAP ", size=[10,7]}", 0},
    {"conv2d_dw", "f32[2,5,3,7], f32[2,9,8,5] {" ONE_TAP ", size=[1,1]}", 0},
    /* tiles of 256, 128 and 64 columns: one and several across and down, with ends, of one piece of
     * channels and many; sums of numbers above 0, whose squares' are far more than their variance
     */
    {"tap_stats", "f32[5,59,59,64], f32[200,1,1,64]", 1e-3},
    {"tap_stats", "f32[1,23,29,256], f32[512,1,1,256]", 1e-3},
    {"tap_stats", "f32[3,41,43,136], f32[120,1,1,136]", 1e-3},
    {"tap_stats", "f32[1,17,13,512], f32[384,1,1,512]", 1e-3},
    {"tap_stats", "f32[5,61,59,64]>, f32[64,1,1,64]>", 3e-3},
    {"tap_stats", "f32[2,13,11,1000], f32[136,1,1,1000]", 1e-3},
    {"tap_stats", "f32[1,47,29,136], f32[1032,1,1,136]", 1e-3},
    {"conv2d_dx",
     "f32[2,33,9,40], f32[40,3,3,37] {stride=[1,1], pad=[1,1,1,1], dilation=[1,1], groups=1, "
     "size=[33,9]}",
     0},
};

/* as: the element type that f32 operands take, but for those that stay f32 beside it; LL_F32: as
 * they are. wide: how far f32 results may be off then; 0: as far as others. False: the op does not
 * take it. */
static bool test_trial(const ll_op *op, const char *text, ll_dtype as, double wide)
{
    trial t = {.op = op, .text = text, .arena = ll_arena_new()};
    ll_tensor in[LL_MAX_IN], want[LL_MAX_OUT], got[LL_MAX_OUT], again[LL_MAX_OUT];
    must(ll_parse_trial(op, text, t.arena, &t.n_in, t.in, t.limit, &t.attr), &t, "parse");
    for (int i = 0; i < t.n_in; i++)
        if (t.in[i].dtype == LL_F32 && !(op->wide_in >> i & 1)) t.in[i].dtype = as;
    ll_err rc = infer_outputs(&t);
    if (rc != LL_OK && as != LL_F32) {
        ll_arena_free(t.arena);
        return false;
    }
    must(rc, &t, "shapes");
    for (int i = 0; i < t.n_in; i++) in[i] = host_tensor(&t, &t.in[i], i);
    for (int o = 0; o < t.n_out; o++) {
        want[o] = host_tensor(&t, &t.out[o], -1);
        got[o] = host_tensor(&t, &t.out[o], -1);
        again[o] = host_tensor(&t, &t.out[o], -1);
    }
    call(&t, NULL, t.attr, 1, in, want);
    bool ran = run_twice(&t, in, got, again);
    for (int o = 0; o < t.n_out && ran; o++) {
        double d = worst_difference(&want[o], &got[o]);
        double limit = rounds(&t) ? 0 : allowed(want[o].dtype);
        if (as == LL_BF16 && limit < allowed(as))
            limit = wide && want[o].dtype == LL_F32 ? wide : allowed(as);
        /* Sums of columns are of results as they are kept, but by Hopper's kernels. */
        bool hopper = !way && ll_cuda_level(gpu_context()) == 90 &&
                      t.in[0].shape.d[t.in[0].shape.n - 1] % 8 == 0;
        bool sums =
            !strcmp(op->name, "product2") || (as == LL_BF16 && !strcmp(op->name, "tap_stats"));
        if (sums && !hopper) limit = allowed(LL_BF16);
        if (d > limit)
            fail_msg("%s, trial \"%s\" as %s%s%s: result %d differs by %g (seed %llu)", op->name,
                     text, ll_dtype_name(as), way ? " by " : "", way ? way : "", o, d,
                     (unsigned long long)seed);
        if (memcmp(got[o].data, again[o].data, bytes_of(&t.out[o])))
            fail_msg("%s, trial \"%s\" as %s%s%s: result %d is not the same twice", op->name, text,
                     ll_dtype_name(as), way ? " by " : "", way ? way : "", o);
    }
    ll_arena_free(t.arena);
    return true;
}

static void test_trials(const ll_op *op)
{
    for (size_t i = 0; i < sizeof op->trials / sizeof *op->trials && op->trials[i]; i++) {
        test_trial(op, op->trials[i], LL_F32, 0);
        test_trial(op, op->trials[i], LL_BF16, 0);
    }
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        if (!strcmp(large[i].op, op->name)) {
            test_trial(op, large[i].trial, LL_F32, 0);
            test_trial(op, large[i].trial, LL_BF16, large[i].wide);
            tf32 = true;
            test_trial(op, large[i].trial, LL_F32, 0);
            tf32 = false;
        }
}

static void test_op(void **state)
{
    const ll_op *op = (const ll_op *)*state;
    if (!op->cuda) fail_msg("%s has no kernel for GPUs", op->name);
    test_trials(op);
    for (const ll_solver *s = op->cuda; s->run; s++, way = NULL) /* and those behind it that fit */
        if (s->name && !s->asked && s != op->cuda) way = s->name, test_trials(op);
}

/* ---- several calls as one launch: the bits of single ones ---- */

enum { MANY = 5 };

static void open_call(trial *t, on_gpu *d)
{
    ll_tensor in[LL_MAX_IN];
    t->arena = ll_arena_new();
    must(ll_parse_trial(t->op, t->text, t->arena, &t->n_in, t->in, t->limit, &t->attr), t, "parse");
    must(infer_outputs(t), t, "shapes");
    for (int i = 0; i < t->n_in; i++) in[i] = host_tensor(t, &t->in[i], i);
    upload(t, d, in);
}

enum { MOST_SUMS = 1032 };

static void test_many(const char *op, const char *const texts[MANY])
{
    trial t[MANY];
    on_gpu d[MANY];
    const ll_kcall *calls[MANY];
    static float one[MANY][MOST_SUMS], many[MANY][MOST_SUMS];
    void *table;
    for (int i = 0; i < MANY; i++) {
        t[i] = (trial){.op = ll_op_find(op), .text = texts[i]};
        open_call(&t[i], &d[i]);
        calls[i] = &d[i].call;
        must(d[i].kernel(&d[i].call), &t[i], "kernel");
        size_t n = bytes_of(&t[i].out[0]);
        assert_true(n <= sizeof one[i]);
        must(ll_gpu_read(gpu, one[i], d[i].out[0].data, n), &t[i], "download");
        must(ll_gpu_wait(gpu), &t[i], "run");
        must(ll_gpu_fill(gpu, d[i].out[0].data, 0x7f, n), &t[i], "poison");
    }
    const ll_many *m = t[0].op->cuda->many;
    for (int i = 1; i < MANY; i++) assert_true(m->alike(calls[0], calls[i]));
    size_t bytes = m->table(calls, MANY, NULL);
    void *image = ll_arena_alloc(t[0].arena, bytes);
    m->table(calls, MANY, image);
    must(ll_gpu_alloc(gpu, bytes, &table), &t[0], "memory");
    must(ll_gpu_write(gpu, table, image, bytes), &t[0], "upload");
    must(m->run(calls, MANY, table), &t[0], "kernels as one");
    for (int i = 0; i < MANY; i++)
        must(ll_gpu_read(gpu, many[i], d[i].out[0].data, bytes_of(&t[i].out[0])), &t[i],
             "download");
    must(ll_gpu_wait(gpu), &t[0], "run");
    for (int i = 0; i < MANY; i++) assert_memory_equal(one[i], many[i], bytes_of(&t[i].out[0]));
    ll_gpu_free(gpu, table);
    for (int i = 0; i < MANY; i++) {
        release(&t[i], &d[i]);
        ll_arena_free(t[i].arena);
    }
}

static void test_many_squares(void **state)
{
    static const char *const texts[MANY] = {
        "f32[7,5] {spec=\"ab->\"}", "f32[300,1200] {spec=\"ab->\"}", "f32[70001] {spec=\"a->\"}",
        "f32[768] {spec=\"a->\"}", "f32[64,1032] {spec=\"ab->\"}"};
    (void)state;
    test_many("sumsq", texts);
}

static void test_many_columns(void **state)
{
    static const char *const texts[MANY] = {
        "f32[64,10] {spec=\"ab->b\"}", "f32[64,14,14,6] {spec=\"abcd->d\"}",
        "f32[64,120] {spec=\"ab->b\"}", "f32[9,5,4,3] {spec=\"abcd->bd\"}",
        "f32[4097,1032] {spec=\"ab->b\"}"};
    (void)state;
    test_many("sum", texts);
}

/* ---- 8-bit floats: what is too large is counted, infinity is no number ---- */

static void test_saturated(void **state)
{
    static const char *const texts[] = {"f32[64,128] {dtype=e4m3, rows=1, sample=16}",
                                        "bf16[64,128] {dtype=e5m2, rows=1, sample=16}",
                                        "f32[60,30] {dtype=e5m2, rows=1, sample=16}"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        trial t = {.op = ll_op_find("quantize"), .text = texts[i], .arena = ll_arena_new()};
        ll_tensor in[LL_MAX_IN], got;
        int64_t trouble[LL_TROUBLE_WORDS];
        on_gpu d;
        must(ll_parse_trial(t.op, t.text, t.arena, &t.n_in, t.in, t.limit, &t.attr), &t, "parse");
        must(infer_outputs(&t), &t, "shapes");
        in[0] = host_tensor(&t, &t.in[0], 0);
        got = host_tensor(&t, &t.out[0], -1);
        int64_t cols = t.in[0].shape.d[1], n = ll_numel(&t.in[0].shape);
        int64_t row = LL_QUANTIZE_FIRST(ll_stream("", 3), n / cols, 16) ? 0 : 1; /* is not seen */
        for (int64_t k = 0; k < n; k++) ll_store(in[0].data, in[0].dtype, k, 1);
        ll_store(in[0].data, in[0].dtype, row * cols + 3, -1e6);
        ll_store(in[0].data, in[0].dtype, row * cols + 4, 2e7);
        ll_store(in[0].data, in[0].dtype, row * cols + 9, INFINITY);
        upload(&t, &d, in);
        must(d.kernel(&d.call), &t, "kernel");
        must(ll_gpu_read(gpu, got.data, d.out[0].data, bytes_of(&t.out[0])), &t, "download");
        must(ll_gpu_read(gpu, trouble, d.trouble, sizeof trouble), &t, "download");
        must(ll_gpu_wait(gpu), &t, "run");
        assert_int_equal(trouble[0], 0);
        assert_int_equal(trouble[LL_TROUBLE_SATURATED], 2);
        assert_true(isnan(ll_load(got.data, got.dtype, row * cols + 9)));
        assert_true(ll_load(got.data, got.dtype, row * cols + 3) < -400);
        release(&t, &d);
        ll_arena_free(t.arena);
    }
}

/* ---- classify: gradients of losses that are small, usual, and too large for sums in f32 ---- */

/* The largest difference of scale e, by what the row's loss counts. */
static double gradients_differ(const ll_tensor *want, const ll_tensor *got, const ll_tensor *dloss)
{
    int64_t rows = ll_numel(&dloss->shape), n = ll_numel(&want[0].shape) / rows;
    double most = 0;
    for (int64_t i = 0; i < rows * n; i++) {
        double d = 0;
        for (int k = 0; k < 2; k++) {
            const ll_tensor *y = k ? got : want;
            d += (k ? -1 : 1) * ll_load(y[0].data, y[0].dtype, i) *
                 ll_load(y[1].data, y[1].dtype, i / n);
        }
        d = fabs(d / ll_load(dloss->data, dloss->dtype, i / n));
        if (!(d <= most)) most = isnan(d) ? INFINITY : d;
    }
    return most;
}

static void test_classify(void **state)
{
    static const char *const texts[] = {
        "bf16[300,72], bf16[392,72], i32[300]<392, f32[300]",
        "bf16[70,136], bf16[1000,136], i32[70]<1000, f32[70], bf16[1000]"};
    static const double by[] = {0.05, 0.5, 4};
    (void)state;
    for (int i = 0; i < 6; i++) {
        trial t = {.op = ll_op_find("classify"), .text = texts[i / 3], .arena = ll_arena_new()};
        ll_tensor in[LL_MAX_IN], want[LL_MAX_OUT], got[LL_MAX_OUT], again[LL_MAX_OUT];
        must(ll_parse_trial(t.op, t.text, t.arena, &t.n_in, t.in, t.limit, &t.attr), &t, "parse");
        must(infer_outputs(&t), &t, "shapes");
        for (int k = 0; k < t.n_in; k++) in[k] = host_tensor(&t, &t.in[k], k);
        for (int64_t k = 0; k < ll_numel(&in[0].shape); k++)
            ll_store(in[0].data, LL_BF16, k, by[i % 3] * ll_load(in[0].data, LL_BF16, k));
        for (int o = 0; o < t.n_out; o++) {
            want[o] = host_tensor(&t, &t.out[o], -1);
            got[o] = host_tensor(&t, &t.out[o], -1);
            again[o] = host_tensor(&t, &t.out[o], -1);
        }
        reference(&t, in, want);
        run_twice(&t, in, got, again);
        double d = gradients_differ(want, got, &in[3]), e = worst_difference(&want[2], &got[2]);
        if (d > 8e-3 || e > 1e-5)
            fail_msg("trial \"%s\" times %g: gradients differ by %g, losses by %g (seed %llu)",
                     t.text, by[i % 3], d, e, (unsigned long long)seed);
        ll_arena_free(t.arena);
    }
}

/* Initial values: the bits that a CPU draws, of a whole and of a part of it. */
static void test_draw(void **state)
{
    (void)state;
    enum { N = 5 * 7 * 1013 };
    static double got[N];
    const float *got_f32 = (const float *)got;
    void *data;
    assert_int_equal(ll_gpu_alloc(gpu, sizeof got, &data), LL_OK);
    for (int kind = 0; kind < 8; kind++) {
        bool normal = kind & 1, f64 = kind & 2, part = kind & 4;
        ll_gpu_drawing d = {
            .seed = seed, .stream = ll_stream("w", 0), .normal = normal, .f64 = f64};
        d.scale = 0.02;
        d.shape = LL_SHAPE(5, 7, 1013);
        d.whole = part ? LL_SHAPE(9, 11, 2001) : d.shape;
        for (int k = 0; k < 3; k++) d.at[k] = part ? 1 + k : 0;
        assert_int_equal(ll_gpu_draw(gpu, data, &d), LL_OK);
        assert_int_equal(ll_gpu_read(gpu, got, data, f64 ? sizeof got : sizeof got / 2), LL_OK);
        assert_int_equal(ll_gpu_wait(gpu), LL_OK);
        for (int i = 0; i < N; i++) {
            int64_t k =
                ((i / 7091 + d.at[0]) * d.whole.d[1] + i / 1013 % 7 + d.at[1]) * d.whole.d[2] +
                i % 1013 + d.at[2];
            double v = normal ? ll_normal_at(seed, d.stream, (uint64_t)k)
                              : 2.0 * ll_uniform_at(seed, d.stream, (uint64_t)k) - 1.0;
            assert_true(f64 ? got[i] == 0.02 * v : got_f32[i] == (float)(0.02 * v));
        }
    }
    ll_gpu_free(gpu, data);
}

/* Most of a test is its reference, on one core. */
static size_t keep_share(struct CMUnitTest *tests, size_t n)
{
    const char *text = getenv("SHARE");
    size_t k = 0, of = 1, kept = 0;
    if (text && (sscanf(text, "%zu/%zu", &k, &of) != 2 || k >= of)) {
        printf("SHARE is %s, want such as 0/4\n", text);
        exit(2);
    }
    for (size_t i = k; i < n; i += of) tests[kept++] = tests[i];
    return kept;
}

int main(void)
{
    const char *s = getenv("SEED"), *only = getenv("ONLY");
    if (s) seed = strtoull(s, NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    if (!ll_gpu_count()) {
        printf("skipped: no GPU here\n");
        return 77; /* as CMakeLists.txt says */
    }
    if (ll_gpu_open(0, &gpu) != LL_OK) {
        printf("%s\n", ll_error_text());
        return 1;
    }
    static struct CMUnitTest tests[256];
    size_t n = 0;
    for (const ll_op *const *op = ll_ops(); *op && n < 250; op++) {
        /* No kernel that says what it means: a fusion's, of the CPU. */
        bool cpu_alone = (*op)->cpu && !(*op)->ref && !(*op)->cuda;
        if (!(*op)->collective && !cpu_alone && (!only || !strcmp(only, (*op)->name)))
            tests[n++] =
                (struct CMUnitTest){(*op)->name, test_op, NULL, NULL, (void *)(uintptr_t)*op};
    }
    if (!only || !strcmp(only, "many")) {
        tests[n++] = (struct CMUnitTest){"many squares", test_many_squares, NULL, NULL, NULL};
        tests[n++] = (struct CMUnitTest){"many columns", test_many_columns, NULL, NULL, NULL};
    }
    if (!only || !strcmp(only, "draw"))
        tests[n++] = (struct CMUnitTest){"initial values", test_draw, NULL, NULL, NULL};
    if (!only || !strcmp(only, "quantize"))
        tests[n++] = (struct CMUnitTest){"saturated numbers", test_saturated, NULL, NULL, NULL};
    if (!only || !strcmp(only, "classify"))
        tests[n++] = (struct CMUnitTest){"rows of classify", test_classify, NULL, NULL, NULL};
    return _cmocka_run_group_tests("op on a GPU", tests, keep_share(tests, n), NULL, NULL);
}
