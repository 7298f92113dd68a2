/* idx.c: IDX files of images and labels, plain or gzipped, as MNIST and Fashion-MNIST have them:
 * a folder of {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz], or one images file beside its
 * labels file. */
#include "base/num.h"
#include "data/data_int.h"
#include "data/parse.h"

#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <zlib.h>

static ll_err read_header(const uint8_t *b, size_t size, const char *file, ll_idx *out)
{
    *out = (ll_idx){0};
    CHECK(size >= 4, LL_E_IO, "%s has %zu bytes, but an IDX header has at least 8", file, size);
    CHECK(b[0] == 0 && b[1] == 0 && b[2] == 8, LL_E_IO,
          "%s begins with %02x %02x %02x, but an IDX file of bytes begins with 00 00 08", file,
          b[0], b[1], b[2]);
    CHECK(b[3] >= 1 && b[3] <= LL_IDX_DIMS, LL_E_IO,
          "%s: byte 3 says %d dimensions, expected 1 (labels), 3 or 4 (images)", file, b[3]);
    out->n_dim = b[3];
    out->offset = 4 + 4 * (size_t)out->n_dim;
    CHECK(size >= out->offset, LL_E_IO, "%s has %zu bytes, but a header of %d dimensions has %zu",
          file, size, out->n_dim, out->offset);
    out->bytes = 1;
    for (int i = 0; i < out->n_dim; i++) {
        uint32_t d = (uint32_t)ll_be(b + 4 + 4 * i, 4);
        CHECK(d > 0, LL_E_IO, "%s: dimension %d (offset %d) is 0", file, i, 4 + 4 * i);
        CHECK(!__builtin_mul_overflow(out->bytes, (size_t)d, &out->bytes) &&
                  out->bytes <= PTRDIFF_MAX,
              LL_E_IO, "%s: dimension %d (offset %d) is %u: too large", file, i, 4 + 4 * i, d);
        out->dim[i] = d;
    }
    return LL_OK;
}

ll_err ll_idx_parse(const uint8_t *b, size_t size, const char *file, ll_idx *out)
{
    TRY(read_header(b, size, file, out));
    CHECK(size - out->offset == out->bytes, LL_E_IO,
          "%s: %zu bytes after the header, expected %zu%s", file, size - out->offset, out->bytes,
          size - out->offset < out->bytes ? ": the file is truncated" : "");
    return LL_OK;
}

ll_err ll_labels_check(const uint8_t *b, int64_t n, size_t stride, int64_t classes,
                       const char *file, size_t offset)
{
    for (int64_t i = 0; i < n; i++) {
        size_t at = (size_t)i * stride;
        CHECK(b[at] < classes, LL_E_IO,
              "%s: label %d at offset %zu, expected 0 to %ld (classes are %ld)", file, b[at],
              offset + at, classes - 1, classes);
    }
    return LL_OK;
}

/* Inflates until out is full or the data ends. Files may have several members. */
static ll_err inflate_some(z_stream *z, const uint8_t *gz, size_t size, const char *file,
                           uint8_t *out, size_t want)
{
    const size_t most = 1u << 30; /* zlib counts in unsigned int */
    while (want > 0) {
        size_t at = (size_t)(z->next_in - gz);
        if (z->avail_in == 0) z->avail_in = (uInt)(size - at < most ? size - at : most);
        z->next_out = out;
        z->avail_out = (uInt)(want < most ? want : most);
        int e = inflate(z, Z_NO_FLUSH);
        want -= (size_t)(z->next_out - out);
        out = z->next_out;
        at = (size_t)(z->next_in - gz);
        if (e == Z_STREAM_END && at < size) e = inflateReset(z);
        if (want == 0) break;
        CHECK(e != Z_STREAM_END && e != Z_BUF_ERROR, LL_E_IO,
              "%s: the gzip data ends %zu bytes too early, at offset %zu", file, want, at);
        CHECK(e == Z_OK, LL_E_IO, "%s: bad gzip data at offset %zu: %s", file, at,
              z->msg ? z->msg : "broken");
    }
    return LL_OK;
}

/* All was read: what follows must be the end of the gzip data, its check sum right. */
static ll_err inflate_end(z_stream *z, const uint8_t *gz, size_t size, const char *file)
{
    uint8_t more;
    int e;
    z->next_out = &more;
    z->avail_out = 1;
    do {
        size_t left = size - (size_t)(z->next_in - gz);
        if (z->avail_in == 0) z->avail_in = (uInt)(left < 1u << 30 ? left : 1u << 30);
        e = inflate(z, Z_NO_FLUSH);
    } while (e == Z_OK && z->avail_out == 1);
    CHECK(z->avail_out == 1, LL_E_IO, "%s has more data than its IDX header says", file);
    CHECK(e == Z_STREAM_END, LL_E_IO, "%s: bad end of the gzip data at offset %zu: %s", file,
          (size_t)(z->next_in - gz), z->msg ? z->msg : "cut short");
    return LL_OK;
}

static ll_err gunzip(z_stream *z, const uint8_t *gz, size_t size, const char *file, uint8_t **out,
                     size_t *out_size)
{
    uint8_t head[LL_IDX_HEADER_MAX] = {0};
    ll_idx idx;
    TRY(inflate_some(z, gz, size, file, head, 4));
    size_t dims = head[3] <= LL_IDX_DIMS ? head[3] : 0;
    TRY(inflate_some(z, gz, size, file, head + 4, 4 * dims));
    TRY(read_header(head, 4 + 4 * dims, file, &idx));
    /* Deflate cannot shrink by more than 1032: a larger claim is a broken or hostile header. */
    CHECK(idx.bytes / 1032 <= size, LL_E_IO,
          "%s: the header says %zu bytes, more than %zu bytes of gzip can hold", file, idx.bytes,
          size);
    *out_size = idx.offset + idx.bytes;
    LL_OWN_MEMORY uint8_t *all = malloc(*out_size);
    CHECK(all, LL_E_MEM, "%s: not enough memory for %zu bytes", file, *out_size);
    memcpy(all, head, idx.offset);
    TRY(inflate_some(z, gz, size, file, all + idx.offset, idx.bytes));
    TRY(inflate_end(z, gz, size, file));
    return LL_HAND(out, all);
}

ll_err ll_idx_gunzip(const uint8_t *gz, size_t size, const char *file, uint8_t **out,
                     size_t *out_size)
{
    *out = NULL;
    z_stream z = {.next_in = (Bytef *)gz};
    CHECK(inflateInit2(&z, 15 + 16) == Z_OK, LL_E_MEM, "%s: not enough memory to inflate", file);
    ll_err rc = gunzip(&z, gz, size, file, out, out_size);
    inflateEnd(&z);
    return rc;
}

/* One file, opened. packed is kept where the inflated form is worth a cache. */
typedef struct part {
    char path[PATH_MAX];
    ll_bytes packed, raw;
    ll_idx idx;
    bool cached; /* or not worth it */
} part;

static ll_err open_part(part *p)
{
    const size_t worth_caching = 1 << 20;
    ll_bytes b;
    TRY(ll_bytes_map(p->path, &b));
    if (b.size < 2 || b.data[0] != 0x1f || b.data[1] != 0x8b) {
        p->raw = b;
        return ll_idx_parse(b.data, b.size, p->path, &p->idx);
    }
    p->packed = b;
    p->cached = b.size <= worth_caching;
    if (!p->cached && ll_cache_find(p->path, &b, &p->raw)) {
        p->cached = true;
    } else {
        uint8_t *out;
        TRY(ll_idx_gunzip(b.data, b.size, p->path, &out, &p->raw.size));
        p->raw.data = out;
    }
    return ll_idx_parse(p->raw.data, p->raw.size, p->path, &p->idx);
}

/* The images and labels of one split. */
typedef struct pair {
    part images, labels;
} pair;

static ll_err open_pair(pair *p)
{
    TRY(open_part(&p->labels));
    CHECK(p->labels.idx.n_dim == 1, LL_E_IO, "%s has %d dimensions, but labels have 1",
          p->labels.path, p->labels.idx.n_dim);
    TRY(open_part(&p->images));
    const ll_idx *x = &p->images.idx, *y = &p->labels.idx;
    CHECK(x->n_dim >= 3, LL_E_IO, "%s has %d dimensions, but images have 3 or 4", p->images.path,
          x->n_dim);
    CHECK(x->dim[0] == y->dim[0], LL_E_IO, "%s: %ld images, but %s has %ld labels", p->images.path,
          x->dim[0], p->labels.path, y->dim[0]);
    return LL_OK;
}

/* Makes the pair's files the dataset's, whatever happened. */
static void keep_pair(ll_dataset *d, pair *p, ll_err rc)
{
    part *parts[2] = {&p->images, &p->labels};
    for (int i = 0; i < 2; i++) {
        const part *f = parts[i];
        if (f->raw.data) ll_dataset_keep(d, &f->raw);
        if (f->raw.data) ll_dataset_note(d, ll_base_name(f->path), f->raw.data, f->raw.size);
        if (parts[i]->packed.data && !parts[i]->cached && rc == LL_OK)
            ll_cache_save(d, parts[i]->path, &parts[i]->packed, &parts[i]->raw);
        if (parts[i]->packed.data) ll_bytes_free(&parts[i]->packed);
    }
}

static ll_err add_pair(ll_dataset *d, ll_split split, pair *p)
{
    ll_err rc = open_pair(p);
    keep_pair(d, p, rc);
    TRY(rc);
    const ll_idx *x = &p->images.idx, *y = &p->labels.idx;
    int64_t sizes[3] = {x->dim[1], x->dim[2], x->n_dim == 4 ? x->dim[3] : 1};
    ll_data_info *info = &d->info;
    const uint8_t *labels = p->labels.raw.data + y->offset;
    if (split == LL_TRAIN) {
        info->height = sizes[0], info->width = sizes[1], info->channels = sizes[2];
        if (info->classes == 0)
            for (int64_t i = 0; i < y->dim[0]; i++)
                if (labels[i] >= info->classes) info->classes = labels[i] + 1;
    }
    CHECK(sizes[0] == info->height && sizes[1] == info->width && sizes[2] == info->channels,
          LL_E_IO, "%s: images are %ld x %ld x %ld, but training images are %ld x %ld x %ld",
          p->images.path, sizes[0], sizes[1], sizes[2], info->height, info->width, info->channels);
    TRY(ll_labels_check(labels, y->dim[0], 1, info->classes, p->labels.path, y->offset));
    ll_segment_add(d, split,
                   &(ll_segment){.file = p->images.path,
                                 .n = x->dim[0],
                                 .pixels = p->images.raw.data + x->offset,
                                 .pixel_stride = x->bytes / (size_t)x->dim[0],
                                 .labels = labels,
                                 .label_stride = 1});
    return LL_OK;
}

/* dir/stem-images-idx3-ubyte and its labels, each plain or .gz; false if there are no images. */
static bool name_pair(pair *p, const char *dir, const char *stem)
{
    const char *kinds[2] = {"images-idx3", "labels-idx1"};
    part *parts[2] = {&p->images, &p->labels};
    for (int i = 0; i < 2; i++) {
        char *path = parts[i]->path;
        int n = snprintf(path, PATH_MAX, "%s/%s-%s-ubyte", dir, stem, kinds[i]);
        if (n + 4 >= PATH_MAX) return false;
        if (!ll_file_exists(path)) strcpy(path + n, ".gz");
    }
    return ll_file_exists(p->images.path);
}

/* The labels' name for an images file: "images" becomes "labels" and "idx3" "idx1". */
static ll_err name_from_file(pair *p, const char *path)
{
    char *labels = p->labels.path;
    snprintf(p->images.path, PATH_MAX, "%s", path);
    snprintf(labels, PATH_MAX, "%s", path);
    char *base = strrchr(labels, '/');
    char *word = strstr(base ? base : labels, "images");
    CHECK(word, LL_E_IO,
          "%s: expected a folder, or a file named ...images... next to one named ...labels...",
          path);
    memcpy(word, "labels", 6);
    char *dims = strstr(word, "idx3");
    if (dims) dims[3] = '1';
    return LL_OK;
}

ll_err ll_read_idx(ll_dataset *d, const char *path)
{
    pair *train = LL_NEW(d->arena, pair), *test = LL_NEW(d->arena, pair);
    d->info.kind = LL_IMAGES;
    CHECK(strlen(path) < PATH_MAX - 64, LL_E_ARG, "the path of the IDX files is too long");
    bool one_file = !name_pair(train, path, "train");
    if (one_file) {
        struct stat st;
        CHECK(stat(path, &st) == 0, LL_E_IO, "%s: %s", path, strerror(errno));
        CHECK(!S_ISDIR(st.st_mode), LL_E_IO,
              "%s/train-images-idx3-ubyte: no such file, with or without .gz", path);
        TRY(name_from_file(train, path));
    }
    TRY(add_pair(d, LL_TRAIN, train));
    return !one_file && name_pair(test, path, "t10k") ? add_pair(d, LL_VAL, test) : LL_OK;
}
