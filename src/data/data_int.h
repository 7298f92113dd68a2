/* data_int.h: what the readers of src/data share. A reader fills a dataset with segments: runs of
 * samples at a fixed stride in some mapped or allocated block. A split is a list of segments, so
 * that one file can be cut in two and many files joined without copying. */
#pragma once
#include "base/arena.h"
#include "base/file.h"
#include "data/data.h"

#include <string.h>

#define LL_MAX_WIDTH 16384 /* of an image, and its height: rows are made on the stack */

/* Bytes of a file: mapped, or malloc'ed. */
typedef struct ll_bytes {
    const uint8_t *data;
    size_t size;
    bool mapped;
    void *base; /* what to unmap, if mapped: data may lie behind a header */
    size_t base_size;
} ll_bytes;

typedef struct ll_segment {
    const char *file;
    int64_t n; /* images or tokens */
    /* images: the first one's pixels and label, and the distance to the next one's */
    const uint8_t *pixels, *labels;
    size_t pixel_stride, label_stride;
    /* tokens */
    const uint8_t *tokens;
    int token_bytes;     /* 1, 2 or 4 */
    size_t token_offset; /* of the first, in the file: for messages */
} ll_segment;

typedef struct ll_segments {
    ll_segment *item;
    int count, capacity;
    int64_t n;       /* of all: images or tokens */
    int64_t starts;  /* tokens: how many places a window of seq+1 can begin at */
    int64_t windows; /* tokens: consecutive ones that do not overlap */
} ll_segments;

typedef struct ll_save ll_save;   /* an inflated file on its way to the cache */
typedef struct ll_table ll_table; /* table.h */

struct ll_dataset {
    ll_data_info info;
    ll_arena *arena;
    ll_segments split[2];
    /* The sample at a position; out as in ll_dataset_read. */
    ll_err (*read)(const ll_dataset *d, const ll_sampling *how, int64_t position, void *const *out);
    const ll_source *source;
    ll_table *table;          /* of formats that have columns; else NULL */
    const ll_data_opts *opts; /* while it is opened */
    ll_split reading;         /* while it is opened: what the files being read are for */
    bool held_out;            /* val_fraction was asked for */
    int64_t raw_height, raw_width, raw_channels; /* images of segments, as they are kept */
    double centre, mixup, cutmix;                /* of ll_data_opts */
    int mix_x, mix_y;                            /* the fields that are mixed */
    bool planar;                                 /* pixels are [c,h,w] */
    bool synthetic;                              /* no segments: samples are computed */
    uint64_t seed;                               /* synthetic */
    const uint8_t *patterns;
    float (*scale)[256]; /* [channel][byte] -> normalised */
    ll_bytes *blocks;
    int n_blocks, block_capacity;
    ll_save *saves;
    struct ll_at_close *held;
    struct ll_fetcher *fetcher; /* fetch.h; NULL: files are read as they are used */
};

/* The fraction of samples that is held out for validation; by whoever does so. */
static inline double ll_data_held_out(ll_dataset *d)
{
    d->held_out = true;
    return d->opts->val_fraction == 0 ? 0.05 : d->opts->val_fraction;
}

/* Anything else that is let go when a dataset closes. */
typedef struct ll_at_close {
    void (*let_go)(void *what);
    void *what;
    struct ll_at_close *next;
} ll_at_close;

/* A set known by name. */
typedef struct ll_known {
    const char *name, *format, *help, *source;
    const char *path; /* absolute, or below $LOOPLINE_DATA (without it: data) */
    int64_t classes;
    const char *const *class_names;
    double mean[LL_MAX_CHANNELS], deviation[LL_MAX_CHANNELS];
} ll_known;

/* Readers: fill segments or offer columns, by d->opts; the caller does the rest. */
typedef ll_err ll_reader(ll_dataset *d, const char *path);
ll_reader ll_read_idx, ll_read_cifar10, ll_read_text, ll_read_tokens, ll_read_bible,
    ll_read_synthetic, ll_read_jsonl, ll_read_images, ll_read_csv, ll_read_npy, ll_read_npz,
    ll_read_safetensors, ll_read_hdf5;

/* sample.c: ll_dataset.read of images, of tokens, of a source. */
ll_err ll_image_read(const ll_dataset *d, const ll_sampling *how, int64_t position,
                     void *const *out);
ll_err ll_window_read(const ll_dataset *d, const ll_sampling *how, int64_t position,
                      void *const *out);
ll_err ll_source_read(const ll_dataset *d, const ll_sampling *how, int64_t position,
                      void *const *out);
ll_err ll_table_read(const ll_dataset *d, const ll_sampling *how, int64_t position,
                     void *const *out);
/* A picture that is not of the set, as validation sees those that are. */
ll_err ll_dataset_picture(const ll_dataset *d, const char *path, float *out);
/* The table that bytes become numbers by, of info's means and deviations. */
void ll_dataset_scale(ll_dataset *d);
/* Adds a field to info. */
void ll_field_add(ll_dataset *d, const char *name, ll_dtype t, ll_shape shape);

void ll_segment_add(ll_dataset *d, ll_split split, const ll_segment *s);
/* A text whose bytes are the tokens; it becomes d's. */
ll_err ll_text_add(ll_dataset *d, const char *path, ll_bytes *text);

/* columns.c: x is made of another set's columns, and labels are of its classes. */
void ll_columns_adopt(ll_dataset *d, const ll_data_info *of);
/* csv_fields.c: rows of a CSV, of the columns that d's x is made of, as samples of f. */
struct ll_samples;
ll_err ll_csv_samples(const ll_dataset *d, const ll_field *f, const char *path, ll_arena *a,
                      struct ll_samples *out);

/* file.c. A missing file is LL_E_IO with the path; a file in use must not be truncated. */
ll_err ll_bytes_map(const char *path, ll_bytes *out);
void ll_bytes_free(ll_bytes *b);
#define LL_OWN_BYTES __attribute__((cleanup(ll_bytes_free))) ll_bytes
/* Gives a block to d, which frees it when closed. */
void ll_dataset_keep(ll_dataset *d, const ll_bytes *b);
void ll_dataset_hold(ll_dataset *d, void (*let_go)(void *what), void *what);
/* A file goes into what is told of d (data.json), and into its digest. data NULL: without. */
void ll_dataset_note(ll_dataset *d, const char *name, const uint8_t *data, uint64_t size);
/* Maps a file, keeps and notes it. */
ll_err ll_dataset_map(ll_dataset *d, const char *path, ll_bytes *out);
/* A file, or those of a folder that match names, or of a pattern, in the order of names. */
ll_err ll_data_files(const ll_dataset *d, const char *path, const char *names,
                     const char *const **out, int *n);

/* cache.c: bytes inflated from a file, kept in the user's cache folder. Find is false when there is
 * no cache or it is not of this very source; the saves of d are done by a thread that
 * ll_cache_wait joins. A cache that cannot be written is no error: the next start inflates again.
 */
bool ll_cache_find(const char *source, const ll_bytes *packed, ll_bytes *out);
void ll_cache_save(ll_dataset *d, const char *source, const ll_bytes *packed, const ll_bytes *raw);
void ll_cache_start(ll_dataset *d);
void ll_cache_wait(ll_dataset *d);

/* synthetic.c: one generated image, by rows; generated tokens. */
typedef struct ll_synthetic {
    uint64_t key;
    int32_t label;
} ll_synthetic;
ll_synthetic ll_synthetic_find(const ll_dataset *d, ll_split split, int64_t index);
void ll_synthetic_row(const ll_dataset *d, const ll_synthetic *s, int64_t y, uint8_t *row);
void ll_synthetic_tokens(const ll_dataset *d, ll_split split, int64_t from, int64_t count,
                         int32_t *out);
