/* gemm_threads.c: a matrix product on several threads.
 *
 * C is cut by rows where that is no worse: the kernels after it cut theirs the same way, so that a
 * thread reads what it wrote, which is still near. B is then wanted whole by every thread: unless
 * it is soon packed, they do so together, once, and meet before they multiply. Few rows are cut by
 * columns too, at whole panels. Where C is too small for both and k is long (the gradient of a
 * small weight), each thread takes a range of k: the parts are then added in order of k, so that
 * the result does not depend on who was first. */
#include "kern/cpu/gemm_int.h"
#include "kern/cpu/row.h"

#include <math.h>

enum {
    THREAD_WORK = 1 << 14, /* multiply-adds of a part, at least */
    ALL_B = 16 << 20,      /* bytes of B that are packed at once, at most */
};

typedef struct grid {
    int m, n, k; /* into how many parts each is cut */
} grid;

/* Bounds of a part, at multiples of a tile. */
static int64_t bound(int64_t n, int64_t tile, int part, int parts)
{
    return ll_min64(ll_ceil_div(n, tile) * part / parts * tile, n);
}

/* Rows of C of which parts are made; columns. */
static int row_unit(const ll_gemm_kind *kind)
{
    return kind->any_rows ? 1 : kind->mr;
}
static int column_unit(const ll_gemm_kind *kind)
{
    return kind->nv * kind->lanes;
}

/* The most units of a part. */
static int64_t longest(int64_t n, int64_t unit, int parts)
{
    return ll_min64(ll_ceil_div(ll_ceil_div(n, unit), parts) * unit, n);
}

/* Of the largest part. */
static ll_gemm_form form_of(const ll_gemm_call *o, grid d)
{
    const ll_gemm_kind *kind = ll_gemm_kind_of(o);
    return ll_gemm_choose(o, ll_max64(longest(o->m, row_unit(kind), d.m), 1),
                          ll_max64(longest(o->n, column_unit(kind), d.n), 1));
}

/* What B costs a part, in columns that it could pack instead. All of it packed together: lines go
 * from cache to cache, to whoever writes them the next time and, while tiles multiply, to all who
 * read them. By itself: again for each block of rows, and what others wrote goes from cache to
 * cache too. */
static double together(const ll_gemm_call *o, grid d)
{
    double bytes = (double)ll_gemm_kind_of(o)->bytes, n = (double)o->n / d.n;
    return bytes * (n + 5 * n / d.m) / 8;
}
static double alone(const ll_gemm_call *o, grid d, const ll_gemm_form *f)
{
    double blocks = (double)ll_ceil_div(ll_ceil_div(o->m, d.m), f->mc);
    return (blocks + 1 - 1.0 / d.m) * (double)o->n / d.n;
}

/* About how many multiply-adds a thread could do while it makes the largest part: its own, numbers
 * of A and B that it fetches and packs (rows of A are its own, and so are columns of B: the update
 * of a weight cuts them so), and a C whose rows are then wanted by others. */
static double part_cost(const ll_gemm_call *o, grid d)
{
    const ll_gemm_kind *kind = ll_gemm_kind_of(o);
    double m = (double)longest(o->m, row_unit(kind), d.m);
    double n = (double)longest(o->n, column_unit(kind), d.n);
    double k = (double)ll_ceil_div(o->k, d.k), move = kind->packs ? 64 : 0.5 * kind->lanes;
    ll_gemm_form f = form_of(o, d);
    double a = m * (2 - 1.0 / d.n), b = fmin(together(o, d), alone(o, d, &f));
    /* Dot tiles pack nothing, and are half as quick. */
    double cost = f.dot ? 2 * k * m * n : k * (m * n + move * (a + b));
    if (d.n > 1 || d.k > 1) cost += move * m * n * d.k;
    return cost;
}

/* Whichever leaves the longest part shortest, by rows where nothing else is much better; by k,
 * which makes other sums, where it is better by far. */
static grid choose_grid(const ll_gemm_call *o)
{
    grid best = {1, 1, 1};
    double work = (double)o->m * (double)o->n * (double)o->k, cost = part_cost(o, best);
    int threads = ll_team_for_products(o->threads, work);
    if (threads > work / THREAD_WORK) threads = (int)(work / THREAD_WORK);
    for (int m = threads; m >= 1; m = threads / (threads / m + 1)) { /* the most for each n */
        grid d = {m, threads / m, 1};
        double c = part_cost(o, d);
        if (c < cost * 0.98) cost = c, best = d;
    }
    for (int k = threads; k > 1 && !o->bf16_out && o->c_cs <= 1; k /= 2) {
        grid d = {1, 1, k};
        double c = part_cost(o, d);
        if (c < cost * (best.k > 1 ? 0.98 : 0.9)) cost = c, best = d;
    }
    return best;
}

/* A product and how it is cut. */
typedef struct cut {
    ll_gemm_call o;
    ll_gemm_form f;
    grid d;
    size_t all_b;           /* bytes, at the beginning of the scratch; 0: parts pack B themselves */
    size_t serial, partial; /* bytes of one part: what its product needs, its own C if k is cut */
} cut;

static cut cut_up(const ll_gemm_call *g)
{
    cut c = {.o = ll_gemm_oriented(g)};
    const ll_gemm_call *o = &c.o;
    const ll_gemm_kind *kind = ll_gemm_kind_of(o);
    c.d = choose_grid(o);
    c.f = form_of(o, c.d);
    size_t bytes = ll_gemm_b_bytes(o, kind);
    bool packs = c.f.pack_b && !c.f.dot && c.d.k == 1;
    if (packs && bytes <= ALL_B && together(o, c.d) < alone(o, c.d, &c.f)) c.all_b = bytes;
    c.serial = ll_gemm_part_scratch(o, c.all_b > 0);
    if (c.d.k > 1) {
        ll_gemm_call s = *o;
        s.c_rs = o->n;
        c.serial = ll_gemm_serial_scratch(&s);
        c.partial = ll_align64((size_t)(o->m * o->n) * kind->real->bytes);
    }
    return c;
}

size_t ll_gemm_scratch(const ll_gemm_call *g)
{
    cut c = cut_up(g);
    return c.all_b + (size_t)c.d.m * (size_t)c.d.n * (size_t)c.d.k * (c.serial + c.partial);
}

/* Part number x of a product cut along k: into the part's own copy of C. */
static void run_k_part(const cut *c, int x)
{
    const ll_gemm_call *o = &c->o;
    size_t in = ll_gemm_in_bytes(o);
    int64_t p = bound(o->k, 16, x, c->d.k);
    ll_gemm_call s = *o;
    s.scratch = (char *)o->scratch + (size_t)x * (c->serial + c->partial);
    s.k = bound(o->k, 16, x + 1, c->d.k) - p;
    s.a = (const char *)o->a + (size_t)(p * o->a_cs) * in;
    s.b = (const char *)o->b + (size_t)(p * o->b_rs) * in;
    s.c = (char *)s.scratch + c->serial;
    s.c_rs = o->n, s.add = false;
    ll_gemm_serial(&s);
}

/* C from the parts, added in order. */
static void add_parts(const cut *c)
{
    const ll_gemm_call *o = &c->o;
    ll_gemm_store s = {.width = o->n, .m = o->m, .n = o->n, .c = o->c, .c_rs = o->c_rs, .c_cs = 1};
    for (int x = 0; x < c->d.k; x++) {
        s.from = (const char *)o->scratch + (size_t)x * (c->serial + c->partial) + c->serial;
        s.add = o->add || x > 0;
        c->f.kind->real->store(&s);
    }
}

static void run_c_part(const cut *c, int x)
{
    const ll_gemm_call *o = &c->o;
    int rows = row_unit(c->f.kind), columns = column_unit(c->f.kind), i = x % c->d.m,
        j = x / c->d.m;
    char *scratch = (char *)o->scratch;
    ll_gemm_part p = {.scratch = scratch + c->all_b + (size_t)x * c->serial};
    if (c->all_b) p.b = scratch;
    p.i = bound(o->m, rows, i, c->d.m), p.i1 = bound(o->m, rows, i + 1, c->d.m);
    p.j = bound(o->n, columns, j, c->d.n), p.j1 = bound(o->n, columns, j + 1, c->d.n);
    ll_gemm_run_part(o, &c->f, &p);
}

static void some_parts(const void *given, int64_t from, int64_t to)
{
    const cut *c = (const cut *)given;
    for (int x = (int)from; x < to; x++) {
        if (c->d.k > 1)
            run_k_part(c, x);
        else
            run_c_part(c, x);
    }
}

static void some_of_b(const void *given, int64_t from, int64_t to)
{
    const cut *c = (const cut *)given;
    ll_gemm_pack_b(&c->o, &c->f, from, to, (char *)c->o.scratch);
}

void ll_gemm(const ll_gemm_call *g)
{
    if (g->m <= 0 || g->n <= 0) return;
    cut c = cut_up(g);
    int parts = c.d.m * c.d.n * c.d.k, threads = parts > 1 ? g->threads : 1;
    if (c.all_b) ll_in_parts(threads, ll_gemm_b_items(&c.o, &c.f), some_of_b, &c);
    ll_in_parts(threads, parts, some_parts, &c);
    if (c.d.k > 1) add_parts(&c);
}
