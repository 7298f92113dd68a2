/* Programs on a GPU: launches of several instructions, captured and replayed, leave the bits of
 * instructions run one by one; values laid aside in pinned memory change none; collectives by NCCL.
 * Skipped with a message where there is no GPU. */
#include "exec/session.h"

#include "base/rng.h"
#include "dev/group.h"
#include "kern/attr.h"
#include "run/run.h"
#include "train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());               \
    } while (0)

static const char *const runs[] = {
    "model: {name: lenet5}\ntrain: {batch: 6, optimizer: adamw, weight_decay: 0.1, clip: 1}\n",
    "model: {name: gpt, layers: 2, width: 48, heads: 3, seq: 19, vocab: 37, dropout: 100}\n"
    "train: {batch: 4, micro_batch: 2, clip: 1, precision: bf16}\n",
    "model: {name: resnet18, image: 16, channels: 1, classes: 5}\n"
    "train: {batch: 3, optimizer: nesterov, weight_decay: 1e-4, precision: bf16}\n",
    "model: {name: gpt, layers: 2, width: 128, heads: 2, seq: 64, vocab: 64}\n"
    "train: {batch: 4, clip: 1, machine: cuda, precision: fp8}\n",
    "model: {name: gpt, layers: 2, width: 128, heads: 2, seq: 64, vocab: 64}\n"
    "train: {batch: 4, clip: 1, machine: cuda, precision: fp8block}\n",
};

static ll_run *run_of(const char *text)
{
    ll_run *r;
    MUST(ll_run_parse(text, strlen(text), "gpu.yaml", &r));
    MUST(ll_run_finish(r));
    return r;
}

/* Batches that a model can read: labels and tokens are 0 or 1. */
static void feed(ll_session *s, int step)
{
    const ll_program *p = s->p;
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *x = &p->slots[p->inputs[i].slot];
        if (x->kind != LL_BATCH) continue;
        int64_t n = ll_numel(&x->type.shape) * p->n_micro;
        void *data = ll_exec_data(s->e, p->inputs[i].slot, 0);
        for (int64_t k = 0; k < n; k++)
            ll_store(data, x->type.dtype, k,
                     (double)ll_below_at(1, (uint64_t)step, (uint64_t)k, 2));
        MUST(ll_exec_changed(s->e, p->inputs[i].slot));
    }
}

static void open_session(const ll_run *r, ll_graph **g, ll_session **s)
{
    int n_micro = (int)ll_run_micro_batches(r);
    MUST(ll_run_graph(r, r->train.batch / n_micro, &r->train.optim, g));
    ll_session_opts o = {.machine = "cuda",
                         .threads = 1,
                         .micro_batches = n_micro,
                         .precision = ll_precision_name(r->train.precision)};
    MUST(ll_session_open(*g, &o, s));
    (*s)->checked = true; /* batch data is written where it lies */
}

static void scalar(ll_session *s, const char *name, double v)
{
    int slot = ll_program_input(s->p, name);
    float f = (float)v;
    if (slot >= 0) MUST(ll_exec_put(s->e, slot, 0, &f));
}

static void single_step(ll_session *s, uint64_t step)
{
    scalar(s, "lr", 1e-3);
    scalar(s, "t", (double)step + 1);
    for (int k = 0; k < LL_N_SECTION; k++) MUST(ll_exec_run_checked(s->e, k, step));
}

static void check_same(ll_session *a, ll_session *b, const char *text)
{
    const ll_program *p = a->p;
    for (int i = 0; i < a->n_kept; i++) {
        int slot = a->kept[i], other = ll_program_input(b->p, p->slots[slot].name);
        const void *x = ll_exec_data(a->e, slot, 0);
        const void *y = ll_exec_data(b->e, other, 0);
        if (memcmp(x, y, p->slots[slot].bytes))
            fail_msg("%s: %s is not the same", text, p->slots[slot].name);
    }
}

static ll_gpu_facts facts(void)
{
    ll_gpu *g;
    ll_gpu_facts f;
    MUST(ll_gpu_open(0, &g));
    MUST(ll_gpu_ask(g, &f));
    ll_gpu_close(g);
    return f;
}

static void bits_of_single_launches(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        ll_run *r = run_of(runs[k]);
        ll_graph *g[2];
        ll_session *s[2];
        for (int i = 0; i < 2; i++) open_session(r, &g[i], &s[i]);
        int n = s[0]->p->n_instr, m = s[0]->e->n_launch;
        print_message("%s: %d instructions, %d launches\n", r->model.name, n, m);
        assert_true(m < n);
        ll_gpu_facts before = {0}, after;
        for (int step = 0; step < 6; step++) {
            if (step == 3) before = facts();
            for (int i = 0; i < 2; i++) feed(s[i], step);
            MUST(ll_session_run(s[0], 1e-3));
            single_step(s[1], (uint64_t)step);
            check_same(s[0], s[1], r->model.name);
        }
        after = facts();
        assert_int_equal(after.free_bytes, before.free_bytes); /* nothing allocates in a step */
        for (int i = 0; i < 2; i++) {
            ll_session_close(s[i]);
            ll_graph_free(g[i]);
        }
        ll_run_free(r);
    }
}

/* ---- laid aside ---- */

/* Within so many percent of another's memory, less scratch, which nothing makes smaller; NULL: it
 * cannot be. */
static ll_session *open_within(const ll_run *r, ll_graph *g, const ll_program *like, int share)
{
    ll_session *s;
    ll_session_opts o = {.machine = "cuda", .threads = 1, .offload = "host"};
    o.memory = like->scratch_bytes + (like->bytes - like->scratch_bytes) / 100 * (size_t)share;
    o.micro_batches = (int)ll_run_micro_batches(r);
    o.precision = ll_precision_name(r->train.precision);
    ll_err rc = ll_session_open(g, &o, &s);
    if (rc == LL_E_MEM) return NULL;
    MUST(rc);
    s->checked = true;
    s->e->opts.poison = true; /* what is read too late would be NaN */
    return s;
}

/* All state is as its owner sees it, and can be written. */
static void check_state(ll_session *s)
{
    for (int i = 0; i < s->n_kept; i++) {
        int slot = s->kept[i];
        size_t bytes = s->p->slots[slot].bytes;
        void *copy = malloc(bytes + 1);
        MUST(ll_exec_read(s->e, slot, copy));
        assert_memory_equal(copy, ll_exec_data(s->e, slot, 0), bytes);
        MUST(ll_exec_put(s->e, slot, 0, copy));
        assert_memory_equal(copy, ll_exec_data(s->e, slot, 0), bytes);
        free(copy);
    }
}

/* Queued, captured, replayed, timed, and an instruction at a time. */
static void step_within(ll_session *s, int step)
{
    enum { TIMED = 4, SINGLE = 6 };
    feed(s, step);
    ll_exec_profile(s->e, step == TIMED || step == TIMED + 1);
    if (step == SINGLE)
        single_step(s, s->step++);
    else
        MUST(ll_session_run(s, 1e-3));
}

static void bits_of_what_is_aside(void **state)
{
    (void)state;
    int n_held = 0;
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        ll_run *r = run_of(runs[k]);
        ll_graph *g[2];
        ll_session *want, *s;
        for (int share = 90; share >= 45; share -= 15) {
            open_session(r, &g[0], &want); /* which trains from the start again */
            MUST(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, &g[1]));
            s = open_within(r, g[1], want->p, share);
            for (int step = 0; s && step < 9; step++) {
                feed(want, step);
                MUST(ll_session_run(want, 1e-3));
                step_within(s, step);
                check_same(want, s, r->model.name);
                if (step == 2) check_state(s);
            }
            if (s)
                print_message("%s in %d %% of its memory: %zu bytes, %zu aside, the same bits\n",
                              r->model.name, share, s->p->bytes, s->p->aside_bytes);
            n_held += s && s->p->aside_bytes;
            ll_session_close(s);
            ll_session_close(want);
            for (int i = 0; i < 2; i++) ll_graph_free(g[i]);
        }
        ll_run_free(r);
    }
    assert_true(n_held >= 4);
}

/* ---- collectives between GPUs: with one rank alone, which is all that one GPU lets us see ---- */

static ll_val talk(ll_graph *g, const char *op, ll_coll_attr a, ll_val x)
{
    ll_val out;
    MUST(ll_emit_all(g, ll_op_find(op), &a, &x, 1, &out));
    return out;
}

/* Every kind once, on 5 x 6 numbers: of one rank each gives what it is given. */
static ll_graph *all_kinds(void)
{
    ll_graph *g = ll_graph_new("talk");
    ll_val x = ll_scale(g, ll_batch(g, "x", LL_F32, LL_SHAPE(5, 6)), 2), y;
    x = talk(g, "all_reduce", (ll_coll_attr){.axes = 1}, x);
    x = talk(g, "all_reduce", (ll_coll_attr){.axes = 1, .max = 1}, x);
    x = talk(g, "reduce_scatter", (ll_coll_attr){.axes = 1, .dim = 1, .extent = 6, .to = 6}, x);
    x = talk(g, "all_gather", (ll_coll_attr){.axes = 1, .dim = 1, .extent = 6}, x);
    x = ll_scale(g, x, 3);
    x = talk(g, "all_gather", (ll_coll_attr){.axes = 1, .dim = 0, .extent = 5}, x);
    x = talk(g, "all_to_all",
             (ll_coll_attr){.axes = 1, .dim = 1, .to_dim = 0, .extent = 6, .to = 5}, x);
    x = talk(g, "rotate", (ll_coll_attr){.axes = 1, .dim = 1, .extent = 6, .to = 6}, x);
    ll_halo_attr h = {.axes = 1, .dim = 1, .extent = 6, .need = {1, 6}};
    MUST(ll_emit_all(g, ll_op_find("halo"), &h, &x, 1, &y));
    ll_graph_result(g, "y", ll_scale(g, y, 5));
    return g;
}

static void talk_by(ll_link_kind link)
{
    const ll_machine *machine;
    MUST(ll_machine_find("cuda", &machine));
    if (!machine->links[link]) {
        print_message("built without NCCL\n");
        return;
    }
    print_message("%s, one rank\n", machine->links[link]->name);
    ll_comm *c;
    ll_mesh m;
    ll_team *team;
    ll_program *p;
    ll_exec *e;
    MUST(ll_comm_open(&(ll_comm_opts){0}, &c));
    MUST(ll_mesh_parse("data=1", &m));
    MUST(ll_team_open(c, &m, &team));
    ll_graph *g = all_kinds();
    MUST(ll_lower(g, &(ll_lower_opts){.target = &ll_target_cuda, .as_is = true}, &p));
    ll_exec_opts o = {.team = team, .link = machine->links[link], .poison = true};
    MUST(ll_exec_open(p, &o, &e));
    for (int step = 0; step < 4; step++) {
        float x[5][6];
        for (int i = 0; i < 30; i++) x[i / 6][i % 6] = (float)(i + step);
        MUST(ll_exec_put(e, ll_program_input(p, "x"), 0, x));
        for (int k = 0; k < LL_N_SECTION; k++) MUST(ll_exec_run(e, k, (uint64_t)step));
        const float *y = (const float *)ll_exec_data(e, ll_program_result(p, "y"), 0);
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 5; j++) assert_true(y[i * 5 + j] == 2 * 3 * 5 * x[i][j + 1]);
    }
    ll_exec_close(e);
    ll_program_free(p);
    ll_graph_free(g);
    ll_team_close(team);
    ll_comm_close(c);
}

static void one_gpu_talks(void **state)
{
    (void)state;
    talk_by(LL_BY_NCCL);
    talk_by(LL_BY_MPI);
}

/* ---- sums of collectives ---- */

/* Small numbers, zeros of both signs, what overflows, and what is none. */
static void draw(void *to, ll_dtype t, int64_t n, int source)
{
    static const double special[] = {0, -0.0, 1e30, -1e30, INFINITY, -INFINITY, NAN, 65504};
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = ll_below_at(7, (uint64_t)source, (uint64_t)i, 1 << 20);
        double v = (double)r / 1024 - 512;
        if (!ll_dtype_is_float(t))
            v = (double)(r % 256);
        else if (r % 5 == 0)
            v = special[r / 5 % 8];
        ll_store(to, t, i, v);
    }
}

static void fold_like_the_cpu(ll_gpu *g, ll_dtype t, ll_reduce op, int n_src, int64_t n)
{
    enum { MOST = 70 };
    char *src[MOST], *there[MOST], *sum, *got, *out;
    size_t bytes = (size_t)n * ll_dtype_bytes(t);
    sum = (char *)calloc(2, bytes + 8), got = sum + bytes + 8;
    MUST(ll_gpu_alloc(g, bytes, (void **)&out));
    for (int k = 0; k < n_src; k++) {
        src[k] = (char *)malloc(bytes + 8);
        draw(src[k], t, n, k);
        MUST(ll_gpu_alloc(g, bytes, (void **)&there[k]));
        MUST(ll_gpu_write(g, there[k], src[k], bytes));
    }
    ll_fold(sum, (const void *const *)src, n_src, n, t, op);
    MUST(ll_gpu_fold(g, LL_STREAM_COMPUTE, out, (const void *const *)there, n_src, n, t, op));
    MUST(ll_gpu_read(g, got, out, bytes));
    MUST(ll_gpu_wait(g));
    for (int64_t i = 0; i < n; i++) {
        double a = ll_load(sum, t, i), b = ll_load(got, t, i);
        if (a == b ? signbit(a) != signbit(b) : !(isnan(a) && isnan(b)))
            fail_msg("%s, operation %d of %d sources, element %ld of %ld: %.17g, not %.17g",
                     ll_dtype_name(t), op, n_src, i, n, b, a);
    }
    for (int k = 0; k < n_src; k++) ll_gpu_free(g, there[k]), free(src[k]);
    ll_gpu_free(g, out);
    free(sum);
}

static void folds_have_the_cpus_bits(void **state)
{
    (void)state;
    static const ll_dtype types[] = {LL_F64, LL_F32, LL_BF16, LL_F16, LL_I32, LL_U8};
    static const int sources[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 70};
    ll_gpu *g;
    MUST(ll_gpu_open(0, &g));
    for (int t = 0; t < 6; t++)
        for (int op = LL_REDUCE_SUM; op <= LL_REDUCE_MIN; op++)
            for (int k = 0; k < 10; k++)
                for (int64_t n = 0; n < 3000; n = 3 * n + 1)
                    fold_like_the_cpu(g, types[t], (ll_reduce)op, sources[k], n);
    ll_gpu_close(g);
}

int main(void)
{
    if (!ll_gpu_count()) {
        printf("skipped: no GPU here\n");
        return 77; /* as CMakeLists.txt says */
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_single_launches),
        cmocka_unit_test(bits_of_what_is_aside),
        cmocka_unit_test(one_gpu_talks),
        cmocka_unit_test(folds_have_the_cpus_bits),
    };
    return cmocka_run_group_tests_name("programs on a GPU", tests, NULL, NULL);
}
