/* session_after.c: steps of a pipeline that are looked at when the next one has begun, so that no
 * stage waits at a step's end for what all of them know together: the norm of the gradients, the
 * loss (Qi et al. 2024, Zero Bubble Pipeline Parallelism: post-validation).
 *
 *     rank 0   ... B W | update | F F F  hear | B W ...      the norm is presumed to be within
 *     rank 1   ....... B W | update |  F F  hear | B W ...   clip, and the loss a number: then an
 *     rank 2   ........... B W | update | F  hear | B W ...  update depends on neither
 *
 * What the update writes, and the step's inputs, are kept until then. Where it does not hold, every
 * rank has come to the same place and finds the same: what is under way of the next step is brought
 * to its end without kernels, for others wait for its messages; all is put back, and both steps are
 * made as without this, the first of them looked at before it updates. So are further ones, until
 * one holds. Results are told a step late in either case. */
#include "exec/session.h"

#include "base/num.h"

#include <math.h>
#include <stdlib.h>

/* ---- what is kept ---- */

static bool is_written(const ll_program *p, int slot)
{
    for (int i = p->end[LL_REPORT]; i < p->end[LL_UPDATE]; i++)
        for (int o = 0; o < p->instrs[i].n_out; o++)
            if (p->slots[p->instrs[i].out[o]].input == slot) return true;
    return false;
}

static size_t padded(const ll_session *s, int slot)
{
    return ll_align64(ll_exec_slot_bytes(s->e, slot));
}

static ll_err find_saved(ll_session *s)
{
    ll_after *x = s->after;
    const ll_program *p = s->p;
    size_t bytes = 64;
    x->saved = LL_NEW_ARRAY(s->arena, int, p->n_input + 1);
    for (int i = 0; i < s->n_kept; i++)
        if (is_written(p, s->kept[i])) x->saved[x->n_saved++] = s->kept[i];
    x->n_written = x->n_saved;
    for (int i = 0; i < p->n_input; i++) {
        ll_kind k = p->slots[p->inputs[i].slot].kind;
        if (k == LL_BATCH || k == LL_STEP) x->saved[x->n_saved++] = p->inputs[i].slot;
    }
    for (int i = 0; i < x->n_saved; i++) bytes += padded(s, x->saved[i]);
    x->room = (char *)aligned_alloc(64, bytes);
    CHECK(
        x->room, LL_E_MEM,
        "not enough memory for %s of parameters and state as they were: leave out post_validation",
        LL_BYTES_UP(bytes));
    s->e->extra_bytes += bytes;
    return LL_OK;
}

typedef enum what { SAVE, RESTORE, SWAP } what;

static void move(char *data, char *room, size_t bytes, what how)
{
    enum { PIECE = 4096 };
    char part[PIECE];
    if (how == SAVE) memcpy(room, data, bytes);
    if (how == RESTORE) memcpy(data, room, bytes);
    for (size_t at = 0; how == SWAP && at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        memcpy(part, data + at, n);
        memcpy(data + at, room + at, n);
        memcpy(room + at, part, n);
    }
}

/* Of what is saved, those from..to. */
static void move_saved(const ll_session *s, int from, int to, what how)
{
    const ll_after *x = s->after;
    size_t at = 0;
    for (int i = 0; i < to; i++) {
        size_t bytes = ll_exec_slot_bytes(s->e, x->saved[i]);
        if (i >= from && bytes) move(ll_exec_data(s->e, x->saved[i], 0), x->room + at, bytes, how);
        at += padded(s, x->saved[i]);
    }
}

/* ---- results ---- */

/* Numbers, as they are now; late: of those alone that other stages have told since. */
static void note(ll_session *s, bool late)
{
    const ll_program *p = s->p;
    if (!late) s->after->next_wide = s->now != s;
    for (int i = 0; i < p->n_result; i++) {
        int slot = p->results[i].slot, there = ll_program_result(s->now->p, p->results[i].name);
        if (p->slots[slot].type.shape.n || (late && !ll_exec_is_late(s->e, slot))) continue;
        s->after->next[i] = ll_exec_scalar(s->now->e, there);
    }
}

static void tell(ll_session *s)
{
    memcpy(s->after->told, s->after->next, sizeof(double) * (size_t)s->p->n_result);
    s->after->told_wide = s->after->next_wide;
    s->after->told_step = (int64_t)s->step;
}

static double noted(const ll_session *s, const char *name)
{
    for (int i = 0; i < s->p->n_result; i++)
        if (!strcmp(s->p->results[i].name, name)) return s->after->next[i];
    return 0;
}

/* Whether the last step was what it was taken for. The same on every rank. */
static bool holds(const ll_session *s)
{
    return isfinite(noted(s, "loss")) && noted(s, "grad_norm") <= s->after->limit;
}

/* ---- steps ---- */

/* A step that is looked at before it updates: its micro-batches are made. */
static ll_err look_first(ll_session *s)
{
    TRY(ll_exec_run(s->e, LL_REPORT, s->step));
    TRY(s->after->complete(s));
    note(s, false);
    s->after->wary = !holds(s);
    return LL_OK;
}

static ll_err presume(ll_session *s)
{
    int norm = ll_program_result(s->p, "grad_norm");
    TRY(ll_exec_run_part(s->e, LL_OWN, s->step));
    note(s, false);
    if (norm >= 0 && ll_exec_is_late(s->e, norm))
        ll_store(ll_exec_data(s->e, norm, 0), s->p->slots[norm].type.dtype, 0, 0);
    move_saved(s, 0, s->after->n_saved, SAVE);
    TRY(ll_exec_run(s->e, LL_UPDATE, s->step));
    TRY(ll_exec_run_part(s->e, LL_ASK, s->step));
    s->step++;
    return LL_OK;
}

/* The last step once more, from what it began with. */
static ll_err make_again(ll_session *s)
{
    ll_after *x = s->after;
    move_saved(s, 0, x->n_written, RESTORE);
    move_saved(s, x->n_written, x->n_saved, SWAP);
    x->n_undone++;
    s->step--;
    TRY(ll_exec_run(s->e, LL_MICRO, s->step));
    TRY(look_first(s));
    x->wary = true;
    move_saved(s, x->n_written, x->n_saved, SWAP);
    return LL_OK;
}

static ll_err hear(ll_session *s)
{
    TRY(ll_exec_run_part(s->e, LL_HEAR, s->step));
    note(s, true);
    return LL_OK;
}

/* The micro-batches of a step behind one that was not looked at yet. */
static ll_err go_on(ll_session *s)
{
    TRY(ll_exec_run_part(s->e, LL_HEAD, s->step));
    TRY(hear(s));
    if (holds(s)) {
        tell(s);
        return ll_exec_run_part(s->e, LL_TAIL, s->step);
    }
    TRY(ll_exec_run_part(s->e, LL_MESSAGES, s->step));
    TRY(make_again(s));
    tell(s);
    s->now = s; /* that one may have been wide */
    return ll_exec_run(s->e, LL_MICRO, s->step);
}

ll_err ll_after_run(ll_session *s, ll_err (*complete)(ll_session *s))
{
    ll_after *x = s->after;
    x->complete = complete;
    bool behind = s->ahead;
    if (behind && !x->sure)
        TRY(go_on(s));
    else {
        if (behind) tell(s);
        TRY(ll_exec_run(s->e, LL_MICRO, s->step));
    }
    x->sure = x->wary;
    TRY(x->wary ? look_first(s) : presume(s));
    s->ahead = true;
    s->told = behind ? s->step - 1 : 0;
    return LL_OK;
}

ll_err ll_after_settle(ll_session *s, ll_err (*complete)(ll_session *s))
{
    s->after->complete = complete;
    s->ahead = false;
    if (!s->after->sure) {
        TRY(hear(s));
        if (!holds(s)) TRY(make_again(s));
    }
    tell(s);
    s->told = s->step;
    return LL_OK;
}

/* ---- life ---- */

ll_err ll_after_open(ll_session *s)
{
    CHECK(s->machine->overlaps, LL_E_ARG,
          "machine %s does not support post_validation: use machine cpu, or leave it out",
          s->machine->target->name);
    ll_after *x = s->after = LL_NEW(s->arena, ll_after);
    x->limit = ll_clip_limit(s->g);
    CHECK(x->limit > 0, LL_E_ARG,
          "post_validation cannot be used, as the graph reads grad_norm for something other than "
          "clipping: leave it out");
    LL_ARRAYS(s->arena, s->p->n_result + 1, x->told, x->next);
    for (int i = 0; i < s->p->n_result; i++) x->told[i] = x->next[i] = NAN;
    return find_saved(s);
}

void ll_after_close(ll_session *s)
{
    if (s->after) free(s->after->room);
}
