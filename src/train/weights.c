/* weights.c: opening a file of weights: what it is, and what is in it. */
#include "train/weights.h"

#include "train/pth.h"
#include "train/ranks.h"
#include "train/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ll_weight *)a)->name, ((const ll_weight *)b)->name);
}

const ll_weight *ll_weights_find(const ll_weights *w, const char *name)
{
    ll_weight key = {.name = name};
    if (!w->n) return NULL;
    return (const ll_weight *)bsearch(&key, w->all, (size_t)w->n, sizeof key, by_name);
}

/* Tensors of the file's own layout: the last dimension runs fastest. */
static ll_weight dense(ll_arena *a, const ll_st_entry *e)
{
    ll_weight t = {.name = ll_arena_strdup(a, e->name),
                   .type = ll_arena_strdup(a, e->type),
                   .dtype = ll_st_type(e->type)};
    t.shape.n = e->n_dims <= LL_MAX_DIMS ? e->n_dims : -1;
    for (int64_t d = t.shape.n - 1, step = 1; d >= 0; step *= e->dims[d], d--) {
        t.shape.d[d] = e->dims[d];
        t.stride[d] = step;
    }
    return t;
}

static ll_err read_safetensors(ll_weights *w)
{
    LL_OWN(ll_st_file) f = NULL;
    TRY(ll_st_parse(w->map, w->bytes, w->bytes, w->path, &f));
    const char *format = ll_st_meta(f, "format");
    w->kind = "safetensors";
    w->torch = format && !strcmp(format, "pt");
    w->ours = ll_st_meta(f, "step");
    w->n = ll_st_count(f);
    w->all = LL_NEW_ARRAY(w->arena, ll_weight, w->n);
    for (int i = 0; i < w->n; i++) {
        const ll_st_entry *e = ll_st_at(f, i);
        w->all[i] = dense(w->arena, e);
        w->all[i].data = w->map + ll_st_data_at(f) + e->begin;
    }
    return LL_OK;
}

/* A checksum of ours; others have none. */
static ll_err check_sum(ll_comm *c, const ll_weights *w)
{
    LL_OWN(ll_st_file) f = NULL;
    if (strcmp(w->kind, "safetensors")) return LL_OK;
    TRY(ll_ranks_agree(c, ll_st_open(w->path, &f)));
    return ll_st_check(c, f);
}

/* What wrappers of PyTorch put before the names of all. */
static void drop_prefix(ll_weights *w)
{
    static const char *const known[] = {"module.", "_orig_mod."};
    w->prefix = "";
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        size_t n = strlen(known[k]);
        bool all = w->n > 0;
        for (int i = 0; i < w->n; i++) all = all && !strncmp(w->all[i].name, known[k], n);
        for (int i = 0; i < w->n && all; i++) w->all[i].name += n;
        if (all) w->prefix = ll_arena_printf(w->arena, "%s%s", w->prefix, known[k]);
    }
}

static ll_err map_file(int fd, ll_weights *w)
{
    struct stat st;
    CHECK(fstat(fd, &st) == 0, LL_E_IO, "%s: %s", w->path, strerror(errno));
    CHECK(S_ISREG(st.st_mode) && st.st_size > 0, LL_E_IO, "%s: is empty, or not a plain file",
          w->path);
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED, LL_E_IO, "%s: cannot map %lld bytes: %s", w->path,
          (long long)st.st_size, strerror(errno));
    w->map = (const uint8_t *)map;
    w->bytes = (size_t)st.st_size;
    return LL_OK;
}

/* As a safetensors file its header would be longer than any may be. */
static bool is_pickle(const ll_weights *w)
{
    return w->bytes > 4 && w->map[0] == 0x80 && w->map[1] >= 2 && w->map[1] <= 5 && w->map[3] > 5;
}

static ll_err read_file(ll_weights *w)
{
    int fd = open(w->path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, LL_E_IO, "%s: %s", w->path, strerror(errno));
    ll_err rc = map_file(fd, w);
    close(fd);
    TRY(rc);
    bool zip = w->bytes > 4 && !memcmp(w->map, "PK\3\4", 4);
    w->kind = "PyTorch";
    w->torch = true;
    CHECK(!is_pickle(w), LL_E_IO,
          "%s: is of PyTorch before 1.6, or a plain pickle, which is not read: load it there and "
          "save it again, torch.save(torch.load(FILE), NEW)",
          w->path);
    TRY(zip ? ll_pth_parse(w->map, w->bytes, w) : read_safetensors(w));
    drop_prefix(w);
    if (w->n) qsort(w->all, (size_t)w->n, sizeof *w->all, by_name);
    for (int i = 1; i < w->n; i++)
        CHECK(strcmp(w->all[i - 1].name, w->all[i].name), LL_E_IO, "%s: two tensors are named %s",
              w->path, w->all[i].name);
    return LL_OK;
}

ll_err ll_weights_open(ll_comm *c, const char *path, ll_weights **out)
{
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_weights) w = LL_NEW(a, ll_weights);
    *w = (ll_weights){.arena = a, .path = ll_arena_strdup(a, path)};
    *out = NULL;
    TRY(ll_ranks_agree(c, read_file(w)));
    TRY(check_sum(c, w));
    *out = w;
    w = NULL;
    return LL_OK;
}

bool ll_weights_foreign(const char *path)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_weights w = {.arena = a, .path = path};
    bool foreign = read_file(&w) == LL_OK && !w.ours;
    if (w.map) munmap((void *)w.map, w.bytes);
    return foreign;
}

void ll_weights_close(ll_weights *w)
{
    if (!w) return;
    if (w->map) munmap((void *)w->map, w->bytes);
    ll_arena_free(w->arena);
}
