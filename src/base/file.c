/* file.c: whole files in and out, atomically. */
#include "base/file.h"

#include "base/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

void ll_fd_drop(int *fd)
{
    if (*fd >= 0) close(*fd);
}

/* Reads to the end of the file, which may be a pipe or grow meanwhile. */
ll_err ll_file_read(const char *path, size_t limit, uint8_t **data, size_t *size)
{
    LL_OWN_MEMORY uint8_t *all = NULL;
    struct stat st;
    *data = NULL;
    *size = 0;
    LL_OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* else waits for a writer */
    CHECK(fd >= 0, LL_E_IO, "%s: %s", path, strerror(errno));
    CHECK(fstat(fd, &st) == 0 && fcntl(fd, F_SETFL, 0) == 0, LL_E_IO, "%s: %s", path,
          strerror(errno));
    CHECK(!S_ISDIR(st.st_mode), LL_E_IO, "%s: is a folder, expected a file", path);
    size_t capacity = st.st_size > 0 && (size_t)st.st_size <= limit ? (size_t)st.st_size : 4096;
    for (;;) {
        uint8_t *grown = (uint8_t *)realloc(all, capacity + 2);
        CHECK(grown, LL_E_MEM, "%s: not enough memory for %zu bytes", path, capacity);
        all = grown;
        ssize_t got = read(fd, all + *size, capacity + 1 - *size);
        if (got < 0 && errno == EINTR) continue;
        CHECK(got >= 0, LL_E_IO, "%s: reading: %s", path, strerror(errno));
        *size += (size_t)got;
        CHECK(*size <= limit, LL_E_IO, "%s: more than %zu bytes", path, limit);
        if (got == 0) break;
        if (*size > capacity) capacity *= 2;
    }
    CHECK(*size || !S_ISFIFO(st.st_mode), LL_E_IO, "%s is a pipe that nobody writes to", path);
    all[*size] = 0;
    return LL_HAND(data, all);
}

ll_err ll_mkdirs(const char *folder)
{
    char path[4096];
    size_t n = strlen(folder);
    CHECK(n > 0 && n < sizeof path, LL_E_ARG, "folder name of %zu bytes, expected 1 to %zu", n,
          sizeof path - 1);
    memcpy(path, folder, n + 1);
    for (char *c = path + 1;; c++) {
        if (*c != '/' && *c != '\0') continue;
        char was = *c;
        *c = '\0';
        struct stat st;
        bool made = mkdir(path, 0777) == 0;
        if (!made) {
            int why = errno;
            bool there = stat(path, &st) == 0, is_folder = there && S_ISDIR(st.st_mode);
            CHECK(!there || is_folder, LL_E_IO, "creating folder %s: %s is a file", folder, path);
            CHECK(is_folder, LL_E_IO, "creating folder %s: %s", path, strerror(why));
        }
        *c = was;
        if (was == '\0') return LL_OK;
    }
}

ll_err ll_mkdirs_above(const char *path)
{
    char folder[4096];
    int n = (int)(ll_base_name(path) - path);
    if (n <= 1) return LL_OK;
    CHECK(n < (int)sizeof folder, LL_E_ARG, "%.60s...: too long a name", path);
    snprintf(folder, sizeof folder, "%.*s", n - 1, path);
    return ll_mkdirs(folder);
}

bool ll_is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

bool ll_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool ll_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

const char *ll_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool ll_cache_folder(char *out, size_t room)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1; /* the XDG rules: a path that is not absolute is ignored */
    if (xdg && xdg[0] == '/')
        n = snprintf(out, room, "%s/loopline", xdg);
    else if (home && home[0] == '/')
        n = snprintf(out, room, "%s/.cache/loopline", home);
    return n > 0 && (size_t)n < room;
}

ll_err ll_file_map(const char *path, const uint8_t **data, size_t *size)
{
    LL_OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* else waits for a pipe */
    struct stat st;
    CHECK(fd >= 0, LL_E_IO, "%s: %s", path, strerror(errno));
    CHECK(fstat(fd, &st) == 0, LL_E_IO, "%s: %s", path, strerror(errno));
    CHECK(S_ISREG(st.st_mode), LL_E_IO, "%s: is not a regular file", path);
    CHECK(st.st_size > 0, LL_E_IO, "%s: the file is empty", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(p != MAP_FAILED, LL_E_IO, "%s: cannot map %ld bytes: %s", path, st.st_size,
          strerror(errno));
    *data = (const uint8_t *)p;
    *size = (size_t)st.st_size;
    return LL_OK;
}

/* At a byte of the file; < 0: where the file's pointer is. */
static ll_err write_at(int fd, const char *path, const void *data, size_t size, int64_t at)
{
    for (size_t done = 0; done < size;) {
        const char *p = (const char *)data + done;
        size_t most = size - done < 1 << 30 ? size - done : 1 << 30;
        ssize_t put = at < 0 ? write(fd, p, most) : pwrite(fd, p, most, (off_t)at + (off_t)done);
        if (put < 0 && errno == EINTR) continue;
        CHECK(put >= 0, LL_E_IO, "%s: writing %zu bytes failed after %zu: %s", path, size, done,
              strerror(errno));
        done += (size_t)put;
    }
    return LL_OK;
}

ll_err ll_read_all(int fd, const char *path, void *data, size_t size, uint64_t at)
{
    for (char *p = (char *)data; size;) {
        ssize_t got = pread(fd, p, size < 1 << 30 ? size : 1 << 30, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        CHECK(got >= 0, LL_E_IO, "%s: reading: %s", path, strerror(errno));
        CHECK(got > 0, LL_E_IO, "%s: ends at byte %lu, %zu too early", path, at, size);
        p += got;
        at += (uint64_t)got;
        size -= (size_t)got;
    }
    return LL_OK;
}

const char *const *ll_files(ll_arena *a, const char *pattern, int *n)
{
    glob_t g = {0};
    glob(pattern, 0, NULL, &g);
    const char **out = LL_NEW_ARRAY(a, const char *, g.gl_pathc + 1);
    for (size_t i = 0; i < g.gl_pathc; i++) out[i] = ll_arena_strdup(a, g.gl_pathv[i]);
    *n = (int)g.gl_pathc;
    globfree(&g);
    return out;
}

ll_err ll_write_all(int fd, const char *path, const void *data, size_t size)
{
    return write_at(fd, path, data, size, -1);
}

ll_err ll_append(int fd, const char *path, const void *data, size_t size, bool *full)
{
    off_t end = lseek(fd, 0, SEEK_END);
    ll_err rc = ll_write_all(fd, path, data, size);
    *full = rc != LL_OK && ll_is_full();
    if (rc == LL_OK) return LL_OK;
    CHECK(end >= 0 && ftruncate(fd, end) == 0, LL_E_IO, "%s: %s", path, strerror(errno));
    return *full ? LL_OK : rc;
}

bool ll_is_full(void)
{
    const char *why = ll_error_message();
    return strstr(why, strerror(ENOSPC)) || strstr(why, strerror(EDQUOT));
}

struct ll_atomic {
    int fd;
    bool created, joined;
    int64_t token;
    char *path, *temporary;
};

/* Nobody else's file, and no link to one. */
static ll_err open_atomic(const char *path, int64_t token, bool join, ll_atomic **out)
{
    size_t n = strlen(path) + 32;
    struct stat st;
    *out = NULL;
    LL_OWN(ll_atomic) f = (ll_atomic *)calloc(1, sizeof *f);
    CHECK(f, LL_E_MEM, "%s: not enough memory to write it", path);
    f->fd = -1;
    f->joined = join;
    f->token = token;
    CHECK(stat(path, &st) != 0 || S_ISREG(st.st_mode), LL_E_IO,
          "%s is not a regular file, and is left as it is: name another", path);
    f->path = strdup(path);
    f->temporary = (char *)malloc(n);
    CHECK(f->path && f->temporary, LL_E_MEM, "%s: not enough memory for its name", path);
    snprintf(f->temporary, n, "%s%s%lx", path, LL_ATOMIC_MARK, f->token);
    int how = O_WRONLY | O_CLOEXEC | O_NOFOLLOW | (f->joined ? 0 : O_CREAT | O_EXCL);
    f->fd = open(f->temporary, how, 0666);
    CHECK(f->fd >= 0 || f->joined, LL_E_IO, "%s: creating: %s", path,
          errno == ENOENT ? "its folder is not there" : strerror(errno));
    CHECK(f->fd >= 0, LL_E_IO, "%s: opening: %s", f->temporary, strerror(errno));
    f->created = !f->joined;
    return LL_HAND(out, f);
}

/* At random: containers that share a folder count their processes alike. */
ll_err ll_atomic_open(const char *path, ll_atomic **out)
{
    int64_t token;
    CHECK(getrandom(&token, sizeof token, 0) == sizeof token, LL_E_SYS,
          "%s: no random number for its temporary name: %s", path, strerror(errno));
    return open_atomic(path, token, false, out);
}

int64_t ll_atomic_token(const ll_atomic *f)
{
    return f->token;
}

ll_err ll_atomic_join(const char *path, int64_t token, ll_atomic **out)
{
    return open_atomic(path, token, true, out);
}

ll_err ll_atomic_add_at(ll_atomic *f, const void *data, size_t size, uint64_t at)
{
    return write_at(f->fd, f->path, data, size, (int64_t)at);
}

ll_err ll_atomic_add(ll_atomic *f, const void *data, size_t size)
{
    return ll_write_all(f->fd, f->path, data, size);
}

ll_err ll_atomic_commit(ll_atomic *f)
{
    CHECK(fsync(f->fd) == 0, LL_E_IO, "%s: forcing to disk: %s", f->path, strerror(errno));
    int fd = f->fd;
    f->fd = -1;
    CHECK(close(fd) == 0, LL_E_IO, "%s: closing: %s", f->path, strerror(errno));
    if (f->joined) return LL_OK;
    CHECK(rename(f->temporary, f->path) == 0, LL_E_IO, "%s: renaming %s to it: %s", f->path,
          f->temporary, strerror(errno));
    f->created = false;
    /* The rename must survive a power cut. Some file systems cannot sync a folder (EINVAL). */
    LL_OWN_MEMORY char *copy = strdup(f->path);
    CHECK(copy, LL_E_MEM, "%s: not enough memory for its folder's name", f->path);
    LL_OWN_FD int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(folder >= 0, LL_E_IO, "%s: opening its folder: %s", f->path, strerror(errno));
    CHECK(fsync(folder) == 0 || errno == EINVAL, LL_E_IO, "%s: syncing its folder: %s", f->path,
          strerror(errno));
    return LL_OK;
}

void ll_atomic_close(ll_atomic *f)
{
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    if (f->created) unlink(f->temporary);
    free(f->temporary);
    free(f->path);
    free(f);
}

ll_err ll_file_write(const char *path, const void *data, size_t size)
{
    LL_OWN(ll_atomic) f = NULL;
    TRY(ll_atomic_open(path, &f));
    TRY(ll_atomic_add(f, data, size));
    return ll_atomic_commit(f);
}
