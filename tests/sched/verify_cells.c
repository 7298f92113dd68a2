/* verify_cells.c: the buffers, a cell for each element. A cell knows what it holds, when it was
 * written, and when others have read it since: enough to tell, at every access, whether the
 * accesses before it that conflict have been told to the one who makes it. What a round's messages
 * touch is marked with the round, so that its folds (and other messages) are seen to keep off. */
#include "sched/verify_int.h"

#include <limits.h>
#include <string.h>

/* A window has two halves, which runs use in turn. */
static ll_place_seen *cell_at(ll_verify *v, int owner, ll_buf_id buf, int64_t i, int run)
{
    const ll_vrank *o = &v->ranks[owner];
    return &o->cells[buf][buf == LL_WINDOW ? run % 2 * o->list->window + i : i];
}

static const char *name_of(ll_buf_id buf)
{
    static const char *const names[LL_N_BUF] = {"data", "out", "scratch", "window"};
    return names[buf];
}

void ll_cells_new(ll_verify *v, int rank)
{
    ll_vrank *r = &v->ranks[rank];
    const ll_promise *p = v->promise;
    r->extent[LL_DATA] = p->extent(p, rank, LL_DATA);
    r->extent[LL_OUT] = p->extent(p, rank, LL_OUT);
    r->extent[LL_SCRATCH] = r->list->scratch;
    r->extent[LL_WINDOW] = r->list->window;
    for (int b = 0; b < LL_N_BUF; b++) {
        int64_t n = r->extent[b] * (b == LL_WINDOW ? 2 : 1);
        r->cells[b] = LL_NEW_ARRAY(v->arena, ll_place_seen, n);
        for (int64_t i = 0; i < n; i++) r->cells[b][i].run = -1;
    }
}

void ll_cells_begin(ll_verify *v, int rank)
{
    ll_vrank *r = &v->ranks[rank];
    for (int64_t i = 0; i < r->extent[LL_DATA]; i++) {
        ll_place_seen *c = &r->cells[LL_DATA][i];
        c->run = v->promise->before(v->promise, rank, i, &c->value) ? r->run : -1;
        c->epoch = r->clock[rank];
    }
}

static ll_err check_read(ll_verify *v, int rank, const ll_step *s, const ll_ref *ref, int64_t i,
                         ll_place_seen **out)
{
    ll_vrank *r = &v->ranks[rank];
    ll_place_seen *c = *out = cell_at(v, ref->rank, ref->buf, i, r->run);
    const char *name = name_of(ref->buf);
    if (ref->rank == rank) {
        if (c->recv_round == r->round_id)
            return ll_verify_fail(v, rank, s, "reads %s[%lld], which a receive of its round writes",
                                  name, (long long)i);
    } else {
        const ll_vrank *o = &v->ranks[ref->rank];
        int entry = o->entry[r->run], known = r->clock[ref->rank];
        if (!entry || entry > known || c->epoch > known)
            return ll_verify_fail(v, rank, s,
                                  "reads rank %d's %s[%lld] while rank %d%s may write it: no "
                                  "signal or message orders them",
                                  ref->rank, name, (long long)i, ref->rank,
                                  o->run > r->run ? ", already done," : "");
        if (!c->reads) c->reads = LL_NEW_ARRAY(v->arena, int, v->size);
        c->reads[rank] = r->clock[rank];
    }
    if (c->run != r->run && !v->promise->barrier)
        return ll_verify_fail(v, rank, s, "reads rank %d's %s[%lld], which nothing was written to",
                              ref->rank, name, (long long)i);
    return LL_OK;
}

/* Have all reads of others since the last write been told to the owner? */
static ll_err check_reads_over(ll_verify *v, int rank, const ll_step *s, ll_buf_id buf, int64_t i,
                               ll_place_seen *c)
{
    for (int q = 0; c->reads && q < v->size; q++)
        if (c->reads[q] > v->ranks[rank].clock[q])
            return ll_verify_fail(v, rank, s,
                                  "%s %s[%lld] while rank %d may read it: no signal or message "
                                  "orders them",
                                  s ? "writes" : "ends, giving back", name_of(buf), (long long)i,
                                  q);
    if (c->reads) memset(c->reads, 0, sizeof(int) * (size_t)v->size);
    return LL_OK;
}

ll_err ll_cells_send(ll_verify *v, int rank, const ll_step *s)
{
    for (int64_t k = 0; k < s->n; k++) {
        ll_place_seen *c;
        TRY(check_read(v, rank, s, s->from, s->from->at + k, &c));
        c->send_round = v->ranks[rank].round_id;
    }
    return LL_OK;
}

ll_err ll_cells_recv(ll_verify *v, int rank, const ll_step *s)
{
    const ll_vrank *r = &v->ranks[rank];
    for (int64_t i = s->dst.at; i < s->dst.at + s->n; i++) {
        ll_place_seen *c = cell_at(v, rank, s->dst.buf, i, r->run);
        bool twice = c->recv_round == r->round_id;
        if (twice || c->send_round == r->round_id)
            return ll_verify_fail(v, rank, s, "writes %s[%lld], which another %s of its round %s",
                                  name_of(s->dst.buf), (long long)i, twice ? "receive" : "send",
                                  twice ? "writes" : "reads");
        TRY(check_reads_over(v, rank, s, s->dst.buf, i, c));
        c->recv_round = r->round_id;
        c->epoch = INT_MAX;
    }
    return LL_OK;
}

void ll_cells_deliver(ll_verify *v, int from, const ll_step *send, int to, const ll_step *recv)
{
    for (int64_t k = 0; k < recv->n; k++) {
        ll_place_seen *c = cell_at(v, to, recv->dst.buf, recv->dst.at + k, v->ranks[to].run);
        c->value = cell_at(v, from, send->from->buf, send->from->at + k, v->ranks[from].run)->value;
        c->run = v->ranks[to].run;
    }
}

void ll_cells_received(ll_verify *v, int rank, const ll_step *s)
{
    for (int64_t i = s->dst.at; i < s->dst.at + s->n; i++)
        cell_at(v, rank, s->dst.buf, i, v->ranks[rank].run)->epoch = v->ranks[rank].clock[rank];
}

/* ---- folds ---- */
static ll_err check_fold_write(ll_verify *v, int rank, const ll_step *s, int64_t i,
                               ll_place_seen **out)
{
    const ll_vrank *r = &v->ranks[rank];
    ll_place_seen *c = *out = cell_at(v, rank, s->dst.buf, i, r->run);
    bool received = c->recv_round == r->round_id;
    if (received || c->send_round == r->round_id)
        return ll_verify_fail(v, rank, s, "writes %s[%lld], which a %s of its round %s",
                              name_of(s->dst.buf), (long long)i, received ? "receive" : "send",
                              received ? "writes" : "reads");
    return check_reads_over(v, rank, s, s->dst.buf, i, c);
}

/* The sum of x[a..b) in canonical order. */
static ll_err join(ll_verify *v, int rank, const ll_step *s, const ll_value *x, int n,
                   ll_value *out)
{
    *out = x[0];
    if (n == 1) return LL_OK;
    ll_value a, b;
    int q = ll_tree_split(n);
    TRY(join(v, rank, s, x, q, &a));
    TRY(join(v, rank, s, x + q, n - q, &b));
    *out = (ll_value){a.ranks | b.ranks, ll_tree_join(a.tree, b.tree), a.elem};
    if (v->promise->barrier) return LL_OK;
    if (a.ranks & b.ranks)
        return ll_verify_fail(v, rank, s, "sums rank %d's element %lld twice",
                              __builtin_ctzll(a.ranks & b.ranks), (long long)a.elem);
    if (a.elem != b.elem)
        return ll_verify_fail(v, rank, s,
                              "sums element %lld of rank %d and element %lld of rank %d",
                              (long long)a.elem, __builtin_ctzll(a.ranks), (long long)b.elem,
                              __builtin_ctzll(b.ranks));
    return LL_OK;
}

static void write(ll_verify *v, int rank, ll_place_seen *c, const ll_value *value)
{
    c->value = *value;
    c->run = v->ranks[rank].run;
    c->epoch = v->ranks[rank].clock[rank];
}

ll_err ll_cells_fold(ll_verify *v, int rank, const ll_step *s)
{
    ll_value few[8], *x = s->n_from <= 8 ? few : LL_NEW_ARRAY(v->arena, ll_value, s->n_from);
    for (int64_t k = 0; k < s->n; k++) {
        ll_place_seen *c;
        ll_value sum;
        for (int f = 0; f < s->n_from; f++) {
            TRY(check_read(v, rank, s, &s->from[f], s->from[f].at + k, &c));
            x[f] = c->value;
        }
        TRY(join(v, rank, s, x, s->n_from, &sum));
        TRY(check_fold_write(v, rank, s, s->dst.at + k, &c));
        write(v, rank, c, &sum);
    }
    return LL_OK;
}

/* ---- the end ---- */
void ll_cells_library(ll_verify *v, int rank)
{
    static const ll_buf_id bufs[] = {LL_DATA, LL_OUT};
    ll_value x;
    for (int b = 0; b < 2; b++)
        for (int64_t i = 0; i < v->ranks[rank].extent[bufs[b]]; i++)
            if (v->promise->after(v->promise, rank, bufs[b], i, &x)) {
                x.tree = x.ranks & (x.ranks - 1) ? 0 : x.tree; /* who knows in what order */
                write(v, rank, &v->ranks[rank].cells[bufs[b]][i], &x);
            }
}

static ll_err check_value(ll_verify *v, int rank, ll_buf_id buf, int64_t i, const ll_value *want)
{
    const ll_place_seen *c = &v->ranks[rank].cells[buf][i];
    const char *name = name_of(buf);
    uint64_t missing = want->ranks & ~c->value.ranks, wrong = c->value.ranks & ~want->ranks;
    if (c->run != v->ranks[rank].run)
        return ll_verify_fail(v, rank, NULL, "%s[%lld] is never written", name, (long long)i);
    if (missing || wrong)
        return ll_verify_fail(v, rank, NULL, "in the end %s[%lld] has %s of rank %d", name,
                              (long long)i, missing ? "nothing" : "something",
                              __builtin_ctzll(missing ? missing : wrong));
    if (c->value.elem != want->elem)
        return ll_verify_fail(v, rank, NULL, "in the end %s[%lld] has element %lld, not %lld", name,
                              (long long)i, (long long)c->value.elem, (long long)want->elem);
    if (c->value.tree != want->tree) v->canonical = false;
    return LL_OK;
}

/* The caller has its buffers back now, and may write to them: to the others, it does. */
ll_err ll_cells_end(ll_verify *v, int rank)
{
    static const ll_buf_id bufs[] = {LL_DATA, LL_OUT};
    ll_vrank *r = &v->ranks[rank];
    ll_value want;
    r->clock[rank]++;
    for (int b = 0; b < 2; b++)
        for (int64_t i = 0; i < r->extent[bufs[b]]; i++) {
            ll_place_seen *c = &r->cells[bufs[b]][i];
            if (v->promise->after(v->promise, rank, bufs[b], i, &want))
                TRY(check_value(v, rank, bufs[b], i, &want));
            TRY(check_reads_over(v, rank, NULL, bufs[b], i, c));
            c->epoch = r->clock[rank];
        }
    return LL_OK;
}
