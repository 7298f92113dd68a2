/* dataset.c: the sets known by name, the formats, opening and closing. */
#include "base/mapped.h"
#include "base/near.h"
#include "data/fetch.h"
#include "data/table.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const fashion_classes[] = {"t-shirt", "trouser", "pullover", "dress", "coat",
                                              "sandal",  "shirt",   "sneaker",  "bag",   "boot"};
static const char *const cifar_classes[] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                            "dog",      "frog",       "horse", "ship", "truck"};

static const ll_known known[] = {
    {.name = "fashion-mnist",
     .format = "idx",
     .help = "70,000 grey images of clothes, 28 x 28, 10 classes",
     .source = "the files of Debian package dataset-fashion-mnist",
     .path = "/usr/share/datasets/fashion-mnist",
     .classes = 10,
     .class_names = fashion_classes,
     .mean = {0.2860},
     .deviation = {0.3530}},
    {.name = "kjv",
     .format = "bible",
     .help = "King James Bible, as bytes",
     .source = "the file of Debian package bible-kjv-text",
     .path = "/usr/lib/bible.data"},
    {.name = "cifar10",
     .format = "cifar10",
     .help = "60,000 colour images, 32 x 32, 10 classes",
     .source = "data_batch_1.bin to data_batch_5.bin and test_batch.bin of CIFAR-10's binary form",
     .path = "cifar-10-batches-bin",
     .classes = 10,
     .class_names = cifar_classes,
     .mean = {0.4914, 0.4822, 0.4465},
     .deviation = {0.2470, 0.2435, 0.2616}},
    {.name = "tokens",
     .format = "tokens",
     .help = "GPT-2 token files as written by llm.c",
     .source = "*.bin shards of llm.c's format; \"val\" in the name: for validation",
     .path = "tokens"},
    {.name = "synthetic",
     .format = "synthetic",
     .help = "random images or tokens of any shape",
     .source = "nothing to install",
     .path = ""},
};
#define N_KNOWN ((int)(sizeof known / sizeof *known))
_Static_assert(N_KNOWN <= LL_MAX_DATASETS, "LL_MAX_DATASETS holds every known set");

typedef struct format {
    const char *name;
    ll_reader *read;
    bool twice;        /* files for validation may be named apart (val_path) */
    bool table;        /* what it reads are columns (table.h) */
    const char *files; /* read one by one, a folder's of these names; NULL: the path as it is */
} format;
static const format formats[] = {
    {"idx", ll_read_idx},
    {"cifar10", ll_read_cifar10},
    {"images", ll_read_images, true, true},
    {"csv", ll_read_csv, true, true},
    {"text", ll_read_text, true, false, "*.txt"},
    {"tokens", ll_read_tokens, true},
    {"jsonl", ll_read_jsonl, true, false, "*.jsonl"},
    {"npy", ll_read_npy, true, true},
    {"npz", ll_read_npz, true, true, "*.npz"},
    {"safetensors", ll_read_safetensors, true, true, "*.safetensors"},
    {"hdf5", ll_read_hdf5, true, true, "*.[hn][cd5]*"},
    {"netcdf", ll_read_hdf5, true, true, "*.[hn][cd5]*"},
    {"bible", ll_read_bible},
    {"synthetic", ll_read_synthetic},
};

static ll_err read_path(ll_dataset *d, const format *f, const char *path)
{
    const char *const *files = &path;
    int n = 1;
    if (f->table) ll_table_begin(d);
    if (f->files) TRY(ll_data_files(d, path, f->files, &files, &n));
    for (int i = 0; i < n; i++) {
        if (f->table) ll_table_file(d, files[i]);
        TRY(f->read(d, files[i]));
        if (f->table) TRY(ll_table_file_end(d));
    }
    return LL_OK;
}

/* Drops the first n samples of a segment. */
static void advance(ll_segment *s, int64_t n)
{
    s->n -= n;
    if (s->pixels) {
        s->pixels += (size_t)n * s->pixel_stride;
        s->labels += (size_t)n * s->label_stride;
    } else {
        s->tokens += n * s->token_bytes;
        s->token_offset += (size_t)(n * s->token_bytes);
    }
}

/* Moves the last part of the training samples to validation. */
static void hold_out(ll_dataset *d)
{
    ll_segments *train = &d->split[LL_TRAIN];
    int64_t held = (int64_t)ceil((double)train->n * ll_data_held_out(d)), left = train->n - held;
    int count = train->count;
    train->count = 0, train->n = 0;
    for (int i = 0; i < count; i++) {
        ll_segment first = train->item[i], rest = first;
        if (first.n > left) first.n = left;
        left -= first.n;
        advance(&rest, first.n);
        if (first.n > 0) ll_segment_add(d, LL_TRAIN, &first);
        if (rest.n > 0) ll_segment_add(d, LL_VAL, &rest);
    }
}

const double ll_imagenet_mean[3] = {0.485, 0.456, 0.406};
const double ll_imagenet_deviation[3] = {0.229, 0.224, 0.225};

void ll_dataset_scale(ll_dataset *d)
{
    const ll_data_info *f = &d->info;
    d->scale = ll_arena_alloc(d->arena, (size_t)f->channels * sizeof *d->scale);
    for (int c = 0; c < f->channels; c++)
        for (int v = 0; v < 256; v++)
            d->scale[c][v] = (float)((v / 255.0 - f->mean[c]) / f->deviation[c]);
}

/* What x/255 is shifted and divided by: as asked, as a known set has it, or the usual: ImageNet's
 * for colours out of files, else 0.5. Of one number for more channels: all the same. */
static ll_err normalise(ll_dataset *d, const ll_data_opts *o, const ll_known *k)
{
    ll_data_info *f = &d->info;
    const int64_t n = f->channels;
    CHECK((o->n_mean <= 1 || o->n_mean == n) && (o->n_deviation <= 1 || o->n_deviation == n),
          LL_E_CONFIG, "%d numbers of mean and %d of deviation, expected 1 or %ld, one per channel",
          o->n_mean, o->n_deviation, n);
    for (int c = 0; c < n; c++) {
        int64_t own = d->raw_channels == n ? c : 0;
        bool given = k && k->deviation[own] > 0, usual = d->table && n == 3;
        f->mean[c] = given ? k->mean[own] : usual ? ll_imagenet_mean[c] : 0.5;
        f->deviation[c] = given ? k->deviation[own] : usual ? ll_imagenet_deviation[c] : 0.5;
        if (o->n_mean) f->mean[c] = o->mean[o->n_mean > 1 ? c : 0];
        if (o->n_deviation) f->deviation[c] = o->deviation[o->n_deviation > 1 ? c : 0];
        CHECK(f->deviation[c] > 0, LL_E_CONFIG, "a deviation is %g, expected above 0",
              f->deviation[c]);
    }
    ll_dataset_scale(d);
    return LL_OK;
}

/* The size that images are brought to. */
static ll_err size_images(ll_dataset *d, const ll_data_opts *o)
{
    ll_data_info *f = &d->info;
    d->centre = o->centre > 0 ? o->centre : 1;
    if (d->table) {
        f->height = o->height ? o->height : 224;
        f->width = o->width ? o->width : 224;
        f->channels = o->channels ? o->channels : 3;
    }
    d->raw_height = f->height, d->raw_width = f->width, d->raw_channels = f->channels;
    if (o->image_height) f->height = o->image_height, f->width = o->image_width;
    if (o->image_channels) f->channels = o->image_channels;
    if (d->synthetic)
        d->raw_height = f->height, d->raw_width = f->width, d->raw_channels = f->channels;
    const int64_t sizes[2][3] = {{f->height, f->width, f->channels},
                                 {d->raw_height, d->raw_width, d->raw_channels}};
    for (int i = 0; i < 2; i++) {
        CHECK(sizes[i][2] <= LL_MAX_CHANNELS, LL_E_IO, "%s: %ld channels, expected at most %d",
              f->where, sizes[i][2], LL_MAX_CHANNELS);
        CHECK(sizes[i][0] <= LL_MAX_WIDTH && sizes[i][1] <= LL_MAX_WIDTH, LL_E_IO,
              "%s: images of %ld x %ld, expected at most %d x %d", f->where, sizes[i][0],
              sizes[i][1], LL_MAX_WIDTH, LL_MAX_WIDTH);
    }
    CHECK(f->channels != 2 || (!d->table && d->raw_channels == 2), LL_E_CONFIG,
          "images with 2 channels, expected 1 (grey), 3 (colour) or 4 (with alpha)");
    return LL_OK;
}

static ll_err finish_images(ll_dataset *d, const ll_data_opts *o, const ll_known *k)
{
    ll_data_info *f = &d->info;
    TRY(normalise(d, o, k));
    if (d->table) return LL_OK;
    f->class_names = k && k->classes == f->classes ? k->class_names : NULL;
    ll_field_add(d, "x", LL_F32, LL_SHAPE(f->height, f->width, f->channels));
    ll_field_add(d, "y", LL_I32, LL_SCALAR);
    d->read = ll_image_read;
    for (int s = 0; s < 2; s++) {
        if (!d->synthetic) f->n[s] = d->split[s].n;
        CHECK(f->n[s] > 0, LL_E_IO, "%s: no images are left %s", f->where,
              s == LL_TRAIN ? "to train on" : "for validation");
    }
    return LL_OK;
}

/* A wrong vocabulary shows now rather than after some steps: in what is read in an instant, that
 * is. The rest, and what a slow store has, is looked at as it is used. */
static ll_err check_first(const ll_dataset *d, ll_split split)
{
    enum { PIECE = 4096, MOST = 16 << 20 };
    const ll_segments *list = &d->split[split];
    int64_t at = 0;
    int32_t t[PIECE];
    if (d->fetcher || d->synthetic) return LL_OK;
    for (int s = 0; s < list->count; s++)
        for (int64_t left = list->item[s].n, n; left > 0 && at < MOST; left -= n, at += n) {
            n = left < PIECE ? left : PIECE;
            TRY(ll_dataset_tokens(d, split, at, n, t));
        }
    return LL_OK;
}

/* Counts, for each split, where windows can begin. A window lies in one segment. */
static ll_err finish_tokens(ll_dataset *d)
{
    ll_data_info *f = &d->info;
    int64_t span = f->source + f->seq;
    for (int s = 0; s < 2; s++) {
        ll_segments *list = &d->split[s];
        for (int i = 0; i < list->count; i++) {
            int64_t n = list->item[i].n;
            if (n > span) list->starts += n - span, list->windows += (n - 1) / span;
        }
        f->n[s] = list->windows;
        f->tokens[s] = list->n;
        CHECK(list->windows > 0, LL_E_IO,
              "%s: %ld tokens %s are less than one window of %s + 1 = %ld", f->where, list->n,
              s == LL_TRAIN ? "to train on" : "for validation", f->source ? "source + seq" : "seq",
              span + 1);
        TRY(check_first(d, (ll_split)s));
    }
    ll_field_add(d, "x", LL_I32, LL_SHAPE(f->seq));
    ll_field_add(d, "y", LL_I32, LL_SHAPE(f->seq));
    if (f->source) ll_field_add(d, "source", LL_I32, LL_SHAPE(f->source));
    d->read = ll_window_read;
    return LL_OK;
}

/* Fields for what else is told of samples that are mixed. */
static ll_err mix_fields(ll_dataset *d, const ll_data_opts *o)
{
    ll_data_info *f = &d->info;
    bool fits = f->kind == LL_IMAGES && f->n_field == 2;
    d->mixup = o->mixup, d->cutmix = o->cutmix;
    if (!(d->mixup > 0) && !(d->cutmix > 0)) return LL_OK;
    for (int i = 0; i < 2 && fits; i++) *(f->fields[i].name[0] == 'x' ? &d->mix_x : &d->mix_y) = i;
    fits = fits && !strcmp(f->fields[d->mix_x].name, "x") &&
           !strcmp(f->fields[d->mix_y].name, "y") && f->fields[d->mix_y].dtype == LL_I32 &&
           f->fields[d->mix_y].shape.n == 0;
    CHECK(fits, LL_E_CONFIG,
          "mixup and cutmix need images x with one label y each, which data %s does not have",
          f->name);
    CHECK(d->mixup <= 1 && d->cutmix <= 1, LL_E_ARG, "mixup is %g and cutmix %g, expected 0 to 1",
          d->mixup, d->cutmix);
    ll_field_add(d, "y2", LL_I32, LL_SCALAR);
    ll_field_add(d, "mix", LL_F32, LL_SCALAR);
    return LL_OK;
}

/* The folder of what to train on, and, of what to validate with, in o: DIR/train and DIR/val; else
 * the path as it is. */
static const char *in_parts(ll_dataset *d, ll_data_opts *o)
{
    static const char *const names[] = {"test", "validation", "valid", "val"}; /* the last wins */
    const char *path = d->info.where, *train = ll_arena_printf(d->arena, "%s/train", path);
    if (!ll_is_folder(train)) return path;
    bool given = o->val_path;
    for (int i = 0; i < 4 && !given; i++) {
        const char *folder = ll_arena_printf(d->arena, "%s/%s", path, names[i]);
        if (ll_is_folder(folder)) o->val_path = folder;
    }
    return train;
}

/* Beside other fields: of images alone the set is one of images. */
static bool has_pictures(const ll_dataset *d)
{
    bool any = false;
    for (int i = 0; d->table && i < d->table->n; i++) any |= d->table->columns[i].picture;
    return any;
}

static ll_err open_in(ll_dataset *d, const ll_data_opts *given, const ll_known *k, const format *f)
{
    ll_data_opts own = *given, *o = &own;
    d->opts = o;
    CHECK(o->val_fraction >= 0 && o->val_fraction < 1, LL_E_ARG,
          "val_fraction is %g, expected between 0 and 1", o->val_fraction);
    CHECK(o->seq >= 0 && o->seq < INT32_MAX, LL_E_ARG, "seq is %ld, expected 1 to %d", o->seq,
          INT32_MAX - 1);
    CHECK(o->vocab >= 0 && o->vocab <= INT32_MAX, LL_E_ARG, "vocab is %ld, expected 1 to %d",
          o->vocab, INT32_MAX);
    d->info.seq = o->seq ? o->seq : 256;
    for (int i = 0; i < o->n_want; i++)
        if (!strcmp(o->want[i].name, "source") && o->want[i].shape.n == 1)
            d->info.source = o->want[i].shape.d[0];
    d->info.classes = k && k->classes ? k->classes : o->classes;
    CHECK(!o->val_path || f->twice, LL_E_CONFIG,
          "format %s has its own validation files: leave out data.val_path", f->name);
    CHECK(!o->token_bytes || o->token_bytes == 2 || o->token_bytes == 4, LL_E_ARG,
          "token_bytes is %ld, expected 2 or 4", o->token_bytes);
    if (o->told && f->read == ll_read_csv) ll_columns_adopt(d, ll_dataset_info(o->told));
    TRY(read_path(d, f, f->twice ? in_parts(d, o) : d->info.where));
    d->reading = LL_VAL;
    d->info.train_digest = d->info.digest;
    if (o->val_path) TRY(read_path(d, f, o->val_path));
    if (d->info.kind != LL_TOKENS) TRY(size_images(d, o));
    if (d->table) TRY(ll_table_finish(d));
    if (d->table) TRY(ll_columns_standardise(d));
    if (!d->table && !d->synthetic && d->split[LL_VAL].n == 0) hold_out(d);
    CHECK(d->held_out || o->val_fraction == 0, LL_E_CONFIG,
          "data.val_fraction=%g cannot be combined with %s%s, which %s: set it to 0",
          o->val_fraction, given->val_path ? "data.val_path=" : "",
          o->val_path ? o->val_path : d->info.where,
          given->val_path ? "is the validation data" : "has its own validation data");
    d->read = ll_table_read;
    bool images = d->info.kind == LL_IMAGES, plain = !o->n_mean && !o->n_deviation;
    CHECK(images || plain || d->info.n_column, LL_E_ARG,
          "mean and deviation apply only to images and to columns of a CSV, which dataset %s does "
          "not have",
          d->info.name);
    CHECK(images || o->centre == 0 || o->centre == 1, LL_E_ARG,
          "centre applies only to images, which dataset %s does not have", d->info.name);
    CHECK(images || has_pictures(d) || (!o->image_height && !o->image_channels), LL_E_ARG,
          "image and channels apply only to images, which dataset %s does not have", d->info.name);
    if (d->info.kind == LL_IMAGES) TRY(finish_images(d, o, k));
    if (d->info.kind == LL_TOKENS) TRY(finish_tokens(d));
    d->opts = NULL;
    ll_cache_start(d);
    return LL_OK;
}

const char *ll_data_folder(void)
{
    const char *base = getenv("LOOPLINE_DATA");
    return base && *base ? base : "data";
}

/* A known set's own place: as it stands, or below the folder for data. */
static const char *default_path(ll_arena *a, const ll_known *k)
{
    if (k->path[0] == '/' || k->path[0] == '\0') return ll_arena_strdup(a, k->path);
    return ll_arena_printf(a, "%s/%s", ll_data_folder(), k->path);
}

/* A path is no name. */
static ll_err check_name(const char *name)
{
    const char *end = strrchr(name, '.');
    bool path = strchr(name, '/') || ll_file_exists(name), known_end = false;
    for (size_t i = 0; end && i < sizeof formats / sizeof *formats; i++)
        known_end |= !strcmp(formats[i].name, end + 1);
    CHECK(!path && !known_end, LL_E_CONFIG,
          "'%s' is a path, not the name of a dataset: set data.path=%s and data.format=%s (of "
          "loopline data: --path, --format)",
          name, name, known_end ? end + 1 : "FORMAT (" LL_DATA_FORMATS ")");
    return LL_OK;
}

static ll_err find_known(const char *name, const ll_known **k)
{
    ll_near near = {.word = name};
    for (*k = known; *k < known + N_KNOWN; ++*k)
        if (ll_near_try(&near, (*k)->name)) return LL_OK;
    TRY(check_name(name));
    FAIL(LL_E_CONFIG, "unknown dataset '%s' (datasets:%s, or set data.path and data.format)%s",
         name, near.known, ll_near_hint(&near));
}

static ll_err find(const ll_data_opts *o, const ll_known **k, const format **f)
{
    *k = NULL;
    CHECK(!o->name || !o->path || strcmp(o->name, "synthetic"), LL_E_CONFIG,
          "data synthetic is generated: leave out data.path=%s", o->path);
    CHECK(o->name || (o->path && o->format), LL_E_CONFIG,
          "a dataset needs a name, or a path and a format (" LL_DATA_FORMATS ")");
    if (o->name) TRY(find_known(o->name, k));
    const char *name = o->format ? o->format : (*k)->format;
    *f = NULL;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) *f = &formats[i];
    CHECK(*f, LL_E_CONFIG, "the format of a dataset is '%s', expected " LL_DATA_FORMATS, name);
    return LL_OK;
}

static ll_err read_source(ll_dataset *d, const ll_source *s)
{
    d->source = s;
    d->read = ll_source_read;
    d->info.kind = LL_RECORDS;
    memcpy(d->info.n, s->samples, sizeof s->samples);
    for (int i = 0; i < LL_MAX_FIELDS && s->fields[i].name; i++)
        ll_field_add(d, s->fields[i].name, s->fields[i].dtype, s->fields[i].shape);
    d->opts = NULL;
    CHECK(d->info.n_field > 0 && s->read, LL_E_ARG, "source %s has no fields, or cannot be read",
          s->name);
    CHECK(s->samples[0] > 0 && s->samples[1] > 0, LL_E_ARG,
          "source %s has %ld training and %ld validation samples, expected at least one of each",
          s->name, s->samples[0], s->samples[1]);
    return LL_OK;
}

static bool on_slow_store(const ll_data_opts *o)
{
    return o->cache || o->fetch || o->delay > 0;
}

/* Is this a folder, and the cache there, or within? */
static bool holds(const char *folder, const char *cache)
{
    struct stat of, at;
    char path[PATH_MAX];
    if (!folder || stat(folder, &of) || !S_ISDIR(of.st_mode)) return false;
    if (*cache == '/')
        snprintf(path, sizeof path, "%s", cache);
    else if (getcwd(path, sizeof path / 2))
        snprintf(path + strlen(path), sizeof path / 2, "/%s", cache);
    else
        return false;
    for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
        *end = '\0'; /* what is not there yet lies in what is */
        if (*path && !stat(path, &at) && at.st_ino == of.st_ino && at.st_dev == of.st_dev)
            return true;
    }
    return false;
}

static ll_err open_store(ll_dataset *d, const ll_data_opts *o)
{
    CHECK(!o->cache || !(holds(o->path, o->cache) || holds(o->val_path, o->cache)), LL_E_CONFIG,
          "data.cache=%s lies inside the data and would be read as data: name another folder",
          o->cache);
    CHECK(o->fetch >= 0 && o->fetch <= LL_MAX_FETCH, LL_E_ARG, "fetch is %d, expected 0 to %d",
          o->fetch, LL_MAX_FETCH);
    return ll_fetcher_open(o->cache,
                           o->fetch   ? o->fetch
                           : o->cache ? 16
                                      : 0,
                           o->delay, &d->fetcher);
}

/* Is there anything to fetch? */
static ll_err check_needs(const ll_dataset *d)
{
    ll_need needs[LL_MAX_NEEDS];
    int n = ll_sample_needs(d, &(ll_sampling){.split = LL_TRAIN}, 0, needs), some = 0;
    for (int i = 0; i < n; i++) some += ll_fetcher_covers(d->fetcher, &needs[i]);
    CHECK(some > 0, LL_E_CONFIG,
          "data.cache, data.fetch and data.delay apply only to pictures and mapped files "
          "(docs/own.md), which data %s does not have",
          d->info.name);
    return LL_OK;
}

ll_err ll_dataset_open(const ll_data_opts *o, ll_dataset **out)
{
    const ll_known *k = NULL;
    const format *f = NULL;
    *out = NULL;
    if (!o->source) TRY(find(o, &k, &f));
    ll_arena *arena = ll_arena_new();
    LL_OWN(ll_dataset) d = LL_NEW(arena, ll_dataset);
    d->arena = arena;
    d->opts = o;
    d->info.name = ll_arena_strdup(arena, o->source ? o->source->name : k ? k->name : o->format);
    d->info.where = o->path ? ll_arena_strdup(arena, o->path) : k ? default_path(arena, k) : "";
    if (on_slow_store(o)) TRY(open_store(d, o));
    ll_err rc = o->source ? read_source(d, o->source) : open_in(d, o, k, f);
    if (rc == LL_E_IO && k)
        rc = RAISE(rc, "dataset %s: %s; expected in %s: %s", k->name, ll_error_message(),
                   d->info.where, k->source);
    TRY(rc);
    if (d->fetcher) TRY(check_needs(d));
    TRY(mix_fields(d, o));
    TRY(ll_mapped_check());
    return LL_HAND(out, d);
}

void ll_dataset_close(ll_dataset *d)
{
    if (!d) return;
    ll_cache_wait(d);
    for (const ll_at_close *h = d->held; h; h = h->next) h->let_go(h->what);
    for (int i = 0; i < d->n_blocks; i++) ll_bytes_free(&d->blocks[i]);
    ll_fetcher_close(d->fetcher);
    ll_arena_free(d->arena);
}

const ll_data_info *ll_dataset_info(const ll_dataset *d)
{
    return &d->info;
}

int ll_dataset_list(ll_data_entry out[LL_MAX_DATASETS])
{
    for (int i = 0; i < N_KNOWN; i++) {
        const ll_known *k = &known[i];
        ll_data_entry *e = &out[i];
        *e = (ll_data_entry){.name = k->name, .help = k->help, .source = k->source};
        LL_OWN(ll_arena) arena = ll_arena_new();
        LL_OWN(ll_dataset) d = NULL;
        snprintf(e->where, sizeof e->where, "%s", default_path(arena, k));
        e->installed = ll_dataset_open(&(ll_data_opts){.name = k->name}, &d) == LL_OK;
        if (!e->installed) {
            snprintf(e->problem, sizeof e->problem, "%s", ll_error_message());
            continue;
        }
        e->info = d->info;
        e->info.name = k->name;
        e->info.where = "";
    }
    return N_KNOWN;
}
