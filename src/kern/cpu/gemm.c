/* gemm.c: matrix products: which tiles, what is packed, in what order, on which threads.
 *
 * One thread's product is cut into blocks:
 *
 *     for each block of rows (so many that a k-block of them fits the second cache)
 *       for each block of k (so long that a tile's share of A and B fits the first cache)
 *         for each panel of columns, one tile wide; packed here if packing pays
 *           for each tile of rows: C tile += A tile * B panel
 *
 * A packed panel is used at once by all row tiles of the block and is one tile wide, so it stays in
 * the first cache and needs little scratch. Reading an operand in place is as fast as packed where
 * its lines do not collide in the cache; it is packed when it is bf16 (widened to f32 here, unless
 * the CPU multiplies bf16 itself), when no stride is 1, or when many tiles use it again.
 *
 * Threads each take a block of C, or, where C is too small for that and k is long, a range of k:
 * the parts are then added in order of k, so that the result does not depend on who was first. */
#include "kern/cpu/gemm_int.h"
#include "kern/kern.h"

enum {
    A_CHUNK = 128 * 1024,  /* packed elements of A in one block: half of a 1 MB second cache */
    M_MAX = 512,           /* rows of one block */
    N_COPY = 256,          /* columns of the f32 copy of C that bf16 results go through */
    A_COLUMN_PANELS = 4,   /* panels that make packing an A of columns worth it: a page a step */
    PACK_B_ROWS = 32,      /* rows that make packing an in-place B worth it */
    DOT_ROWS = 48,         /* fewer rows than this do not pay for turning B over */
    DOT_K = 32,            /* shorter sums do not pay for adding up vectors */
    DOT_K_BLOCK = 1024,    /* k of one pass of dot tiles */
    THREAD_WORK = 1 << 16, /* multiply-adds worth waking a thread for */
};

typedef struct form {
    const ll_gemm_kind *kind;
    bool dot, pack_a, pack_b, copy_c;
    int64_t mc, nc, kc; /* block sizes */
} form;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static int64_t round_up(int64_t a, int64_t to)
{
    return ceil_div(a, to) * to;
}

/* Part number `part` of n things dealt evenly. */
static int64_t deal(int64_t n, int64_t part, int64_t parts)
{
    return n * part / parts;
}

/* Rows this far apart fall on few cache lines: a power of two of pages. */
static bool collides(int64_t stride)
{
    return stride % 1024 == 0;
}

/* The same product with rows and columns exchanged when it is the columns of C that lie together.
 * The stride of a single row or column says nothing: it becomes 1, which suits every tile. */
static ll_gemm_call oriented(const ll_gemm_call *g)
{
    ll_gemm_call o = *g;
    if (!o.c_cs || o.n == 1) o.c_cs = 1;
    bool turn = (g->n == 1 || o.c_cs != 1) && o.c_rs == 1 && o.m > 1;
    if (turn) {
        o.m = g->n, o.n = g->m;
        o.a = g->b, o.a_rs = g->b_cs, o.a_cs = g->b_rs;
        o.b = g->a, o.b_rs = g->a_cs, o.b_cs = g->a_rs;
        o.c_rs = o.c_cs, o.c_cs = 1;
    }
    if (o.m == 1) o.a_rs = 1;
    if (o.n == 1) o.b_cs = 1;
    if (o.k <= 1) o.a_cs = o.b_rs = 1;
    return o;
}

static const ll_gemm_kind *kind_of(bool bf16)
{
    const ll_gemm_kind *own = bf16 ? ll_gemm_bf16() : NULL;
    return own ? own : &ll_gemm_f32;
}

bool ll_cpu_has_bf16(void)
{
    return ll_gemm_bf16() != NULL;
}

const char *ll_gemm_describe(bool bf16)
{
    return bf16 && !ll_gemm_bf16() ? ll_gemm_f32.name_bf16 : kind_of(bf16)->name;
}

static form choose(const ll_gemm_call *g)
{
    form f = {.kind = kind_of(g->bf16)};
    const ll_gemm_kind *kind = f.kind;
    int width = kind->nv * kind->lanes;
    f.dot = !g->bf16 && !g->bf16_out && g->a_cs == 1 && g->b_rs == 1 && g->m < DOT_ROWS &&
            g->k >= DOT_K;
    f.copy_c = g->bf16_out || g->c_cs != 1;
    f.pack_a = g->bf16 || (g->a_rs != 1 && g->a_cs != 1) ||
               (g->a_rs != 1 && g->n > width * (collides(g->a_rs) ? 3 : kind->a_panels)) ||
               (g->a_rs == 1 && g->a_cs != 1 && g->n > width * A_COLUMN_PANELS);
    f.pack_b =
        g->bf16 || g->b_cs != 1 || g->m >= PACK_B_ROWS || (g->n < width && g->n % kind->lanes != 0);
    int64_t passes = ceil_div(g->k, kind->k_max);
    f.kc = round_up(ceil_div(g->k, passes ? passes : 1), kind->k_step);
    f.mc = min64(A_CHUNK / (f.kc + 1), M_MAX) / kind->mr * kind->mr;
    f.mc = round_up(ceil_div(g->m, ceil_div(g->m, f.mc)), kind->mr);
    f.nc = f.copy_c ? min64(g->n, N_COPY) : g->n;
    return f;
}

/* ---- scratch: packed A, one packed panel of B, the copy of C ---- */
static size_t align64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

typedef struct room {
    size_t a, b, c; /* bytes */
} room;

/* What any product no larger than g needs, whichever way round and however it is blocked. */
static room room_for(const ll_gemm_call *g)
{
    const ll_gemm_kind *kind = kind_of(g->bf16);
    int64_t k = round_up(min64(g->k, kind->k_max), kind->k_step), side = g->m > g->n ? g->m : g->n;
    int64_t rows = min64(round_up(side, kind->mr), M_MAX);
    bool unit = (g->a_rs == 1 || g->a_cs == 1) && (g->b_rs == 1 || g->b_cs == 1);
    bool plain = !g->bf16 && unit && !collides(g->a_rs) && !collides(g->b_cs) &&
                 side <= (int64_t)kind->a_panels * kind->nv * kind->lanes;
    bool columns = (g->a_rs == 1 && g->a_cs != 1) || (g->b_cs == 1 && g->c_rs == 1 && g->c_cs > 1);
    int64_t a = plain && !columns ? kind->mr * k : min64(rows * k, A_CHUNK);
    int64_t width = round_up(min64(side, N_COPY), kind->lanes);
    /* Strided columns are copied unless the product can be turned, which a single row cannot. */
    int64_t copied = g->bf16_out ? rows : g->c_cs <= 1 ? 0 : g->c_rs == 1 ? kind->mr : rows;
    room r = {.a = align64((size_t)a * kind->bytes)};
    r.b = align64((size_t)(k * kind->nv * kind->lanes) * kind->bytes);
    r.c = align64((size_t)(copied * width) * sizeof(float));
    return r;
}

size_t ll_gemm_serial_scratch(const ll_gemm_call *g)
{
    room r = room_for(g);
    return r.a + r.b + r.c;
}

/* ---- one thread ---- */
static void run_dot(const ll_gemm_call *g)
{
    const float *a = (const float *)g->a, *b = (const float *)g->b;
    int64_t passes = ceil_div(g->k, DOT_K_BLOCK), tiles_m = ceil_div(g->m, ll_gemm_dot_mr);
    int64_t tiles_n = ceil_div(g->n, ll_gemm_dot_nr);
    for (int64_t s = 0; s < passes; s++) {
        /* Cut at multiples of 16, so that only the last pass has a ragged end. */
        int64_t p0 = deal(ceil_div(g->k, 16), s, passes) * 16;
        int64_t p1 = min64(deal(ceil_div(g->k, 16), s + 1, passes) * 16, g->k);
        for (int64_t y = 0; y < tiles_n; y++) {
            int64_t j = deal(g->n, y, tiles_n), j1 = deal(g->n, y + 1, tiles_n);
            for (int64_t x = 0; x < tiles_m; x++) {
                int64_t i = deal(g->m, x, tiles_m), i1 = deal(g->m, x + 1, tiles_m);
                ll_gemm_dot t = {.k = p1 - p0, .a_rs = g->a_rs, .b_cs = g->b_cs};
                t.a = a + i * g->a_rs + p0;
                t.b = b + j * g->b_cs + p0;
                t.c = (float *)g->c + i * g->c_rs + j * g->c_cs;
                t.c_rs = g->c_rs, t.c_cs = g->c_cs;
                t.add = g->add || s;
                ll_gemm_dot_tile((int)(i1 - i), (int)(j1 - j), &t);
            }
        }
    }
}

/* A block of the product: C rows [i, i1), columns [j, j1), k in [p, p1). */
typedef struct block {
    const ll_gemm_call *g;
    const form *f;
    int64_t i, i1, j, j1, p, p1;
    char *a, *b; /* room for packed A and B */
    float *c;    /* element (i, j) of C, or of its copy */
    int64_t c_rs;
    bool add;
} block;

/* Row tile number x of the block: its first row and, packed or in place, its part of A. */
static int row_tile(const block *k, int64_t x, int64_t tiles, ll_gemm_tile *t, int64_t *row)
{
    const ll_gemm_call *g = k->g;
    int64_t rows = k->i1 - k->i, r = deal(rows, x, tiles);
    int mr = (int)(deal(rows, x + 1, tiles) - r);
    *row = r;
    if (k->f->pack_a) {
        int64_t kc = round_up(k->p1 - k->p, k->f->kind->k_step);
        t->a = k->a + (size_t)(x * k->f->kind->mr * kc) * k->f->kind->bytes;
        t->a_rs = 1, t->a_cs = mr;
    } else {
        t->a = (const float *)g->a + (k->i + r) * g->a_rs + k->p * g->a_cs;
        t->a_rs = g->a_rs, t->a_cs = g->a_cs;
    }
    return mr;
}

/* Adds, or stores, columns [skip, skip + n) of a tile that is wider than C. */
static void store_some(const float *from, int64_t width, int mr, int skip, int64_t n, float *c,
                       int64_t c_rs, bool add)
{
    for (int i = 0; i < mr; i++)
        for (int64_t j = 0; j < n; j++) {
            float v = from[i * width + skip + j];
            c[i * c_rs + j] = add ? c[i * c_rs + j] + v : v;
        }
}

/* All row tiles against the columns [j, j + n) of the block, nv vectors wide. */
static void run_panel(const block *k, int64_t j, int64_t n, int nv)
{
    const ll_gemm_call *g = k->g;
    const ll_gemm_kind *kind = k->f->kind;
    float edge[16 * 48];
    int width = nv * kind->lanes, skip = 0;
    ll_gemm_tile t = {.k = k->p1 - k->p, .b_rs = width, .b = k->b};
    if (k->f->pack_b) {
        kind->pack_b(g, k->j + j, (int)n, nv, k->p, t.k, k->b);
    } else {
        /* In place; a ragged end reads the columns before it again rather than beyond it. */
        skip = (int)min64(width - n, k->j + j);
        t.b = (const float *)g->b + k->p * g->b_rs + k->j + j - skip;
        t.b_rs = g->b_rs;
    }
    int64_t tiles = ceil_div(k->i1 - k->i, kind->mr), row;
    bool ragged = n < width && (skip || !k->f->copy_c);
    for (int64_t x = 0; x < tiles; x++) {
        int mr = row_tile(k, x, tiles, &t, &row);
        float *c = k->c + row * k->c_rs + j;
        t.c = ragged ? edge : c;
        t.c_rs = ragged ? width : k->c_rs;
        t.add = k->add && !ragged;
        kind->tile(mr, nv, &t);
        if (ragged) store_some(edge, width, mr, skip, n, c, k->c_rs, k->add);
    }
}

static void run_block(const block *k)
{
    const ll_gemm_kind *kind = k->f->kind;
    if (k->f->pack_a) {
        int64_t tiles = ceil_div(k->i1 - k->i, kind->mr), row;
        for (int64_t x = 0; x < tiles; x++) {
            ll_gemm_tile t;
            int mr = row_tile(k, x, tiles, &t, &row);
            kind->pack_a(k->g, k->i + row, mr, k->p, k->p1 - k->p, (void *)t.a);
        }
    }
    int64_t n = k->j1 - k->j, vectors = ceil_div(n, kind->lanes);
    int64_t panels = ceil_div(vectors, kind->nv);
    for (int64_t y = 0; y < panels; y++) {
        int64_t v = deal(vectors, y, panels), v1 = deal(vectors, y + 1, panels);
        int64_t j = v * kind->lanes, j1 = min64(v1 * kind->lanes, n);
        run_panel(k, j, j1 - j, (int)(v1 - v));
    }
}

/* From the f32 copy of a block to C itself. */
static void copy_out(const block *k, const float *copy)
{
    const ll_gemm_call *g = k->g;
    for (int64_t i = k->i; i < k->i1; i++) {
        const float *from = copy + (i - k->i) * k->c_rs;
        int64_t at = i * g->c_rs + k->j * g->c_cs;
        for (int64_t j = 0; j < k->j1 - k->j; j++, at += g->c_cs) {
            if (g->bf16_out)
                ((uint16_t *)g->c)[at] = ll_f32_to_bf16(from[j]);
            else
                ((float *)g->c)[at] = from[j] + (g->add ? ((float *)g->c)[at] : 0);
        }
    }
}

static void run_blocks(const ll_gemm_call *g, const form *f, const room *r)
{
    block k = {.g = g, .f = f, .a = (char *)g->scratch, .b = (char *)g->scratch + r->a};
    float *copy = (float *)(void *)(k.b + r->b);
    for (k.i = 0; k.i < g->m; k.i = k.i1) {
        k.i1 = min64(k.i + f->mc, g->m);
        for (k.j = 0; k.j < g->n; k.j = k.j1) {
            k.j1 = min64(k.j + f->nc, g->n);
            k.c = f->copy_c ? copy : (float *)g->c + k.i * g->c_rs + k.j;
            k.c_rs = f->copy_c ? round_up(f->nc, f->kind->lanes) : g->c_rs;
            k.p = 0;
            do { /* once even if k is 0: C = 0 */
                k.p1 = min64(k.p + f->kc, g->k);
                k.add = k.p || (g->add && !f->copy_c);
                run_block(&k);
                k.p = k.p1;
            } while (k.p < g->k);
            if (f->copy_c) copy_out(&k, copy);
        }
    }
}

void ll_gemm_serial(const ll_gemm_call *g)
{
    if (g->m <= 0 || g->n <= 0) return;
    ll_gemm_call o = oriented(g);
    form f = choose(&o);
    room r = room_for(g);
    if (f.dot)
        run_dot(&o);
    else
        run_blocks(&o, &f, &r);
}

/* ---- several threads ---- */
typedef struct grid {
    int m, n, k; /* into how many parts each is cut */
} grid;

/* Estimated cycles of the largest part; packing and adding up parts included. */
static double part_cost(const ll_gemm_call *g, grid d)
{
    int mr = ll_gemm_f32.mr, nr = ll_gemm_f32.nv * ll_gemm_f32.lanes;
    double m = (double)min64(round_up(ceil_div(g->m, d.m), mr), g->m);
    double n = (double)min64(round_up(ceil_div(g->n, d.n), nr), g->n);
    double k = (double)ceil_div(g->k, d.k);
    double cost = k * (m * n / 8 + n / 2 + m / 8);
    if (d.k > 1) cost += (double)g->m * (double)g->n / 4 * (1 + d.k / (double)(d.m * d.n * d.k));
    return cost;
}

/* Cuts C over rows and columns, or k: whichever leaves the longest part shortest. */
static grid choose_grid(const ll_gemm_call *g)
{
    grid best = {1, 1, 1};
    double work = (double)g->m * (double)g->n * (double)g->k, cost = part_cost(g, best);
    int threads = g->threads;
    if (threads > work / THREAD_WORK) threads = (int)(work / THREAD_WORK);
    for (int m = 1; m <= threads; m++) {
        grid d[2] = {{m, threads / m, 1}, {1, 1, m}};
        for (int i = 0; i < 2; i++) {
            if (i && (g->bf16_out || (g->c_cs > 1 && g->c_rs != 1))) continue;
            double c = part_cost(g, d[i]);
            if (c < cost * 0.98) cost = c, best = d[i];
        }
    }
    return best;
}

/* Bounds of a part, at multiples of a tile where there are enough of them. */
static int64_t bound(int64_t n, int64_t tile, int part, int parts)
{
    if (n < tile * parts) return deal(n, part, parts);
    return min64(deal(ceil_div(n, tile), part, parts) * tile, n);
}

static size_t partial_bytes(const ll_gemm_call *g, grid d)
{
    return d.k > 1 ? align64((size_t)(g->m * g->n) * sizeof(float)) : 0;
}

size_t ll_gemm_scratch(const ll_gemm_call *g)
{
    grid d = choose_grid(g);
    size_t parts = (size_t)d.m * (size_t)d.n * (size_t)d.k;
    return parts * (ll_gemm_serial_scratch(g) + partial_bytes(g, d));
}

/* Part number x of a product cut along k: into the part's own copy of C. */
static void run_k_part(const ll_gemm_call *g, grid d, int x, size_t serial, size_t partial)
{
    size_t in = g->bf16 ? 2 : 4;
    int64_t p = bound(g->k, 16, x, d.k);
    ll_gemm_call s = *g;
    s.scratch = (char *)g->scratch + (size_t)x * (serial + partial);
    s.k = bound(g->k, 16, x + 1, d.k) - p;
    s.a = (const char *)g->a + (size_t)(p * g->a_cs) * in;
    s.b = (const char *)g->b + (size_t)(p * g->b_rs) * in;
    s.c = (char *)s.scratch + serial;
    s.c_rs = g->n, s.c_cs = 1, s.add = false;
    ll_gemm_serial(&s);
}

/* Rows [i, i1) of C from the parts, added in order. */
static void add_parts(const ll_gemm_call *g, int parts, size_t serial, size_t partial, int64_t i,
                      int64_t i1)
{
    int64_t cs = g->c_cs ? g->c_cs : 1;
    for (; i < i1; i++)
        for (int64_t j = 0; j < g->n; j++) {
            float *c = (float *)g->c + i * g->c_rs + j * cs, sum = g->add ? *c : 0;
            for (int x = 0; x < parts; x++) {
                const char *part = (char *)g->scratch + (size_t)x * (serial + partial) + serial;
                sum += ((const float *)(const void *)part)[i * g->n + j];
            }
            *c = sum;
        }
}

static void run_c_part(const ll_gemm_call *g, grid d, int x, size_t serial)
{
    size_t in = g->bf16 ? 2 : 4, out = g->bf16_out ? 2 : 4;
    int mr = ll_gemm_f32.mr, nr = ll_gemm_f32.nv * ll_gemm_f32.lanes;
    int64_t i = bound(g->m, mr, x % d.m, d.m), j = bound(g->n, nr, x / d.m, d.n);
    ll_gemm_call s = *g;
    s.scratch = (char *)g->scratch + (size_t)x * serial;
    s.m = bound(g->m, mr, x % d.m + 1, d.m) - i;
    s.n = bound(g->n, nr, x / d.m + 1, d.n) - j;
    s.a = (const char *)g->a + (size_t)(i * g->a_rs) * in;
    s.b = (const char *)g->b + (size_t)(j * g->b_cs) * in;
    s.c = (char *)g->c + (size_t)(i * g->c_rs + j * (g->c_cs ? g->c_cs : 1)) * out;
    ll_gemm_serial(&s);
}

void ll_gemm(const ll_gemm_call *g)
{
    grid d = choose_grid(g);
    int parts = d.m * d.n * d.k;
    if (parts <= 1) {
        ll_gemm_serial(g);
        return;
    }
    size_t serial = ll_gemm_serial_scratch(g), partial = partial_bytes(g, d);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int x = 0; x < parts; x++) {
        if (d.k > 1)
            run_k_part(g, d, x, serial, partial);
        else
            run_c_part(g, d, x, serial);
    }
    if (d.k > 1) add_parts(g, d.k, serial, partial, 0, g->m);
}
