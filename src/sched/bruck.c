/* bruck.c: all-to-all in log2 p rounds for small blocks, each of which travels to its place by the
 * bits of how far it has to go (Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for
 * all-to-all communications in multiport message-passing systems, IEEE TPDS 1997).
 *
 *     SCRATCH holds, at place d, a block that has d ranks to go: first the one for rank r + d.
 *     Round k: the blocks at places with bit k set go to rank r + 2^k, and land at the same places.
 *     After all rounds place d holds the block that came from rank r - d.
 *
 *     p = 3, rank 0's places     0    1    2       (xy: from x to y)
 *     at first                   00   01   02
 *     round 0: place 1           00   20   02
 *     round 1: place 2           00   20   10
 *
 * Each block is sent up to log2 p times, so blocks must be small; they must be of one size. */
#include "sched/emit.h"

static int64_t block(const ll_coll_spec *s)
{
    int64_t from, to;
    ll_coll_block(s, 0, &from, &to);
    return to - from;
}

static bool fits(const ll_coll_spec *s, const char **why)
{
    *why = "blocks of one size";
    int64_t n = s->matrix ? s->matrix[0] : block(s), from, to;
    for (int64_t i = 0; s->matrix && i < (int64_t)s->size * s->size; i++)
        if (s->matrix[i] != n) return false;
    for (int b = 0; !s->matrix && b < s->size; b++) {
        ll_coll_block(s, b, &from, &to);
        if (to - from != n) return false;
    }
    return true;
}

/* Places below p with a bit set, in SCRATCH at 0, to or from packed ones at `packed`: runs of 2^k
 * blocks, of which the last may be cut off. */
static void pack(ll_steps *e, int rank, int p, int bit, int64_t n, int64_t packed, bool out)
{
    int64_t run = (1 << bit) * n;
    for (int place = 1 << bit; place < p; place += 2 << bit, packed += run) {
        int64_t at = place * n, len = run < p * n - at ? run : p * n - at;
        ll_ref from = {rank, LL_SCRATCH, out ? at : packed};
        ll_emit_copy(e, LL_SCRATCH, out ? packed : at, from, len);
    }
}

static int n_place(int p, int bit)
{
    int n = 0;
    for (int d = 0; d < p; d++) n += d >> bit & 1;
    return n;
}

static void emit(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int p = s->size;
    int64_t n = s->matrix ? s->matrix[0] : block(s), going = p * n,
            coming = going + (p + 1) / 2 * n;
    ll_emit_copy(e, LL_SCRATCH, 0, (ll_ref){rank, LL_DATA, rank * n}, (p - rank) * n);
    ll_emit_copy(e, LL_SCRATCH, (p - rank) * n, (ll_ref){rank, LL_DATA, 0}, rank * n);
    for (int k = 0; 1 << k < p; k++) {
        int64_t len = n_place(p, k) * n;
        pack(e, rank, p, k, n, going, true);
        ll_emit_next(e);
        ll_emit_recv(e, (rank + p - (1 << k)) % p, LL_SCRATCH, coming, len);
        ll_emit_send(e, (rank + (1 << k)) % p, LL_SCRATCH, going, len);
        ll_emit_next(e);
        pack(e, rank, p, k, n, coming, false);
    }
    for (int d = 0; d < p; d++)
        ll_emit_copy(e, LL_OUT, (rank + p - d) % p * n, (ll_ref){rank, LL_SCRATCH, d * n}, n);
}

static ll_cost cost(const ll_coll_spec *s)
{
    double n = (double)(s->matrix ? s->matrix[0] : block(s));
    ll_cost c = {.copied = 2 * n * s->size};
    for (int k = 0; n > 0 && 1 << k < s->size; k++) {
        c.messages += 1;
        c.sent += n * n_place(s->size, k);
        c.copied += 2 * n * n_place(s->size, k);
    }
    return c;
}

const ll_algo ll_algos_bruck[] = {{.name = "bruck",
                                   .coll = LL_COLL_ALLTOALL,
                                   .help = "log2 p rounds, blocks travel by the bits of their way",
                                   .fits = fits,
                                   .emit = emit,
                                   .cost = cost},
                                  {0}};
