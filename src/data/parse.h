/* parse.h: bytes from outside, checked. Nothing here opens a file: a fuzzer can drive all of it.
 * `file` only names the source in messages. Every size in a header is checked against the bytes
 * that are there before anything is allocated or read. */
#pragma once
#include "base/err.h"

/* IDX (as MNIST): 0, 0, type (8: u8), number of dimensions, then each as a big-endian u32. */
#define LL_IDX_DIMS 4
#define LL_IDX_HEADER_MAX (4 + 4 * LL_IDX_DIMS)
typedef struct ll_idx {
    int n_dim;
    int64_t dim[LL_IDX_DIMS];
    size_t offset, bytes; /* where the elements begin and how many there are */
} ll_idx;
/* The header, and exactly as many bytes behind it as it says. */
ll_err ll_idx_parse(const uint8_t *bytes, size_t size, const char *file, ll_idx *out);
/* An IDX file packed by gzip, inflated straight into one malloc'ed block of the header's size. */
ll_err ll_idx_gunzip(const uint8_t *gz, size_t size, const char *file, uint8_t **out,
                     size_t *out_size);
/* Labels at bytes, bytes + stride, ...: every one below classes. offset: of the first, in file. */
ll_err ll_labels_check(const uint8_t *bytes, int64_t n, size_t stride, int64_t classes,
                       const char *file, size_t offset);

/* CIFAR-10 binary: records of a label and 3 planes of 32 x 32 bytes. */
#define LL_CIFAR_SIDE 32
#define LL_CIFAR_RECORD (1 + 3 * LL_CIFAR_SIDE * LL_CIFAR_SIDE)
ll_err ll_cifar_parse(const uint8_t *bytes, size_t size, const char *file, int64_t *n);

/* llm.c's token files: 256 little-endian i32 (magic, version, count, zeros), then u16 tokens. */
#define LL_TOKENS_HEADER 1024
#define LL_TOKENS_MAGIC 20240520
ll_err ll_tokens_parse(const uint8_t *bytes, size_t size, const char *file, int64_t *n);

/* The packed text of bible-kjv-text, unpacked into a malloc'ed block. */
ll_err ll_bible_parse(const uint8_t *bytes, size_t size, const char *file, uint8_t **out,
                      size_t *out_size);

/* An element as it lies in a file. */
typedef struct ll_elem {
    char kind; /* 'f'; 'b' bfloat16; 'i', 'u'; '?' a truth value; 0: none that we have */
    int bytes;
    bool swap; /* of the other byte order */
} ll_elem;

/* NumPy's .npy: the header, and at least as many bytes behind it as it says. */
typedef struct ll_npy {
    ll_elem type;
    int n_dim;
    int64_t dim[LL_MAX_DIMS];
    size_t offset, bytes;
} ll_npy;
ll_err ll_npy_parse(const uint8_t *bytes, size_t size, const char *file, ll_npy *out);

/* A zip archive's entries one by one: *at is 0 before the first; data NULL: there are no more. */
typedef struct ll_zip_entry {
    const char *name; /* not ended by a zero byte */
    size_t name_size;
    const uint8_t *data;
    size_t size, raw; /* bytes as they lie there, and inflated */
    bool packed;
    uint32_t crc;
} ll_zip_entry;
ll_err ll_zip_next(const uint8_t *bytes, size_t size, const char *file, size_t *at,
                   ll_zip_entry *out);
/* A packed entry into a malloc'ed block of raw bytes, its check sum compared. */
ll_err ll_zip_inflate(const ll_zip_entry *e, const char *file, uint8_t **out);

/* Classic NetCDF: its variables, all within the file. Elements are big-endian. */
#define LL_CDF_DIMS 256
#define LL_CDF_VARIABLES 256
typedef struct ll_cdf_variable {
    const char *name; /* not ended by a zero byte */
    size_t name_size;
    ll_elem type; /* kind 0: text */
    int n_dim;
    int64_t dim[LL_MAX_DIMS];
    bool record; /* rows are records, stride apart */
    size_t begin, bytes, stride;
    double factor, offset; /* of scale_factor and add_offset; factor 0: neither */
} ll_cdf_variable;
typedef struct ll_cdf {
    int n;
    ll_cdf_variable v[LL_CDF_VARIABLES];
} ll_cdf;
ll_err ll_cdf_parse(const uint8_t *bytes, size_t size, const char *file, ll_cdf *out);

/* The next line that is not blank, without blanks before it, and its number; NULL: none. */
const char *ll_line_next(const char **at, const uint8_t *end, int64_t *line, size_t *n);
/* Lines of JSON: the texts of one field, a zero byte behind each, in a malloc'ed block. */
ll_err ll_jsonl_parse(const uint8_t *bytes, size_t size, const char *field, const char *file,
                      uint8_t **out, size_t *out_size);

/* Questions of which one choice is right, one a line. Errors name the line. */
enum { LL_CHOICES = 26 };
typedef struct ll_question {
    const char *text, *choices[LL_CHOICES];
    int n, answer;
    int64_t line;
} ll_question;
struct ll_arena;
ll_err ll_choices_parse(const uint8_t *bytes, size_t size, const char *file, struct ll_arena *a,
                        ll_question **out, int64_t *n);

/* A CSV, its cells in the arena: the first line's, which names the columns, then the rows'. */
typedef struct ll_csv {
    int columns;
    int64_t rows;
    char **cells;  /* [1 + rows, columns] */
    int64_t *line; /* [1 + rows] of the file, where each begins */
} ll_csv;
ll_err ll_csv_parse(const uint8_t *bytes, size_t size, const char *file, struct ll_arena *a,
                    ll_csv *out);
/* A cell without the blanks around it, in place. */
char *ll_csv_trimmed(char *text);
