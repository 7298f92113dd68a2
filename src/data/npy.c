/* npy.c: NumPy's arrays. A .npy file: "\x93NUMPY", a version, the length of a header, and the
 * header, which is the text of a Python dictionary:
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
 *
 * then the elements. A .npz is a zip archive (zip.c) of such files. A path of npy files, a
 * folder or a pattern, is one set: each file an array that is named as it is. */
#include "base/num.h"
#include "data/table.h"

#include <ctype.h>
#include <string.h>

/* What follows 'key': in the header; NULL: it is not there. */
static const char *value_of(const char *text, const char *end, const char *key)
{
    size_t n = strlen(key);
    for (const char *p = text; p + n + 3 < end; p++) {
        if ((*p != '\'' && *p != '"') || memcmp(p + 1, key, n) || p[n + 1] != *p) continue;
        p += n + 2;
        while (p < end && (*p == ' ' || *p == ':')) p++;
        return p;
    }
    return NULL;
}

static ll_err read_type(const char *p, const char *end, const char *file, ll_elem *out)
{
    CHECK(p && end - p >= 5 && (*p == '\'' || *p == '"'), LL_E_IO,
          "%s: the header has no 'descr' of one type (arrays of records cannot be read)", file);
    char order = p[1], kind = p[2];
    int bytes = 0;
    for (p += 3; p < end && isdigit((unsigned char)*p) && bytes < 100; p++)
        bytes = bytes * 10 + *p - '0';
    *out = (ll_elem){kind == 'b' ? '?' : kind, bytes, order == '>'};
    bool known =
        (kind == 'f' && (bytes == 2 || bytes == 4 || bytes == 8)) ||
        ((kind == 'i' || kind == 'u') && (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8)) ||
        (kind == 'b' && bytes == 1);
    CHECK(known && strchr("<>|=", order), LL_E_IO,
          "%s: elements are of type '%c%c%d', expected numbers: f2 f4 f8, i1 to i8, u1 to u8, b1",
          file, isprint((unsigned char)order) ? order : '?',
          isprint((unsigned char)kind) ? kind : '?', bytes);
    return LL_OK;
}

static ll_err read_shape(const char *p, const char *end, const char *file, ll_npy *out)
{
    CHECK(p && p < end && *p == '(', LL_E_IO, "%s: the header has no 'shape'", file);
    for (p++; p < end && *p != ')';) {
        CHECK(isdigit((unsigned char)*p) && out->n_dim < LL_MAX_DIMS, LL_E_IO,
              "%s: the header's shape is not 1 to %d integers", file, LL_MAX_DIMS);
        int64_t d = 0;
        for (; p < end && isdigit((unsigned char)*p); p++)
            CHECK(!__builtin_mul_overflow(d, 10, &d) && !__builtin_add_overflow(d, *p - '0', &d),
                  LL_E_IO, "%s: dimension %d is too large", file, out->n_dim);
        out->dim[out->n_dim++] = d;
        CHECK(!__builtin_mul_overflow(out->bytes, (size_t)d, &out->bytes), LL_E_IO,
              "%s: too many elements", file);
        while (p < end && (*p == ',' || *p == ' ' || *p == 'L')) p++;
    }
    CHECK(p < end, LL_E_IO, "%s: the header's shape is not closed", file);
    return LL_OK;
}

ll_err ll_npy_parse(const uint8_t *b, size_t size, const char *file, ll_npy *out)
{
    *out = (ll_npy){0};
    ll_npy npy = {.bytes = 1};
    CHECK(size >= 12 && memcmp(b, "\x93NUMPY", 6) == 0, LL_E_IO, "%s is not a .npy file", file);
    CHECK(b[6] >= 1 && b[6] <= 3, LL_E_IO, "%s: version %d of .npy, expected 1 to 3", file, b[6]);
    size_t head = b[6] == 1 ? 10 : 12, n = (size_t)ll_le(b + 8, b[6] == 1 ? 2 : 4);
    CHECK(n <= size - head, LL_E_IO, "%s: the header has %zu bytes, but the file has %zu", file, n,
          size);
    const char *text = (const char *)b + head, *end = text + n;
    TRY(read_type(value_of(text, end, "descr"), end, file, &npy.type));
    TRY(read_shape(value_of(text, end, "shape"), end, file, &npy));
    const char *order = value_of(text, end, "fortran_order");
    CHECK(order && end - order >= 4, LL_E_IO, "%s: the header has no 'fortran_order'", file);
    CHECK(memcmp(order, "True", 4) != 0 || npy.n_dim < 2, LL_E_IO,
          "%s is in Fortran order: save it with numpy.ascontiguousarray", file);
    npy.offset = head + n;
    CHECK(!__builtin_mul_overflow(npy.bytes, (size_t)npy.type.bytes, &npy.bytes), LL_E_IO,
          "%s: too many elements", file);
    CHECK(npy.bytes <= size - npy.offset, LL_E_IO,
          "%s is truncated: %zu bytes after the header, expected %zu", file, size - npy.offset,
          npy.bytes);
    *out = npy;
    return LL_OK;
}

/* Offers the bytes of one .npy as an array. */
static ll_err offer(ll_dataset *d, const uint8_t *b, size_t size, const char *file,
                    const char *name)
{
    ll_npy npy;
    TRY(ll_npy_parse(b, size, file, &npy));
    ll_array a = {
        .name = name, .type = npy.type, .n_dim = npy.n_dim, .rows = {.data = b + npy.offset}};
    memcpy(a.dim, npy.dim, sizeof a.dim);
    return ll_table_offer(d, &a);
}

/* A file's name without its folder and .npy. */
static char *stem(ll_dataset *d, const char *path)
{
    char *name = ll_arena_strdup(d->arena, ll_base_name(path)), *dot = strrchr(name, '.');
    if (dot && !strcmp(dot, ".npy")) *dot = '\0';
    return name;
}

ll_err ll_read_npy(ll_dataset *d, const char *path)
{
    const char *const *files;
    int n;
    TRY(ll_data_files(d, path, "*.npy", &files, &n));
    for (int i = 0; i < n; i++) {
        ll_bytes b;
        TRY(ll_dataset_map(d, files[i], &b));
        TRY(offer(d, b.data, b.size, files[i], stem(d, files[i])));
    }
    return LL_OK;
}

ll_err ll_read_npz(ll_dataset *d, const char *path)
{
    ll_bytes b;
    ll_zip_entry e;
    size_t inflated = 0;
    TRY(ll_dataset_map(d, path, &b));
    for (size_t at = 0;;) {
        TRY(ll_zip_next(b.data, b.size, path, &at, &e));
        if (!e.data) return LL_OK;
        ll_bytes array = {.data = e.data, .size = e.size};
        char *name = ll_arena_printf(d->arena, "%.*s", (int)e.name_size, e.name);
        char *file = ll_arena_printf(d->arena, "%s: %s", path, name);
        if (e.packed) {
            uint8_t *out; /* entries may share bytes: no more than the file can hold */
            CHECK((inflated += e.raw) / 1032 <= b.size, LL_E_IO,
                  "%s claims to hold more than %zu bytes can contain", path, b.size);
            TRY(ll_zip_inflate(&e, file, &out));
            array = (ll_bytes){.data = out, .size = e.raw};
            ll_dataset_keep(d, &array);
        }
        TRY(offer(d, array.data, array.size, file, stem(d, name)));
    }
}
