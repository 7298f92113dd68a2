/* session_step.c: a session's data, in and out, and its steps.
 *
 * A step is: every micro-batch, then what results need, then a look at them, then the update. A
 * loss or gradient that is not finite stops the step before parameters change; the step is then
 * run again node by node on the same data to name the first op that went wrong. */
#include "comm/job.h"
#include "exec/session.h"
#include "program/memory.h"

#include <math.h>
#include <stdio.h>

enum { ORIGIN_TEXT = 300 };

static size_t whole_bytes(const ll_slot *x)
{
    return x->piece ? ll_tensor_bytes(x->type.dtype, &x->piece->whole) : x->bytes;
}

/* Of dimension 0 what this rank holds, of the others all. */
static ll_piece rows_piece(const ll_slot *x)
{
    ll_piece p = *x->piece;
    if (p.whole.n) p.whole.d[0] = x->type.shape.d[0];
    p.at[0] = 0;
    return p;
}

static size_t rows_bytes(const ll_slot *x)
{
    if (!x->piece) return x->bytes;
    ll_piece p = rows_piece(x);
    return ll_tensor_bytes(x->type.dtype, &p.whole);
}

/* An input that another stage of the pipeline has. */
static bool is_elsewhere(const ll_session *s, const char *name)
{
    return s->p->pipe && ll_program_input(s->p, name) < 0 && ll_program_result(s->p, name) < 0 &&
           ll_find(s->g, name).id;
}

static ll_err find_slot(const ll_session *s, const char *name, size_t bytes, int micro, bool set,
                        int *slot)
{
    *slot = ll_program_input(s->p, name);
    if (*slot < 0 && !set) *slot = ll_program_result(s->p, name);
    CHECK(*slot >= 0, LL_E_ARG, "the graph has no input %snamed %s", set ? "" : "or result ", name);
    const ll_slot *x = &s->p->slots[*slot];
    CHECK(bytes == x->bytes || bytes == whole_bytes(x) || (set && bytes == rows_bytes(x)), LL_E_ARG,
          "%s is %s%s, %zu bytes, but %zu were given", name, ll_dtype_name(x->type.dtype),
          LL_DIMS(&x->type.shape), x->bytes, bytes);
    CHECK(micro >= 0 && micro < (x->kind == LL_BATCH ? s->p->n_micro : 1), LL_E_ARG,
          "%s has no micro-batch %d", name, micro);
    return LL_OK;
}

ll_err ll_session_set(ll_session *s, const char *name, int micro, const void *data, size_t bytes)
{
    int slot;
    if (is_elsewhere(s, name)) return LL_OK;
    TRY(find_slot(s, name, bytes, micro, true, &slot));
    CHECK(!s->ahead || !ll_kind_stays(s->p->slots[slot].kind), LL_E_ARG,
          "%s is read by a step in progress: call ll_session_settle first", name);
    s->given[slot] |= 1ull << (micro % 64);
    const ll_slot *x = &s->p->slots[slot];
    if (bytes == x->bytes && !(x->piece && bytes == whole_bytes(x)))
        return ll_exec_put(s->e, slot, micro, data);
    void *to = ll_exec_data(s->e, slot, micro);
    ll_piece rows = bytes == whole_bytes(x) ? *x->piece : rows_piece(x);
    ll_piece_cut(&x->type, &rows, data, to);
    return ll_exec_changed(s->e, slot);
}

ll_err ll_session_get(ll_session *s, const char *name, void *data, size_t bytes)
{
    int slot = 0;
    bool result = ll_find_result(s->g, name).id;
    if (!result || s->after) TRY(ll_session_settle(s));
    if (s->now && result) s = s->now; /* of the last step */
    bool elsewhere = is_elsewhere(s, name);
    if (!elsewhere) TRY(find_slot(s, name, bytes, 0, false, &slot));
    const ll_slot *x = &s->p->slots[slot];
    ll_val v = s->team ? ll_find(s->cut->place->g, name) : (ll_val){0};
    if (v.id && (elsewhere || bytes == whole_bytes(x))) {
        const ll_layout *l = &s->cut->place->made[v.id];
        const ll_type *whole = &ll_value_of(s->cut->place->g, v)->type;
        /* Of several that hold the same piece the first speaks. */
        bool first =
            ll_mesh_member(&s->cut->place->mesh, ll_session_copies(s, l), s->team->rank) == 0;
        return ll_team_collect(s->team, l, whole,
                               elsewhere || !first ? NULL : ll_exec_data(s->e, slot, 0), data);
    }
    if (bytes) memcpy(data, ll_exec_data(s->e, slot, 0), bytes);
    return LL_OK;
}

/* As the program has it now. */
static double found(ll_session *s, const char *name)
{
    if (s->now) s = s->now;
    int slot = ll_program_result(s->p, name);
    if (slot >= 0 && s->p->slots[slot].type.shape.n == 0) {
        double v = ll_exec_scalar(s->e, slot);
        return isnan(v) ? NAN : v; /* which would print as -nan where its sign is set */
    }
    ll_err rc = RAISE(LL_E_ARG,
                      slot < 0 ? "the graph has no result %s"
                               : "result %s is not a scalar: use ll_session_get",
                      name);
    return rc == LL_OK ? 0 : NAN;
}

double ll_session_result(ll_session *s, const char *name)
{
    for (int i = 0; s->after && i < s->p->n_result; i++)
        if (!strcmp(s->p->results[i].name, name)) return s->after->told[i];
    return found(s, name);
}

static ll_err set_scalar(ll_session *s, const char *name, double v)
{
    int slot = ll_program_input(s->p, name);
    double room;
    if (slot < 0 || s->p->slots[slot].kind != LL_STEP) return LL_OK;
    ll_store(&room, s->p->slots[slot].type.dtype, 0, v);
    return ll_exec_put(s->e, slot, 0, &room);
}

/* Copies batch data and per-step scalars to the program that looks for the op that went wrong. */
static ll_err copy_inputs(const ll_session *s, ll_exec *to, const ll_program *p)
{
    for (int i = 0; i < p->n_input; i++) {
        int a = ll_program_input(s->p, p->inputs[i].name), b = p->inputs[i].slot;
        if (a < 0 || ll_kind_stays(p->slots[b].kind)) continue;
        TRY(ll_exec_read(s->e, a, ll_exec_data(to, b, 0)));
        TRY(ll_exec_changed(to, b));
    }
    return LL_OK;
}

/* What of the model an instruction is of, where its own name does not say: exact sums and
 * expansions make many of one op. */
static void tell_origin(const ll_graph *g, const ll_program *p, const ll_instr *x,
                        char out[ORIGIN_TEXT])
{
    for (int i = 0; i < g->n_node && x->at > 0; i++) {
        const ll_node *n = &g->nodes[i];
        if (n->of.at != x->at || n->of.phase != LL_FORWARD) continue;
        const char *result = NULL;
        LL_EACH (const ll_named, r, g->results, g->n_result)
            if (ll_value_of(g, ll_alias_root(g, r->value, 1))->node == i) result = r->name;
        if (strcmp(n->name, x->name))
            snprintf(out, ORIGIN_TEXT, ", made for %s%s%s", n->name, result ? ", which gives " : "",
                     result ? result : "");
        return;
    }
    for (int k = 0; k < x->n_in; k++)
        if (p->slots[x->in[k]].gradient_of)
            snprintf(out, ORIGIN_TEXT, ", of the gradient of %s", p->slots[x->in[k]].gradient_of);
}

/* The step once more, node by node, in the memory of the one that failed where it fits. */
static ll_err run_again(ll_session *s, const ll_program *p, char origin[ORIGIN_TEXT])
{
    LL_OWN(ll_exec) e = NULL;
    ll_exec_opts o = ll_session_exec_opts(s);
    o.share = s->e;
    o.reuse = true;
    TRY(ll_exec_open(p, &o, &e));
    ll_err rc = copy_inputs(s, e, p);
    if (rc == LL_OK) rc = ll_exec_run_checked(e, LL_MICRO, s->step);
    if (rc == LL_OK) rc = ll_exec_run_checked(e, LL_REPORT, s->step);
    if (e->bad) tell_origin(s->g, p, e->bad, origin);
    return rc;
}

/* Names the first op whose result is not finite. */
static ll_err find_bad_op(ll_session *s, const char *what, double value)
{
    LL_OWN(ll_program) p = NULL;
    char origin[ORIGIN_TEXT] = "";
    ll_err rc = ll_session_lower(s, true, &p);
    if (rc == LL_OK) rc = run_again(s, p, origin);
    if (rc == LL_E_COMM) return rc;
    const char *found = rc == LL_OK          ? "every op is finite when run again by itself"
                        : rc == LL_E_NUMERIC ? "the first op that went wrong: "
                                             : "the op that went wrong could not be determined: ";
    uint64_t step = s->of_step ? s->of_step : s->step + 1;
    FAIL(LL_E_NUMERIC, "step %lu: %s is %g; %s%s%s", step, what, value, found,
         rc == LL_OK ? "" : ll_error_message(), origin);
}

/* A result that is not finite; NULL: none. */
static const char *not_finite(ll_session *s)
{
    static const char *const watched[] = {"loss", "grad_norm"};
    for (int i = 0; i < 2; i++)
        if (ll_program_result(s->p, watched[i]) >= 0 && !isfinite(found(s, watched[i])))
            return watched[i];
    return NULL;
}

static ll_err open_wide(ll_session *s)
{
    ll_session_opts o = ll_session_wide_opts(s);
    if (s->more) return LL_OK;
    size_t before = ll_arena_total();
    TRY(ll_session_compile(s->g, &o, true, LL_WHOLE_STEP, &s->more));
    const ll_session *w = s->more;
    size_t team = w->team ? ll_team_bytes(w->team) : 0; /* counted by the session that has it */
    s->wide_bytes = ll_exec_bytes(w->e) + ll_exec_comm_bytes(w->e) - team;
    s->wide_bytes += ll_arena_total() - before; /* its graphs: of exact sums they are large */
    return LL_OK;
}

ll_err ll_session_plan_wide(ll_session *s)
{
    if (!s->opts.exact || s->wide) return LL_OK;
    TRY(open_wide(s));
    ll_session_close(s->more); /* its graphs take memory too, and it is seldom needed */
    s->more = NULL;
    return LL_OK;
}

size_t ll_session_wide_bytes(const ll_session *s, bool ran)
{
    return ran && !s->n_wide ? 0 : s->wide_bytes;
}

/* The step once more, on all bits of its numbers. Every rank comes here, or none: results are the
 * same on all. */
static ll_err run_wide(ll_session *s)
{
    TRY(open_wide(s));
    s->n_wide++;
    s->now = s->more;
    s->now->step = s->step, s->now->of_step = s->of_step;
    TRY(copy_inputs(s, s->now->e, s->now->p));
    TRY(ll_exec_run(s->now->e, LL_MICRO, s->step));
    TRY(ll_exec_run(s->now->e, LL_REPORT, s->step));
    return ll_exec_wait(s->now->e);
}

/* Looks at the results, then updates. */
static ll_err complete(ll_session *s)
{
    TRY(ll_exec_wait(s->e));
    if (s->opts.exact && !s->wide && not_finite(s)) TRY(run_wide(s));
    const char *bad = not_finite(s);
    if (bad) TRY(find_bad_op(s->now, bad, found(s, bad)));
    s->skipped = s->most_norm > 0 && found(s, "grad_norm") > s->most_norm;
    if (!s->skipped && !s->made_at) TRY(ll_exec_run(s->now->e, LL_UPDATE, s->step));
    s->told = ++s->step;
    return LL_OK;
}

ll_err ll_session_update(ll_session *s, const float *made, double lr, double t)
{
    TRY(set_scalar(s, "lr", lr));
    TRY(set_scalar(s, "t", t));
    TRY(ll_exec_begin(s->e, s->step));
    TRY(ll_session_put(s, made));
    TRY(ll_exec_run(s->e, LL_REPORT, s->step));
    TRY(ll_exec_wait(s->e));
    return ll_exec_run(s->e, LL_UPDATE, s->step);
}

/* Steps that overlap: looks at the results, which are of the step before, then updates. */
static ll_err complete_late(ll_session *s)
{
    TRY(ll_exec_wait(s->now->e));
    const char *bad = s->now == s->first ? NULL : not_finite(s);
    CHECK(!bad, LL_E_NUMERIC,
          "step %lu: %s is %g; the op that went wrong is unknown where steps overlap: use another "
          "schedule than 2bw to find it",
          s->step, bad, found(s, bad));
    TRY(ll_exec_run(s->now->e, LL_UPDATE, s->step));
    s->told = s->now == s->first ? 0 : s->step;
    return LL_OK;
}

/* A step while the one before is not over; the first begins a row of them. */
static ll_err start_late(ll_session *s)
{
    s->now = s->ahead ? s : s->first;
    if (!s->ahead) TRY(copy_inputs(s, s->now->e, s->now->p));
    TRY(ll_exec_run(s->now->e, LL_MICRO, s->step));
    return ll_exec_run(s->now->e, LL_REPORT, s->step);
}

static ll_err finish_late(ll_session *s)
{
    TRY(complete_late(s));
    s->ahead = true;
    s->step++;
    return LL_OK;
}

ll_err ll_session_settle(ll_session *s)
{
    if (!s->ahead) return LL_OK;
    if (s->after) return ll_after_settle(s, complete);
    s->now = s->rest;
    s->ahead = false;
    TRY(ll_exec_run(s->now->e, LL_MICRO, s->step));
    TRY(ll_exec_run(s->now->e, LL_REPORT, s->step));
    return complete_late(s);
}

/* What fails on this rank alone, in the middle of a step: others would wait for it, and what it
 * does next would meet what they do now. A number that is not finite is found by all ranks. */
static ll_err tell(const ll_session *s, ll_err rc)
{
    bool alone = rc && rc != LL_E_NUMERIC && ll_job_failure() == LL_FAILURE_ALONE;
    if (alone && s->team) ll_comm_give_up(s->team->c);
    return rc;
}

/* Batch data that nobody set would be zeros. */
static ll_err check_given(const ll_session *s)
{
    int n = s->p->n_micro < 64 ? s->p->n_micro : 64;
    for (int i = 0; i < s->p->n_input; i++) {
        int slot = s->p->inputs[i].slot;
        if (s->p->slots[slot].kind != LL_BATCH || !s->p->slots[slot].bytes) continue;
        for (int m = 0; m < n; m++)
            CHECK(s->given[slot] >> m & 1, LL_E_ARG,
                  "batch data %s was never set%s: use ll_session_set", s->p->inputs[i].name,
                  m ? " for every micro-batch" : "");
    }
    return LL_OK;
}

static ll_err start(ll_session *s, double lr)
{
    ll_session *other = s->opts.share;
    CHECK(isfinite(lr), LL_E_ARG, "the learning rate is %g, expected a finite number", lr);
    if (other) TRY(ll_session_settle(other)); /* it reads that one's parameters */
    s->now = s;
    TRY(set_scalar(s, "lr", lr));
    TRY(set_scalar(s, "t", (double)s->step + 1));
    if (s->after) return ll_after_run(s, complete);
    if (s->first) {
        TRY(start_late(s));
        return s->machine->wait ? LL_OK : finish_late(s);
    }
    TRY(ll_exec_run(s->e, LL_MICRO, s->step));
    if (s->made_at) TRY(ll_session_leave(s)); /* what follows may write over it */
    TRY(ll_exec_run(s->e, LL_REPORT, s->step));
    return s->machine->wait ? LL_OK : complete(s);
}

/* On machines that do not work beside this process the whole step is done here: whatever is set
 * after it is the next one's. */
ll_err ll_session_start(ll_session *s, double lr)
{
    if (!s->checked) {
        TRY(ll_comm_agree(s->team ? s->team->c : NULL, check_given(s)));
        s->checked = true;
    }
    return tell(s, start(s, lr));
}

ll_err ll_session_finish(ll_session *s)
{
    if (!s->machine->wait) return LL_OK;
    return tell(s, s->first ? finish_late(s) : complete(s));
}

ll_err ll_session_run(ll_session *s, double lr)
{
    TRY(ll_session_start(s, lr));
    return ll_session_finish(s);
}
