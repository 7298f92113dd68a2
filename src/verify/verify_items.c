/* verify_items.c: what verify compares: results, gradients, parameters and state, on both sides,
 * and their blocks. */
#include "verify/verify_int.h"

ll_session_opts ll_verify_alone(const verifier *v)
{
    ll_session_opts o = v->o->session;
    o.delay |= v->cut->late != NULL; /* as its schedule wants it */
    o.comm = NULL;
    o.mesh = NULL;
    o.zero = 0;
    o.compress = NULL;
    o.schedule = o.stages = NULL;
    o.virtual_stages = 0;
    o.post_validation = false;
    o.recompute = NULL;
    o.memory = 0;
    o.offload = NULL;
    return o;
}

void ll_verify_expose(ll_graph *g)
{
    for (int i = 1, n = g->n_value; i < n; i++)
        if (g->values[i].gradient_of) ll_graph_result(g, g->values[i].name, (ll_val){i});
}

/* The node that made v, or what v is the mean over micro-batches of. */
static const char *maker(const ll_graph *g, ll_val v)
{
    int n = ll_value_of(g, v)->node;
    if (n >= 0 && g->nodes[n].op == &ll_op_accum) n = ll_value_of(g, g->nodes[n].in[0])->node;
    return n >= 0 ? g->nodes[n].name : "";
}

static const char *updater(const ll_graph *g, ll_val input)
{
    for (int i = 0; i < g->n_update; i++)
        if (g->updates[i].input.id == input.id) return maker(g, g->updates[i].next);
    return "";
}

static void add_item(verifier *v, item_kind k, const char *name, const char *op, ll_val value)
{
    item *x = &v->items[v->n_item];
    const ll_value *made = ll_value_of(v->cut->g, value);
    *x = (item){k, name, op, made->gradient_of, .type = made->type};
    const ll_program *mine = v->cut->p;
    bool result = k == RESULT || k == GRADIENT;
    x->parallel = result ? ll_program_result(mine, name) : ll_program_input(mine, name);
    if (v->alone) {
        const ll_program *p = v->alone->p;
        x->serial = result ? ll_program_result(p, name) : ll_program_input(p, name);
    }
    const ll_placement *place = v->cut->cut->place;
    ll_val there = place && !result ? ll_find(place->g, name) : (ll_val){0};
    if (there.id) x->layout = place->made[there.id];
    v->n_item++;
}

/* State that nothing reads is no part of the programs; of a pipeline's ranks some have others. */
static ll_err drop_items(verifier *v)
{
    int n = 0;
    int32_t *have = LL_NEW_ARRAY(v->arena, int32_t, v->n_item + 1);
    for (int i = 0; i < v->n_item; i++) have[i] = v->items[i].parallel >= 0;
    if (v->n_rank > 1)
        TRY(ll_comm_allreduce(v->c, have, v->n_item, LL_I32, LL_REDUCE_MAX,
                              &(ll_coll_opts){.site = "tensors"}));
    for (int i = 0; i < v->n_item; i++)
        if (have[i]) v->items[n++] = v->items[i];
    v->n_item = n;
    return LL_OK;
}

static void list(verifier *v)
{
    const ll_graph *g = v->cut->g; /* with a second version, where gradients are a step late */
    v->items = LL_NEW_ARRAY(v->arena, item, g->n_result + g->n_value + 1);
    for (int pass = 0; pass < 3; pass++)
        LL_EACH (const ll_named, r, g->results, g->n_result) {
            bool norm = !strcmp(r->name, "grad_norm");
            bool gradient = ll_value_of(g, r->value)->gradient_of;
            if (pass == (norm ? 2 : gradient ? 1 : 0))
                add_item(v, norm || gradient ? GRADIENT : RESULT, r->name, maker(g, r->value),
                         r->value);
        }
    for (int pass = PARAMETER; pass <= STATE; pass++)
        for (int i = 1; i < g->n_value; i++) {
            const ll_value *x = &g->values[i];
            if (x->node < 0 && x->kind == (pass == PARAMETER ? LL_PARAM : LL_STATE))
                add_item(v, (item_kind)pass, x->name, updater(g, (ll_val){i}), (ll_val){i});
        }
}

/* Whether a tensor is a parameter's gradient, itself or its moment. */
static bool belongs(const item *x, const item *param)
{
    size_t n = strlen(param->name);
    if (x->kind == GRADIENT) return x->gradient_of && !strcmp(x->gradient_of, param->name);
    return !strncmp(x->name, param->name, n) && (!x->name[n] || x->name[n] == '.') &&
           ll_shape_equal(&x->type.shape, &param->type.shape);
}

static void share_left_out(verifier *v)
{
    LL_EACH (const item, param, v->items, v->n_item) {
        if (param->kind != PARAMETER) continue;
        int64_t n = ll_numel(&param->type.shape);
        uint8_t *left_out = (uint8_t *)ll_arena_alloc(v->arena, (size_t)n + 1);
        v->out->elements += n;
        for (int k = 0; k < v->n_item; k++)
            if (v->items[k].kind != RESULT && belongs(&v->items[k], param))
                v->items[k].left_out = left_out;
    }
}

/* Blocks of one dimension: a range may be thirds of it (queries, keys and values). */
static void cut_blocks(verifier *v)
{
    enum { MOST = 48, FEW = 8 };
    LL_EACH (item, x, v->items, v->n_item) {
        const ll_shape *s = &x->type.shape;
        x->first = v->n_block;
        x->n_block = 1;
        for (int d = 0; d < s->n; d++) {
            int64_t n = s->d[d] < MOST ? s->d[d] : MOST, room = ll_numel(s) / FEW;
            if (n > room) n = room;
            x->cuts[d] = v->lenient && n > 1 ? n : 0; /* exact sums have no need of them */
            x->n_block += x->cuts[d];
        }
        v->n_block += x->n_block;
    }
    v->blocks = LL_NEW_ARRAY(v->arena, block, v->n_block + v->n_item + 1);
    v->part = (double(*)[2])ll_arena_alloc(v->arena, sizeof *v->part * (size_t)v->n_block);
    v->judged = LL_NEW_ARRAY(v->arena, int32_t, v->n_block + 1);
}

void ll_verify_block_text(const item *x, int64_t k, char out[LL_VERIFY_NAME])
{
    out[0] = '\0';
    for (int d = 0; d < x->type.shape.n && k > 0; k -= x->cuts[d++]) {
        int64_t n = x->cuts[d], of = x->type.shape.d[d];
        if (k > n) continue;
        snprintf(out, LL_VERIFY_NAME, "[%ld:%ld] of dimension %d", ll_ceil_div((k - 1) * of, n),
                 ll_ceil_div(k * of, n), d);
    }
}

ll_err ll_verify_list(verifier *v)
{
    list(v);
    TRY(drop_items(v));
    share_left_out(v);
    cut_blocks(v);
    return LL_OK;
}
