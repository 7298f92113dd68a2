/* gguf.h: files of llama.cpp's family: pairs of keys and values, then tensors, some of them
 * quantised in blocks of a row. Nothing of a file is trusted: what is handed out lies inside it. */
#pragma once
#include "base/arena.h"
#include "base/text.h"
#include "base/types.h"

/* Element types by their numbers. A block of so many elements is so many bytes. */
typedef struct ll_quant {
    int id;
    const char *name;
    ll_dtype dtype; /* as it lies; LL_F32 with floats != NULL: what a block becomes */
    int block, bytes;
    void (*floats)(const uint8_t *block, float *out); /* NULL: plain elements */
} ll_quant;
const ll_quant *ll_quant_find(int id); /* NULL: none that we read */

typedef struct ll_gguf_pair {
    const char *key;
    int type; /* of the elements, where it is an array */
    bool array;
    int64_t n; /* elements; 1 of what is no array */
    const uint8_t *at;
} ll_gguf_pair;

typedef struct ll_gguf_tensor {
    const char *name;
    int type;
    const ll_quant *quant; /* NULL: of a type that is not read; data is NULL then */
    ll_shape shape;        /* the last dimension runs fastest; n -1: more than we have */
    const uint8_t *data;
} ll_gguf_tensor;

typedef struct ll_gguf {
    ll_gguf_pair *pairs;
    ll_gguf_tensor *tensors;
    int n_pair, n_tensor;
} ll_gguf;

/* Everything is in arena, or points into the bytes. */
ll_err ll_gguf_parse(const uint8_t *bytes, size_t size, const char *path, ll_arena *arena,
                     ll_gguf *out);
const ll_gguf_pair *ll_gguf_find(const ll_gguf *g, const char *key); /* NULL: none */
/* A number or truth value; an array's is its count. False: it is none. */
bool ll_gguf_number(const ll_gguf_pair *p, double *out);
const char *ll_gguf_text(const ll_gguf_pair *p, ll_arena *a); /* a string; NULL: it is none */
/* The strings of an array, with a zero byte behind each; NULL: it is none. */
const char **ll_gguf_texts(const ll_gguf_pair *p, ll_arena *a, int **lengths);
/* Numbers of an array; NULL: it is none. */
double *ll_gguf_numbers(const ll_gguf_pair *p, ll_arena *a);

/* ---- writing (gguf_write.c) ---- */
enum { LL_GGUF_PAIRS = 64 };
typedef struct ll_gguf_out { /* begins as {.arena = a} */
    const char *keys[LL_GGUF_PAIRS];
    ll_buf values[LL_GGUF_PAIRS];
    int n;
    ll_arena *arena;
} ll_gguf_out;
void ll_gguf_put_int(ll_gguf_out *o, const char *key, uint32_t v);
void ll_gguf_put_real(ll_gguf_out *o, const char *key, double v);
void ll_gguf_put_bool(ll_gguf_out *o, const char *key, bool v);
void ll_gguf_put_text(ll_gguf_out *o, const char *key, const char *v);
void ll_gguf_put_texts(ll_gguf_out *o, const char *key, const char *const *v, int n);
void ll_gguf_put_ints(ll_gguf_out *o, const char *key, const int *v, int n);
/* Data of tensors: as their quant has it, whole blocks. */
ll_err ll_gguf_write(const ll_gguf_out *o, const ll_gguf_tensor *t, int n, const char *path);
