/* Graphs as text: the form itself, round trips of every op's trials, and errors that say where. */
#include "ir/graph_text.h"
#include "ir/op.h"
#include "kern/attr.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

/* Parses text and expects to print it again, byte for byte. */
static void same(const char *text)
{
    ll_graph *g;
    ll_arena *a = ll_arena_new();
    if (ll_parse(text, &g) != LL_OK) fail_msg("%s\nin\n%s", ll_error_text(), text);
    if (ll_verify(g) != LL_OK) fail_msg("%s\nin\n%s", ll_error_text(), text);
    assert_string_equal(ll_print(g, a), text);
    ll_graph_free(g);
    ll_arena_free(a);
}

static void same_graph(const ll_graph *g)
{
    ll_arena *a = ll_arena_new();
    same(ll_print(g, a));
    ll_arena_free(a);
}

static void form(void **state)
{
    (void)state;
    same("graph \"\" {\n}\n");
    same("graph \"tiny\" {\n"
         "  %1: f32[4,3] = batch \"x\"\n"
         "  %2: f32[5,3] = param \"fc.weight\" init=uniform(0.1)\n"
         "  %3: f32[4,5] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32} # fc.matmul\n"
         "  %4: f32[5] = state \"fc.mean\" init=zeros\n"
         "  block 1\n"
         "  %5 \"h \\\"one\\\"\": f32[4,5] = relu(%3)\n"
         "  %6: f32[4,5] = relu(%5) # \"two words\"\n"
         "  block 0\n"
         "  %7: f32[5,3] = matmul(%6, %1) {spec=\"nk,nc->kc\", out=f32}\n"
         "  %8: f32[] = step \"lr\"\n"
         "  block 3\n"
         "  result \"h\" = %6\n"
         "  result \"again\" = %6\n"
         "  update \"fc.weight\" = %7\n"
         "}\n");
}

/* What the parser takes besides what the printer writes. */
static void lenient(void **state)
{
    (void)state;
    ll_graph *g;
    ll_arena *a = ll_arena_new();
    assert_int_equal(ll_parse("# a comment\r\n\n graph\t\"g\"{# another\n\n"
                              "  %3:f32[ 2 , 2 ]=batch \"x\" # third\n# fourth\n\n"
                              "%70 : f32[2,2] = matmul( %3,%3 ) {out=f32 , spec=\"mk,kn->mn\"}\n"
                              "%71: f32[2,2] = relu(%70)\n"
                              " }  # fifth\n\n  ",
                              &g),
                     LL_OK);
    assert_string_equal(ll_print(g, a),
                        "graph \"g\" {\n"
                        "  %1: f32[2,2] = batch \"x\"\n"
                        "  %2: f32[2,2] = matmul(%1, %1) {spec=\"mk,kn->mn\", out=f32}\n"
                        "  %3: f32[2,2] = relu(%2)\n"
                        "}\n");
    ll_graph_free(g);
    ll_arena_free(a);
}

/* Built, printed and parsed, a graph has its blocks, names and order back. */
static void built(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("odd \"name\"\n\x01\\ \xc3\xa9"), *h;
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(3, 1, 0));
    ll_graph_push(g, "in ner");
    ll_val y = ll_graph_name(g, ll_relu(g, x), "");
    ll_graph_block(g);
    ll_graph_pop(g);
    ll_val z = ll_graph_name(g, ll_add(g, y, x), "z%\x7f");
    ll_val w = ll_param(g, "w", LL_SHAPE(2), (ll_init){LL_CONSTANT, -0.0});
    ll_val s = ll_state(g, "s", LL_SCALAR, (ll_init){LL_NORMAL, 1.0 / 3});
    ll_graph_block(g);
    ll_graph_update(g, w, ll_relu(g, w));
    ll_graph_update(g, s, ll_relu(g, s));
    ll_graph_block(g);
    ll_graph_result(g, "z", z);
    same_graph(g);
    ll_arena *a = ll_arena_new();
    assert_int_equal(ll_parse(ll_print(g, a), &h), LL_OK);
    assert_string_equal(h->name, g->name);
    assert_int_equal(h->n_value, g->n_value);
    assert_int_equal(h->of.block, 3);
    for (int i = 0; i < g->n_node; i++) {
        assert_int_equal(h->nodes[i].of.block, g->nodes[i].of.block);
        assert_string_equal(h->nodes[i].name, g->nodes[i].name);
    }
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i], *u = &h->values[i];
        assert_int_equal(!u->name, !v->name);
        if (v->name) assert_string_equal(u->name, v->name);
        assert_int_equal(u->kind, v->kind);
        assert_memory_equal(&u->init.a, &v->init.a, sizeof v->init.a);
    }
    ll_graph_free(g);
    ll_graph_free(h);
    ll_arena_free(a);
}

/* Every trial of every op, as a graph of one node. */
static void all_ops(void **state)
{
    (void)state;
    int trials = 0;
    for (const ll_op *const *op = ll_ops(); *op; op++)
        for (int t = 0; t < 8 && (*op)->trials[t]; t++, trials++) {
            ll_arena *a = ll_arena_new();
            ll_graph *g = ll_graph_new((*op)->name);
            int n_in;
            ll_type in[LL_MAX_IN];
            ll_val operand[LL_MAX_IN], out[LL_MAX_OUT];
            int64_t limit[LL_MAX_IN];
            void *attr;
            if (ll_parse_trial(*op, (*op)->trials[t], a, &n_in, in, limit, &attr) != LL_OK)
                fail_msg("%s, trial %s: %s", (*op)->name, (*op)->trials[t], ll_error_text());
            for (int i = 0; i < n_in; i++) {
                char name[8];
                snprintf(name, sizeof name, "x%d", i);
                operand[i] = ll_input(g, name, LL_BATCH, in[i], (ll_init){0});
            }
            if (ll_emit_all(g, *op, attr, operand, n_in, out) != LL_OK)
                fail_msg("%s, trial %s: %s", (*op)->name, (*op)->trials[t], ll_error_text());
            for (int i = 0; i < (*op)->n_out; i++) {
                char name[8];
                snprintf(name, sizeof name, "y%d", i);
                ll_graph_result(g, name, out[i]);
            }
            same_graph(g);
            ll_graph *h;
            assert_int_equal(ll_parse(ll_print(g, a), &h), LL_OK);
            if ((*op)->attr_size) assert_memory_equal(h->nodes[0].attr, attr, (*op)->attr_size);
            ll_graph_free(h);
            ll_graph_free(g);
            ll_arena_free(a);
        }
    print_message("%d trials\n", trials);
}

typedef struct all_attr {
    int64_t i, list[3];
    double d;
    ll_shape shape;
    ll_dtype type;
    char spec[LL_SPEC_MAX];
} all_attr;
static const ll_op op_all = {
    .name = "all", .n_in = -1, .n_out = 1, LL_ATTRS(all_attr, i, list, d, shape, type, spec)};
static const ll_attr_field chain_fields[] = {{"chain", LL_A_FUSED, 0, 0}, {0}};
static const ll_op op_chain = {.name = "chain",
                               .n_in = -1,
                               .n_out = 1,
                               .attr_size = sizeof(ll_fused_attr),
                               .attrs = chain_fields};
static const ll_op op_bare = {.name = "bare", .n_in = 1, .n_out = 1};

static void attributes(void **state)
{
    (void)state;
    static const double numbers[] = {
        0,    -0.0,     1,         -1.5,        1.0 / 3,           0.1,
        1e23, 5e-324,   1.7e308,   1e-5,        0.3 - 0.1,         123456789012345.0,
        NAN,  INFINITY, -INFINITY, 2.0 / 3e-10, 9007199254740993.0};
    ll_arena *a = ll_arena_new();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        all_attr in; /* compared as bytes, gaps between fields too: no assignment of structs */
        memset(&in, 0, sizeof in);
        in.i = i % 2 ? INT64_MIN : INT64_MAX;
        in.list[0] = -1, in.list[1] = INT32_MAX, in.list[2] = INT32_MIN;
        in.d = numbers[i];
        const ll_shape shape = LL_SHAPE(1, 0, 1099511627776);
        in.shape.n = i % 3 ? shape.n : 0;
        for (int d = 0; d < in.shape.n; d++) in.shape.d[d] = shape.d[d];
        in.type = (ll_dtype)(i % LL_N_DTYPE);
        memcpy(in.spec, "a\"\\->\n", 6);
        char *text = ll_print_attr(&op_all, &in, a);
        int n_in;
        ll_type types[LL_MAX_IN];
        int64_t limit[LL_MAX_IN];
        void *out;
        if (ll_parse_trial(&op_all, text, a, &n_in, types, limit, &out) != LL_OK)
            fail_msg("%s: %s", text, ll_error_text());
        assert_string_equal(ll_print_attr(&op_all, out, a), text);
        if (isnan(in.d)) in.d = ((all_attr *)out)->d; /* any NaN will do */
        assert_memory_equal(&in, out, sizeof in);
    }
    assert_string_equal(ll_print_attr(&op_all, &(all_attr){.d = 0.1, .spec = "x"}, a),
                        "{i=0, list=[0,0,0], d=0.1, shape=[], type=f64, spec=\"x\"}");
    assert_string_equal(ll_print_attr(&op_bare, NULL, a), "");
    ll_arena_free(a);
}

static void trials(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    int n_in;
    ll_type in[LL_MAX_IN];
    int64_t limit[LL_MAX_IN];
    void *attr;
    assert_int_equal(
        ll_parse_trial(&op_all, "f32[2,3], i32[4]<5,f64[]> {i=7}", a, &n_in, in, limit, &attr),
        LL_OK);
    assert_int_equal(n_in, 3);
    assert_int_equal(in[0].shape.n, 2);
    assert_int_equal(in[0].shape.d[1], 3);
    assert_int_equal(in[1].dtype, LL_I32);
    assert_int_equal(in[2].shape.n, 0);
    assert_int_equal(limit[0], 0);
    assert_int_equal(limit[1], 5);
    assert_int_equal(limit[2], 1);
    assert_int_equal(((all_attr *)attr)->i, 7);
    assert_int_equal(((all_attr *)attr)->list[2], 0); /* missing: zero */
    assert_int_equal(ll_parse_trial(&op_bare, "", a, &n_in, in, limit, &attr), LL_OK);
    assert_int_equal(n_in, 0);
    static const char *const bad[] = {"f32",           "f32[2",       "f32[2],",
                                      "f32[2] f32[2]", "f32[2]<0",    "f32[2]<x",
                                      "f32[2] {x=1}",  "f32[2] {i=1", "f32[2] {i=1} 2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (ll_parse_trial(&op_all, bad[i], a, &n_in, in, limit, &attr) == LL_OK)
            fail_msg("trial %s is taken", bad[i]);
    static const ll_op loops = {.name = "loops", .n_in = 2, .dims = "*vc, *, c_ -> *"};
    assert_int_equal(ll_parse_trial(&loops, "*=2,3 v=5 c=7 1:i32<9", a, &n_in, in, limit, &attr),
                     LL_OK);
    assert_int_equal(n_in, 2);
    assert_true(ll_shape_equal(&in[0].shape, &LL_SHAPE(2, 3, 5, 7)));
    assert_true(ll_shape_equal(&in[1].shape, &LL_SHAPE(2, 3)));
    assert_true(in[0].dtype == LL_F32 && in[1].dtype == LL_I32 && !limit[0] && limit[1] == 9);
    assert_int_equal(ll_parse_trial(&loops, "v=0 c=1 _=4 2>", a, &n_in, in, limit, &attr), LL_OK);
    assert_int_equal(n_in, 3);
    assert_true(ll_shape_equal(&in[1].shape, &LL_SCALAR));
    assert_true(ll_shape_equal(&in[2].shape, &LL_SHAPE(1, 4)) && limit[2] == 1);
    static const char *const wrong[] = {"v=5", "v=5 c=", "v=5 c=7 3", "v=5 c=7 2", "v=5, c=7"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (ll_parse_trial(&loops, wrong[i], a, &n_in, in, limit, &attr) == LL_OK)
            fail_msg("trial %s is taken", wrong[i]);
    ll_arena_free(a);
}

static void chains(void **state)
{
    (void)state;
    static const char *const good[] = {
        ("{chain=(shape=[4,3], in=[12, 3, 4*3], r3=add(r0,r1), r4=scale(r3,0.5), "
         "r5=select(r4,r0,r2), out=[r3:f32, r5:bf16])}"),
        "{chain=(shape=[3], in=[3], r1=max(k,r0,0.5), r2=select(r1,r0,k,-2), out=[r2:f32])}",
        "{chain=(shape=[], in=[1], out=[r0:f64])}",
        "{chain=(shape=[0], in=[0, 1*0], r2=shift(r0,-0), out=[r2:f32])}"};
    static const char *const bad[] = {
        "{chain=(shape=[2], in=[2], r1=add(r0,r1), out=[r1:f32])}", /* reads itself */
        "{chain=(shape=[2], in=[2], r2=relu(r0), out=[r1:f32])}",   /* not the next register */
        "{chain=(shape=[2], in=[2], r1=relu(r0), out=[r2:f32])}",
        "{chain=(shape=[2], in=[2], r1=relu(r0), out=[])}",
        "{chain=(shape=[2], in=[0], r1=relu(r0), out=[r1:f32])}", /* a period of nothing */
        "{chain=(shape=[2], in=[2*0], r1=relu(r0), out=[r1:f32])}",
        "{chain=(shape=[2], in=[2], r1=rleu(r0), out=[r1:f32])}",
        "{chain=(shape=[2], in=[2], r1=relu(r0,r0), out=[r1:f32])}",
        "{chain=(in=[2], r1=relu(r0), out=[r1:f32])}",
        "{chain=(shape=[2], in=[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1], out=[r1:f32])}",
        "{chain=(shape=[2], in=[], r0=relu(r0), out=[r0:f32])}",
        ("{chain=(shape=[2], in=[1], out=[r0:f32,r0:f32,r0:f32,r0:f32,r0:f32,r0:f32,r0:f32,r0:f32,"
         "r0:f32])}")};
    ll_arena *a = ll_arena_new();
    int n_in;
    void *attr;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (ll_parse_trial(&op_chain, good[i], a, &n_in, NULL, NULL, &attr) != LL_OK)
            fail_msg("%s: %s", good[i], ll_error_text());
        assert_string_equal(ll_print_attr(&op_chain, attr, a), good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (ll_parse_trial(&op_chain, bad[i], a, &n_in, NULL, NULL, &attr) == LL_OK)
            fail_msg("%s is taken", bad[i]);
    ll_fused_attr *f; /* one step too many */
    assert_int_equal(ll_parse_trial(&op_chain, good[0], a, &n_in, NULL, NULL, &attr), LL_OK);
    f = (ll_fused_attr *)attr;
    assert_int_equal(f->n_step, 3);
    assert_int_equal(f->repeat[2], 3);
    assert_int_equal(f->out[1], 5);
    f->n_step = LL_FUSE_STEPS;
    for (int i = 0; i < LL_FUSE_STEPS; i++) f->step[i] = (ll_fused_step){.op = LL_EW_neg};
    char *full = ll_print_attr(&op_chain, f, a);
    assert_int_equal(ll_parse_trial(&op_chain, full, a, &n_in, NULL, NULL, &attr), LL_OK);
    char *more = ll_arena_printf(a, "%.*sr51=neg(r0), %s", (int)(strstr(full, "out=") - full), full,
                                 strstr(full, "out="));
    assert_int_not_equal(ll_parse_trial(&op_chain, more, a, &n_in, NULL, NULL, &attr), LL_OK);
    assert_non_null(strstr(ll_error_text(), "more than 48 steps"));
    ll_arena_free(a);
}

#define HEAD "graph \"g\" {\n%1: f32[2,3] = batch \"x\"\n"

static void errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "line 1, column 1: expected graph, found the end of the text"},
        {"graf \"g\" {\n}", "line 1, column 1: expected graph, found graf"},
        {"graph g {\n}", "line 1, column 7: expected the graph's name in quotes, found 'g'"},
        {"graph \"g {\n}", "line 1, column 7: the graph's name has no closing quote"},
        {"graph \"\\q\" {\n}", "line 1, column 8: expected one of"},
        {"graph \"\\x00\" {\n}", "line 1, column 8: expected one of"},
        {"graph \"g\" {\n",
         "line 2, column 1: expected %, result, update, block or }, found the end"},
        {"graph \"g\" {\n}\nmore", "line 3, column 1: expected the end of the text after }"},
        {"graph \"g\" {\n} more", "line 2, column 3: expected the end of the line"},
        {HEAD "%1: f32[2] = batch \"y\"\n}", "line 3, column 1: %1 does not follow %1"},
        {HEAD "%2: f32[2] = batch \"x\"\n}", "line 3, column 1: two inputs are named x"},
        {HEAD "%2: f33[2] = batch \"y\"\n}", "line 3, column 5: no element type f33; did you mean"},
        {HEAD "%2: f32[2,2,2,2,2,2,2] = batch \"y\"\n}", "column 21: more than 6 dimensions"},
        {HEAD "%2: f32[-1] = batch \"y\"\n}", "column 9: a dimension is -1, expected 0 to"},
        {HEAD "%2: f32[99999999999999999999] = batch \"y\"\n}", "a dimension is 99999999"},
        {HEAD "%2: f32[1048576,1048577] = batch \"y\"\n}", "column 17: more than 1099511627776"},
        {HEAD "%2: f32[0,1099511627776,2] = batch \"y\"\n}", "column 25: more than 1099511627776"},
        {HEAD "%2: f32[2] = parm \"y\"\n}",
         "line 3, column 14: expected param, state, batch, step"},
        {HEAD "%2: f32[2] = param \"y\"\n}", "expected init=, found the end of the line"},
        {HEAD "%2: f32[2] = param \"y\" init=ones\n}", "no init ones, expected zeros, constant"},
        {HEAD "%2: f32[2] = param \"y\" init=normal\n}", "expected '(', found the end of the line"},
        {HEAD "%2: f32[2] = param \"y\" init=normal(x)\n}", "expected a number, found 'x'"},
        {HEAD "%2 \"n\": f32[2] = batch \"y\"\n}", "an input's name belongs after batch"},
        {HEAD "%2: f32[2], %3: f32[2] = batch \"y\"\n}", "an input is one value, not 2"},
        {HEAD "%2: f32[2,3] = rleu(%1)\n}", "line 3, column 16: no op rleu; did you mean relu?"},
        {HEAD "%2: f32[2,3] = zzzzzzzz(%1)\n}", "no op zzzzzzzz"},
        {HEAD "%2: f32[2,3] = relu(%2)\n}", "line 3, column 21: %2 is not defined above"},
        {HEAD "%2: f32[2,3] = relu(%0)\n}", "a value's number is 0, expected 1"},
        {HEAD "%2: f32[2,3] = relu(%1\n}", "expected ')', found the end of the line"},
        {HEAD "%2: f32[2,3] = relu(%1, %1)\n}", "relu takes 1 operands, not 2"},
        {HEAD "%2: f32[2,3] = relu()\n}", "relu takes 1 operands, not 0"},
        {HEAD "%2: f32[3,2] = relu(%1)\n}", "%2 is stated as f32[3,2], but its op gives f32[2,3]"},
        {HEAD "%2: f64[2,3] = relu(%1)\n}", "%2 is stated as f64[2,3], but its op gives f32[2,3]"},
        {HEAD "%2: f32[2,3], %3: f32[2,3] = relu(%1)\n}", "relu gives 1 values, not 2"},
        {HEAD "%2: f32[2,2] = matmul(%1, %1) {spec=\"mk,nk->mn\", ot=f32}\n}",
         "line 3, column 50: matmul has no attribute ot; did you mean out?"},
        {HEAD "%2: f32[2,2] = matmul(%1, %1) {out=f32, out=f32}\n}", "out is given twice"},
        {HEAD
         "%2: f32[2,2] = matmul(%1, %1) {spec=\"0123456789012345678901234567890123456789\"}\n}",
         "spec is longer than 39 bytes"},
        {HEAD "%2: f32[2,2] = matmul(%1, %1) {spec=\"mk,kn->mn\", out=f32}\n}",
         "line 3, column 16: matmul of f32[2,3] and f32[2,3]"},
        {HEAD "%2: f32[2,3] = relu(%1) relu\n}", "line 3, column 25: expected the end of the line"},
        {HEAD "%2: f32[2,3] = relu(%1) #\n}", "expected a node's name"},
        {HEAD "result \"r\" = %2\n}", "line 3, column 14: %2 is not defined above"},
        {HEAD "result \"r\" = %1\nresult \"r\" = %1\n}",
         "line 4, column 1: two results are named r"},
        {HEAD "update \"w\" = %1\n}", "line 3, column 1: no input is named w"},
        {HEAD "update \"x\" = %1\n}", "only parameters and state can be updated"},
        {HEAD "block\n}", "line 3, column 6: expected a block's number"},
        {HEAD "block -1\n}", "a block's number is -1"},
        {HEAD "resullt \"r\" = %1\n}", "found resullt"},
        {HEAD "\x01\n}", "found byte 0x01"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ll_graph *g = (ll_graph *)1;
        if (ll_parse(cases[i].text, &g) == LL_OK) fail_msg("taken:\n%s", cases[i].text);
        assert_null(g);
        if (!strstr(ll_error_message(), cases[i].says))
            fail_msg("\"%s\" does not say \"%s\", for\n%s", ll_error_message(), cases[i].says,
                     cases[i].text);
    }
}

/* A text cut anywhere is refused, and never read past its end. */
static void truncated(void **state)
{
    (void)state;
    const char *text = "graph \"tiny\" {\n"
                       "  %1: f32[4,3] = batch \"x\\x41\"\n"
                       "  %2: f32[5,3] = param \"w\" init=uniform(0.1)\n"
                       "  %3: f32[4,5] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32} # fc.matmul\n"
                       "  result \"h\" = %3\n"
                       "}";
    ll_arena *a = ll_arena_new();
    for (size_t n = 0; n < strlen(text); n++) {
        ll_graph *g;
        char *part = (char *)ll_arena_alloc(a, n + 1);
        memcpy(part, text, n);
        if (ll_parse(part, &g) == LL_OK) fail_msg("taken: %s", part);
    }
    ll_arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(form),    cmocka_unit_test(lenient),    cmocka_unit_test(built),
        cmocka_unit_test(all_ops), cmocka_unit_test(attributes), cmocka_unit_test(trials),
        cmocka_unit_test(chains),  cmocka_unit_test(errors),     cmocka_unit_test(truncated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
