/* Stages: where models are cut, and what each rank of a pipeline is left with: work in equal parts,
 * every message with both its ends, nothing sent twice or in vain. */
#include "pass/stages.h"
#include "kern/attr.h"
#include "pass/strategies.h"

static ll_graph *model(const char *name, int64_t batch, const ll_size *sizes, int n, bool training)
{
    const ll_model *m = ll_model_find(name);
    ll_build b = {.batch = batch, .training = training};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    for (int i = 0; i < n; i++)
        for (int k = 0; b.sizes[k].name; k++)
            if (!strcmp(b.sizes[k].name, sizes[i].name)) b.sizes[k].value = sizes[i].value;
    ll_graph *g = ll_graph_new(name);
    ll_val loss = m->declare(g, &b);
    if (training) ll_minimize(g, loss, &(ll_optim){.name = "adamw", .clip = 0.5});
    no_error(ll_graph_check(g));
    return g;
}

static ll_graph *layers(int64_t n)
{
    const ll_size sizes[] = {{"layers", n, ""},
                             {"width", 48, ""},
                             {"heads", 4, ""},
                             {"seq", 32, ""},
                             {"vocab", 200, ""}};
    return model("gpt", 4, sizes, 5, true);
}

/* ---- where to cut ---- */

static void work_is_in_equal_parts(void **state)
{
    (void)state;
    ll_graph *g = layers(12);
    ll_arena *a = ll_arena_new();
    for (int n = 1; n <= 5; n++) {
        const ll_stages *s;
        double most = 0, sum = 0;
        no_error(ll_stages_find(g, n, NULL, NULL, a, &s));
        assert_int_equal(s->n, n);
        for (int i = 1; i <= n; i++) {
            assert_true(s->cost[i] > 0);
            assert_true(i == n ? s->bytes[i] == 0 : s->bytes[i] > 0);
            if (s->cost[i] > most) most = s->cost[i];
            sum += s->cost[i];
        }
        print_message("gpt of 12 layers, %d stages: most / mean %.3f\n", n, most / (sum / n));
        assert_true(most / (sum / n) < 1.12);
        for (int i = 2; i <= s->n_at; i++)
            assert_true(s->of_at[i] == s->of_at[i - 1] || s->of_at[i] == s->of_at[i - 1] + 1);
        assert_int_equal(s->of_at[1], 1);
        assert_int_equal(s->of_at[s->n_at], n);
    }
    ll_arena_free(a);
    ll_graph_free(g);
}

/* With a limit that stages of equal work exceed, work gives way; what nothing keeps within is
 * exceeded by as little as can be. */
static void memory_is_a_limit(void **state)
{
    (void)state;
    enum { N = 4 };
    ll_graph *g = layers(12);
    ll_arena *a = ll_arena_new();
    const ll_stages *s, *even;
    const int in_flight[N] = {4, 3, 2, 1};
    double limit[N], held[2] = {0}, most[2] = {0};
    no_error(ll_stages_find(g, N, NULL, NULL, a, &even));
    for (int i = 0; i < N; i++) {
        double x = even->fixed[i + 1] + in_flight[i] * even->kept[i + 1];
        if (x > held[0]) held[0] = x;
        if (even->cost[i + 1] > most[0]) most[0] = even->cost[i + 1];
    }
    for (int share = 9; share >= 0; share -= 9) {
        for (int i = 0; i < N; i++) limit[i] = held[0] * share / 10;
        const ll_stage_room room = {limit, in_flight};
        no_error(ll_stages_find(g, N, NULL, &room, a, &s));
        held[1] = most[1] = 0;
        for (int i = 0; i < N; i++) {
            double x = s->fixed[i + 1] + in_flight[i] * s->kept[i + 1];
            if (x > held[1]) held[1] = x;
            if (s->cost[i + 1] > most[1]) most[1] = s->cost[i + 1];
        }
        assert_true(held[1] < 0.9 * held[0] && most[1] > most[0]);
        print_message("%.2f of the bytes, %.2f of the work\n", held[1] / held[0],
                      most[1] / most[0]);
    }
    ll_arena_free(a);
    ll_graph_free(g);
}

static int home(const ll_stages *s, const char *name)
{
    for (int i = 0; i < s->n_home; i++)
        if (!strcmp(s->home[i].name, name)) return s->home[i].stage;
    fail_msg("%s has no stage", name);
    return 0;
}

static void cut_where_names_say(void **state)
{
    (void)state;
    ll_graph *g = layers(4);
    ll_arena *a = ll_arena_new();
    const ll_stages *s;
    no_error(ll_stages_find(g, 3, "h1.* h3.mlp.*", NULL, a, &s));
    assert_int_equal(home(s, "wte"), 1);
    assert_int_equal(home(s, "h0.mlp.proj.weight"), 1);
    assert_int_equal(home(s, "h1.ln1.weight"), 2);
    assert_int_equal(home(s, "h3.attn.proj.bias"), 2);
    assert_int_equal(home(s, "h3.mlp.fc.weight"), 3);
    assert_int_equal(home(s, "h3.mlp.fc.weight.mean"), 3);
    assert_int_equal(home(s, "ln_f.weight"), 3);
    ll_arena_free(a);
    ll_graph_free(g);
}

static void refused(const ll_graph *g, int n, const char *names, ll_err code, const char *why)
{
    ll_arena *a = ll_arena_new();
    const ll_stages *s;
    assert_int_equal(ll_stages_find(g, n, names, NULL, a, &s), code);
    if (!strstr(ll_error_text(), why)) fail_msg("%s", ll_error_text());
    ll_arena_free(a);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    ll_graph *g = layers(2), *h = mlp();
    refused(g, 3, "h1.* h9.*", LL_E_ARG, "no node behind that of the stage before is named h9.*");
    refused(g, 3, "h1.* h0.*", LL_E_ARG, "is named h0.*"); /* it is before the other */
    refused(g, 2, "zero", LL_E_ARG, "no node is named zero");
    refused(g, 2, "h0.* h1.*", LL_E_ARG, "names the beginnings of more than 2 stages");
    refused(g, 3, "h1.*", LL_E_ARG, "names the beginnings of 1 stages, expected 2");
    refused(h, 60, NULL, LL_E_SHARD, "too few for 60 stages");
    ll_graph_free(g);
    ll_graph_free(h);
}

/* ---- messages ---- */

enum { MOST_RANKS = 8 };
typedef struct cut { /* all ranks' graphs, a stage each */
    ll_arena *a;
    ll_graph *whole, *rank[MOST_RANKS];
    const ll_stages *s;
    int n;
} cut;

/* Takes g. */
static cut cut_up(ll_graph *g, int n, const char *names, const ll_stages *like)
{
    static const int rank_of[] = {0, 1, 2, 3, 4, 5, 6, 7};
    cut c = {.a = ll_arena_new(), .n = n};
    char mesh[16];
    ll_mesh m;
    ll_graph *apart;
    snprintf(mesh, sizeof mesh, "pipe=%d", n);
    no_error(ll_mesh_parse(mesh, &m));
    no_error(ll_means_apart(g, &apart));
    no_error(ll_simplify(apart, &c.whole));
    no_error(like ? ll_stages_like(c.whole, like, c.a, &c.s)
                  : ll_stages_find(c.whole, n, names, NULL, c.a, &c.s));
    for (int r = 0; r < n; r++) no_error(ll_stages_cut(c.whole, c.s, &m, r, rank_of, &c.rank[r]));
    ll_graph_free(apart);
    ll_graph_free(g);
    return c;
}

static void drop(cut *c)
{
    for (int r = 0; r < c->n; r++) ll_graph_free(c->rank[r]);
    ll_graph_free(c->whole);
    ll_arena_free(c->a);
}

typedef struct message {
    const ll_node *node[2]; /* at its ends: send, receive */
    ll_message_attr attr;
    int from, to;
} message;

/* Both ends of every message, in the order of their numbers. */
static int messages(const cut *c, message **out)
{
    int most = 0, n = 0;
    for (int r = 0; r < c->n; r++) most += c->rank[r]->n_node;
    message *list = LL_NEW_ARRAY(c->a, message, most + 1);
    *out = list;
    for (int r = 0; r < c->n; r++)
        for (int i = 0; i < c->rank[r]->n_node; i++) {
            const ll_node *x = &c->rank[r]->nodes[i];
            bool sends = x->op->collective == LL_SEND;
            if (!sends && x->op->collective != LL_RECV) continue;
            const ll_message_attr *a = x->attr;
            assert_in_range(a->serial, 0, most - 1);
            message *m = &list[a->serial];
            if (a->serial >= n) n = (int)a->serial + 1;
            assert_null(m->node[!sends]); /* one of each */
            if (m->node[sends]) {
                assert_int_equal(a->when, m->attr.when);
                assert_int_equal(a->dtype, m->attr.dtype);
                assert_true(ll_shape_equal(&a->shape, &m->attr.shape));
                assert_int_equal(sends ? r : a->peer, m->from);
                assert_int_equal(sends ? a->peer : r, m->to);
            }
            m->node[!sends] = x;
            m->attr = *a;
            m->from = sends ? r : (int)a->peer;
            m->to = sends ? (int)a->peer : r;
            assert_int_not_equal(m->from, m->to);
        }
    for (int i = 0; i < n; i++) assert_true(list[i].node[0] && list[i].node[1]);
    return n;
}

/* On every rank in the same order, as far as it has them. */
static void in_order(const cut *c)
{
    for (int r = 0; r < c->n; r++) {
        int64_t last = -1;
        for (int i = 0; i < c->rank[r]->n_node; i++) {
            const ll_node *x = &c->rank[r]->nodes[i];
            if (x->op->collective != LL_SEND && x->op->collective != LL_RECV) continue;
            int64_t serial = ((const ll_message_attr *)x->attr)->serial;
            assert_true(serial > last);
            last = serial;
        }
    }
}

static void messages_have_two_ends(void **state)
{
    (void)state;
    const ll_size small[] = {{"image", 9, ""}, {"width", 4, ""}, {"classes", 5, ""}};
    for (int n = 2; n <= 5; n++)
        for (int k = 0; k < 2; k++) {
            message *m;
            cut c = cut_up(k ? model("resnet18", 3, small, 3, true) : layers(5), n, NULL, NULL);
            assert_true(messages(&c, &m) > n);
            in_order(&c);
            drop(&c);
        }
}

/* Parameters and their state are on one rank, which updates them; what is sent for updates are
 * numbers, and a gradient of what two stages read. */
static void state_is_with_its_parameter(void **state)
{
    (void)state;
    cut c = cut_up(layers(6), 3, NULL, NULL);
    message *m;
    int n = messages(&c, &m), kept = 0, updates = 0, tensors = 0;
    char name[128];
    for (int r = 0; r < c.n; r++) {
        const ll_graph *g = c.rank[r];
        updates += g->n_update;
        for (int i = 1; i < g->n_value; i++) {
            const ll_value *v = &g->values[i];
            if (v->node >= 0 || (v->kind != LL_PARAM && v->kind != LL_STATE)) continue;
            kept++;
            snprintf(name, sizeof name, "%s.square", v->name);
            if (v->kind == LL_PARAM) assert_true(ll_find(g, name).id);
        }
    }
    for (int i = 1; i < c.whole->n_value; i++) {
        const ll_value *v = &c.whole->values[i];
        kept -= v->node < 0 && (v->kind == LL_PARAM || v->kind == LL_STATE);
    }
    assert_int_equal(kept, 0); /* on one rank each */
    assert_int_equal(updates, c.whole->n_update);
    for (int i = 0; i < n; i++)
        if (m[i].attr.when > LL_BEFORE && ll_numel(&m[i].attr.shape) > 1) tensors++;
    assert_int_equal(tensors, 1); /* the table's */
    drop(&c);
}

/* A table that the first stage and the last one read. */
static void tied_weights_travel_once_a_step(void **state)
{
    (void)state;
    cut c = cut_up(layers(6), 3, NULL, NULL);
    message *m;
    int n = messages(&c, &m), there = 0, back = 0;
    ll_shape table = LL_SHAPE(200, 48);
    for (int i = 0; i < n; i++) {
        if (!ll_shape_equal(&m[i].attr.shape, &table)) continue;
        assert_int_not_equal(m[i].attr.when, LL_EACH_MICRO);
        there += m[i].attr.when == LL_BEFORE && m[i].from == 0 && m[i].to == 2;
        back += m[i].attr.when > LL_BEFORE && m[i].from == 2 && m[i].to == 0;
    }
    assert_int_equal(there, 1);
    assert_int_equal(back, 1);
    drop(&c);
}

/* a goes to the second stage, and past two cuts to the last one, which reads it twice. */
static void skips_are_sent_once_to_each_reader(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("skip");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(5, 7)), y = ll_batch(g, "y", LL_I32, LL_SHAPE(5));
    ll_val a = ll_relu(g, ll_linear(g, "fc1", x, 7, false));
    ll_val b = ll_relu(g, ll_linear(g, "fc2", a, 7, false));
    b = ll_relu(g, ll_linear(g, "fc3", b, 7, false));
    b = ll_add(g, ll_linear(g, "fc4", b, 7, false), a);
    b = ll_mul(g, b, a);
    ll_minimize(g, ll_mean(g, ll_cross_entropy(g, b, y)), &(ll_optim){.name = "sgd"});
    no_error(ll_graph_check(g));
    cut c = cut_up(g, 4, "fc2.* fc3.* fc4.*", NULL);
    message *m;
    int n = messages(&c, &m), forward[4] = {0}, back = 0, skipped = 0;
    for (int i = 0; i < n; i++) {
        if (m[i].attr.when != LL_EACH_MICRO) continue;
        bool ahead = m[i].from < m[i].to;
        if (ahead && m[i].from == 0) forward[m[i].to]++;
        back += !ahead && m[i].to == 0;
        skipped += !ahead && m[i].from == 3 && m[i].to != 2;
        if (ahead && m[i].from > 0) assert_int_equal(m[i].to, m[i].from + 1);
    }
    assert_int_equal(forward[1], 1);
    assert_int_equal(forward[2], 0); /* it does not pass it on */
    assert_int_equal(forward[3], 1);
    assert_int_equal(skipped, 1); /* to where the parts of its gradient are summed */
    assert_int_equal(back, 1);
    for (int r = 1; r < 4; r++) assert_int_equal(ll_find(c.rank[r], "x").id, 0);
    for (int r = 0; r < 3; r++) assert_int_equal(ll_find(c.rank[r], "y").id, 0);
    drop(&c);
}

/* What every rank can make by itself is not sent. */
static void constants_are_not_sent(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("constants");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(5, 7));
    ll_val half = ll_scale(g, ll_fill(g, LL_F32, LL_SHAPE(5, 7), 3), 0.5);
    ll_val a = ll_mul(g, ll_linear(g, "fc1", x, 7, false), half);
    a = ll_mul(g, ll_linear(g, "fc2", a, 7, false), half);
    ll_minimize(g, ll_mean(g, ll_square(g, a)), &(ll_optim){.name = "sgd"});
    no_error(ll_graph_check(g));
    cut c = cut_up(g, 2, "fc2.*", NULL);
    message *m;
    int n = messages(&c, &m), each = 0;
    for (int i = 0; i < n; i++) {
        each += m[i].attr.when == LL_EACH_MICRO;
        assert_int_not_equal(m[i].attr.when, LL_BEFORE);
    }
    assert_int_equal(each, 2); /* a there, its gradient back */
    drop(&c);
}

/* Running statistics are with the batch norm, though their means are declared behind the cut. */
static void means_are_with_what_they_are_of(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("norm");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(3, 5, 5, 2));
    const ll_conv same = {.pad = {1, 1}};
    ll_val h = ll_conv_layer(g, "conv1", x, 4, 3, &same, false);
    h = ll_relu(g, ll_batchnorm_layer(g, "bn", h, true));
    h = ll_conv_layer(g, "conv2", h, 3, 3, &same, false);
    ll_minimize(g, ll_mean(g, ll_square(g, h)), &(ll_optim){.name = "momentum"});
    no_error(ll_graph_check(g));
    cut c = cut_up(g, 2, "bn.accum", NULL);
    message *m;
    int n = messages(&c, &m);
    for (int i = 0; i < n; i++) assert_int_not_equal(m[i].attr.shape.n, 1); /* no statistics */
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ll_find(c.rank[r], "bn.mean").id != 0, r == 0);
        assert_int_equal(ll_find(c.rank[r], "bn.weight.velocity").id != 0, r == 0);
        assert_int_equal(ll_find(c.rank[r], "conv2.weight.velocity").id != 0, r == 1);
    }
    drop(&c);
}

/* An evaluation's graph has its parameters where training has them. */
static void others_follow(void **state)
{
    (void)state;
    const ll_size sizes[] = {{"layers", 4, ""},
                             {"width", 48, ""},
                             {"heads", 4, ""},
                             {"seq", 32, ""},
                             {"vocab", 200, ""}};
    cut c = cut_up(layers(4), 3, NULL, NULL);
    cut e = cut_up(model("gpt", 7, sizes, 5, false), 3, NULL, c.s);
    message *m;
    assert_true(messages(&e, &m) > 2);
    for (int r = 0; r < 3; r++)
        for (int i = 1; i < e.rank[r]->n_value; i++) {
            const ll_value *v = &e.rank[r]->values[i];
            if (v->node < 0 && v->kind == LL_PARAM) assert_true(ll_find(c.rank[r], v->name).id);
        }
    drop(&c);
    drop(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_is_in_equal_parts),
        cmocka_unit_test(memory_is_a_limit),
        cmocka_unit_test(cut_where_names_say),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(messages_have_two_ends),
        cmocka_unit_test(state_is_with_its_parameter),
        cmocka_unit_test(tied_weights_travel_once_a_step),
        cmocka_unit_test(skips_are_sent_once_to_each_reader),
        cmocka_unit_test(constants_are_not_sent),
        cmocka_unit_test(means_are_with_what_they_are_of),
        cmocka_unit_test(others_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
