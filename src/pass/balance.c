/* balance.c: a loop whose parts differ in work: of causal attention the last rows see most.
 *
 * Halves of ranks' parts are swapped in pairs, first with last: rank i of p makes the first half of
 * its own part and the second half of that of rank p-1-i. Where work grows evenly along the loop
 * that is the same for all, as with zig-zag chunks (Zhu 2024), and nobody else sees it: what comes
 * out goes back.
 *
 *     4 ranks, halves 0 to 7     rank 0: 0 7   rank 1: 2 5   rank 2: 4 3   rank 3: 6 1
 *
 * A half of each operand that walks the loop is sent, and of each result: weighed against what the
 * busiest rank has less to do. How much work a range is, the op's cost says. */
#include "pass/partition_int.h"

/* The half of member k's part that it keeps, or the other. */
static ll_range half_of(int64_t n, int size, int k, bool last)
{
    ll_range r = ll_share_of(n, size, k);
    int64_t mid = r.from + (r.to - r.from + 1) / 2;
    return last ? (ll_range){mid, r.to} : (ll_range){r.from, mid};
}

static ll_err work_of(ll_cutter *c, const ll_job *j, int loop, ll_range r, const void *attr,
                      double *work)
{
    ll_part p;
    ll_loops l = *j->l;
    TRY(ll_job_part(c, j, loop, r, attr, &p));
    l.extent[loop] = r.to - r.from;
    *work = j->n->op->cost(p.attr, &l);
    return LL_OK;
}

/* Of all the work, what the busiest rank does as it is, and with halves swapped. */
static ll_err busiest(ll_cutter *c, const ll_job *j, int loop, int size, const void *attr,
                      double *now, double *then)
{
    int64_t n = j->l->extent[loop];
    double all = 0;
    *now = *then = 0;
    for (int k = 0; k < size; k++) {
        double first, last, other;
        TRY(work_of(c, j, loop, half_of(n, size, k, false), attr, &first));
        TRY(work_of(c, j, loop, half_of(n, size, k, true), attr, &last));
        TRY(work_of(c, j, loop, half_of(n, size, size - 1 - k, true), attr, &other));
        *now = fmax(*now, first + last);
        *then = fmax(*then, first + other);
        all += first + last;
    }
    *now /= fmax(all, 1);
    *then /= fmax(all, 1);
    return LL_OK;
}

static ll_err uneven(ll_cutter *c, const ll_job *j, int loop, const void *attr, bool *yes)
{
    ll_axes axes = ll_job_axes(c, j, loop);
    int size = ll_mesh_group(c->m, axes);
    double now, then, moved = 0;
    *yes = false;
    if (size < 2 || size > LL_HALO_MAX || j->l->window[loop] || j->l->extent[loop] < 2 * size)
        return LL_OK;
    TRY(busiest(c, j, loop, size, attr, &now, &then));
    for (int i = 0; i < j->n->n_in; i++)
        if (ll_dim_of(j->l->in[i], loop) >= 0)
            moved += ll_job_bytes(c, j, &j->in[i], j->l->in[i]) / 2;
    for (int o = 0; o < j->n->n_out; o++)
        if (ll_dim_of(j->l->out[o], loop) >= 0)
            moved += ll_job_bytes(c, j, &ll_value_of(c->g, j->n->out[o])->type, j->l->out[o]) / 2;
    double saved = (now - then) * size * ll_job_flops(c, j);
    double lost = 2 * LL_MESSAGE_FLOPS + (LL_FLOPS_PER_BYTE + LL_COPY_FLOPS) * moved;
    *yes = saved > lost || (saved > 0 && c->p->overlap == LL_OVERLAP_ALL);
    if (c->told && saved > 0)
        ll_buf_printf(c->told,
                      "  %-36s %sbalanced along %c: %.0f %% of the work for the busiest rank, not "
                      "%.0f: saves %sFLOP, costs %sFLOP\n",
                      j->n->name, *yes ? "" : "not ", j->l->letter[loop], 100 * then, 100 * now,
                      LL_AMOUNT(saved), LL_AMOUNT(lost));
    return LL_OK;
}

/* What members make: the first half of their own, or the second of their counterpart's. */
static ll_halo_attr halves(const ll_cutter *c, ll_axes axes, int dim, int64_t n, bool last)
{
    int size = ll_mesh_group(c->m, axes);
    ll_halo_attr h = {.axes = axes, .dim = dim, .extent = n};
    h.me = ll_mesh_member(c->m, axes, c->rank);
    for (int k = 0; k < size; k++) {
        ll_range r = half_of(n, size, last ? size - 1 - k : k, last);
        h.need[2 * k] = r.from;
        h.need[2 * k + 1] = r.to;
    }
    return h;
}

static ll_err make_view(ll_cutter *c, const ll_job *j, int loop, bool last, ll_view *v)
{
    ll_axes axes = ll_job_axes(c, j, loop);
    int64_t n = j->l->extent[loop];
    ll_part part;
    for (int i = 0; i < j->n->n_in; i++) {
        int d = ll_dim_of(j->l->in[i], loop);
        if (d < 0) continue;
        ll_halo_attr what = halves(c, axes, d, n, last);
        TRY(ll_cut_take(c, v->x[i], &what, &v->x[i]));
    }
    for (int a = 0; a < c->m->n; a++)
        if (axes >> a & 1) v->cuts[a] = -1; /* the part is made already */
    ll_halo_attr mine = halves(c, axes, 0, n, last);
    ll_range r = {mine.need[2 * mine.me], mine.need[2 * mine.me + 1]};
    TRY(ll_job_part(c, j, loop, r, v->attr, &part));
    v->attr = part.attr;
    return LL_OK;
}

ll_err ll_balance(ll_cutter *c, const ll_job *j, void *attr, const ll_val *x, ll_view v[2],
                  int *loop)
{
    *loop = -1;
    for (int k = 0; k < j->l->n && j->n->op->cost && j->n->op->split && *loop < 0; k++) {
        bool yes;
        TRY(uneven(c, j, k, attr, &yes));
        if (yes) *loop = k;
    }
    for (int i = 0; i < 2; i++) {
        v[i].j = *j;
        memcpy(v[i].cuts, j->cuts, sizeof v[i].cuts);
        memcpy(v[i].x, x, sizeof *x * (size_t)j->n->n_in);
        v[i].j.cuts = v[i].cuts;
        v[i].attr = attr;
        if (*loop >= 0) TRY(make_view(c, j, *loop, i == 1, &v[i]));
    }
    return LL_OK;
}

ll_err ll_unite(ll_cutter *c, const ll_job *j, int loop, const ll_view v[2], ll_val *out)
{
    for (int o = 0; o < j->n->n_out; o++) {
        int d = loop < 0 ? -1 : ll_dim_of(j->l->out[o], loop);
        out[o] = v[0].out[o];
        if (loop >= 0 && d < 0) out[o] = ll_add(c->to, out[o], v[1].out[o]);
        if (d < 0) continue;
        ll_axes axes = ll_job_axes(c, j, loop);
        int size = ll_mesh_group(c->m, axes);
        ll_halo_attr back = halves(c, axes, d, j->l->extent[loop], true);
        for (int k = 0; k < size; k++) {
            ll_range r = half_of(back.extent, size, k, true);
            back.need[2 * k] = r.from;
            back.need[2 * k + 1] = r.to;
        }
        back.swapped = 1;
        back.serial = ++c->serial;
        ll_val last;
        TRY(ll_cut_emit(c, ll_collective_op(LL_HALO), &back, v[1].out[o], &last));
        out[o] = ll_concat(c->to, (ll_val[]){out[o], last}, 2, d);
    }
    return ll_graph_check(c->to);
}
