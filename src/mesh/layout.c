/* layout.c: layouts, and the cheapest way from one to another.
 *
 * A move changes what one axis does to a value (an all-reduce: what several do): nothing -> cut
 * (slice, free), cut -> nothing (all-gather), cut here -> cut there (all-to-all), partial -> cut
 * (reduce-scatter), partial -> nothing (all-reduce). The innermost axis of a dimension alone can
 * come or go, since parts are cut in mesh order. Layouts are the nodes of a graph and moves its
 * edges; few axes and few dimensions make it small, so the search (Dijkstra) looks at everything.
 */
#include "mesh/mesh.h"

#include <stdio.h>
#include <string.h>

bool ll_layout_equal(const ll_layout *a, const ll_layout *b)
{
    return !memcmp(a, b, sizeof *a);
}

ll_axes ll_layout_axes(const ll_layout *l)
{
    ll_axes all = l->sum | l->max;
    for (int d = 0; d < LL_MAX_DIMS; d++) all |= l->split[d];
    return all;
}

void ll_layout_range(const ll_mesh *m, ll_axes axes, int64_t n, int rank, int64_t *from,
                     int64_t *to)
{
    int64_t base = 0;
    for (int a = 0; a < m->n; a++) {
        if (!(axes >> a & 1)) continue;
        int64_t f, t;
        ll_share(n, m->size[a], ll_mesh_coord(m, a, rank), &f, &t);
        base += f;
        n = t - f;
    }
    *from = base;
    *to = base + n;
}

ll_shape ll_layout_local(const ll_mesh *m, const ll_layout *l, const ll_shape *shape, int rank)
{
    ll_shape s = *shape;
    for (int d = 0; d < s.n; d++) {
        int64_t from, to;
        ll_layout_range(m, l->split[d], s.d[d], rank, &from, &to);
        s.d[d] = to - from;
    }
    return s;
}

const char *ll_axes_text(const ll_mesh *m, ll_axes axes, char out[LL_LAYOUT_TEXT])
{
    int n = 0;
    out[0] = '\0';
    for (int a = 0; a < m->n && n < LL_LAYOUT_TEXT; a++)
        if (axes >> a & 1)
            n += snprintf(out + n, (size_t)(LL_LAYOUT_TEXT - n), "%s%s", n ? "*" : "", m->name[a]);
    return out;
}

const char *ll_layout_text(const ll_mesh *m, const ll_layout *l, int n_dim,
                           char out[LL_LAYOUT_TEXT])
{
    char axes[LL_LAYOUT_TEXT];
    int len = snprintf(out, LL_LAYOUT_TEXT, "[");
    for (int d = 0; d < n_dim; d++) {
        ll_axes_text(m, l->split[d], axes);
        len += snprintf(out + len, (size_t)(LL_LAYOUT_TEXT - len), "%s%s", d ? "," : "",
                        *axes ? axes : "-");
        if (len >= LL_LAYOUT_TEXT) return out;
    }
    len += snprintf(out + len, (size_t)(LL_LAYOUT_TEXT - len), "]");
    const ll_axes partial[] = {l->sum, l->max};
    for (int i = 0; i < 2 && len < LL_LAYOUT_TEXT; i++)
        if (*ll_axes_text(m, partial[i], axes))
            len += snprintf(out + len, (size_t)(LL_LAYOUT_TEXT - len), " %s(%s)", i ? "max" : "sum",
                            axes);
    return out;
}

/* ---- the search ---- */

enum { STATES = 4096 };

typedef struct state {
    ll_layout at;
    double cost;
    int moves;    /* so far */
    int from;     /* state before */
    ll_move move; /* that led here */
    bool done;
} state;

typedef struct search {
    const ll_mesh *m;
    const ll_shape *shape;
    double bytes;
    const ll_layout *to;
    ll_arena *arena;
    state *states;
    int n, room, current;
    int pipe; /* the axis whose ranks do not run side by side: it cuts nothing; -1: none */
} search;

/* Bytes of the value that a rank holds under a layout, with even parts. */
static double held(const search *s, const ll_layout *l)
{
    ll_axes cut = 0;
    for (int d = 0; d < s->shape->n; d++) cut |= l->split[d];
    return s->bytes / ll_mesh_group(s->m, cut);
}

static double move_bytes(const search *s, const ll_move *v, const ll_layout *before)
{
    int p = ll_mesh_group(s->m, v->axes);
    double share = (double)(p - 1) / p;
    switch (v->kind) {
    case LL_MOVE_SLICE: return 0;
    case LL_MOVE_ALLGATHER: return share * held(s, &v->after);
    case LL_MOVE_ALLTOALL: return share * held(s, before);
    case LL_MOVE_REDUCE_SCATTER: return share * held(s, before);
    case LL_MOVE_ALLREDUCE: return 2 * share * held(s, before);
    }
    return 0;
}

static void reach(search *s, ll_move v)
{
    const state *now = &s->states[s->current];
    v.bytes = move_bytes(s, &v, &now->at);
    state x = {.at = v.after, .cost = now->cost + v.bytes, .moves = now->moves + 1};
    x.from = s->current, x.move = v;
    int i = 0;
    while (i < s->n && !ll_layout_equal(&s->states[i].at, &x.at)) i++;
    if (i == STATES) return;
    if (i == s->n) {
        LL_PUSH(s->arena, s->states, s->n, s->room, x);
        return;
    }
    const state *old = &s->states[i];
    if (!old->done && (x.cost < old->cost || (x.cost == old->cost && x.moves < old->moves)))
        s->states[i] = x;
}

/* Axis a may be added to, or taken from, axes: all others in it are outside of it. */
static bool innermost(ll_axes axes, int a)
{
    return axes >> a <= 1;
}

static void cut_moves(search *s, const ll_layout *at, int a, int dim)
{
    ll_axes bit = (ll_axes)(1u << a);
    if (!innermost(at->split[dim], a)) return;
    ll_move v = {.axes = bit, .dim = dim, .after = *at};
    v.after.split[dim] &= (ll_axes)~bit;
    v.kind = LL_MOVE_ALLGATHER;
    reach(s, v);
    v.kind = LL_MOVE_ALLTOALL;
    for (int d = 0; d < s->shape->n; d++) {
        if (d == dim || !innermost(at->split[d], a)) continue;
        ll_move w = v;
        w.to_dim = d;
        w.after.split[d] |= bit;
        reach(s, w);
    }
}

static void other_moves(search *s, const ll_layout *at, int a)
{
    ll_axes bit = (ll_axes)(1u << a);
    bool sum = at->sum & bit, max = at->max & bit;
    for (int d = 0; d < s->shape->n; d++) {
        if (!innermost(at->split[d], a)) continue;
        ll_move v = {.axes = bit, .dim = d, .max = max, .after = *at};
        v.kind = sum || max ? LL_MOVE_REDUCE_SCATTER : LL_MOVE_SLICE;
        v.after.sum &= (ll_axes)~bit;
        v.after.max &= (ll_axes)~bit;
        v.after.split[d] |= bit;
        reach(s, v);
    }
}

static void expand(search *s)
{
    ll_layout at = s->states[s->current].at;
    for (int a = 0; a < s->m->n; a++) {
        ll_axes bit = (ll_axes)(1u << a);
        int dim = -1;
        if (a == s->pipe) continue;
        for (int d = 0; d < s->shape->n; d++)
            if (at.split[d] & bit) dim = d;
        bool keeps = (at.sum & s->to->sum & bit) || (at.max & s->to->max & bit);
        if (dim >= 0)
            cut_moves(s, &at, a, dim);
        else if (!keeps)
            other_moves(s, &at, a);
    }
    /* Sums that no dimension takes are made together. */
    for (int max = 0; max < 2; max++) {
        ll_axes have = max ? at.max : at.sum, keep = max ? s->to->max : s->to->sum;
        for (ll_axes axes = have & (ll_axes)~keep; axes;
             axes = (axes - 1) & have & (ll_axes)~keep) {
            ll_move v = {.kind = LL_MOVE_ALLREDUCE, .axes = axes, .max = max, .after = at};
            if (max)
                v.after.max &= (ll_axes)~axes;
            else
                v.after.sum &= (ll_axes)~axes;
            reach(s, v);
        }
    }
}

static int cheapest(const search *s)
{
    int best = -1;
    for (int i = 0; i < s->n; i++) {
        const state *x = &s->states[i], *b = best >= 0 ? &s->states[best] : NULL;
        if (x->done) continue;
        if (!b || x->cost < b->cost || (x->cost == b->cost && x->moves < b->moves)) best = i;
    }
    return best;
}

ll_err ll_reshard(const ll_mesh *m, const ll_shape *shape, double bytes, const ll_layout *from,
                  const ll_layout *to, ll_move moves[LL_MAX_MOVES], int *n_move)
{
    *n_move = 0;
    if (ll_layout_equal(from, to)) return LL_OK;
    LL_OWN(ll_arena) arena = ll_arena_new();
    search s = {
        .m = m, .shape = shape, .bytes = bytes > 0 ? bytes : 1e-9, .to = to, .arena = arena};
    s.pipe = ll_mesh_axis(m, LL_AXIS_PIPE);
    LL_PUSH(arena, s.states, s.n, s.room, (state){.at = *from, .from = -1});
    int end = -1;
    while (end < 0 && (s.current = cheapest(&s)) >= 0) {
        s.states[s.current].done = true;
        if (ll_layout_equal(&s.states[s.current].at, to))
            end = s.current;
        else
            expand(&s);
    }
    int n = end >= 0 ? s.states[end].moves : 0;
    bool found = end >= 0 && n <= LL_MAX_MOVES;
    for (int i = end; found && s.states[i].from >= 0; i = s.states[i].from)
        moves[s.states[i].moves - 1] = s.states[i].move;
    *n_move = n;
    CHECK(found, LL_E_SHARD, "no way to convert layout %s to %s", LL_LAYOUT(m, from, shape->n),
          LL_LAYOUT(m, to, shape->n));
    return LL_OK;
}
