/* mpi: 4
 * Replicas of a server: every share is made once, bounds hold, and the order of a run is repeated
 * to the bit. Rounds of gradients close without a replica that is late, whose gradient is in one of
 * them, and all replicas stay alike. */
#include "replicas.h"

#include <signal.h>

/* As a run file has it that names the preset, and nothing else but this. */
static ll_consistency unsaid(const char *preset, int64_t staleness)
{
    return (ll_consistency){.name = preset,
                            .every = -1,
                            .warm_up = -1,
                            .group = -1,
                            .fragments = -1,
                            .codec = "",
                            .outer_lr = -1,
                            .outer_momentum = -1,
                            .elastic = -1,
                            .staleness = staleness,
                            .quorum = -1,
                            .delay = -1};
}

/* Whatever the order, nothing that was added is lost. */
static void test_hogwild(void **state)
{
    (void)state;
    enum { N = 5000, TIMES = 50 };
    static float v[N];
    int rank = ll_comm_rank(comm);
    ll_server *x;
    ll_consistency how, said = unsaid("hogwild", -1);
    no_error(ll_consistency_make(&said, 4, &how));
    const ll_server_opts o = {
        .how = &how, .peers = comm, .index = rank, .n = 4, .params = N - 7, .shared = N};
    no_error(ll_server_open(&o, 0, &x));
    memset(v, 0, sizeof v);
    no_error(ll_server_begin(x, 0, v, NULL));
    for (int k = 0; k < TIMES; k++) {
        for (int i = 0; i < N; i++) v[i] += (float)(4 * (1 + (i + rank) % 3));
        no_error(ll_server_step(x, v));
    }
    no_error(ll_server_arrive(x, v));
    no_error(ll_comm_barrier(comm));
    no_error(ll_server_meet(x, v, NULL));
    for (int i = 0; i < N; i++) {
        int all = 0;
        for (int r = 0; r < 4; r++) all += 1 + (i + r) % 3;
        if (v[i] != (float)(TIMES * all))
            fail_msg("element %d is %g, not %d", i, (double)v[i], TIMES * all);
    }
    ll_server_close(x);
}

/* most: changes that may have come since a share's parameters were read; of ssp those of all others
 * in steps that may be under way beside it, (2 staleness + 1) replicas - 1. */
static const struct {
    const char *settings;
    int replicas, most;
} served[] = {
    {"replicas=4 parallel.consistency=async", 4, 31},
    {"replicas=4 parallel.consistency=ssp parallel.staleness=0", 4, 3},
    {"replicas=4 parallel.consistency=ssp parallel.staleness=1 parallel.server=central", 4, 11},
    {"replicas=4 parallel.consistency=eager train.clip=0.05", 4, 3},
    {"replicas=4 parallel.consistency=eager parallel.quorum=1 parallel.staleness=1 "
     "parallel.server=central",
     4, 1},
    {"replicas=2 parallel.mesh=tensor=2 parallel.consistency=eager train.clip=0.05", 2, 3},
    {"replicas=2 parallel.mesh=data=2 parallel.zero=1 parallel.consistency=eager", 2, 3},
    {"replicas=2 parallel.mesh=pipe=2 train.micro_batch=8 parallel.consistency=eager", 2, 3},
    {"replicas=2 parallel.mesh=tensor=2 parallel.consistency=async parallel.outer=nesterov "
     "parallel.outer_lr=0.7",
     2, 15},
    {"replicas=2 parallel.mesh=data=2 parallel.zero=1 parallel.consistency=ssp", 2, 13},
    {"replicas=4 parallel.consistency=ad-psgd", 4, 31},
    {"replicas=2 parallel.mesh=tensor=2 parallel.consistency=ad-psgd parallel.every=2 "
     "parallel.server=central",
     2, 15},
};

static void test_server(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof served / sizeof *served; i++) {
        char settings[256];
        const char *path = named("served", i), *again = named("served-again", i);
        snprintf(settings, sizeof settings,
                 "train.optimizer=adamw train.log_every=4 train.compare=3 parallel.%s",
                 served[i].settings);
        ll_train_report r =
            train_by(mlp, settings, path, (ll_train_opts){.slow_rank = 1, .slow = 4});
        double all = 0;
        int most = 0;
        for (int k = 0; k < LL_STALENESS; k++) {
            all += r.stale[k];
            if (r.stale[k] > 0) most = k;
        }
        double shares = 8 * served[i].replicas;            /* every one is made, once */
        bool some = strstr(served[i].settings, "every=2"); /* of them are left two by two */
        assert_true(some ? all >= shares / 2 && all < shares : all == shares);
        if (most > served[i].most)
            fail_msg("%s: %d changes had come, %d may", settings, most, served[i].most);
        char from[160];
        snprintf(from, sizeof from, "%s/%s", folder, path);
        train_by(mlp, settings, again, (ll_train_opts){.replay = from});
        same_file(path, again, LAST);
        same_file(path, again, "metrics.jsonl");
    }
}

/* Two by two, in an order that barriers make: 0 + 2; then the mean of 0 and 2, + 4; then, without a
 * step, the mean of 1 and 5. */
static void test_pairs(void **state)
{
    (void)state;
    int rank = ll_comm_rank(comm);
    ll_comm *peers;
    ll_server *x;
    float v[70] = {0};
    ll_consistency how, said = unsaid("ad-psgd", -1);
    no_error(ll_consistency_make(&said, 2, &how));
    no_error(ll_comm_split(comm, rank % 2, rank, &peers));
    const ll_server_opts o = {
        .how = &how, .peers = peers, .index = rank / 2, .n = 2, .params = 60, .shared = 70};
    no_error(ll_server_open(&o, 0, &x));
    no_error(ll_server_begin(x, 0, v, NULL));
    static const float adds[] = {2, 4, 0}, wants[] = {2, 5, 3};
    for (int k = 0; k < 3; k++) {
        no_error(ll_comm_barrier(comm));
        if (rank / 2 == k % 2) {
            for (int i = 0; i < 70; i++) v[i] += adds[k];
            no_error(ll_server_step(x, v));
            for (int i = 0; i < 70; i++) assert_true(v[i] == wants[k]);
        }
    }
    no_error(ll_comm_barrier(comm));
    no_error(ll_server_arrive(x, v));
    no_error(ll_comm_barrier(comm));
    no_error(ll_server_meet(x, v, NULL));
    for (int i = 0; i < 70; i++) assert_true(v[i] == 3);
    ll_server_close(x);
    ll_comm_close(peers);
}

/* What updates have made of a vector, and the rounds that they were of. */
enum { ELEMENTS = 1000 };
typedef struct updated {
    float v[ELEMENTS];
    int64_t before[8];
    int n;
} updated;

static ll_err subtract(void *arg, const float *mean, int64_t round, int64_t before)
{
    updated *u = (updated *)arg;
    if (round != u->n) return RAISE(LL_E_ARG, "an update of another round");
    for (int i = 0; i < ELEMENTS; i++) u->v[i] -= mean[i];
    u->before[u->n++] = before;
    return LL_OK;
}

/* In an order of turns that is given: replica 1 comes when two rounds have closed without it, then
 * in time; 3 is late, and the last one under way. */
static void test_rounds(void **state)
{
    (void)state;
    static int64_t turns[4][6] = {
        {0, 3, 7, 11, 14, 18}, {6, 10, 15}, {1, 4, 8, 12, 16}, {2, 5, 9, 13, 17}};
    static const int n_turns[] = {6, 3, 5, 5}, n_rounds = 5;
    static const int members[] = {0xd, 0xd, 0xf, 0x7, 0x8}, before[] = {0, 3, 6, 10, 13};
    static const int stale[4][3] = {{4, 0, 0}, {1, 0, 1}, {4, 0, 0}, {3, 1, 0}};
    int rank = ll_comm_rank(comm);
    updated u = {.n = 0};
    float g[ELEMENTS];
    ll_server *x;
    ll_consistency how, said = unsaid("eager", 2);
    no_error(ll_consistency_make(&said, 4, &how));
    assert_int_equal(how.quorum, 3);
    const ll_turns replay = {.n = n_turns[rank], .turn = turns[rank]};
    const ll_server_opts o = {.how = &how,
                              .peers = comm,
                              .index = rank,
                              .n = 4,
                              .params = ELEMENTS,
                              .shared = ELEMENTS,
                              .update = subtract,
                              .arg = &u,
                              .replay = &replay};
    no_error(ll_server_open(&o, 0, &x));
    no_error(ll_server_begin(x, 0, NULL, NULL));
    for (int i = 0; i < ELEMENTS; i++) g[i] = (float)(1 << rank) * (float)(1 + i % 3);
    for (int k = 0; k < n_turns[rank] - 1 - (rank == 0); k++) no_error(ll_server_step(x, g));
    no_error(ll_server_arrive(x, NULL));
    no_error(ll_server_meet(x, NULL, NULL));
    assert_int_equal(u.n, n_rounds);
    double sum = 0;
    for (int r = 0; r < n_rounds; r++) {
        int given = 0, all = 0;
        for (int k = 0; k < 4; k++)
            if (members[r] >> k & 1) given++, all += 1 << k;
        assert_int_equal(u.before[r], before[r]);
        sum += (double)all / given;
    }
    for (int i = 0; i < ELEMENTS; i++) assert_true(fabs((double)u.v[i] + sum * (1 + i % 3)) < 1e-4);
    memcpy(g, u.v, sizeof g);
    no_error(ll_comm_broadcast(comm, g, ELEMENTS, LL_F32, 0, NULL));
    assert_memory_equal(g, u.v, sizeof g);
    ll_server_count c = ll_server_counted(x);
    for (int s = 0; s < 3; s++) assert_int_equal(c.stale[s], stale[rank][s]);
    ll_server_close(x);
}

/* The first turn that a replica of a run took. */
static int64_t first_turn(const char *name, int replica)
{
    char path[256];
    long long turn;
    snprintf(path, sizeof path, "%s/%s/order-%d.txt", folder, name, replica);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "from %*d settings %*x %lld", &turn), 1);
    fclose(f);
    return turn;
}

/* Of one step: the mean of three gradients, then the last one, of the parameters before that. */
static void test_late(void **state)
{
    (void)state;
    static float x[4][MOST], start[MOST], got[MOST];
    const char always[] = "parallel.replicas=4 train.optimizer=sgd train.steps=1 parallel.";
    train(mlp, "each", NULL, "%sconsistency=local parallel.every=0", always);
    train(mlp, "none", NULL, "%sconsistency=local parallel.every=0 train.lr=1e-30", always);
    train(mlp, "three", NULL, "%sconsistency=eager", always);
    ll_st_file *f = open_last("each", 1);
    for (int k = 0; k < 4; k++) read_weight(f, k, x[k]);
    ll_st_close(f);
    f = open_last("none", 1);
    int64_t n = read_weight(f, 0, start);
    ll_st_close(f);
    f = open_last("three", 1);
    assert_int_equal(ll_loose_in(f, weight), 0); /* it has one state, of all */
    read_weight(f, -1, got);
    ll_st_close(f);
    int last = 0;
    for (int k = 1; k < 4; k++)
        if (first_turn("three", k) > first_turn("three", last)) last = k;
    for (int64_t i = 0; i < n; i++) {
        double want = (double)start[i];
        for (int k = 0; k < 4; k++) want += (double)(x[k][i] - start[i]) / (k == last ? 1 : 3);
        if (!(fabs((double)got[i] - want) <= 1e-6))
            fail_msg("element %lld is %g, not %g", (long long)i, (double)got[i], want);
    }
}

/* Batch norms' statistics are of the round; such replicas go on from a checkpoint, as do others. */
static void test_alike(void **state)
{
    (void)state;
    static const char settings[] = "parallel.replicas=4 parallel.consistency=eager";
    char from[160];
    snprintf(from, sizeof from, "%s/alike", folder);
    train_by(normed, settings, "alike", (ll_train_opts){.slow_rank = 1, .slow = 2});
    train_by(normed, settings, "alike-again", (ll_train_opts){.replay = from});
    same_file("alike", "alike-again", "checkpoints/step-00000003.safetensors");
    train(mlp, "alike5", NULL, "train.save_every=5 %s", settings);
    train(mlp, "alike5-on", checkpoint("alike5", 5), "%s", settings);
    train(mlp, "alike5-sync", checkpoint("alike5", 5), "parallel.mesh=data=4");
    const char kept[] = "train.save_every=3 train.keep=9 parallel."; /* a warm-up is synchronous */
    train(mlp, "cold", NULL, "%smesh=data=4", kept);
    train(mlp, "warm0", NULL, "%swarm_up=3 %s", kept, settings);
    train(mlp, "warm1", NULL, "%swarm_up=3 %s parallel.consistency=ssp", kept, settings);
    for (size_t i = 0; i < 2; i++)
        same_file("cold", named("warm", i), "checkpoints/step-00000003.safetensors");
}

/* How many turns the replicas of a run took. */
static int64_t count_turns(const char *name, int replicas)
{
    int64_t n = 0;
    for (int i = 0; i < replicas; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s/order-%d.txt", folder, name, i);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        while (fgets(path, sizeof path, f)) n += path[0] >= '0' && path[0] <= '9';
        fclose(f);
    }
    return n;
}

static void stop_at_4(void *context, const ll_train_step *s)
{
    (void)context;
    if (s->step == 4) raise(SIGTERM);
}

/* When replicas meet is no matter of time: checkpoints that are on their way are none, and a run
 * that was stopped is repeated to there. The folder that is repeated is left alone. */
static void test_repeated(void **state)
{
    (void)state;
    static const char settings[] = "parallel.replicas=4 parallel.consistency=async "
                                   "train.log_every=100 train.save_every=2 train.eval_every=100";
    const ll_train_events watch = {.step = stop_at_4};
    char from[2][160];
    for (int i = 0; i < 2; i++) snprintf(from[i], sizeof from[i], "%s/beside%d", folder, i);
    for (int i = 0; i < 2; i++) {
        const char *again = i ? "beside1-again" : "beside0-again";
        const char *name = strrchr(from[i], '/') + 1;
        const char *last = i ? "checkpoints/step-00000004.safetensors" : LAST;
        ll_train_report r =
            train_by(mlp, settings, name,
                     i ? (ll_train_opts){.watch = watch} : (ll_train_opts){.comm = comm});
        assert_int_equal(r.steps, i ? 4 : 8);
        assert_int_equal(r.signal, i ? SIGTERM : 0);
        int meetings = i ? 2 : 4;
        assert_int_equal(count_turns(name, 4), 4 * r.steps + 5 * meetings);
        r = train_by(mlp, settings, again, (ll_train_opts){.replay = from[i]});
        assert_int_equal(r.steps, i ? 4 : 8);
        assert_int_equal(r.signal, 0);
        same_file(name, again, last);
        if (!i) same_file(name, again, "metrics.jsonl");
    }
    ll_train_report report;
    ll_run *r = make(mlp, settings, "beside0");
    no_error(ll_run_finish(r));
    assert_int_equal(ll_train(r, &(ll_train_opts){.comm = comm, .replay = from[0]}, &report),
                     LL_E_ARG);
    assert_non_null(strstr(ll_error_message(), "would be overwritten"));
    ll_run_free(r);
    same_file("beside0", "beside0-again", LAST);
    same_file("beside0", "beside0-again", "metrics.jsonl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),    cmocka_unit_test(test_server),
        cmocka_unit_test(test_repeated), cmocka_unit_test(test_hogwild),
        cmocka_unit_test(test_rounds),   cmocka_unit_test(test_late),
        cmocka_unit_test(test_alike)};
    return on_four_ranks(tests);
}
