/* prune.c: the smallest weights become zeros. */
#include "train/prune.h"

#include "run/ranks.h"
#include "run/teacher.h"

/* Where gradients are a step late, both versions of a parameter are set. */
static ll_err put(ll_session *s, const char *name, const void *w, size_t bytes)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *next = ll_arena_printf(a, "%s" LL_NEXT, name);
    TRY(ll_session_set(s, name, 0, w, bytes));
    if (!s->late || ll_program_input(s->p, next) < 0) return LL_OK;
    return ll_session_set(s, next, 0, w, bytes);
}

/* What an optimizer keeps of a parameter is 0 where that is: averages would bring it back. */
static ll_err clear_states(ll_session *s, const ll_value *v, const void *w)
{
    size_t length = strlen(v->name), bytes = ll_tensor_bytes(v->type.dtype, &v->type.shape);
    ll_comm *c = s->team ? s->team->c : NULL;
    LL_EACH (const ll_value, x, s->g->values + 1, s->g->n_value - 1) {
        if (x->node >= 0 || x->kind != LL_STATE || strncmp(x->name, v->name, length) ||
            x->name[length] != '.' || x->type.dtype != v->type.dtype ||
            !ll_shape_equal(&x->type.shape, &v->type.shape))
            continue;
        LL_OWN_MEMORY void *is = malloc(bytes + 1);
        TRY(ll_ranks_agree(c,
                           is ? LL_OK : RAISE(LL_E_MEM, "not enough memory to prune %s", x->name)));
        TRY(ll_session_get(s, x->name, is, bytes));
        for (int64_t k = 0; k < ll_numel(&v->type.shape); k++)
            if (ll_load(w, v->type.dtype, k) == 0) ll_store(is, v->type.dtype, k, 0);
        TRY(ll_ranks_agree(c, ll_session_set(s, x->name, 0, is, bytes)));
    }
    return LL_OK;
}

static ll_err prune_one(const ll_prune *p, ll_session *s, const ll_value *v, int n_row,
                        ll_pruned *out)
{
    ll_comm *c = s->team ? s->team->c : NULL;
    const ll_type *t = &v->type;
    size_t bytes = ll_tensor_bytes(t->dtype, &t->shape);
    int64_t n = ll_numel(&t->shape), rows = 1, zeros = 0;
    LL_OWN_MEMORY void *w = malloc(bytes + 1);
    TRY(ll_ranks_agree(c, w ? LL_OK : RAISE(LL_E_MEM, "not enough memory to prune %s", v->name)));
    TRY(ll_session_get(s, v->name, w, bytes));
    for (int i = 0; i < n_row; i++) rows *= t->shape.d[i];
    if (ll_prunes(p)) {
        ll_prune_numbers(p, t->dtype, w, rows, n / rows);
        TRY(ll_ranks_agree(c, put(s, v->name, w, bytes)));
        if (s->step) TRY(clear_states(s, v, w));
    }
    for (int64_t i = 0; i < n; i++) zeros += ll_load(w, t->dtype, i) == 0;
    CHECK(zeros < n || !ll_find_result(s->g, "grad_norm").id, LL_E_ARG,
          "%s is all zeros, which train.prune would keep: begin with other weights", v->name);
    *out = (ll_pruned){out->tensors + 1, out->numbers + n, out->zeros + zeros};
    return LL_OK;
}

static ll_err prune_all(const ll_prune *p, ll_session *s, ll_pruned *out)
{
    *out = (ll_pruned){0};
    for (int i = 1; i < s->g->n_value; i++) {
        const ll_value *v = &s->g->values[i];
        int rows = ll_matrix_rows(s->g, (ll_val){i});
        if (rows && !ll_is_teacher(v->name) && !ll_is_match(v->name))
            TRY(prune_one(p, s, v, rows, out));
    }
    return LL_OK;
}

ll_err ll_prune_session(const char *rule, ll_session *s, ll_pruned *out)
{
    ll_prune p;
    TRY(ll_prune_parse(rule, &p));
    TRY(prune_all(&p, s, out));
    CHECK(out->tensors || !ll_prunes(&p), LL_E_ARG,
          "there is nothing to prune: the model has no weights that are read only by products");
    return LL_OK;
}

ll_err ll_prune_begin(const char *rule, const char *steps, ll_session *s, ll_pruned *out)
{
    if (!*steps) return ll_prune_session(rule, s, out);
    CHECK(!s->late, LL_E_ARG,
          "train.prune_steps cannot be combined with gradients a step late (train.delay, schedules "
          "with two versions), which keep two versions of the weights: leave one out");
    TRY(ll_prune_session("none", s, out));
    CHECK(out->tensors, LL_E_ARG,
          "there is nothing to prune: the model has no weights that are read only by products");
    return LL_OK;
}

ll_err ll_prune_step(const char *rule, const char *steps, int64_t step, ll_session *s,
                     ll_pruned *out)
{
    ll_prune all, now;
    ll_prune_steps when;
    *out = (ll_pruned){0};
    TRY(ll_prune_steps_parse(steps, &when));
    if (!when.to) return LL_OK;
    TRY(ll_prune_parse(rule, &all));
    if (!ll_prune_at(&all, &when, step, &now)) return LL_OK;
    TRY(ll_session_settle(s));
    return prune_all(&now, s, out);
}
