/* Partitioning: for models and meshes, every rank's graph run beside the others' gives the serial
 * graph's results and updates, in f64. The seed is printed: SEED=7 test_partition. */
#include "pass/lockstep.h"

static uint64_t seed = 1;

typedef struct made {
    ll_graph *g;
    int64_t limit; /* of integer batch data */
} made;

/* The model's training graph, in f64. */
static made training(ll_graph *g, ll_val loss, const char *optimizer, int64_t limit)
{
    ll_minimize(g, loss, &(ll_optim){.name = optimizer, .clip = 1, .weight_decay = 0.1});
    no_error(ll_graph_check(g));
    made m = {.limit = limit};
    no_error(ll_retype(g, LL_F64, false, &m.g));
    ll_graph_free(g);
    return m;
}

static made mlp(void)
{
    ll_graph *g = ll_graph_new("mlp");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(7, 11)), y = ll_batch(g, "y", LL_I32, LL_SHAPE(7));
    ll_val h = ll_relu(g, ll_linear(g, "fc1", x, 13, true));
    h = ll_gelu(g, ll_linear(g, "fc2", h, 9, true));
    ll_val logits = ll_linear(g, "fc3", h, 8, true);
    ll_graph_result(g, "correct", ll_sum_all(g, ll_correct(g, logits, y)));
    return training(g, ll_mean(g, ll_cross_entropy(g, logits, y)), "adamw", 8);
}

/* Strides, padding, batch norm, both poolings, a residual. */
static made convs(void)
{
    ll_graph *g = ll_graph_new("convs");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(6, 13, 11, 3));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(6));
    ll_val h = ll_conv_layer(g, "conv1", x, 6, 3, &(ll_conv){.pad = {1, 1}}, false);
    h = ll_relu(g, ll_batchnorm_layer(g, "bn1", h, true));
    ll_val r = ll_conv_layer(g, "conv2", h, 6, 3, &(ll_conv){.pad = {1, 1}}, false);
    h = ll_relu(g, ll_add(g, h, ll_batchnorm_layer(g, "bn2", r, true)));
    h = ll_conv_layer(g, "conv3", h, 7, 3, &(ll_conv){.stride = {2, 2}, .pad = {1, 1}}, true);
    h = ll_relu(g, h);
    h = ll_reshape(g, h, LL_SHAPE(6, -1));
    ll_val logits = ll_linear(g, "fc", h, 5, true);
    return training(g, ll_mean(g, ll_cross_entropy(g, logits, y)), "momentum", 5);
}

/* Windows of one and three dimensions, transposed ones, uneven padding, images resized. */
static made spatial(void)
{
    ll_graph *g = ll_graph_new("spatial");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(6, 7, 5, 4));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(6));
    ll_val h =
        ll_conv_layer(g, "c1", x, 6, 2, &(ll_conv){.pad = {1, 0}, .pad_more = {-1, 1}}, true);
    h = ll_resize_image(g, ll_relu(g, h), &(ll_resize){.mode = LL_LINEAR, .size = {11, 8}});
    h = ll_avg_pool(g, h, &(ll_window){.size = {3, 3}, .pad = {1, 1}, .skip_pad = true});
    h = ll_conv_transpose_layer(g, "up", h, 4, 3, &(ll_conv){.stride = {2, 2}, .pad = {1, 0}}, NULL,
                                true); /* [6,7,7,4] */
    h = ll_add(g, h, ll_flip(g, h, 1));
    ll_val v = ll_reshape(g, h, LL_SHAPE(6, 7, 7, 2, 2));
    v = ll_conv_layer(g, "c3", v, 3, 2, &(ll_conv){.stride = {2, 1, 1}, .pad = {0, 1, 0}}, true);
    v = ll_max_pool(g, v, &(ll_window){.size = {2, 2, 1}});
    h = ll_concat(g, (ll_val[]){ll_global_avg_pool(g, v), ll_global_max_pool(g, h)}, 2, 1);
    h = ll_conv_layer(g, "c2", ll_reshape(g, h, LL_SHAPE(6, 7, 1)), 2, 3, NULL, true);
    ll_val logits = ll_linear(g, "fc", ll_reshape(g, h, LL_SHAPE(6, -1)), 8, true);
    return training(g, ll_mean(g, ll_cross_entropy(g, logits, y)), "adam", 8);
}

/* Recurrent layers of each cell, in both directions. */
static made recurrent(void)
{
    ll_graph *g = ll_graph_new("recur");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(6, 5, 4));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(6));
    ll_val a = ll_lstm_layer(g, "lstm", x, 6, false), b = ll_gru_layer(g, "gru", x, 6, true);
    ll_val h = ll_rnn_layer(g, "rnn", ll_concat(g, (ll_val[]){a, b}, 2, 2), 4, false);
    ll_val logits =
        ll_linear(g, "fc", ll_reshape(g, ll_slice(g, h, 1, 4, 5), LL_SHAPE(6, 4)), 8, true);
    return training(g, ll_mean(g, ll_cross_entropy(g, logits, y)), "adam", 8);
}

/* Constants, positions, elements by index, order, running sums, norms of groups and channels, a
 * weighted loss. */
static made everyday(void)
{
    static const float table[5 * 6] = {0.5f, -1, 2, 0.25f, 1, -0.5f, 3, 1, -2};
    static const int32_t places[4] = {3, 0, 2, 3};
    static const float weight[8] = {1, 2, 0.5f, 1, 3, 1, 0.25f, 1};
    ll_graph *g = ll_graph_new("everyday");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(6, 5, 7, 6));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(6)), at;
    ll_val h = ll_linear(g, "fc1", x, 6, true); /* [6,5,7,6] */
    h = ll_add(g, h,
               ll_reshape(g, ll_constant(g, LL_F32, LL_SHAPE(5, 6), table), LL_SHAPE(5, 1, 6)));
    h = ll_group_norm(g, h, 2, ll_param(g, "gain", LL_SHAPE(6), (ll_init){LL_NORMAL, 1}),
                      (ll_val){0}, 1e-5);
    h = ll_local_response_norm(g, ll_gelu_erf(g, h), 3, 0.1, 0.75, 1);
    h = ll_mul(g, h, ll_softmax_over(g, h, 2));
    ll_val position = ll_reshape(g, ll_arange(g, LL_F32, 7, 1, 0.5), LL_SHAPE(7, 1));
    h = ll_cumsum(g, ll_mul(g, h, position), 1, false, true);
    h = ll_gather(g, h, ll_constant(g, LL_I32, LL_SHAPE(4), places), 2); /* [6,5,4,6] */
    h = ll_add(
        g, h,
        ll_gather_elements(
            g, h,
            ll_argmax(g,
                      ll_concat(g,
                                (ll_val[]){ll_reshape(g, h, LL_SHAPE(6, 5, 4, 6, 1)),
                                           ll_reshape(g, ll_mish(g, h), LL_SHAPE(6, 5, 4, 6, 1))},
                                2, 4),
                      4),
            3));
    h = ll_top_k(g, h, 3, &at); /* [6,5,4,3] */
    h = ll_add(g, h, ll_sum(g, ll_one_hot(g, at, 6, LL_F32), "abcde->abcd"));
    ll_val logits = ll_linear(g, "fc2", ll_mean_over(g, h, "nhwc->nc"), 8, true);
    ll_val w = ll_constant(g, LL_F32, LL_SHAPE(8), weight);
    ll_cross_entropy_opts opts = {.smoothing = 0.1, .weight = w};
    ll_graph_result(g, "lse", ll_mean(g, ll_logsumexp(g, logits, "nc->n")));
    return training(g, ll_cross_entropy_mean(g, logits, y, &opts), "adamw", 8);
}

static made model(const char *name, int64_t batch, const char *optimizer, int64_t limit, int n,
                  const ll_size *sizes)
{
    const ll_model *m = ll_model_find(name);
    assert_non_null(m);
    ll_build b = {.batch = batch, .training = true};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < LL_MAX_SIZES && b.sizes[k].name; k++)
            if (!strcmp(b.sizes[k].name, sizes[i].name)) b.sizes[k].value = sizes[i].value;
    ll_graph *g = ll_graph_new(name);
    return training(g, m->declare(g, &b), optimizer, limit);
}

static made gpt(void)
{
    const ll_size sizes[] = {
        {"layers", 2, ""}, {"width", 24, ""}, {"heads", 6, ""}, {"seq", 7, ""}, {"vocab", 29, ""}};
    return model("gpt", 6, "lamb", 29, 5, sizes);
}

/* Few heads and samples: 4 on 3 ranks are uneven, on 5 and more too few to go by. */
static made short_gpt(void)
{
    const ll_size sizes[] = {{"layers", 1, ""}, {"width", 12, ""}, {"heads", 4, ""},
                             {"seq", 11, ""},   {"vocab", 17, ""}, {"dropout", 100, ""}};
    return model("gpt", 3, "adam", 17, 6, sizes);
}

/* A vocabulary that hardly anything divides. */
static made wordy_gpt(void)
{
    const ll_size sizes[] = {{"layers", 1, ""},
                             {"width", 4, ""},
                             {"heads", 2, ""},
                             {"seq", 2, ""},
                             {"vocab", 10007, ""}};
    return model("gpt", 2, "sgd", 10007, 5, sizes);
}

static ll_val projected(ll_graph *g, const char *name, const char *spec, ll_val x, ll_shape w)
{
    return ll_matmul(g, spec, x, ll_param(g, name, w, (ll_init){LL_NORMAL, 0.4}));
}

/* Rotary positions, heads that share keys, keys of another length, a mask. */
static made attending(void)
{
    ll_graph *g = ll_graph_new("attend");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(3, 13, 6));
    ll_val z = ll_batch(g, "z", LL_F32, LL_SHAPE(3, 17, 6));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(3, 13));
    ll_val q = projected(g, "q", "btc,hdc->bthd", x, LL_SHAPE(2, 4, 6));
    ll_val k = projected(g, "k", "btc,hdc->bthd", x, LL_SHAPE(2, 4, 6));
    ll_val v = projected(g, "v", "btc,hdc->bthd", x, LL_SHAPE(2, 3, 6));
    ll_val h = ll_attend(g, ll_rope(g, q, 100, false), ll_rope(g, k, 100, true), v,
                         &(ll_attend_opts){.causal = LL_CAUSAL});
    x = ll_add(g, x, projected(g, "o", "bthd,chd->btc", h, LL_SHAPE(6, 2, 3)));
    q = projected(g, "q2", "btc,ngdc->btngd", x, LL_SHAPE(2, 2, 4, 6));
    k = projected(g, "k2", "bsc,ndc->bsnd", z, LL_SHAPE(2, 4, 6));
    v = projected(g, "v2", "bsc,ndc->bsnd", z, LL_SHAPE(2, 4, 6));
    ll_val mask = ll_batch(g, "mask", LL_I32, LL_SHAPE(3, 1, 1, 17));
    h = ll_attend(g, q, k, v, &(ll_attend_opts){.causal = LL_CAUSAL_ENDS, .mask = mask});
    x = ll_add(g, x, projected(g, "o2", "btngd,cngd->btc", h, LL_SHAPE(6, 2, 2, 4)));
    ll_val logits = ll_linear(g, "fc", x, 5, true);
    return training(g, ll_mean(g, ll_cross_entropy(g, logits, y)), "adam", 5);
}

static made lenet(void)
{
    return model("lenet5", 6, "adam", 10, 0, NULL);
}

/* How many nodes rank 0 has: with pieces there are more. */
static int nodes_of(const made *whole, const ll_place_opts *o)
{
    ll_placement *p;
    ll_graph *g;
    no_error(ll_place(whole->g, o, &p));
    no_error(ll_partition(p, 0, &g));
    int n = g->n_node;
    ll_graph_free(g);
    ll_placement_free(p);
    return n;
}

static ll_factors factors = LL_FACTORS_NONE;
static ll_turn sequence = LL_TURN_AUTO;

static void hold_against_serial(const made *whole, lockstep *serial, const char *mesh, int zero,
                                ll_overlap overlap)
{
    ll_arena *arena = ll_arena_new();
    ll_mesh m;
    ll_placement *p;
    no_error(ll_mesh_parse(mesh, &m));
    ll_place_opts opts = {.mesh = &m, .zero = zero, .factors = factors, .overlap = overlap};
    opts.sequence = sequence;
    ll_place_opts all = opts;
    all.overlap = LL_OVERLAP_ALL;
    ll_err rc = ll_place(whole->g, &opts, &p);
    if (rc != LL_OK)
        fail_msg("%s on %s: %s\n%s", whole->g->name, mesh, ll_error_text(), ll_error_frames());
    lockstep parts = {.m = &m, .arena = arena};
    parts.n_rank = m.n_rank;
    parts.g = LL_NEW_ARRAY(arena, ll_graph *, m.n_rank);
    for (int r = 0; r < m.n_rank; r++)
        if (ll_partition(p, r, &parts.g[r]) != LL_OK)
            fail_msg("%s on %s: %s\n%s", whole->g->name, mesh, ll_error_text(), ll_error_frames());
    lockstep_run(&parts, seed, whole->limit);
    double worst = 0;
    for (int r = 0; r < m.n_rank; r++) {
        const ll_graph *g = parts.g[r], *s = serial->g[0];
        for (int i = 0; i < g->n_result; i++) {
            double d = difference(at(&parts, r, g->results[i].value),
                                  at(serial, 0, s->results[i].value), NULL);
            if (!(d < 1e-9))
                fail_msg("%s on %s zero %d: rank %d: result %s differs by %g", s->name, mesh, zero,
                         r, g->results[i].name, d);
            worst = fmax(worst, d);
        }
        for (int i = 0; i < g->n_update; i++) {
            const ll_value *in = ll_value_of(g, g->updates[i].input);
            double d = difference(at(&parts, r, g->updates[i].next),
                                  at(serial, 0, s->updates[i].next), in->piece);
            if (!(d < 1e-7))
                fail_msg("%s on %s zero %d: rank %d: update of %s differs by %g", s->name, mesh,
                         zero, r, in->name, d);
            worst = fmax(worst, d);
        }
        ll_graph_free(parts.g[r]);
    }
    print_message("%-8s %-28s zero %d  worst %.1e  %.0f kB sent%s\n", whole->g->name, mesh, zero,
                  worst, parts.sent / 1e3, overlap == LL_OVERLAP_ALL ? ", in pieces" : "");
    ll_placement_free(p);
    ll_arena_free(arena);
    if (overlap != LL_OVERLAP_ALL && nodes_of(whole, &opts) != nodes_of(whole, &all))
        hold_against_serial(whole, serial, mesh, zero, LL_OVERLAP_ALL);
}

static void walk(made m, const char *const *meshes)
{
    ll_mesh one;
    ll_placement *alone;
    lockstep serial = {.m = &one, .n_rank = 1, .arena = ll_arena_new()};
    no_error(ll_mesh_parse("", &one));
    no_error(ll_place(m.g, &(ll_place_opts){.mesh = &one}, &alone));
    serial.g = LL_NEW_ARRAY(serial.arena, ll_graph *, 1);
    no_error(ll_partition(alone, 0, &serial.g[0]));
    lockstep_run(&serial, seed, m.limit);
    for (; *meshes; meshes++) {
        int zero = 0;
        char mesh[LL_MESH_TEXT];
        sscanf(*meshes, "%159s %d", mesh, &zero);
        hold_against_serial(&m, &serial, mesh, zero, LL_OVERLAP_NONE);
    }
    ll_graph_free(serial.g[0]);
    ll_placement_free(alone);
    ll_arena_free(serial.arena);
    ll_graph_free(m.g);
}

static void test_mlp(void **state)
{
    (void)state;
    static const char *const meshes[] = {"data=2",
                                         "data=3",
                                         "data=7",
                                         "data=2 1",
                                         "data=3 2",
                                         "data=4 3",
                                         "tensor=2",
                                         "tensor=3",
                                         "data=2,tensor=3",
                                         "data=2,tensor=2 1",
                                         "cols=2",
                                         "rows=2,cols=2",
                                         "rows=2,cols=2,depth=2",
                                         "filter=3",
                                         "channel=2",
                                         "depth=3",
                                         "channel=2,filter=2",
                                         NULL};
    walk(mlp(), meshes);
}

static void test_everyday(void **state)
{
    (void)state;
    static const char *const meshes[] = {"data=2",        "data=4 3",         "tensor=2",
                                         "tensor=3",      "height=2",         "width=3",
                                         "cols=2",        "channel=2",        "filter=3",
                                         "depth=2",       "data=2,height=2",  "data=2,tensor=2 1",
                                         "rows=2,cols=2", "height=2,width=2", NULL};
    walk(everyday(), meshes);
}

static void test_spatial(void **)
{
    static const char *const meshes[] = {"data=2",   "data=4 3", "height=2",         "width=3",
                                         "filter=2", "tensor=2", "height=2,width=2", NULL};
    walk(spatial(), meshes);
}

static void test_recurrent(void **)
{
    static const char *const meshes[] = {"data=2",   "data=4 3",          "sequence=2",
                                         "tensor=2", "data=2,tensor=2 1", NULL};
    walk(recurrent(), meshes);
}

static void test_convs(void **state)
{
    (void)state;
    static const char *const meshes[] = {"data=2",
                                         "data=3 1",
                                         "height=2",
                                         "height=3",
                                         "width=2",
                                         "width=4",
                                         "height=2,width=3",
                                         "data=2,height=2,width=2",
                                         "filter=2",
                                         "channel=3",
                                         "channel=2,filter=2",
                                         "tensor=2",
                                         "data=2,tensor=3 1",
                                         "data=2,height=2 3",
                                         NULL};
    walk(convs(), meshes);
}

static void test_gpt(void **state)
{
    (void)state;
    static const char *const meshes[] = {"data=2",
                                         "data=3 1",
                                         "data=2 3",
                                         "tensor=2",
                                         "tensor=3",
                                         "tensor=4",
                                         "sequence=2",
                                         "sequence=3",
                                         "data=2,tensor=2",
                                         "tensor=6",
                                         "data=3,tensor=2",
                                         "tensor=2,data=2",
                                         "sequence=4",
                                         "sequence=6",
                                         "data=2,sequence=2 1",
                                         "data=2,sequence=3",
                                         "tensor=2,sequence=2",
                                         "tensor=2,sequence=3",
                                         "sequence=2,tensor=2",
                                         "data=2,tensor=2,sequence=2 3",
                                         "data=2,tensor=3 1",
                                         "rows=2,cols=3",
                                         "rows=2,cols=2,depth=2",
                                         NULL};
    walk(gpt(), meshes);
}

/* Gradients from factors that all ranks gather. */
static void test_factors(void **state)
{
    (void)state;
    static const char *const meshes[] = {"data=2", "data=3", "data=2,tensor=2", "tensor=2,data=3",
                                         NULL};
    factors = LL_FACTORS_ALL;
    walk(gpt(), meshes);
    walk(lenet(), meshes + 2); /* where axes meet */
    factors = LL_FACTORS_NONE;
}

static void test_short_gpt(void **state)
{
    (void)state;
    static const char *const meshes[] = {
        "sequence=2",          "sequence=3",          "sequence=5", "sequence=7",
        "tensor=2,sequence=2", "sequence=3,tensor=2", "tensor=3",   "tensor=4",
        "data=3,sequence=2",   "data=3,tensor=2",     NULL};
    walk(short_gpt(), meshes);
}

/* Queries stay cut, keys and values come by: whole, or in panels, with halves swapped. */
static void test_rows(void **state)
{
    (void)state;
    static const char *const meshes[] = {"sequence=2",        "sequence=3",          "sequence=5",
                                         "data=3,sequence=2", "sequence=3,tensor=2", NULL};
    sequence = LL_TURN_ROWS;
    walk(short_gpt(), meshes);
    sequence = LL_TURN_AUTO;
}

static void test_attend(void **state)
{
    (void)state;
    static const char *const meshes[] = {
        "data=2",   "sequence=2",        "sequence=3",          "sequence=4",
        "tensor=2", "data=2,sequence=3", "sequence=2,tensor=2", NULL};
    walk(attending(), meshes);
}

static void test_vocabulary(void **state)
{
    (void)state;
    static const char *const meshes[] = {"tensor=2", "tensor=3",          "tensor=4",
                                         "tensor=8", "data=2,tensor=2 1", NULL};
    walk(wordy_gpt(), meshes);
}

static void test_lenet(void **state)
{
    (void)state;
    static const char *const meshes[] = {"data=3", "height=2,width=2", "tensor=2", "filter=4",
                                         NULL};
    walk(lenet(), meshes);
}

int main(void)
{
    if (getenv("SEED")) seed = strtoull(getenv("SEED"), NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp),       cmocka_unit_test(test_everyday),
        cmocka_unit_test(test_spatial),   cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_convs),     cmocka_unit_test(test_gpt),
        cmocka_unit_test(test_short_gpt), cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_attend),
        cmocka_unit_test(test_lenet),     cmocka_unit_test(test_factors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
