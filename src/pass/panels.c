/* panels.c: operands that are gathered along a loop, in panels (parts.c says why).
 *
 *     4 ranks, rank 1:   step 0  1  2  3
 *                       panel 1  0  3  2     while one is worked on, the next is on its way
 *
 * What panels give is joined in order where a result walks the loop, and else put together as the
 * loop says: sums, maxima, or the op's merge. Ring attention (Liu et al., 2023) is that: keys and
 * values travel, and results are merged by the logarithms of their sums. */
#include "pass/partition_int.h"

#include <stdio.h>

bool ll_panels_pay(ll_cutter *c, const ll_job *j, const ll_panels *p)
{
    if (!ll_may_pay(c, (ll_axes)(1u << p->axis))) return false;
    int size = c->m->size[p->axis];
    bool joined = j->l->combine[p->loop] == LL_FREE, input = true, there = true;
    double share = 1 - 1.0 / size, whole = 0, copied = 0;
    copied += ll_job_results(c, j) * (joined ? 1 : 1.5 * (size - 1));
    for (int i = 0; i < j->n->n_in; i++)
        if (ll_dim_of(j->l->in[i], p->loop) >= 0)
            copied += ll_job_bytes(c, j, &j->in[i], j->l->in[i]);
    LL_EACH (const ll_panels_of, x, p->of, p->n) {
        double bytes = ll_job_bytes(c, j, &j->in[x->operand], j->l->in[x->operand]);
        whole += bytes;
        copied -= x->keep && !x->there ? 0 : bytes;
        there &= x->there != NULL;
        input &= ll_value_of(c->g, j->n->in[x->operand])->node < 0;
    }
    /* The gather of an input waits for nothing that is computed, and starts long before its use. */
    if (input && c->p->overlap == LL_OVERLAP_AUTO) return false;
    double hidden =
        fmin(LL_MESSAGE_FLOPS + LL_FLOPS_PER_BYTE * whole * share, ll_job_flops(c, j) * share);
    if (there) hidden = LL_COPY_FLOPS * whole; /* they need not be joined */
    char text[96];
    snprintf(text, sizeof text, "%d panels of operand %d%s over %s%s, %c %s", size,
             p->of[0].operand, p->n > 1 ? " and others" : "", c->m->name[p->axis],
             there ? " that are there" : "", j->l->letter[p->loop],
             joined                               ? "joined"
             : j->l->combine[p->loop] == LL_WHOLE ? "merged"
                                                  : "summed");
    return ll_pays(c, j, text, hidden, (size - 1) * LL_PIECE_FLOPS + LL_COPY_FLOPS * copied);
}

static ll_err rotate(ll_cutter *c, const ll_panels *p, int dim, int64_t extent, int step, ll_val x,
                     ll_val *out)
{
    int size = c->m->size[p->axis], me = ll_mesh_coord(c->m, p->axis, c->rank);
    ll_range r = ll_share_of(extent, size, (me - step - 1 + size) % size);
    ll_coll_attr a = {.axes = 1 << p->axis,
                      .dim = dim,
                      .extent = extent,
                      .step = step,
                      .from = r.from,
                      .to = r.to,
                      .serial = ++c->serial};
    return ll_cut_emit(c, ll_collective_op(LL_ROTATE), &a, x, out);
}

/* A view's part of panel k: operands that walk the loop and are no panels are sliced. */
static ll_err make_panel(ll_cutter *c, const ll_view *v, const ll_panels *p, int k,
                         const ll_val *panel, ll_val *out)
{
    const ll_job *j = &v->j;
    ll_range r = ll_share_of(j->l->extent[p->loop], c->m->size[p->axis], k);
    ll_val y[LL_MAX_IN];
    ll_part part;
    for (int i = 0; i < j->n->n_in; i++) {
        int d = ll_dim_of(j->l->in[i], p->loop);
        y[i] = panel[i].id ? panel[i] : v->x[i];
        if (!panel[i].id && d >= 0) TRY(ll_cut_slice(c, v->x[i], d, r, &y[i]));
    }
    TRY(ll_job_part(c, j, p->loop, r, v->attr, &part));
    return ll_make_node(c, j, 0, part.attr, y, out);
}

/* Panels of what is stored cut go like other loans (partition.c). */
static void keep_lent(ll_cutter *c, const ll_type *t, ll_paneled *p, bool came)
{
    double bytes = (double)ll_type_bytes(t);
    if (came) c->lent += bytes;
    p->until = c->lent + bytes;
}

/* Puts the results of another panel to those before; what walks the loop waits to be joined. */
static ll_err put_together(ll_cutter *c, const ll_view *v, int loop, const ll_val *made,
                           ll_val *sum)
{
    const ll_op *op = v->j.n->op;
    ll_combine how = v->j.l->combine[loop];
    if (how == LL_WHOLE) {
        ll_val both[LL_MAX_OUT];
        op->merge(c->to, sum, made, both);
        memcpy(sum, both, sizeof *sum * (size_t)op->n_out);
    }
    for (int o = 0; o < op->n_out && how != LL_WHOLE; o++)
        if (ll_dim_of(v->j.l->out[o], loop) < 0)
            sum[o] =
                how == LL_MAX ? ll_max(c->to, sum[o], made[o]) : ll_add(c->to, sum[o], made[o]);
    return ll_graph_check(c->to);
}

/* The panels of step s, and those of the next on their way before the work that runs meanwhile. */
static ll_err next_panels(ll_cutter *c, const ll_job *j, const ll_panels *p, int s,
                          ll_paneled *const *kept, ll_val *moving, ll_val *panel)
{
    int size = c->m->size[p->axis], me = ll_mesh_coord(c->m, p->axis, c->rank);
    int k = (me - s + size) % size;
    for (int i = 0; i < p->n; i++) {
        const ll_panels_of *x = &p->of[i];
        ll_val now = x->there ? x->there->panel[k] : moving[i];
        panel[x->operand] = kept[i]->panel[k] = now;
        if (s + 1 < size && !x->there)
            TRY(rotate(c, p, x->dim, j->l->extent[p->loop], s, now, &moving[i]));
    }
    return LL_OK;
}

ll_err ll_make_panels(ll_cutter *c, ll_view *v, int n, const ll_panels *p)
{
    int size = c->m->size[p->axis], me = ll_mesh_coord(c->m, p->axis, c->rank);
    const ll_job *j = &v->j;
    ll_val made[2][LL_MAX_IN][LL_MAX_OUT], moving[LL_MAX_IN], panel[LL_MAX_IN] = {{0}};
    ll_paneled *kept[LL_MAX_IN];
    for (int i = 0; i < p->n; i++) {
        const ll_panels_of *x = &p->of[i];
        moving[i] = v->x[x->operand];
        kept[i] = LL_NEW(c->arena, ll_paneled);
        *kept[i] =
            (ll_paneled){j->n->in[x->operand].id, size, x->dim, x->whole, {{0}}, INFINITY, NULL};
    }
    for (int s = 0; s < size; s++) {
        int k = (me - s + size) % size;
        TRY(next_panels(c, j, p, s, kept, moving, panel));
        for (int i = 0; i < n; i++) {
            TRY(make_panel(c, &v[i], p, k, panel, made[i][k]));
            if (!s) memcpy(v[i].out, made[i][k], sizeof v[i].out);
            if (s) TRY(put_together(c, &v[i], p->loop, made[i][k], v[i].out));
        }
    }
    for (int i = 0; i < p->n; i++) {
        const ll_panels_of *x = &p->of[i];
        if (x->keep && !x->there) kept[i]->next = c->paneled, c->paneled = kept[i];
        if (x->lent) keep_lent(c, &j->in[x->operand], x->there ? x->there : kept[i], !x->there);
    }
    for (int i = 0; i < n; i++)
        for (int o = 0; o < j->n->n_out; o++) {
            ll_val all[LL_MAX_IN];
            int d = ll_dim_of(j->l->out[o], p->loop);
            for (int k = 0; k < size; k++) all[k] = made[i][k][o];
            if (d >= 0) v[i].out[o] = ll_concat(c->to, all, size, d);
        }
    return ll_graph_check(c->to);
}

ll_paneled *ll_find_panels(const ll_cutter *c, ll_val v, const ll_layout *l)
{
    ll_paneled *p = c->paneled;
    while (p && (p->value != v.id || !ll_layout_equal(&p->whole, l) || c->lent > p->until))
        p = p->next;
    return p;
}
