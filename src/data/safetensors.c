/* safetensors.c: reading. Nothing of a file is trusted: after ll_st_parse has accepted a header,
 *  1. names are unique, and each tensor's bytes lie inside the file;
 *  2. the tensors' bytes tile the data section: no hole, no overlap, nothing after the last;
 *  3. a tensor's bytes are its shape's product times its element's size, where the type is known.
 * Types or ranks that we do not have are no error until such a tensor is asked for. */
#include "data/safetensors.h"
#include "base/arena.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor bytes are written as they lie");

/* The format's own limit; a larger length is garbage. */
#define HEADER_MAX 100000000u

static const ll_st_type types[] = {
    {"F64", 64, LL_F64, 'f'},     {"F32", 32, LL_F32, 'f'},     {"BF16", 16, LL_BF16, 'b'},
    {"F16", 16, LL_F16, 'f'},     {"I32", 32, LL_I32, 'i'},     {"U8", 8, LL_U8, 'u'},
    {"I64", 64, LL_N_DTYPE, 'i'}, {"U64", 64, LL_N_DTYPE, 'u'}, {"C64", 64, LL_N_DTYPE},
    {"U32", 32, LL_N_DTYPE, 'u'}, {"I16", 16, LL_N_DTYPE, 'i'}, {"U16", 16, LL_N_DTYPE, 'u'},
    {"I8", 8, LL_N_DTYPE, 'i'},   {"BOOL", 8, LL_N_DTYPE, '?'}, {"F8_E4M3", 8, LL_F8_E4M3},
    {"F8_E5M2", 8, LL_F8_E5M2},   {"F8_E8M0", 8, LL_N_DTYPE},   {"F6_E2M3", 6, LL_N_DTYPE},
    {"F6_E3M2", 6, LL_N_DTYPE},   {"F4", 4, LL_N_DTYPE},
};

static ll_st_type type_of(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(name, types[i].name)) return types[i];
    return (ll_st_type){.ll = LL_N_DTYPE};
}

/* A name from the file, quoted and cut, so that a message stays one short line. */
static const char *quote(const ll_st_file *f, const char *name)
{
    return ll_text_quoted(f->arena, ll_arena_printf(f->arena, "%.80s", name));
}

static ll_err parse_shape(ll_st_file *f, ll_st_entry *e, const json_t *shape, uint64_t *elements)
{
    CHECK(json_is_array(shape), LL_E_IO, "%s: tensor %s: \"shape\" is missing or not a list",
          f->path, quote(f, e->name));
    e->n_dims = (int)json_array_size(shape);
    int64_t *dims = LL_NEW_ARRAY(f->arena, int64_t, e->n_dims);
    *elements = 1;
    for (int i = 0; i < e->n_dims; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        dims[i] = json_integer_value(d);
        CHECK(json_is_integer(d) && dims[i] >= 0, LL_E_IO,
              "%s: tensor %s: dimension %d is not a whole number from 0 up", f->path,
              quote(f, e->name), i);
        CHECK(!__builtin_mul_overflow(*elements, (uint64_t)dims[i], elements), LL_E_IO,
              "%s: tensor %s: too many elements", f->path, quote(f, e->name));
    }
    e->dims = dims;
    return LL_OK;
}

static ll_err parse_offsets(const ll_st_file *f, ll_st_entry *e, const json_t *offsets)
{
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    CHECK(json_array_size(offsets) == 2 && json_is_integer(from) && json_is_integer(to), LL_E_IO,
          "%s: tensor %s: \"data_offsets\" is missing or not two whole numbers", f->path,
          quote(f, e->name));
    int64_t begin = json_integer_value(from), end = json_integer_value(to);
    CHECK(begin >= 0 && begin <= end && (uint64_t)end <= f->data_bytes, LL_E_IO,
          "%s: tensor %s: bytes %ld to %ld, but the file has %lu bytes of data", f->path,
          quote(f, e->name), begin, end, f->data_bytes);
    e->begin = (uint64_t)begin;
    e->end = (uint64_t)end;
    return LL_OK;
}

static ll_err parse_entry(ll_st_file *f, ll_st_entry *e, const char *name, const json_t *info)
{
    e->name = ll_arena_strdup(f->arena, name);
    const json_t *type = json_object_get(info, "dtype");
    CHECK(json_is_string(type), LL_E_IO, "%s: tensor %s: \"dtype\" is missing or not text", f->path,
          quote(f, name));
    e->type = ll_arena_strdup(f->arena, json_string_value(type));
    e->is = type_of(e->type);
    uint64_t elements = 0, bits;
    TRY(parse_shape(f, e, json_object_get(info, "shape"), &elements));
    TRY(parse_offsets(f, e, json_object_get(info, "data_offsets")));
    if (!e->is.bits) return LL_OK;
    CHECK(!__builtin_mul_overflow(elements, (uint64_t)e->is.bits, &bits) && bits % 8 == 0 &&
              bits / 8 == e->end - e->begin,
          LL_E_IO, "%s: tensor %s: %lu elements of %s do not fill its %lu bytes", f->path,
          quote(f, name), elements, e->type, (e->end - e->begin));
    return LL_OK;
}

static ll_err parse_meta(ll_st_file *f, json_t *meta)
{
    CHECK(json_is_object(meta), LL_E_IO, "%s: \"__metadata__\" is not an object", f->path);
    f->meta = LL_NEW_ARRAY(f->arena, ll_st_pair, json_object_size(meta));
    const char *key;
    json_t *value;
    json_object_foreach(meta, key, value)
    {
        CHECK(json_is_string(value), LL_E_IO, "%s: metadata %s is not text", f->path,
              quote(f, key));
        f->meta[f->n_meta++] = (ll_st_pair){ll_arena_strdup(f->arena, key),
                                            ll_arena_strdup(f->arena, json_string_value(value))};
    }
    return LL_OK;
}

static int by_bytes(const void *a, const void *b)
{
    const ll_st_entry *x = (const ll_st_entry *)a, *y = (const ll_st_entry *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ll_st_entry *)a)->name, ((const ll_st_entry *)b)->name);
}

static ll_err check_tiling(ll_st_file *f)
{
    if (f->n_entries) qsort(f->entries, (size_t)f->n_entries, sizeof *f->entries, by_bytes);
    uint64_t at = 0;
    for (int i = 0; i < f->n_entries; i++) {
        const ll_st_entry *e = &f->entries[i];
        CHECK(e->begin == at, LL_E_IO, "%s: tensor %s begins at byte %lu, expected %lu: %s",
              f->path, quote(f, e->name), e->begin, at,
              e->begin < at ? "tensors overlap" : "a hole before it");
        at = e->end;
    }
    CHECK(at == f->data_bytes, LL_E_IO, "%s: tensors fill %lu bytes, but the file has %lu of data",
          f->path, at, f->data_bytes);
    if (f->n_entries) qsort(f->entries, (size_t)f->n_entries, sizeof *f->entries, by_name);
    return LL_OK;
}

/* text: the n bytes of JSON. */
static ll_err parse_header(ll_st_file *f, const char *text, size_t n)
{
    CHECK(n && text[0] == '{', LL_E_IO, "%s: the header does not begin with {", f->path);
    json_error_t why;
    json_auto_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    CHECK(root, LL_E_IO, "%s: the header is not valid JSON at byte %d: %s", f->path, why.position,
          quote(f, why.text));
    f->entries = LL_NEW_ARRAY(f->arena, ll_st_entry, json_object_size(root));
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        if (!strcmp(name, "__metadata__"))
            TRY(parse_meta(f, value));
        else
            TRY(parse_entry(f, &f->entries[f->n_entries++], name, value));
    }
    return check_tiling(f);
}

/* The header's length from the first eight bytes. */
static ll_err parse_length(const uint8_t *bytes, size_t n, uint64_t file_bytes, const char *path,
                           uint64_t *length)
{
    CHECK(n >= 8 && file_bytes >= 8, LL_E_IO, "%s: %zu bytes are too few for a safetensors file",
          path, n);
    memcpy(length, bytes, 8);
    CHECK(*length <= HEADER_MAX && *length <= file_bytes - 8, LL_E_IO,
          "%s claims a header of %lu bytes, but the file has %lu, and the limit is %u", path,
          *length, file_bytes, HEADER_MAX);
    return LL_OK;
}

ll_err ll_st_parse(const uint8_t *bytes, size_t n, uint64_t file_bytes, const char *path,
                   ll_st_file **out)
{
    *out = NULL;
    uint64_t length = 0;
    TRY(parse_length(bytes, n, file_bytes, path, &length));
    CHECK(length <= n - 8, LL_E_ARG, "%s: %zu bytes given, expected 8 and the %lu of the header",
          path, n, length);
    ll_arena *arena = ll_arena_new();
    LL_OWN(ll_st_file) f = LL_NEW(arena, ll_st_file);
    *f = (ll_st_file){.arena = arena,
                      .path = ll_arena_strdup(arena, path),
                      .fd = -1,
                      .data_at = 8 + length,
                      .data_bytes = file_bytes - 8 - length};
    TRY(parse_header(f, (const char *)bytes + 8, (size_t)length));
    return LL_HAND(out, f);
}

ll_err ll_st_open(const char *path, ll_st_file **out)
{
    struct stat st;
    *out = NULL;
    LL_OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, LL_E_IO, "%s: %s", path, strerror(errno));
    CHECK(fstat(fd, &st) == 0, LL_E_IO, "%s: %s", path, strerror(errno));
    CHECK(S_ISREG(st.st_mode), LL_E_IO, "%s is not a regular file", path);
    uint64_t file_bytes = (uint64_t)st.st_size, length = 0;
    uint8_t first[8] = {0};
    size_t n = file_bytes < 8 ? (size_t)file_bytes : 8;
    TRY(ll_read_all(fd, path, first, n, 0));
    TRY(parse_length(first, n, file_bytes, path, &length));
    LL_OWN_MEMORY uint8_t *head = (uint8_t *)malloc(8 + (size_t)length);
    CHECK(head, LL_E_MEM, "%s: not enough memory for a header of %lu bytes", path, length);
    TRY(ll_read_all(fd, path, head, 8 + (size_t)length, 0));
    TRY(ll_st_parse(head, 8 + (size_t)length, file_bytes, path, out));
    (*out)->fd = fd;
    fd = -1;
    return LL_OK;
}

void ll_st_close(ll_st_file *f)
{
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    ll_arena_free(f->arena);
}

const char *ll_st_meta(const ll_st_file *f, const char *key)
{
    for (int i = 0; i < f->n_meta; i++)
        if (!strcmp(f->meta[i].key, key)) return f->meta[i].value;
    return NULL;
}

const ll_st_entry *ll_st_find(const ll_st_file *f, const char *name)
{
    if (!f->n_entries) return NULL;
    ll_st_entry key = {.name = name};
    return (const ll_st_entry *)bsearch(&key, f->entries, (size_t)f->n_entries, sizeof key,
                                        by_name);
}

ll_err ll_st_want(const ll_st_file *f, const char *name, ll_dtype *dtype, ll_shape *shape)
{
    const ll_st_entry *e = ll_st_find(f, name);
    CHECK(e, LL_E_IO, "%s has no tensor %s", f->path, name);
    CHECK(e->is.ll != LL_N_DTYPE, LL_E_IO,
          "%s: tensor %s is of type %s, expected F64, F32, BF16, F16, F8, I32 or U8", f->path, name,
          quote(f, e->type));
    CHECK(e->n_dims <= LL_MAX_DIMS, LL_E_IO, "%s: tensor %s has %d dimensions, expected at most %d",
          f->path, name, e->n_dims, LL_MAX_DIMS);
    *dtype = e->is.ll;
    *shape = (ll_shape){.n = e->n_dims};
    for (int i = 0; i < e->n_dims; i++) shape->d[i] = e->dims[i];
    return LL_OK;
}

/* Of a [4,6,5] the part [2,3,5] at [1,2,0] is 2 runs of 3 x 5 elements: dimensions that are whole,
 * and the last one that is cut, make up a run; those before it count the runs. */
ll_st_runs ll_st_runs_of(const ll_shape *whole, const ll_st_part *part, ll_dtype dtype)
{
    ll_st_runs r = {.n = 1};
    int last = whole->n - 1; /* the last dimension that is cut; 0 where none is */
    while (last > 0 && part->shape.d[last] == whole->d[last]) last--;
    uint64_t stride = ll_dtype_bytes(dtype);
    for (int d = whole->n - 1; d >= 0; d--) {
        r.stride[d] = stride;
        r.first += (uint64_t)part->at[d] * stride;
        stride *= (uint64_t)whole->d[d];
    }
    r.bytes = whole->n ? (uint64_t)part->shape.d[last] * r.stride[last] : stride;
    r.outer.n = whole->n ? last : 0;
    for (int d = 0; d < r.outer.n; d++) {
        r.outer.d[d] = part->shape.d[d];
        r.n *= part->shape.d[d];
    }
    if (r.bytes == 0) r.n = 0;
    return r;
}

uint64_t ll_st_run_at(const ll_st_runs *r, int64_t i)
{
    uint64_t at = r->first;
    for (int d = r->outer.n - 1; d >= 0; d--) {
        at += (uint64_t)(i % r->outer.d[d]) * r->stride[d];
        i /= r->outer.d[d];
    }
    return at;
}

ll_err ll_st_read_part(const ll_st_file *f, const char *name, const ll_st_part *part, void *data)
{
    ll_dtype dtype = LL_F32;
    ll_shape whole = {0};
    TRY(ll_st_want(f, name, &dtype, &whole));
    CHECK(f->fd >= 0, LL_E_ARG, "%s: tensor %s: the file is not open", f->path, name);
    const ll_st_entry *e = ll_st_find(f, name);
    ll_st_runs runs = ll_st_runs_of(&whole, part, dtype);
    for (int64_t i = 0; i < runs.n; i++) {
        uint64_t at = ll_st_run_at(&runs, i);
        CHECK(at + runs.bytes <= e->end - e->begin, LL_E_SHAPE,
              "%s: tensor %s has %lu bytes, and no part up to %lu", f->path, name,
              (e->end - e->begin), (at + runs.bytes));
        TRY(ll_read_all(f->fd, f->path, (char *)data + (size_t)i * (size_t)runs.bytes,
                        (size_t)runs.bytes, f->data_at + e->begin + at));
    }
    return LL_OK;
}

ll_err ll_st_remainder(const ll_st_file *f, uint64_t from, uint64_t to, uint32_t *out)
{
    const size_t chunk_bytes = 1 << 20;
    CHECK(f->fd >= 0, LL_E_ARG, "%s: cannot be checked: the file is not open", f->path);
    LL_OWN_MEMORY uint8_t *chunk = (uint8_t *)malloc(chunk_bytes);
    CHECK(chunk, LL_E_MEM, "%s: not enough memory to check it", f->path);
    for (uint64_t at = from; at < to; at += chunk_bytes) {
        size_t n = to - at < chunk_bytes ? (size_t)(to - at) : chunk_bytes;
        TRY(ll_read_all(f->fd, f->path, chunk, n, f->data_at + at));
        *out = ll_crc32c_piece(*out, chunk, n);
    }
    return LL_OK;
}
