/* small_lm.h: what tests of small language models do with them: runs from text, a batch of tokens
 * that are squares, and the logits of it. */
#pragma once
#include "exec/session.h"
#include "no_error.h"
#include "run/run.h"
#include "run/setup.h"

#include <stdio.h>
#include <string.h>

enum { LM_MOST = 64 }; /* tokens of a batch */

static inline ll_run *lm_run(const char *text)
{
    ll_run *r;
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    no_error(ll_run_finish(r));
    return r;
}

static inline void lm_set(ll_session *s, int tokens, int vocabulary)
{
    int32_t x[LM_MOST];
    for (int i = 0; i < tokens; i++) x[i] = i * i % vocabulary;
    no_error(ll_session_set(s, "x", 0, x, sizeof *x * (size_t)tokens));
    no_error(ll_session_set(s, "y", 0, x, sizeof *x * (size_t)tokens));
}

/* Of the session, which ends. */
static inline void lm_logits(ll_session *s, int tokens, int vocabulary, float *out)
{
    lm_set(s, tokens, vocabulary);
    no_error(ll_session_run(s, 0));
    no_error(ll_session_get(s, "logits", out, sizeof *out * (size_t)(tokens * vocabulary)));
    ll_session_close(s);
}
