/* loader.c: batches made ahead by threads, of files that others fetch ahead of these (fetch.h).
 * SLOTS buffers go round: one is the caller's, the others are filled or being filled. Batch k is
 * always in slot k % SLOTS, so few counters say all: slots are free for batches below taken + SLOTS
 * - 1, ready for batches below made; a thread takes the next few samples that are to be made, of
 * whichever batch, and a batch is made when all of its are.
 *
 *     taken = 5: the caller holds batch 4; made = 6: batch 5 is ready, 6 is being filled. */
#define _GNU_SOURCE /* sets of CPUs */
#include "base/num.h"
#include "base/thread.h"
#include "data/fetch.h"
#include "data/table.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 3
#define MAX_THREADS 64

struct ll_loader {
    const ll_dataset *d;
    ll_loader_opts opts;
    int64_t samples, some; /* of a batch that are read here; that a thread takes at once */
    int64_t taken, made;   /* the batch wanted next; the batch ready next */
    int64_t batch, next;   /* the batch, and its sample, that a thread takes next */
    int64_t left[SLOTS];   /* samples not made yet */
    int64_t asked;         /* batches from here on are not known yet */
    int64_t wanted, ahead; /* samples, of all batches: the first that is not asked of the store yet;
                            * how far that is ahead of those taken */
    int64_t number[SLOTS], shift[SLOTS]; /* of batches that are asked for: what they hold */
    size_t bytes[LL_MAX_FIELDS];
    char *data[SLOTS][LL_MAX_FIELDS];
    int64_t bad; /* the first batch that cannot be made: none is begun then; INT64_MAX: all can */
    ll_err rc;   /* why, and */
    char message[1024];
    bool stop;
    int running, fetching;
    pthread_t threads[MAX_THREADS], fetchers[LL_MAX_FETCH];
    pthread_mutex_t lock;
    pthread_cond_t changed, room; /* room: there is more to fetch */
};

static bool goes_on(const ll_loader *l)
{
    return !l->stop && l->bad == INT64_MAX;
}

/* Of sample i of those that are read here of batch k. */
static int64_t position_of(const ll_loader *l, int64_t k, int64_t i)
{
    const ll_loader_opts *o = &l->opts;
    int64_t number = o->asked ? l->number[k % SLOTS] : k;
    int64_t first = o->first + (o->asked ? l->shift[k % SLOTS] : 0);
    return number * o->batch + i / o->count * o->every + first + i % o->count;
}

/* Samples from .. from+n-1 of those that are read here of batch k. Positions behind the end of
 * validation start over, so batches are always whole. */
static ll_err fill(const ll_loader *l, int64_t k, int64_t from, int64_t n)
{
    const ll_loader_opts *o = &l->opts;
    for (int64_t i = from, some; i < from + n; i += some) {
        void *out[LL_MAX_FIELDS] = {0};
        for (int f = 0; f < l->d->info.n_field; f++)
            out[f] = l->data[k % SLOTS][f] + (size_t)i * l->d->info.field_bytes[f];
        some = ll_min64(from + n - i, o->count - i % o->count);
        TRY(ll_dataset_read(l->d, &o->how, position_of(l, k, i), some, out));
    }
    return LL_OK;
}

/* The next sample that a thread will make, counted over batches. */
static int64_t next_sample(const ll_loader *l)
{
    return l->batch * l->samples + l->next;
}

/* What sample at needs; false: that is not known yet. */
static bool find_needs(const ll_loader *l, int64_t at, ll_need *needs, int *n)
{
    int64_t k = at / l->samples;
    *n = 0;
    if (k >= l->asked) return false;
    *n = ll_sample_needs(l->d, &l->opts.how, position_of(l, k, at % l->samples), needs);
    return true;
}

static void *fetch(void *arg)
{
    ll_loader *l = arg;
    ll_fetcher *s = l->d->fetcher;
    ll_need needs[LL_MAX_NEEDS];
    bool mine[LL_MAX_NEEDS];
    int n;
    pthread_mutex_lock(&l->lock);
    while (goes_on(l)) {
        if (l->wanted >= next_sample(l) + l->ahead || !find_needs(l, l->wanted, needs, &n)) {
            pthread_cond_wait(&l->room, &l->lock);
            continue;
        }
        for (int i = 0; i < n; i++) mine[i] = ll_fetcher_want(s, &needs[i]);
        l->wanted++;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        for (int i = 0; i < n; i++)
            if (mine[i]) ll_fetcher_fetch(s, &needs[i]);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Of all batches, samples that may be made: those that were asked of the store. */
static int64_t may_be_made(const ll_loader *l)
{
    return l->fetching ? l->wanted : INT64_MAX;
}

static void *work(void *arg)
{
    ll_loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (goes_on(l)) {
        int64_t ahead = may_be_made(l) - next_sample(l);
        if (l->batch >= l->taken + SLOTS - 1 || l->batch >= l->asked || ahead <= 0) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        int64_t k = l->batch, from = l->next;
        int64_t n = ll_min64(ll_min64(l->some, l->samples - from), ahead);
        if (from == 0) l->left[k % SLOTS] = l->samples;
        l->next += n;
        if (l->next == l->samples) l->batch++, l->next = 0;
        pthread_cond_broadcast(&l->room);
        pthread_mutex_unlock(&l->lock);
        ll_err rc = fill(l, k, from, n);
        pthread_mutex_lock(&l->lock);
        if (rc != LL_OK && k < l->bad) {
            l->bad = k, l->rc = rc;
            snprintf(l->message, sizeof l->message, "%s", ll_error_message());
        }
        l->left[k % SLOTS] -= n;
        int64_t end = ll_min64(l->batch, l->bad);
        while (l->made < end && l->left[l->made % SLOTS] == 0) l->made++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static ll_err check_opts(const ll_dataset *d, const ll_loader_opts *o)
{
    CHECK(o->batch > 0 && o->batch <= INT32_MAX, LL_E_ARG, "batch is %ld, expected 1 to %d",
          o->batch, INT32_MAX);
    int64_t every = o->every ? o->every : o->batch;
    CHECK(every > 0 && o->batch % every == 0 && (every == o->batch || o->how.split == LL_TRAIN),
          LL_E_ARG, "parts of every %ld samples of a batch of %ld", o->every, o->batch);
    CHECK(o->first >= 0 && o->count >= 0 && o->first + o->count <= every, LL_E_ARG,
          "part %ld+%ld of a batch of %ld", o->first, o->count, every);
    CHECK(o->start >= 0 && o->start <= INT64_MAX / 2 / o->batch, LL_E_ARG,
          "start is batch %ld, expected 0 or more", o->start);
    CHECK(o->how.split == LL_TRAIN || o->how.split == LL_VAL, LL_E_ARG,
          "split is %d, expected 0 or 1", (int)o->how.split);
    const ll_sampling *h = &o->how;
    CHECK(d->info.kind == LL_IMAGES ||
              (!h->flip && h->crop == 0 && h->scale[1] == 0 && h->jitter == 0),
          LL_E_ARG,
          "flip, crop, scale and jitter apply only to images, which dataset %s does not have",
          d->info.name);
    CHECK(o->threads >= 0 && o->threads <= MAX_THREADS, LL_E_ARG, "%d threads, expected 0 to %d",
          o->threads, MAX_THREADS);
    return LL_OK;
}

/* Decoding pictures is worth every core that this process has; all else is quicker than a step. */
static int threads_for(const ll_dataset *d)
{
    bool decodes = false;
    cpu_set_t set;
    for (int i = 0; d->table && i < d->table->n; i++) decodes |= d->table->columns[i].picture;
    if (!decodes || sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return (int)ll_min64(CPU_COUNT(&set), MAX_THREADS);
}

static ll_err start(ll_loader *l)
{
    size_t n = (size_t)(l->opts.batch / l->opts.every * l->opts.count);
    for (int f = 0; f < l->d->info.n_field; f++) {
        l->bytes[f] = n * l->d->info.field_bytes[f];
        for (int i = 0; i < SLOTS; i++) {
            l->data[i][f] = aligned_alloc(64, ll_align64(l->bytes[f]));
            CHECK(l->data[i][f], LL_E_MEM,
                  "not enough memory for %d batches of %ld samples: %zu bytes", SLOTS, n,
                  l->bytes[f]);
        }
    }
    int threads = l->opts.threads ? l->opts.threads : threads_for(l->d);
    l->samples = (int64_t)n;
    l->some = ll_max64(1, l->samples / (4 * threads));
    l->wanted = next_sample(l);
    l->fetching = ll_fetcher_threads(l->d->fetcher); /* before any other thread looks */
    l->ahead = ll_max64(4 * l->fetching, 2 * l->samples);
    for (int i = 0; i < l->fetching; i++)
        if (!ll_thread_start(&l->fetchers[i], fetch, l)) {
            l->fetching = i;
            FAIL(LL_E_SYS, "cannot start thread %d that fetches files", i + 1);
        }
    for (; l->running < threads; l->running++)
        CHECK(ll_thread_start(&l->threads[l->running], work, l), LL_E_SYS,
              "cannot start thread %d of a loader", l->running + 1);
    return LL_OK;
}

size_t ll_loader_bytes(const ll_dataset *d, int64_t samples)
{
    size_t sum = 0;
    for (int f = 0; f < d->info.n_field; f++)
        sum += SLOTS * ll_align64((size_t)samples * d->info.field_bytes[f]);
    return sum;
}

ll_err ll_loader_open(const ll_dataset *d, const ll_loader_opts *opts, ll_loader **out)
{
    *out = NULL;
    TRY(check_opts(d, opts));
    LL_OWN(ll_loader) l = calloc(1, sizeof *l);
    CHECK(l, LL_E_MEM, "not enough memory for a loader");
    l->d = d;
    l->opts = *opts;
    if (l->opts.every == 0) l->opts.every = opts->batch;
    if (l->opts.count == 0) l->opts.count = l->opts.every - opts->first;
    l->taken = l->made = l->batch = opts->start;
    l->asked = opts->asked ? opts->start : INT64_MAX;
    l->bad = INT64_MAX;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    pthread_cond_init(&l->room, NULL);
    TRY(start(l));
    return LL_HAND(out, l);
}

void ll_loader_ask(ll_loader *l, int64_t k, int64_t shift)
{
    pthread_mutex_lock(&l->lock);
    l->number[l->asked % SLOTS] = k;
    l->shift[l->asked++ % SLOTS] = shift;
    pthread_cond_broadcast(&l->changed);
    pthread_cond_broadcast(&l->room);
    pthread_mutex_unlock(&l->lock);
}

ll_err ll_loader_next(ll_loader *l, ll_data_batch *out)
{
    *out = (ll_data_batch){.number = l->taken};
    pthread_mutex_lock(&l->lock);
    while (l->made <= l->taken && l->taken < l->bad && !l->stop)
        pthread_cond_wait(&l->changed, &l->lock);
    bool ready = l->made > l->taken;
    if (ready) l->taken++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    CHECK(ready, l->rc, "%s", l->message);
    int slot = (int)(out->number % SLOTS);
    for (int f = 0; f < l->d->info.n_field; f++) out->data[f] = l->data[slot][f];
    memcpy(out->bytes, l->bytes, sizeof out->bytes);
    return LL_OK;
}

/* What was asked of the store and is not made any more. */
static void forget(const ll_loader *l)
{
    ll_need needs[LL_MAX_NEEDS];
    int n;
    for (int64_t at = next_sample(l); l->fetching && at < l->wanted; at++)
        for (int i = find_needs(l, at, needs, &n) ? 0 : n; i < n; i++)
            ll_fetcher_forget(l->d->fetcher, &needs[i]);
}

int ll_loader_threads(const ll_loader *l)
{
    return l->fetching > l->running ? l->fetching : l->running;
}

void ll_loader_close(ll_loader *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_cond_broadcast(&l->room);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->running; i++) pthread_join(l->threads[i], NULL);
    for (int i = 0; i < l->fetching; i++) pthread_join(l->fetchers[i], NULL);
    forget(l);
    for (int i = 0; i < SLOTS; i++)
        for (int f = 0; f < LL_MAX_FIELDS; f++) free(l->data[i][f]);
    pthread_cond_destroy(&l->changed);
    pthread_cond_destroy(&l->room);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
