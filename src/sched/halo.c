/* halo.c: each rank of a grid gets the margins around its part from the ranks that own them.
 *
 * In coordinates of the whole, a rank owns a box and wants a larger one around it. What it must
 * receive from another rank is the part of the box it wants that the other owns, and what it must
 * send the part of the other's wanted box that it owns itself: so both sides find the same boxes,
 * in the same order, one message at most each way. Corners, uneven parts and margins wider than a
 * neighbour's part need no further thought. (Dryden, Maruyama, Benson, Moon, Snir, Van Essen:
 * Improving strong-scaling of CNN training by exploiting finer-grained parallelism, IPDPS 2019.)
 *
 *     1-D, 9 columns on 3 ranks as 0..3 | 4 | 5..8, margins of 2
 *     rank 0 owns 0..3, wants 0..5:   4 from rank 1, 5 from rank 2
 *     rank 1 owns 4,    wants 2..6:   2 3 from rank 0, 5 6 from rank 2
 *     rank 2 owns 5..8, wants 3..8:   3 from rank 0, 4 from rank 1
 *
 * Boxes that are no single piece of DATA are packed before and unpacked after; all messages are in
 * one round between, so that the caller can compute what needs no margin while they are under way.
 */
#include "sched/emit.h"

typedef struct box {
    int64_t y0, y1, x0, x1; /* of the whole */
} box;

static box owned(const ll_halo_spec *s, int rank)
{
    int y = rank / s->nx, x = rank % s->nx;
    return (box){s->y_starts[y], s->y_starts[y + 1], s->x_starts[x], s->x_starts[x + 1]};
}

static box wanted(const ll_halo_spec *s, int rank)
{
    int y = rank / s->nx, x = rank % s->nx;
    box b = owned(s, rank);
    return (box){b.y0 - s->up[y], b.y1 + s->down[y], b.x0 - s->left[x], b.x1 + s->right[x]};
}

static box common(box a, box b)
{
    return (box){a.y0 > b.y0 ? a.y0 : b.y0, a.y1 < b.y1 ? a.y1 : b.y1, a.x0 > b.x0 ? a.x0 : b.x0,
                 a.x1 < b.x1 ? a.x1 : b.x1};
}

/* A box in DATA of its rank: rows[1] x rows[0] rows of n elements, apart by the strides. */
typedef struct region {
    int64_t at, n, rows[2], stride[2], total;
} region;

/* room: what DATA holds, the box the rank wants. */
static region locate(const ll_halo_spec *s, box room, box b)
{
    int64_t line = (room.x1 - room.x0) * s->inner, plane = (room.y1 - room.y0) * line;
    region r = {.at = (b.y0 - room.y0) * line + (b.x0 - room.x0) * s->inner,
                .n = (b.x1 - b.x0) * s->inner,
                .rows = {b.y1 - b.y0, s->outer},
                .stride = {line, plane}};
    if (b.y1 <= b.y0 || b.x1 <= b.x0) r.n = 0;
    r.total = r.n * r.rows[0] * r.rows[1];
    /* Rows without gaps between them are one row; so are planes. */
    if (r.n == line || r.rows[0] == 1) {
        r.n *= r.rows[0];
        r.rows[0] = 1;
    }
    if (r.rows[0] == 1 && (r.n == plane || s->outer == 1)) {
        r.n *= s->outer;
        r.rows[1] = 1;
    }
    return r;
}

static bool whole(const region *r)
{
    return r->rows[0] * r->rows[1] == 1;
}

/* Copies a region to or from packed elements of SCRATCH. */
static void pack(ll_steps *e, int rank, const region *r, int64_t packed, bool out)
{
    ll_rows rows = {.rows = {r->rows[0], r->rows[1]}};
    int64_t *there = out ? rows.dst_stride : rows.src_stride;
    int64_t *here = out ? rows.src_stride : rows.dst_stride;
    there[0] = r->n;
    there[1] = r->n * r->rows[0];
    here[0] = r->stride[0];
    here[1] = r->stride[1];
    ll_ref from = out ? (ll_ref){rank, LL_DATA, r->at} : (ll_ref){rank, LL_SCRATCH, packed};
    ll_emit_rows(e, out ? LL_SCRATCH : LL_DATA, out ? packed : r->at, from, r->n, &rows);
}

static ll_err check_axis(const char *axis, int n, const int64_t *starts, const int64_t *before,
                         const int64_t *after)
{
    CHECK(n > 0, LL_E_ARG, "a grid of %d parts in %s, at least 1", n, axis);
    for (int i = 0; i < n; i++)
        CHECK(starts[i] <= starts[i + 1], LL_E_ARG, "part %d in %s is %lld to %lld", i, axis,
              (long long)starts[i], (long long)starts[i + 1]);
    for (int i = 0; i < n; i++) {
        CHECK(before[i] >= 0 && after[i] >= 0, LL_E_ARG,
              "margins of part %d in %s are %lld and %lld, at least 0", i, axis,
              (long long)before[i], (long long)after[i]);
        CHECK(starts[i] - before[i] >= starts[0] && starts[i + 1] + after[i] <= starts[n], LL_E_ARG,
              "part %d in %s wants %lld to %lld of the whole, which is %lld to %lld", i, axis,
              (long long)(starts[i] - before[i]), (long long)(starts[i + 1] + after[i]),
              (long long)starts[0], (long long)starts[n]);
    }
    return LL_OK;
}

ll_err ll_sched_halo(ll_arena *arena, const ll_halo_spec *s, int rank, const ll_sched **out)
{
    TRY(check_axis("y", s->ny, s->y_starts, s->up, s->down));
    TRY(check_axis("x", s->nx, s->x_starts, s->left, s->right));
    CHECK(s->outer >= 0 && s->inner >= 0, LL_E_ARG, "outer %lld, inner %lld, at least 0",
          (long long)s->outer, (long long)s->inner);
    int size = s->ny * s->nx;
    CHECK(rank >= 0 && rank < size, LL_E_ARG, "rank %d of %d", rank, size);

    ll_steps e = {.arena = arena, .rank = rank, .size = size};
    region *send = LL_NEW_ARRAY(arena, region, size), *recv = LL_NEW_ARRAY(arena, region, size);
    int64_t *sent_at = LL_NEW_ARRAY(arena, int64_t, size), at = 0;
    box mine = owned(s, rank), room = wanted(s, rank);
    for (int r = 0; r < size; r++) {
        if (r == rank) continue;
        send[r] = locate(s, room, common(mine, wanted(s, r)));
        recv[r] = locate(s, room, common(room, owned(s, r)));
        sent_at[r] = at;
        if (whole(&send[r])) continue;
        pack(&e, rank, &send[r], at, true);
        at += send[r].total;
    }
    ll_emit_next(&e);
    int64_t received = at;
    for (int r = 0; r < size; r++) {
        bool direct = whole(&recv[r]);
        ll_emit_recv(&e, r, direct ? LL_DATA : LL_SCRATCH, direct ? recv[r].at : at, recv[r].total);
        if (!direct) at += recv[r].total;
    }
    for (int r = 0; r < size; r++) {
        bool direct = whole(&send[r]);
        ll_emit_send(&e, r, direct ? LL_DATA : LL_SCRATCH, direct ? send[r].at : sent_at[r],
                     send[r].total);
    }
    ll_emit_next(&e);
    for (int r = 0; r < size; r++) {
        if (whole(&recv[r])) continue;
        pack(&e, rank, &recv[r], received, false);
        received += recv[r].total;
    }
    *out = ll_emit_finish(&e);
    return LL_OK;
}
