/* data.h: datasets, sampling, prefetch.
 *
 *     ll_dataset *d;
 *     TRY(ll_dataset_open(&(ll_data_opts){.name = "fashion-mnist"}, &d));
 *     ll_loader *l;
 *     TRY(ll_loader_open(d, &(ll_loader_opts){.batch = 64, .how = {.seed = 1}}, &l));
 *     ll_data_batch b;
 *     TRY(ll_loader_next(l, &b));            batch 0: b.data[0] f32 [64,28,28,1], [1] i32 [64]
 *     ll_loader_close(l), ll_dataset_close(d);
 *
 * 1. Which sample stands at a position, and how it is cropped or flipped, is a function of (seed,
 *    position) and of nothing else: not of the batch, the threads or the ranks that read. Training
 *    positions run on without end (position n is the first of the second epoch), so a run's data
 *    position is its step number, and resuming is opening a loader at that step.
 * 2. Images are kept as the bytes on disk and become f32 [h,w,c], (x/255 - mean)/deviation, when
 *    read. Tokens are windows: x = tokens[o .. o+seq), y = the same shifted by one.
 *    Training draws windows anywhere; validation has the consecutive ones, that do not overlap.
 * 3. A dataset does not change once open: any number of loaders and threads may read it.
 * Every function is local. */
#pragma once
#include "base/err.h"
#include "base/own.h"
#include "base/text.h"

#include <stdio.h>

typedef struct ll_dataset ll_dataset;
typedef struct ll_loader ll_loader;
typedef enum ll_data_kind { LL_IMAGES, LL_TOKENS, LL_RECORDS } ll_data_kind;
typedef enum ll_split { LL_TRAIN, LL_VAL } ll_split;

/* ---- datasets ---- */
#define LL_MAX_CHANNELS 4
#define LL_MAX_FETCH 256
typedef struct ll_data_opts {
    const char *name;     /* fashion-mnist kjv cifar10 tokens synthetic; or NULL with a format: */
    const char *format;   /* one of LL_DATA_FORMATS */
    const char *path;     /* a file or folder, or a pattern of files such as "d/x_*.bin" */
    const char *val_path; /* likewise, for validation; NULL: part of path's, or held out of them */
    double val_fraction;  /* held out, of sets without test files alone; 0: 0.05, if need be */
    int64_t seq;          /* tokens: length of a window; 0: 256 */
    int64_t vocab;        /* tokens: every one must be below; 0: 256 for bytes, 50257 for GPT-2's */
    int64_t classes;      /* images: labels must be below; 0, or a set known by name: as it has */
    /* synthetic: tokens where vocab is set, else images of these sizes (0: 28 x 28 x 1, 10 classes)
     * with a pattern of each class under noise. */
    int64_t height, width, channels;
    int64_t samples; /* training images, or windows of seq tokens; 0: 10000 */
    uint64_t seed;   /* of what is generated, not of the order it is read in */
    /* Of files on a slow store (fetch.h): a local folder to copy them to, or NULL; how many threads
     * of a loader read them ahead, 0: 16 with a cache, else none; seconds that each read takes
     * longer, to try such a store. */
    const char *cache;
    int fetch; /* at most LL_MAX_FETCH */
    double delay;
    const ll_source *source; /* in place of name, format and path; outlives the dataset */
    const char *fields;      /* arrays as fields: "x=images,y=labels"; NULL: by their names */
    /* csv: whose classes, columns, means and deviations hold; images: whose classes hold for
     * folders that it names, all of them; or NULL. */
    const ll_dataset *told;
    const ll_field *want; /* what the model takes: other arrays are left, these are converted */
    int n_want;
    const char *tokenizer; /* text becomes tokens by it (token/tokenizer.h); NULL: its bytes are */
    int64_t token_bytes;   /* tokens without a header: 2 or 4 bytes each; 0: by the file's name */
    const char *field;     /* jsonl: that has the text; NULL: "text" */
    /* Pictures, of any format: the size that they are brought to, and their channels; 0: as files
     * have them, or, where each may differ, height, width and channels, or 224 x 224 x 3. */
    int64_t image_height, image_width, image_channels;
    double centre; /* validation sees this part of the largest window that fits; 0: all of it */
    /* Training images are blended in pairs, or get a rectangle of the other, by a share drawn from
     * Beta(a, a), 0 < a <= 1; 0: no. Fields "y2" i32 and "mix" f32 then say the other's label, and
     * which share is y's. */
    double mixup, cutmix;
    /* Of x/255, or of a CSV's numbers: one for each channel or column, or one for all; 0: the set's
     * own. */
    int n_mean, n_deviation;
    double mean[LL_MAX_CHANNELS], deviation[LL_MAX_CHANNELS];
} ll_data_opts;

#define LL_DATA_FORMATS "idx cifar10 images csv text tokens jsonl npy npz safetensors hdf5 netcdf"

#define LL_NOTED_FILES 64
typedef struct ll_data_file {
    const char *name; /* without the folder that was given */
    uint64_t size;
} ll_data_file;

typedef struct ll_data_info {
    const char *name;  /* of the set, or of the format */
    const char *where; /* the file or folder it came from; "" if generated */
    ll_data_kind kind;
    int64_t n[2];                      /* LL_TRAIN, LL_VAL: images, or windows in one epoch */
    int64_t height, width, channels;   /* images */
    int64_t classes;                   /* images */
    const char *const *class_names;    /* images: classes of them, or NULL */
    const char *last_class;            /* "FILE:LINE" that is of the last one; NULL: not known */
    const char *mixed;                 /* a label that is none where others are numbers */
    const char *note;                  /* cells that make columns no numbers; NULL: none */
    double mean[LL_MAX_CHANNELS];      /* images, of x/255, by channel */
    double deviation[LL_MAX_CHANNELS]; /* images, likewise */
    /* csv: the columns that x is made of, and what they are standardised by; n_column 0: none. */
    int64_t n_column;
    const char *const *columns;
    const double *column_mean, *column_deviation;
    double y_mean, y_deviation;    /* csv: of numbers to predict */
    int64_t seq, vocab, tokens[2]; /* tokens; tokens[split]: how many there are */
    int64_t source; /* tokens before a window that a model takes as "source", i32 [source]; or 0 */
    bool is_text;   /* tokens are bytes of text */
    /* What a sample is, as read: images "x" f32 [h,w,c] and "y" i32 []; tokens both i32 [seq];
     * records any. */
    ll_field fields[LL_MAX_FIELDS];
    size_t field_bytes[LL_MAX_FIELDS];
    int n_field;
    size_t bytes, mapped; /* of the data as it is kept; of these, in files that are mapped */
    /* The files that it came from: how many, the first of them, and a checksum of all names and
     * sizes, and of the content: all of what was read whole, pages of the rest; and the checksum
     * without files that are for validation alone. */
    int64_t n_file;
    uint64_t file_bytes; /* of all */
    ll_data_file files[LL_NOTED_FILES];
    uint32_t digest, train_digest;
    size_t looked_at; /* bytes that the checksum has brought into memory */
} ll_data_info;
/* Of a mapped file so much is brought at once. */
#define LL_FAULT_BYTES ((size_t)1 << 16)

ll_err ll_dataset_open(const ll_data_opts *opts, ll_dataset **out);
void ll_dataset_close(ll_dataset *d);
LL_OWNED(ll_dataset, ll_dataset_close);
const ll_data_info *ll_dataset_info(const ll_dataset *d);
/* "2 columns: a, b": those of x, for people. */
const char *ll_data_columns(const ll_data_info *f, ll_arena *a);
/* "3 classes: a, b, c": y of a CSV, for people; NULL: it has none. */
const char *ll_data_target(const ll_data_info *f, ll_arena *a);
/* What it is like, as JSON (data.json); and back, as a set without samples, to which files are
 * brought that are not of it (samples.h). */
void ll_dataset_tell(const ll_dataset *d, ll_buf *out);
ll_err ll_told_parse(const char *text, size_t size, const char *file, ll_dataset **out);
ll_err ll_told_read(const char *path, ll_dataset **out);
/* What is done to a file's numbers before a model has them: "x is pixels of 0 to 1, less 0.286,
 * divided by 0.353"; NULL: nothing. */
const char *ll_data_scaling(const ll_data_info *f, ll_arena *a);
/* The usual ones of colours. */
extern const double ll_imagenet_mean[3], ll_imagenet_deviation[3];

/* ---- sampling ---- */
typedef struct ll_sampling {
    ll_split split;
    uint64_t seed;
    bool flip; /* training images: mirrored with probability 1/2 */
    int crop;  /* training images: padded by so many black pixels, then cut back at random */
    /* Training images: a window of a part of the area in this range is brought to size; [1] 0: the
     * middle, as in validation. */
    double scale[2];
    double jitter; /* training images: brightness, contrast, saturation by a factor of 1 +- this */
} ll_sampling;

/* The sample at a position >= 0: the image's number, or the window's first token, within its
 * split. Validation is in order and starts over after n. */
int64_t ll_sample_index(const ll_dataset *d, const ll_sampling *how, int64_t position);
/* A sample's field by its name, for messages: "x of sample 17 of d/a.npy": of the file's, where
 * that is known, else of the split's. */
char *ll_sample_name(const ll_dataset *d, ll_split split, int64_t index, const char *field,
                     ll_arena *a);
/* Samples position .. position+count-1, field i of them into out[i] (NULL: not wanted), now and on
 * this thread. */
ll_err ll_dataset_read(const ll_dataset *d, const ll_sampling *how, int64_t position, int64_t count,
                       void *const *out);
/* Image `index` of a split as it is kept: bytes [h,w,c]. */
ll_err ll_dataset_image(const ll_dataset *d, ll_split split, int64_t index, uint8_t *pixels,
                        int32_t *label);
/* count tokens of a split from token `from` on; they must lie in one file. */
ll_err ll_dataset_tokens(const ll_dataset *d, ll_split split, int64_t from, int64_t count,
                         int32_t *out);

/* ---- loaders: batches made ahead of time by a thread ---- */
typedef struct ll_loader_opts {
    ll_sampling how;
    int64_t batch; /* samples in a whole batch: batch k holds positions k*batch .. */
    int64_t start; /* the first batch wanted (the step resumed at) */
    /* The part of each batch that is read here: samples first .. first+count-1; count 0: all.
     * every: of every so many samples of the batch, one part after another (0: of the batch). */
    int64_t first, count, every;
    int threads; /* that make samples; 0: where they are decoded, one for each core */
    bool asked;  /* not one batch after another from start on, but those of ll_loader_ask */
} ll_loader_opts;

typedef struct ll_data_batch {
    int64_t number;                  /* k */
    const void *data[LL_MAX_FIELDS]; /* by field */
    size_t bytes[LL_MAX_FIELDS];     /* of the whole buffer */
} ll_data_batch;

/* d must outlive the loader. */
ll_err ll_loader_open(const ll_dataset *d, const ll_loader_opts *opts, ll_loader **out);
/* That batches made ahead take: of a loader that reads so many samples of each. */
size_t ll_loader_bytes(const ll_dataset *d, int64_t samples);
/* Of batch k, first lying shift samples further on, as the one after those asked for before: two
 * at most that were not yet taken. */
void ll_loader_ask(ll_loader *l, int64_t k, int64_t shift);
/* The next batch; it stays valid until the next call. A failure of the thread shows here. */
ll_err ll_loader_next(ll_loader *l, ll_data_batch *out);
int ll_loader_threads(const ll_loader *l); /* that make samples, or read their files */
void ll_loader_close(ll_loader *l);
LL_OWNED(ll_loader, ll_loader_close);

/* ---- what there is, and showing it ---- */
typedef struct ll_data_entry {
    const char *name, *help;
    const char *source; /* what is expected there: "the file of Debian package bible-kjv-text" */
    bool installed;
    ll_data_info info; /* if installed; its strings live as long as the program */
    char where[256];   /* where it is, or is looked for */
    char problem[512]; /* if not installed: why */
} ll_data_entry;
#define LL_MAX_DATASETS 8
/* Where sets known by name are looked for that no package installs: $LOOPLINE_DATA, or data. */
const char *ll_data_folder(void);
/* Every dataset known by name; returns how many. */
int ll_dataset_list(ll_data_entry out[LL_MAX_DATASETS]);

typedef enum ll_show {
    LL_SHOW_ASCII, /* a ramp of characters, nothing else */
    LL_SHOW_256,   /* Unicode half blocks in 256 colours */
    LL_SHOW_RGB    /* Unicode half blocks in 24-bit colour */
} ll_show;
ll_show ll_show_style(FILE *f); /* what f's terminal can show, from it and the environment */
/* Images of a split side by side, the names of their classes below. */
ll_err ll_show_images(const ll_dataset *d, ll_split split, const int64_t *index, int n, ll_show how,
                      FILE *f);
/* count tokens: text, with what cannot be printed as \xNN; or token numbers. */
ll_err ll_show_tokens(const ll_dataset *d, ll_split split, int64_t from, int64_t count, FILE *f);
