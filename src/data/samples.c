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

/* What lies dense in a file. */
typedef struct rows {
    ll_elem type;
    const uint8_t *data;
    const int64_t *dim;
    int n_dim;
} rows;

/* How many tokens each row has, where these are fewer than a sample's; else 0. */
static int64_t shorter(const ll_samples_how *how, const ll_field *f, const rows *r)
{
    if (!how->prefixes || f->dtype != LL_I32 || f->shape.n != 1) return 0;
    if (r->n_dim < 1 || r->n_dim > 2 || r->dim[0] < 1) return 0;
    int64_t n = r->dim[r->n_dim - 1];
    return n < f->shape.d[0] ? n : 0;
}

/* Tokens [n] or [samples,n], with pad behind each row. */
static ll_err read_prefixes(const ll_samples_how *how, const ll_field *f, const char *path,
                            const rows *r, ll_arena *a, ll_samples *out)
{
    int64_t seq = f->shape.d[0], n = out->used = r->dim[r->n_dim - 1];
    const ll_field prefix = {f->name, LL_I32, LL_SHAPE(n)};
    out->n = r->n_dim == 2 ? r->dim[0] : 1;
    int32_t *x = LL_NEW_ARRAY(a, int32_t, out->n * seq + 1);
    ll_data_part part = {
        .file = path, .n = out->n, .data = r->data, .stride = (size_t)(n * r->type.bytes)};
    ll_column c = {
        .name = f->name, .field = f->name, .type = r->type, .shape = prefix.shape, .parts = &part};
    c.n_part = 1;
    for (int64_t i = 0; i < out->n; i++) {
        TRY(ll_column_read(&c, i, &prefix, x + i * seq));
        for (int64_t k = n; k < seq; k++) x[i * seq + k] = how->pad;
    }
    out->data = x;
    return LL_OK;
}

static ll_err read_rows(const ll_samples_how *how, const ll_field *f, const char *path,
                        const rows *r, ll_arena *a, ll_samples *out)
{
    const ll_dataset *d = how->set;
    if (shorter(how, f, r)) return read_prefixes(how, f, path, r, a, out);
    char want[LL_SHAPE_TEXT], have[LL_SHAPE_TEXT];
    ll_shape s = {.n = r->n_dim < LL_MAX_DIMS ? r->n_dim : LL_MAX_DIMS};
    memcpy(s.d, r->dim, sizeof(int64_t) * (size_t)s.n);
    int64_t n = ll_numel(&f->shape);
    out->n = rows_of(f, r->dim, r->n_dim);
    CHECK(out->n > 0, LL_E_SHAPE, "%s has %s%s, expected one or several samples of %s%s", path,
          ll_shape_print(&s, have), r->n_dim > s.n ? " and more" : "",
          ll_shape_print(&f->shape, want), how->prefixes ? " tokens, or fewer" : "");
    size_t bytes = (size_t)n * ll_dtype_bytes(f->dtype);
    out->data = ll_arena_alloc(a, (size_t)out->n * bytes);
    bool image = r->type.kind == 'u' && r->type.bytes == 1 && f->dtype == LL_F32;
    if (image && d && d->info.kind == LL_IMAGES) {
        for (int64_t i = 0; i < out->n * n; i++)
            ((float *)out->data)[i] = d->scale[i % d->info.channels][r->data[i]];
        return LL_OK;
    }
    ll_data_part part = {
        .file = path, .n = out->n, .data = r->data, .stride = (size_t)(n * r->type.bytes)};
    ll_column c = {.name = f->name, .field = f->name, .type = r->type, .shape = f->shape};
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
static ll_err read_text(const ll_samples_how *how, const ll_field *f, const char *path,
                        const ll_bytes *b, ll_arena *a, ll_samples *out)
{
    const ll_dataset *d = how->set;
    const ll_tokenizer *t = how->tokenizer;
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
    for (int64_t i = out->used; i < seq; i++) x[i] = how->pad;
    return LL_OK;
}

ll_err ll_samples_read(const ll_samples_how *how, const ll_field *f, const char *path, ll_arena *a,
                       ll_samples *out)
{
    const ll_dataset *d = how->set;
    LL_OWN_BYTES b = {0};
    *out = (ll_samples){0};
    if (ll_picture_named(path)) return read_picture(d, f, path, a, out);
    TRY(ll_bytes_map(path, &b));
    bool tables = d && d->info.n_column && b.size && b.data[0] && b.data[0] != 0x93;
    if (tables || ll_ends_with(path, ".csv")) return ll_csv_samples(d, f, path, a, out);
    if (b.size > 6 && !memcmp(b.data, "\x93NUMPY", 6)) {
        ll_npy npy;
        TRY(ll_npy_parse(b.data, b.size, path, &npy));
        rows r = {npy.type, b.data + npy.offset, npy.dim, npy.n_dim};
        return read_rows(how, f, path, &r, a, out);
    }
    if (how->tokenizer || (d && d->info.kind == LL_TOKENS))
        return read_text(how, f, path, &b, a, out);
    CHECK(b.size > 4 && !b.data[0] && !b.data[1], LL_E_IO,
          "%s is neither a picture (.jpg, .jpeg, .png) nor a .npy, .csv or IDX file", path);
    ll_idx idx;
    TRY(ll_idx_parse(b.data, b.size, path, &idx));
    rows r = {{'u', 1, false}, b.data + idx.offset, idx.dim, idx.n_dim};
    return read_rows(how, f, path, &r, a, out);
}
