/* Nothing allocates in a step: after the first two, neither the heap nor the address space moves.
 *
 * malloc and its kin are defined here, so that every thread's and every library's calls come by and
 * are counted, and then go on to the C library's own. The address sanitizer has a malloc and moves
 * of its own, and clang's OpenMP library allocates when a region is left to one thread: there the
 * steps are only run. */
#include "exec/session.h"

#include "base/rng.h"
#include "train/trainer.h"
#include "tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <cmocka.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());               \
    } while (0)

static atomic_long allocations;

#if defined __GLIBC__ && !defined __SANITIZE_ADDRESS__ && !defined __clang__
#define COUNTS_ALLOCATIONS 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
#define SEEN __attribute__((visibility("default")))

SEEN void *malloc(size_t n)
{
    allocations++;
    return __libc_malloc(n);
}

SEEN void *calloc(size_t n, size_t size)
{
    allocations++;
    return __libc_calloc(n, size);
}

SEEN void *realloc(void *p, size_t n)
{
    allocations++;
    return __libc_realloc(p, n);
}

SEEN void *aligned_alloc(size_t align, size_t n)
{
    allocations++;
    return __libc_memalign(align, n);
}

SEEN int posix_memalign(void **out, size_t align, size_t n)
{
    allocations++;
    *out = __libc_memalign(align, n);
    return *out ? 0 : 12;
}
#endif
#ifndef COUNTS_ALLOCATIONS
#define COUNTS_ALLOCATIONS 0
#endif

/* Pages of address space. */
static long mapped_pages(void)
{
    char text[64] = "";
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    return atol(text);
}

static ll_run *run_of(const char *text)
{
    ll_run *r;
    MUST(ll_run_parse(text, strlen(text), "steady.yaml", &r));
    MUST(ll_run_finish(r));
    return r;
}

/* Random batches that a model can read: labels and tokens are 0 or 1. */
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
    }
}

static void check_steady(const char *text, int steps)
{
    ll_run *r = run_of(text);
    ll_graph *g;
    ll_session *s;
    int n_micro = (int)ll_run_micro_batches(r);
    MUST(ll_run_graph(r, r->train.batch / n_micro, &r->train.optim, &g));
    ll_session_opts o = {
        .threads = 2, .micro_batches = n_micro, .precision = ll_precision_name(r->train.precision)};
    MUST(ll_session_open(g, &o, &s));
    s->checked = true; /* zeros do */
    long pages = 0, before = 0;
    for (int step = 0; step < steps; step++) {
        if (step == 2) pages = mapped_pages();
        if (step == 2) before = allocations;
        feed(s, step);
        MUST(ll_session_run(s, 1e-4));
    }
    long after = allocations;
    if (after != before)
        fail_msg("%s: %ld allocations in %d steps", text, after - before, steps - 2);
    assert_true(before > 0 || !COUNTS_ALLOCATIONS);
    if (COUNTS_ALLOCATIONS)
        assert_true(mapped_pages() <= pages); /* threads that are no longer needed may go */
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
}

static void sessions_are_steady(void **state)
{
    (void)state;
    print_message("allocations are %scounted\n", COUNTS_ALLOCATIONS ? "" : "not ");
    check_steady("model: {name: mlp, image: 9, width: 33}\ntrain: {batch: 6, optimizer: lamb}\n",
                 30);
    check_steady("model: {name: lenet5}\ntrain: {batch: 4, optimizer: momentum, clip: 1}\n", 10);
    check_steady("model: {name: gpt, layers: 1, width: 32, heads: 4, seq: 19, vocab: 37,\n"
                 "  dropout: 100}\ntrain: {batch: 6, micro_batch: 2, clip: 1}\n",
                 10);
    check_steady("model: {name: gpt, layers: 1, width: 32, heads: 4, seq: 16, vocab: 37}\n"
                 "train: {batch: 4, precision: bf16}\n",
                 10);
    check_steady("model: {name: resnet18, image: 16, channels: 1, classes: 5}\n"
                 "train: {batch: 1, optimizer: nesterov, weight_decay: 1e-4}\n",
                 4);
}

/* ---- the whole loop: data, step, metrics ---- */

typedef struct seen {
    long at[2];
} seen;

static void on_step(void *context, const ll_train_step *s)
{
    seen *c = (seen *)context;
    if (s->step == 40) c->at[0] = allocations;
    if (s->step == 140) c->at[1] = allocations;
}

/* What is kept of each step (metrics, events) may grow a buffer now and then, not at each step. */
static void training_is_steady(void **state)
{
    ll_run *r = run_of("model: {name: mlp, image: 8, width: 16, classes: 4}\n"
                       "data: {name: synthetic, samples: 2000, flip: true}\n"
                       "train: {batch: 8, steps: 150, eval_every: 1000, save_every: 1000,\n"
                       "  log_every: 1, threads: 1}\n");
    seen c = {0};
    ll_train_report report;
    r->out = tmpdir_path(state, "out");
    MUST(ll_train(r, &(ll_train_opts){.watch = {.context = &c, .step = on_step}}, &report));
    print_message("%ld allocations in 100 steps of training\n", c.at[1] - c.at[0]);
    assert_true(c.at[1] - c.at[0] <= 4);
    assert_true(report.memory.tensors == report.memory.tensors_used);
    ll_run_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_are_steady),
        cmocka_unit_test_setup_teardown(training_is_steady, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests_name("steady", tests, NULL, NULL);
}
