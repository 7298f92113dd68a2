/* netcdf.c: the header of classic NetCDF files (CDF-1, CDF-2, CDF-5), all numbers big-endian:
 *
 *     "CDF" version | records | dimensions | attributes | variables
 *
 * A list is a tag (10 dimensions, 11 variables, 12 attributes), a count and its items. A
 * variable has a name, the numbers of its dimensions, attributes, a type, a size and where it
 * begins. The one dimension of length 0 counts records: what has it first lies a record apart,
 * all such variables beside each other in each record. CDF-2 has offsets of 64 bits, CDF-5
 * counts too. */
#include "data/parse.h"

#include "base/num.h"

#include <string.h>

typedef struct cursor {
    const uint8_t *b;
    size_t size, at;
    const char *file;
    int count_bytes, offset_bytes;
} cursor;

static ll_err number(cursor *c, int bytes, uint64_t *out)
{
    CHECK(c->size - c->at >= (size_t)bytes, LL_E_IO, "%s: the header is truncated at byte %zu",
          c->file, c->at);
    *out = ll_be(c->b + c->at, bytes);
    c->at += (size_t)bytes;
    return LL_OK;
}

static ll_err skip(cursor *c, uint64_t bytes)
{
    uint64_t whole = (bytes + 3) / 4 * 4;
    CHECK(bytes <= c->size && whole <= c->size - c->at, LL_E_IO,
          "%s: the header is truncated at byte %zu", c->file, c->at);
    c->at += (size_t)whole;
    return LL_OK;
}

static ll_err name(cursor *c, const char **text, size_t *n)
{
    uint64_t length;
    TRY(number(c, c->count_bytes, &length));
    *text = (const char *)c->b + c->at;
    *n = (size_t)length;
    return skip(c, length);
}

/* The count of a list with this tag; an absent one has tag and count 0. */
static ll_err list(cursor *c, uint64_t tag, uint64_t *n)
{
    uint64_t have;
    TRY(number(c, 4, &have));
    TRY(number(c, c->count_bytes, n));
    /* An item has at least 8 bytes: more of them cannot be there. */
    CHECK((have == tag || (have == 0 && *n == 0)) && *n <= (c->size - c->at) / 8, LL_E_IO,
          "%s: a list of %lu items with tag %lu at byte %zu, expected tag %lu", c->file, *n, have,
          c->at, tag);
    return LL_OK;
}

/* Types 1 to 11: byte, char, short, int, float, double, ubyte, ushort, uint, int64, uint64. */
static const ll_elem types[] = {{0, 0},         {'i', 1},       {0, 1},         {'i', 2, true},
                                {'i', 4, true}, {'f', 4, true}, {'f', 8, true}, {'u', 1},
                                {'u', 2, true}, {'u', 4, true}, {'i', 8, true}, {'u', 8, true}};

static ll_err type_of(cursor *c, uint64_t *t)
{
    TRY(number(c, 4, t));
    CHECK(*t >= 1 && *t <= 11, LL_E_IO, "%s: type %lu at byte %zu, expected 1 to 11", c->file, *t,
          c->at - 4);
    return LL_OK;
}

static double attribute(const uint8_t *p, uint64_t type)
{
    uint64_t bits = ll_be(p, types[type].bytes);
    uint32_t low = (uint32_t)bits;
    float f;
    double d;
    memcpy(&f, &low, sizeof f);
    memcpy(&d, &bits, sizeof d);
    return type == 5 ? (double)f : type == 6 ? d : (double)bits;
}

static ll_err attributes(cursor *c, double *factor, double *offset)
{
    uint64_t n, type, count;
    TRY(list(c, 12, &n));
    for (uint64_t i = 0; i < n; i++) {
        const char *text;
        size_t length;
        TRY(name(c, &text, &length));
        TRY(type_of(c, &type));
        TRY(number(c, c->count_bytes, &count));
        const uint8_t *value = c->b + c->at;
        CHECK(count <= c->size, LL_E_IO, "%s: an attribute of %lu values", c->file, count);
        TRY(skip(c, count * (uint64_t)types[type].bytes));
        bool is_factor = length == 12 && !memcmp(text, "scale_factor", 12);
        bool is_offset = length == 10 && !memcmp(text, "add_offset", 10);
        if (!is_factor && !is_offset) continue;
        CHECK(count == 1 && (type == 5 || type == 6), LL_E_IO,
              "%s: %.*s is not one floating point number", c->file, (int)length, text);
        *(is_factor ? factor : offset) = attribute(value, type);
    }
    return LL_OK;
}

static ll_err variable(cursor *c, const uint64_t *dims, uint64_t n_dims, ll_cdf_variable *v)
{
    uint64_t n, type, size, begin;
    double factor = 1, offset = 0;
    *v = (ll_cdf_variable){0};
    TRY(name(c, &v->name, &v->name_size));
    TRY(number(c, c->count_bytes, &n));
    CHECK(n <= c->size, LL_E_IO, "%s: a variable of %lu dimensions", c->file, n);
    size_t bytes = 1;
    v->n_dim = (int)(n < 100 ? n : 100);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t d;
        TRY(number(c, c->count_bytes, &d));
        CHECK(d < n_dims && (dims[d] || i == 0), LL_E_IO,
              "%s: a variable has dimension %lu, or records other than first", c->file, d);
        if (i == 0) v->record = dims[d] == 0;
        if (i < LL_MAX_DIMS) v->dim[i] = (int64_t)dims[d];
        CHECK(dims[d] == 0 || !__builtin_mul_overflow(bytes, (size_t)dims[d], &bytes), LL_E_IO,
              "%s: a variable has too many elements", c->file);
    }
    TRY(attributes(c, &factor, &offset));
    TRY(type_of(c, &type));
    TRY(number(c, c->count_bytes, &size)); /* says nothing that the shape does not */
    TRY(number(c, c->offset_bytes, &begin));
    v->type = types[type];
    CHECK(!__builtin_mul_overflow(bytes, (size_t)v->type.bytes, &bytes), LL_E_IO,
          "%s: a variable has too many bytes", c->file);
    v->begin = (size_t)begin, v->bytes = bytes;
    v->factor = factor == 1 && offset == 0 ? 0 : factor;
    v->offset = offset;
    return LL_OK;
}

static ll_err dimensions(cursor *c, uint64_t dims[LL_CDF_DIMS], uint64_t *n)
{
    TRY(list(c, 10, n));
    CHECK(*n <= LL_CDF_DIMS, LL_E_IO, "%s has %lu dimensions, expected at most %d", c->file, *n,
          LL_CDF_DIMS);
    for (uint64_t i = 0; i < *n; i++) {
        const char *text;
        size_t length;
        TRY(name(c, &text, &length));
        TRY(number(c, c->count_bytes, &dims[i]));
        CHECK(dims[i] <= INT64_MAX, LL_E_IO, "%s: a dimension is too large", c->file);
    }
    return LL_OK;
}

/* Where records lie: variables of records beside each other, each rounded up to 4 bytes, but for
 * one alone. */
static ll_err place(ll_cdf *out, uint64_t records, size_t size, const char *file)
{
    size_t record = 0;
    int n = 0;
    for (int i = 0; i < out->n; i++) n += out->v[i].record;
    for (int i = 0; i < out->n; i++) {
        size_t bytes = n > 1 ? (out->v[i].bytes + 3) / 4 * 4 : out->v[i].bytes;
        if (out->v[i].record)
            CHECK(!__builtin_add_overflow(record, bytes, &record), LL_E_IO,
                  "%s: records have too many bytes", file);
    }
    for (int i = 0; i < out->n; i++) {
        ll_cdf_variable *v = &out->v[i];
        size_t last = 0, end;
        if (v->record) {
            v->dim[0] = (int64_t)records;
            v->stride = record;
            CHECK(!__builtin_mul_overflow(record, (size_t)(records ? records - 1 : 0), &last),
                  LL_E_IO, "%s: %lu records are too many", file, records);
        }
        CHECK((v->record && records == 0) ||
                  (!__builtin_add_overflow(v->begin, v->bytes, &end) &&
                   !__builtin_add_overflow(end, last, &end) && end <= size),
              LL_E_IO, "%s: variable %.*s extends beyond the file's %zu bytes: is it truncated?",
              file, (int)(v->name_size < 80 ? v->name_size : 80), v->name, size);
    }
    return LL_OK;
}

ll_err ll_cdf_parse(const uint8_t *b, size_t size, const char *file, ll_cdf *out)
{
    uint64_t dims[LL_CDF_DIMS], records, n_dims, n;
    double none[2];
    out->n = 0;
    CHECK(size >= 8 && memcmp(b, "CDF", 3) == 0 && (b[3] == 1 || b[3] == 2 || b[3] == 5), LL_E_IO,
          "%s is not a NetCDF file (CDF-1, CDF-2 or CDF-5)", file);
    cursor c = {b, size, 4, file, b[3] == 5 ? 8 : 4, b[3] == 1 ? 4 : 8};
    TRY(number(&c, c.count_bytes, &records));
    CHECK(records <= size, LL_E_IO,
          "%s: the number of records is unknown: is it still being written?", file);
    TRY(dimensions(&c, dims, &n_dims));
    TRY(attributes(&c, &none[0], &none[1]));
    TRY(list(&c, 11, &n));
    CHECK(n <= LL_CDF_VARIABLES, LL_E_IO, "%s has %lu variables, expected at most %d", file, n,
          LL_CDF_VARIABLES);
    for (uint64_t i = 0; i < n; i++) TRY(variable(&c, dims, n_dims, &out->v[i]));
    out->n = (int)n;
    ll_err rc = place(out, records, size, file);
    if (rc != LL_OK) out->n = 0;
    return rc;
}
