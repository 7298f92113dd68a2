/* hdf5.c: HDF5 and NetCDF-4 by libhdf5, which is opened when it is first needed: nothing is
 * linked with it and no header wanted, for its few calls here have been the same since 1.10.
 * Elements come as they lie in the file, and are converted as those of all other formats
 * (table.h), so that none of the library's types need be known. An array in one piece is mapped,
 * past the library; one in chunks is read by row, one thread at a time, since the library seldom
 * is built for more. NetCDF's older files (netcdf.c) come here too, and are told by their first
 * bytes. */
#include "data/table.h"

#include <dlfcn.h>
#include <pthread.h>

typedef int64_t id; /* hid_t */
#define CALLS(_)                                                                                   \
    _(int, H5open, (void))                                                                         \
    _(int, H5get_libversion, (unsigned *, unsigned *, unsigned *))                                 \
    _(int, H5Eset_auto2, (id, void *, void *))                                                     \
    _(id, H5Fopen, (const char *, unsigned, id))                                                   \
    _(int, H5Fclose, (id))                                                                         \
    _(ssize_t, H5Lget_name_by_idx, (id, const char *, int, int, uint64_t, char *, size_t, id))     \
    _(id, H5Dopen2, (id, const char *, id))                                                        \
    _(int, H5Dclose, (id))                                                                         \
    _(id, H5Dget_type, (id))                                                                       \
    _(id, H5Dget_space, (id))                                                                      \
    _(uint64_t, H5Dget_offset, (id))                                                               \
    _(int, H5Dread, (id, id, id, id, id, void *))                                                  \
    _(int, H5Tclose, (id))                                                                         \
    _(int, H5Tget_class, (id))                                                                     \
    _(size_t, H5Tget_size, (id))                                                                   \
    _(int, H5Tget_order, (id))                                                                     \
    _(int, H5Tget_sign, (id))                                                                      \
    _(int, H5Sclose, (id))                                                                         \
    _(int, H5Sget_simple_extent_ndims, (id))                                                       \
    _(int, H5Sget_simple_extent_dims, (id, uint64_t *, uint64_t *))                                \
    _(id, H5Screate_simple, (int, const uint64_t *, const uint64_t *))                             \
    _(int, H5Sselect_hyperslab,                                                                    \
      (id, int, const uint64_t *, const uint64_t *, const uint64_t *, const uint64_t *))           \
    _(int, H5Aexists, (id, const char *))                                                          \
    _(id, H5Aopen, (id, const char *, id))                                                         \
    _(id, H5Aget_type, (id))                                                                       \
    _(id, H5Aget_space, (id))                                                                      \
    _(int, H5Aread, (id, id, void *))                                                              \
    _(int, H5Aclose, (id))
#define FIELD(result, name, args) result(*name) args;
#define NAME(result, name, args) #name,
static struct {
    CALLS(FIELD)
} h5;
static const char *const names[] = {CALLS(NAME)};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { CLASS_INTEGER = 0, CLASS_FLOAT = 1, ORDER_LE = 0, ORDER_BE = 1, SELECT_SET = 0 };
#define MAX_DIMS 32 /* the format's own limit */

static ll_err load_library(const char *file)
{
    static const char *const files[] = {
        "libhdf5_serial.so", "libhdf5.so",     "libhdf5_serial.so.103",
        "libhdf5.so.103",    "libhdf5.so.200", "libhdf5_serial.so.310",
        "libhdf5.so.310",    "libhdf5.so.320", NULL};
    if (h5.H5open) return LL_OK;
    void *lib = NULL;
    for (int i = 0; !lib && files[i]; i++) lib = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    CHECK(lib, LL_E_IO,
          "%s needs the HDF5 library, which is not installed: install libhdf5-dev (hdf5)", file);
    void **calls = (void **)&h5;
    for (size_t i = sizeof names / sizeof *names;
         i-- > 0;) /* the first one, which is asked, last */
        CHECK((calls[i] = dlsym(lib, names[i])), LL_E_IO,
              "%s: the HDF5 library has no %s: install 1.10 or later", file, names[i]);
    unsigned major = 0, minor = 0, release = 0;
    h5.H5get_libversion(&major, &minor, &release);
    bool right = major > 1 || (major == 1 && minor >= 10);
    if (!right) h5.H5open = NULL;
    CHECK(right, LL_E_IO, "%s: the HDF5 library is %u.%u, expected 1.10 or later", file, major,
          minor);
    h5.H5open();
    h5.H5Eset_auto2(0, NULL, NULL); /* it prints nothing: what fails is said here */
    return LL_OK;
}

/* An array that is read by row; open, it keeps its file open too. */
typedef struct rows {
    const char *file, *name;
    id array, type;
    int n_dim;
    uint64_t dim[MAX_DIMS];
} rows;

static ll_err select_row(const rows *r, id space, int64_t row, uint8_t *out)
{
    uint64_t start[MAX_DIMS] = {(uint64_t)row}, count[MAX_DIMS];
    memcpy(count, r->dim, sizeof count);
    count[0] = 1;
    id memory = h5.H5Screate_simple(r->n_dim, count, NULL);
    bool good = memory >= 0 &&
                h5.H5Sselect_hyperslab(space, SELECT_SET, start, NULL, count, NULL) >= 0 &&
                h5.H5Dread(r->array, r->type, memory, space, 0, out) >= 0;
    if (memory >= 0) h5.H5Sclose(memory);
    CHECK(good, LL_E_IO,
          "%s: row %ld of %s cannot be read: the file is damaged, or compressed by a filter that "
          "this HDF5 library does not have",
          r->file, row, r->name);
    return LL_OK;
}

static ll_err read_row(const void *user, int64_t row, uint8_t *out)
{
    const rows *r = user;
    pthread_mutex_lock(&lock);
    id space = h5.H5Dget_space(r->array);
    ll_err rc = select_row(r, space, row, out);
    if (space >= 0) h5.H5Sclose(space);
    pthread_mutex_unlock(&lock);
    return rc;
}

static void close_rows(void *user)
{
    rows *r = user;
    pthread_mutex_lock(&lock);
    h5.H5Tclose(r->type);
    h5.H5Dclose(r->array);
    pthread_mutex_unlock(&lock);
}

static ll_elem type_of(id type)
{
    int class = h5.H5Tget_class(type), order = h5.H5Tget_order(type);
    int bytes = (int)h5.H5Tget_size(type);
    bool sized = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    if (!sized || (order != ORDER_LE && order != ORDER_BE)) return (ll_elem){0};
    if (class == CLASS_FLOAT && bytes > 1) return (ll_elem){'f', bytes, order == ORDER_BE};
    if (class != CLASS_INTEGER) return (ll_elem){0};
    return (ll_elem){h5.H5Tget_sign(type) ? 'i' : 'u', bytes, order == ORDER_BE && bytes > 1};
}

/* One number of floating point, as scale_factor and add_offset are. */
static ll_err attribute(id array, const char *file, const char *name, double *out)
{
    if (h5.H5Aexists(array, name) <= 0) return LL_OK;
    id a = h5.H5Aopen(array, name, 0), type = a < 0 ? -1 : h5.H5Aget_type(a);
    id space = a < 0 ? -1 : h5.H5Aget_space(a);
    ll_elem e = type < 0 ? (ll_elem){0} : type_of(type);
    uint64_t dim[MAX_DIMS] = {1};
    int n = space < 0 ? -1 : h5.H5Sget_simple_extent_dims(space, dim, NULL);
    double d = 0;
    float f = 0;
    bool good = e.kind == 'f' && !e.swap && e.bytes >= 4 && (n == 0 || (n == 1 && dim[0] == 1)) &&
                h5.H5Aread(a, type, e.bytes == 8 ? (void *)&d : (void *)&f) >= 0;
    if (space >= 0) h5.H5Sclose(space);
    if (type >= 0) h5.H5Tclose(type);
    if (a >= 0) h5.H5Aclose(a);
    CHECK(good, LL_E_IO, "%s: attribute %s is not one floating-point number", file, name);
    *out = e.bytes == 8 ? d : (double)f;
    return LL_OK;
}

static ll_err offer(ll_dataset *d, const ll_bytes *b, rows *r)
{
    id space = h5.H5Dget_space(r->array);
    int n = space < 0 ? -1 : h5.H5Sget_simple_extent_ndims(space);
    if (n >= 0 && n <= MAX_DIMS) h5.H5Sget_simple_extent_dims(space, r->dim, NULL);
    if (space >= 0) h5.H5Sclose(space);
    r->n_dim = n;
    ll_array a = {.name = r->name, .type = type_of(r->type), .n_dim = n < 0 ? 0 : n};
    double factor = 1;
    TRY(attribute(r->array, r->file, "scale_factor", &factor));
    TRY(attribute(r->array, r->file, "add_offset", &a.offset));
    if (factor != 1 || a.offset != 0) a.factor = factor;
    uint64_t bytes = (uint64_t)a.type.bytes, at = h5.H5Dget_offset(r->array);
    bool counted = true;
    for (int i = 0; i < a.n_dim; i++)
        counted =
            counted && r->dim[i] <= INT64_MAX && !__builtin_mul_overflow(bytes, r->dim[i], &bytes);
    CHECK(counted, LL_E_IO, "%s: array %s has too many elements", r->file, r->name);
    for (int i = 0; i < a.n_dim && i < LL_MAX_DIMS; i++) a.dim[i] = (int64_t)r->dim[i];
    bool mapped = at != UINT64_MAX && at <= b->size && bytes <= b->size - at;
    if (mapped)
        a.rows.data = b->data + at;
    else
        a.rows.row = read_row, a.rows.user = r;
    return ll_table_offer(d, &a);
}

static ll_err offer_named(ll_dataset *d, const ll_bytes *b, id file, const char *name,
                          const char *path)
{
    id array = h5.H5Dopen2(file, name, 0);
    if (array < 0) return LL_OK; /* a group, or a name of data.fields that is not there */
    rows *r = LL_NEW(d->arena, rows);
    *r = (rows){.file = ll_arena_strdup(d->arena, path),
                .name = ll_arena_strdup(d->arena, name),
                .array = array,
                .type = h5.H5Dget_type(array)};
    ll_dataset_hold(d, close_rows, r);
    return offer(d, b, r);
}

/* Arrays at the file's root; those of groups by their whole names, where data.fields has these. */
static ll_err offer_all(ll_dataset *d, const ll_bytes *b, id file, const char *path)
{
    char name[256];
    for (uint64_t i = 0; h5.H5Lget_name_by_idx(file, ".", 0, 0, i, name, sizeof name, 0) >= 0; i++)
        TRY(offer_named(d, b, file, name, path));
    for (const char *at = d->opts->fields, *field, *array;
         ll_fields_next(&at, d->arena, &field, &array);)
        if (strchr(array, '/')) TRY(offer_named(d, b, file, array, path));
    return LL_OK;
}

/* The variables of a classic NetCDF file. */
static ll_err offer_cdf(ll_dataset *d, const uint8_t *bytes, size_t size, const char *path)
{
    ll_cdf *cdf = LL_NEW(d->arena, ll_cdf);
    TRY(ll_cdf_parse(bytes, size, path, cdf));
    for (int i = 0; i < cdf->n; i++) {
        const ll_cdf_variable *v = &cdf->v[i];
        ll_array a = {.name = ll_arena_printf(d->arena, "%.*s", (int)v->name_size, v->name),
                      .type = v->type,
                      .n_dim = v->n_dim,
                      .factor = v->factor,
                      .offset = v->offset,
                      .rows = {.data = bytes + v->begin, .stride = v->stride}};
        memcpy(a.dim, v->dim, sizeof a.dim);
        TRY(ll_table_offer(d, &a));
    }
    return LL_OK;
}

ll_err ll_read_hdf5(ll_dataset *d, const char *path)
{
    ll_bytes b;
    TRY(ll_dataset_map(d, path, &b));
    if (b.size > 3 && !memcmp(b.data, "CDF", 3)) return offer_cdf(d, b.data, b.size, path);
    pthread_mutex_lock(&lock);
    ll_err rc = load_library(path);
    if (rc == LL_OK) {
        id file = h5.H5Fopen(path, 0, 0);
        rc = file < 0 ? RAISE(LL_E_IO, "%s cannot be opened as HDF5: is it truncated?", path)
                      : offer_all(d, &b, file, path);
        if (file >= 0) h5.H5Fclose(file); /* arrays that are open keep it */
    }
    pthread_mutex_unlock(&lock);
    return rc;
}
