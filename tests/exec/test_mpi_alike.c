/* mpi: 2 3 4
 * Ranks that would run different collectives, which nothing but their sizes could tell later, or
 * not even that, are found when their sessions open: one rank's are changed in some way. */
#include "exec/session.h"
#include "kern/attr.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static ll_comm *comm;

static ll_session *open_session(ll_graph **g)
{
    const ll_model *m = ll_model_find("lenet5");
    ll_build b = {.batch = 12, .training = true};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    *g = ll_graph_new("lenet5");
    ll_minimize(*g, m->declare(*g, &b), &(ll_optim){.name = "sgd"});
    char mesh[32];
    int size = ll_comm_size(comm);
    snprintf(mesh, sizeof mesh, size == 4 ? "data=2,height=2" : "height=%d", size);
    ll_session *s;
    ll_err rc = ll_session_open(*g, &(ll_session_opts){.comm = comm, .mesh = mesh}, &s);
    if (rc != LL_OK) fail_msg("%s", ll_error_text());
    return s;
}

/* Collectives of a program, in order. */
static int list(const ll_program *p, const ll_instr **out)
{
    int n = 0;
    for (int i = 0; i < p->n_instr; i++)
        if (!p->instrs[i].kernel.run && !p->instrs[i].wait) out[n++] = &p->instrs[i];
    return n;
}

typedef enum change { NOTHING, SWAPPED, LEFT_OUT, MAXIMUM, RESIZED, N_CHANGE } change;

/* Changed on the last rank alone. */
static ll_err compare(const ll_session *s, change what)
{
    const ll_program *p = s->p;
    const ll_instr *calls[1024];
    int n = list(p, calls);
    assert_in_range(n, 3, 1024);
    ll_instr other = *calls[n - 1], *changed = NULL;
    ll_program q = *p;
    q.slots = malloc(sizeof *q.slots * (size_t)p->n_slot);
    memcpy(q.slots, p->slots, sizeof *q.slots * (size_t)p->n_slot);
    ll_coll_attr attr = *(const ll_coll_attr *)other.attr;
    assert_string_equal(other.op, "all_reduce");
    if (ll_comm_rank(comm) == ll_comm_size(comm) - 1) {
        if (what == MAXIMUM) attr.max = !attr.max;
        if (what == RESIZED) q.slots[other.in[0]].type.shape = (ll_shape){1, {1000003}};
        if (what == LEFT_OUT) n--;
        if (what == MAXIMUM || what == RESIZED) changed = &other;
        if (what == SWAPPED) {
            int k = n - 2;
            while (k > 0 && !strcmp(calls[k]->op, other.op)) k--; /* of another kind */
            const ll_instr *last = calls[n - 1];
            calls[n - 1] = calls[k];
            calls[k] = last;
        }
    }
    const void *attrs[64];
    assert_in_range(other.n_in, 1, 64);
    memcpy(attrs, other.attrs, sizeof *attrs * (size_t)other.n_in);
    attrs[0] = &attr;
    other.attr = &attr;
    other.attrs = attrs;
    if (changed) calls[n - 1] = changed;
    ll_team *team = s->team;
    for (int i = 0; i < n; i++) ll_team_note(team, &q, calls[i]);
    ll_err rc = ll_team_compare(team);
    free(q.slots);
    return rc;
}

static void changes_are_found(void **state)
{
    (void)state;
    for (int what = 0; what < N_CHANGE; what++) {
        ll_graph *g;
        ll_session *s = open_session(&g);
        ll_err rc = compare(s, (change)what);
        if (rc != (what == NOTHING ? LL_OK : LL_E_COMM))
            fail_msg("change %d: %s", what, rc ? ll_error_text() : "not found");
        if (rc && !strstr(ll_error_text(), "would start different collectives"))
            fail_msg("%s", ll_error_text());
        ll_session_close(s);
        ll_graph_free(g);
    }
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(changes_are_found)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
