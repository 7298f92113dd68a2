/* safetensors_write.c: writing: order the tensors, print the header, then one pass over the bytes
 * for the checksum and one to the file. */
#include "train/safetensors.h"
#include "base/arena.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

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

static ll_err check_tensor(const char *path, const ll_st_tensor *t)
{
    CHECK(t->name && t->name[0] && strcmp(t->name, "__metadata__"), LL_E_ARG,
          "%s: \"%s\" cannot name a tensor", path, t->name ? t->name : "");
    for (const char *c = t->name; *c; c += ll_utf8_at(c))
        CHECK(ll_utf8_at(c), LL_E_ARG, "%s: the name of tensor %s is not UTF-8", path, t->name);
    for (int i = 0; i < t->shape.n; i++)
        CHECK(t->shape.d[i] >= 0, LL_E_SHAPE, "%s: tensor %s: dimension %d is %lld", path, t->name,
              i, (long long)t->shape.d[i]);
    CHECK(t->data || bytes_of(t) == 0, LL_E_ARG, "%s: tensor %s has no data", path, t->name);
    return LL_OK;
}

/* Sorts them into the file's order. */
static ll_err arrange(const char *path, const ll_st_tensor **order, int n)
{
    for (int i = 0; i < n; i++) TRY(check_tensor(path, order[i]));
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

static ll_err write_file(const char *path, const ll_buf *header, const ll_st_tensor *const *order,
                         int n)
{
    ll_atomic *f;
    TRY(ll_atomic_open(path, &f));
    uint64_t length = header->len;
    ll_err rc = ll_atomic_add(f, &length, 8);
    if (rc == LL_OK) rc = ll_atomic_add(f, header->text, header->len);
    for (int i = 0; i < n && rc == LL_OK; i++)
        rc = ll_atomic_add(f, order[i]->data, bytes_of(order[i]));
    if (rc == LL_OK) rc = ll_atomic_commit(f);
    ll_atomic_close(f);
    return rc;
}

static ll_err write_in(ll_arena *a, const char *path, const ll_st_tensor *tensors, int n,
                       const ll_st_pair *meta, int n_meta)
{
    const ll_st_tensor **order = LL_NEW_ARRAY(a, const ll_st_tensor *, n);
    for (int i = 0; i < n; i++) order[i] = &tensors[i];
    TRY(arrange(path, order, n));
    uint32_t crc = 0;
    for (int i = 0; i < n; i++) crc = ll_crc32c(crc, order[i]->data, bytes_of(order[i]));
    ll_buf header = {.arena = a};
    TRY(print_meta(&header, path, meta, n_meta, crc));
    print_tensors(&header, order, n);
    return write_file(path, &header, order, n);
}

ll_err ll_st_write(const char *path, const ll_st_tensor *tensors, int n, const ll_st_pair *meta,
                   int n_meta)
{
    ll_arena *a = ll_arena_new();
    ll_err rc = write_in(a, path, tensors, n, meta, n_meta);
    ll_arena_free(a);
    return rc;
}
