/* file.h: whole files in and out. Writing is all or nothing: bytes go to a new file beside the
 * target, are forced to disk, and the new file takes the target's name in one rename; whatever
 * fails before that, a full disk above all, leaves the target as it was and no other file. */
#pragma once
#include "base/err.h"
#include "base/own.h"

#include <dirent.h>
#include <stdio.h>

/* What closes when the function returns: LL_OWN_FD int fd = open(path, how);
 * LL_OWN(FILE) f = fopen(path, "rb"); LL_OWN(DIR) d = opendir(path); */
#define LL_OWN_FD __attribute__((cleanup(ll_fd_drop)))
void ll_fd_drop(int *fd);
static inline void FILE_drop(FILE **f)
{
    if (*f) fclose(*f);
}
static inline void DIR_drop(DIR **d)
{
    if (*d) closedir(*d);
}

/* The whole file, with a zero byte after it that *size does not count; the caller frees *data. A
 * file of more than limit bytes is an error. */
ll_err ll_file_read(const char *path, size_t limit, uint8_t **data, size_t *size);
ll_err ll_file_write(const char *path, const void *data, size_t size);
/* Maps a file: its pages are read as they are used. It must not be truncated meanwhile, or be
 * noted (mapped.h). */
ll_err ll_file_map(const char *path, const uint8_t **data, size_t *size);
/* Creates folder and what is missing above it; what is missing above a file. */
ll_err ll_mkdirs(const char *folder);
ll_err ll_mkdirs_above(const char *path);
bool ll_is_folder(const char *path);
/* Are both there, and would writing the one destroy the other? */
bool ll_is_same_file(const char *a, const char *b);
bool ll_file_exists(const char *path);      /* a folder, too */
const char *ll_base_name(const char *path); /* what follows the last slash */
/* $XDG_CACHE_HOME/loopline, or ~/.cache/loopline; false: no home to keep anything in. */
bool ll_cache_folder(char *out, size_t room);
/* Retries short writes and interrupts. The error names path. */
ll_err ll_write_all(int fd, const char *path, const void *data, size_t size);
/* Bytes at a place of a file, all of them. */
ll_err ll_read_all(int fd, const char *path, void *data, size_t size, uint64_t at);
/* Files that match a pattern, in the order of their names; NULL behind the last. */
struct ll_arena;
const char *const *ll_files(struct ll_arena *a, const char *pattern, int *n);
/* Adds all of it to a file's end, or nothing. *full: the disk is, which is no error. */
ll_err ll_append(int fd, const char *path, const void *data, size_t size, bool *full);
bool ll_is_full(void); /* of this thread's last failure: was it for want of room on the disk? */

/* The steps of ll_file_write, for content that comes in pieces. Close always; without a commit
 * before it, it takes back everything. */
typedef struct ll_atomic ll_atomic;
ll_err ll_atomic_open(const char *path, ll_atomic **out);
/* The file that another process, maybe of another machine, has under way for path, to add to: that
 * of this token. Its commit forces what was added to disk, no more; after that, the opener's. */
int64_t ll_atomic_token(const ll_atomic *f);
ll_err ll_atomic_join(const char *path, int64_t token, ll_atomic **out);
/* At a byte of the file. */
ll_err ll_atomic_add_at(ll_atomic *f, const void *data, size_t size, uint64_t at);
ll_err ll_atomic_add(ll_atomic *f, const void *data, size_t size);
ll_err ll_atomic_commit(ll_atomic *f);
void ll_atomic_close(ll_atomic *f);
LL_OWNED(ll_atomic, ll_atomic_close);

/* What the new file's name has after the target's: files so named are leftovers of a killed
 * process. */
#define LL_ATOMIC_MARK ".tmp-"
