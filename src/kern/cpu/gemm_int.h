/* gemm_int.h: tiles, the innermost loops of a matrix product, and how operands are packed for them.
 *
 * A tile is mr rows by nv vectors of C, all held in registers while k runs. Its rows come from A
 * (one number at a time, multiplied into vectors), its columns from B (whole vectors). The numbers
 * of A are read where they lie when one of A's strides is 1; the vectors of B where they lie when
 * b_cs = 1; otherwise from a packed copy. gemm.c decides. */
#pragma once
#include "base/num.h"
#include "kern/cpu/gemm.h"

/* Where a tile finds A, already packed or not: element (i, p) is a[i * rs + p * cs]. */
typedef struct ll_gemm_tile {
    int64_t k;
    const void *a;
    int64_t a_rs, a_cs;
    const void *b; /* row p of the panel is b + p * b_rs, nv vectors wide */
    int64_t b_rs;
    const void *ahead; /* NULL, or a line of what comes next is asked for at each k */
    void *c;           /* nv vectors wide */
    int64_t c_rs;
    double start; /* of sums in f64 */
    bool add;
    bool narrow; /* c is bf16; only where the kind says so */
} ll_gemm_tile;

/* The other form, for A and B that both run along k (a_cs = b_rs = 1): vectors along k, summed at
 * the end. No packing at all, so it wins when few rows of A share a column of B. A ragged end of k
 * reads a whole vector up to it: there must be that many numbers before. */
typedef struct ll_gemm_dot {
    int64_t k;
    const void *a, *b; /* rows of A at a + i * a_rs, columns of B at b + j * b_cs */
    int64_t a_rs, b_cs;
    void *c;
    int64_t c_rs, c_cs;
    double start;
    bool add;
} ll_gemm_dot;

/* m x n numbers, in rows of `width`, to C, or added to it. */
typedef struct ll_gemm_store {
    const void *from;
    int64_t width, m, n;
    void *c;
    int64_t c_rs, c_cs;
    bool add;
} ll_gemm_store;

/* What sums are made in: f32 or f64. */
typedef struct ll_gemm_real {
    size_t bytes;       /* of a number */
    int dot_mr, dot_nr; /* the largest dot tile */
    void (*dot)(int mr, int nr, const ll_gemm_dot *t);
    void (*store)(const ll_gemm_store *s);
} ll_gemm_real;
extern const ll_gemm_real ll_gemm_real_f32, ll_gemm_real_f64;

/* One family of tiles: f32, f64, or bf16 by the CPU's own instructions. */
typedef struct ll_gemm_kind {
    const char *name;         /* "f32 NEON 8x12" */
    const ll_gemm_real *real; /* of C and, unless they are bf16, of A and B */
    int mr, nv, lanes;        /* largest tile: mr rows, nv vectors of so many columns */
    int k_step;               /* packed k is rounded up to a multiple, the rest zero */
    int k_max;                /* k of one pass: an A tile and a B panel of it fit the first cache */
    int a_panels;             /* packing A pays when more panels of B than this share it */
    size_t bytes;             /* of a packed element */
    void (*tile)(int mr, int nv, const ll_gemm_tile *t);
    bool any_rows; /* tiles of all heights up to mr are about as good, and can be packed */
    /* Copies k in [p, p + kc) of rows [i, i + m) of A as tiles of `high` rows (mr, if they must),
     * one after the other, each with k outermost; of columns [j, j + n) of B as panels of nv
     * vectors. The last tile is as high as there are rows, the last panel as many whole vectors
     * wide as it needs. */
    void (*pack_a)(const ll_gemm_call *g, int64_t i, int64_t m, int high, int64_t p, int64_t kc,
                   void *to);
    void (*pack_b)(const ll_gemm_call *g, int64_t j, int64_t n, int64_t p, int64_t kc, void *to);
    bool narrows; /* whole tiles can be stored as bf16 */
    bool packs;   /* tiles read packed operands alone, but for the next */
    /* A of so many rows, or a multiple, whose k lie together and need no rounding up: tiles read it
     * where it lies (a_cs = 1); 0: none. */
    int rows_in_place;
    void (*begin)(void), (*end)(void); /* around a product; NULL: nothing to do */
} ll_gemm_kind;

extern const ll_gemm_kind ll_gemm_f32, ll_gemm_f64;
/* NULL: this CPU, or this build, has no bf16 products; here: asks the CPU. */
const ll_gemm_kind *ll_gemm_bf16(void), *ll_gemm_bf16_here(void);
/* What multiplies g's operands. */
const ll_gemm_kind *ll_gemm_kind_of(const ll_gemm_call *g);

/* Bytes of an element of the operands and of the result. */
static inline size_t ll_gemm_in_bytes(const ll_gemm_call *g)
{
    return g->bf16 ? 2 : g->f64 && !g->a_by ? 8 : 4;
}
static inline size_t ll_gemm_out_bytes(const ll_gemm_call *g)
{
    return g->bf16_out ? 2 : g->f64 ? 8 : 4;
}

/* ---- a product in parts; o: the product as ll_gemm_oriented gives it ---- */
/* Which tiles, what is packed, in blocks of what size. */
typedef struct ll_gemm_form {
    const ll_gemm_kind *kind;
    bool dot, pack_a, pack_b, copy_c;
    bool narrow;        /* tiles store bf16 */
    int64_t mc, nc, kc; /* block sizes */
    int64_t group;      /* panels packed together */
} ll_gemm_form;

/* Rows [i, i1) and columns [j, j1) of C. Tiles must begin with them: j is a multiple of a panel, i
 * of mr unless the kind has any_rows. */
typedef struct ll_gemm_part {
    int64_t i, i1, j, j1;
    const char *b; /* NULL, or what ll_gemm_pack_b made of all of B */
    char *scratch; /* ll_gemm_part_scratch */
} ll_gemm_part;

/* The same product with rows and columns exchanged when it is the columns of C that lie together.
 * The stride of a single row or column says nothing: it becomes 1, which suits every tile. */
ll_gemm_call ll_gemm_oriented(const ll_gemm_call *g);
/* For parts of m x n. */
ll_gemm_form ll_gemm_choose(const ll_gemm_call *o, int64_t m, int64_t n);
size_t ll_gemm_part_scratch(const ll_gemm_call *o, bool b_packed);
void ll_gemm_run_part(const ll_gemm_call *o, const ll_gemm_form *f, const ll_gemm_part *part);

/* B packed once for all parts: bytes, the items that it is made of, and items [from, to). */
size_t ll_gemm_b_bytes(const ll_gemm_call *o, const ll_gemm_kind *kind);
int64_t ll_gemm_b_items(const ll_gemm_call *o, const ll_gemm_form *f);
void ll_gemm_pack_b(const ll_gemm_call *o, const ll_gemm_form *f, int64_t from, int64_t to,
                    char *b);
