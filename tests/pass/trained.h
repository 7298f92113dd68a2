/* trained.h: steps of a language model's graph on machine ref, always on the same tokens. */
#pragma once
#include "exec/session.h"
#include "pass/passes.h"

static inline void train_tokens(ll_graph *g, const int32_t *x, const int32_t *y, size_t bytes,
                                int steps, double *loss, double *norm)
{
    ll_session *s;
    must(ll_session_open(g, &(ll_session_opts){.machine = "ref", .seed = 3}, &s), "open");
    must(ll_session_set(s, "x", 0, x, bytes), "x");
    must(ll_session_set(s, "y", 0, y, bytes), "y");
    for (int i = 0; i < steps; i++) {
        must(ll_session_run(s, 1), "run");
        loss[i] = ll_session_result(s, "loss");
        norm[i] = ll_session_result(s, "grad_norm");
    }
    ll_session_close(s);
}
