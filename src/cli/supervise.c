/* supervise.c: the process that starts the ranks of -n stays, and starts them anew where that may
 * help.
 *
 *         hosts that answer, the mesh nearest to the one asked for
 *     [plan] ------------------------------------------------> [ranks run]
 *        ^                                                     |    |    |
 *        |  progress since the last start, or few without any  |    |    | status 0, 1, 2: theirs
 *        +--- a rank was killed, has stalled, its host is gone +    |    | to say; or the user has
 *        |                                                          |    | stopped them
 *        +--- hosts came back, or went by the file: asked to stop --+    v
 *                                                                      [end]
 *
 * 1. What a start cannot cure is not started again: ranks that fail for reasons of their own say so
 *    by their status. A crash (a signal that a program brings upon itself) is given one more try.
 * 2. Progress is a start that began at a later step than the one before it (train/recovery.h).
 * 3. SIGTERM, SIGINT, SIGUSR1 and SIGHUP to this process ask the ranks to save and stop, by
 *    SIGUSR1: launchers answer the others by killing ranks a second later. They are asked when they
 *    can hear it. Ranks that die of it, and leave a state in memory, are started once more to save.
 *    A signal to a rank does the same; one that has no handler yet dies, and that ends the run.
 *    SIGTSTP (Ctrl-Z) stops ranks with this process, and SIGCONT (fg) lets them go on.
 * 4. What memory has and the disk has not is never removed: the last line says where it is. */
#define _GNU_SOURCE /* memfd_create */
#include "cli/launch.h"

#include "base/file.h"
#include "cli/args.h"
#include "cli/hosts.h"
#include "cli/procs.h"
#include "comm/job.h"
#include "train/buddy.h"
#include "weights/checkpoint.h"
#include "train/metrics.h"
#include "train/recovery.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

static const double look_s = 0.25;  /* between looks at what the ranks have noted */
static const double count_s = 1.0;  /* between counts of them */
static const double halted_s = 0.5; /* a rank is stopped: others of it are to have seen it before */
static const double stuck_s = 1.0;  /* mpiexec is given, after a loss, before it is ended */
static const double grace_s = 10.0; /* and where it does not tell of one, beside 2 timeouts */
static const double alone_s = 10.0; /* where all ranks are gone, and it sleeps all the same */
static const double probe_s = 10.0; /* between looks for hosts that have come back */

typedef struct job {
    const ll_care *care;
    ll_mesh mesh; /* asked for */
    ll_start start;
    int64_t ranks;
    ll_hosts hosts;
    char *host_words; /* of this start; NULL: no file of hosts was given */
    sigset_t wanted, old;
    bool stopped, resizing; /* the ranks are to stop: by the user; to have others */
    bool asked, insisted;   /* they know; the user does not want to wait for them */
    bool began, lost;       /* they say that they have, that a rank is */
    bool probed;            /* and it is known which hosts answer since */
    ll_procs here;          /* ranks on this machine */
    int seen;               /* of them, at most of this start */
    double counted, looked; /* when they were; when it was seen how they are */
    pid_t halted;           /* one that a signal has stopped, while others run; 0: none has */
    double halted_at;       /* since when that is known */
    const char *why;        /* it was ended; NULL: nobody was by this process */
    double waits;           /* since when mpiexec is waited for in vain; 0: it is not */
    int64_t newest;         /* step known of */
    int said;               /* a file: what this start writes to its standard output */
    ll_arena *arena;
} job;

/* Asks ranks to save and stop; one that hears it is enough. Not every mpiexec passes SIGUSR1 on, so
 * it is asked only where no rank is here, once theirs are known to hear it. */
static void ask_ranks(job *j, pid_t mpiexec)
{
    ll_noted began;
    ll_proc of;
    ll_procs_find(&j->here, mpiexec, NULL);
    bool elsewhere = !j->here.n && ll_recovery_find(&j->start, LL_BEGAN, &began) &&
                     ll_proc_see(mpiexec, &of) && of.catches;
    j->asked = ll_procs_signal(&j->here, SIGUSR1) || (elsewhere && kill(mpiexec, SIGUSR1) == 0);
}

/* ---- hosts ---- */

/* Where none answers, a while later one may. */
static ll_err find_hosts(job *j)
{
    enum { TRIES = 20 };
    for (int i = 0; i == 0 || (i < TRIES && !ll_hosts_slots(&j->hosts)); i++) {
        TRY(ll_hosts_read(&j->hosts));
        if (i || !j->probed) ll_hosts_probe(&j->hosts, &j->old, true);
    }
    j->probed = false;
    return LL_OK;
}

/* After a loss, and while mpiexec ends: is a host gone, so that it will wait in vain? */
static bool host_is_gone(job *j)
{
    int64_t before = ll_hosts_slots(&j->hosts);
    if (!j->care->hosts || j->probed) return false;
    ll_hosts_probe(&j->hosts, &j->old, true);
    j->probed = true;
    return ll_hosts_slots(&j->hosts) < before;
}

/* On which hosts, how many ranks, and on which mesh. */
static ll_err plan(job *j, int64_t *ranks, char mesh[LL_MESH_TEXT], char **words)
{
    ll_mesh near;
    int64_t there = ll_hosts_slots(&j->hosts), most = j->mesh.n_rank;
    *ranks = most;
    *words = NULL;
    strcpy(mesh, j->care->mesh);
    if (!j->care->hosts) return LL_OK;
    CHECK(there > 0, LL_E_COMM, "%s: no host in it answers", j->care->hosts);
    ll_mesh_nearest(&j->mesh, there < most ? (int)there : (int)most, &near);
    *ranks = near.n_rank;
    *words = ll_hosts_words(&j->hosts, near.n_rank);
    if (*j->care->mesh && near.n_rank < most) ll_mesh_text(&near, mesh);
    return LL_OK;
}

/* Would a start now have other ranks than this one? */
static bool want_others(job *j)
{
    int64_t ranks;
    char mesh[LL_MESH_TEXT], *words;
    if (ll_hosts_read(&j->hosts) != LL_OK) return false; /* somebody writes it just now */
    if (ll_hosts_missing(&j->hosts)) ll_hosts_probe(&j->hosts, &j->old, false);
    return plan(j, &ranks, mesh, &words) == LL_OK && ranks != j->ranks;
}

/* ---- a start ---- */

/* Ctrl-Z: ranks, which the terminal does not reach, are stopped with this process, and go on with
 * it. */
static void pause_all(job *j, pid_t child)
{
    ll_procs_find(&j->here, child, NULL);
    double began = ll_now();
    ll_procs_signal(&j->here, SIGSTOP);
    if (j->care->hosts) kill(child, SIGTSTP); /* mpiexec passes it on */
    raise(SIGSTOP);
    ll_procs_tell_stop(&j->here, ll_now() - began); /* it waits for them to go on */
    if (j->care->hosts) kill(child, SIGCONT);
    ll_procs_signal(&j->here, SIGCONT);
    j->waits = 0;
}

static bool take_signals(job *j, pid_t child)
{
    struct timespec t = {.tv_nsec = (long)(1e9 * look_s)};
    int number = sigtimedwait(&j->wanted, NULL, &t);
    if (number == SIGTSTP) {
        pause_all(j, child);
        return true;
    }
    if (number <= 0 || number == SIGCHLD) return number == SIGCHLD;
    j->insisted = j->stopped;
    if (j->insisted) kill(child, number); /* who asks twice does not want to wait */
    j->stopped = true;
    return false;
}

/* Of ranks on this machine: how many are there, and is one, or mpiexec, stopped while others run?
 * Ranks that work see that themselves, sooner (comm/watch.c): this is for those that begin or end.
 * Stopped all together they are left alone, unless they are to save. */
static bool is_halted(job *j, pid_t child)
{
    ll_noted began;
    double now = ll_now(), since = j->looked;
    j->began = j->began || ll_recovery_find(&j->start, LL_BEGAN, &began);
    bool all = now > j->counted + count_s || !j->began;
    if (all) ll_procs_find(&j->here, child, NULL);
    if (all) j->counted = now;
    j->seen = j->here.n > j->seen ? j->here.n : j->seen;
    int n = 0;
    ll_proc of;
    pid_t first = 0;
    for (int i = 0; i < j->here.n; i++) {
        if (!ll_proc_see(j->here.pid[i], &of) || !of.halted) continue;
        first = n++ ? first : j->here.pid[i];
    }
    if (!n && ll_proc_see(child, &of) && of.halted) first = child;
    if (n == j->ranks && !j->stopped) first = 0;
    bool same = first && first == j->halted && now < since + count_s; /* else this was, as well */
    if (!same) j->halted_at = now;
    j->halted = first;
    j->looked = now;
    return same && now >= j->halted_at + halted_s;
}

/* All ranks here: those that begin would wait for it, and mpiexec for a second. */
static void end_halted(job *j, pid_t child)
{
    int rank = j->halted == child ? -1 : ll_proc_rank(j->halted);
    const char *which = j->halted == child ? "mpiexec" : "a rank";
    if (rank >= 0) which = ll_arena_printf(j->arena, "rank %d", rank);
    j->why = ll_arena_printf(j->arena, "%s (process %ld) was stopped by a signal, and is ended",
                             which, (long)j->halted);
    j->lost = true;
    ll_procs_find(&j->here, child, NULL);
    ll_procs_signal(&j->here, SIGKILL);
    if (j->halted == child) ll_procs_end(child);
}

/* Is mpiexec still waiting, long after a loss, for a host that is gone? Or for what nobody tells of
 * (it may itself hang): a rank that is gone, ranks that do not come to be asked to stop, its own
 * end. Then all of it is ended, and counts as lost. */
static void end_stuck(job *j, pid_t child)
{
    ll_noted lost;
    ll_proc of;
    bool halted = is_halted(j, child);
    double now = ll_now();
    j->lost = j->lost || ll_recovery_find(&j->start, LL_LOST, &lost);
    if (halted && !j->why) end_halted(j, child);
    bool deaf = (j->stopped || j->resizing) && !j->asked;
    if (!j->lost && !j->insisted && j->here.n == j->seen && !deaf)
        j->waits = 0;
    else if (j->waits == 0)
        j->waits = now;
    double most = j->lost ? stuck_s : j->insisted ? grace_s : 2 * j->care->timeout + grace_s;
    bool alone = !j->care->hosts && j->seen && !j->here.n;
    if (alone && ll_proc_see(child, &of) && of.sleeps) most = fmin(most, alone_s);
    bool gone = j->lost && host_is_gone(j);
    if (!gone && (j->waits == 0 || now < j->waits + most)) return;
    if (!j->lost && !gone)
        fprintf(stderr, "%s: mpiexec does not exit: terminating it\n", ll_cli_name());
    j->lost = true;
    ll_procs_end(child);
}

/* Ranks of an mpiexec that was killed end by themselves, soon. Nobody begins, or is told that all
 * is over, before. */
static void see_off(job *j, pid_t child)
{
    double began = ll_now();
    for (ll_procs_find(&j->here, 0, j->start.job); j->here.n && ll_now() < began + grace_s;) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        ll_procs_find(&j->here, 0, j->start.job);
    }
    ll_procs_signal(&j->here, SIGKILL);
    ll_job_remove_folder(child);
}

/* Until the launcher has ended; its status. */
static int await(job *j, pid_t child)
{
    double probed = ll_now();
    int status = 0;
    while (waitpid(child, &status, WNOHANG) != child) {
        if (take_signals(j, child)) continue;
        if ((j->stopped || j->resizing) && !j->asked) ask_ranks(j, child);
        end_stuck(j, child);
        if (!j->care->hosts || j->stopped || j->resizing || j->lost) continue;
        bool same = !ll_hosts_changed(&j->hosts);
        if (same && (j->ranks == j->mesh.n_rank || ll_now() < probed + probe_s)) continue;
        j->resizing = want_others(j);
        if (j->resizing) ask_ranks(j, child);
        probed = ll_now();
    }
    if (WIFSIGNALED(status) && !j->why && !j->lost && !j->insisted)
        j->why = ll_arena_printf(j->arena, "mpiexec (process %ld) was ended by signal %d",
                                 (long)child, WTERMSIG(status));
    if (WIFSIGNALED(status)) see_off(j, child);
    return ll_cli_code(status);
}

/* The signal that ended a rank; 0: none did. MPICH's mpiexec has it for its status as it is. */
static int signal_of(int code)
{
    return code > 128 && code < 128 + 32 ? code - 128 : code > 2 && code < 32 ? code : 0;
}

static const char *reason(const job *j, int code)
{
    ll_noted noted;
    if (j->why) return j->why;
    bool known = ll_recovery_find(&j->start, LL_HALTED, &noted) ||
                 ll_recovery_find(&j->start, LL_LOST, &noted);
    if (known) /* others, behind it, wait for that one */
        return ll_arena_printf(j->arena, "%.*s", (int)strcspn(noted.text, ";"), noted.text);
    if (j->lost || !signal_of(code)) return "a rank was lost";
    return ll_arena_printf(j->arena, "a rank was ended by signal %d", signal_of(code));
}

static bool is_crash(int code)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (signal_of(code) == numbers[i]) return true;
    return false;
}

/* Was a rank itself, or mpiexec, asked to stop when it could not hear it yet? It has died of it. */
static bool was_asked(const job *j, int code)
{
    int number = signal_of(code);
    return !j->lost && (number == SIGTERM || number == SIGINT || number == SIGHUP);
}

/* The newest state in memory; *step: its; *only: the disk has none as new. */
static bool in_memory(const job *j, bool *only, int64_t *step, ll_st_file **f)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_st_file) saved = NULL;
    const char *note;
    int64_t on_disk = -1;
    if (ll_buddy_open(NULL, j->start.job, f) != LL_OK || !*f) return false;
    if (ll_checkpoint_int(*f, "step", step) != LL_OK) return false;
    if (ll_checkpoint_open_whole(NULL, j->care->out, 1, a, &note, &saved) == LL_OK && saved &&
        ll_checkpoint_int(saved, "step", &on_disk) != LL_OK)
        on_disk = -1;
    *only = *step > on_disk;
    return true;
}

/* Have the ranks ended by themselves? */
static bool is_theirs(const job *j, int code)
{
    bool theirs = code <= 2 || code == LL_EXIT_STOPPED || code == 126 || code == 127;
    return theirs && !j->lost;
}

/* What ranks have ended with; 0 or LL_EXIT_STOPPED where one was lost with nothing left to do. */
static int status_of(job *j, int code)
{
    ll_noted done;
    if (!ll_recovery_find(&j->start, LL_DONE, &done)) return code;
    if (!is_theirs(j, code)) /* else mpiexec's own, which was told to end twice */
        fprintf(stderr, "%s: %s, after all was done\n", ll_cli_name(), reason(j, code));
    j->lost = false;
    return atoi(done.text);
}

static bool is_over(const job *j, int code)
{
    LL_OWN(ll_st_file) f = NULL;
    int64_t step;
    bool only;
    if (is_theirs(j, code)) return true;
    return j->stopped && (j->insisted || !in_memory(j, &only, &step, &f));
}

/* Removes what is in memory, or says what it is good for. */
static void sweep(const job *j)
{
    LL_OWN(ll_st_file) f = NULL;
    int64_t step;
    bool only;
    if (in_memory(j, &only, &step, &f) && only)
        fprintf(stderr,
                "%s: the state of step %ld was not saved, but is kept in memory; continue with:\n  "
                "%s train %s --resume --from %s -n %d\nor remove it: rm /dev/shm/loopline-%s-*\n",
                ll_cli_name(), step, ll_cli_program(), j->care->out, f->path, j->mesh.n_rank,
                j->start.job);
    else
        ll_buddy_sweep(j->start.job);
}

static void see_step(void *context, int64_t step, const json_t *line)
{
    int64_t *newest = (int64_t *)context;
    (void)line;
    if (step > *newest) *newest = step;
}

/* A line of how this start ended, with the newest step that is known to have been made. */
static void note_end(job *j, const char *why)
{
    ll_noted began, lost;
    int64_t step;
    size_t kept;
    bool only, any = ll_recovery_find(&j->start, LL_BEGAN, &began);
    if (any) j->newest = began.step;
    LL_OWN(ll_st_file) f = NULL; /* where no rank was left to say it, memory may tell */
    if (ll_recovery_find(&j->start, LL_LOST, &lost))
        see_step(&j->newest, lost.step, NULL);
    else if ((j->lost || j->why) && in_memory(j, &only, &step, &f))
        see_step(&j->newest, step, NULL);
    if (any) see_step(&j->newest, ll_checkpoint_newest(j->care->out), NULL);
    const char *metrics = ll_arena_printf(j->arena, "%s/metrics.jsonl", j->care->out);
    if (any && ll_metrics_lines(metrics, INT64_MAX, see_step, &j->newest, &kept) != LL_OK)
        fprintf(stderr, "%s: %s\n", ll_cli_name(), ll_error_message());
    if (ll_mkdirs(j->care->out) != LL_OK ||
        ll_recovery_note(&j->start, LL_ENDED, j->newest, why) != LL_OK)
        fprintf(stderr, "%s: %s\n", ll_cli_name(), ll_error_message());
}

static void note_last(job *j, int code)
{
    ll_noted began;
    bool any = ll_recovery_find(&j->start, LL_BEGAN, &began);
    const char *why = code == 0 ? "done" : any ? "failed" : "failed before it began";
    if (code == LL_EXIT_STOPPED) why = "stopped, and saved";
    if (any || j->start.number > 0) note_end(j, why);
}

/* Ranks that were to save and stop have died. */
static void tell_unsaved(const job *j, int code)
{
    int64_t step = ll_checkpoint_newest(j->care->out);
    fprintf(stderr, "%s: %s before all ranks had stopped: ", ll_cli_name(), reason(j, code));
    if (step < 0)
        fprintf(stderr, "nothing is saved\n");
    else
        fprintf(stderr, "step %ld is saved\n", step);
}

/* What the last start wrote. MPICH's mpiexec writes there, too, of ranks that were lost. */
static void say(const job *j, bool failed)
{
    char bytes[4096];
    ssize_t n;
    lseek(j->said, 0, SEEK_SET);
    while ((n = read(j->said, bytes, sizeof bytes)) > 0)
        fwrite(bytes, 1, (size_t)n, failed ? stderr : stdout);
    fflush(stderr);
}

/* Does not return. What never began leaves no notes, nor a folder of them. */
static void finish(const job *j, int code)
{
    sweep(j);
    say(j, code && code != LL_EXIT_STOPPED);
    if (code && !ll_file_exists(ll_arena_printf(j->arena, "%s/run.yaml", j->care->out))) {
        ll_recovery_remove(&j->start);
        (void)rmdir(j->care->out);
    }
    if (code && j->care->above) (void)rmdir(j->care->above); /* ranks have removed what was in it */
    _exit(ll_cli_printed(true, code == LL_JOB_LOST ? 1 : code));
}

/* After a start that ended in a loss: is there to be another one? *idle: starts in a row that left
 * no more behind than the one before. */
static bool again(job *j, int code, int64_t *before, int64_t *idle)
{
    ll_noted first = {.step = -1};
    int64_t most = j->care->restarts;
    bool began = ll_recovery_find(&j->start, LL_BEGAN, &first);
    int64_t kept = began ? ll_checkpoint_newest(j->care->out) : -1; /* the next begins there */
    int64_t came = kept > first.step ? kept : first.step;
    *idle = began && came > *before ? 0 : *idle + 1;
    if (began && came > *before) *before = came;
    if (most || began) note_end(j, reason(j, code));
    bool crash = !j->lost && is_crash(code), loop = *idle >= (crash && most > 1 ? 1 : most);
    fprintf(stderr, "%s: %s", ll_cli_name(), reason(j, code));
    if (!loop)
        fprintf(stderr, ": starting again (%d)\n", j->start.number + 1);
    else if (!most)
        fputc('\n', stderr);
    else if (*before < 0)
        fprintf(stderr, ", and again: none of %ld starts came to a step: not starting again\n",
                *idle + 1);
    else
        fprintf(stderr,
                ", %s: the last %ld starts began at step %ld and made no progress: not starting "
                "again; use train.buddy or a smaller train.save_every to save more often\n",
                crash ? "and it crashes there" : "and again", *idle + 1, *before);
    return !loop;
}

static ll_err run_once(job *j, int *code)
{
    TRY(plan(j, &j->ranks, j->start.mesh, &j->host_words));
    const ll_mpiexec how = {
        .ranks = j->ranks, .hosts = j->host_words, .job = ll_start_print(&j->start, j->arena)};
    if (j->ranks < j->mesh.n_rank)
        fprintf(stderr, "%s: %s of %d, on %s, until %s\n", ll_cli_name(),
                LL_COUNTED(j->ranks, "rank"), j->mesh.n_rank, j->host_words,
                ll_hosts_missing(&j->hosts) ? "more hosts answer"
                                            : "the file of hosts has more slots");
    j->began = j->lost = j->resizing = j->asked = false;
    j->why = NULL;
    j->seen = j->here.n = 0;
    j->counted = j->looked = j->waits = 0;
    j->halted = 0;
    CHECK(ftruncate(j->said, 0) == 0 && lseek(j->said, 0, SEEK_SET) == 0, LL_E_SYS, "%m");
    pid_t child = ll_cli_spawn(&how, &j->old, j->said);
    CHECK(child > 0, LL_E_SYS, "a process for mpiexec cannot be started: %m");
    *code = await(j, child);
    return LL_OK;
}

static ll_err supervise(job *j)
{
    int64_t before = -1, idle = -1;
    for (int code;; j->start.number++) {
        if (j->care->hosts && !j->resizing) TRY(find_hosts(j));
        TRY(run_once(j, &code));
        code = status_of(j, code);
        j->stopped = j->stopped || was_asked(j, code);
        if (j->resizing && !j->stopped && code == LL_EXIT_STOPPED) {
            note_end(j, "other hosts");
            continue;
        }
        if (is_over(j, code)) {
            if (!is_theirs(j, code)) tell_unsaved(j, code);
            note_last(j, code);
            finish(j, code);
        }
        if (!again(j, code, &before, &idle)) finish(j, code);
    }
}

ll_err ll_cli_supervise(int64_t ranks, const ll_care *care)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGTSTP, SIGCHLD};
    uint64_t id;
    struct sigaction now;
    job j = {.care = care, .arena = ll_arena_new()};
    j.hosts = (ll_hosts){.file = care->hosts, .arena = j.arena};
    j.here.arena = j.arena;
    const char *mesh = ll_arena_printf(j.arena, "data=%ld", ranks);
    TRY(ll_mesh_parse(*care->mesh ? care->mesh : mesh, &j.mesh));
    CHECK(getrandom(&id, sizeof id, 0) == sizeof id, LL_E_SYS, "no random number available: %m");
    snprintf(j.start.job, sizeof j.start.job, "%016lx", id);
    j.said = memfd_create("loopline", MFD_CLOEXEC);
    CHECK(j.said >= 0, LL_E_SYS, "a file in memory cannot be created: %m");
    j.start.began = ll_wall_now();
    j.start.out = care->out;
    sigemptyset(&j.wanted);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if ((numbers[i] != SIGHUP && numbers[i] != SIGTSTP) || sigaction(numbers[i], NULL, &now) ||
            now.sa_handler != SIG_IGN)
            sigaddset(&j.wanted, numbers[i]);
    sigprocmask(SIG_BLOCK, &j.wanted, &j.old);
    ll_err rc = supervise(&j);
    LL_KEEP_ERROR;
    sweep(&j);
    return rc;
}
