/* cut_kinds.c: which ranks of a mesh have programs that differ, as far as their bytes go.
 *
 * Ranks whose parts of all that is cut are of the same sizes have programs of the same sizes. Two
 * things besides make them differ: a window's part reads a halo, on one side or on both, as wide as
 * where the part lies asks for; and stages of a pipeline are different nodes. */
#include "exec/cut.h"

#include "base/num.h"

typedef struct cutting { /* a dimension of n elements, by axes */
    int64_t n;
    ll_axes axes;
} cutting;

typedef struct marks {
    const ll_mesh *m;
    uint64_t *of;  /* [n_rank] a hash of the sizes of its parts */
    ll_axes apart; /* ranks along these all differ */
    cutting *known;
    int n_known, room;
    ll_arena *arena;
} marks;

static void mix(uint64_t *mark, int64_t v)
{
    *mark = ll_mix64(*mark, (uint64_t)v);
}

/* Layouts on the way from one to another are cut by fewer of the axes. */
static void mark_cut(marks *x, int64_t n, ll_axes axes)
{
    for (int i = 0; i < x->n_known; i++)
        if (x->known[i].n == n && x->known[i].axes == axes) return;
    LL_PUSH(x->arena, x->known, x->n_known, x->room, (cutting){n, axes});
    for (unsigned some = axes; some; some = (some - 1) & axes)
        for (int r = 0; r < x->m->n_rank; r++) {
            int64_t from, to;
            ll_layout_range(x->m, (ll_axes)some, n, r, &from, &to);
            mix(&x->of[r], to - from);
        }
}

static void mark_layout(marks *x, const ll_layout *l, const ll_shape *s)
{
    for (int d = 0; d < s->n; d++)
        if (l->split[d]) mark_cut(x, s->d[d], l->split[d]);
}

static ll_err mark_node(marks *x, const ll_placement *p, int node)
{
    const ll_node *n = &p->g->nodes[node];
    ll_loops l;
    TRY(ll_node_loops(p->g, n, &l));
    for (int a = 0; a < x->m->n; a++) {
        int loop = p->loop[node][a];
        if (loop >= 0 && l.window[loop]) x->apart |= (ll_axes)(1u << a);
    }
    for (int i = 0; i < n->n_in; i++) {
        ll_layout w = ll_place_wanted(p, node, i, &l);
        mark_layout(x, &w, &ll_value_of(p->g, n->in[i])->type.shape);
    }
    return LL_OK;
}

static ll_err mark_placement(marks *x, const ll_placement *p)
{
    for (int v = 1; v < p->g->n_value; v++) {
        mark_layout(x, &p->made[v], &p->g->values[v].type.shape);
        mark_layout(x, &p->seen[v], &p->g->values[v].type.shape);
    }
    for (int i = 0; i < p->g->n_node; i++) TRY(mark_node(x, p, i));
    return LL_OK;
}

ll_err ll_cut_kinds(const ll_cut *c, const int **ranks, int *n)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    const ll_mesh *m = &c->place->mesh;
    marks x = {.m = m, .arena = arena};
    x.of = LL_NEW_ARRAY(arena, uint64_t, m->n_rank);
    int pipe = ll_mesh_axis(m, LL_AXIS_PIPE), *out = LL_NEW_ARRAY(c->arena, int, m->n_rank);
    TRY(mark_placement(&x, c->place));
    if (c->wide) TRY(mark_placement(&x, c->wide));
    if (pipe >= 0) x.apart |= (ll_axes)(1u << pipe);
    *n = 0;
    for (int r = m->n_rank - 1; r >= 0; r--) {
        bool known = false;
        for (int a = 0; a < m->n; a++)
            if (x.apart >> a & 1) mix(&x.of[r], ll_mesh_coord(m, a, r));
        for (int i = 0; i < *n && !known; i++) known = x.of[out[i]] == x.of[r];
        if (!known) out[(*n)++] = r;
    }
    *ranks = out;
    return LL_OK;
}
