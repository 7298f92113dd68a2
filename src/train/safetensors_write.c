/* safetensors_write.c: writing: order the tensors, print the header, then one pass over the bytes
 * for the checksum and one to the file. Many ranks do the same, each with the bytes it has: the
 * checksum of all is made of theirs, the header is the same everywhere and written by rank 0, which
 * also opens the file and, when everyone's bytes are on disk, gives it its name. */
#include "train/safetensors.h"
#include "base/arena.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/text.h"
#include "train/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *type_name(ll_dtype t)
{
    static const char *const names[] = {
#define X(name, text, bytes) #name,
        LL_DTYPES(X)
#undef X
    };
    return names[t];
}

static size_t bytes_of(const ll_st_tensor *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const ll_st_tensor *const *)a)->name, (*(const ll_st_tensor *const *)b)->name);
}

/* Larger elements first: each tensor then begins at a multiple of its element. */
static int by_place(const void *a, const void *b)
{
    size_t x = ll_dtype_bytes((*(const ll_st_tensor *const *)a)->dtype);
    size_t y = ll_dtype_bytes((*(const ll_st_tensor *const *)b)->dtype);
    return x != y ? (x > y ? -1 : 1) : by_name(a, b);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const ll_st_pair *)a)->key, ((const ll_st_pair *)b)->key);
}

static ll_err check_tensor(const char *path, const ll_st_tensor *t, bool spare)
{
    CHECK(t->name && t->name[0] && strcmp(t->name, "__metadata__"), LL_E_ARG,
          "%s: \"%s\" cannot name a tensor", path, t->name ? t->name : "");
    for (const char *c = t->name; *c; c += ll_utf8_at(c))
        CHECK(ll_utf8_at(c), LL_E_ARG, "%s: the name of tensor %s is not UTF-8", path, t->name);
    for (int i = 0; i < t->shape.n; i++)
        CHECK(t->shape.d[i] >= 0, LL_E_SHAPE, "%s: tensor %s: dimension %d is %lld", path, t->name,
              i, (long long)t->shape.d[i]);
    CHECK(t->data || bytes_of(t) == 0 || spare, LL_E_ARG, "%s: tensor %s has no data", path,
          t->name);
    return LL_OK;
}

/* Sorts them into the file's order. */
static ll_err arrange(const char *path, const ll_st_content *x, const ll_st_tensor **order)
{
    int n = x->n;
    for (int i = 0; i < n; i++) TRY(check_tensor(path, order[i], x->parts && x->parts[i].spare));
    if (n == 0) return LL_OK;
    qsort(order, (size_t)n, sizeof *order, by_name);
    for (int i = 1; i < n; i++)
        CHECK(strcmp(order[i - 1]->name, order[i]->name), LL_E_ARG, "%s: two tensors are named %s",
              path, order[i]->name);
    qsort(order, (size_t)n, sizeof *order, by_place);
    return LL_OK;
}

static ll_err print_meta(ll_buf *b, const char *path, const ll_st_pair *meta, int n, uint32_t crc)
{
    char checksum[9];
    snprintf(checksum, sizeof checksum, "%08x", crc);
    ll_st_pair *pairs = LL_NEW_ARRAY(b->arena, ll_st_pair, n + 1);
    if (n) memcpy(pairs, meta, sizeof *pairs * (size_t)n);
    pairs[n] = (ll_st_pair){"crc32c", checksum};
    qsort(pairs, (size_t)n + 1, sizeof *pairs, by_key);
    for (int i = 0; i <= n; i++) {
        CHECK(i == 0 || strcmp(pairs[i - 1].key, pairs[i].key), LL_E_ARG,
              "%s: metadata %s is given twice", path, pairs[i].key);
        ll_buf_puts(b, i ? "," : "{\"__metadata__\":{");
        ll_buf_json(b, pairs[i].key);
        ll_buf_puts(b, ":");
        ll_buf_json(b, pairs[i].value);
    }
    ll_buf_puts(b, "}");
    return LL_OK;
}

static void print_tensors(ll_buf *b, const ll_st_tensor *const *order, int n)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const ll_st_tensor *t = order[i];
        char shape[LL_SHAPE_TEXT];
        ll_buf_puts(b, ",");
        ll_buf_json(b, t->name);
        ll_buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                      type_name(t->dtype), ll_shape_print(&t->shape, shape), at, at + bytes_of(t));
        at += bytes_of(t);
    }
    ll_buf_puts(b, "}");
    while (b->len % 8) ll_buf_puts(b, " ");
}

/* What this rank has of the file, tensor by tensor: all ranks' make the whole. */
typedef struct writer {
    const char *path;
    const ll_st_content *x;
    const ll_st_tensor **order;
    ll_buf header;
    ll_atomic *f;
} writer;

/* Of tensor i in the file's order, what this rank is to write. */
static ll_st_runs runs_of(const writer *w, int i)
{
    const ll_st_tensor *t = w->order[i];
    ll_st_part whole = {.shape = t->shape};
    const ll_st_part *part = w->x->parts ? &w->x->parts[t - w->x->tensors] : &whole;
    ll_st_runs r = ll_st_runs_of(&t->shape, part, t->dtype);
    if (part->spare) r.n = 0;
    return r;
}

static uint64_t total_bytes(const writer *w)
{
    uint64_t sum = 0;
    for (int i = 0; i < w->x->n; i++) sum += bytes_of(w->order[i]);
    return sum;
}

/* This rank's remainder (crc32c.h). */
static uint32_t remainder_of(const writer *w)
{
    uint32_t r = 0;
    uint64_t at = 0, base = 0;
    for (int i = 0; i < w->x->n; i++) {
        ll_st_runs runs = runs_of(w, i);
        const char *data = (const char *)w->order[i]->data;
        for (int64_t k = 0; k < runs.n; k++) {
            uint64_t begin = base + ll_st_run_at(&runs, k);
            r = ll_crc32c_zeros(r, begin - at);
            r = ll_crc32c_piece(r, data + (size_t)k * (size_t)runs.bytes, (size_t)runs.bytes);
            at = begin + runs.bytes;
        }
        base += bytes_of(w->order[i]);
    }
    return ll_crc32c_zeros(r, base - at);
}

/* This rank's bytes, to the disk. */
static ll_err write_mine(const writer *w)
{
    uint64_t base = 8 + w->header.len, length = w->header.len;
    if (ll_ranks_lead(w->x->comm)) {
        TRY(ll_atomic_add_at(w->f, &length, 8, 0));
        TRY(ll_atomic_add_at(w->f, w->header.text, w->header.len, 8));
    }
    for (int i = 0; i < w->x->n; i++) {
        ll_st_runs runs = runs_of(w, i);
        const char *data = (const char *)w->order[i]->data;
        for (int64_t k = 0; k < runs.n; k++)
            TRY(ll_atomic_add_at(w->f, data + (size_t)k * (size_t)runs.bytes, (size_t)runs.bytes,
                                 base + ll_st_run_at(&runs, k)));
        base += bytes_of(w->order[i]);
    }
    return ll_ranks_lead(w->x->comm) ? LL_OK : ll_atomic_commit(w->f);
}

static ll_err join_and_write(writer *w, int64_t token)
{
    if (!w->f) TRY(ll_atomic_join(w->path, token, &w->f));
    return write_mine(w);
}

static ll_err write_file(writer *w)
{
    ll_comm *c = w->x->comm;
    bool lead = ll_ranks_lead(c);
    TRY(ll_ranks_agree(c, lead ? ll_atomic_open(w->path, &w->f) : LL_OK));
    int64_t token = lead ? ll_atomic_token(w->f) : 0;
    TRY(ll_ranks_share(c, &token, sizeof token));
    TRY(ll_ranks_agree(c, join_and_write(w, token)));
    return ll_ranks_agree(c, lead ? ll_atomic_commit(w->f) : LL_OK);
}

ll_err ll_st_write(const char *path, const ll_st_content *x)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    writer w = {.path = path, .x = x, .header = {.arena = a}};
    w.order = LL_NEW_ARRAY(a, const ll_st_tensor *, x->n);
    for (int i = 0; i < x->n; i++) w.order[i] = &x->tensors[i];
    TRY(ll_ranks_agree(x->comm, arrange(path, x, w.order)));
    uint32_t crc = remainder_of(&w);
    TRY(ll_ranks_xor(x->comm, &crc));
    crc = ll_crc32c_of(crc, total_bytes(&w));
    TRY(ll_ranks_agree(x->comm, print_meta(&w.header, path, x->meta, x->n_meta, crc)));
    print_tensors(&w.header, w.order, x->n);
    ll_err rc = write_file(&w);
    ll_atomic_close(w.f);
    return rc;
}

ll_err ll_st_check(ll_comm *c, const ll_st_file *f)
{
    const char *want = ll_st_meta(f, "crc32c");
    if (!want) return LL_OK;
    uint64_t size = c ? (uint64_t)ll_comm_size(c) : 1, rank = c ? (uint64_t)ll_comm_rank(c) : 0;
    uint64_t all = ll_st_data_bytes(f), from = all / size * rank;
    uint64_t to = rank + 1 == size ? all : all / size * (rank + 1);
    uint32_t crc = 0;
    TRY(ll_ranks_agree(c, ll_st_remainder(f, from, to, &crc)));
    crc = ll_crc32c_zeros(crc, all - to);
    TRY(ll_ranks_xor(c, &crc));
    char have[9];
    snprintf(have, sizeof have, "%08x", ll_crc32c_of(crc, all));
    ll_err rc = LL_OK;
    if (strcmp(have, want))
        rc = RAISE(LL_E_IO, "%s: the tensors' checksum is %s, want %.16s", ll_st_path(f), have,
                   want);
    return ll_ranks_agree(c, rc);
}
