/* fit.c: the link model of the machine that the ranks are on, in a few hundredths of a
 * second. Two ranks of a node, then two of different nodes, send each other messages both ways at
 * once while the others wait: the time of the smallest is alpha, what a byte adds in a large one
 * beta. All ranks together time the arithmetic: gamma and kappa. These times are the least of
 * several tries, for whatever disturbs makes them longer, and the longest of any rank. What the
 * smallest all-reduce through the window takes is mostly its awaits: sigma. */
#include "sched/nodes.h"
#include "base/stats.h"
#include "tune/tune_int.h"

#include <string.h>
#include <unistd.h>

enum { SMALL = 8, MIDDLE = 256 << 10, LARGE = 2 << 20, WORK = 4 << 20 };

ll_err ll_tune_most(ll_comm *c, double *values, int n)
{
    return ll_comm_allreduce(c, values, n, LL_F64, LL_REDUCE_MAX, &(ll_coll_opts){.site = "tuner"});
}

/* ---- messages ---- */

/* The first two ranks on one node, or on two; false: there are none. */
static bool find_pair(const int *node, int size, bool between, int pair[2])
{
    for (pair[0] = 0; pair[0] < size; pair[0]++)
        for (pair[1] = pair[0] + 1; pair[1] < size; pair[1]++)
            if ((node[pair[0]] != node[pair[1]]) == between) return true;
    return false;
}

/* The time of an exchange of so many bytes between the pair, on all ranks. */
static ll_err time_exchange(ll_comm *c, const int pair[2], size_t bytes, int tries, char *room,
                            double *out)
{
    int me = ll_comm_rank(c);
    int64_t number = ll_comm_next_number(c, "fit", "tuner");
    *out = 0;
    if (me == pair[0] || me == pair[1]) {
        int peer = me == pair[0] ? pair[1] : pair[0];
        double least = 1e9;
        for (int i = 0; i < tries; i++) {
            const ll_exchange x = {number, peer, peer, room, bytes, room + LARGE, bytes};
            double from = ll_now();
            TRY(ll_comm_exchange(c, &x, NULL));
            double took = ll_now() - from;
            if (took < least) least = took;
        }
        *out = least;
    }
    return ll_tune_most(c, out, 1);
}

static ll_err fit_links(ll_tuning *t, char *room)
{
    int size = ll_comm_size(t->c), pair[2];
    const int *node = ll_comm_nodes(t->c);
    bool found[2];
    for (int between = 0; between < 2; between++) {
        found[between] = find_pair(node, size, between, pair);
        if (!found[between]) continue;
        double small, large;
        size_t bytes = MIDDLE;
        TRY(time_exchange(t->c, pair, SMALL, 40, room, &small));
        TRY(time_exchange(t->c, pair, MIDDLE, t->budget_s < 1 ? 2 : 6, room, &large));
        t->model.alpha[between] = small;
        if (large < 5e-3) { /* not a slow link: a longer look costs little */
            bytes = LARGE;
            TRY(time_exchange(t->c, pair, LARGE, 4, room, &large));
        } else if (large < 0.3) { /* a shaped link lets some through at once: these are in both */
            small = large;
            bytes = 3 * (size_t)MIDDLE;
            TRY(time_exchange(t->c, pair, 4 * (size_t)MIDDLE, 3, room, &large));
        }
        t->model.beta[between] = large > small ? (large - small) / (double)bytes : 0;
    }
    for (int i = 0; i < 2; i++) /* a kind of link that does not occur is as the other */
        if (!found[i]) {
            t->model.alpha[i] = t->model.alpha[!i];
            t->model.beta[i] = t->model.beta[!i];
        }
    return LL_OK;
}

/* ---- arithmetic ---- */

static ll_err fit_work(ll_tuning *t, char *room)
{
    const void *from[2] = {room, room + WORK};
    double least[2] = {1e9, 1e9};
    TRY(ll_comm_barrier(t->c));
    for (int i = 0; i < 6; i++) {
        double start = ll_now();
        ll_fold(room, from, 2, WORK / 4, LL_F32, LL_REDUCE_SUM);
        double middle = ll_now();
        memcpy(room + 2 * WORK, room, WORK);
        double end = ll_now();
        if (middle - start < least[0]) least[0] = middle - start;
        if (end - middle < least[1]) least[1] = end - middle;
    }
    TRY(ll_tune_most(t->c, least, 2));
    t->model.gamma = least[0] / WORK;
    t->model.kappa = least[1] / WORK;
    return LL_OK;
}

static double share(ll_comm *c)
{
    const ll_coll_spec at = {.size = ll_comm_size(c), .node = ll_comm_nodes(c)};
    int most = ll_nodes_most(&at);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 && most > cores ? (double)most / (double)cores : 1;
}

/* ---- small collectives ---- */

/* The smallest all-reduce by an algorithm takes a + b v, v one of the model's numbers: the
 * simulator says what a and b are, a measurement what v is. */
static ll_err solve(ll_tuning *t, const char *name, double *v)
{
    enum { RUNS = 41 };
    const ll_algo *a = ll_algo_find(LL_COLL_ALLREDUCE, name);
    const double least = 1e-8, unit = 1e-6;
    float one = 0;
    ll_coll_call call = {.spec = {.coll = LL_COLL_ALLREDUCE, .count = 1},
                         .data = &one,
                         .dtype = LL_F32,
                         .algo = a,
                         .site = "tuner"};
    double times[RUNS];
    for (int i = 0; i < RUNS; i++) {
        TRY(ll_comm_barrier(t->c));
        double from = ll_now();
        TRY(ll_comm_run(t->c, &call));
        times[i] = ll_now() - from;
    }
    TRY(ll_tune_most(t->c, times, RUNS));
    ll_stats_sort(times, RUNS);
    ll_coll_spec s = {.coll = LL_COLL_ALLREDUCE,
                      .size = ll_comm_size(t->c),
                      .count = 1,
                      .node = ll_comm_nodes(t->c)};
    size_t window = ll_comm_window_bytes(t->c);
    *v = 0;
    double without = ll_tune_predict(&t->model, &s, a, sizeof one, window);
    *v = unit;
    double slope = (ll_tune_predict(&t->model, &s, a, sizeof one, window) - without) / unit;
    *v = slope > 0 ? (times[RUNS / 2] - without) / slope : least;
    if (!(*v > least)) *v = least;
    return LL_OK;
}

/* Where ranks share cores, a message between two of them also waits for the cores: alpha as all
 * ranks together see it. And who copies, copies at the pace of its part of a core. */
static ll_err fit_crowded_links(ll_tuning *t)
{
    double alone = t->model.alpha[0];
    t->model.beta[0] *= t->model.share;
    if (!ll_one_node(ll_comm_nodes(t->c), ll_comm_size(t->c)))
        return LL_OK; /* other links would
                       * take part */
    TRY(solve(t, "butterfly", &t->model.alpha[0]));
    if (t->model.alpha[0] < alone) t->model.alpha[0] = alone;
    return LL_OK;
}

/* Ranks that have waited for each other only, as new ones have, may all be on one core, for who
 * waits yields and is no load. Work for a while without yielding spreads them, as a training step
 * does. */
static void work_alone(char *room, double seconds)
{
    const void *from[2] = {room, room + WORK};
    for (double until = ll_now() + seconds; ll_now() < until;)
        ll_fold(room, from, 2, WORK / 64, LL_F32, LL_REDUCE_SUM);
}

ll_err ll_tune_fit(ll_tuning *t)
{
    t->model.share = share(t->c);
    LL_OWN_MEMORY char *room = (char *)malloc(3 * (size_t)WORK);
    TRY(ll_comm_agree(t->c, room ? LL_OK
                                 : RAISE(LL_E_MEM, "not enough memory for the tuner's messages")));
    memset(room, 0, 3 * (size_t)WORK);
    work_alone(room, 0.03 * t->budget_s);
    TRY(fit_links(t, room));
    TRY(fit_work(t, room));
    if (t->model.share > 1) TRY(fit_crowded_links(t));
    if (ll_comm_has_window(t->c)) TRY(solve(t, "window1", &t->model.sigma));
    return LL_OK;
}

ll_err ll_tune_links(ll_comm *c, ll_link_model *out)
{
    ll_tuning t = {.c = c, .budget_s = 0.3};
    TRY(ll_tune_fit(&t));
    *out = t.model;
    return LL_OK;
}
