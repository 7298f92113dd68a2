/* sample.c: which sample stands at a position, and its numbers as a model wants them. */
#include "base/mapped.h"
#include "base/rng.h"
#include "base/types.h"
#include "data/picture.h"
#include "data/fetch.h"
#include "data/table.h"

#include <math.h>

#include <string.h>

/* The i-th place a window can begin at, or the i-th of the consecutive windows, as a token of the
 * split. */
static int64_t window_start(const ll_segments *list, int64_t seq, bool anywhere, int64_t i)
{
    int64_t before = 0;
    for (int s = 0; s < list->count; before += list->item[s++].n) {
        int64_t n = list->item[s].n;
        if (n <= seq) continue;
        int64_t here = anywhere ? n - seq : (n - 1) / seq;
        if (i < here) return before + (anywhere ? i : i * seq);
        i -= here;
    }
    LL_ASSERT(!"a window within the split");
    return 0;
}

int64_t ll_sample_index(const ll_dataset *d, const ll_sampling *how, int64_t position)
{
    LL_ASSERT(position >= 0);
    const ll_segments *list = &d->split[how->split];
    int64_t n = d->info.n[how->split];
    bool train = how->split == LL_TRAIN;
    if (d->info.kind == LL_TOKENS) {
        int64_t i = position % n;
        if (train)
            i = (int64_t)ll_below_at(how->seed, ll_stream("window", 0), (uint64_t)position,
                                     (uint64_t)list->starts);
        return window_start(list, d->info.source + d->info.seq, train, i);
    }
    if (!train) return position % n;
    return (int64_t)ll_permute(how->seed, ll_stream("shuffle", (uint64_t)(position / n)),
                               (uint64_t)(position % n), (uint64_t)n);
}

char *ll_sample_name(const ll_dataset *d, ll_split split, int64_t index, const char *field,
                     ll_arena *a)
{
    const ll_column *c = d->table ? ll_table_find(d->table, field) : NULL;
    const char *where = *d->info.where ? d->info.where : d->info.name, *kind = "";
    if (c) {
        index = ll_table_row(d->table, split, index);
        where = ll_column_part(c, &index)->file;
    } else
        kind = split == LL_TRAIN ? "training " : "validation ";
    const char *what = d->info.kind == LL_TOKENS ? "window at token" : "sample";
    return ll_arena_printf(a, "%s of %s%s %ld of %s", field, kind, what, index, where);
}

/* The segment that holds sample *i of the split, *i becoming its number there; NULL: none. */
static const ll_segment *locate(const ll_segments *list, int64_t *i)
{
    for (int s = 0; s < list->count; s++) {
        if (*i < list->item[s].n) return &list->item[s];
        *i -= list->item[s].n;
    }
    return NULL;
}

/* An image found: rows of it are fetched one by one, whatever the layout. */
typedef struct picture {
    const uint8_t *pixels; /* NULL: synthetic */
    ll_synthetic synthetic;
    int32_t label;
} picture;

static picture find_picture(const ll_dataset *d, ll_split split, int64_t index)
{
    picture p = {0};
    if (d->synthetic) {
        p.synthetic = ll_synthetic_find(d, split, index);
        p.label = p.synthetic.label;
        return p;
    }
    const ll_segment *s = locate(&d->split[split], &index);
    p.pixels = s->pixels + (size_t)index * s->pixel_stride;
    p.label = s->labels[(size_t)index * s->label_stride];
    return p;
}

/* Row y as bytes [w,c]: in place, or made in buffer. */
static const uint8_t *row_of(const ll_dataset *d, const picture *p, int64_t y,
                             uint8_t buffer[LL_MAX_WIDTH * LL_MAX_CHANNELS])
{
    const int64_t width = d->raw_width, channels = d->raw_channels;
    if (!p->pixels) {
        ll_synthetic_row(d, &p->synthetic, y, buffer);
        return buffer;
    }
    if (!d->planar) return p->pixels + y * width * channels;
    for (int64_t c = 0; c < channels; c++) {
        const uint8_t *from = p->pixels + (c * d->raw_height + y) * width;
        for (int64_t x = 0; x < width; x++) buffer[x * channels + c] = from[x];
    }
    return buffer;
}

static ll_picture_view view_of(const ll_dataset *d, const ll_sampling *how, int64_t position)
{
    return (ll_picture_view){.how = how,
                             .position = position,
                             .height = d->info.height,
                             .width = d->info.width,
                             .channels = (int)d->info.channels,
                             .centre = d->centre};
}

static bool as_kept(const ll_dataset *d, const ll_sampling *how)
{
    const ll_data_info *f = &d->info;
    bool changed = how->split == LL_TRAIN && (how->scale[1] > 0 || how->jitter > 0);
    return !changed && d->raw_height == f->height && d->raw_width == f->width &&
           d->raw_channels == f->channels;
}

/* A kept image, brought to the view's size. */
static ll_err fit_kept(const ll_dataset *d, const picture *p, const ll_picture_view *v,
                       uint8_t *out)
{
    uint8_t buffer[LL_MAX_WIDTH * LL_MAX_CHANNELS];
    const size_t row = (size_t)(d->raw_width * d->raw_channels);
    LL_OWN_PICTURE whole = {.pixels = malloc((size_t)d->raw_height * row),
                            .height = d->raw_height,
                            .width = d->raw_width,
                            .channels = (int)d->raw_channels,
                            .window = ll_picture_view_crop(v, d->raw_height, d->raw_width)};
    CHECK(whole.pixels, LL_E_MEM, "%s: not enough memory for an image", d->info.name);
    for (int64_t y = 0; y < d->raw_height; y++)
        memcpy(whole.pixels + (size_t)y * row, row_of(d, p, y, buffer), row);
    return ll_picture_view_fit(v, &whole, d->info.name, out);
}

/* A picture, brought to the view's size; a map has one channel. */
static ll_err fit_path(ll_fetcher *s, const char *file, const ll_picture_view *v, uint8_t *out)
{
    LL_OWN_PICTURE p = {0};
    LL_OWN_BYTES b = {0};
    TRY(s ? ll_fetcher_take(s, file, &b) : ll_bytes_map(file, &b));
    TRY(ll_picture_parse(b.data, b.size, file, v, &p));
    if (!v->map) return ll_picture_view_fit(v, &p, file, out);
    ll_picture_view_map(v, &p, out);
    return LL_OK;
}

/* Likewise, of a row. */
static ll_err fit_file(const ll_dataset *d, const ll_column *c, int64_t row,
                       const ll_picture_view *v, uint8_t *out)
{
    const char *file = ll_column_part(c, &row)->paths[row];
    return fit_path(d->fetcher, file, v, out);
}

ll_err ll_dataset_image(const ll_dataset *d, ll_split split, int64_t index, uint8_t *pixels,
                        int32_t *label)
{
    static const ll_sampling plain = {.split = LL_VAL};
    uint8_t buffer[LL_MAX_WIDTH * LL_MAX_CHANNELS];
    CHECK(d->info.kind == LL_IMAGES, LL_E_ARG, "dataset %s has tokens, not images", d->info.name);
    CHECK(index >= 0 && index < d->info.n[split], LL_E_ARG, "image %ld of %s, expected 0 to %ld",
          index, d->info.name, d->info.n[split] - 1);
    ll_picture_view v = view_of(d, &plain, 0);
    if (d->table) {
        const ll_column *x = ll_table_find(d->table, "x"), *y = ll_table_find(d->table, "y");
        int64_t row = ll_table_row(d->table, split, index);
        const ll_field f = {"y", LL_I32, LL_SCALAR};
        *label = 0;
        if (y && ll_numel(&y->shape) == 1) TRY(ll_column_read(y, row, &f, label));
        return fit_file(d, x, row, &v, pixels);
    }
    picture p = find_picture(d, split, index);
    *label = p.label;
    if (!as_kept(d, &plain)) return fit_kept(d, &p, &v, pixels);
    size_t row = (size_t)(d->info.width * d->info.channels);
    for (int64_t y = 0; y < d->info.height; y++)
        memcpy(pixels + (size_t)y * row, row_of(d, &p, y, buffer), row);
    return ll_mapped_check();
}

static int32_t token(const uint8_t *p, int bytes, int64_t i)
{
    uint32_t t;
    if (bytes == 1) return p[i];
    if (bytes == 2) return p[2 * i] | p[2 * i + 1] << 8;
    memcpy(&t, p + 4 * i, 4);
    return (int32_t)t;
}

/* The least vocabulary that all of the data fits; text that is bytes may have any of them. */
static int64_t least_vocab(const ll_dataset *d)
{
    int64_t most = 0;
    if (d->info.is_text) return 256;
    for (int s = 0; s < 2; s++)
        LL_EACH (const ll_segment, x, d->split[s].item, d->split[s].count)
            for (int64_t i = 0; i < x->n; i++) {
                int64_t t = token(x->tokens, x->token_bytes, i);
                if (t > most) most = t;
            }
    return most + 1;
}

ll_err ll_dataset_tokens(const ll_dataset *d, ll_split split, int64_t from, int64_t count,
                         int32_t *out)
{
    const ll_data_info *f = &d->info;
    int64_t at = from;
    CHECK(f->kind == LL_TOKENS, LL_E_ARG, "dataset %s has images, not tokens", f->name);
    const ll_segment *s = from < 0 ? NULL : locate(&d->split[split], &at);
    CHECK(s && count >= 0 && count <= s->n - at, LL_E_ARG,
          "%ld tokens of %s from %ld on, of %ld; expected within one file", count, f->name, from,
          f->tokens[split]);
    if (d->synthetic) {
        ll_synthetic_tokens(d, split, at, count, out);
        return LL_OK;
    }
    const uint8_t *p = s->tokens + at * s->token_bytes;
    for (int64_t i = 0; i < count; i++) {
        int32_t t = token(p, s->token_bytes, i);
        size_t offset = s->token_offset + (size_t)((at + i) * s->token_bytes);
        CHECK(t >= 0, LL_E_IO, "%s: token %d at offset %zu, expected 0 or more", s->file, t,
              offset);
        CHECK(t < f->vocab, LL_E_ARG,
              "model.vocab is %ld, too small for the data's tokens: %s has token %d at offset %zu: "
              "set model.vocab=%ld",
              f->vocab, s->file, t, offset, least_vocab(d));
        out[i] = t;
    }
    return ll_mapped_check();
}

/* How one training image is moved and mirrored: a function of (seed, position) only. */
typedef struct motion {
    int64_t down, right; /* the source of pixel (y, x) is (y + down, x + right) */
    bool mirror;
} motion;

static motion motion_at(const ll_sampling *how, int64_t position)
{
    motion m = {0};
    if (how->split != LL_TRAIN || (!how->flip && how->crop == 0)) return m;
    uint32_t w[4];
    ll_philox(how->seed, ll_stream("augment", 0), (uint64_t)position, w);
    uint64_t places = 2 * (uint64_t)how->crop + 1;
    m.down = (int64_t)(w[0] * places >> 32) - how->crop;
    m.right = (int64_t)(w[1] * places >> 32) - how->crop;
    m.mirror = how->flip && (w[2] & 1);
    return m;
}

static void normalise_row(const ll_dataset *d, const uint8_t *row, motion m, float *out)
{
    const int64_t width = d->info.width, channels = d->info.channels;
    if (channels == 1 && m.right == 0 && !m.mirror) {
        for (int64_t x = 0; x < width; x++) out[x] = d->scale[0][row[x]];
        return;
    }
    for (int64_t x = 0; x < width; x++) {
        int64_t from = (m.mirror ? width - 1 - x : x) + m.right;
        bool inside = from >= 0 && from < width;
        for (int64_t c = 0; c < channels; c++)
            *out++ = d->scale[c][inside ? row[from * channels + c] : 0];
    }
}

/* Bytes [h,w,c], or, where they are NULL, a kept image's, as the model wants them. */
static void put_image(const ll_dataset *d, motion m, const uint8_t *bytes, const picture *p,
                      float *out)
{
    static const uint8_t black[LL_MAX_WIDTH * LL_MAX_CHANNELS];
    uint8_t buffer[LL_MAX_WIDTH * LL_MAX_CHANNELS];
    const int64_t height = d->info.height, row = d->info.width * d->info.channels;
    for (int64_t i = 0; i < height; i++) {
        int64_t from = i + m.down;
        const uint8_t *is = black;
        if (from >= 0 && from < height)
            is = bytes ? bytes + from * row : row_of(d, p, from, buffer);
        normalise_row(d, is, m, out + i * row);
    }
}

/* A map of classes [h,w] as i32, or as f32 of 0 to 1; class 0 where it was moved away. */
static void put_map(const ll_dataset *d, motion m, const uint8_t *bytes, const ll_field *f,
                    void *out)
{
    const int64_t height = d->info.height, width = d->info.width;
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++) {
            int64_t fy = y + m.down, fx = (m.mirror ? width - 1 - x : x) + m.right;
            bool inside = fy >= 0 && fy < height && fx >= 0 && fx < width;
            uint8_t v = inside ? bytes[fy * width + fx] : 0;
            if (f->dtype == LL_I32)
                ((int32_t *)out)[y * width + x] = v;
            else
                ((float *)out)[y * width + x] = (float)v / 255;
        }
}

ll_err ll_image_read(const ll_dataset *d, const ll_sampling *how, int64_t position,
                     void *const *out)
{
    picture p = find_picture(d, how->split, ll_sample_index(d, how, position));
    LL_OWN_MEMORY uint8_t *bytes = NULL;
    if (out[1]) *(int32_t *)out[1] = p.label;
    if (!out[0]) return LL_OK;
    if (!as_kept(d, how)) {
        ll_picture_view v = view_of(d, how, position);
        bytes = malloc((size_t)(v.height * v.width * v.channels));
        CHECK(bytes, LL_E_MEM, "%s: not enough memory for an image", d->info.name);
        TRY(fit_kept(d, &p, &v, bytes));
    }
    put_image(d, motion_at(how, position), bytes, &p, (float *)out[0]);
    return LL_OK;
}

ll_err ll_window_read(const ll_dataset *d, const ll_sampling *how, int64_t position,
                      void *const *out)
{
    int64_t seq = d->info.seq, from = ll_sample_index(d, how, position);
    int64_t source = d->info.source;
    for (int i = 0; i < 2; i++) /* the second is shifted by one */
        if (out[i])
            TRY(ll_dataset_tokens(d, how->split, from + source + i, seq, (int32_t *)out[i]));
    if (!source || !out[2]) return LL_OK;
    return ll_dataset_tokens(d, how->split, from, source, (int32_t *)out[2]);
}

ll_err ll_source_read(const ll_dataset *d, const ll_sampling *how, int64_t position,
                      void *const *out)
{
    const ll_source *s = d->source;
    int64_t index = ll_sample_index(d, how, position);
    ll_err rc = s->read(s->user, (int)how->split, index, out);
    CHECK(rc == LL_OK, rc, "%s: sample %ld %s could not be read", s->name, index,
          how->split == LL_TRAIN ? "to train on" : "of validation");
    return LL_OK;
}

ll_err ll_table_read(const ll_dataset *d, const ll_sampling *how, int64_t position,
                     void *const *out)
{
    const ll_table *t = d->table;
    int64_t row = ll_table_row(t, how->split, ll_sample_index(d, how, position));
    ll_picture_view v = view_of(d, how, position);
    motion m = motion_at(how, position);
    LL_OWN_MEMORY uint8_t *bytes = NULL;
    for (int i = 0; i < t->n; i++) {
        const ll_column *c = &t->columns[i];
        const ll_field *f = &d->info.fields[i];
        if (!out[i]) continue;
        if (!c->picture) {
            TRY(ll_column_read(c, row, f, out[i]));
            continue;
        }
        if (!bytes) bytes = malloc((size_t)(v.height * v.width * d->info.channels));
        CHECK(bytes, LL_E_MEM, "%s: not enough memory for an image", d->info.name);
        v.map = c->map;
        TRY(fit_file(d, c, row, &v, bytes));
        if (c->map)
            put_map(d, m, bytes, f, out[i]);
        else
            put_image(d, m, bytes, NULL, (float *)out[i]);
    }
    return LL_OK;
}

ll_err ll_dataset_picture(const ll_dataset *d, const char *path, float *out)
{
    static const ll_sampling plain = {.split = LL_VAL};
    ll_picture_view v = view_of(d, &plain, 0);
    LL_OWN_MEMORY uint8_t *bytes = malloc((size_t)(v.height * v.width * v.channels));
    CHECK(bytes, LL_E_MEM, "%s: not enough memory for an image", path);
    TRY(fit_path(NULL, path, &v, bytes));
    put_image(d, motion_at(&plain, 0), bytes, NULL, out);
    return LL_OK;
}

/* ---- pairs of samples ---- */

/* Of Beta(a, a), a <= 1 (Joehnk, 1964): a function of (seed, position) only. */
static double share_at(uint64_t seed, int64_t position, double a)
{
    for (uint64_t k = 0;; k++) {
        uint32_t w[4];
        ll_philox(seed, ll_stream("mix", k), (uint64_t)position, w);
        double u = pow((w[0] + 0.5) / 0x1p32, 1 / a), v = pow((w[1] + 0.5) / 0x1p32, 1 / a);
        if (u + v > 0 && u + v <= 1) return u / (u + v);
    }
}

/* A rectangle of the other image in this one's place (Yun et al., 2019); returns the share left. */
static double cut_in(const ll_dataset *d, double share, const uint32_t w[4], const float *other,
                     float *x)
{
    const int64_t size[2] = {d->info.height, d->info.width}, c = d->info.channels;
    int64_t from[2], to[2];
    for (int k = 0; k < 2; k++) {
        int64_t half = (int64_t)((double)size[k] * sqrt(1 - share) / 2);
        int64_t at = (int64_t)((uint64_t)w[k] * (uint64_t)size[k] >> 32);
        from[k] = at > half ? at - half : 0;
        to[k] = at + half < size[k] ? at + half : size[k];
    }
    int64_t row = (to[1] - from[1]) * c;
    for (int64_t y = from[0]; y < to[0]; y++) {
        int64_t at = (y * size[1] + from[1]) * c;
        memcpy(x + at, other + at, (size_t)row * sizeof *x);
    }
    return 1 - (double)((to[0] - from[0]) * (to[1] - from[1])) / (double)(size[0] * size[1]);
}

/* The sample at a position with the one that stands there in the next epoch. */
static ll_err mix(const ll_dataset *d, const ll_sampling *how, int64_t position, void *const *out)
{
    const ll_data_info *f = &d->info;
    float *x = out[d->mix_x], *share = out[f->n_field - 1];
    int32_t *y = out[d->mix_y], *y2 = out[f->n_field - 2], label = y ? *y : 0;
    void *from[LL_MAX_FIELDS] = {0};
    double left = 1;
    if (how->split == LL_TRAIN) {
        uint32_t w[4];
        LL_OWN_MEMORY float *other = malloc(f->field_bytes[d->mix_x]);
        CHECK(other, LL_E_MEM, "%s: not enough memory for an image", f->name);
        from[d->mix_x] = x ? other : NULL, from[d->mix_y] = &label;
        TRY(d->read(d, how, position + f->n[LL_TRAIN], from));
        ll_philox(how->seed, ll_stream("cut", 0), (uint64_t)position, w);
        bool cut = d->cutmix > 0 && (!(d->mixup > 0) || (w[2] & 1));
        left = share_at(how->seed, position, cut ? d->cutmix : d->mixup);
        const float some = (float)left;
        if (cut && x)
            left = cut_in(d, left, w, other, x);
        else if (x)
            for (int64_t i = 0; i < f->height * f->width * f->channels; i++)
                x[i] = other[i] + some * (x[i] - other[i]);
    }
    if (y2) *y2 = label;
    if (share) *share = (float)left;
    return LL_OK;
}

/* ---- what is to be fetched ---- */

static int needs_of_row(const ll_table *t, int64_t row, ll_need *out)
{
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        const ll_column *c = &t->columns[i];
        int64_t at = row;
        const ll_data_part *p = ll_column_part(c, &at);
        size_t bytes = (size_t)ll_numel(&c->shape) * (size_t)c->type.bytes;
        if (p->paths)
            out[n++] = (ll_need){.path = p->paths[at]};
        else if (!p->row)
            out[n++] = (ll_need){.data = p->data + (size_t)at * p->stride, .bytes = bytes};
    }
    return n;
}

static int needs_at(const ll_dataset *d, const ll_sampling *how, int64_t position, ll_need *out)
{
    const ll_data_info *f = &d->info;
    int64_t at = ll_sample_index(d, how, position);
    if (d->source || d->synthetic) return 0;
    if (d->table) return needs_of_row(d->table, ll_table_row(d->table, how->split, at), out);
    const ll_segment *s = locate(&d->split[how->split], &at);
    if (f->kind == LL_TOKENS) {
        size_t each = (size_t)s->token_bytes;
        *out = (ll_need){.data = s->tokens + (size_t)at * each,
                         .bytes = (size_t)(f->source + f->seq + 1) * each};
        return 1;
    }
    out[0] = (ll_need){.data = s->pixels + (size_t)at * s->pixel_stride,
                       .bytes = (size_t)(d->raw_height * d->raw_width * d->raw_channels)};
    out[1] = (ll_need){.data = s->labels + (size_t)at * s->label_stride, .bytes = 1};
    return 2;
}

int ll_sample_needs(const ll_dataset *d, const ll_sampling *how, int64_t position,
                    ll_need out[LL_MAX_NEEDS])
{
    int n = needs_at(d, how, position, out);
    bool mixes = (d->mixup > 0 || d->cutmix > 0) && how->split == LL_TRAIN;
    return mixes ? n + needs_at(d, how, position + d->info.n[LL_TRAIN], out + n) : n;
}

/* Pictures' files are taken where they are decoded. */
static ll_err await_needs(const ll_dataset *d, const ll_sampling *how, int64_t position)
{
    ll_need needs[LL_MAX_NEEDS];
    int n = ll_sample_needs(d, how, position, needs);
    for (int i = 0; i < n; i++)
        if (!needs[i].path) TRY(ll_fetcher_ready(d->fetcher, &needs[i]));
    return LL_OK;
}

ll_err ll_dataset_read(const ll_dataset *d, const ll_sampling *how, int64_t position, int64_t count,
                       void *const *out)
{
    const ll_data_info *f = &d->info;
    CHECK(how->split == LL_TRAIN || how->split == LL_VAL, LL_E_ARG, "split is %d, expected 0 or 1",
          (int)how->split);
    CHECK(position >= 0 && count >= 0, LL_E_ARG, "%ld samples from position %ld on", count,
          position);
    CHECK(how->crop >= 0 && how->crop <= LL_MAX_WIDTH, LL_E_ARG, "crop is %d, expected 0 to %d",
          how->crop, LL_MAX_WIDTH);
    for (int64_t i = 0; i < count; i++) {
        void *at[LL_MAX_FIELDS] = {0};
        for (int k = 0; k < f->n_field; k++)
            if (out[k]) at[k] = (char *)out[k] + (size_t)i * f->field_bytes[k];
        if (d->fetcher) TRY(await_needs(d, how, position + i));
        ll_err rc = d->read(d, how, position + i, at);
        if (rc == LL_OK && (d->mixup > 0 || d->cutmix > 0)) rc = mix(d, how, position + i, at);
        TRY(ll_mapped_check()); /* rather than what came of zeros */
        TRY(rc);
    }
    return ll_mapped_whole();
}
