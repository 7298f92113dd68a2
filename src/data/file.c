/* file.c: files as blocks of bytes, and the segments of them that a set is made of. Files are
 * mapped, not read: opening a set of any size costs nothing until its samples are used, and ranks
 * of one machine share the pages. */
#include "data/data_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ll_err map(int fd, const char *path, ll_bytes *out)
{
    struct stat st;
    CHECK(fstat(fd, &st) == 0, LL_E_IO, "%s: %s", path, strerror(errno));
    CHECK(S_ISREG(st.st_mode), LL_E_IO, "%s: is not a regular file", path);
    CHECK(st.st_size > 0, LL_E_IO, "%s: the file is empty", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(p != MAP_FAILED, LL_E_IO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
          strerror(errno));
    *out = (ll_bytes){.data = p,
                      .size = (size_t)st.st_size,
                      .mapped = true,
                      .base = p,
                      .base_size = (size_t)st.st_size};
    return LL_OK;
}

ll_err ll_file_map(const char *path, ll_bytes *out)
{
    *out = (ll_bytes){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, LL_E_IO, "%s: %s", path, strerror(errno));
    ll_err rc = map(fd, path, out);
    close(fd);
    return rc;
}

void ll_bytes_free(ll_bytes *b)
{
    if (b->mapped)
        munmap(b->base, b->base_size);
    else
        free((void *)b->data);
    *b = (ll_bytes){0};
}

void ll_dataset_keep(ll_dataset *d, const ll_bytes *b)
{
    d->blocks =
        ll_arena_grow(d->arena, d->blocks, sizeof *d->blocks, d->n_blocks, &d->block_capacity);
    d->blocks[d->n_blocks++] = *b;
    d->info.bytes += b->size;
}

void ll_segment_add(ll_dataset *d, ll_split split, const ll_segment *s)
{
    ll_segments *list = &d->split[split];
    list->item = ll_arena_grow(d->arena, list->item, sizeof *s, list->count, &list->capacity);
    list->item[list->count] = *s;
    if (s->file) list->item[list->count].file = ll_arena_strdup(d->arena, s->file);
    list->count++;
    list->n += s->n;
}

void ll_text_add(ll_dataset *d, const ll_data_opts *o, const char *path, const ll_bytes *text)
{
    d->info.kind = LL_TOKENS;
    d->info.is_text = true;
    d->info.vocab = o->vocab ? o->vocab : 256;
    ll_dataset_keep(d, text);
    ll_segment_add(
        d, LL_TRAIN,
        &(ll_segment){
            .file = path, .n = (int64_t)text->size, .tokens = text->data, .token_bytes = 1});
}

bool ll_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}
