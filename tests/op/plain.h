/* plain.h: what an op gives on machine ref: by its reference kernel or, where it has none, by what
 * it means (fuse/fuse.h). */
#pragma once
#include "exec/exec.h"
#include "pass/target.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static inline void plain_must(ll_err rc, const ll_op *op)
{
    if (rc != LL_OK) fail_msg("%s: %s\n%s", op->name, ll_error_text(), ll_error_frames());
}

/* The call's operands to its results, with its attributes. */
static inline void plain_run(const ll_op *op, const ll_kcall *c)
{
    ll_graph *g = ll_graph_new("plain");
    ll_val v[LL_MAX_IN], y[LL_MAX_OUT];
    ll_program *p;
    ll_exec *e;
    char name[16];
    for (int i = 0; i < c->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        v[i] = ll_input(g, name, LL_STATE, (ll_type){c->in[i].dtype, c->in[i].shape}, (ll_init){0});
    }
    plain_must(ll_emit_all(g, op, c->attr, v, c->n_in, y), op);
    for (int o = 0; o < c->n_out; o++) {
        snprintf(name, sizeof name, "out%d", o);
        ll_graph_result(g, name, y[o]);
    }
    plain_must(ll_lower(g, &(ll_lower_opts){.target = &ll_target_ref}, &p), op);
    plain_must(ll_exec_open(p, &(ll_exec_opts){.seed = 5, .poison = true}, &e), op);
    for (int i = 0; i < c->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        int s = ll_program_input(p, name);
        memcpy(ll_exec_data(e, s, 0), c->in[i].data, p->slots[s].bytes);
    }
    plain_must(ll_exec_run(e, LL_MICRO, 3), op);
    plain_must(ll_exec_run(e, LL_REPORT, 3), op);
    for (int o = 0; o < c->n_out; o++) {
        snprintf(name, sizeof name, "out%d", o);
        int s = ll_program_result(p, name);
        memcpy(c->out[o].data, ll_exec_data(e, s, 0), p->slots[s].bytes);
    }
    ll_exec_close(e);
    ll_program_free(p);
    ll_graph_free(g);
}
