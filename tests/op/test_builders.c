/* Builders of elementwise, shape and reduction nodes: what they broadcast to, what they leave out,
 * and the mistakes they name. */
#include "base/spec.h"
#include "op/op_int.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static ll_val in(ll_graph *g, ll_dtype dtype, ll_shape shape)
{
    char name[16];
    snprintf(name, sizeof name, "x%d", g->n_value);
    return ll_batch(g, name, dtype, shape);
}

static void has_shape(ll_graph *g, ll_val v, ll_shape want)
{
    char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT];
    if (ll_graph_check(g) != LL_OK) fail_msg("%s", ll_error_text());
    ll_shape have = ll_graph_shape(g, v);
    assert_string_equal(ll_shape_print(&have, a), ll_shape_print(&want, b));
    assert_int_equal(ll_verify(g), LL_OK);
}

static void test_broadcasting(void **state)
{
    (void)state;
    const struct {
        ll_shape a, b, want;
    } cases[] = {
        {LL_SHAPE(2, 3), LL_SHAPE(3), LL_SHAPE(2, 3)},
        {LL_SHAPE(2, 3), LL_SCALAR, LL_SHAPE(2, 3)},
        {LL_SCALAR, LL_SCALAR, LL_SCALAR},
        {LL_SHAPE(2, 1), LL_SHAPE(1, 3), LL_SHAPE(2, 3)},
        {LL_SHAPE(4, 1, 3), LL_SHAPE(5, 1), LL_SHAPE(4, 5, 3)},
        {LL_SHAPE(1), LL_SHAPE(1, 1), LL_SHAPE(1, 1)},
        {LL_SHAPE(3), LL_SHAPE(1, 3), LL_SHAPE(1, 3)},
        {LL_SHAPE(2, 1), LL_SHAPE(0), LL_SHAPE(2, 0)},
        {LL_SHAPE(2, 3, 1, 5, 1, 7), LL_SHAPE(4, 1, 6, 1), LL_SHAPE(2, 3, 4, 5, 6, 7)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ll_graph *g = ll_graph_new("t");
        ll_val a = in(g, LL_F32, cases[i].a), b = in(g, LL_F32, cases[i].b);
        has_shape(g, ll_add(g, a, b), cases[i].want);
        has_shape(g, ll_sub(g, b, a), cases[i].want);
        has_shape(g, ll_select(g, b, a, ll_fill(g, LL_F32, LL_SCALAR, 0)), cases[i].want);
        ll_graph_free(g);
    }
}

/* Operands of one shape are used as they are, and what would change nothing is no node. */
static void test_no_needless_nodes(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("t");
    ll_val a = in(g, LL_F32, LL_SHAPE(2, 3)), b = in(g, LL_F32, LL_SHAPE(2, 3));
    assert_int_equal(ll_reshape(g, a, LL_SHAPE(2, 3)).id, a.id);
    assert_int_equal(ll_cast(g, a, LL_F32).id, a.id);
    assert_int_equal(g->n_node, 0);
    ll_mul(g, a, b);
    assert_int_equal(g->n_node, 1);
    ll_graph_free(g);
}

static void test_shapes(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("t");
    ll_val x = in(g, LL_F32, LL_SHAPE(2, 3, 4));
    has_shape(g, ll_reshape(g, x, LL_SHAPE(-1, 4)), LL_SHAPE(6, 4));
    has_shape(g, ll_reshape(g, x, LL_SHAPE(24)), LL_SHAPE(24));
    has_shape(g, ll_transpose(g, x, "abc->cab"), LL_SHAPE(4, 2, 3));
    has_shape(g, ll_broadcast(g, x, "nhc->nhwc", LL_SHAPE(2, 3, 5, 4)), LL_SHAPE(2, 3, 5, 4));
    has_shape(g, ll_slice(g, x, 1, 1, 3), LL_SHAPE(2, 2, 4));
    has_shape(g, ll_pad(g, x, 2, 1, 2), LL_SHAPE(2, 3, 7));
    has_shape(g, ll_concat(g, (ll_val[]){x, x, x}, 3, 0), LL_SHAPE(6, 3, 4));
    ll_val many[300];
    for (int i = 0; i < 300; i++) many[i] = x;
    has_shape(g, ll_concat(g, many, 300, 1), LL_SHAPE(2, 900, 4));
    assert_int_equal(ll_concat(g, many, 1, 2).id, x.id);
    has_shape(g, ll_sum(g, x, "abc->b"), LL_SHAPE(3));
    has_shape(g, ll_amax(g, x, "abc->ac"), LL_SHAPE(2, 4));
    has_shape(g, ll_mean(g, x), LL_SCALAR);
    has_shape(g, ll_onehot(g, ll_cast(g, x, LL_I32), 9, 0, LL_F32), LL_SHAPE(2, 3, 4, 9));
    assert_int_equal(ll_graph_dtype(g, ll_cast(g, x, LL_BF16)), LL_BF16);
    ll_graph_free(g);
}

/* A declaration with a mistake, and a piece of what is said about it. */
typedef struct mistake {
    ll_val (*make)(ll_graph *g, ll_val x, ll_val n); /* x f32[2,3], n i32[2,3] */
    const char *says;
} mistake;

static ll_val two_types(ll_graph *g, ll_val x, ll_val n)
{
    return ll_add(g, x, n);
}
static ll_val two_shapes(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_add(g, x, ll_slice(g, x, 1, 0, 2));
}
static ll_val exp_of_integers(ll_graph *g, ll_val x, ll_val n)
{
    (void)x;
    return ll_exp(g, n);
}
static ll_val two_open(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_reshape(g, x, LL_SHAPE(-1, -1));
}
static ll_val no_divisor(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_reshape(g, x, LL_SHAPE(4, -1));
}
static ll_val other_count(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_reshape(g, x, LL_SHAPE(7));
}
static ll_val no_permutation(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_transpose(g, x, "ab->a");
}
static ll_val letter_twice(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_transpose(g, x, "aa->aa");
}
static ll_val wrong_order(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_sum(g, ll_reshape(g, x, LL_SHAPE(1, 2, 3)), "abc->cb");
}
static ll_val new_letter(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_sum(g, x, "ab->c");
}
static ll_val wrong_extent(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_broadcast(g, x, "bc->abc", LL_SHAPE(5, 2, 4));
}
static ll_val bad_range(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_slice(g, x, 1, 2, 4);
}
static ll_val bad_dim(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_pad(g, x, 2, 1, 1);
}
static ll_val mixed_concat(ll_graph *g, ll_val x, ll_val n)
{
    return ll_concat(g, (ll_val[]){x, n}, 2, 0);
}
static ll_val uneven_concat(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_concat(g, (ll_val[]){x, ll_slice(g, x, 1, 0, 2)}, 2, 0);
}
static ll_val huge(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_fill(g, LL_F32, LL_SHAPE(1ll << 40, 1ll << 40), 0);
}
static ll_val float_index(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_onehot(g, x, 3, 0, LL_F32);
}
static ll_val mean_of_nothing(ll_graph *g, ll_val x, ll_val n)
{
    (void)n;
    return ll_mean(g, ll_slice(g, x, 0, 1, 1));
}
static ll_val strange_operand(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_add(g, x, (ll_val){9999});
}
static ll_val strange_first(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_mul(g, (ll_val){-3}, x);
}
static ll_val strange_unary(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_exp(g, (ll_val){9999});
}
static ll_val strange_scalar(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_reshape(g, (ll_val){9999}, LL_SCALAR);
}
static ll_val fill_of_no_type(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_fill(g, (ll_dtype)77, LL_SHAPE(2), 1);
}
static ll_val negative_arange(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_arange(g, LL_F32, -1, 0, 1);
}
static ll_val nothing_joined(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_concat(g, NULL, 0, 0);
}
static ll_val gather_by_float(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_gather(g, x, x, 0);
}
static ll_val no_delta(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_huber(g, x, x, 0);
}
static ll_val nan_delta(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_huber(g, x, x, NAN);
}
static ll_val all_smoothed(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_cross_entropy_mean(g, x, ll_batch(g, "y", LL_I32, LL_SHAPE(2)),
                                 &(ll_cross_entropy_opts){.smoothing = 1});
}
static ll_val below_smoothing(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_cross_entropy_mean(g, x, ll_batch(g, "y", LL_I32, LL_SHAPE(2)),
                                 &(ll_cross_entropy_opts){.smoothing = -0.1});
}
static ll_val other_classes(ll_graph *g, ll_val x, ll_val n)
{
    (void)x, (void)n;
    return ll_cross_entropy_mean(
        g, x, ll_batch(g, "y", LL_I32, LL_SHAPE(2)),
        &(ll_cross_entropy_opts){.weight = ll_fill(g, LL_F32, LL_SHAPE(5), 1)});
}

static void test_mistakes(void **state)
{
    (void)state;
    static const mistake list[] = {
        {two_types, "f32 and i32"},
        {two_shapes, "[2,3] and [2,2]"},
        {exp_of_integers, "does not take i32"},
        {two_open, "[2,3] cannot become [-1,-1]"},
        {no_divisor, "cannot become [4,-1]"},
        {other_count, "[7] has 7"},
        {no_permutation, "no permutation"},
        {letter_twice, "a twice"},
        {wrong_order, "in their order"},
        {new_letter, "no reduction"},
        {wrong_extent, "loop c runs over"},
        {bad_range, "2 to 4 is no range"},
        {bad_dim, "dimension 2 of 2"},
        {mixed_concat, "f32 and i32"},
        {uneven_concat, "loop b runs over"},
        {huge, "more elements than can be counted"},
        {float_index, "expected i32"},
        {mean_of_nothing, "no elements"},
        {strange_operand, "add: operand 1 is no value of this graph"},
        {strange_first, "mul: operand 0 is no value of this graph"},
        {strange_unary, "exp: operand 0 is no value of this graph"},
        {strange_scalar, "reshape: operand 0 is no value of this graph"},
        {fill_of_no_type, "fill: no element type has number 77"},
        {negative_arange, "arange: dimension 0 is -1"},
        {nothing_joined, "concat: "},
        {gather_by_float, "gather of f32[2,3] and f32[2,3]"},
        {no_delta, "huber: delta is 0, expected more than 0"},
        {nan_delta, "huber: delta is nan"},
        {all_smoothed, "smoothing is 1, expected 0 or more and less than 1"},
        {below_smoothing, "smoothing is -0.1"},
        {other_classes, "the weight is [5], expected [3]"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        ll_graph *g = ll_graph_new("t");
        ll_val x = in(g, LL_F32, LL_SHAPE(2, 3)), n = in(g, LL_I32, LL_SHAPE(2, 3));
        ll_val bad = list[i].make(g, x, n);
        assert_int_equal(bad.id, 0);
        ll_err code = ll_graph_check(g);
        assert_true(code == LL_E_SHAPE || code == LL_E_ARG || code == LL_E_GRAPH);
        if (!strstr(ll_error_text(), list[i].says))
            fail_msg("want \"%s\" in: %s", list[i].says, ll_error_text());
        assert_int_equal(ll_add(g, x, x).id, 0); /* nothing after the first mistake */
        ll_graph_free(g);
    }
}

/* A spec that is none is an argument's mistake, whichever builder it is given to. */
static void test_bad_spec_codes(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ll_graph *g = ll_graph_new("t");
        ll_val x = in(g, LL_F32, LL_SHAPE(2, 3));
        switch (i) {
        case 0: ll_matmul(g, "nonsense", x, x); break;
        case 1: ll_transpose(g, x, "nonsense"); break;
        case 2: ll_sum(g, x, "nonsense"); break;
        case 3: ll_transpose(g, x, "ab->a"); break;
        }
        assert_int_equal(ll_graph_check(g), LL_E_ARG);
        ll_graph_free(g);
    }
}

static void test_specs(void **state)
{
    (void)state;
    ll_spec s;
    assert_int_equal(ll_spec_parse("nhwc->c", &s), LL_OK);
    assert_int_equal(s.n_in, 4);
    assert_int_equal(s.from[0], 3);
    assert_int_equal(s.to[3], 0);
    assert_int_equal(s.to[0], -1);
    assert_true(ll_spec_shrinks(&s) && !ll_spec_grows(&s));
    assert_int_equal(ll_spec_parse("->", &s), LL_OK);
    assert_true(ll_spec_shrinks(&s) && ll_spec_grows(&s));
    static const char *const bad[] = {"",        "a",      "ab-",       "ab>a",      "ab->a,b",
                                      "ab,c->a", "aB->a",  "a->bb",     "abcdefg->", " ab->a",
                                      "ab ->a",  "ab->a ", "->abcdefg", "a->b->c"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_not_equal(ll_spec_parse(bad[i], &s), LL_OK);
    char out[LL_SPEC_MAX];
    assert_string_equal(ll_spec_reverse("nhwc->c", out), "c->nhwc");
    assert_string_equal(ll_spec_reverse("ab->", out), "->ab");
}

/* Of an ll_val: none. */
#define NOTHING(...)                                                                               \
    do {                                                                                           \
        const ll_val made[] = {__VA_ARGS__};                                                       \
        for (size_t i = 0; i < sizeof made / sizeof *made; i++)                                    \
            if (made[i].id) fail_msg("the %zuth of %s", i, #__VA_ARGS__);                          \
    } while (0)

/* Without a graph builders make nothing, whether values are none or another graph's. */
static void test_no_graph(void **state)
{
    (void)state;
    ll_graph *g = NULL;
    const ll_shape s = LL_SHAPE(2, 3);
    const ll_init zero = {0};
    ll_recurrent r = {.weight_ih = {1}, .weight_hh = {1}};
    for (int id = 0; id < 2; id++) {
        const ll_val x = {id}, two[] = {x, x};
        ll_val dx[2];
        NOTHING(ll_param(g, "a", s, zero), ll_state(g, "a", s, zero), ll_batch(g, "a", LL_F32, s),
                ll_per_step(g, "a"), ll_fill(g, LL_F32, s, 1), ll_constant(g, LL_F32, s, &s),
                ll_add(g, x, x), ll_select(g, x, x, x), ll_not_equal(g, x, x), ll_mod(g, x, x),
                ll_neg(g, x), ll_clamp(g, x, 0, 1), ll_isnan(g, x), ll_pow(g, x, x),
                ll_power(g, x, 2), ll_tan(g, x), ll_celu(g, x, 0), ll_selu(g, x), ll_mish(g, x),
                ll_prelu(g, x, x), ll_hard_swish(g, x), ll_stop_gradient(g, x),
                ll_cast(g, x, LL_I32), ll_scale(g, x, 2), ll_square(g, x), ll_reshape(g, x, s),
                ll_transpose(g, x, "ab->ba"), ll_broadcast(g, x, "a->ba", s));
        NOTHING(ll_slice(g, x, 0, 0, 1), ll_pad(g, x, 0, 1, 1), ll_concat(g, two, 2, 0),
                ll_gather(g, x, x, 0), ll_gather_elements(g, x, x, 0),
                ll_scatter_add(g, x, x, 0, 3), ll_one_hot(g, x, 3, LL_F32),
                ll_arange(g, LL_F32, 3, 0, 1), ll_argmax(g, x, 0), ll_argmin(g, x, 0),
                ll_sort(g, x, false, NULL), ll_top_k(g, x, 1, &dx[0]),
                ll_cumsum(g, x, 0, false, false), ll_sum(g, x, "a->"), ll_amin(g, x, "a->"),
                ll_prod(g, x, "a->"), ll_mean_over(g, x, "a->"), ll_logsumexp(g, x, "a->"),
                ll_mean(g, x), ll_sum_all(g, x), ll_matmul(g, "ab,bc->ac", x, x));
        NOTHING(ll_conv1d(g, x, x, NULL), ll_conv2d(g, x, x, NULL), ll_conv3d(g, x, x, NULL),
                ll_conv_transpose(g, x, x, NULL, NULL), ll_max_pool(g, x, &(ll_window){{2, 2}}),
                ll_avg_pool(g, x, &(ll_window){{2, 2}}), ll_global_max_pool(g, x),
                ll_global_avg_pool(g, x), ll_adaptive_avg_pool(g, x, 1, 1),
                ll_resize_image(g, x, &(ll_resize){0}), ll_flip(g, x, 0),
                ll_depth_to_space(g, x, 2, false), ll_space_to_depth(g, x, 2, false),
                ll_softmax(g, x), ll_softmax_over(g, x, 0), ll_log_softmax(g, x, 0),
                ll_layernorm(g, x, x, x, 0), ll_rmsnorm(g, x, x, 0),
                ll_group_norm(g, x, 1, x, x, 0), ll_instance_norm(g, x, x, x, 0),
                ll_local_response_norm(g, x, 3, 1, 1, 1));
        NOTHING(ll_attention(g, x), ll_attend(g, x, x, x, NULL), ll_linear_attend(g, x, x, x, 0),
                ll_rope(g, x, 1e4, false), ll_rope_at(g, x, x, 1e4, false), ll_embedding(g, x, x),
                ll_cross_entropy(g, x, x), ll_cross_entropy_mean(g, x, x, NULL), ll_nll(g, x, x),
                ll_mse(g, x, x), ll_l1(g, x, x), ll_huber(g, x, x, 0), ll_smooth_l1(g, x, x, 0),
                ll_bce_logits(g, x, x, x), ll_focal(g, x, x, 1, 1), ll_kl_div(g, x, x),
                ll_cosine_similarity(g, x, x, 0), ll_cosine_embedding(g, x, x, x, 0),
                ll_correct(g, x, x), ll_dropout(g, x, 0.5), ll_recur(g, x, &r),
                ll_linear(g, "a", x, 2, true), ll_conv_layer(g, "a", x, 2, 3, NULL, true),
                ll_conv_transpose_layer(g, "a", x, 2, 3, NULL, NULL, true),
                ll_lstm_layer(g, "a", x, 2, false), ll_gru_layer(g, "a", x, 2, false),
                ll_rnn_layer(g, "a", x, 2, false), ll_batchnorm_layer(g, "a", x, true),
                ll_batchnorm(g, x, &(ll_norm){0}), ll_layernorm_layer(g, "a", x),
                ll_label_loss(g, &(ll_build){0}, x));
        ll_graph_push(g, "a"), ll_graph_pop(g), ll_graph_block(g), ll_graph_reject(g, "no");
        ll_graph_result(g, "a", x), ll_graph_update(g, x, x), (void)ll_graph_name(g, x, "a");
        ll_grad(g, x, two, 2, dx), ll_minimize(g, x, NULL);
        assert_int_equal(ll_graph_shape(g, x).n, 0);
        (void)ll_graph_dtype(g, x);
    }
    assert_int_equal(ll_graph_check(g), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "argument g is NULL"));
}

/* The builder and its argument are named. */
static void test_null_arguments(void **state)
{
    (void)state;
    ll_val dx;
    for (int i = 0; i < 18; i++) {
        ll_graph *g = ll_graph_new(i ? "t" : NULL);
        const ll_init zero = {0};
        ll_val v = {0}, x = in(g, LL_F32, LL_SHAPE(2, 4, 4, 3));
        const char *says = "name";
        switch (i) {
        case 0: says = "a new graph: argument name"; break;
        case 1: v = ll_param(g, NULL, LL_SHAPE(2), zero), says = "param: argument name"; break;
        case 2: v = ll_state(g, NULL, LL_SHAPE(2), zero), says = "state: argument name"; break;
        case 3: v = ll_batch(g, NULL, LL_F32, LL_SHAPE(2)), says = "batch: argument name"; break;
        case 4: v = ll_per_step(g, NULL), says = "step: argument name"; break;
        case 5: v = ll_transpose(g, x, NULL), says = "transpose: argument spec"; break;
        case 6: v = ll_broadcast(g, x, NULL, LL_SHAPE(2)), says = "broadcast: argument spec"; break;
        case 7: v = ll_sum(g, x, NULL), says = "sum: argument spec"; break;
        case 8: v = ll_matmul(g, NULL, x, x), says = "matmul: argument spec"; break;
        case 9: v = ll_max_pool(g, x, NULL), says = "max_pool: argument w"; break;
        case 10: v = ll_resize_image(g, x, NULL), says = "resize: argument r"; break;
        case 11: v = ll_recur(g, x, NULL), says = "recur: argument r"; break;
        case 12: v = ll_batchnorm(g, x, NULL), says = "batchnorm: argument n"; break;
        case 13: v = ll_concat(g, NULL, 2, 0), says = "concat: argument x"; break;
        case 14: v = ll_linear(g, NULL, x, 2, true), says = "scope: argument name"; break;
        case 15: ll_graph_result(g, NULL, x), says = "result: argument name"; break;
        case 16: ll_grad(g, x, NULL, 1, &dx), says = "gradient: argument x"; break;
        case 17: v = ll_label_loss(g, NULL, x), says = "label_loss: argument b"; break;
        }
        assert_int_equal(v.id, 0);
        assert_int_equal(ll_graph_check(g), LL_E_ARG);
        if (!strstr(ll_error_text(), says)) fail_msg("no %s in: %s", says, ll_error_text());
        ll_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broadcasting),   cmocka_unit_test(test_no_needless_nodes),
        cmocka_unit_test(test_shapes),         cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_bad_spec_codes), cmocka_unit_test(test_specs),
        cmocka_unit_test(test_no_graph),       cmocka_unit_test(test_null_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
