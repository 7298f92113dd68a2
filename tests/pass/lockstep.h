/* lockstep.h: the graphs of all ranks, run node by node side by side in one process with reference
 * kernels; collectives are done here, plainly, on everyone's tensors at once. So a partitioning can
 * be held against the serial graph without any ranks. */
#pragma once
#include "base/rng.h"
#include "fuse/fuse.h"
#include "kern/attr.h"
#include "kern/kern.h"
#include "pass/partition.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct lockstep {
    const ll_mesh *m;
    int n_rank;
    ll_graph **g;      /* [n_rank] */
    ll_tensor **value; /* [n_rank][n_value] */
    ll_arena *arena;
    double sent;  /* bytes, all ranks together (ll_collective_sent) */
    int outliers; /* one in so many numbers of batch data is up to 1e12 times larger; 0: none */
    bool fast;    /* by the CPU's kernels, as training does */
} lockstep;

static inline void no_error(ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

static inline ll_tensor new_tensor(ll_arena *a, const ll_type *t)
{
    size_t n = (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
    ll_tensor x = {ll_arena_alloc(a, n + 16), t->dtype, t->shape};
    memset(x.data, 0x7f, n);
    return x;
}

/* Copies a box between two tensors: extents n, from where it starts in each. */
static inline void copy_box(const ll_tensor *to, const int64_t *to_at, const ll_tensor *from,
                            const int64_t *from_at, const int64_t *n, int mode)
{
    int dims = to->shape.n;
    int64_t total = 1, index[LL_MAX_DIMS] = {0};
    for (int d = 0; d < dims; d++) total *= n[d];
    for (int64_t k = 0; k < total; k++) {
        int64_t rest = k, i = 0, j = 0;
        for (int d = dims - 1; d >= 0; d--) {
            index[d] = rest % n[d];
            rest /= n[d];
        }
        for (int d = 0; d < dims; d++) {
            i = i * to->shape.d[d] + to_at[d] + index[d];
            j = j * from->shape.d[d] + from_at[d] + index[d];
        }
        double v = ll_load(from->data, from->dtype, j), w = ll_load(to->data, to->dtype, i);
        double most = w >= v || isnan(w) ? w : v;
        ll_store(to->data, to->dtype, i, mode == 1 ? w + v : mode == 2 ? most : v);
    }
}

static inline ll_tensor *at(lockstep *s, int rank, ll_val v)
{
    return &s->value[rank][v.id];
}

/* One rank's result of a collective, from its group's operands. */
static inline void collective(lockstep *s, int rank, int node)
{
    const ll_node *n = &s->g[rank]->nodes[node];
    const ll_coll_attr *a = (const ll_coll_attr *)n->attr;
    const ll_halo_attr *h = (const ll_halo_attr *)n->attr;
    ll_axes axes = ll_collective_axes(n->op->collective, n->attr);
    int p = ll_mesh_group(s->m, axes), me = ll_mesh_member(s->m, axes, rank);
    ll_tensor *out = at(s, rank, n->out[0]);
    for (int k = 0; k < p; k++) {
        int peer = ll_mesh_rank_of(s->m, axes, rank, k);
        const ll_node *x = &s->g[peer]->nodes[node];
        if (strcmp(x->op->name, n->op->name)) fail_msg("node %d differs between ranks", node);
        const ll_tensor *in = at(s, peer, x->in[0]);
        int64_t to_at[LL_MAX_DIMS] = {0}, from_at[LL_MAX_DIMS] = {0}, len[LL_MAX_DIMS], from, to;
        for (int d = 0; d < in->shape.n; d++) len[d] = out->shape.d[d];
        int mode = 0;
        if (k == me)
            s->sent += ll_collective_sent(s->m, n->op->collective, n->attr,
                                          &(ll_type){in->dtype, in->shape});
        if (!strcmp(n->op->name, "all_reduce")) {
            mode = k ? 1 + (int)a->max : 0;
        } else if (!strcmp(n->op->name, "reduce_scatter")) {
            mode = k ? 1 + (int)a->max : 0;
            from_at[a->dim] = a->from;
        } else if (!strcmp(n->op->name, "all_gather") || !strcmp(n->op->name, "all_to_all")) {
            ll_share(a->extent, p, k, &from, &to);
            assert_int_equal(in->shape.d[a->dim], to - from);
            to_at[a->dim] = from;
            len[a->dim] = to - from;
            if (n->op->name[4] == 't') from_at[a->to_dim] = a->from;
        } else if (!strcmp(n->op->name, "rotate")) {
            if (k != (me + p - 1) % p) continue;
            ll_share(a->extent, p, (int)((k - a->step + p) % p), &from, &to);
            assert_int_equal(in->shape.d[a->dim], to - from);
            assert_true(a->from == from && a->to == to);
        } else {
            int64_t want = h->need[2 * me], end = h->need[2 * me + 1];
            ll_halo_share(h, p, k, &from, &to);
            assert_int_equal(in->shape.d[h->dim], to - from);
            int64_t lo = from > want ? from : want, hi = to < end ? to : end;
            if (hi <= lo) continue;
            to_at[h->dim] = lo - want;
            from_at[h->dim] = lo - from;
            len[h->dim] = hi - lo;
        }
        copy_box(out, to_at, in, from_at, len, mode);
    }
}

static inline void run_node(lockstep *s, int rank, int node, uint64_t seed)
{
    const ll_graph *g = s->g[rank];
    const ll_node *n = &g->nodes[node];
    ll_tensor in[LL_MAX_IN], out[LL_MAX_OUT];
    for (int i = 0; i < n->n_in; i++) in[i] = *at(s, rank, n->in[i]);
    for (int o = 0; o < n->n_out; o++)
        out[o] = *at(s, rank, n->out[o]) = new_tensor(s->arena, &ll_value_of(g, n->out[o])->type);
    if (n->op->collective) return;
    ll_kcall c = {.attr = n->attr,
                  .n_in = n->n_in,
                  .n_out = n->n_out,
                  .in = in,
                  .out = out,
                  .threads = 1,
                  .n_micro = 1,
                  .seed = seed,
                  .step = 3};
    const ll_solver *fast = s->fast ? ll_solver_for(n->op->cpu, &c) : NULL;
    if (fast && fast->scratch) {
        char *room = (char *)ll_arena_alloc(s->arena, fast->scratch(&c) + 64);
        c.scratch = room + (64 - (uintptr_t)room % 64) % 64;
    }
    no_error(fast ? fast->run(&c) : n->op->ref(&c));
}

/* Element i of an input of the whole graph: the same whatever the cut. */
static inline double draw_input(const ll_value *v, uint64_t seed, int64_t i, int64_t limit,
                                int outliers)
{
    uint64_t stream = ll_stream(v->name, 7);
    if (v->init.data) return ll_load(v->init.data->elements, v->init.data->dtype, i);
    if (v->type.dtype == LL_I32)
        return (double)ll_below_at(seed, stream, (uint64_t)i, (uint64_t)limit);
    double u = ll_normal_at(seed, stream, (uint64_t)i);
    if (v->kind == LL_STEP) return !strcmp(v->name, "t") ? 3 : 0.01;
    if (v->kind == LL_STATE) return 0.1 + fabs(u); /* second moments, variances */
    if (outliers && v->kind == LL_BATCH &&
        !ll_below_at(seed, stream + 1, (uint64_t)i, (uint64_t)outliers))
        u *= pow(10, 12 * ll_uniform_at(seed, stream + 2, (uint64_t)i));
    return 0.3 * u;
}

static inline void set_inputs(lockstep *s, int rank, uint64_t seed, int64_t limit)
{
    const ll_graph *g = s->g[rank];
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->node >= 0) continue;
        ll_tensor *x = &s->value[rank][i];
        *x = new_tensor(s->arena, &v->type);
        int64_t n = ll_numel(&v->type.shape);
        for (int64_t k = 0; k < n; k++) {
            int64_t rest = k, index[LL_MAX_DIMS], whole = 0;
            for (int d = v->type.shape.n - 1; d >= 0; d--) {
                index[d] = rest % v->type.shape.d[d];
                rest /= v->type.shape.d[d];
            }
            for (int d = 0; d < v->type.shape.n; d++)
                whole = whole * (v->piece ? v->piece->whole.d[d] : v->type.shape.d[d]) + index[d] +
                        (v->piece ? v->piece->at[d] : 0);
            ll_store(x->data, x->dtype, k, draw_input(v, seed, whole, limit, s->outliers));
        }
    }
}

static inline void lockstep_run(lockstep *s, uint64_t seed, int64_t limit)
{
    s->value = LL_NEW_ARRAY(s->arena, ll_tensor *, s->n_rank);
    for (int r = 0; r < s->n_rank; r++) {
        ll_graph *whole = s->g[r];
        no_error(ll_expand_fused(whole, &s->g[r])); /* to ops with reference kernels */
        ll_graph_free(whole);
    }
    int n_node = s->g[0]->n_node;
    for (int r = 0; r < s->n_rank; r++) {
        if (s->g[r]->n_node != n_node)
            fail_msg("rank %d has %d nodes, rank 0 %d", r, s->g[r]->n_node, n_node);
        s->value[r] = LL_NEW_ARRAY(s->arena, ll_tensor, s->g[r]->n_value);
        set_inputs(s, r, seed, limit);
    }
    for (int i = 0; i < n_node; i++) {
        for (int r = 0; r < s->n_rank; r++) run_node(s, r, i, seed);
        for (int r = 0; r < s->n_rank && s->g[0]->nodes[i].op->collective; r++) collective(s, r, i);
    }
}

/* The worst relative difference between a part and what the serial run has there. */
static inline double difference(const ll_tensor *part, const ll_tensor *whole,
                                const ll_piece *piece)
{
    double worst = 0, scale = 1e-6;
    int64_t n = ll_numel(&part->shape), all = ll_numel(&whole->shape);
    for (int64_t i = 0; i < all; i++)
        scale = fmax(scale, fabs(ll_load(whole->data, whole->dtype, i)));
    for (int64_t k = 0; k < n; k++) {
        int64_t rest = k, index[LL_MAX_DIMS], j = 0;
        for (int d = part->shape.n - 1; d >= 0; d--) {
            index[d] = rest % part->shape.d[d];
            rest /= part->shape.d[d];
        }
        for (int d = 0; d < part->shape.n; d++)
            j = j * whole->shape.d[d] + index[d] + (piece ? piece->at[d] : 0);
        double x = ll_load(part->data, part->dtype, k), y = ll_load(whole->data, whole->dtype, j);
        double e = x == y ? 0 : fabs(x - y) / scale;
        if (!(e <= worst)) worst = isnan(e) ? INFINITY : e;
    }
    return worst;
}
