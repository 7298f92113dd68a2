/* table.h: sets of rows: arrays of files (npy, npz, safetensors, HDF5, NetCDF), rows of a CSV,
 * pictures of a folder. A column becomes a field; its rows lie in one part a file, mapped or read
 * one by one, so that a set of any size and number of files costs nothing until rows are used.
 *
 *     ll_table_file(d, "a.npz");                           of each file:
 *     TRY(ll_table_offer(d, &(ll_array){.name = "x", ...}))     every array that it has
 *     TRY(ll_table_file_end(d));                           are all there, with as many rows?
 *     TRY(ll_table_finish(d));                             after the last one
 *
 * Which arrays are taken: those of data.fields ("x=images,y=labels"), else those that the model
 * takes, by name, else all. An array's numbers become its field's: any to f32, whole ones to i32,
 * which is checked; bytes that become f32 are divided by 255. */
#pragma once
#include "data/data_int.h"
#include "data/parse.h"

/* Some of a column's rows: from data on, stride apart; read one by one; or pictures. */
typedef struct ll_data_part {
    const char *file;
    int64_t n;
    const uint8_t *data;
    size_t stride; /* of an array that is offered, 0: without gaps */
    ll_err (*row)(const void *user, int64_t row, uint8_t *out);
    const void *user;
    const char *const *paths; /* files by row */
    const int64_t *line;      /* of text: the file's, by row; or NULL */
} ll_data_part;

typedef struct ll_array {
    const char *name;
    const char *field; /* that it becomes where nothing is said; NULL: as it is named */
    ll_elem type;
    const char *text; /* why it has no numbers; may be NULL */
    int n_dim;        /* of the whole, the first one rows; more than LL_MAX_DIMS cannot be taken */
    int64_t dim[LL_MAX_DIMS];
    double factor, offset; /* a number is stored * factor + offset; factor 0: as stored */
    ll_data_part rows;     /* but for file and n */
    bool map;              /* of classes: pictures that are taken as they are, without blending */
    bool standard;         /* numbers that are standardised where they become f32 */
} ll_array;

typedef struct ll_column {
    const char *name;  /* in the files */
    const char *field; /* that it becomes */
    ll_elem type;
    ll_shape shape; /* of a row */
    double factor, offset;
    ll_data_part *parts; /* those of training first */
    int n_part, capacity;
    bool picture, map, standard;
    const double *mean, *deviation; /* of each number of a row: standardised by them; or NULL */
} ll_column;

typedef struct ll_table {
    ll_column columns[LL_MAX_FIELDS];
    int n;
    int64_t rows[2];        /* that files have for training, for validation */
    int64_t first[2];       /* the first row of a split */
    const int64_t *pick[2]; /* or its rows one by one */
    const char *file;
    char offered[400]; /* of this file, for messages */
    int n_offered;
    bool sorted_out; /* data.fields is the reader's concern */
} ll_table;

/* The next item of data.fields, "x=images,y=labels"; false: there are no more. */
bool ll_fields_next(const char **at, ll_arena *a, const char **field, const char **array);
/* The field, of several one by its number, that array `name` becomes by "x=images,y=labels"; NULL:
 * it is not named there. */
const char *ll_table_renamed(ll_arena *a, const char *map, const char *name, int number);
/* Begins d's table. */
void ll_table_begin(ll_dataset *d);
void ll_table_file(ll_dataset *d, const char *file);
ll_err ll_table_offer(ll_dataset *d, const ll_array *a);
/* Its two halves, for a reader that knows which array is which field: what the file has, for
 * messages; and an array as this field, where it is wanted. */
void ll_table_note(ll_dataset *d, const ll_array *a);
ll_err ll_table_take(ll_dataset *d, const ll_array *a, const char *field);
/* What the model takes by this name; NULL: nothing, or there is no model. */
const ll_field *ll_table_wanted(const ll_data_opts *o, const char *field);
ll_err ll_table_file_end(ll_dataset *d);
ll_err ll_table_finish(ll_dataset *d);
/* What rows of files to train on are for: a split, or neither. */
enum { LL_TABLE_NEITHER = -1 };
void ll_table_pick(ll_dataset *d, const int8_t *part, int64_t n);
/* Row i of a split, as a row of all. */
int64_t ll_table_row(const ll_table *t, ll_split split, int64_t i);
/* A column by its field; NULL: none. */
const ll_column *ll_table_find(const ll_table *t, const char *field);
/* Its part with a row, which becomes the row's number there. */
const ll_data_part *ll_column_part(const ll_column *c, int64_t *row);
/* columns.c: means and deviations of column x over the rows to train on, where it is standardised
 * and they are not known; then all of a CSV is to be of numbers that f32 has. */
ll_err ll_columns_standardise(ll_dataset *d);
/* A row's numbers as a field's. */
ll_err ll_column_read(const ll_column *c, int64_t row, const ll_field *f, void *out);
