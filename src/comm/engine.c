/* engine.c: moves the requests of a family of communicators: inside calls that wait, inside polls,
 * and, if asked for, on a thread of its own; keeps what requests need, so that nothing is allocated
 * once every kind of call has been made. */
#include "base/thread.h"
#include "comm/comm_int.h"

#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* ---- memory that is kept ---- */

/* The smallest free block that is large enough; else a free one is made larger, or a new one. */
ll_err ll_scratch_take(ll_engine *e, const ll_comm *of, size_t bytes, int *out)
{
    int best = -1, any = -1;
    for (int i = 0; i < e->n_scratch; i++) {
        if (e->scratch[i].used || e->scratch[i].of != of) continue;
        any = i;
        if (e->scratch[i].bytes >= bytes &&
            (best < 0 || e->scratch[i].bytes < e->scratch[best].bytes))
            best = i;
    }
    if (best < 0) {
        size_t room = (bytes + 4095) & ~(size_t)4095;
        void *data = aligned_alloc(4096, room);
        CHECK(data, LL_E_MEM, "not enough memory for %zu bytes of scratch", room);
        if (any < 0) {
            ll_kept *more =
                (ll_kept *)realloc(e->scratch, sizeof *more * (size_t)(e->n_scratch + 1));
            CHECK(more, LL_E_MEM, "not enough memory for a list of %d blocks", e->n_scratch + 1);
            e->scratch = more;
            any = e->n_scratch++;
            e->scratch[any] = (ll_kept){0};
        }
        free(e->scratch[any].data);
        e->used.held += room - e->scratch[any].bytes;
        e->scratch[any] = (ll_kept){.data = data, .bytes = room, .of = of};
        best = any;
    }
    e->scratch[best].used = true;
    *out = best;
    return LL_OK;
}

void ll_comm_trim(ll_comm *c)
{
    ll_engine *e = c->engine;
    LL_LOCKED(e);
    LL_EACH (ll_kept, s, e->scratch, e->n_scratch) {
        if (s->used || (s->bytes <= LL_LEAST_SCRATCH && !s->of)) continue;
        e->used.held -= s->bytes;
        free(s->data);
        *s = (ll_kept){0};
    }
    while (e->n_scratch && !e->scratch[e->n_scratch - 1].data) e->n_scratch--;
}

ll_err ll_request_take(ll_engine *e, ll_request **out)
{
    ll_request *r = e->spare;
    if (r)
        e->spare = r->next;
    else
        r = (ll_request *)calloc(1, sizeof *r);
    CHECK(r, LL_E_MEM, "not enough memory for a request");
    *out = r;
    return LL_OK;
}

void ll_request_give(ll_engine *e, ll_request *r)
{
    r->next = e->spare;
    e->spare = r;
}

/* ---- moving ---- */

/* Of the process, not of an engine: MPI wants calls from one thread at a time, whatever they are
 * about. */
static pthread_mutex_t mpi_lock = PTHREAD_MUTEX_INITIALIZER;
static ll_engine *engines; /* those of several ranks */

const ll_engine *ll_engine_lock(const ll_engine *e)
{
    if (!e || !e->alone) pthread_mutex_lock(&mpi_lock);
    return e;
}

void ll_engine_unlock(const ll_engine *e)
{
    if (!e || !e->alone) pthread_mutex_unlock(&mpi_lock);
}

void ll_engine_let_go(const ll_engine **e)
{
    ll_engine_unlock(*e);
}

ll_err ll_engine_fail(ll_engine *e, ll_err rc)
{
    if (e->failed) return rc;
    e->failure = rc;
    strncpy(e->failure_text, ll_error_message(), sizeof e->failure_text - 1);
    for (ll_request *r = e->first; r; r = r->next)
        for (int i = 0; i < r->n_message; i++)
            e->unsettled |= !r->c->t->ops->cancel(r->c->t, &r->messages[i]);
    e->first = e->last = NULL;
    __atomic_store_n(&e->failed, true, __ATOMIC_RELEASE);
    return rc;
}

ll_err ll_engine_check(ll_engine *e)
{
    if (e->failed) FAIL(e->failure, "%s", e->failure_text);
    ll_err rc = ll_watch_check(e->watch);
    return rc ? ll_engine_fail(e, rc) : LL_OK;
}

static void poll_one(ll_engine *e)
{
    for (ll_request *r = e->first, *next; r && !e->failed; r = next) {
        next = r->next;
        ll_err rc = ll_request_advance(r);
        if (rc) rc = ll_engine_fail(e, rc); /* kept there, for whoever asks */
    }
}

/* Moves what is under way in this process; fails where e has. */
static ll_err poll_all(ll_engine *e)
{
    if (e->alone) poll_one(e);
    for (ll_engine *x = e->alone ? NULL : engines; x; x = x->next) poll_one(x);
    return e->failed ? ll_engine_check(e) : LL_OK;
}

static void relax(void)
{
#if defined(__aarch64__)
    __asm__ __volatile__("yield");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

ll_entered ll_engine_enter(ll_engine *e)
{
    double now = ll_now();
    ll_engine_lock(e);
    return (ll_entered){e, now};
}

void ll_engine_leave(const ll_entered *x)
{
    x->e->used.seconds += ll_now() - x->when;
    ll_engine_unlock(x->e);
}

/* A wait that lasts is told to the watch, which tells of one that does not end. */
typedef struct patience {
    double began; /* 0: not looked yet; once told: the last time that something moved */
    bool told;
    bool naps; /* it has lasted for so long that a nap does not count */
    uint64_t moved;
} patience;

static ll_err look(ll_engine *e, const ll_request *r, patience *p)
{
    enum { STILL_MS = 2 };
    const ll_transport *t = r->c->t;
    TRY(ll_engine_check(e));
    /* Steps through shared memory never call the library, whose own collectives (a communicator's
     * opening) others may still need this rank for. */
    if ((p->told || r->c->patient) && t->ops->serve) t->ops->serve(r->c->t);
    if (p->told && p->moved != e->moved) {
        ll_watch_moved(e->watch);
        p->moved = e->moved;
        p->began = ll_now();
        p->naps = e->crowded;
    } else if (p->told) {
        if (p->naps || ll_now() - p->began < STILL_MS * 1e-3) return LL_OK;
        prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0); /* naps end when they should, within 1 us */
        p->naps = true;
    } else if (p->began == 0) {
        p->began = ll_now();
    } else if (ll_now() - p->began > 1e-3 && !r->c->patient) {
        ll_watch_wait_begin(e->watch, r->what, r->number, r->site);
        p->told = true;
        /* More ranks than cores: one that yields still takes its turns from those that work. */
        p->naps = e->crowded;
    }
    return LL_OK;
}

/* Polls until done. */
static ll_err wait_for(ll_request *r)
{
    /* Polls between two looks at clock and watch: fewer where each gives the core away, which may
     * take long. */
    enum { LOOK = 64, LOOK_YIELDING = 8 };
    ll_engine *e = r->c->engine;
    patience p = {.moved = e->moved};
    ll_err rc = e->failed ? ll_engine_check(e) : LL_OK;
    for (int64_t n = 0; !rc && !r->done; n++) {
        rc = poll_all(e);
        if (rc || r->done) break;
        if (e->served) e->served->ops->serve(e->served);
        if ((n + 1) % (n < e->spin ? LOOK : LOOK_YIELDING) == 0) rc = look(e, r, &p);
        if (n < e->spin) {
            relax();
            continue;
        }
        ll_engine_unlock(e);
        p.naps || r->c->patient ? usleep(r->c->patient ? 200 : 20) : sched_yield();
        ll_engine_lock(e);
    }
    if (p.told) ll_watch_wait_end(e->watch);
    return rc;
}

void ll_comm_patient(ll_comm *c)
{
    c->patient = true;
}

void ll_comm_waits(ll_comm *c, const char *what, const char *site)
{
    ll_watch *w = c->engine->watch;
    what ? ll_watch_wait_begin(w, what, -1, site) : ll_watch_wait_end(w);
}

ll_err ll_comm_await(ll_comm *c, ll_err (*look)(void *arg, ll_awaited *now), void *arg)
{
    ll_watch *w = c->engine->watch;
    ll_awaited now = {0}, told = {0};
    double began = ll_now();
    ll_err rc = look(arg, &now);
    while (rc == LL_OK && !now.done && (rc = ll_watch_check(w)) == LL_OK) {
        bool lasts = ll_now() - began > 1e-3;
        if (lasts && (told.what != now.what || told.site != now.site)) {
            if (told.what) ll_watch_wait_end(w);
            ll_watch_wait_begin(w, now.what, -1, now.site);
            told = now;
        } else if (told.moved != now.moved)
            ll_watch_moved(w);
        told.moved = now.moved;
        lasts ? usleep(20) : sched_yield();
        rc = look(arg, &now);
    }
    if (told.what) ll_watch_wait_end(w);
    return rc;
}

static void trace_wait(ll_trace *t, const ll_request *r, double from)
{
    ll_trace_add(t, &(ll_trace_event){.row = LL_TRACE_COMPUTE,
                                      .name = r->site,
                                      .kind = "wait",
                                      .bytes = -1,
                                      .number = r->number,
                                      .from = from,
                                      .to = ll_now()});
}

ll_err ll_request_finish(ll_request *r, size_t *received)
{
    ll_engine *e = r->c->engine;
    e->n_waiting++;
    double from = e->trace && !r->done ? ll_now() : 0;
    ll_err rc = r->done ? LL_OK : wait_for(r);
    if (from > 0 && e->trace) trace_wait(e->trace, r, from);
    e->n_waiting--;
    if (received) *received = r->received;
    if (!rc) ll_request_give(e, r); /* else messages may be under way: what they use must stay */
    ll_engine_wake(e);
    return rc;
}

ll_err ll_request_wait(ll_request *r)
{
    LL_GIVEN(r);
    LL_TIMED(r->c->engine);
    return ll_request_finish(r, NULL);
}

ll_err ll_comm_poll(ll_comm *c)
{
    LL_GIVEN(c);
    LL_TIMED(c->engine);
    TRY(ll_engine_check(c->engine));
    return poll_all(c->engine);
}

/* Waits until nothing is under way: before calls that block inside MPI, where nothing of ours
 * moves. Under the lock. */
static ll_err drain(ll_engine *e)
{
    ll_err rc = ll_engine_check(e);
    e->n_waiting++;
    while (e->first && !rc) rc = wait_for(e->first);
    e->n_waiting--;
    return rc;
}

void ll_engines_drain(void)
{
    for (ll_engine *e = engines; e; e = e->next)
        if (drain(e)) continue; /* its callers are told */
}

ll_err ll_comm_drain(ll_comm *c)
{
    LL_LOCKED(c->engine);
    return drain(c->engine);
}

bool ll_comm_settled(ll_comm *c)
{
    LL_LOCKED(c->engine);
    return !c->engine->unsettled;
}

void ll_engine_wake(ll_engine *e)
{
    if (e->threaded && e->first && !e->n_waiting) pthread_cond_signal(&e->wake);
}

/* ---- the thread ---- */

/* While requests are under way and nobody waits for one, moves them. Others want the core too:
 * when nothing has moved for a few polls, it sleeps between them. */
static void *run_thread(void *arg)
{
    enum { TRIES = 20 };
    static const struct timespec nap = {.tv_nsec = 50000};
    ll_engine *e = (ll_engine *)arg;
    int idle = 0;
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0); /* naps end when they should, within 1 us */
    pthread_mutex_lock(&mpi_lock);
    while (!e->stop) {
        if ((!e->first && !e->served) || e->failed || e->n_waiting) {
            pthread_cond_wait(&e->wake, &mpi_lock);
            continue;
        }
        uint64_t moved = e->moved;
        ll_err rc = poll_all(e);
        (void)rc; /* kept in the engine, and told to whoever calls next */
        if (e->served) e->served->ops->serve(e->served);
        idle = moved == e->moved ? idle + 1 : 0;
        pthread_mutex_unlock(&mpi_lock);
        if (idle < TRIES)
            sched_yield();
        else
            nanosleep(&nap, NULL);
        pthread_mutex_lock(&mpi_lock);
    }
    pthread_mutex_unlock(&mpi_lock);
    return NULL;
}

static ll_err start_thread(ll_engine *e)
{
    pthread_cond_init(&e->wake, NULL);
    e->threaded = ll_thread_start(&e->thread, run_thread, e);
    CHECK(e->threaded, LL_E_SYS, "no thread could be started to move messages");
    return LL_OK;
}

ll_err ll_engine_open(ll_transport *t, const ll_comm_opts *opts, ll_engine **out)
{
    enum { SPIN = 2000, SPIN_OVER = 4 };
    ll_engine *e = (ll_engine *)calloc(1, sizeof *e);
    CHECK(e, LL_E_MEM, "not enough memory for a communicator");
    *out = e;
    e->alone = t->size == 1;
    int n_here = 0;
    for (int i = 0; i < t->size; i++) n_here += t->node[i] == t->node[t->rank];
    e->crowded = n_here > sysconf(_SC_NPROCESSORS_ONLN);
    e->spin = e->crowded ? SPIN_OVER : SPIN;
    if (e->alone) return LL_OK;
    ll_err rc = opts->thread ? ll_transport_check_threads() : LL_OK;
    if (!rc && opts->thread) rc = start_thread(e);
    int least; /* for what is small, and not planned */
    if (!rc) rc = ll_scratch_take(e, NULL, LL_LEAST_SCRATCH, &least);
    if (!rc) e->scratch[least].used = false;
    pthread_mutex_lock(&mpi_lock);
    rc = ll_watch_open(t, rc, opts->timeout_s, &e->watch);
    e->next = engines;
    engines = e;
    pthread_mutex_unlock(&mpi_lock);
    return rc;
}

void ll_engine_close(ll_engine *e)
{
    if (!e) return;
    pthread_mutex_lock(&mpi_lock);
    for (ll_engine **x = &engines; *x; x = &(*x)->next)
        if (*x == e) {
            *x = e->next;
            break;
        }
    e->stop = true;
    if (e->threaded) pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&mpi_lock);
    if (e->threaded) {
        pthread_join(e->thread, NULL);
        pthread_cond_destroy(&e->wake);
    }
    ll_watch_close(e->watch);
    for (ll_request *r = e->spare, *next; r; r = next) {
        next = r->next;
        free(r->messages);
        free(r);
    }
    for (int i = 0; !e->failed && i < e->n_scratch; i++) free(e->scratch[i].data);
    free(e->scratch);
    free(e->sources);
    free(e);
}
