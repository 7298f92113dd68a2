/* loader.c: batches made ahead by one thread. SLOTS buffers go round: one is the caller's, the
 * others are filled or being filled. Batch k is always in slot k % SLOTS, so two counters say all:
 * slots are free for batches below taken + SLOTS - 1, ready for batches below made.
 *
 *     taken = 5: the caller holds batch 4; made = 6: batch 5 is ready, 6 is being filled. */
#include "base/num.h"
#include "data/data_int.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 3

struct ll_loader {
    const ll_dataset *d;
    ll_loader_opts opts;
    int64_t taken, made; /* the batch wanted next; the batch made next */
    size_t bytes[LL_MAX_FIELDS];
    char *data[SLOTS][LL_MAX_FIELDS];
    ll_err rc; /* of the thread, which has then stopped */
    char message[1024];
    bool stop, running;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* Positions behind the end of validation start over, so batches are always whole. */
static ll_err fill(ll_loader *l, int64_t k)
{
    int slot = (int)(k % SLOTS);
    const ll_loader_opts *o = &l->opts;
    for (int64_t i = 0; i < o->batch / o->every; i++) {
        void *out[LL_MAX_FIELDS] = {0};
        for (int f = 0; f < l->d->info.n_field; f++)
            out[f] = l->data[slot][f] + (size_t)(i * o->count) * l->d->info.field_bytes[f];
        TRY(ll_dataset_read(l->d, &o->how, k * o->batch + i * o->every + o->first, o->count, out));
    }
    return LL_OK;
}

static void *work(void *arg)
{
    ll_loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (l->made >= l->taken + SLOTS - 1) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        ll_err rc = fill(l, l->made); /* only this thread moves made */
        pthread_mutex_lock(&l->lock);
        l->rc = rc;
        if (rc != LL_OK) {
            snprintf(l->message, sizeof l->message, "%s", ll_error_message());
            l->stop = true;
        } else {
            l->made++;
        }
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static ll_err check_opts(const ll_dataset *d, const ll_loader_opts *o)
{
    CHECK(o->batch > 0 && o->batch <= INT32_MAX, LL_E_ARG, "batch is %lld, wanted 1 to %d",
          (long long)o->batch, INT32_MAX);
    int64_t every = o->every ? o->every : o->batch;
    CHECK(every > 0 && o->batch % every == 0 && (every == o->batch || o->how.split == LL_TRAIN),
          LL_E_ARG, "parts of every %lld samples of a batch of %lld", (long long)o->every,
          (long long)o->batch);
    CHECK(o->first >= 0 && o->count >= 0 && o->first + o->count <= every, LL_E_ARG,
          "part %lld+%lld of a batch of %lld", (long long)o->first, (long long)o->count,
          (long long)every);
    CHECK(o->start >= 0 && o->start <= INT64_MAX / 2 / o->batch, LL_E_ARG,
          "start is batch %lld, wanted 0 or more", (long long)o->start);
    CHECK(o->how.split == LL_TRAIN || o->how.split == LL_VAL, LL_E_ARG,
          "split is %d, wanted 0 or 1", (int)o->how.split);
    CHECK(d->info.kind == LL_IMAGES || (!o->how.flip && o->how.crop == 0), LL_E_ARG,
          "dataset %s has no images: flip and crop are for images", d->info.name);
    return LL_OK;
}

static ll_err start(ll_loader *l)
{
    size_t n = (size_t)(l->opts.batch / l->opts.every * l->opts.count);
    for (int f = 0; f < l->d->info.n_field; f++) {
        l->bytes[f] = n * l->d->info.field_bytes[f];
        for (int i = 0; i < SLOTS; i++) {
            l->data[i][f] = aligned_alloc(64, ll_align64(l->bytes[f]));
            CHECK(l->data[i][f], LL_E_MEM, "no memory for %d batches of %lld samples: %zu bytes",
                  SLOTS, (long long)n, l->bytes[f]);
        }
    }
    sigset_t all, old; /* signals are for the thread that waits for them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&l->thread, NULL, work, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    CHECK(e == 0, LL_E_SYS, "cannot start the loader's thread: %s", strerror(e));
    l->running = true;
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
    CHECK(l, LL_E_MEM, "no memory for a loader");
    l->d = d;
    l->opts = *opts;
    if (l->opts.every == 0) l->opts.every = opts->batch;
    if (l->opts.count == 0) l->opts.count = l->opts.every - opts->first;
    l->taken = l->made = opts->start;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    TRY(start(l));
    *out = l;
    l = NULL;
    return LL_OK;
}

ll_err ll_loader_next(ll_loader *l, ll_data_batch *out)
{
    *out = (ll_data_batch){.number = l->taken};
    pthread_mutex_lock(&l->lock);
    while (l->made <= l->taken && !l->stop) pthread_cond_wait(&l->changed, &l->lock);
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

void ll_loader_close(ll_loader *l)
{
    if (!l) return;
    if (l->running) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    for (int i = 0; i < SLOTS; i++)
        for (int f = 0; f < LL_MAX_FIELDS; f++) free(l->data[i][f]);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
