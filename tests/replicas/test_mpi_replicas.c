/* mpi: 4
 * Replicas that part and meet. Limits that are synchronous training have its bits. One exchange of
 * every kind is held against arithmetic, done here on what replicas have that never meet. A run
 * that was stopped between two exchanges goes on to the bytes of one that was not, for every
 * preset, with meshes inside of replicas. */
#include "replicas.h"

static void test_limits(void **state)
{
    (void)state;
    static const char *const limits[] = {
        "parallel.consistency=sync",
        "parallel.consistency=local parallel.every=1",
        "parallel.consistency=gossip parallel.peers=groups parallel.group=4",
        "parallel.consistency=diloco parallel.every=1 parallel.outer=sgd parallel.outer_lr=1",
        "parallel.consistency=ssp parallel.staleness=0",
        "parallel.consistency=eager parallel.quorum=4"};
    train(mlp, "limit", NULL, "train.optimizer=sgd parallel.mesh=data=4");
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const char *name = named("limit", i);
        train(mlp, name, NULL, "train.optimizer=sgd parallel.replicas=4 %s", limits[i]);
        same_file("limit", name, LAST);
        same_file("limit", name, "metrics.jsonl");
    }
    static const char *const rounds[] = {"parallel.quorum=4", "parallel.staleness=0"};
    train(mlp, "rounds", NULL, "train.optimizer=adamw train.clip=0.05 parallel.mesh=data=4");
    for (size_t i = 0; i < 2; i++) { /* by whatever rule */
        const char *name = named("rounds", i);
        train(mlp, name, NULL,
              "train.optimizer=adamw train.clip=0.05 parallel.replicas=4 "
              "parallel.consistency=eager %s",
              rounds[i]);
        same_file("rounds", name, LAST);
        same_file("rounds", name, "metrics.jsonl");
    }
}

/* Of the last exchange on replica k, from what all had before it, and the anchor. */
static double expected(const char *kind, int k, const float x[4][MOST], const float *a, int64_t i)
{
    double all = 0, anchor = (double)a[i];
    for (int r = 0; r < 4; r++) all += (double)x[r][i] / 4;
    double mine = (double)x[k][i], d = all - anchor;
    if (!strcmp(kind, "ring"))
        return (mine + (double)x[(k + 1) % 4][i] + (double)x[(k + 3) % 4][i]) / 3;
    if (!strcmp(kind, "torus")) /* of 2 x 2 */
        return (mine + (double)x[k ^ 1][i] + (double)x[k ^ 2][i]) / 3;
    if (!strcmp(kind, "exponential")) return (mine + (double)x[(k + 2) % 4][i]) / 2;
    if (!strcmp(kind, "nesterov")) return anchor + 0.7 * (d + 0.9 * d);
    if (!strcmp(kind, "momentum")) return anchor + 0.5 * d;
    if (!strcmp(kind, "elastic")) return mine - 0.8 / 4 * (mine - anchor);
    return all;
}

static const struct {
    const char *kind, *settings;
    double tolerance;
} kinds[] = {
    {"mean", "consistency=local", 1e-6},
    {"mean", "consistency=local parallel.exchange=difference parallel.codec=bf16", 2e-3},
    {"mean", "consistency=diloco parallel.outer=sgd parallel.outer_lr=1 parallel.codec=int8", 3e-3},
    {"ring", "consistency=gossip", 1e-6},
    {"torus", "consistency=gossip parallel.peers=torus", 1e-6},
    {"exponential", "consistency=sgp", 1e-6},
    {"mean", "consistency=ad-psgd", 1e-6}, /* which meetings make of whatever pairs did */
    {"nesterov", "consistency=diloco", 1e-6},
    {"momentum", "consistency=diloco parallel.outer=momentum parallel.outer_lr=0.5", 1e-6},
    {"elastic", "consistency=easgd parallel.elastic=0.8", 1e-6},
};

static void test_arithmetic(void **state)
{
    (void)state;
    static float x[4][MOST], a[MOST], got[MOST];
    const char always[] = "parallel.replicas=4 train.optimizer=momentum train.steps=1 parallel.";
    train(mlp, "apart", NULL, "%sconsistency=local parallel.every=0", always);
    train(mlp, "start", NULL, "%sconsistency=local parallel.every=0 train.lr=1e-30", always);
    ll_st_file *f = open_last("apart", 1);
    for (int k = 0; k < 4; k++) read_weight(f, k, x[k]);
    ll_st_close(f);
    f = open_last("start", 1);
    int64_t n = read_weight(f, 0, a);
    ll_st_close(f);
    bool apart = false; /* they had other samples */
    for (int64_t i = 0; i < n; i++) apart |= fabs((double)(x[0][i] - x[3][i])) > 1e-3;
    assert_true(apart);
    for (size_t c = 0; c < sizeof kinds / sizeof *kinds; c++) {
        const char *name = named("kind", c);
        ll_train_report report =
            train(mlp, name, NULL, "%severy=1 parallel.%s", always, kinds[c].settings);
        assert_true(report.replica_bytes > 0);
        f = open_last(name, 1);
        for (int k = 0; k < 4; k++) {
            read_weight(f, k, got);
            for (int64_t i = 0; i < n; i++) {
                double want = expected(kinds[c].kind, k, x, a, i);
                if (!(fabs((double)got[i] - want) <= kinds[c].tolerance))
                    fail_msg("%s: element %lld of replica %d is %g, not %g", kinds[c].settings,
                             (long long)i, k, (double)got[i], want);
            }
        }
        ll_st_close(f);
    }
}

/* On every torus messages find each other, none is sent twice, and all are reached. */
static void test_torus(void **state)
{
    (void)state;
    for (int n = 4; n <= 64; n++) {
        int to[64][LL_TORUS], from[64][LL_TORUS], factor = 2, reached = 0;
        bool seen[64] = {true};
        while (n % factor) factor++;
        if (factor == n) continue; /* no rows and columns */
        for (int k = 0; k < n; k++) ll_torus_neighbours(n, k, to[k], from[k]);
        for (int k = 0; k < n; k++)
            for (int s = 0; s < LL_TORUS; s++) {
                assert_int_equal(to[k][s] < 0, from[k][s] < 0);
                if (to[k][s] < 0) continue;
                assert_int_equal(from[to[k][s]][s], k);
                assert_true(to[k][s] != k);
                for (int other = 0; other < s; other++) assert_true(to[k][s] != to[k][other]);
            }
        for (int round = 0; round < n; round++)
            for (int k = 0; k < n; k++)
                for (int s = 0; s < LL_TORUS && seen[k]; s++)
                    if (to[k][s] >= 0) seen[to[k][s]] = true;
        for (int k = 0; k < n; k++) reached += seen[k];
        assert_int_equal(reached, n);
    }
}

/* Means after every step of a rule that is linear but for its state: synchronous to rounding. */
static void test_rounding(void **state)
{
    (void)state;
    static float a[MOST], b[MOST];
    train(mlp, "mesh", NULL, "train.optimizer=momentum parallel.mesh=data=4");
    static const char *const near[] = {"parallel.consistency=local parallel.every=1",
                                       "parallel.consistency=ssp parallel.staleness=0",
                                       "parallel.consistency=ssp parallel.staleness=0"};
    for (size_t k = 0; k < 3; k++) { /* the last one stopped on the way */
        const char *name = named("near", k);
        train(mlp, name, k == 2 ? checkpoint("near1", 5) : NULL,
              "train.optimizer=momentum parallel.replicas=2 parallel.mesh=tensor=2 "
              "train.save_every=5 %s",
              near[k]);
        ll_st_file *f = open_last("mesh", 8), *g = open_last(name, 8);
        int64_t n = read_weight(f, -1, a);
        assert_int_equal(n, read_weight(g, -1, b));
        for (int64_t i = 0; i < n; i++) assert_true(fabs((double)(a[i] - b[i])) < 1e-5);
        read_weight(g, 1, a);
        assert_memory_equal(a, b, sizeof *a * (size_t)n); /* after an exchange it is everyone's */
        ll_st_close(f);
        ll_st_close(g);
    }
}

/* Of two fragments the first, with most of the parameters, is exchanged after the first step, not
 * after the second. */
static void test_fragments(void **state)
{
    (void)state;
    static float a[MOST], b[MOST];
    for (int steps = 1; steps <= 3; steps++) {
        train(mlp, "fragments", NULL,
              "train.optimizer=momentum parallel.replicas=4 parallel.consistency=streaming "
              "parallel.codec=none parallel.every=2 parallel.fragments=2 train.steps=%d",
              steps);
        ll_st_file *f = open_last("fragments", steps);
        int64_t n = read_weight(f, 0, a);
        read_weight(f, 3, b);
        assert_true(!memcmp(a, b, sizeof *a * (size_t)n) == (steps != 2));
        ll_st_close(f);
    }
}

/* What the exchange after step 2 changes comes after step 3, on top of what that has made. */
static void test_delay(void **state)
{
    (void)state;
    static float x[2][4][MOST], got[MOST];
    int64_t n = 0;
    const char always[] = "parallel.replicas=4 train.optimizer=momentum train.steps=3 "
                          "train.save_every=1 train.keep=4 parallel.";
    train(mlp, "alone", NULL, "%sconsistency=local parallel.every=0", always);
    train(mlp, "late", NULL,
          "%sconsistency=diloco parallel.outer=sgd parallel.outer_lr=1 parallel.every=2 "
          "parallel.delay=1",
          always);
    train(mlp, "late-unsaved", NULL,
          "%sconsistency=diloco parallel.outer=sgd parallel.outer_lr=1 parallel.every=2 "
          "parallel.delay=1 train.save_every=0",
          always);
    same_file("late", "late-unsaved", "checkpoints/step-00000003.safetensors");
    for (int k = 0; k < 2; k++) {
        ll_st_file *f = open_last("alone", k + 2);
        for (int r = 0; r < 4; r++) n = read_weight(f, r, x[k][r]);
        ll_st_close(f);
    }
    for (int steps = 2; steps <= 3; steps++) {
        ll_st_file *f = open_last("late", steps);
        for (int r = 0; r < 4; r++) {
            read_weight(f, r, got);
            for (int64_t i = 0; i < n; i++) {
                double mean = 0, had = (double)x[0][r][i];
                for (int k = 0; k < 4; k++) mean += (double)x[0][k][i] / 4;
                double want = steps == 2 ? had : (double)x[1][r][i] + (mean - had);
                if (!(fabs((double)got[i] - want) <= 1e-6))
                    fail_msg("step %d: element %lld of replica %d is %g, not %g", steps,
                             (long long)i, r, (double)got[i], want);
            }
        }
        ll_st_close(f);
    }
    /* what was due comes at once, to those that keep no mean too */
    train(mlp, "apart", checkpoint("late", 2), "%sconsistency=ensemble", always);
    train(mlp, "rounds", checkpoint("late", 2), "%sconsistency=eager", always);
}

static const struct {
    const char *name, *settings;
} resumed[] = {
    {"local", "replicas=2 parallel.mesh=data=2 parallel.zero=1 parallel.consistency=local"},
    {"groups", "replicas=4 parallel.consistency=local parallel.peers=groups"},
    {"tensor", "replicas=2 parallel.mesh=tensor=2 parallel.consistency=diloco parallel.codec=int4"},
    {"streaming", "replicas=4 parallel.consistency=streaming parallel.fragments=3"},
    {"delay", "replicas=2 parallel.mesh=tensor=2 parallel.consistency=streaming parallel.every=4 "
              "parallel.fragments=1 parallel.delay=2"},
    {"pipe", "replicas=2 parallel.mesh=pipe=2 train.micro_batch=4 parallel.consistency=easgd"},
    {"ensemble", "replicas=4 parallel.consistency=ensemble parallel.every=0"},
    {"post-local", "replicas=4 parallel.consistency=post-local parallel.warm_up=3"},
};

static void test_resumed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof resumed / sizeof *resumed; i++) {
        const char *name = resumed[i].name, *stopped = named("stopped", i);
        for (int again = 0; again < 2; again++) {
            ll_train_report t =
                train(mlp, again ? stopped : name, again ? checkpoint(name, 5) : NULL,
                      "train.optimizer=adamw train.save_every=5 parallel.every=3 parallel.%s",
                      resumed[i].settings);
            assert_int_equal(t.first, again ? 5 : 0); /* of both phases of one with a warm-up */
            assert_int_equal(t.steps, 8);
        }
        same_file(name, stopped, LAST);
    }
    /* Synchronous ranks go on from the average; other replicas too. */
    train(mlp, "on", checkpoint("groups", 5), "train.optimizer=adamw parallel.mesh=data=4");
    train(mlp, "two", checkpoint("groups", 5),
          "train.optimizer=adamw parallel.replicas=2 parallel.consistency=local "
          "parallel.save=average");
    ll_st_file *f = open_last("two", 8);
    assert_int_equal(ll_loose_in(f, weight), 0);
    ll_st_close(f);
    f = open_last("ensemble", 8);
    assert_int_equal(ll_loose_in(f, weight), 4);
    ll_st_close(f);
}

/* Statistics are averaged when replicas meet, moments are not. */
static void test_state(void **state)
{
    (void)state;
    static float bytes[2][1 << 16];
    train(normed, "normed", NULL,
          "parallel.replicas=4 parallel.consistency=local parallel.every=3");
    ll_st_file *f = open_last("normed", 3);
    int equal = 0, apart = 0;
    for (int i = 0; i < f->n_entries; i++) {
        const char *name = f->entries[i].name;
        ll_st_part part = {0};
        ll_dtype t;
        char other[128];
        if (strncmp(name, "replica.0.", 10)) continue;
        snprintf(other, sizeof other, "replica.2.%s", name + 10);
        no_error(ll_st_want(f, name, &t, &part.shape));
        if (ll_numel(&part.shape) > 1 << 16) continue;
        no_error(ll_st_read_part(f, name, &part, bytes[0]));
        no_error(ll_st_read_part(f, other, &part, bytes[1]));
        bool same = !memcmp(bytes[0], bytes[1], (size_t)ll_numel(&part.shape) * sizeof(float));
        bool moment = strstr(name, ".velocity") != NULL;
        if (same == moment) fail_msg("%s is %s in two replicas", name, same ? "equal" : "apart");
        equal += same, apart += moment;
    }
    assert_true(equal > 20 && apart > 20);
    ll_st_close(f);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"parallel.consistency=local", "parallel.replicas"},
        {"parallel.replicas=4 parallel.consistency=local parallel.codec=int8", "difference"},
        {"parallel.replicas=4 parallel.consistency=diloco parallel.peers=ring", "parameter"},
        {"parallel.replicas=4 parallel.exchange=gradient parallel.every=2", "parallel.every"},
        {"parallel.replicas=2 parallel.consistency=gossip parallel.peers=torus", "ring"},
        {"parallel.replicas=4 parallel.consistency=diloco parallel.codec=int9", "int8"},
        {"parallel.replicas=3 parallel.consistency=local",
         "parallel.replicas=3 does not divide train.batch"},
        {"parallel.replicas=4 parallel.consistency=local parallel.group=7",
         "parallel.peers=groups"},
        {"parallel.replicas=4 parallel.consistency=local parallel.outer_momentum=0.5",
         "parallel.outer=momentum"},
        {"parallel.replicas=4 parallel.consistency=ssp train.buddy=2", "train.save_every"},
        {"parallel.replicas=4 parallel.consistency=local parallel.seeds=own", "parallel.every"},
        {"parallel.replicas=4 parallel.consistency=local parallel.compress=bf16", "parallel.codec"},
        {"parallel.replicas=4 parallel.consistency=local parallel.staleness=1", "parallel.peers"},
        {"parallel.replicas=4 parallel.consistency=async parallel.codec=int8", "codec none"},
        {"parallel.replicas=4 parallel.consistency=streaming parallel.every=7", "divide"},
        {"parallel.replicas=4 parallel.consistency=ssp parallel.quorum=2", "eager"},
        {"parallel.replicas=4 parallel.consistency=async parallel.exchange=gradient",
         "parallel.staleness"},
        {"parallel.replicas=4 parallel.consistency=eager parallel.outer=momentum", "outer"},
        {"parallel.replicas=4 parallel.consistency=eager parallel.codec=int8", "difference"},
        {"parallel.replicas=4 parallel.consistency=eager parallel.replica_lr=2", "train as one"},
        {"parallel.replicas=4 parallel.consistency=diloco parallel.delay=100", "parallel.every"},
        {"parallel.replicas=4 parallel.consistency=local parallel.delay=1", "difference"},
        {"parallel.replicas=4 parallel.consistency=streaming parallel.fragments=0", "1 or more"},
        {"parallel.replicas=4 parallel.consistency=ssp parallel.server=open", "sharded or central"},
        {"parallel.replicas=4 parallel.consistency=eager parallel.quorum=5", "parallel.quorum"},
        {"parallel.replicas=4 parallel.consistency=diloco parallel.outer_lr=-0.5",
         "expected 0 or more, or -1"},
        {"parallel.replicas=4 parallel.consistency=ensemble parallel.peers=ring", "leave them out"},
        {"parallel.replicas=4 parallel.warm_up=2", "train as one"},
        {"parallel.replicas=4 parallel.consistency=eager parallel.save=average", "train as one"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ll_run *r = make(mlp, bad[i][0], "refused");
        assert_int_equal(ll_run_finish(r), LL_E_CONFIG);
        if (!strstr(ll_error_message(), bad[i][1]))
            fail_msg("%s: %s", bad[i][0], ll_error_message());
        ll_run_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torus),      cmocka_unit_test(test_limits),
        cmocka_unit_test(test_arithmetic), cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_resumed),    cmocka_unit_test(test_state),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_fragments),
        cmocka_unit_test(test_delay)};
    return on_four_ranks(tests);
}
