/* cmd_train.c: loopline train. */
#include "cli/common.h"
#include "cli/plan.h"

#include "base/file.h"
#include "cli/train_view.h"
#include "comm/job.h"
#include "run/run_int.h"
#include "token/tokenizer.h"

#include <unistd.h>

typedef struct opts {
    const char *run, *from, *replay, *slow, *trace, *timeline, *trace_steps;
    ll_words set;
    int64_t ranks;
    const char *restarts, *hosts, *job, *parallel;
    bool resume, json, plain, overwrite;
} opts;

static const ll_arg args[] = {
    {"RUN", LL_OPT(opts, run), NULL,
     "a run file, the name of a bundled run, or a run folder to continue"},
    {"--set|-s", LL_OPT(opts, set), "KEY=VALUE",
     "override a setting of the run, such as train.lr=0.01"},
    {"--out|-o", LL_ARG_SETTING, offsetof(opts, set), "DIR",
     "run folder; if not given, a new one: runs/NAME, runs/NAME-2, ...", "out"},
    {"-n", LL_ARG_COUNT, offsetof(opts, ranks), "RANKS",
     "start this many ranks through mpiexec; not needed under mpirun or srun",
     .most = LL_RANKS_MOST},
    {"--restarts", LL_OPT(opts, restarts), "N",
     "with -n: restart automatically when a rank crashes or hangs, or its host goes down; give up "
     "after N restarts in a row without progress [default: 3; 0 = never restart]"},
    {"--hosts", LL_OPT(opts, hosts), "FILE",
     "with -n: host file with lines such as \"NAME slots=2\"; if hosts stop answering, training "
     "continues on the rest, and on all again once they answer; the file may be edited during the "
     "run"},
    {"--job", LL_OPT(opts, job), "JOB",
     "given by loopline to the ranks that it starts: the job, and the number of the start",
     .hidden = true},
    {"--mesh|-m", LL_ARG_SETTING, offsetof(opts, set), "MESH",
     "parallelism as a mesh of ranks, such as data=2,tensor=2 or pipe=2; if not given, data=RANKS",
     "parallel.mesh"},
    {"--parallel", LL_OPT(opts, parallel), "auto",
     "choose the mesh that `loopline plan` predicts to be fastest on this machine, with ZeRO as "
     "--zero says"},
    {"--zero", LL_ARG_SETTING, offsetof(opts, set), "0..3",
     "ZeRO stage, sharding over axis data: 1 = optimizer state, 2 = and gradients, 3 = and "
     "parameters",
     "parallel.zero"},
    {"--machine", LL_ARG_SETTING, offsetof(opts, set), "M",
     "device to compute on: cpu, cuda or ref", "train.machine"},
    {"--exact", LL_ARG_SETTING, offsetof(opts, set), NULL,
     "exact summation: bitwise identical results on every mesh", "parallel.exact=true"},
    {"--tune", LL_ARG_SETTING, offsetof(opts, set), NULL,
     "benchmark collectives first if there is no tuning table yet", "parallel.tune=true"},
    {"--compress", LL_ARG_SETTING, offsetof(opts, set), "CODEC",
     "compress gradients in the all-reduce over axis data: none, lossless, bf16, f16, "
     "int8[:huffman], int4[:huffman], qsgd:BITS, onebit, topk:SHARE[:BITS], factors",
     "parallel.compress"},
    {"--init", LL_ARG_SETTING, offsetof(opts, set), "FILE",
     "initial weights from a Loopline, PyTorch or safetensors file (see also train.init_map, "
     "train.init_skip)",
     "train.init"},
    {"--resume", LL_OPT(opts, resume), NULL,
     "continue from the newest checkpoint in the run folder"},
    {"--from", LL_OPT(opts, from), "FILE", "with --resume: continue from this checkpoint instead"},
    {"--replay", LL_OPT(opts, replay), "DIR",
     "repeat a parameter-server run (parallel.peers=server or pairs): replicas update in the order "
     "recorded in the run folder DIR"},
    {"--slow", LL_OPT(opts, slow), "RANK:FACTOR",
     "simulate a straggler: make every step of this rank take FACTOR times as long"},
    {"--overwrite", LL_OPT(opts, overwrite), NULL,
     "start from scratch in a folder that already contains a run"},
    {"--trace", LL_OPT(opts, trace), "FILE",
     "write a trace of all ranks, for ui.perfetto.dev or chrome://tracing"},
    {"--timeline", LL_OPT(opts, timeline), "FILE.svg",
     "pipelines: draw the measured schedule of one step, with its bubble"},
    {"--trace-steps", LL_OPT(opts, trace_steps), "A:B",
     "steps to trace with --trace; --timeline draws step B; if not given, three steps after one to "
     "warm up"},
    {"--plain", LL_OPT(opts, plain), NULL,
     "print one line per logged step instead of a progress bar"},
    {"--json", LL_OPT(opts, json), NULL, "print one JSON object to standard output at the end"},
    {0}};

static char *more(ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    ll_buf_puts(&b, "Bundled runs:");
    for (const ll_bundled *r = ll_bundled_runs(); r->name; r++) ll_buf_printf(&b, " %s", r->name);
    ll_buf_puts(
        &b,
        "\n\nSIGINT and SIGTERM save a checkpoint and end the run; --resume continues from it, "
        "bitwise identically. With -n the signal reaches every rank; under mpirun, send SIGUSR1 to "
        "mpirun instead: after the other two signals it soon kills its ranks. With -n, ranks that "
        "crash or hang are restarted (docs/running.md).\n\nSettings of the run file, or of "
        "--set KEY=VALUE; `loopline train --help WORD` shows those with WORD in their "
        "name:\n\n");
    ll_buf_puts(&b, ll_run_help("", ll_text_width(), arena));
    return b.text;
}

/* ---- the run's folder ---- */

/* A run file may be a stranger's: what it writes outside of this folder the user must have said. */
static ll_err check_out(const ll_run *r)
{
    char here[4096] = "";
    size_t n = getcwd(here, sizeof here) ? strlen(here) : 0;
    bool within = n && !strncmp(r->out, here, n) && (here[n - 1] == '/' || r->out[n] == '/');
    bool outside = *r->out == '/' && !within;
    for (const char *c = r->out; !outside && (c = strstr(c, "..")); c++)
        outside = (c == r->out || c[-1] == '/') && (!c[2] || c[2] == '/');
    CHECK(!outside || !r->out_in_file, LL_E_CONFIG,
          "%s sets out: %s, which is outside this folder: if that is intended, give --out %s",
          r->file, r->out, r->out);
    return LL_OK;
}

static ll_err choose(const opts *o, ll_run *r)
{
    if (!r->out_said && !o->overwrite) r->out = ll_cli_numbered(r, o->resume);
    /* the run's own folder, as loopline import makes it: it may begin there */
    bool own = !strncmp(r->out, o->run, strlen(r->out)) && !ll_cli_began(r->out);
    CHECK(o->resume || o->overwrite || own || !ll_cli_holds_run(r->out), LL_E_ARG,
          "%s already holds a run: use --resume to continue it, --overwrite to start over, or "
          "--out DIR for another folder",
          r->out);
    return LL_OK;
}

/* Rank 0 chooses: by the time the others look the folder may be there. */
static ll_err choose_folder(const opts *o, ll_comm *c, ll_run *r)
{
    if (o->job) return LL_OK; /* who started the ranks did */
    char out[4096] = "";
    TRY(ll_comm_agree(c, ll_comm_rank(c) == 0 ? choose(o, r) : LL_OK));
    CHECK(strlen(r->out) < sizeof out, LL_E_CONFIG, "the folder's name is too long: %.60s...",
          r->out);
    strcpy(out, r->out);
    TRY(ll_ranks_share(c, out, sizeof out));
    r->out = ll_arena_strdup(r->arena, out);
    return LL_OK;
}

/* "5:8" or "5". */
static ll_err read_steps(const char *text, int64_t *first, int64_t *last)
{
    char *end;
    *first = *last = strtol(text, &end, 10);
    bool good = end != text;
    if (good && *end == ':') {
        text = end + 1;
        *last = strtol(text, &end, 10);
        good = end != text;
    }
    CHECK(good && !*end && (*first || *last), LL_E_ARG,
          "--trace-steps is '%s': expected A:B, such as 5:8", text);
    return LL_OK;
}

/* Of the ranks asked for: a job may go on with fewer. */
static ll_err read_slow(const char *text, int ranks, ll_train_opts *t)
{
    char rest;
    int n = sscanf(text, "%d:%lf%c", &t->slow_rank, &t->slow, &rest);
    CHECK(n == 2 && t->slow_rank >= 0 && t->slow_rank < ranks && t->slow >= 1 && t->slow <= 1000,
          LL_E_ARG,
          "--slow is '%s': expected RANK:FACTOR, such as 1:2, of %s and a factor of 1 to 1000",
          text, LL_COUNTED(ranks, "rank"));
    return LL_OK;
}

static ll_err read_words(const opts *o, ll_train_opts *t)
{
    int ranks = o->ranks ? (int)o->ranks : ll_job_size() ? ll_job_size() : 1;
    if (o->trace_steps) TRY(read_steps(o->trace_steps, &t->trace_first, &t->trace_last));
    return o->slow ? read_slow(o->slow, ranks, t) : LL_OK;
}

static ll_err read_restarts(const opts *o, int64_t *out)
{
    const char *text = o->restarts ? o->restarts : "3";
    CHECK(
        !o->restarts || (o->ranks > 1 && ll_job_size() <= 1) || o->job, LL_E_ARG,
        "--restarts needs -n with 2 or more: only ranks that loopline starts itself are restarted");
    CHECK(*text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 10, LL_E_ARG,
          "--restarts is '%s', expected a whole number, 0 or more", text);
    *out = atoll(text);
    return LL_OK;
}

static ll_err check_timeline(const opts *o, const ll_run *r)
{
    ll_mesh m;
    TRY(ll_mesh_parse(r->parallel.mesh, &m));
    CHECK(!o->timeline || ll_mesh_axis(&m, LL_AXIS_PIPE) >= 0, LL_E_ARG,
          "--timeline needs a pipeline, but mesh %s has none: add axis pipe=2",
          *r->parallel.mesh ? r->parallel.mesh : "data");
    return LL_OK;
}

/* What failed before it began leaves no folder: only empty ones can be removed. */
static void leave_nothing(const ll_run *r)
{
    const char *above = r->out_said ? NULL : ll_cli_above(r->arena, r->out);
    if (rmdir(r->out) == 0 && above) (void)rmdir(above);
}

/* For who started the ranks: the launcher may not come back. */
static void note_loss(const ll_start *start, const ll_comm *c, int64_t step)
{
    LL_KEEP_ERROR;
    if (ll_comm_rank(c) > 1 || ll_job_status(1) != LL_JOB_LOST) return;
    if (ll_recovery_note(start, LL_LOST, step, kept_error.message) != LL_OK)
        fprintf(stderr, "%s: %s\n", ll_cli_name(), ll_error_message());
}

/* Nothing is left to do: whatever befalls ranks on their way out. */
static ll_err note_done(const ll_start *start, int64_t step, int status)
{
    char text[16];
    snprintf(text, sizeof text, "%d", status);
    fflush(stdout);
    if (ll_recovery_note(start, LL_DONE, step, text) != LL_OK)
        fprintf(stderr, "%s: %s\n", ll_cli_name(), ll_error_message());
    return LL_OK;
}

static const ll_start *own_start;

static void note_halted(const char *text)
{
    if (ll_mkdirs(own_start->out) == LL_OK)                     /* it may not have been made yet */
        (void)ll_recovery_note(own_start, LL_HALTED, -1, text); /* it is printed, too */
}

/* Behind what was refused, what would fit. Of several ranks another may be the one that prints. */
static void remedy(const ll_run *r, int ranks)
{
    LL_KEEP_ERROR;
    double room = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / ranks;
    double limit = r->train.memory_bytes;
    const ll_machine *m;
    ll_device_facts f = {0};
    if (ll_machine_find(r->train.machine, &m) == LL_OK && m->device &&
        m->ask(0, LL_PRECISION_f32, &f) == LL_OK)
        room = (double)f.bytes;
    const char *way = ll_plan_remedy(r, ranks, limit > 0 && limit < room ? limit : room);
    size_t n = strlen(kept_error.message);
    if (!*way) return;
    if (ranks > 1)
        fprintf(stderr, "%s: %s\n", ll_cli_name(), way);
    else
        snprintf(kept_error.message + n, sizeof kept_error.message - n, "; %s", way);
}

/* What is named in settings, and read late or by other commands. */
static ll_err check_named(const ll_run *r)
{
    const char *aside = r->train.offload;
    bool folder = *aside && !ll_target_find(r->train.machine)->aside.word;
    LL_WANT(r, "train.offload", !folder || (ll_is_folder(aside) && !access(aside, W_OK | X_OK)),
            "train.offload is %s, which is not a writable folder: create it, or name another",
            aside);
    LL_OWN(ll_tokenizer) t = NULL;
    ll_err rc = *r->data.tokenizer ? ll_tokenizer_open(r->data.tokenizer, &t) : LL_OK;
    LL_WANT(r, "data.tokenizer", rc == LL_OK, "data.tokenizer: %s", ll_error_message());
    return LL_OK;
}

static ll_err train(const opts *o, const ll_start *start, ll_comm *c, ll_run *r)
{
    TRY(ll_comm_agree(c, check_named(r)));
    TRY(choose_folder(o, c, r));
    ll_train_view v = {.c = c, .plain = o->plain};
    ll_train_opts t = {.comm = c,
                       .resume = o->resume,
                       .resume_from = o->from,
                       .replay = o->replay,
                       .trace = o->trace,
                       .timeline = o->timeline,
                       .start = o->job ? start : NULL,
                       .watch = ll_train_view_watch(&v)};
    TRY(read_words(o, &t));
    ll_train_report report;
    ll_err rc = ll_train(r, &t, &report);
    ll_progress_free(v.p);
    if (rc == LL_E_COMM && ll_job_failure() == LL_FAILURE_ALONE)
        ll_job_lose(); /* MPI saw it first */
    if (rc == LL_E_COMM && o->job) note_loss(start, c, report.steps);
    if (rc != LL_OK && !o->resume && ll_comm_rank(c) == 0) leave_nothing(r);
    if (rc == LL_E_MEM && ll_comm_rank(c) == 0) remedy(r, ll_comm_size(c));
    TRY(rc);
    if (report.signal) ll_cli_exit_with(LL_EXIT_STOPPED);
    if (ll_comm_rank(c)) return LL_OK;
    ll_train_view_end(r, &report, t.start);
    if (o->json) TRY(ll_train_view_json(r, &report, t.start));
    int status = report.signal ? LL_EXIT_STOPPED : 0;
    return o->job ? note_done(start, report.steps, status) : LL_OK;
}

/* Others of a job would take a rank that dies of a signal for one that is to be started again: what
 * comes before it trains waits until it does (ll_train). */
static void hold_signals(void)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGHUP);
    sigprocmask(SIG_BLOCK, &held, NULL);
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    /* A reader of our messages that went away (a pipe into tee, stopped by the same Ctrl-C) or a
     * limit on file sizes must not end a run before it has saved. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(!o->trace_steps || o->trace || o->timeline, LL_E_ARG,
          "--trace-steps needs --trace or --timeline");
    CHECK(!o->from || o->resume, LL_E_ARG, "--from needs --resume");
    CHECK(!o->replay || !o->resume, LL_E_ARG,
          "--replay cannot be combined with --resume: it repeats a run from its beginning");
    CHECK(!o->overwrite || !o->resume, LL_E_ARG, "--overwrite cannot be combined with --resume");
    for (int i = 0; i < o->set.n && o->resume; i++)
        CHECK(
            strncmp(o->set.v[i], "train.init", strlen("train.init")), LL_E_ARG,
            "--resume cannot be combined with train.init, which is for a new run: use one of them");
    CHECK(!o->hosts || o->ranks > 1 || o->job, LL_E_ARG, "--hosts needs -n with 2 ranks or more%s",
          o->ranks ? ", not 1" : "");
    int64_t restarts;
    TRY(read_restarts(o, &restarts));
    TRY(read_words(o, &(ll_train_opts){0})); /* before there are ranks, and a folder */
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_run) r = NULL;
    ll_start start;
    ll_words set = {LL_NEW_ARRAY(a, const char *, o->set.n + 2), o->set.n};
    if (o->set.n) memcpy(set.v, o->set.v, sizeof *set.v * (size_t)o->set.n);
    if (o->job) {
        TRY(ll_start_parse(o->job, &start));
        ll_job_set_cared();
        own_start = &start;
        ll_job_set_note(note_halted);
        signal(SIGUSR1, SIG_IGN); /* which asks who trains to stop, not others to die */
        hold_signals();
        if (*start.mesh) set.v[set.n++] = ll_arena_printf(a, "parallel.mesh=%s", start.mesh);
        set.v[set.n++] = ll_arena_printf(a, "out=%s", start.out);
    }
    ll_comm *c;
    TRY(ll_cli_run(o->run, &set, false, &r));
    TRY(check_out(r));
    CHECK(!o->parallel || !strcmp(o->parallel, "auto"), LL_E_ARG,
          "--parallel is '%s', expected auto (for a mesh use --mesh)", o->parallel);
    if (o->parallel && !(o->job && *start.mesh))
        TRY(ll_plan_choose(r, o->ranks ? o->ranks : ll_job_size() ? ll_job_size() : 1));
    TRY(check_timeline(o, r));
    bool replicas = r->parallel.replicas > 1; /* on all of -n's ranks, or not at all */
    CHECK(!replicas || !o->hosts, LL_E_ARG,
          "--hosts cannot be combined with replicas, which cannot restart on fewer ranks: use "
          "mpirun");
    const char *mesh = replicas ? "" : r->parallel.mesh;
    ll_care care = {.start = ll_cli_supervise,
                    .restarts = restarts,
                    .mesh = mesh,
                    .timeout = r->parallel.timeout,
                    .hosts = o->hosts};
    bool starts = o->ranks > 1 && !o->job && ll_job_size() <= 1;
    if (starts) TRY(choose(o, r));
    care.out = r->out;
    if (!r->out_said) care.above = ll_cli_above(a, r->out);
    ll_err rc = ll_cli_ranks(r, o->job ? 0 : o->ranks, starts ? &care : NULL, &c);
    if (rc != LL_OK && starts && !o->resume) leave_nothing(r);
    TRY(rc);
    return ll_cli_leave(c, train(o, &start, c, r));
}

const ll_command ll_command_train = {
    "train", "train a model as a run file describes", args, sizeof(opts), run, more};
