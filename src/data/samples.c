/* samples.c: see samples.h. */
#include "data/samples.h"

#include "base/types.h"
#include "data/picture.h"
#include "data/table.h"

/* Rows of the field's shape in an array's dimensions, those of 1 not counted; 0: it does not fit.
 */
static int64_t rows_of(const ll_field *f, const int64_t *dim, int n)
{
    int64_t want[LL_MAX_DIMS], have[LL_MAX_DIMS + 2];
    int w = 0, h = 0;
    for (int i = 0; i < f->shape.n; i++)
        if (f->shape.d[i] != 1) want[w++] = f->shape.d[i];
    for (int i = 0; i < n && h < LL_MAX_DIMS + 2; i++)
        if (dim[i] != 1) have[h++] = dim[i];
    if (h < w || h > w + 1) return 0;
    for (int i = 0; i < w; i++)
        if (have[h - w + i] != want[i]) return 0;
    return h > w ? have[0] : 1;
}

/* Rows of elements, dense, from data on. */
static ll_err read_rows(const ll_dataset *d, const ll_field *f, const char *path, ll_elem type,
                        const uint8_t *data, const int64_t *dim, int n_dim, ll_arena *a,
                        ll_samples *out)
{
    char want[LL_SHAPE_TEXT], have[LL_SHAPE_TEXT];
    ll_shape s = {.n = n_dim < LL_MAX_DIMS ? n_dim : LL_MAX_DIMS};
    memcpy(s.d, dim, sizeof(int64_t) * (size_t)s.n);
    int64_t n = ll_numel(&f->shape);
    out->n = rows_of(f, dim, n_dim);
    CHECK(out->n > 0, LL_E_SHAPE, "%s has %s%s, expected one or several samples of %s", path,
          ll_shape_print(&s, have), n_dim > s.n ? " and more" : "",
          ll_shape_print(&f->shape, want));
    size_t bytes = (size_t)n * ll_dtype_bytes(f->dtype);
    out->data = ll_arena_alloc(a, (size_t)out->n * bytes);
    bool image = type.kind == 'u' && type.bytes == 1 && f->dtype == LL_F32;
    if (image && d && d->info.kind == LL_IMAGES) {
        for (int64_t i = 0; i < out->n * n; i++)
            ((float *)out->data)[i] = d->scale[i % d->info.channels][data[i]];
        return LL_OK;
    }
    ll_data_part part = {
        .file = path, .n = out->n, .data = data, .stride = (size_t)(n * type.bytes)};
    ll_column c = {.name = f->name, .field = f->name, .type = type, .shape = f->shape};
    if (image) c.factor = 1 / 255.0; /* as where it is trained (table.c) */
    c.parts = &part, c.n_part = 1;
    for (int64_t i = 0; i < out->n; i++)
        TRY(ll_column_read(&c, i, f, (char *)out->data + (size_t)i * bytes));
    return LL_OK;
}

static ll_err read_picture(const ll_dataset *d, const ll_field *f, const char *path, ll_arena *a,
                           ll_samples *out)
{
    CHECK(d && d->info.kind == LL_IMAGES, LL_E_ARG,
          "%s: a picture needs a model whose data are pictures", path);
    CHECK(f->dtype == LL_F32 &&
              ll_numel(&f->shape) == d->info.height * d->info.width * d->info.channels,
          LL_E_SHAPE, "%s is a picture, but input %s is not", path, f->name);
    *out = (ll_samples){1, ll_arena_alloc(a, (size_t)ll_numel(&f->shape) * sizeof(float)), 0};
    return ll_dataset_picture(d, path, (float *)out->data);
}

/* The text's last tokens. */
static ll_err read_text(const ll_dataset *d, const ll_tokenizer *t, const ll_field *f,
                        const char *path, const ll_bytes *b, ll_arena *a, ll_samples *out)
{
    LL_OWN_MEMORY int32_t *tokens = NULL;
    int64_t seq = ll_numel(&f->shape), size = (int64_t)b->size;
    CHECK(t || d->info.is_text, LL_E_ARG,
          "%s: the tokens of data %s are not bytes of text: set data.tokenizer, or give them as a "
          ".npy",
          path, d->info.name);
    CHECK(f->dtype == LL_I32, LL_E_SHAPE, "%s is text, but input %s is not tokens", path, f->name);
    if (t) TRY(ll_tokenizer_encode(t, (const char *)b->data, b->size, false, &tokens, &size));
    CHECK(size > 0, LL_E_IO, "%s is empty", path);
    int32_t *x = LL_NEW_ARRAY(a, int32_t, seq);
    *out = (ll_samples){1, x, size < seq ? size : seq};
    for (int64_t i = 0; i < out->used; i++)
        x[i] = t ? tokens[size - out->used + i] : b->data[size - out->used + i];
    return LL_OK;
}

ll_err ll_samples_read(const ll_dataset *d, const ll_tokenizer *t, const ll_field *f,
                       const char *path, ll_arena *a, ll_samples *out)
{
    LL_OWN_BYTES b = {0};
    *out = (ll_samples){0};
    if (ll_picture_named(path)) return read_picture(d, f, path, a, out);
    TRY(ll_bytes_map(path, &b));
    bool tables = d && d->info.n_column && b.size && b.data[0] && b.data[0] != 0x93;
    if (tables || ll_ends_with(path, ".csv")) return ll_csv_samples(d, f, path, a, out);
    if (b.size > 6 && !memcmp(b.data, "\x93NUMPY", 6)) {
        ll_npy npy;
        TRY(ll_npy_parse(b.data, b.size, path, &npy));
        return read_rows(d, f, path, npy.type, b.data + npy.offset, npy.dim, npy.n_dim, a, out);
    }
    if (t || (d && d->info.kind == LL_TOKENS)) return read_text(d, t, f, path, &b, a, out);
    CHECK(b.size > 4 && !b.data[0] && !b.data[1], LL_E_IO,
          "%s is neither a picture (.jpg, .jpeg, .png) nor a .npy, .csv or IDX file", path);
    ll_idx idx;
    TRY(ll_idx_parse(b.data, b.size, path, &idx));
    return read_rows(d, f, path, (ll_elem){'u', 1, false}, b.data + idx.offset, idx.dim, idx.n_dim,
                     a, out);
}
