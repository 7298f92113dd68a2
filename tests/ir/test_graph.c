/* Builders, scopes, the first mistake, and a verifier that catches each broken invariant. */
#include "ir/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

/* Ops of this test alone: emitting needs no registry. */
static const ll_op op_pass = {.name = "pass", .n_in = 1, .n_out = 1, .dims = "* -> *"};
static const ll_op op_dot = {
    .name = "dot", .n_in = 2, .n_out = 1, .dims = "*mk, *kn -> *mn", .sum = "k"};
static const ll_op op_any = {.name = "any", .n_in = -1, .n_out = 1, .dims = "* -> *"};
static const ll_op op_lost = {.name = "lost", .n_in = 1, .n_out = 1, .dims = "ab -> a"};

static ll_err infer_two(ll_infer *i)
{
    i->out[0] = (ll_type){LL_F32, LL_SHAPE(i->in[0].shape.d[0])};
    i->out[1] = (ll_type){LL_I32, LL_SHAPE(*(const int64_t *)i->attr)};
    return LL_OK;
}
static const ll_op op_two = {
    .name = "two", .n_in = 1, .n_out = 2, .attr_size = 8, .infer = infer_two};

static ll_val input(ll_graph *g, const char *name, ll_shape s)
{
    return ll_param(g, name, s, (ll_init){LL_NORMAL, 0.5});
}

static void builds_and_infers(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("g");
    ll_val a = input(g, "a", LL_SHAPE(8, 5, 7)), b = input(g, "b", LL_SHAPE(8, 7, 3));
    ll_val c = LL_EMIT(g, &op_dot, NULL, a, b);
    ll_shape want = LL_SHAPE(8, 5, 3), got = ll_graph_shape(g, c);
    assert_true(ll_shape_equal(&want, &got));
    assert_int_equal(ll_graph_dtype(g, c), LL_F32);
    ll_val out[LL_MAX_OUT];
    int64_t size = 11;
    assert_int_equal(ll_emit_all(g, &op_two, &size, &c, 1, out), LL_OK);
    size = 99; /* attributes are copied */
    assert_int_equal(*(const int64_t *)g->nodes[1].attr, 11);
    assert_int_equal(ll_graph_shape(g, out[1]).d[0], 11);
    assert_int_equal(ll_graph_dtype(g, out[1]), LL_I32);
    ll_graph_result(g, "c", c);
    ll_val d = LL_EMIT(g, &op_pass, NULL, a);
    ll_graph_update(g, a, d);
    assert_int_equal(ll_find(g, "b").id, b.id);
    assert_int_equal(ll_find(g, "c").id, 0);
    assert_int_equal(ll_find_result(g, "c").id, c.id);
    assert_int_equal(ll_find_result(g, "a").id, 0);
    assert_int_equal(ll_verify(g), LL_OK);
    ll_graph_free(g);
    ll_graph_free(NULL);
}

static void loop_extents(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("g");
    ll_val a = input(g, "a", LL_SHAPE(4, 5, 7)), b = input(g, "b", LL_SHAPE(4, 7, 0));
    ll_val c = LL_EMIT(g, &op_dot, NULL, a, b);
    assert_int_equal(ll_graph_shape(g, c).d[2], 0);
    ll_loops l;
    assert_int_equal(ll_node_loops(g, &g->nodes[0], &l), LL_OK);
    assert_int_equal(l.n, 4);
    for (int i = 0; i < l.n; i++) {
        char letter = l.letter[i];
        int64_t extent = letter == 'A' ? 4 : letter == 'm' ? 5 : letter == 'k' ? 7 : 0;
        assert_int_equal(l.extent[i], extent);
        assert_int_equal(l.combine[i], letter == 'k' ? LL_SUM : LL_FREE);
    }
    ll_graph_free(g);
}

static void scopes(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("g");
    ll_graph_pop(g); /* nothing to pop */
    ll_graph_push(g, "block1");
    ll_graph_push(g, "conv");
    ll_val w = input(g, "weight", LL_SHAPE(3));
    ll_val y = ll_graph_name(g, LL_EMIT(g, &op_pass, NULL, w), "out");
    assert_string_equal(g->values[w.id].name, "block1.conv.weight");
    assert_string_equal(g->values[y.id].name, "block1.conv.out");
    assert_string_equal(g->nodes[0].name, "block1.conv.pass");
    ll_graph_pop(g);
    input(g, "gain", LL_SHAPE(3));
    assert_true(ll_find(g, "block1.gain").id);
    ll_graph_pop(g);
    input(g, "gain", LL_SHAPE(3));
    assert_true(ll_find(g, "gain").id);
    ll_val x = ll_batch(g, "x", LL_U8, LL_SHAPE(2));
    assert_int_equal(x.id, ll_find(g, "x").id);
    assert_int_equal(ll_per_step(g, "lr").id, ll_per_step(g, "lr").id); /* one of each name */
    assert_int_equal(ll_verify(g), LL_OK);
    for (int i = 0; i < 60; i++) ll_graph_push(g, "deep");
    assert_int_not_equal(ll_graph_check(g), LL_OK);
    assert_non_null(strstr(ll_error_message(), "too long"));
    ll_graph_free(g);
}

static void blocks(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("g");
    ll_val x = input(g, "x", LL_SHAPE(3));
    LL_EMIT(g, &op_pass, NULL, x);
    ll_graph_block(g);
    LL_EMIT(g, &op_pass, NULL, x);
    ll_graph_block(g);
    ll_graph_block(g);
    LL_EMIT(g, &op_pass, NULL, x);
    assert_int_equal(g->nodes[0].of.block, 0);
    assert_int_equal(g->nodes[1].of.block, 1);
    assert_int_equal(g->nodes[2].of.block, 3);
    ll_graph_free(g);
}

/* Each mistake, and what its message must contain. */
static void two_inputs(ll_graph *g)
{
    input(g, "w", LL_SHAPE(2));
    input(g, "w", LL_SHAPE(2));
}
static void negative_shape(ll_graph *g)
{
    input(g, "w", LL_SHAPE(2, -1));
}
static void two_results(ll_graph *g)
{
    ll_val w = input(g, "w", LL_SHAPE(2));
    ll_graph_result(g, "loss", w);
    ll_graph_result(g, "loss", w);
}
static void update_of_batch(ll_graph *g)
{
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2));
    ll_graph_update(g, x, x);
}
static void update_of_shape(ll_graph *g)
{
    ll_val a = input(g, "a", LL_SHAPE(2)), b = input(g, "b", LL_SHAPE(3));
    ll_graph_update(g, a, b);
}
static void none_operand(ll_graph *g)
{
    LL_EMIT(g, &op_pass, NULL, (ll_val){0});
}
static void wrong_count(ll_graph *g)
{
    LL_EMIT(g, &op_dot, NULL, input(g, "a", LL_SHAPE(2, 2)));
}
static void no_operands(ll_graph *g)
{
    ll_emit(g, &op_any, NULL, NULL, 0);
}
static void extents_differ(ll_graph *g)
{
    ll_val a = input(g, "a", LL_SHAPE(2, 3)), b = input(g, "b", LL_SHAPE(4, 5));
    LL_EMIT(g, &op_dot, NULL, a, b);
}
static void too_few_dims(ll_graph *g)
{
    ll_val a = input(g, "a", LL_SHAPE(2));
    LL_EMIT(g, &op_dot, NULL, a, a);
}
static void too_many_operands(ll_graph *g)
{
    ll_val a[LL_MAX_IN + 1], x = input(g, "a", LL_SHAPE(2));
    for (int i = 0; i <= LL_MAX_IN; i++) a[i] = x;
    ll_emit(g, &op_any, NULL, a, LL_MAX_IN + 1);
}
static void lost_loop(ll_graph *g)
{
    LL_EMIT(g, &op_lost, NULL, input(g, "a", LL_SHAPE(2, 3)));
}
static void huge_input(ll_graph *g)
{
    ll_batch(g, "x", LL_F32, LL_SHAPE(3, 6148914691236517206));
}
static void huge_param(ll_graph *g)
{
    input(g, "w", LL_SHAPE(3, 6148914691236517206));
}
static void huge_result(ll_graph *g)
{
    ll_val a = input(g, "a", LL_SHAPE(1 << 30, 1)), b = input(g, "b", LL_SHAPE(1, 1 << 30));
    LL_EMIT(g, &op_dot, NULL, a, b);
}
static void no_type(ll_graph *g)
{
    ll_batch(g, "x", (ll_dtype)77, LL_SHAPE(2));
}
static void negative_type(ll_graph *g)
{
    ll_batch(g, "x", (ll_dtype)-1, LL_SHAPE(2));
}
static void seven_dims(ll_graph *g)
{
    input(g, "w", (ll_shape){.n = 7, .d = {1, 1, 1, 1, 1, 1}});
}
static void no_dims(ll_graph *g)
{
    input(g, "w", (ll_shape){.n = -1});
}
static void no_name(ll_graph *g)
{
    ll_batch(g, "", LL_F32, LL_SHAPE(2));
}
static void no_name_in_scope(ll_graph *g)
{
    ll_graph_push(g, "a");
    input(g, "", LL_SHAPE(2));
}
static void huge_constant(ll_graph *g)
{
    ll_constant(g, LL_F32, LL_SHAPE(3, 6148914691236517206), g);
}
static void strange_operand(ll_graph *g)
{
    LL_EMIT(g, &op_dot, NULL, input(g, "a", LL_SHAPE(2, 2)), (ll_val){9999});
}
static void negative_operand(ll_graph *g)
{
    LL_EMIT(g, &op_pass, NULL, (ll_val){-3});
}
static void named_stranger(ll_graph *g)
{
    ll_graph_name(g, (ll_val){9999}, "n");
}
static void result_of_none(ll_graph *g)
{
    ll_graph_result(g, "r", (ll_val){0});
}
static void result_of_stranger(ll_graph *g)
{
    ll_graph_result(g, "r", (ll_val){9999});
}
static void update_by_none(ll_graph *g)
{
    ll_graph_update(g, input(g, "w", LL_SHAPE(2)), (ll_val){0});
}
static void update_of_stranger(ll_graph *g)
{
    ll_graph_update(g, (ll_val){-3}, input(g, "w", LL_SHAPE(2)));
}
static void two_updates(ll_graph *g)
{
    ll_val w = input(g, "w", LL_SHAPE(2));
    ll_graph_update(g, w, LL_EMIT(g, &op_pass, NULL, w));
    ll_graph_update(g, w, LL_EMIT(g, &op_pass, NULL, w));
}
static void rejected(ll_graph *g)
{
    ll_graph_reject(g, "heads %d do not divide width %d", 5, 7);
}

static void first_mistake_stays(void **state)
{
    (void)state;
    static const struct {
        void (*declare)(ll_graph *);
        const char *text;
    } cases[] = {{two_inputs, "two inputs are named w"},
                 {negative_shape, "w has shape [2,-1]"},
                 {two_results, "two results are named loss"},
                 {update_of_batch, "only parameters and state"},
                 {update_of_shape, "a is f32[2], its update f32[3]"},
                 {none_operand, "pass: operand 0 is none"},
                 {wrong_count, "takes 2 operands, not 1"},
                 {no_operands, "any without operands"},
                 {extents_differ, "dot of f32[2,3] and f32[4,5]"},
                 {too_few_dims, "an operand of 1 dimensions"},
                 {too_many_operands, "more than 16 operands"},
                 {lost_loop, "loop b vanishes"},
                 {huge_input, "input x has shape [3,6148914691236517206]: more elements"},
                 {huge_param, "input w has shape [3,6148914691236517206]: more elements"},
                 {huge_result, "more elements than can be counted"},
                 {no_type, "input x: no element type has number 77"},
                 {negative_type, "input x: no element type has number -1"},
                 {seven_dims, "input w has shape [1,1,1,1,1,1]: 7 dimensions; expected 0 to 6"},
                 {no_dims, "input w has shape []: -1 dimensions"},
                 {no_name, "a batch input has no name"},
                 {no_name_in_scope, "a.a param input has no name"},
                 {huge_constant, "constant: no shape"},
                 {strange_operand, "dot: operand 1 is no value of this graph"},
                 {negative_operand, "pass: operand 0 is no value of this graph"},
                 {named_stranger, "n names no value of this graph"},
                 {result_of_none, "result r is none"},
                 {result_of_stranger, "result r is no value of this graph"},
                 {update_by_none, "the update of w is none"},
                 {update_of_stranger, "what is updated is no value of this graph"},
                 {two_updates, "w is updated twice"},
                 {rejected, "heads 5 do not divide width 7"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ll_graph *g = ll_graph_new("g");
        cases[i].declare(g);
        int values = g->n_value, nodes = g->n_node;
        /* Everything after the first mistake does nothing and changes no message. */
        assert_int_equal(input(g, "later", LL_SHAPE(2)).id, 0);
        assert_int_equal(LL_EMIT(g, &op_pass, NULL, (ll_val){1}).id, 0);
        ll_graph_result(g, "later", (ll_val){1});
        ll_graph_reject(g, "another");
        assert_int_equal(g->n_value, values);
        assert_int_equal(g->n_node, nodes);
        assert_int_not_equal(ll_graph_check(g), LL_OK);
        assert_int_not_equal(ll_verify(g), LL_OK);
        if (!strstr(ll_error_text(), cases[i].text))
            fail_msg("\"%s\" does not say \"%s\"", ll_error_text(), cases[i].text);
        ll_graph_free(g);
    }
}

/* Ids that are no values have a shape and a type as none has; a mistake's none is not another. */
static void strange_ids(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("g");
    input(g, "w", LL_SHAPE(2));
    const int32_t ids[] = {0, 2, 9999, INT32_MAX, -3, INT32_MIN};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        assert_int_equal(ll_graph_shape(g, (ll_val){ids[i]}).n, 0);
        assert_true((unsigned)ll_graph_dtype(g, (ll_val){ids[i]}) < LL_N_DTYPE);
    }
    assert_int_equal(ll_graph_check(g), LL_OK);
    ll_graph_reject(g, "first");
    ll_graph_result(g, "r", (ll_val){0});
    assert_int_not_equal(ll_graph_check(g), LL_OK);
    assert_non_null(strstr(ll_error_message(), "first"));
    ll_graph_free(g);
}

static ll_graph *sound(void)
{
    ll_graph *g = ll_graph_new("g");
    ll_val a = input(g, "a", LL_SHAPE(5, 5)), b = input(g, "b", LL_SHAPE(5, 5));
    ll_val c = LL_EMIT(g, &op_dot, NULL, a, b);
    ll_val d = LL_EMIT(g, &op_pass, NULL, c);
    int64_t size = 3;
    ll_emit(g, &op_two, &size, &d, 1);
    ll_graph_result(g, "d", d);
    ll_graph_update(g, a, d);
    assert_int_equal(ll_verify(g), LL_OK);
    return g;
}

static void verifier(void **state)
{
    (void)state;
    enum { CASES = 22 };
    for (int i = 0; i < CASES; i++) {
        ll_graph *g = sound();
        ll_node *n = g->nodes;
        switch (i) {
        case 0: n[0].in[1].id = 0; break;  /* none */
        case 1: n[0].in[1].id = 99; break; /* no value at all */
        case 2: n[0].in[1].id = -1; break;
        case 3: n[0].in[0] = n[1].out[0]; break; /* made later */
        case 4: n[1].in[0] = n[1].out[0]; break; /* its own result */
        case 5: g->values[n[1].out[0].id].type.dtype = LL_F64; break;
        case 6: g->values[n[1].out[0].id].type.shape.d[1] = 4; break;
        case 7: g->values[1].type.shape.d[1] = 4; break; /* an operand changed under its reader */
        case 8: n[1].out[0] = n[0].out[0]; break;        /* two makers */
        case 9: g->values[n[2].out[1].id].out = 0; break;
        case 10: g->results[0].value.id = 0; break;
        case 11: g->results[0].value.id = 99; break;
        case 12: g->updates[0].input = n[0].out[0]; break; /* no input */
        case 13: g->updates[0].next = n[2].out[0]; break;  /* another shape */
        case 14: n[0].n_in = 1; break;
        case 15: n[2].n_out = 1; break;
        case 16: g->updates[0].next.id = 0; break;
        case 17: g->updates[0].input.id = 99; break;
        case 18: g->values[1].kind = LL_BATCH; break; /* updated, but no parameter or state */
        case 19: g->values[2].name = NULL; break;
        case 20: g->values[2].type.dtype = LL_N_DTYPE; break;
        case 21: g->values[n[1].out[0].id].node = 2; break;
        }
        if (ll_verify(g) == LL_OK) fail_msg("broken graph %d is taken as sound", i);
        ll_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(builds_and_infers),
                                       cmocka_unit_test(loop_extents),
                                       cmocka_unit_test(scopes),
                                       cmocka_unit_test(blocks),
                                       cmocka_unit_test(first_mistake_stays),
                                       cmocka_unit_test(strange_ids),
                                       cmocka_unit_test(verifier)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
