/* bench_step_overlap: what starting collectives early and awaiting them late gains in a training
 * step.
 *
 *     mpiexec -n 2 build/bench_step_overlap MESH [ZERO] [MODEL] [BATCH] [WIDTH]
 *
 * A model's step (gpt, 4 layers) on a mesh, one thread a rank, lowered both ways: collectives
 * awaited where they start, and overlapped. Steps of both alternate, so that a busy machine is busy
 * for both. Printed are medians, and the best in parentheses, of rank 0: a step, and in it the
 * seconds spent in waits. */
#include "exec/parts.h"

#include <stdio.h>

enum { STEPS = 15 };

typedef struct times {
    double step[STEPS], waited[STEPS];
} times;

static void must(ll_err rc)
{
    if (rc == LL_OK) return;
    fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(ll_comm *c, part *x, times *t, int k)
{
    must(ll_comm_barrier(c));
    double waited = x->e->waited, began = ll_now();
    must(part_step(x));
    if (k < 0) return;
    t->step[k] = ll_now() - began;
    t->waited[k] = x->e->waited - waited;
}

static void report(const char *what, times *t, const part *x)
{
    qsort(t->step, STEPS, sizeof *t->step, by_size);
    qsort(t->waited, STEPS, sizeof *t->waited, by_size);
    printf("  %-10s step %8.2f ms (%.2f), in waits %8.2f ms (%.2f), %6.1f MiB\n", what,
           t->step[STEPS / 2] * 1e3, t->step[0] * 1e3, t->waited[STEPS / 2] * 1e3,
           t->waited[0] * 1e3, (double)x->p->bytes / 1048576);
}

int main(int argc, char **argv)
{
    ll_comm *c;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_step_overlap MESH [ZERO] [MODEL] [BATCH] [WIDTH]\n");
        return 2;
    }
    const char *model = argc > 3 ? argv[3] : "gpt";
    int64_t batch = argc > 4 ? atoll(argv[4]) : 4, width = argc > 5 ? atoll(argv[5]) : 256;
    const ll_size sizes[] = {{"layers", 4, ""},
                             {"width", width, ""},
                             {"heads", 4, ""},
                             {"seq", 128, ""},
                             {"vocab", 256, ""}};
    must(ll_comm_open(&(ll_comm_opts){.table = ""}, &c));
    ll_graph *g = part_model(model, batch, "adamw", 0, sizes, 5);
    must(ll_graph_check(g));
    part_opts o = {.mesh = argv[1], .n_micro = 1, .threads = 1};
    o.zero = argc > 2 ? atoi(argv[2]) : 0;
    part early, blocking;
    must(part_open(c, g, &o, &early));
    o.blocking = true;
    must(part_open(c, g, &o, &blocking));
    part_feed(&early, 1, 10);
    part_feed(&blocking, 1, 10);
    static times a, b;
    for (int k = -2; k < STEPS; k++) {
        measure(c, &blocking, &b, k);
        measure(c, &early, &a, k);
    }
    if (ll_comm_rank(c) == 0) {
        printf("%s, batch %lld, width %lld, on %s, zero %d\n", model, (long long)batch,
               (long long)width, argv[1], o.zero);
        report("blocking", &b, &blocking);
        report("overlapped", &a, &early);
        fflush(stdout);
    }
    part_close(&blocking);
    part_close(&early);
    ll_graph_free(g);
    ll_comm_close(c);
    return 0;
}
