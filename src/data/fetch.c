/* fetch.c: see fetch.h. */
#include "data/fetch.h"

#include "base/crc32c.h"
#include "base/now.h"
#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 20) /* and more of files so large that mappings would run out */
#define MOST_PIECES 8192
#define MOST_MAPPED 16384 /* of all files; a process has 65530 mappings */
#define BUCKETS 1024
#define REST_S 10.0 /* after the cache could not be written */

/* What a file of the cache ends with. */
typedef struct tail {
    char magic[16];
    uint64_t source; /* a hash of its path, size, time of change, and where in it this is */
    uint64_t bytes;
    uint32_t crc;
    uint8_t zero[28];
} tail;
_Static_assert(sizeof(tail) == 64, "a tail has no gaps");

typedef enum stage { NONE, COMING, HERE } stage;

typedef struct entry { /* a picture that will be wanted */
    const char *path;  /* the dataset's: known by its address */
    int wanted;
    stage stage;
    ll_bytes bytes;
    struct entry *next;
} entry;

typedef struct covered { /* a mapped file */
    const char *path;
    const uint8_t *data;
    size_t size, piece;
    int fd;
    uint64_t mtime;
    uint8_t *stage; /* of its pieces */
    struct covered *next;
} covered;

struct ll_fetcher {
    ll_arena *arena;
    const char *cache, *above; /* above: what relative paths begin with */
    int fetch;
    double delay;
    _Atomic double rest_until;
    atomic_int mapped; /* pieces */
    atomic_llong reads;
    covered *files;
    entry *entries[BUCKETS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* Which bytes of which source. */
typedef struct part {
    const char *path;
    uint64_t size, mtime, at;
    size_t bytes;
    int fd; /* open; -1: is to be */
} part;

ll_err ll_fetcher_open(const char *cache, int fetch, double delay, ll_fetcher **out)
{
    char above[PATH_MAX];
    CHECK(getcwd(above, sizeof above), LL_E_SYS, "the current folder: %s", strerror(errno));
    if (cache) {
        ll_err rc = ll_mkdirs(cache);
        CHECK(rc == LL_OK, rc, "data.cache: %s", ll_error_message());
        CHECK(access(cache, W_OK) == 0, LL_E_IO, "data.cache: %s: %s", cache, strerror(errno));
    }
    ll_arena *a = ll_arena_new();
    ll_fetcher *s = *out = LL_NEW(a, ll_fetcher);
    s->arena = a;
    s->cache = cache ? ll_arena_strdup(a, cache) : NULL;
    s->above = ll_arena_strdup(a, above);
    s->fetch = fetch;
    s->delay = delay;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    return LL_OK;
}

void ll_fetcher_close(ll_fetcher *s)
{
    if (!s) return;
    for (int i = 0; i < BUCKETS; i++)
        for (entry *e = s->entries[i], *next; e; e = next) {
            next = e->next;
            free((void *)e->bytes.data);
            free(e);
        }
    for (const covered *f = s->files; f; f = f->next) close(f->fd);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    ll_arena_free(s->arena);
}

int ll_fetcher_threads(const ll_fetcher *s)
{
    return s ? s->fetch : 0;
}

int64_t ll_fetcher_reads(const ll_fetcher *s)
{
    return s->reads;
}

/* The mapped file that it is of; NULL: none. */
static covered *file_of(const ll_fetcher *s, const ll_need *n)
{
    covered *f = s->files;
    while (f && (n->data < f->data || n->data >= f->data + f->size)) f = f->next;
    return f;
}

bool ll_fetcher_covers(const ll_fetcher *s, const ll_need *n)
{
    return n->path || file_of(s, n);
}

static uint64_t changed_at(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

ll_err ll_fetcher_cover(ll_fetcher *s, const char *path, const ll_bytes *b)
{
    struct stat st;
    covered *f = LL_NEW(s->arena, covered);
    *f = (covered){.path = ll_arena_strdup(s->arena, path), .data = b->data, .size = b->size};
    for (f->piece = PIECE; f->size / f->piece >= MOST_PIECES;) f->piece *= 2;
    f->stage = LL_NEW_ARRAY(s->arena, uint8_t, f->size / f->piece + 1);
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(f->fd >= 0, LL_E_IO, "%s: %s", path, strerror(errno));
    f->next = s->files;
    s->files = f;
    CHECK(fstat(f->fd, &st) == 0 && (uint64_t)st.st_size == b->size, LL_E_IO,
          "%s changed while it was being opened", path);
    f->mtime = changed_at(&st);
    return LL_OK;
}

/* ---- the store ---- */

/* A read of it. */
static void lag(ll_fetcher *s)
{
    s->reads++;
    double whole = (double)(time_t)s->delay;
    struct timespec t = {(time_t)s->delay, (long)(1e9 * (s->delay - whole))};
    while (s->delay > 0 && nanosleep(&t, &t) && errno == EINTR) {
    }
}

/* The bytes, of a source that is as was said, before and after. */
static ll_err read_source(ll_fetcher *s, const part *p, uint8_t *data)
{
    struct stat st;
    int fd = p->fd >= 0 ? p->fd : open(p->path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, LL_E_IO, "%s: %s", p->path, strerror(errno));
    lag(s);
    ll_err rc = ll_read_all(fd, p->path, data, p->bytes, p->at);
    bool same =
        fstat(fd, &st) == 0 && (uint64_t)st.st_size == p->size && changed_at(&st) == p->mtime;
    if (p->fd < 0) close(fd);
    CHECK(same, LL_E_IO, "%s changed while it was being read", p->path);
    return rc;
}

/* ---- the cache ---- */

static uint64_t source_of(const ll_fetcher *s, const part *p, char name[PATH_MAX])
{
    char text[2 * PATH_MAX];
    const char *above = *p->path == '/' ? "" : s->above;
    int n = snprintf(text, sizeof text - 64, "%s/%s|%lu", above, p->path, p->at);
    uint64_t key = ll_stream(text, 0);
    snprintf(name, PATH_MAX, "%s/%02x/%016lx", s->cache, (unsigned)(key >> 56), key);
    snprintf(text + n, 64, "|%lu|%lu", p->size, p->mtime);
    return ll_stream(text, 1);
}

static tail tail_of(const part *p, uint64_t source, const uint8_t *data)
{
    return (tail){.magic = "loopline piece 1",
                  .source = source,
                  .bytes = p->bytes,
                  .crc = ll_crc32c(0, data, p->bytes)};
}

/* From the cache; false: it has it not, or not whole. */
static bool load(const char *name, const part *p, uint64_t source, uint8_t *data)
{
    struct stat st;
    tail have;
    LL_OWN_FD int fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* whatever lies there */
    if (fd < 0) return false;
    bool found = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                 (size_t)st.st_size == p->bytes + sizeof have &&
                 ll_read_all(fd, name, data, p->bytes, 0) == LL_OK &&
                 ll_read_all(fd, name, &have, sizeof have, p->bytes) == LL_OK;
    if (!found) return false;
    const tail want = tail_of(p, source, data);
    return memcmp(&want, &have, sizeof want) == 0;
}

/* A file beside that this process alone writes; others wait here. -1: there can be none. *again:
 * who had it is done, or has given up. */
static int claim(const char *beside, bool *again)
{
    struct stat mine, there;
    *again = false;
    if (ll_mkdirs_above(beside) != LL_OK) return -1;
    int fd = open(beside, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0) return -1;
    while (flock(fd, LOCK_EX) != 0)
        if (errno != EINTR) {
            close(fd);
            return -1;
        }
    *again = fstat(fd, &mine) != 0 || stat(beside, &there) != 0 || mine.st_ino != there.st_ino;
    return fd;
}

static bool keep(int fd, const char *beside, const char *name, const part *p, uint64_t source,
                 const uint8_t *data)
{
    const tail end = tail_of(p, source, data);
    return ftruncate(fd, 0) == 0 && ll_write_all(fd, beside, data, p->bytes) == LL_OK &&
           ll_write_all(fd, beside, &end, sizeof end) == LL_OK && rename(beside, name) == 0;
}

/* The cache has it, or *fd is this one's to write it by (-1: there is no room). */
static bool find_or_claim(const char *path, const char *beside, const part *p, uint64_t source,
                          uint8_t *data, int *fd)
{
    bool again = true;
    while (again) {
        if (load(path, p, source, data)) return true;
        *fd = claim(beside, &again);
        if (*fd >= 0 && again) close(*fd);
    }
    if (*fd < 0 || !load(path, p, source, data)) return false;
    unlink(beside); /* another one was done between the two */
    close(*fd);
    return true;
}

/* From the cache, else from the store and into the cache. path: its file there, *kept: if it is. */
static ll_err fetch_part(ll_fetcher *s, const part *p, uint8_t *data, char path[PATH_MAX],
                         bool *kept)
{
    char beside[PATH_MAX + 8];
    int fd = -1;
    *kept = false;
    if (!s->cache) return read_source(s, p, data);
    uint64_t source = source_of(s, p, path);
    bool resting = ll_now() < s->rest_until;
    snprintf(beside, sizeof beside, "%s.new", path);
    *kept =
        resting ? load(path, p, source, data) : find_or_claim(path, beside, p, source, data, &fd);
    if (*kept) return LL_OK;
    ll_err rc = read_source(s, p, data);
    *kept = fd >= 0 && rc == LL_OK && keep(fd, beside, path, p, source, data);
    if (fd >= 0 && !*kept) unlink(beside);
    if (fd >= 0) close(fd);
    if (!*kept && !resting && rc == LL_OK) s->rest_until = ll_now() + REST_S; /* no room */
    return rc;
}

/* ---- pictures ---- */

static ll_err fetch_file(ll_fetcher *s, const char *file, ll_bytes *out)
{
    struct stat st;
    char path[PATH_MAX];
    bool kept;
    *out = (ll_bytes){0};
    CHECK(stat(file, &st) == 0, LL_E_IO, "%s: %s", file, strerror(errno));
    CHECK(st.st_size > 0, LL_E_IO, "%s: the file is empty", file);
    const part p = {file, (uint64_t)st.st_size, changed_at(&st), 0, (size_t)st.st_size, -1};
    LL_OWN_MEMORY uint8_t *data = malloc(p.bytes);
    CHECK(data, LL_E_MEM, "%s: not enough memory for %zu bytes", file, p.bytes);
    TRY(fetch_part(s, &p, data, path, &kept));
    out->size = p.bytes;
    return LL_HAND(&out->data, data);
}

static entry **find(ll_fetcher *s, const char *path)
{
    entry **e = &s->entries[((uintptr_t)path >> 3) * 0x9E3779B97F4A7C15u >> 32 & (BUCKETS - 1)];
    while (*e && (*e)->path != path) e = &(*e)->next;
    return e;
}

/* One less wants it. */
static void drop(entry **at)
{
    entry *e = *at;
    if (--e->wanted > 0 || e->stage == COMING) return;
    *at = e->next;
    free((void *)e->bytes.data);
    free(e);
}

static bool want_file(ll_fetcher *s, const char *path)
{
    pthread_mutex_lock(&s->lock);
    entry **at = find(s, path), *e = *at;
    if (!e) *at = e = (entry *)calloc(1, sizeof *e);
    if (e) e->path = path, e->wanted++;
    bool mine = e && e->stage == NONE;
    if (mine) e->stage = COMING;
    pthread_mutex_unlock(&s->lock);
    return mine;
}

static void bring_file(ll_fetcher *s, const char *path)
{
    ll_bytes bytes;
    ll_err rc = fetch_file(s, path, &bytes);
    pthread_mutex_lock(&s->lock);
    entry *e = *find(s, path); /* is there as long as it is coming */
    e->bytes = bytes;
    e->stage = rc == LL_OK ? HERE : NONE;
    e->wanted++, drop(find(s, path)); /* it may have been forgotten meanwhile */
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

ll_err ll_fetcher_take(ll_fetcher *s, const char *path, ll_bytes *out)
{
    *out = (ll_bytes){0};
    pthread_mutex_lock(&s->lock);
    entry **at;
    while (*(at = find(s, path)) && (*at)->stage == COMING)
        pthread_cond_wait(&s->changed, &s->lock);
    entry *e = *at;
    bool here = e && e->stage == HERE;
    uint8_t *copy = here && e->wanted > 1 ? (uint8_t *)malloc(e->bytes.size) : NULL;
    if (copy) {
        memcpy(copy, e->bytes.data, e->bytes.size);
        *out = (ll_bytes){.data = copy, .size = e->bytes.size};
    } else if (here) {
        *out = e->bytes;
        e->bytes = (ll_bytes){0};
        e->stage = NONE; /* whoever else wants it fetches it again */
    }
    if (e) drop(at);
    pthread_mutex_unlock(&s->lock);
    return here ? LL_OK : fetch_file(s, path, out);
}

/* ---- mapped files ---- */

/* The piece is mapped from the cache, in its place; that it is not is no error. */
static void map_piece(ll_fetcher *s, const covered *f, const part *p, const char *path)
{
    LL_OWN_FD int fd = s->mapped < MOST_MAPPED ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    s->mapped++;
    (void)mmap((void *)(f->data + p->at), p->bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
}

static ll_err fetch_piece(ll_fetcher *s, const covered *f, size_t i)
{
    char path[PATH_MAX];
    bool kept;
    size_t at = i * f->piece, bytes = f->size - at < f->piece ? f->size - at : f->piece;
    const part p = {f->path, f->size, f->mtime, at, bytes, f->fd};
    LL_OWN_MEMORY uint8_t *data = malloc(bytes);
    CHECK(data, LL_E_MEM, "%s: not enough memory for %zu bytes", f->path, bytes);
    TRY(fetch_part(s, &p, data, path, &kept));
    if (kept) map_piece(s, f, &p, path);
    return LL_OK;
}

static ll_err bring_piece(ll_fetcher *s, covered *f, size_t i)
{
    pthread_mutex_lock(&s->lock);
    while (f->stage[i] == COMING) pthread_cond_wait(&s->changed, &s->lock);
    bool here = f->stage[i] == HERE;
    if (!here) f->stage[i] = COMING;
    pthread_mutex_unlock(&s->lock);
    if (here) return LL_OK;
    ll_err rc = fetch_piece(s, f, i);
    pthread_mutex_lock(&s->lock);
    f->stage[i] = rc == LL_OK ? HERE : NONE;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

ll_err ll_fetcher_ready(ll_fetcher *s, const ll_need *n)
{
    covered *f = file_of(s, n);
    if (!f || !n->bytes) return LL_OK;
    size_t at = (size_t)(n->data - f->data), last = (at + n->bytes - 1) / f->piece;
    for (size_t i = at / f->piece; i <= last; i++) {
        if (s->fetch)
            TRY(bring_piece(s, f, i));
        else
            lag(s);
    }
    return LL_OK;
}

bool ll_fetcher_want(ll_fetcher *s, const ll_need *n)
{
    return !n->path || want_file(s, n->path);
}

void ll_fetcher_fetch(ll_fetcher *s, const ll_need *n)
{
    if (n->path)
        bring_file(s, n->path);
    else if (ll_fetcher_ready(s, n) != LL_OK)
        return; /* whoever reads it is told */
}

void ll_fetcher_forget(ll_fetcher *s, const ll_need *n)
{
    if (!n->path) return;
    pthread_mutex_lock(&s->lock);
    entry **at = find(s, n->path);
    if (*at) drop(at);
    pthread_mutex_unlock(&s->lock);
}
