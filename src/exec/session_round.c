/* session_round.c: steps that do not update, and updates by what others' steps have made.
 *
 * Of what a step's micro-batches leave, an update reads gradients and, of batch norms, statistics:
 * whatever lies in the work region and is live where the report begins. It is all that an update
 * knows of a batch: sessions that put the same elements there, one update after another, stay alike
 * to the bit. The report is run again before each, for the norm that clipping goes by. */
#include "exec/session.h"

typedef struct search {
    const ll_program *p;
    int *slots, n; /* that are live */
    bool *wanted;  /* [instr] of collectives: what it makes is */
} search;

static bool same_place(const ll_slot *a, const ll_slot *b)
{
    return a->offset == b->offset && a->bytes == b->bytes;
}

static bool overlap(const ll_slot *a, const ll_slot *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static bool is_work(const ll_slot *x)
{
    return x->region == LL_WORK && !x->input && x->bytes;
}

/* Is a result of x live? Then it is not before x. */
static bool write_over(search *q, const ll_instr *x)
{
    bool any = false;
    for (int o = 0; o < x->n_out; o++) {
        const ll_slot *out = &q->p->slots[x->out[o]];
        for (int i = 0; is_work(out) && i < q->n; i++) {
            if (!same_place(out, &q->p->slots[q->slots[i]])) continue;
            q->slots[i--] = q->slots[--q->n];
            any = true;
        }
    }
    return any;
}

static ll_err read_by(search *q, const ll_instr *x)
{
    for (int k = 0; k < x->n_in; k++) {
        const ll_slot *in = &q->p->slots[x->in[k]];
        bool known = !is_work(in);
        for (int i = 0; i < q->n && !known; i++) {
            const ll_slot *other = &q->p->slots[q->slots[i]];
            known = same_place(in, other);
            CHECK(known || !overlap(in, other), LL_E_CONFIG,
                  "gradients are exchanged whole, but %s is a part of one", x->name);
        }
        if (!known) q->slots[q->n++] = x->in[k];
    }
    return LL_OK;
}

/* Backwards through update and report. What a collective makes is there when it was awaited. */
static ll_err find(search *q)
{
    const ll_program *p = q->p;
    for (int i = p->end[LL_UPDATE] - 1; i >= p->end[LL_MICRO]; i--) {
        const ll_instr *x = &p->instrs[i];
        CHECK(!ll_program_copies(p, x), LL_E_CONFIG,
              "%s is offloaded where updates read it, but gradients go to a server: set "
              "parallel.exchange=difference, or leave out train.memory",
              x->name);
        bool live = write_over(q, x), wanted = live || i >= p->end[LL_REPORT];
        CHECK(!live || !x->wait || x->pair >= p->end[LL_MICRO], LL_E_CONFIG,
              "the gradient of %s is summed while later work runs, but gradients go to a server: "
              "use a mesh other than pipe and data, or parallel.exchange=difference",
              x->name);
        if (x->wait) q->wanted[x->pair] |= wanted;
        if (wanted || q->wanted[i]) TRY(read_by(q, x));
    }
    return LL_OK;
}

ll_err ll_session_made(ll_session *s, int64_t *n)
{
    search q = {s->p, LL_NEW_ARRAY(s->arena, int, s->p->n_slot + 1), 0,
                LL_NEW_ARRAY(s->arena, bool, s->p->n_instr + 1)};
    TRY(find(&q));
    *n = 0;
    for (int i = 0; i < q.n; i++) {
        const ll_slot *x = &s->p->slots[q.slots[i]];
        CHECK(x->type.dtype == LL_F32, LL_E_CONFIG,
              "parallel.replicas: %s is of type %s, but replicas exchange only f32",
              x->name ? x->name : "what an update reads", ll_dtype_name(x->type.dtype));
        *n += ll_numel(&x->type.shape);
    }
    s->made = q.slots;
    s->n_made = q.n;
    return LL_OK;
}

void ll_session_hold(ll_session *s, float *at)
{
    s->made_at = at;
}

ll_err ll_session_leave(ll_session *s)
{
    float *to = s->made_at;
    for (int i = 0; i < s->n_made; i++) {
        TRY(ll_exec_read(s->e, s->made[i], to));
        to += ll_numel(&s->p->slots[s->made[i]].type.shape);
    }
    return LL_OK;
}

ll_err ll_session_put(ll_session *s, const float *made)
{
    for (int i = 0; i < s->n_made; i++) {
        TRY(ll_exec_put(s->e, s->made[i], 0, made));
        made += ll_numel(&s->p->slots[s->made[i]].type.shape);
    }
    return LL_OK;
}
