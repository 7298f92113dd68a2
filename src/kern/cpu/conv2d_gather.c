/* conv2d_gather.c: conv2d and conv2d_dx as one matrix product whose left side is never built.
 *
 * Both make an image out of another one: result pixel u is a sum over taps of a source pixel times
 * a matrix. On each axis the taps that result coordinate m reads are evenly spaced in the source:
 *
 *     source(m, t) = m * step + shift + t * gap,    t = 0 .. taps-1
 *
 * For conv2d that is the definition (step = stride, shift = -pad, gap = dilation). For conv2d_dx
 * the result rows fall into `stride` phases, by (row + pad) mod stride; rows of one phase read the
 * same subset of taps, one dy row later for each next row of the phase (step = 1), taken here from
 * the last tap to the first so that source rows ascend.
 *
 * Taps that fall outside the source are not multiplied by zero but left out: result pixels are
 * sorted into classes that have the same taps inside, (first..last) on each axis. An image has at
 * most a handful of classes, the interior being the largest. For one class, pixel p's row of the
 * left matrix is the concatenation of a few runs of contiguous memory ("chunks": all channels of
 * neighbouring taps), at the same distances from p's own place for all p. So the matrix kernel
 * reads the source directly: MR pixels at a time, from MR pointers, against a packed panel of
 * filters, 2 vectors of results wide.
 *
 * Blocking: a thread takes blocks of images, or of rows of one image, whose source fits in the L2
 * cache; chunks are grouped into runs of at most KC products whose filter panel stays in L1 while
 * all pixels of the class pass by.
 *
 * This text is for f32 (and bf16, converted on the way in); conv2d_gather_f64.c compiles it for f64
 * (real.h). */
#include "kern/cpu/conv2d_int.h"

enum {
#if defined(__AVX__) && !defined(__AVX512F__)
    MR = 6, /* 16 registers: 12 sums */
#else
    MR = 8,
#endif
    NR = 2 * LL_LANES,
    KC = 448 * 4 / sizeof(ll_real),
    PANEL_BYTES = 24 << 10,  /* of filters in L1 */
    BLOCK_BYTES = 512 << 10, /* of source */
    BLOCK_PIXELS = 4096,
};

/* ---- one axis ---- */

typedef struct axis {
    int64_t first, stride;    /* result coordinate of m = 0, and from one m to the next */
    int64_t step, shift, gap; /* see above */
    int64_t taps, tap, next;  /* t = 0 is filter tap `tap`, each later one is `next` on */
    int64_t source, result;   /* extents */
} axis;

typedef struct range {
    int64_t from, to;
} range;

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

static axis forward_axis(const ll_conv_shape *v, int k)
{
    return (axis){.stride = 1,
                  .step = v->a.stride[k],
                  .shift = -v->a.pad[2 * k],
                  .gap = v->a.dilation[k],
                  .taps = k ? v->s : v->r,
                  .next = 1,
                  .source = k ? v->w : v->h,
                  .result = k ? v->ow : v->oh};
}

static axis backward_axis(const ll_conv_shape *v, int k, int64_t phase)
{
    int64_t stride = v->a.stride[k], dilation = v->a.dilation[k], taps = k ? v->s : v->r;
    int64_t apart = stride / gcd(stride, dilation), at = phase + v->a.pad[2 * k], t = 0;
    axis x = {.first = phase,
              .stride = stride,
              .step = 1,
              .gap = apart * dilation / stride,
              .source = k ? v->ow : v->oh,
              .result = k ? v->w : v->h};
    while (t < ll_min64(apart, taps) && (at - t * dilation) % stride) t++;
    if (t >= ll_min64(apart, taps)) return x; /* no tap reaches this phase */
    x.taps = (taps - 1 - t) / apart + 1;
    x.next = -apart;
    x.tap = t + (x.taps - 1) * apart;
    x.shift = (at - x.tap * dilation) / stride;
    return x;
}

static axis axis_of(const ll_conv_shape *v, int k, int64_t phase)
{
    return v->d == LL_CONV ? forward_axis(v, k) : backward_axis(v, k, phase);
}

static int64_t phases(const ll_conv_shape *v, int k)
{
    return v->d == LL_CONV ? 1 : v->a.stride[k];
}

/* The taps of m inside the source. */
static range inside(const axis *x, int64_t m)
{
    int64_t at = m * x->step + x->shift;
    range r = {ll_max64(0, -ll_floor_div(at, x->gap)),
               ll_min64(x->taps, ll_floor_div(x->source - 1 - at, x->gap) + 1)};
    return r.to > r.from ? r : (range){0, 0};
}

/* How many of m, m+1, .. < end have the same taps inside. */
static int64_t same(const axis *x, int64_t m, int64_t end, range taps)
{
    int64_t n = 0;
    for (; m + n < end; n++) {
        range r = inside(x, m + n);
        if (r.from != taps.from || r.to != taps.to) break;
    }
    return n;
}

/* ---- sizes ---- */

typedef struct plan {
    int64_t oc, sc, ocg, scg;     /* channels of the result and the source, all and of a group */
    int64_t sh, sw, rh, rw;       /* source and result images */
    int64_t panels, images, rows; /* filter panels of a group; a block's images and result rows */
    int64_t n_image, n_row;       /* how many blocks each way */
    int64_t chunks, source_rows;  /* at most, of a class; of a block (bf16: converted) */
    size_t filter_bytes, thread_bytes;
} plan;

/* Rows of the source that result rows [from, to) can read, not clipped. */
static range source_rows(const ll_conv_shape *v, int64_t from, int64_t to)
{
    int64_t stride = v->a.stride[0], pad = v->a.pad[0], span = (v->r - 1) * v->a.dilation[0];
    if (v->d == LL_CONV) return (range){from * stride - pad, (to - 1) * stride - pad + span + 1};
    return (range){-ll_floor_div(-(from + pad - span), stride),
                   ll_floor_div(to - 1 + pad, stride) + 1};
}

static void choose_blocks(const ll_conv_shape *v, plan *p)
{
    int64_t image = p->sh * p->sw * p->sc * (int64_t)sizeof(ll_real), pixels = p->rh * p->rw;
    p->images = ll_min64(BLOCK_BYTES / ll_max64(image, 1), BLOCK_PIXELS / ll_max64(pixels, 1));
    p->rows = p->rh;
    if (p->images < 1) { /* part of an image */
        int64_t row = image / ll_max64(p->rh, 1);
        p->images = 1;
        p->rows = ll_max64(
            1, ll_min64(BLOCK_BYTES / ll_max64(row, 1), BLOCK_PIXELS / ll_max64(p->rw, 1)));
    }
    int64_t threads = ll_max64(v->threads, 1);
    p->n_image = ll_ceil_div(v->n, p->images);
    p->n_row = ll_ceil_div(p->rh, ll_max64(p->rows, 1));
    if (v->n < threads) { /* rows, so that each thread has some */
        p->n_image = v->n;
        p->n_row = ll_min64(p->rh, ll_max64(p->n_row, ll_ceil_div(threads, ll_max64(v->n, 1))));
    } else if (p->n_row == 1) { /* the same number of blocks for every thread */
        p->n_image = ll_min64(v->n, ll_ceil_div(p->n_image, threads) * threads);
    }
    p->images = ll_ceil_div(v->n, ll_max64(p->n_image, 1));
    p->rows = ll_ceil_div(p->rh, ll_max64(p->n_row, 1));
}

static plan plan_of(const ll_conv_shape *v)
{
    bool fwd = v->d == LL_CONV;
    plan p = {.oc = fwd ? v->f : v->c,
              .sc = fwd ? v->c : v->f,
              .ocg = fwd ? v->fg : v->cg,
              .scg = fwd ? v->cg : v->fg,
              .sh = fwd ? v->h : v->oh,
              .sw = fwd ? v->w : v->ow,
              .rh = fwd ? v->oh : v->h,
              .rw = fwd ? v->ow : v->w};
    p.panels = ll_ceil_div(p.ocg, NR);
    choose_blocks(v, &p);
    p.chunks = v->r * v->s * (p.scg / KC + 2);
    p.filter_bytes = ll_align64(sizeof(ll_real) * (size_t)(v->groups * p.panels * NR) *
                                (size_t)(v->r * v->s * p.scg));
    range most = source_rows(v, 0, p.rows);
    p.source_rows = v->bf16 ? ll_max64(0, ll_min64(p.sh, most.to - most.from + 1)) : 0;
    size_t pixels = (size_t)(p.images * p.rows * p.rw);
    p.thread_bytes = ll_align64(2 * sizeof(int64_t) * pixels) +
                     ll_align64(3 * sizeof(int64_t) * (size_t)p.chunks) +
                     ll_align64(sizeof(ll_real) * (size_t)(p.images * p.source_rows * p.sw * p.sc));
    return p;
}

/* ---- filters: for each phase, group and panel, [taps x channels][NR], or narrower at the end */

/* Where a phase's filters lie: result channels `os` apart and source channels `ss` apart. */
typedef struct packing {
    const ll_conv_shape *v;
    const plan *p;
    axis x[2];
    const void *filter;
    int64_t os, ss;
} packing;

/* Source channels [k0, k1) of all taps, for one panel of a group. */
static void pack_panel(const packing *w, int64_t group, int64_t panel, int64_t k0, int64_t k1,
                       ll_real *to)
{
    const ll_conv_shape *v = w->v;
    int64_t cols = ll_min64(NR, w->p->ocg - panel * NR), width = cols <= LL_LANES ? LL_LANES : NR;
    int64_t start = group * v->fg * v->r * v->s * v->cg + panel * NR * w->os;
    const ll_real *filter = (const ll_real *)w->filter;
    for (int64_t a = 0; a < w->x[0].taps; a++)
        for (int64_t b = 0; b < w->x[1].taps; b++) {
            int64_t r = w->x[0].tap + a * w->x[0].next, s = w->x[1].tap + b * w->x[1].next;
            int64_t from = start + (r * v->s + s) * v->cg + k0 * w->ss;
            ll_real *row = to + ((a * w->x[1].taps + b) * w->p->scg + k0) * width;
            for (int64_t k = k0; k < k1; k++, from += w->ss, row += width) {
                if (cols == NR && !v->bf16)
                    for (int64_t o = 0; o < NR; o++) row[o] = filter[from + o * w->os];
                else
                    for (int64_t o = 0; o < width; o++)
                        row[o] = o < cols ? ll_conv_at(w->filter, v->bf16, from + o * w->os) : 0;
            }
        }
}

/* Thread `me` of a team packs its share of one phase: of conv2d_dx, whose filters lie the other way
 * round, by few source channels of all panels at a time, which share cache lines. */
static void pack_phase(const packing *w, int me, int team, ll_real *to)
{
    int64_t size = w->x[0].taps * w->x[1].taps * w->p->scg * NR;
    int64_t some = w->os == 1 ? 16 : w->p->scg, count = 0;
    for (int64_t g = 0; g < w->v->groups; g++)
        for (int64_t k = 0; k < w->p->scg; k += some)
            for (int64_t q = 0; q < w->p->panels; q++)
                if ((w->os == 1 ? k / some : count++) % team == me)
                    pack_panel(w, g, q, k, ll_min64(k + some, w->p->scg),
                               to + (g * w->p->panels + q) * size);
}

/* ---- the matrix kernel ---- */

typedef struct chunk {
    int64_t at;   /* from the pixel's place in the source */
    int64_t row;  /* of the panel */
    int64_t size; /* products */
} chunk;

/* MR pixels against one panel. */
typedef struct product {
    const ll_real *source, *panel;
    const int64_t *place, *to; /* each pixel's in the source and in the result */
    const chunk *chunks;
    int64_t n_chunk;
    ll_real *result;
    bool add; /* to what the result holds */
    ll_real start;
} product;

LL_INLINE void tile(const int nv, const product *t)
{
    ll_sums sums[MR];
    ll_micro_begin(MR, nv, sums, t->start);
    if (t->add)
        EACH (i, MR) {
            ll_sums held;
            ll_micro_load(1, nv, &held, t->result + t->to[i], 0);
            EACH (j, nv) sums[i][j] += held[j];
        }
    for (int64_t c = 0; c < t->n_chunk; c++) {
        const chunk *ch = &t->chunks[c];
        const ll_real *a[MR];
        EACH (i, MR) a[i] = t->source + (t->place[i] + ch->at);
        ll_micro_rows(MR, nv, 1, sums, a, t->panel + ch->row * nv * LL_LANES, nv * LL_LANES,
                      ch->size);
    }
    EACH (i, MR) {
        EACH (j, nv) sums[i][j] = ll_micro_end(sums[i][j], t->start);
        ll_micro_store(1, nv, sums + i, t->result + t->to[i], 0);
    }
}

static __attribute__((noinline)) void tile_wide(const product *t)
{
    tile(2, t);
}

static __attribute__((noinline)) void tile_narrow(const product *t)
{
    tile(1, t);
}

/* n <= MR pixels, cols <= NR columns: through a buffer. */
static __attribute__((noinline)) void tile_part(const product *whole, int64_t n, int64_t cols)
{
    ll_real spare[MR][NR] = {{0}};
    int64_t place[MR], to[MR];
    product t = *whole;
    t.place = place, t.to = to, t.result = spare[0];
    for (int64_t i = 0; i < MR; i++) {
        place[i] = whole->place[ll_min64(i, n - 1)];
        to[i] = i * NR;
        if (t.add && i < n)
            memcpy(spare[i], whole->result + whole->to[i], sizeof(ll_real) * (size_t)cols);
    }
    if (cols <= LL_LANES)
        tile_narrow(&t);
    else
        tile_wide(&t);
    for (int64_t i = 0; i < n; i++)
        memcpy(whole->result + whole->to[i], spare[i], sizeof(ll_real) * (size_t)cols);
}

/* ---- classes ---- */

typedef struct job {
    const ll_conv_shape *v;
    const plan *p;
    axis x[2];             /* of a phase */
    const ll_real *panels; /* its filters */
    const ll_real *source; /* pixels of the block */
    int64_t n0, n1;        /* its images */
    int64_t row0, rows;    /* source rows held: the first, and how many an image has */
    int64_t image0;        /* the image that source starts with */
    ll_real *result;
    int64_t *place, *to; /* [pixels of a block] */
    chunk *chunks;
} job;

/* The chunks of the taps rows x cols; returns how many. */
static int64_t list_chunks(const job *j, range rows, range cols)
{
    const plan *p = j->p;
    const axis *x = j->x;
    bool joined = x[1].gap == 1 && p->scg == p->sc;
    int64_t runs = joined ? 1 : cols.to - cols.from, count = 0;
    int64_t size = joined ? (cols.to - cols.from) * p->sc : p->scg;
    int64_t parts = ll_ceil_div(size, KC);
    for (int64_t a = rows.from; a < rows.to; a++)
        for (int64_t b = 0; b < runs; b++)
            for (int64_t i = 0; i < parts; i++) {
                int64_t col = cols.from + b, from = size * i / parts;
                j->chunks[count++] =
                    (chunk){(a * x[0].gap * p->sw + col * x[1].gap) * p->sc + from,
                            (a * x[1].taps + col) * p->scg + from, size * (i + 1) / parts - from};
            }
    return count;
}

/* The places of the pixels ms[0] x ms[1] of the images; returns how many there are. */
static int64_t list_pixels(const job *j, const range ms[2])
{
    const plan *p = j->p;
    const axis *y = &j->x[0], *x = &j->x[1];
    int64_t count = 0;
    for (int64_t n = j->n0; n < j->n1; n++)
        for (int64_t m = ms[0].from; m < ms[0].to; m++) {
            int64_t row = (n - j->image0) * j->rows + m * y->step + y->shift - j->row0;
            int64_t to = (n * p->rh + y->first + m * y->stride) * p->rw + x->first;
            for (int64_t k = ms[1].from; k < ms[1].to; k++) {
                j->place[count] = (row * p->sw + k * x->step + x->shift) * p->sc;
                j->to[count++] = (to + k * x->stride) * p->oc;
            }
        }
    return count;
}

/* All pixels against panels [from, to) of group g. Panels inside: together they fit in L1, and a
 * pixel's results are written one after the other. */
static void run_panels(const job *j, product t, int64_t pixels, int64_t g, int64_t from, int64_t to)
{
    const plan *p = j->p;
    int64_t size = j->x[0].taps * j->x[1].taps * p->scg * NR;
    t.source = j->source + g * p->scg;
    for (int64_t i = 0; i < pixels; i += MR) {
        t.place = j->place + i;
        t.to = j->to + i;
        for (int64_t q = from; q < to; q++) {
            int64_t cols = ll_min64(NR, p->ocg - q * NR);
            t.panel = j->panels + (g * p->panels + q) * size;
            t.result = j->result + g * p->ocg + q * NR;
            if (pixels - i < MR || (cols != NR && cols != LL_LANES))
                tile_part(&t, ll_min64(MR, pixels - i), cols);
            else if (cols == NR)
                tile_wide(&t);
            else
                tile_narrow(&t);
        }
    }
}

static void run_class(const job *j, const range ms[2], range rows, range cols)
{
    const plan *p = j->p;
    int64_t pixels = list_pixels(j, ms), n_chunk = list_chunks(j, rows, cols), c = 0;
    do {
        product t = {.chunks = j->chunks + c, .add = c > 0, .start = (ll_real)j->v->start};
        int64_t sum = 0;
        for (; c < n_chunk && (!t.n_chunk || sum + j->chunks[c].size <= KC); c++) {
            sum += j->chunks[c].size;
            t.n_chunk++;
        }
        int64_t some =
            ll_max64(1, PANEL_BYTES / (NR * (int64_t)sizeof(ll_real) * ll_max64(sum, 1)));
        for (int64_t g = 0; g < j->v->groups; g++)
            for (int64_t q = 0; q < p->panels; q += some)
                run_panels(j, t, pixels, g, q, ll_min64(q + some, p->panels));
    } while (c < n_chunk);
}

/* Result rows [from, to) of one phase of a block. */
static void run_phase(const job *j, int64_t from, int64_t to)
{
    const axis *y = &j->x[0], *x = &j->x[1];
    int64_t m_end = ll_ceil_div(ll_max64(to - y->first, 0), y->stride);
    int64_t k_end = ll_ceil_div(ll_max64(x->result - x->first, 0), x->stride);
    int64_t m = ll_ceil_div(ll_max64(from - y->first, 0), y->stride);
    for (range rows; m < m_end;) {
        rows = inside(y, m);
        int64_t m_n = same(y, m, m_end, rows);
        for (int64_t k = 0; k < k_end;) {
            range cols = inside(x, k);
            int64_t k_n = same(x, k, k_end, cols);
            run_class(j, (range[2]){{m, m + m_n}, {k, k + k_n}}, rows, cols);
            k += k_n;
        }
        m += m_n;
    }
}

/* ---- blocks ---- */

/* Converts the source rows that the block reads; without bf16 the source is used as it stands. */
static void fetch(job *j, const void *src, range rows, ll_real *to)
{
    const plan *p = j->p;
    j->row0 = j->image0 = 0;
    j->rows = p->sh;
    j->source = (const ll_real *)src;
    if (!j->v->bf16) return;
    range r = source_rows(j->v, rows.from, rows.to);
    r = (range){ll_min64(ll_max64(r.from, 0), p->sh), ll_min64(ll_max64(r.to, 0), p->sh)};
    int64_t row = p->sw * p->sc, size = ll_max64(r.to - r.from, 0) * row;
    for (int64_t n = j->n0; n < j->n1; n++) {
        const uint16_t *in = (const uint16_t *)src + (n * p->sh + r.from) * row;
        for (int64_t i = 0; i < size; i++) to[(n - j->n0) * size + i] = ll_bf16_to_f32(in[i]);
    }
    j->source = to;
    j->row0 = r.from;
    j->rows = ll_max64(r.to - r.from, 0);
    j->image0 = j->n0;
}

static void run_block(const ll_conv_shape *v, const plan *p, int64_t block, const void *src,
                      const ll_real *filters, ll_real *out, char *scratch)
{
    int64_t bi = block / p->n_row, br = block % p->n_row;
    range rows = {br * p->rh / p->n_row, (br + 1) * p->rh / p->n_row};
    int64_t pixels = p->images * p->rows * p->rw;
    job j = {.v = v, .p = p, .result = out, .panels = filters};
    j.n0 = bi * v->n / p->n_image;
    j.n1 = (bi + 1) * v->n / p->n_image;
    j.place = (int64_t *)scratch;
    j.to = j.place + pixels;
    scratch += ll_align64(2 * sizeof(int64_t) * (size_t)pixels);
    j.chunks = (chunk *)scratch;
    fetch(&j, src, rows, (ll_real *)(scratch + ll_align64(sizeof(chunk) * (size_t)p->chunks)));
    for (int64_t a = 0; a < phases(v, 0); a++)
        for (int64_t b = 0; b < phases(v, 1); b++) {
            j.x[0] = axis_of(v, 0, a);
            j.x[1] = axis_of(v, 1, b);
            run_phase(&j, rows.from, rows.to);
            j.panels += v->groups * p->panels * NR * j.x[0].taps * j.x[1].taps * p->scg;
        }
}

static void pack_filters(const ll_conv_shape *v, const plan *p, int me, int team,
                         const void *filter, ll_real *to)
{
    int64_t one = v->r * v->s * v->cg;
    packing w = {.v = v, .p = p, .filter = filter, .os = 1, .ss = one};
    if (v->d == LL_CONV) w.os = one, w.ss = 1;
    for (int64_t a = 0; a < phases(v, 0); a++)
        for (int64_t b = 0; b < phases(v, 1); b++) {
            w.x[0] = axis_of(v, 0, a);
            w.x[1] = axis_of(v, 1, b);
            pack_phase(&w, me, team, to);
            to += v->groups * p->panels * NR * w.x[0].taps * w.x[1].taps * p->scg;
        }
}

size_t LL_REAL(ll_conv_gather_room)(const ll_conv_shape *v)
{
    plan p = plan_of(v);
    return p.filter_bytes + p.thread_bytes * (size_t)v->threads;
}

typedef struct call {
    const ll_conv_shape *v;
    const plan *p;
    const ll_kcall *c;
} call;

/* Shares [from, to) of v->threads. */
static void pack_shares(const void *given, int64_t from, int64_t to)
{
    const call *k = (const call *)given;
    for (; from < to; from++)
        pack_filters(k->v, k->p, (int)from, k->v->threads, k->c->in[1].data,
                     (ll_real *)k->c->scratch);
}

static void run_blocks(const void *given, int number, int64_t from, int64_t to)
{
    const call *k = (const call *)given;
    char *scratch = (char *)k->c->scratch;
    char *mine = scratch + k->p->filter_bytes + k->p->thread_bytes * (size_t)number;
    for (; from < to; from++)
        run_block(k->v, k->p, from, k->c->in[0].data, (const ll_real *)scratch,
                  (ll_real *)k->c->out[0].data, mine);
}

void LL_REAL(ll_conv_gather)(const ll_conv_shape *v, const ll_kcall *c)
{
    plan p = plan_of(v);
    call k = {v, &p, c};
    ll_in_parts(v->threads, v->threads, pack_shares, &k);
    ll_in_numbered_parts(v->threads, p.n_image * p.n_row, run_blocks, &k);
}
