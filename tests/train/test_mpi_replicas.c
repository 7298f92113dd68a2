/* mpi: 4
 * Replicas that part and meet. Limits that are synchronous training have its bits. One exchange of
 * every kind is held against arithmetic, done here on what replicas have that never meet. A run
 * that was stopped between two exchanges goes on to the bytes of one that was not, for every
 * preset, with meshes inside of replicas. Of a server: every share is made once, bounds hold, and
 * the order of a run is repeated to the bit. Rounds of gradients close without a replica that is
 * late, whose gradient is in one of them, and all replicas stay alike. */
#include "train/loose.h"
#include "train/trainer.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static ll_comm *comm;
static char folder[] = "/tmp/loopline-replicas-XXXXXX";

#define COMMON "parallel: {canonical: true}\ndata: {name: synthetic, samples: 96}\n"
static const char mlp[] =
    COMMON "model: {name: mlp, image: 9, width: 24}\n"
           "train: {batch: 16, steps: 8, lr: 0.1, log_every: 1, threads: 1}\n";
/* Batch norm: statistics. */
static const char normed[] =
    COMMON "model: {name: resnet18, image: 8, width: 4}\n"
           "train: {batch: 16, steps: 3, lr: 0.1, optimizer: momentum, threads: 1}\n";

/* Settings are words. */
static ll_run *make(const char *text, const char *settings, const char *name)
{
    ll_run *r;
    char words[512], *rest = NULL, out[128];
    snprintf(words, sizeof words, "%s", settings);
    snprintf(out, sizeof out, "out=%s/%s", folder, name);
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    no_error(ll_run_set(r, out));
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        no_error(ll_run_set(r, w));
    return r;
}

static ll_train_report train_by(const char *text, const char *settings, const char *name,
                                ll_train_opts o)
{
    ll_train_report report;
    ll_run *r = make(text, settings, name);
    no_error(ll_run_finish(r));
    o.comm = comm;
    ll_comm_trim(comm); /* of runs before */
    ll_err rc = ll_train(r, &o, &report);
    if (rc != LL_OK) fail_msg("%s: %s\n%s", settings, ll_error_text(), ll_error_frames());
    ll_run_free(r);
    no_error(ll_comm_barrier(comm));
    if (report.memory.tensors != report.memory.tensors_used)
        fail_msg("%s: %.0f bytes of tensors planned, %.0f used", settings, report.memory.tensors,
                 report.memory.tensors_used);
    return report;
}

/* from: a checkpoint to go on from; NULL: it begins. The last words are settings. */
__attribute__((format(printf, 4, 5))) static ll_train_report train(const char *text,
                                                                   const char *name,
                                                                   const char *from,
                                                                   const char *settings, ...)
{
    char words[512];
    va_list args;
    va_start(args, settings);
    vsnprintf(words, sizeof words, settings, args);
    va_end(args);
    return train_by(text, words, name, (ll_train_opts){.resume = from, .resume_from = from});
}

/* "stem" and a number, in one of two buffers that take turns. */
static const char *named(const char *stem, size_t i)
{
    static char names[2][32];
    static int turn;
    turn = !turn;
    snprintf(names[turn], sizeof names[turn], "%s%zu", stem, i);
    return names[turn];
}

static void same_file(const char *a, const char *b, const char *file)
{
    static char bytes[2][4 << 20];
    const char *const names[] = {a, b};
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s/%s", folder, names[i], file);
        FILE *f = fopen(path, "rb");
        if (!f) fail_msg("%s is not there", path);
        n[i] = fread(bytes[i], 1, sizeof bytes[i], f);
        fclose(f);
    }
    assert_true(n[0] > 0 && n[0] < sizeof bytes[0]);
    if (n[0] != n[1] || memcmp(bytes[0], bytes[1], n[0]))
        fail_msg("%s of %s differs from that of %s", file, a, b);
}

#define LAST "checkpoints/step-00000008.safetensors"

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

/* ---- what files hold ---- */

static const char *checkpoint(const char *name, int step)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s/checkpoints/step-%08d.safetensors", folder, name, step);
    return path;
}

static ll_st_file *open_last(const char *name, int step)
{
    ll_st_file *f;
    no_error(ll_st_open(checkpoint(name, step), &f));
    return f;
}

enum { MOST = 81 * 24 };
static const char weight[] = "fc1.weight";

/* who: a replica; -1: the average. */
static int64_t read_weight(const ll_st_file *f, int who, float out[MOST])
{
    char name[64] = "";
    ll_dtype t;
    ll_st_part part = {0};
    if (who >= 0) snprintf(name, sizeof name, "replica.%d.", who);
    strcat(name, weight);
    no_error(ll_st_want(f, name, &t, &part.shape));
    int64_t n = ll_numel(&part.shape);
    assert_true(n <= MOST);
    no_error(ll_st_read_part(f, name, &part, out));
    return n;
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
        int to[64][LL_TORUS], from[64][LL_TORUS], rows = (int)ll_torus_rows(n), reached = 0;
        bool seen[64] = {true};
        if (rows == 1) continue;
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
}

/* Whatever the order, nothing that was added is lost. */
static void test_hogwild(void **state)
{
    (void)state;
    enum { N = 5000, TIMES = 50 };
    static float v[N];
    int rank = ll_comm_rank(comm);
    ll_server *x;
    ll_consistency how,
        said = {"hogwild", "", -1, -1, "", -1, -1, "", "", -1, -1, -1, "", "", -1, -1, -1};
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

/* most: changes that may have come since a share's parameters were read. */
static const struct {
    const char *settings;
    int replicas, most;
} served[] = {
    {"replicas=4 parallel.consistency=async", 4, 31},
    {"replicas=4 parallel.consistency=ssp parallel.staleness=0", 4, 3},
    {"replicas=4 parallel.consistency=ssp parallel.staleness=1 parallel.server=central", 4, 7},
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
    {"replicas=2 parallel.mesh=data=2 parallel.zero=1 parallel.consistency=ssp", 2, 7},
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
    ll_consistency how,
        said = {"ad-psgd", "", -1, -1, "", -1, -1, "", "", -1, -1, -1, "", "", -1, -1};
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
    ll_consistency how,
        said = {"eager", "", -1, -1, "", -1, -1, "", "", -1, -1, -1, "", "", 2, -1, -1};
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
    assert_non_null(strstr(ll_error_message(), "would be written over"));
    ll_run_free(r);
    same_file("beside0", "beside0-again", LAST);
    same_file("beside0", "beside0-again", "metrics.jsonl");
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
        for (int again = 0; again < 2; again++)
            train(mlp, again ? stopped : name, again ? checkpoint(name, 5) : NULL,
                  "train.optimizer=adamw train.save_every=5 parallel.every=3 parallel.%s",
                  resumed[i].settings);
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
    for (int i = 0; i < ll_st_count(f); i++) {
        const char *name = ll_st_at(f, i)->name;
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
        {"parallel.replicas=3 parallel.consistency=local", "3 does not divide train.batch"},
        {"parallel.replicas=4 parallel.consistency=local parallel.group=7",
         "parallel.peers groups"},
        {"parallel.replicas=4 parallel.consistency=local parallel.outer_momentum=0.5",
         "parallel.outer momentum"},
        {"parallel.replicas=4 parallel.consistency=ssp train.buddy=2", "train.save_every"},
        {"parallel.replicas=4 parallel.consistency=local parallel.seeds=own", "parallel.every"},
        {"parallel.replicas=4 parallel.consistency=local parallel.compress=bf16", "parallel.codec"},
        {"parallel.replicas=4 parallel.consistency=local parallel.staleness=1", "parallel.peers"},
        {"parallel.replicas=4 parallel.consistency=async parallel.codec=int8", "uncoded"},
        {"parallel.replicas=4 parallel.consistency=streaming parallel.every=7", "divide"},
        {"parallel.replicas=4 parallel.consistency=ssp parallel.quorum=2", "eager"},
        {"parallel.replicas=4 parallel.consistency=async parallel.exchange=gradient",
         "parallel.staleness"},
        {"parallel.replicas=4 parallel.consistency=eager parallel.outer=momentum", "outer"},
        {"parallel.replicas=4 parallel.consistency=eager parallel.codec=int8", "difference"},
        {"parallel.replicas=4 parallel.consistency=eager parallel.replica_lr=2", "train as one"},
        {"parallel.replicas=4 parallel.consistency=diloco parallel.delay=100", "parallel.every"},
        {"parallel.replicas=4 parallel.consistency=local parallel.delay=1", "differences"},
        {"parallel.replicas=4 parallel.consistency=streaming parallel.fragments=0", "1 or more"},
        {"parallel.replicas=4 parallel.consistency=ssp parallel.server=open", "sharded or central"},
        {"parallel.replicas=4 parallel.consistency=eager parallel.quorum=5", "parallel.quorum"},
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
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = "", .canonical = true}, &comm) !=
        LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    char command[64];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),     cmocka_unit_test(test_torus),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_rounding),  cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_state),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_fragments), cmocka_unit_test(test_server),
        cmocka_unit_test(test_repeated),  cmocka_unit_test(test_delay),
        cmocka_unit_test(test_hogwild),   cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_late),      cmocka_unit_test(test_alike)};
    bool made = ll_comm_rank(comm) || mkdtemp(folder);
    no_error(ll_comm_broadcast(comm, folder, sizeof folder, LL_U8, 0, NULL));
    int rc = made ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    no_error(ll_comm_barrier(comm));
    if (ll_comm_rank(comm) == 0) rc |= system(command);
    ll_comm_close(comm);
    return rc;
}
