/* bench_recompute: what making activations again, or laying them aside, costs and saves.
 *
 *     build/bench_recompute [LAYERS] [WIDTH] [BATCH] [THREADS] [FOLDER] [PRECISION]
 *
 * Steps of a gpt under each policy alternate in one process, so that a busy machine is busy for
 * all. The budget is halfway between what is kept without recomputation and what full keeps.
 * Printed are the step and the process's CPU time in it, medians and the best in parentheses, each
 * beside that without recomputation; kept bytes; bytes planned for activations and work; of rows
 * that keep within a part of all memory what is laid aside, in a file in FOLDER (/tmp). */
#include "base/now.h"
#include "base/rng.h"
#include "base/stats.h"
#include "exec/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STEPS = 11, N_POLICY = 7, SEQ = 256, VOCAB = 256 };

static void must(ll_err rc)
{
    if (rc == LL_OK) return;
    fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
    exit(1);
}

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ll_graph *gpt(int64_t layers, int64_t width, int64_t batch)
{
    ll_graph *g = ll_graph_new("gpt");
    const ll_build b = {.batch = batch,
                        .training = true,
                        .sizes = {{"layers", layers, ""},
                                  {"width", width, ""},
                                  {"heads", 4, ""},
                                  {"seq", SEQ, ""},
                                  {"vocab", VOCAB, ""},
                                  {"dropout", 0, ""}}};
    ll_minimize(g, ll_model_find("gpt")->declare(g, &b), &(ll_optim){.name = "adamw"});
    must(ll_graph_check(g));
    return g;
}

static void feed(ll_session *s, int64_t batch)
{
    static const char *const names[] = {"x", "y"};
    for (int i = 0; i < 2; i++) {
        int32_t *tokens = (int32_t *)ll_exec_data(s->e, ll_program_input(s->p, names[i]), 0);
        for (int64_t k = 0; k < batch * SEQ; k++)
            tokens[k] = (int32_t)ll_below_at(1, (uint64_t)i, (uint64_t)k, VOCAB);
    }
}

int main(int argc, char **argv)
{
    int64_t layers = argc > 1 ? atoll(argv[1]) : 12, width = argc > 2 ? atoll(argv[2]) : 256;
    int64_t batch = argc > 3 ? atoll(argv[3]) : 4;
    ll_session_opts o = {.threads = argc > 4 ? atoi(argv[4]) : 0,
                         .precision = argc > 6 ? argv[6] : NULL};
    ll_graph *g = gpt(layers, width, batch), *lean;
    ll_recomputed f;
    char budget[32];
    must(ll_recompute(g, &(ll_recompute_how){.policy = LL_RECOMPUTE_FULL}, &f, &lean));
    ll_graph_free(lean);
    snprintf(budget, sizeof budget, "%.0fMiB", (f.before + f.after) / 2 / 0x1p20);
    const char *const policies[N_POLICY] = {"none", "selective", budget,     "full",
                                            "none", "none",      "selective"};
    static const int percent[N_POLICY] = {[4] = 50, 40, 40}; /* of the first one's memory */
    static double wall[N_POLICY][STEPS], cpu[N_POLICY][STEPS];
    ll_session *s[N_POLICY];
    for (int p = 0; p < N_POLICY; p++) {
        o.recompute = policies[p];
        o.memory = p ? s[0]->p->bytes / 100 * (size_t)percent[p] : 0;
        o.offload = percent[p] ? argc > 5 ? argv[5] : "/tmp" : NULL;
        must(ll_session_open(g, &o, &s[p]));
        feed(s[p], batch);
        s[p]->checked = true;
        must(ll_session_run(s[p], 1e-3));
    }
    for (int k = 0; k < STEPS; k++)
        for (int p = 0; p < N_POLICY; p++) {
            double began = ll_now(), used = cpu_now();
            must(ll_session_run(s[p], 1e-3));
            wall[p][k] = ll_now() - began, cpu[p][k] = cpu_now() - used;
        }
    printf("gpt, %lld layers of %lld, batch %lld of %d\n", (long long)layers, (long long)width,
           (long long)batch, SEQ);
    for (int p = 0; p < N_POLICY; p++) {
        double *w = wall[p], *c = cpu[p], mib = 0x1p20;
        ll_stats_sort(w, STEPS), ll_stats_sort(c, STEPS);
        printf("  %-10s step %7.1f ms (%.1f) %.2fx (%.2fx)  CPU %7.1f ms (%.1f) %.2fx (%.2fx)  "
               "kept %5.1f MiB  planned %5.1f of %.1f MiB, %.1f aside\n",
               policies[p], 1e3 * w[STEPS / 2], 1e3 * w[0], w[STEPS / 2] / wall[0][STEPS / 2],
               w[0] / wall[0][0], 1e3 * c[STEPS / 2], 1e3 * c[0], c[STEPS / 2] / cpu[0][STEPS / 2],
               c[0] / cpu[0][0], (p ? s[p]->cut->recomputed.after : f.before) / mib,
               (double)ll_program_kinds(s[p]->p).other / mib, (double)s[p]->p->bytes / mib,
               (double)s[p]->p->aside_bytes / mib);
    }
    for (int p = 0; p < N_POLICY; p++) ll_session_close(s[p]);
    ll_graph_free(g);
    return 0;
}
