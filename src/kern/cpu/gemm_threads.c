/* gemm_threads.c: a matrix product on several threads.
 *
 * Each thread takes a block of C and runs it as a product of its own; or, where C is too small for
 * that and k is long (the gradient of a small weight), a range of k: the parts are then added in
 * order of k, so that the result does not depend on who was first. */
#include "kern/cpu/gemm_int.h"
#include "kern/cpu/row.h"

enum { THREAD_WORK = 1 << 14 }; /* multiply-adds of a part, at least */

typedef struct grid {
    int m, n, k; /* into how many parts each is cut */
} grid;

/* Estimated cycles of the largest part; packing and adding up parts included. */
static double part_cost(const ll_gemm_call *g, grid d)
{
    const ll_gemm_kind *kind = ll_gemm_kind_of(g);
    int mr = kind->mr, nr = kind->nv * kind->lanes;
    double m = (double)ll_min64(ll_round_up(ll_ceil_div(g->m, d.m), mr), g->m);
    double n = (double)ll_min64(ll_round_up(ll_ceil_div(g->n, d.n), nr), g->n);
    double k = (double)ll_ceil_div(g->k, d.k);
    double cost = k * (m * n / 8 + n / 2 + m / 8);
    if (d.k > 1) cost += (double)g->m * (double)g->n * d.k / 4;
    return cost;
}

/* Cuts C over rows and columns, or k: whichever leaves the longest part shortest. */
static grid choose_grid(const ll_gemm_call *g)
{
    grid best = {1, 1, 1};
    double work = (double)g->m * (double)g->n * (double)g->k, cost = part_cost(g, best);
    int threads = ll_team_for_products(g->threads, work);
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
    if (n < tile * parts) return n * part / parts;
    return ll_min64(ll_ceil_div(n, tile) * part / parts * tile, n);
}

/* Bytes of one part: what its product needs, and its own C where k is cut. */
typedef struct share {
    size_t serial, partial;
} share;

static share share_of(const ll_gemm_call *g, grid d)
{
    ll_gemm_call s = *g;
    if (d.k == 1) return (share){ll_gemm_serial_scratch(g), 0};
    s.c_rs = g->n, s.c_cs = 1;
    return (share){ll_gemm_serial_scratch(&s),
                   ll_align64((size_t)(g->m * g->n) * (g->f64 ? sizeof(double) : sizeof(float)))};
}

size_t ll_gemm_scratch(const ll_gemm_call *g)
{
    grid d = choose_grid(g);
    share s = share_of(g, d);
    return (size_t)d.m * (size_t)d.n * (size_t)d.k * (s.serial + s.partial);
}

/* Part number x of a product cut along k: into the part's own copy of C. */
static void run_k_part(const ll_gemm_call *g, grid d, int x, share room)
{
    size_t in = ll_gemm_in_bytes(g);
    int64_t p = bound(g->k, 16, x, d.k);
    ll_gemm_call s = *g;
    s.scratch = (char *)g->scratch + (size_t)x * (room.serial + room.partial);
    s.k = bound(g->k, 16, x + 1, d.k) - p;
    s.a = (const char *)g->a + (size_t)(p * g->a_cs) * in;
    s.b = (const char *)g->b + (size_t)(p * g->b_rs) * in;
    s.c = (char *)s.scratch + room.serial;
    s.c_rs = g->n, s.c_cs = 1, s.add = false;
    ll_gemm_serial(&s);
}

/* C from the parts, added in order. */
static void add_parts(const ll_gemm_call *g, int parts, share room)
{
    const ll_gemm_real *real = g->f64 ? &ll_gemm_real_f64 : &ll_gemm_real_f32;
    ll_gemm_store s = {.width = g->n, .m = g->m, .n = g->n, .c = g->c, .c_rs = g->c_rs};
    s.c_cs = g->c_cs ? g->c_cs : 1;
    for (int x = 0; x < parts; x++) {
        size_t at = (size_t)x * (room.serial + room.partial) + room.serial;
        s.from = (const char *)g->scratch + at;
        s.add = g->add || x > 0;
        real->store(&s);
    }
}

static void run_c_part(const ll_gemm_call *g, grid d, int x, size_t serial)
{
    const ll_gemm_kind *kind = ll_gemm_kind_of(g);
    size_t in = ll_gemm_in_bytes(g), out = ll_gemm_out_bytes(g);
    int mr = kind->mr, nr = kind->nv * kind->lanes;
    int64_t i = bound(g->m, mr, x % d.m, d.m), j = bound(g->n, nr, x / d.m, d.n);
    ll_gemm_call s = *g;
    s.scratch = (char *)g->scratch + (size_t)x * serial;
    s.m = bound(g->m, mr, x % d.m + 1, d.m) - i;
    s.n = bound(g->n, nr, x / d.m + 1, d.n) - j;
    s.a = (const char *)g->a + (size_t)(i * g->a_rs) * in;
    s.b = (const char *)g->b + (size_t)(j * g->b_cs) * in;
    if (g->a_by) s.a_by += i * g->a_bs, s.b_by += j * g->b_bs;
    s.c = (char *)g->c + (size_t)(i * g->c_rs + j * (g->c_cs ? g->c_cs : 1)) * out;
    ll_gemm_serial(&s);
}

typedef struct cut {
    const ll_gemm_call *g;
    grid d;
    share room;
} cut;

static void some_parts(const void *given, int64_t from, int64_t to)
{
    const cut *c = (const cut *)given;
    for (int x = (int)from; x < to; x++) {
        if (c->d.k > 1)
            run_k_part(c->g, c->d, x, c->room);
        else
            run_c_part(c->g, c->d, x, c->room.serial);
    }
}

void ll_gemm(const ll_gemm_call *g)
{
    grid d = choose_grid(g);
    int parts = d.m * d.n * d.k;
    if (parts <= 1) {
        ll_gemm_serial(g);
        return;
    }
    share room = share_of(g, d);
    ll_in_parts(g->threads, parts, some_parts, &(cut){g, d, room});
    if (d.k > 1) add_parts(g, d.k, room);
}
