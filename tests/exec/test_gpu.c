/* Programs on a GPU: launches of several instructions, captured and replayed, leave the bits of
 * instructions run one by one. Skipped with a message where there is no GPU. */
#include "exec/session.h"

#include "base/rng.h"
#include "dev/gpu.h"
#include "train/run.h"
#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
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
    const ll_program *p = ll_session_program(s);
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *x = &p->slots[p->inputs[i].slot];
        if (x->kind != LL_BATCH) continue;
        int64_t n = ll_numel(&x->type.shape) * p->n_micro;
        void *data = ll_exec_data(ll_session_exec(s), p->inputs[i].slot, 0);
        for (int64_t k = 0; k < n; k++)
            ll_store(data, x->type.dtype, k,
                     (double)ll_below_at(1, (uint64_t)step, (uint64_t)k, 2));
        MUST(ll_exec_changed(ll_session_exec(s), p->inputs[i].slot));
    }
}

static void open_session(const ll_run *r, ll_graph **g, ll_session **s)
{
    int n_micro = (int)ll_run_micro_batches(r);
    MUST(ll_run_graph(r, r->train.batch / n_micro, &r->train.optim, g));
    ll_session_opts o = {
        .machine = "cuda", .threads = 1, .micro_batches = n_micro, .precision = r->train.precision};
    MUST(ll_session_open(*g, &o, s));
}

static void scalar(ll_session *s, const char *name, double v)
{
    int slot = ll_program_input(ll_session_program(s), name);
    float f = (float)v;
    if (slot >= 0) MUST(ll_exec_put(ll_session_exec(s), slot, 0, &f));
}

static void single_step(ll_session *s, uint64_t step)
{
    scalar(s, "lr", 1e-3);
    scalar(s, "t", (double)step + 1);
    for (int k = 0; k < LL_N_SECTION; k++) MUST(ll_exec_run_checked(ll_session_exec(s), k, step));
}

static void check_same(ll_session *a, ll_session *b, const char *text)
{
    const ll_program *p = ll_session_program(a);
    for (int i = 0; i < ll_session_kept(a); i++) {
        int slot = ll_session_kept_slot(a, i);
        const void *x = ll_exec_data(ll_session_exec(a), slot, 0);
        const void *y = ll_exec_data(ll_session_exec(b), slot, 0);
        if (memcmp(x, y, p->slots[slot].bytes))
            fail_msg("%s: %s is not the same", text, p->slots[slot].name);
    }
}

static void bits_of_single_launches(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        ll_run *r = run_of(runs[k]);
        ll_graph *g[2];
        ll_session *s[2];
        for (int i = 0; i < 2; i++) open_session(r, &g[i], &s[i]);
        int n = ll_session_program(s[0])->n_instr, m = ll_exec_launches(ll_session_exec(s[0]));
        print_message("%s: %d instructions, %d launches\n", r->model.name, n, m);
        assert_true(m < n);
        for (int step = 0; step < 4; step++) {
            for (int i = 0; i < 2; i++) feed(s[i], step);
            MUST(ll_session_run(s[0], 1e-3));
            single_step(s[1], (uint64_t)step);
            check_same(s[0], s[1], r->model.name);
        }
        for (int i = 0; i < 2; i++) {
            ll_session_close(s[i]);
            ll_graph_free(g[i]);
        }
        ll_run_free(r);
    }
}

int main(void)
{
    if (!ll_gpu_count()) {
        printf("skipped: %s\n", ll_gpu_built() ? "no GPU here" : "built without CUDA");
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_of_single_launches)};
    return cmocka_run_group_tests_name("programs on a GPU", tests, NULL, NULL);
}
