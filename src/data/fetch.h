/* fetch.h: files of a slow store, read ahead of their use. A loader knows which samples come next
 * (data.h, 1.), so threads of it have the files of these fetched when they are wanted:
 *
 *     the store --(fetched once a host)--> data.cache, a local folder --> memory --> a sample
 *
 * Of a picture, memory is its file's bytes, from when it is fetched until it is decoded. A mapped
 * file comes by pieces; one that is in the cache is mapped from there, in its place among the
 * others, and one that is not stays the store's. So whatever is read without having been fetched,
 * or while there is no room in the cache, is right all the same, and late.
 *
 * A file of the cache is known by the path of its source, and says which one it is of (size, time
 * of change) and what it holds (a checksum): anything else is a miss. Who fetches holds a lock on
 * the file that it writes, beside; others of the host wait for it, and who dies lets go. */
#pragma once
#include "data/data_int.h"

typedef struct ll_fetcher ll_fetcher;

/* What a sample is made of: a picture's file, or bytes that may be of a mapped file. */
typedef struct ll_need {
    const char *path;
    const uint8_t *data;
    size_t bytes;
} ll_need;

/* sample.c: what the sample at a position is made of; returns of how many. */
enum { LL_MAX_NEEDS = 2 * LL_MAX_FIELDS };
int ll_sample_needs(const ll_dataset *d, const ll_sampling *how, int64_t position,
                    ll_need out[LL_MAX_NEEDS]);

/* cache: a folder, NULL: none. fetch: threads of a loader that read ahead. delay: seconds that
 * every read of the store takes longer, to try a slow one. */
ll_err ll_fetcher_open(const char *cache, int fetch, double delay, ll_fetcher **out);
void ll_fetcher_close(ll_fetcher *s);
int ll_fetcher_threads(const ll_fetcher *s);
int64_t ll_fetcher_reads(const ll_fetcher *s); /* of the store */
/* A mapped file comes by pieces; it stays mapped as long as the store is open. */
ll_err ll_fetcher_cover(ll_fetcher *s, const char *path, const ll_bytes *b);
bool ll_fetcher_covers(const ll_fetcher *s, const ll_need *n); /* else it is in memory */

/* It will be wanted, once. True: somebody is to fetch it, and who wants it waits until then.
 * Failures show when it is wanted. */
bool ll_fetcher_want(ll_fetcher *s, const ll_need *n);
void ll_fetcher_fetch(ll_fetcher *s, const ll_need *n);
void ll_fetcher_forget(ll_fetcher *s, const ll_need *n); /* it will not, after all */
/* Is wanted: a picture's bytes, which are the caller's; a mapped file's are there. */
ll_err ll_fetcher_take(ll_fetcher *s, const char *path, ll_bytes *out);
ll_err ll_fetcher_ready(ll_fetcher *s, const ll_need *n);
