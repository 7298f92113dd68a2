/* cache.c: inflated files in $XDG_CACHE_HOME/loopline, or ~/.cache/loopline.
 *
 * Inflating 26 MB of Fashion-MNIST takes a quarter of a second, mapping its inflated form nothing.
 * The name of a cache file comes from its source's path; its header holds what the source was
 * (size, time of change, the check sum gzip ends with) and a checksum of what follows; anything
 * else is a miss, so a changed source overwrites its old cache. Saving is done aside, after the
 * dataset has opened: written under another name, synced, renamed. */
#include "base/crc32c.h"
#include "base/rng.h"
#include "base/thread.h"
#include "data/data_int.h"

#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

typedef struct cache_head {
    char magic[16];
    uint64_t source_size, source_mtime, raw_size;
    uint8_t trailer[8]; /* gzip's check sum and length */
    uint32_t crc;       /* of what follows */
    uint8_t zero[12];
} cache_head;
_Static_assert(sizeof(cache_head) == 64, "data begins on a cache line");

struct ll_save {
    char path[PATH_MAX];
    cache_head head;
    const uint8_t *raw;
    size_t raw_size;
    struct ll_save *next;
    pthread_t thread; /* of the first one: does them all */
    bool running;
};

static bool cache_path(const char *source, char path[PATH_MAX])
{
    char whole[PATH_MAX], folder[PATH_MAX - 64];
    if (!realpath(source, whole) || !ll_cache_folder(folder, sizeof folder)) return false;
    snprintf(path, PATH_MAX, "%s/%.32s-%016lx", folder, ll_base_name(whole), ll_stream(whole, 0));
    return true;
}

static bool make_head(const char *source, const ll_bytes *packed, const uint8_t *raw,
                      size_t raw_size, cache_head *head)
{
    struct stat st;
    if (packed->size < 8 || stat(source, &st) != 0) return false;
    *head = (cache_head){.magic = "loopline cache 2",
                         .source_size = packed->size,
                         .source_mtime = (uint64_t)st.st_mtim.tv_sec * 1000000000u +
                                         (uint64_t)st.st_mtim.tv_nsec,
                         .raw_size = raw_size,
                         .crc = ll_crc32c(0, raw, raw_size)};
    memcpy(head->trailer, packed->data + packed->size - 8, 8);
    return true;
}

bool ll_cache_find(const char *source, const ll_bytes *packed, ll_bytes *out)
{
    char path[PATH_MAX];
    ll_bytes whole;
    cache_head want, have;
    if (!cache_path(source, path) || !ll_file_exists(path)) return false;
    if (ll_bytes_map(path, &whole) != LL_OK) return false;
    if (whole.size > sizeof have) {
        madvise(whole.base, whole.base_size, MADV_WILLNEED);
        memcpy(&have, whole.data, sizeof have);
        if (make_head(source, packed, whole.data + sizeof have, whole.size - sizeof have, &want) &&
            memcmp(&want, &have, sizeof have) == 0) {
            madvise(whole.base, whole.base_size, MADV_DONTNEED); /* it stays in the page cache */
            *out = whole;
            out->data += sizeof have;
            out->size -= sizeof have;
            return true;
        }
    }
    ll_bytes_free(&whole);
    return false;
}

void ll_cache_save(ll_dataset *d, const char *source, const ll_bytes *packed, const ll_bytes *raw)
{
    ll_save *s = LL_NEW(d->arena, ll_save);
    if (!cache_path(source, s->path) || !make_head(source, packed, raw->data, raw->size, &s->head))
        return;
    s->raw = raw->data;
    s->raw_size = raw->size;
    s->next = d->saves;
    d->saves = s;
}

static ll_err save(const ll_save *s)
{
    TRY(ll_mkdirs_above(s->path));
    LL_OWN(ll_atomic) f = NULL;
    TRY(ll_atomic_open(s->path, &f));
    TRY(ll_atomic_add(f, &s->head, sizeof s->head));
    TRY(ll_atomic_add(f, s->raw, s->raw_size));
    return ll_atomic_commit(f);
}

static void *save_thread(void *p)
{
    for (const ll_save *s = p; s; s = s->next)
        if (save(s) != LL_OK) break; /* no place to write: the next start inflates again */
    return NULL;
}

void ll_cache_start(ll_dataset *d)
{
    if (d->saves) d->saves->running = ll_thread_start(&d->saves->thread, save_thread, d->saves);
}

void ll_cache_wait(ll_dataset *d)
{
    if (d->saves && d->saves->running) pthread_join(d->saves->thread, NULL);
    d->saves = NULL;
}
