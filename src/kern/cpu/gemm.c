/* gemm.c: matrix products on one thread: which tiles, what is packed, in what order.
 *
 *     for each block of rows of A (so many that a pass of them fits the second cache)
 *       for each pass of k (so long that a tile's share of A and B fits the first cache)
 *         for each group of panels of B, packed here if packing pays
 *           for each panel (one tile wide), for each tile of rows: C tile += A tile * B panel
 *
 * A packed group is used at once by all rows of the block, so it needs little scratch and is still
 * in the cache. It is several panels wide so that whole cache lines of B are read. Where several
 * blocks of rows, or threads, want the same B, gemm_threads.c has all of it packed first. A tile
 * can read either operand in place just as fast while its lines do not push each other out of the
 * cache; operands are packed when they are bf16 (widened to f32 here, unless the CPU multiplies
 * bf16 itself) or are to be fixed point, when no stride is 1, or when they are too scattered and
 * used often enough. Of fixed point, which attention's masks fill with zeros, tiles leave out the
 * first and the last k at which their rows are all 0. */
#include "kern/cpu/gemm_int.h"

#include <math.h>

enum {
    /* In elements of 4 bytes or less; of f64 half as many. */
    A_CHUNK = 128 * 1024, /* packed elements of A in one block: half of a 1 MB second cache */
    B_CHUNK = 24 * 1024,  /* packed elements of B in one group */
    IN_PLACE = 8 * 1024,  /* elements that may be read in place however often */
    M_MAX = 512,          /* rows of one block */
    LEAST_ROWS = 4,       /* of the largest tile of any machine */
    N_COPY = 256,         /* columns of the copy of C that bf16 and strided results go through */
    FEW_ROWS = 32,        /* fewer rows than this do not pay for packing a B that is near anyway */
    FEW_PANELS = 3,       /* no more panels than this pay for packing a scattered A */
    DOT_ROWS = 48,        /* fewer rows than this do not pay for turning B over */
    DOT_K = 32,           /* shorter sums do not pay for adding up vectors; at least a vector */
    DOT_K_PASS = 1024,    /* k of one pass of dot tiles */
};

/* One of the sizes above, for g's elements. */
static int64_t sized(const ll_gemm_call *g, int64_t elements)
{
    return g->f64 ? elements / 2 : elements;
}

/* Packed elements of A in one block. */
static int64_t a_chunk(const ll_gemm_call *g, const ll_gemm_kind *kind)
{
    return kind->packs ? 2 * A_CHUNK : sized(g, A_CHUNK);
}

/* Rows this far apart fall on few cache lines: a power of two of pages. */
static bool collides(const ll_gemm_call *g, int64_t stride)
{
    return stride % sized(g, 1024) == 0;
}

ll_gemm_call ll_gemm_oriented(const ll_gemm_call *g)
{
    ll_gemm_call o = *g;
    if (!o.c_cs || o.n == 1) o.c_cs = 1;
    bool turn = (g->n == 1 || o.c_cs != 1) && o.c_rs == 1 && o.m > 1;
    if (turn) {
        o.m = g->n, o.n = g->m;
        o.a = g->b, o.a_rs = g->b_cs, o.a_cs = g->b_rs;
        o.b = g->a, o.b_rs = g->a_cs, o.b_cs = g->a_rs;
        o.a_by = g->b_by, o.a_bs = g->b_bs, o.b_by = g->a_by, o.b_bs = g->a_bs;
        o.c_rs = o.c_cs, o.c_cs = 1;
    }
    if (o.n == 1) o.b_cs = 1;
    if (o.k <= 1 && o.b_cs != 1) o.b_rs = 1;
    if (o.a_cs != 1 && o.m == 1) o.a_rs = 1;
    if (o.a_rs != 1 && o.k <= 1) o.a_cs = 1;
    return o;
}

const ll_gemm_kind *ll_gemm_bf16(void)
{
    /* Of the process, for so are its CPU and its leave to use tiles. 0: not asked yet; asking twice
     * at once gives the same answer. */
    static int found;
    static const ll_gemm_kind *kind;
    if (!__atomic_load_n(&found, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&kind, ll_gemm_bf16_here(), __ATOMIC_RELAXED);
        __atomic_store_n(&found, 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&kind, __ATOMIC_RELAXED);
}

const ll_gemm_kind *ll_gemm_kind_of(const ll_gemm_call *g)
{
    const ll_gemm_kind *own = g->bf16 ? ll_gemm_bf16() : NULL;
    return own ? own : g->f64 ? &ll_gemm_f64 : &ll_gemm_f32;
}

const char *ll_gemm_tiles(bool bf16)
{
    return ll_gemm_kind_of(&(ll_gemm_call){.bf16 = bf16})->name;
}

/* Whether tiles of A are better packed, kc of k at a time. By columns (a_rs = 1) a tile takes half
 * a line of each column: fine while all of it stays near. */
static bool scattered_a(const ll_gemm_call *g, const ll_gemm_kind *kind, int64_t kc)
{
    int64_t panels = g->n / (kind->nv * kind->lanes);
    if (g->a_cs == 1) return panels > (collides(g, g->a_rs) ? FEW_PANELS : kind->a_panels);
    if (g->a_rs == 1) return panels > FEW_PANELS && g->a_cs * kc > sized(g, 2 * IN_PLACE);
    return true;
}

/* Whether tiles that want packed operands can have A as it is. */
static bool rows_in_place(const ll_gemm_call *g, const ll_gemm_kind *kind)
{
    return kind->rows_in_place && g->a_cs == 1 && g->m % kind->rows_in_place == 0 &&
           g->k % kind->k_step == 0 && !collides(g, g->a_rs);
}

static bool scattered_b(const ll_gemm_call *g, const ll_gemm_kind *kind, int64_t kc)
{
    int64_t width = kind->nv * kind->lanes, span = kc * g->b_rs;
    if (g->b_cs != 1 || (g->n < width && g->n % kind->lanes)) return true;
    return collides(g, g->b_rs) || span > sized(g, g->m < FEW_ROWS ? 4 * IN_PLACE : IN_PLACE);
}

ll_gemm_form ll_gemm_choose(const ll_gemm_call *o, int64_t m, int64_t n)
{
    ll_gemm_call part = *o;
    const ll_gemm_call *g = &part;
    part.m = m, part.n = n;
    ll_gemm_form f = {.kind = ll_gemm_kind_of(o)};
    const ll_gemm_kind *kind = f.kind;
    f.dot = !g->bf16 && !g->bf16_out && !g->a_by && g->a_cs == 1 && g->b_rs == 1 && g->k >= DOT_K &&
            (g->m < DOT_ROWS || (g->n < kind->nv * kind->lanes && g->k >= 2 * DOT_K));
    int64_t width = kind->nv * kind->lanes, panels = ll_ceil_div(g->n, width);
    /* Of the whole: sums are the same however many parts there are. */
    int64_t k_max = o->m < 2 * FEW_ROWS ? kind->k_max / 2 : kind->k_max;
    int64_t passes = ll_max64(ll_ceil_div(g->k, k_max), 1);
    f.kc = ll_round_up(ll_ceil_div(g->k, passes), kind->k_step);
    f.mc = ll_min64(a_chunk(g, kind) / (f.kc + 1), M_MAX) / kind->mr * kind->mr;
    f.mc = ll_round_up(ll_ceil_div(g->m, ll_ceil_div(g->m, f.mc)), kind->mr);
    f.narrow = g->bf16_out && kind->narrows && passes == 1 && g->c_cs == 1 && o->n % width == 0;
    f.copy_c = (g->bf16_out && !f.narrow) || g->c_cs != 1;
    bool changes = g->bf16 || g->a_by; /* what it is multiplied as */
    f.pack_a = kind->packs ? !rows_in_place(o, kind) : changes || scattered_a(g, kind, f.kc);
    f.pack_b = changes || kind->packs || scattered_b(g, kind, f.kc);
    f.group = ll_max64(ll_min64(sized(g, B_CHUNK) / (width * (f.kc + 1)), panels), 1);
    f.nc = f.copy_c ? N_COPY / width * width : g->n;
    f.nc = ll_min64(ll_round_up(f.nc, width), g->n);
    return f;
}

/* ---- scratch: packed A, a packed group of B, the copy of C ---- */
typedef struct room {
    size_t a, b, c; /* bytes */
} room;

/* What any product no larger than g needs, whichever way round and however it is blocked. */
static room room_for(const ll_gemm_call *g, const ll_gemm_kind *kind)
{
    int64_t k = ll_round_up(ll_min64(g->k, kind->k_max), kind->k_step), side = ll_max64(g->m, g->n);
    int64_t rows = ll_min64(ll_round_up(side, kind->mr), M_MAX), width = kind->nv * kind->lanes;
    bool turned = g->c_rs == 1; /* may be */
    ll_gemm_call a = *g, b = *g;
    a.n = b.n = side;
    b.a_rs = g->b_cs, b.a_cs = g->b_rs;
    bool packs = g->bf16 || g->a_by || kind->packs || scattered_a(&a, kind, k) ||
                 (turned && scattered_a(&b, kind, k));
    int64_t group = ll_max64(ll_min64(sized(g, B_CHUNK), k * ll_round_up(side, width)), k * width);
    /* Strided columns are copied unless the product can be turned, which a single row cannot. */
    int64_t copied = g->bf16_out ? rows : g->c_cs <= 1 ? 0 : turned ? kind->mr : rows;
    room r = {0};
    r.a = ll_align64((size_t)(packs ? ll_min64(rows * k, a_chunk(g, kind)) : kind->mr * k) *
                     kind->bytes);
    r.b = ll_align64((size_t)group * kind->bytes);
    r.c = ll_align64((size_t)(copied * ll_round_up(ll_min64(side, N_COPY), width)) *
                     kind->real->bytes);
    return r;
}

size_t ll_gemm_part_scratch(const ll_gemm_call *g, bool b_packed)
{
    room r = room_for(g, ll_gemm_kind_of(g));
    return r.a + (b_packed ? 0 : r.b) + r.c;
}

size_t ll_gemm_serial_scratch(const ll_gemm_call *g)
{
    return ll_gemm_part_scratch(g, false);
}

/* ---- all of B, packed once: a pass of k after the other, each by panels ---- */
static int64_t columns_packed(const ll_gemm_call *o, const ll_gemm_kind *kind)
{
    return ll_round_up(o->n, kind->lanes);
}

size_t ll_gemm_b_bytes(const ll_gemm_call *o, const ll_gemm_kind *kind)
{
    return ll_align64((size_t)(columns_packed(o, kind) * ll_round_up(o->k, kind->k_step)) *
                      kind->bytes);
}

/* Where column j of the pass from p on begins; kp as in block. */
static size_t b_offset(const ll_gemm_call *o, const ll_gemm_kind *kind, int64_t p, int64_t kp,
                       int64_t j)
{
    return (size_t)(p * columns_packed(o, kind) + j * kp) * kind->bytes;
}

/* An item: so many k of a pass, a multiple of every step, of one panel. */
enum { K_ITEM = 128 };

int64_t ll_gemm_b_items(const ll_gemm_call *o, const ll_gemm_form *f)
{
    int64_t panels = ll_ceil_div(o->n, f->kind->nv * f->kind->lanes);
    return ll_ceil_div(o->k, f->kc) * panels * ll_ceil_div(f->kc, K_ITEM);
}

void ll_gemm_pack_b(const ll_gemm_call *o, const ll_gemm_form *f, int64_t from, int64_t to, char *b)
{
    const ll_gemm_kind *kind = f->kind;
    int64_t width = kind->nv * kind->lanes, panels = ll_ceil_div(o->n, width);
    int64_t items = ll_ceil_div(f->kc, K_ITEM); /* of a panel */
    for (; from < to; from++) {
        int64_t pass = from / items / panels * f->kc, kc = ll_min64(f->kc, o->k - pass);
        int64_t j = from / items % panels * width, n = ll_min64(width, o->n - j);
        int64_t p = from % items * K_ITEM;
        if (p >= kc) continue;
        size_t at = b_offset(o, kind, pass, ll_round_up(kc, kind->k_step), j);
        at += (size_t)(p * ll_round_up(n, kind->lanes)) * kind->bytes;
        kind->pack_b(o, j, n, pass + p, ll_min64(K_ITEM, kc - p), b + at);
    }
}

/* ---- dot tiles ---- */
static void run_dot(const ll_gemm_call *g, const ll_gemm_real *real, const ll_gemm_part *part)
{
    const char *a = (const char *)g->a, *b = (const char *)g->b;
    int64_t passes = ll_ceil_div(g->k, DOT_K_PASS), kc = ll_round_up(ll_ceil_div(g->k, passes), 16);
    int mr = real->dot_mr, nr = real->dot_nr;
    for (int64_t p = 0; p < g->k; p += kc)
        for (int64_t j = part->j; j < part->j1; j += nr)
            for (int64_t i = part->i; i < part->i1; i += mr) {
                ll_gemm_dot t = {.k = ll_min64(kc, g->k - p), .a_rs = g->a_rs, .b_cs = g->b_cs};
                t.a = a + (size_t)(i * g->a_rs + p) * real->bytes;
                t.b = b + (size_t)(j * g->b_cs + p) * real->bytes;
                t.c = (char *)g->c + (size_t)(i * g->c_rs + j * g->c_cs) * real->bytes;
                t.c_rs = g->c_rs, t.c_cs = g->c_cs;
                t.start = g->start, t.add = g->add || p;
                real->dot((int)ll_min64(mr, part->i1 - i), (int)ll_min64(nr, part->j1 - j), &t);
            }
}

/* ---- blocks ---- */
/* Of a tile of fixed point: k from the first to the last at which a row is not 0, or more. */
typedef struct span {
    int64_t from, to;
} span;

/* A block of the product: rows [i, i1) and columns [j, j1) of C, k in [p, p1). */
typedef struct block {
    const ll_gemm_call *g;
    const ll_gemm_form *f;
    int64_t i, i1, j, j1, p, p1;
    int64_t kp;         /* p1 - p as packed: a multiple of the tile's step */
    int64_t high, tall; /* so many tiles have this many rows, those after them one less */
    char *a, *b;        /* room for packed A and B */
    const char *all_b;  /* NULL, or all of B is packed here */
    char *c;            /* element (i, j) of C, or of its copy */
    int64_t c_rs;
    bool add;
    span tile[M_MAX / LEAST_ROWS]; /* of fixed point */
} block;

/* A panel of the block: columns from y on, up to a tile's width of them. */
typedef struct panel {
    ll_gemm_tile t; /* all but the rows */
    const void *b;  /* the panel, packed */
    int64_t y, n;   /* n of the tile's columns are C's, after skip others */
    int nv, skip;
    bool ragged; /* the tile is wider than that: it is not stored straight to C */
} panel;

static panel panel_at(const block *k, int64_t y, const char *packed)
{
    const ll_gemm_call *g = k->g;
    const ll_gemm_kind *kind = k->f->kind;
    int width = kind->nv * kind->lanes;
    panel q = {.b = packed, .y = y, .n = ll_min64(width, k->j1 - k->j - y), .nv = kind->nv};
    if (q.n < width) {
        q.nv = (int)ll_ceil_div(q.n, kind->lanes);
        width = q.nv * kind->lanes;
    }
    q.t = (ll_gemm_tile){.k = k->p1 - k->p, .b = packed, .b_rs = width};
    if (!k->f->pack_b) {
        /* In place; a ragged end reads the columns before it again rather than beyond it. */
        q.skip = (int)ll_min64(width - q.n, k->j + y);
        q.t.b =
            (const char *)g->b + (size_t)(k->p * g->b_rs + k->j + y - q.skip) * kind->real->bytes;
        q.t.b_rs = g->b_rs;
    }
    q.ragged = q.n < width && (q.skip || !k->f->copy_c);
    q.t.c_rs = q.ragged ? width : k->c_rs;
    q.t.start = g->start, q.t.add = k->add && !q.ragged, q.t.narrow = k->f->narrow;
    return q;
}

/* Rows of the tile whose first is x. */
static int tile_rows(const block *k, int64_t x)
{
    return (int)(x < k->tall * k->high ? ll_min64(k->high, k->i1 - k->i - x) : k->high - 1);
}

/* Tiles of any height are as even as they can be: none of a few rows at the end. */
static void share_rows(block *k)
{
    int64_t rows = k->i1 - k->i;
    k->high = k->f->kind->mr, k->tall = ll_ceil_div(rows, k->high);
    if (!k->f->kind->any_rows) return;
    int64_t tiles = k->tall;
    k->high = ll_ceil_div(rows, tiles);
    k->tall = rows - tiles * (k->high - 1);
}

/* The panel's tile of mr rows from x on; only: of fixed point. */
static void run_tile(const block *k, panel *q, int64_t x, int mr, const span *only)
{
    const ll_gemm_call *g = k->g;
    const ll_gemm_kind *kind = k->f->kind;
    size_t bytes = k->f->narrow ? sizeof(uint16_t) : kind->real->bytes;
    _Alignas(64) char edge[32 * 32 * sizeof(float)];
    char *c = k->c + (size_t)(x * k->c_rs + q->y) * bytes;
    if (k->f->pack_a) {
        q->t.a = k->a + (size_t)(x * k->kp) * kind->bytes;
        q->t.a_rs = 1, q->t.a_cs = mr;
    } else {
        q->t.a = (const char *)g->a +
                 (size_t)((k->i + x) * g->a_rs + k->p * g->a_cs) * ll_gemm_in_bytes(g);
        q->t.a_rs = g->a_rs, q->t.a_cs = g->a_cs;
    }
    q->t.c = q->ragged ? edge : c;
    if (only) {
        q->t.a = (const double *)q->t.a + only->from * mr;
        q->t.b = (const double *)q->b + only->from * q->t.b_rs;
        q->t.k = only->to - only->from;
    }
    kind->tile(mr, q->nv, &q->t);
    if (!q->ragged) return;
    ll_gemm_store s = {.from = edge + (size_t)q->skip * bytes, .width = q->t.c_rs, .m = mr};
    s.n = q->n, s.c = c, s.c_rs = k->c_rs, s.c_cs = 1, s.add = k->add;
    kind->real->store(&s);
}

static void run_group(const block *k, int64_t y0, int64_t y1)
{
    const ll_gemm_kind *kind = k->f->kind;
    int64_t width = kind->nv * kind->lanes, cell = k->kp * (int64_t)kind->bytes;
    const char *b = k->b;
    if (k->all_b)
        b = k->all_b + b_offset(k->g, kind, k->p, k->kp, k->j + y0);
    else if (k->f->pack_b)
        kind->pack_b(k->g, k->j + y0, y1 - y0, k->p, k->p1 - k->p, k->b);
    for (int64_t y = y0; y < y1; y += width) {
        panel q = panel_at(k, y, b + (y - y0) * cell);
        const span *s = k->g->a_by ? k->tile : NULL;
        const char *next = b + (y + width - y0) * cell, *end = next + width * cell;
        for (int64_t x = 0, mr; x < k->i1 - k->i; x += mr, next += q.t.k * 64) {
            mr = tile_rows(k, x);
            q.t.ahead = k->all_b && next < end ? next : NULL;
            run_tile(k, &q, x, (int)mr, s ? s++ : NULL);
        }
    }
}

static bool all_zero(const double *x, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += fabs(x[i]);
    return sum == 0;
}

/* By AT_ONCE. Some k are left: a row that is no number is none at any k, and that is to be seen. */
static void find_spans(block *k)
{
    enum { AT_ONCE = 8 };
    span *tile = k->tile;
    for (int64_t x = 0, m; x < k->i1 - k->i; x += m) {
        const double *a = (const double *)(const void *)k->a + x * k->kp;
        m = tile_rows(k, x);
        span s = {0, k->p1 - k->p};
        while (s.from + AT_ONCE < s.to && all_zero(a + s.from * m, m * AT_ONCE)) s.from += AT_ONCE;
        while (s.from + AT_ONCE < s.to && all_zero(a + (s.to - AT_ONCE) * m, m * AT_ONCE))
            s.to -= AT_ONCE;
        *tile++ = s;
    }
}

static void pack_rows(const block *k)
{
    const ll_gemm_kind *kind = k->f->kind;
    int64_t kc = k->p1 - k->p, rows = k->i1 - k->i, first = ll_min64(k->tall * k->high, rows);
    kind->pack_a(k->g, k->i, first, (int)k->high, k->p, kc, k->a);
    if (first == rows) return;
    kind->pack_a(k->g, k->i + first, rows - first, (int)k->high - 1, k->p, kc,
                 k->a + (size_t)(first * k->kp) * kind->bytes);
}

static void run_block(block *k)
{
    const ll_gemm_kind *kind = k->f->kind;
    int64_t n = k->j1 - k->j, step = k->f->group * kind->nv * kind->lanes;
    if (k->f->pack_a) pack_rows(k);
    if (k->g->a_by) find_spans(k);
    for (int64_t y = 0; y < n; y += step) run_group(k, y, ll_min64(y + step, n));
}

/* From the copy of a block to C itself. */
static void copy_out(const block *k, const char *copy)
{
    const ll_gemm_call *g = k->g;
    int64_t n = k->j1 - k->j, at = k->i * g->c_rs + k->j * g->c_cs;
    if (!g->bf16_out) {
        ll_gemm_store s = {.from = copy, .width = k->c_rs, .m = k->i1 - k->i, .n = n};
        s.c = (char *)g->c + (size_t)at * k->f->kind->real->bytes;
        s.c_rs = g->c_rs, s.c_cs = g->c_cs, s.add = g->add;
        k->f->kind->real->store(&s);
        return;
    }
    for (int64_t i = k->i; i < k->i1; i++, at += g->c_rs) {
        const float *from = (const float *)(const void *)copy + (i - k->i) * k->c_rs;
        uint16_t *to = (uint16_t *)g->c + at;
        if (g->c_cs == 1)
            for (int64_t j = 0; j < n; j++) to[j] = ll_f32_to_bf16(from[j]);
        else
            for (int64_t j = 0; j < n; j++) to[j * g->c_cs] = ll_f32_to_bf16(from[j]);
    }
}

static void run_blocks(const ll_gemm_call *g, const ll_gemm_form *f, const ll_gemm_part *part,
                       const room *r)
{
    block k = {.g = g, .f = f, .a = part->scratch, .b = part->scratch + r->a, .all_b = part->b};
    char *copy = k.b + (part->b ? 0 : r->b);
    size_t bytes = f->narrow ? sizeof(uint16_t) : f->kind->real->bytes;
    for (k.i = part->i; k.i < part->i1; k.i = k.i1) {
        k.i1 = ll_min64(k.i + f->mc, part->i1);
        share_rows(&k);
        for (k.j = part->j; k.j < part->j1; k.j = k.j1) {
            k.j1 = ll_min64(k.j + f->nc, part->j1);
            k.c = f->copy_c ? copy : (char *)g->c + (size_t)(k.i * g->c_rs + k.j) * bytes;
            k.c_rs = f->copy_c ? ll_round_up(f->nc, f->kind->lanes) : g->c_rs;
            k.p = 0;
            do { /* once even if k is 0: C = 0 */
                k.p1 = ll_min64(k.p + f->kc, g->k);
                k.kp = ll_round_up(k.p1 - k.p, f->kind->k_step);
                k.add = k.p || (g->add && !f->copy_c);
                run_block(&k);
                k.p = k.p1;
            } while (k.p < g->k);
            if (f->copy_c) copy_out(&k, copy);
        }
    }
}

static void run_part(const ll_gemm_call *o, const ll_gemm_form *f, const ll_gemm_part *part,
                     const room *r)
{
    if (f->kind->begin) f->kind->begin();
    if (f->dot)
        run_dot(o, f->kind->real, part);
    else
        run_blocks(o, f, part, r);
    if (f->kind->end) f->kind->end();
}

void ll_gemm_run_part(const ll_gemm_call *o, const ll_gemm_form *f, const ll_gemm_part *part)
{
    room r = room_for(o, f->kind);
    run_part(o, f, part, &r);
}

void ll_gemm_serial(const ll_gemm_call *g)
{
    if (g->m <= 0 || g->n <= 0) return;
    ll_gemm_call o = ll_gemm_oriented(g);
    ll_gemm_form f = ll_gemm_choose(&o, o.m, o.n);
    room r = room_for(g, f.kind);
    run_part(&o, &f, &(ll_gemm_part){.i1 = o.m, .j1 = o.n, .scratch = (char *)g->scratch}, &r);
}
