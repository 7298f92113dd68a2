/* passes.h: graph text in, pass, graph text out. */
#pragma once
#include "ir/graph_text.h"
#include "pass/pass.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

typedef ll_err ll_pass(const ll_graph *g, ll_graph **out);

static inline void must(ll_err rc, const char *what)
{
    if (rc != LL_OK) fail_msg("%s: %s\n%s", what, ll_error_text(), ll_error_frames());
}

static inline ll_graph *parse_body(const char *body)
{
    ll_graph *g;
    ll_arena *a = ll_arena_new();
    must(ll_parse(ll_arena_printf(a, "graph \"g\" {\n%s}\n", body), &g), body);
    ll_arena_free(a);
    return g;
}

/* The pass makes of a graph with the lines `in` one with the lines `out`. */
static inline void becomes(ll_pass *pass, const char *in, const char *out)
{
    ll_graph *g = parse_body(in), *made;
    ll_arena *a = ll_arena_new();
    must(pass(g, &made), in);
    must(ll_verify(made), in);
    assert_string_equal(ll_print(made, a), ll_arena_printf(a, "graph \"g\" {\n%s}\n", out));
    ll_graph_free(made);
    ll_graph_free(g);
    ll_arena_free(a);
}

static inline int count_op(const ll_graph *g, const char *op)
{
    int n = 0;
    for (int i = 0; i < g->n_node; i++) n += !strcmp(g->nodes[i].op->name, op);
    return n;
}
