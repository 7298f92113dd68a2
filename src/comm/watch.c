/* watch.c: the thread of each process, and what the rank tells it.
 *
 * The rank writes what it does into a cell that the thread reads a few times a second. Writing must
 * cost nothing, for it happens between kernels: names are copied by a few plain stores, a counter
 * goes up, and the thread notes the time when it sees the counter changed. The cell is a seqlock:
 * the counter is odd while the rank writes, and the thread reads again if it moved meanwhile.
 *
 * The thread, each period (a twentieth of the timeout, half a second at most):
 *   rank 0        tells all what it does, and judges what it heard (watch_hub.c). A report is
 *                 printed here, once for the job, before the ranks hear of it: launchers end a job
 *                 within a millisecond of a death, which no message through MPI would outrun.
 *   other ranks   tell rank 0 what they do; take its report; if it died or is silent, report it
 *                 themselves.
 * A failed watch gives the rank a grace period to come to ll_watch_check. A rank that is in an
 * endless loop, or in an MPI call that will not end, never does, and nothing but ending the process
 * can keep the promise that no job hangs: here, and beside MPI_Init (begin.c), this library calls
 * _exit. One that says it is held, by a lock that the lost rank may have, is ended at once.
 *
 * Between its periods it looks at the next rank of its node, where somebody would start all anew
 * (job.h): one that is stopped while this one runs is ended, which all see at once, in place of
 * waiting for the timeout. Of ranks that are stopped all together none looks.
 *
 * Opening, by the transport's messages: rank 0 sends each rank where it listens; they connect by
 * sockets and answer how that went; rank 0 tells all the first failure. */
#include "comm/watch_int.h"

#include "base/thread.h"
#include "comm/job.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WORDS = LL_WATCH_NAME / 8 };
typedef _Atomic uint64_t name_cell[WORDS];

struct ll_watch {
    int rank, *world; /* world: what to call the ranks */
    double timeout, period, grace;
    /* What this rank does: written by it, read by the thread. */
    _Atomic uint64_t turn; /* odd while the rest is written */
    _Atomic bool waiting, slow, held;
    _Atomic int64_t number;
    name_cell what, site, doing;
    /* The failure: report stays as it is once failed is set. */
    _Atomic bool failed, seen, closing;
    char report[LL_WATCH_REPORT];
    _Atomic bool giving_up; /* last_words are to be sent */
    char last_words[LL_WATCH_REPORT];
    int wake; /* written to when closing or giving up */
    pthread_t thread;
    bool running;
    /* The thread's. */
    uint64_t last_turn;
    double since, failed_at; /* the counter changed; the watch failed */
    double slept, woke;      /* this process was stopped last: for so long, until when */
    _Atomic bool looks;      /* at the rank that is near, as set by then */
    ll_watch_near near;
    double looked;      /* last */
    int halted;         /* looks in a row that have seen it stopped */
    ll_watch_hub *hub;  /* of rank 0 */
    ll_watch_link link; /* of others, to rank 0 */
    bool hub_left;
    double hub_heard;
    ll_watch_state hub_state;
};

/* ---- the rank's side ---- */

static void write_begin(ll_watch *w)
{
    uint64_t turn = atomic_load_explicit(&w->turn, memory_order_relaxed);
    atomic_store_explicit(&w->turn, turn + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

static void write_end(ll_watch *w)
{
    uint64_t turn = atomic_load_explicit(&w->turn, memory_order_relaxed);
    atomic_store_explicit(&w->turn, turn + 1, memory_order_release);
}

static void write_name(name_cell cell, const char *text)
{
    size_t n = text ? strnlen(text, LL_WATCH_NAME - 1) : 0;
    uint64_t word;
    for (size_t i = 0; i < n / 8; i++) {
        memcpy(&word, text + 8 * i, 8);
        atomic_store_explicit(&cell[i], word, memory_order_relaxed);
    }
    char rest[8] = {0};
    for (size_t i = n & ~(size_t)7; i < n; i++) rest[i % 8] = text[i];
    memcpy(&word, rest, 8);
    atomic_store_explicit(&cell[n / 8], word, memory_order_relaxed);
}

void ll_watch_doing(ll_watch *w, const char *what)
{
    if (!w) return;
    write_begin(w);
    write_name(w->doing, what);
    write_end(w);
}

void ll_watch_tell(ll_watch *w)
{
    if (w) (void)eventfd_write(w->wake, 1); /* else they hear it a little later */
}

void ll_watch_slow(ll_watch *w, bool slow)
{
    if (w) atomic_store_explicit(&w->slow, slow, memory_order_relaxed);
}

void ll_watch_held(ll_watch *w, bool held)
{
    if (w) atomic_store_explicit(&w->held, held, memory_order_relaxed);
}

void ll_watch_wait_begin(ll_watch *w, const char *what, int64_t number, const char *site)
{
    if (!w) return;
    write_begin(w);
    write_name(w->what, what);
    write_name(w->site, site);
    atomic_store_explicit(&w->number, number, memory_order_relaxed);
    atomic_store_explicit(&w->waiting, true, memory_order_relaxed);
    write_end(w);
}

void ll_watch_moved(ll_watch *w)
{
    if (!w) return;
    uint64_t turn = atomic_load_explicit(&w->turn, memory_order_relaxed);
    atomic_store_explicit(&w->turn, turn + 2, memory_order_relaxed);
}

void ll_watch_wait_end(ll_watch *w)
{
    if (!w) return;
    write_begin(w);
    atomic_store_explicit(&w->waiting, false, memory_order_relaxed);
    write_end(w);
}

bool ll_watch_failed(const ll_watch *w)
{
    return w && atomic_load_explicit(&w->failed, memory_order_acquire);
}

ll_err ll_watch_check(ll_watch *w)
{
    if (!ll_watch_failed(w)) return LL_OK;
    atomic_store(&w->seen, true);
    FAIL(LL_E_COMM, "%s", w->report);
}

void ll_watch_give_up(ll_watch *w, const char *text)
{
    if (!w || w->failed) return;
    snprintf(w->last_words, sizeof w->last_words, "%s", text);
    w->giving_up = true;
    double until = ll_now() + 1;
    if (eventfd_write(w->wake, 1) == 0)
        while (w->giving_up && !w->failed && ll_now() < until)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* ---- the thread's side ---- */

static void read_name(const name_cell cell, char out[LL_WATCH_NAME])
{
    for (int i = 0; i < WORDS; i++) {
        uint64_t word = atomic_load_explicit(&cell[i], memory_order_relaxed);
        memcpy(out + 8 * i, &word, 8);
    }
    out[LL_WATCH_NAME - 1] = '\0';
}

/* What the rank does, and for how long by the thread's clock. */
static ll_watch_state read_state(ll_watch *w, double now)
{
    ll_watch_state s = {0};
    uint64_t turn = 0;
    for (int tries = 0; tries < 1000; tries++) { /* a rank stopped while writing: as it is */
        turn = atomic_load_explicit(&w->turn, memory_order_acquire);
        s.waiting = atomic_load_explicit(&w->waiting, memory_order_relaxed);
        s.slow = atomic_load_explicit(&w->slow, memory_order_relaxed);
        s.number = atomic_load_explicit(&w->number, memory_order_relaxed);
        read_name(w->what, s.what);
        read_name(w->site, s.site);
        read_name(w->doing, s.doing);
        atomic_thread_fence(memory_order_acquire);
        if (!(turn & 1) && turn == atomic_load_explicit(&w->turn, memory_order_relaxed)) break;
    }
    if (turn != w->last_turn) w->since = now;
    w->last_turn = turn;
    s.seconds = now - w->since;
    return s;
}

/* In one write, so that lines of several processes do not mix. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    char text[LL_WATCH_REPORT + 200];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if ((size_t)n >= sizeof text) n = sizeof text - 1;
    if (write(STDERR_FILENO, text, (size_t)n) < 0) return; /* nobody listens: no one to tell */
}

/* print: this thread does, for all. lost: a rank is; otherwise it failed by itself. */
static void set_failed(ll_watch *w, bool print, bool lost, ll_failure how)
{
    if (lost) ll_job_lose();
    if (print) say("loopline: %s\n", w->report);
    ll_job_share_failure(w->report, how);
    w->failed_at = ll_now();
    atomic_store_explicit(&w->failed, true, memory_order_release);
}

/* Rank 0 is no more heard of: each rank reports that for itself, and rank 1 prints it. */
static void lost_hub(ll_watch *w, ll_watch_fate fate, double now)
{
    ll_watch_row rows[2] = {
        {.rank = w->world[0], .fate = fate, .silent_s = now - w->hub_heard, .state = w->hub_state},
        {.rank = w->world[w->rank], .fate = LL_WATCH_HERE, .state = read_state(w, now)}};
    ll_watch_report(rows, 2, w->report);
    set_failed(w, w->rank == 1, true, w->rank == 1 ? LL_FAILURE_TOLD : LL_FAILURE_LATE);
}

static void hear_hub(ll_watch *w, double now)
{
    ll_watch_msg m;
    while (w->link.fd >= 0 && !w->failed) {
        ll_watch_got got = ll_watch_take(&w->link, &m);
        if (got == LL_WATCH_NOTHING) return;
        w->hub_heard = now;
        if (got == LL_WATCH_BROKEN) {
            ll_watch_unlink(&w->link);
            lost_hub(w, LL_WATCH_DEAD, now);
        } else if (m.kind == LL_WATCH_BYE) {
            w->hub_left = true;
            ll_watch_unlink(&w->link);
        } else if (m.kind == LL_WATCH_FAILED) {
            strcpy(w->report, m.report);
            set_failed(w, false, m.rank, LL_FAILURE_TOLD);
        } else if (m.kind == LL_WATCH_STATE) {
            w->hub_state = m.state;
        }
    }
}

/* The rank has printed what it fails with. */
static void send_last_words(ll_watch *w)
{
    ll_watch_msg m = {0};
    strcpy(m.report, w->last_words);
    if (w->hub)
        ll_watch_hub_tell(w->hub, w->last_words, false);
    else
        ll_watch_send(&w->link, LL_WATCH_FAILED, &m);
    strcpy(w->report, w->last_words);
    set_failed(w, false, false, LL_FAILURE_TOLD);
    w->giving_up = false;
}

static void tick_hub(ll_watch *w, const ll_watch_state *s, double now)
{
    bool print;
    ll_watch_hub_beat(w->hub, s);
    if (!ll_watch_hub_judge(w->hub, s, w->report, &print)) return;
    /* Silent for so long they have given it up: it is their report that counts. */
    if (w->slept > w->timeout - 2 * w->period && now - w->woke < w->timeout)
        snprintf(w->report, sizeof w->report,
                 "rank %d was stopped for %.1f s, and the others continued without it", w->world[0],
                 w->slept);
    set_failed(w, print, print, LL_FAILURE_TOLD); /* what nobody has printed is no one's words */
    ll_watch_hub_tell(w->hub, w->report, print);
}

static void tick_rank(ll_watch *w, const ll_watch_state *s, double now)
{
    ll_watch_msg m = {.state = *s};
    ll_watch_send(&w->link, LL_WATCH_STATE, &m); /* where it fails the next read says so */
    bool silent = !w->hub_left && now - w->hub_heard > w->timeout;
    if (silent) lost_hub(w, LL_WATCH_SILENT, now);
    /* Nobody else watches any more when rank 0 has said goodbye. */
    if (w->hub_left && s->waiting && s->seconds > w->timeout) lost_hub(w, LL_WATCH_LEFT, now);
}

/* When to look at the rank that is near, how often it is to be seen stopped, and after how long
 * between two looks this process may have been stopped as well. */
static const double look_s = 0.05, awake_s = 0.3;
enum { HALTED_LOOKS = 3 };

static double next_look(const ll_watch *w)
{
    return w->looks && !w->failed ? w->looked + look_s : INFINITY;
}

static void look(ll_watch *w, double now)
{
    if (now < next_look(w)) return;
    bool stopped = ll_process_state(&w->near.process) == 'T';
    w->halted = !stopped ? 0 : now < w->looked + awake_s ? w->halted + 1 : 1;
    w->looked = now;
    if (w->halted < HALTED_LOOKS) return;
    char text[96];
    snprintf(text, sizeof text, "rank %d was stopped by a signal, and rank %d terminates it",
             w->near.rank, w->world[w->rank]);
    say("loopline: %s\n", text);
    ll_job_note(text);
    kill((pid_t)w->near.process.pid, SIGKILL);
    w->looks = false;
}

/* What a rank that is held may still be given, which has not seen that it is. */
static const double held_s = 0.1;

static void end_process_if_stuck(ll_watch *w, double now)
{
    bool held = atomic_load(&w->held);
    if (atomic_load(&w->seen) || now - w->failed_at < (held ? held_s : w->grace)) return;
    if (!held)
        say("loopline: rank %d did not return within %.1f s of the failure and is terminated: %s\n",
            w->world[w->rank], w->grace, w->report);
    _exit(ll_job_status(1));
}

static void tick(ll_watch *w, double now, double slept)
{
    if (slept > w->timeout / 2) { /* this process was stopped: no news is no sign of anything */
        w->slept = slept;
        w->woke = now;
        w->since += slept;
        w->hub_heard += slept;
        if (w->hub) ll_watch_hub_slept(w->hub, slept);
    }
    if (w->failed) {
        end_process_if_stuck(w, now);
        return;
    }
    ll_watch_state s = read_state(w, now);
    if (w->hub)
        tick_hub(w, &s, now);
    else
        tick_rank(w, &s, now);
}

/* Listens until the time is up, or (true) there was something, or the rank wants something. A
 * failed watch has nothing more to hear. */
static bool listen_until(ll_watch *w, double until)
{
    double left = until - ll_now();
    bool woken;
    struct pollfd p[2] = {{.fd = w->wake, .events = POLLIN},
                          {.fd = w->failed ? -1 : w->link.fd, .events = POLLIN}};
    if (w->hub && !w->failed) {
        woken = ll_watch_hub_serve(w->hub, until);
    } else {
        woken = poll(p, 2, left > 0 ? (int)(1e3 * left) + 1 : 0) > 0;
        hear_hub(w, ll_now());
    }
    eventfd_t count;
    eventfd_read(w->wake, &count); /* or it would wake for ever */
    return woken;
}

static void *watch(void *arg)
{
    ll_watch *w = (ll_watch *)arg;
    double last = ll_now();
    while (!w->closing) {
        double now = last, until = last + (w->failed ? fmin(w->period, held_s) : w->period);
        for (bool woken = false; !woken && now < until; now = ll_now()) {
            woken = listen_until(w, fmin(until, next_look(w)));
            look(w, ll_now());
        }
        if (w->closing) break;
        if (w->giving_up && !w->failed) send_last_words(w);
        tick(w, now, now - last - w->period);
        last = now;
    }
    return NULL;
}

/* ---- opening and closing ---- */

/* The hub's thread runs already. */
static void look_at(ll_watch *w, const ll_watch_near *near)
{
    w->near = *near;
    w->looked = ll_now();
    bool other = near->process.pid && near->process.pid != getpid();
    atomic_store_explicit(&w->looks, other && ll_job_is_cared(), memory_order_release);
}

static ll_err start_thread(ll_watch *w)
{
    w->since = w->hub_heard = ll_now();
    w->running = ll_thread_start(&w->thread, watch, w);
    CHECK(w->running, LL_E_SYS, "no thread could be started to watch the ranks");
    return LL_OK;
}

/* Rank 0's hub listens before the others are told where. */
static ll_err open_hub(ll_watch *w, const ll_transport *t, ll_watch_address *at)
{
    TRY(ll_watch_hub_open(t->size, w->world, ll_one_node(t->node, t->size), w->timeout, w->wake, at,
                          &w->hub));
    return start_thread(w);
}

static ll_err make(ll_transport *t, double timeout_s, ll_watch **out)
{
    ll_watch *w = (ll_watch *)calloc(1, sizeof *w);
    CHECK(w, LL_E_MEM, "not enough memory to watch the ranks");
    *out = w;
    w->rank = t->rank;
    w->timeout = timeout_s;
    w->period = timeout_s / 20 < 0.5 ? timeout_s / 20 : 0.5;
    w->grace = timeout_s / 10 > 2 ? timeout_s / 10 : 2;
    w->link.fd = -1;
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(w->wake >= 0, LL_E_SYS, "no event to wake the watch thread: %s", strerror(errno));
    w->world = (int *)malloc((size_t)t->size * sizeof *w->world);
    CHECK(w->world, LL_E_MEM, "not enough memory to watch %d ranks", t->size);
    memcpy(w->world, t->world, (size_t)t->size * sizeof *w->world);
    return LL_OK;
}

ll_err ll_watch_open(ll_transport *t, ll_err mine, double timeout_s, ll_watch **out)
{
    *out = NULL;
    if (t->size == 1) return mine;
    LL_OWN(ll_watch) w = NULL;
    ll_watch_address at = {0};
    ll_err rc = mine;
    if (rc == LL_OK)
        rc = timeout_s > 0 ? make(t, timeout_s, &w)
                           : RAISE(LL_E_ARG, "timeout is %g s, expected more than 0", timeout_s);
    if (rc == LL_OK && t->rank == 0) rc = open_hub(w, t, &at);
    ll_watch_near near;
    rc = ll_watch_meet(t, rc, timeout_s, &at, w ? &w->link : NULL, &near);
    if (rc == LL_OK) look_at(w, &near);
    if (rc == LL_OK && t->rank > 0) rc = start_thread(w);
    TRY(rc);
    return LL_HAND(out, w);
}

void ll_watch_close(ll_watch *w)
{
    if (!w) return;
    w->closing = true;
    if (w->running && eventfd_write(w->wake, 1) == 0) pthread_join(w->thread, NULL);
    ll_watch_hub_close(w->hub);
    ll_watch_send(&w->link, LL_WATCH_BYE, NULL);
    ll_watch_unlink(&w->link);
    if (w->wake >= 0) close(w->wake);
    free(w->world);
    free(w);
}
