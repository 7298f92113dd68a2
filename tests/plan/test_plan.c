/* Clusters, costs of kernels and collectives, steps of transformers against published ones. */
#include "base/text.h"
#include "plan/published.h"
#include "plan/search.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void bundled_clusters(void **state)
{
    (void)state;
    for (int i = 0; ll_cluster_name(i); i++) {
        LL_OWN(ll_cluster) c = NULL;
        assert_int_equal(ll_cluster_load(ll_cluster_name(i), &c), LL_OK);
        assert_true(ll_chip_peak(&c->chip, LL_PRECISION_f32) > 0);
    }
}

static void refuse(const char *text, const char *message)
{
    ll_cluster *c = NULL;
    assert_int_equal(ll_cluster_parse(text, strlen(text), "x.yaml", &c), LL_E_CONFIG);
    if (!strstr(ll_error_text(), message)) fail_msg("%s", ll_error_text());
}

static void mistakes_in_clusters(void **state)
{
    (void)state;
    refuse("like: dgx-a100\nchip: {memroy: 3}\n", "x.yaml:2: unknown key chip.memroy");
    refuse("like: dgx-a100\nchip:\n  memory: much\n", "x.yaml:3: chip.memory is 'much'");
    refuse("like: dgx-a100\nchip: {gemm: 1.5}\n", "expected a number from 0.001 to 1");
    refuse("like: dgx-a100\nchips: {gemm: 1}\n", "did you mean chip?");
    refuse("like: dgx-a100\nnode: {chips: 2.5}\n", "expected a whole number from 1");
    refuse("like: dgx-a100\nnetwork: {topology: dragonfl}\n", "did you mean dragonfly?");
    refuse("like: ./other.yaml\n", "expected a bundled cluster's name");
    refuse("chip: {memory: 80}\n", "x.yaml: chip.name is not set");
    refuse("like: dgx-a100\nchip: {memory: 1, memory: 2}\n", "already set");
    refuse("like: dgx-a100\nchip: {bandwidth: 0}\n", "from 0.001 to 1e+06 GB/s");
    refuse("like: dgx-a100\nchip: {reserved: 80}\n", "chip.reserved is 80 GB, all of chip.memory");
    refuse("like: dgx-a100\nchip: {bandwidth: 2}\n", "give it in GB/s (2 TB/s is 2000)");
    ll_cluster *c = NULL;
    assert_int_equal(ll_cluster_load("dgx-a101", &c), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "did you mean dgx-a100?"));
}

static void costs(void **state)
{
    (void)state;
    LL_OWN(ll_cluster) c = NULL;
    assert_int_equal(ll_cluster_load("dgx-a100", &c), LL_OK);
    double large = ll_cost_product(&c->chip, LL_PRECISION_bf16, 1, 8192, 8192, 8192);
    double best = 2 * pow(8192, 3) / (1e12 * c->chip.tera[LL_PRECISION_bf16] * c->chip.gemm);
    assert_true(large > best && large < 1.2 * best);
    /* One row more than a wave of tiles takes another one. */
    assert_true(ll_cost_product(&c->chip, LL_PRECISION_bf16, 1, 2049, 4096, 4096) >
                ll_cost_product(&c->chip, LL_PRECISION_bf16, 1, 2048, 4096, 4096));
    /* 8 ranks of a node: 2 x 7/8 of the bytes by the link; over nodes, by the adapters. */
    double sum = ll_cost_allreduce(c, (ll_peers){8, 8}, 1e9);
    assert_true(fabs(sum * 300e9 * c->node.efficiency / (2 * 0.875 * 1e9) - 1) < 0.05);
    assert_true(ll_cost_allreduce(c, (ll_peers){16, 1}, 1e9) > 5 * sum);
    assert_true(ll_cost_beside(&c->chip, 2, 1) > 2 && ll_cost_beside(&c->chip, 2, 1) < 3);
}

/* Sums of little go as far as the farthest node, which on a torus is far. */
static void hops(void **state)
{
    (void)state;
    LL_OWN(ll_cluster) c = NULL;
    assert_int_equal(ll_cluster_load("dgx-a100", &c), LL_OK);
    const ll_peers all = {8 * 1024, 8};
    double tree = ll_cost_allreduce(c, all, 8);
    c->network.topology = "torus";
    double more = 2e-6 * c->network.latency * (32 - 10); /* of 32 x 32; log2 1024 */
    assert_true(fabs((ll_cost_allreduce(c, all, 8) - tree) / more - 1) < 1e-6);
}

/* Where layers are dealt by time, a stage with a large vocabulary's product has fewer. */
static void stages_by_time(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_cluster) c = NULL;
    assert_int_equal(ll_cluster_load("dgx-a100", &c), LL_OK);
    ll_lm m = {24, 1024, 4096, 16, 16, 1024, 250880, .tied = true};
    ll_system evenly = ll_system_loopline;
    evenly.balanced = false;
    ll_how h = {.data = 1, .tensor = 1, .pipe = 4, .context = 1, .virtual_stages = 1};
    h.micro_batch = 1, h.n_micro = 32, h.precision = LL_PRECISION_bf16, h.system = &evenly;
    ll_outcome even, by_time;
    assert_int_equal(ll_lm_step(c, &m, &h, a, false, &even), LL_OK);
    h.system = &ll_system_loopline;
    assert_int_equal(ll_lm_step(c, &m, &h, a, false, &by_time), LL_OK);
    assert_true(by_time.step_s < 0.8 * even.step_s && by_time.bubble < even.bubble);
    /* Without one, and as many layers of each, it makes no difference. */
    m.vocab = 64;
    assert_int_equal(ll_lm_step(c, &m, &h, a, false, &by_time), LL_OK);
    h.system = &evenly;
    assert_int_equal(ll_lm_step(c, &m, &h, a, false, &even), LL_OK);
    assert_true(by_time.step_s == even.step_s);
}

/* Facts of Megatron-LM's Table 1 (SC21), of BigScience's log and of a row without a batch. */
static const char table[] =
    "id,source,ref,arch,model,params_b,layers,hidden,ffn,heads,kv_heads,seq,vocab,gpu,gpu_mem_gb,"
    "peak_tflops,gpus_per_node,intra_gbs,inter_gbps_node,gpus,tp,pp,dp,sharding,micro_batch,"
    "grad_accum,global_batch,recompute,precision,schedule,iter_time_s,pct_peak,mem_kind\n"
    "43,Megatron-LM SC21,Table 1,dense,GPT 1008B,1008,128,25600,102400,160,160,2048,51200,"
    "A100-SXM4-80GB,80,312,8,300,1600,3072,8,64,6,none,,,3072,full,bf16,interleaved 1F1B,102.63,52,"
    "\n"
    "36,Megatron-LM SC21,Table 1,dense,GPT 7.5B,7.5,36,4096,16384,32,32,2048,51200,"
    "A100-SXM4-80GB,80,312,8,300,1600,128,4,1,32,none,,,512,full,bf16,,3.696,46,\n"
    "880,BigScience log,x.md line 9,dense,GPT 181B,181,72,14336,57344,64,64,2048,250880,"
    "A100-SXM4-80GB,80,312,8,300,400,384,8,1,48,zero1,1,42,2016,full,fp16,1F1B,,,OOM on 80 GB\n"
    "9,nobody,,dense,GPT,1,24,2048,8192,16,16,2048,51200,A100,80,312,8,,,8,1,1,8,,,,,,bf16,,1,,\n";

static ll_published *rows_of(ll_arena *a, const char *text, int *n)
{
    ll_published *r;
    assert_int_equal(ll_published_read(text, strlen(text), "t.csv", NULL, 0, NULL, a, &r, n),
                     LL_OK);
    return r;
}

static ll_published *all_predicted(ll_arena *a, const char *text)
{
    int n;
    ll_published *r = rows_of(a, text, &n);
    for (int i = 0; i < n; i++)
        if (r[i].why) fail_msg("row %d: %s", i, r[i].why);
    return r;
}

static void published_rows(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    int n;
    ll_published *r = rows_of(a, table, &n);
    assert_int_equal(n, 4);
    for (int i = 0; i < 2; i++) {
        assert_null(r[i].why);
        assert_true(fabs(r[i].predicted / r[i].measured - 1) < 0.1);
        assert_true(r[i].low < r[i].predicted && r[i].predicted < r[i].high);
        assert_false(r[i].flagged);
        assert_false(r[i].held_out);
    }
    assert_true(r[2].out_of_memory && r[2].flagged);
    assert_non_null(strstr(r[3].why, "batch is not given"));
    ll_account all = ll_published_account(r, n, NULL);
    assert_int_equal(all.rows, 4); /* one has no batch, and one no time */
    assert_int_equal(all.predicted, 3);
    assert_int_equal(all.compared, 2);
    assert_int_equal(all.held_out, 0);
    assert_int_equal(all.flagged, 1);
    assert_true(all.tau == 1 && all.error < 0.1);
    ll_err rc = ll_published_read("a,b\n1,2\n", 8, "t.csv", NULL, 0, NULL, a, &r, &n);
    assert_int_equal(rc, LL_E_CONFIG);
}

/* The row of 7.5 billion parameters with one cell changed. */
static ll_published changed(ll_arena *a, const char *column, const char *value)
{
    static const char *const cells[][2] = {{"source", "x"},       {"arch", "dense"},
                                           {"model", "GPT"},      {"layers", "36"},
                                           {"hidden", "4096"},    {"heads", "32"},
                                           {"seq", "2048"},       {"gpu", "A100-SXM4"},
                                           {"gpus", "128"},       {"tp", "4"},
                                           {"sharding", "none"},  {"micro_batch", ""},
                                           {"schedule", ""},      {"recompute", "full"},
                                           {"precision", "bf16"}, {"iter_time_s", "3.7"},
                                           {"mem_gb", "40"},      {"global_batch", "512"}};
    ll_buf head = {.arena = a}, row = {.arena = a};
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
        bool it = !strcmp(cells[i][0], column);
        ll_buf_printf(&head, "%s%s", i ? "," : "", cells[i][0]);
        ll_buf_printf(&row, "%s%s", i ? "," : "", it ? value : cells[i][1]);
    }
    const char *text = ll_arena_printf(a, "%s\n%s\n", head.text, row.text);
    int n;
    return rows_of(a, text, &n)[0];
}

static void bad_cells(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"layers", "12abc"},
                                         {"layers", "twelve"},
                                         {"layers", "-4"},
                                         {"layers", "nan"},
                                         {"layers", "2.5"},
                                         {"hidden", "1e308"},
                                         {"tp", "0"},
                                         {"micro_batch", "0"},
                                         {"precision", "bf17"},
                                         {"schedule", "later"},
                                         {"recompute", "maybe"},
                                         {"arch", "sparse"},
                                         {"sharding", "zero9"},
                                         {"sharding", "zero3 FSDP=many"}};
    static const char *const good[][2] = {{"precision", "fp16/bf16 mixed"},
                                          {"precision", "amp_bf16 (DEFAULT)"},
                                          {"schedule", "interleaved 1F1B + scatter/gather"},
                                          {"sharding", "zero1 (distributed optimizer)"},
                                          {"sharding", "ZeRO3 FSDP=16 x DP=2"},
                                          {"sharding", "ZeRO-1"},
                                          {"sharding", "FSDP"},
                                          {"schedule", "interleaved-1F1B"},
                                          {"layers", "36.0"}};
    static const char *const unmeasured[] = {"0", "-3", "1e308", "inf", "soon"};
    LL_OWN(ll_arena) a = ll_arena_new();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ll_published r = changed(a, bad[i][0], bad[i][1]);
        const char *want = ll_arena_printf(a, "column %s is '%s'", bad[i][0], bad[i][1]);
        assert_true(isnan(r.predicted));
        if (!strstr(r.why, want)) fail_msg("%s: %s", want, r.why);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ll_published r = changed(a, good[i][0], good[i][1]);
        if (r.why) fail_msg("%s: %s", good[i][1], r.why);
    }
    for (size_t i = 0; i < sizeof unmeasured / sizeof *unmeasured; i++) {
        ll_published r = changed(a, "iter_time_s", unmeasured[i]);
        assert_true(r.predicted > 0 && isnan(r.measured) && r.memory == 40);
        assert_non_null(strstr(r.why, "no measurement"));
        r = changed(a, "mem_gb", unmeasured[i]);
        assert_true(r.measured == 3.7 && isnan(r.memory) && r.why);
    }
    assert_non_null(strstr(changed(a, "precision", "fp8").why, "no matrix products in fp8"));
    double plain = changed(a, "source", "x").predicted;
    assert_true(changed(a, "precision", "bf16 (no fp8)").predicted == plain);
    assert_true(changed(a, "source", "MT-NLG").predicted > plain); /* DeepSpeed's waits */
    assert_true(changed(a, "source", "MegaScale").predicted < plain);
    assert_true(changed(a, "model", "GPT (Megatron-LM)").predicted == plain);
    assert_true(changed(a, "sharding", "FSDP").predicted ==
                changed(a, "sharding", "zero-3").predicted);
    ll_published *r;
    int n;
    assert_int_equal(
        ll_published_read("gpu,gpus,gpu\n1,2,3\n", 19, "t.csv", NULL, 0, NULL, a, &r, &n),
        LL_E_CONFIG);
    assert_non_null(strstr(ll_error_text(), "columns 1 and 3 are both named gpu"));
}

/* 175 billion parameters on 64 chips: the best plan fits, no plan that fits is quicker, what is
 * asked for is kept, and more memory never makes it slower. */
static void what_is_made_again(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_cluster) c = NULL;
    assert_int_equal(ll_cluster_load("dgx-a100", &c), LL_OK);
    ll_lm m = {48, 4096, 16384, 32, 8, 2048, 51200, .tied = true};
    ll_outcome o[LL_REMAKE_FULL + 1];
    for (ll_remake r = LL_REMAKE_NONE; r <= LL_REMAKE_FULL; r++) {
        ll_how h = {.data = 8,
                    .tensor = 1,
                    .pipe = 1,
                    .context = 1,
                    .virtual_stages = 1,
                    .zero = 3,
                    .micro_batch = 4,
                    .n_micro = 1,
                    .remake = r,
                    .precision = LL_PRECISION_bf16,
                    .system = &ll_system_loopline};
        assert_int_equal(ll_lm_step(c, &m, &h, a, false, &o[r]), LL_OK);
    }
    for (int r = LL_REMAKE_FFN; r <= LL_REMAKE_FULL; r++) {
        assert_true(o[r].step_s > o[r - 1].step_s);
        assert_true(o[r].bytes.activations < o[r - 1].bytes.activations);
    }
}

/* Dropout streams what it drops from, and holds some of it; masks are drawn anew. */
static void drops(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_cluster) c = NULL;
    assert_int_equal(ll_cluster_load("h200", &c), LL_OK);
    ll_lm m = {.layers = 4,
               .width = 512,
               .ffn = 2048,
               .heads = 8,
               .kv_heads = 8,
               .seq = 512,
               .vocab = 1000};
    ll_how h = {.data = 1,
                .tensor = 1,
                .pipe = 1,
                .context = 1,
                .virtual_stages = 1,
                .micro_batch = 8,
                .n_micro = 1,
                .precision = LL_PRECISION_bf16,
                .system = &ll_system_loopline};
    ll_outcome o[2];
    for (int k = 0; k < 2; k++) {
        m.dropout = k;
        assert_int_equal(ll_lm_step(c, &m, &h, a, false, &o[k]), LL_OK);
    }
    assert_true(o[1].step_s > o[0].step_s && o[1].step_s < 1.2 * o[0].step_s);
    assert_true(ll_lm_bytes_sum(&o[1].bytes) > ll_lm_bytes_sum(&o[0].bytes));
}

/* Between stages every rank along tensor sends its part, whatever system it is. */
static void messages_in_parts(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_cluster) c = NULL;
    assert_int_equal(ll_cluster_load("dgx-a100", &c), LL_OK);
    ll_lm m = {8, 1024, 4096, 16, 16, 512, 1000};
    for (int blocking = 0; blocking < 2; blocking++) {
        ll_system y = ll_system_loopline;
        y.blocking = blocking;
        ll_how h = {.data = 1,
                    .tensor = 1,
                    .pipe = 2,
                    .context = 1,
                    .virtual_stages = 1,
                    .micro_batch = 2,
                    .n_micro = 4,
                    .precision = LL_PRECISION_bf16,
                    .system = &y};
        ll_outcome o[2];
        assert_int_equal(ll_lm_step(c, &m, &h, a, false, &o[0]), LL_OK);
        h.tensor = 4;
        assert_int_equal(ll_lm_step(c, &m, &h, a, false, &o[1]), LL_OK);
        assert_true(o[0].moved > 0 && fabs(o[0].moved / o[1].moved - 4) < 1e-9);
    }
}

/* What fits no chip otherwise has the optimizer's state in the host's memory. */
static void offload(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_cluster) c = NULL;
    ll_found f;
    ll_lm m = {32, 4096, 16384, 32, 32, 1024, 51200, .tied = true};
    assert_int_equal(ll_cluster_load("dgx-a100", &c), LL_OK);
    ll_search s = {.cluster = c,
                   .model = &m,
                   .system = &ll_system_loopline,
                   .precision = LL_PRECISION_bf16,
                   .ranks = 1,
                   .batch = 8,
                   .zero = -1,
                   .remake = -1};
    assert_int_equal(ll_plan_search(&s, a, &f), LL_OK);
    assert_true(f.best[0].fits && f.best[0].how.offload && f.best[0].out.bytes.optimizer == 0);
    ll_how h = f.best[0].how;
    ll_outcome o;
    h.offload = false;
    assert_int_equal(ll_lm_step(c, &m, &h, a, false, &o), LL_OK);
    assert_true(o.step_s < f.best[0].out.step_s && ll_lm_bytes_sum(&o.bytes) > 80e9);
}

/* Hosts of a node, whose links go from host to host, and systems whose names are parts of words. */
static void hosts_of_a_node(void **state)
{
    static const char rows[] =
        "id,source,model,layers,hidden,heads,seq,vocab,gpu,gpus,gpus_per_node,tp,pp,dp,micro_batch,"
        "global_batch,precision,sharding,iter_time_s\n"
        "1,x,GPT,96,18432,96,4096,256000,GB200,128,4,8,4,4,1,32,bf16,zero1,1\n"
        "2,x,GPT,96,18432,96,4096,256000,GB200,128,72,8,4,4,1,32,bf16,zero1,1\n"
        "3,x,GPT,96,18432,96,4096,256000,H100,256,4,8,8,4,1,64,bf16,zero1,1\n"
        "4,x,GPT,96,18432,96,4096,256000,H100,256,8,8,8,4,1,64,bf16,zero1,1\n"
        "5,Benchmarking v25,Nemotron,32,6144,48,4096,256000,H100,16,8,2,1,8,2,64,bf16,zero1,1\n"
        "6,Benchmarking v25,NeMo,32,6144,48,4096,256000,H100,16,8,2,1,8,2,64,bf16,zero1,1\n";
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_published *r = all_predicted(a, rows);
    assert_true(r[0].predicted == r[1].predicted);
    assert_true(r[2].predicted > r[3].predicted);
    assert_true(r[4].predicted_memory < r[5].predicted_memory); /* gradients of two bytes */
}

/* Heads that a row leaves out, stages of what is left over, days on which a machine was slower. */
static void facts_of_sources(void **state)
{
    static const char rows[] =
        "id,source,model,layers,hidden,heads,seq,vocab,gpu,gpus,tp,pp,dp,micro_batch,global_batch,"
        "recompute,precision,sharding,notes,iter_time_s\n"
        "1,BigScience,GPT,78,13824,96,2048,250880,A100,384,4,12,8,2,2048,full,fp16,zero1,"
        "after PCIe/NUMA fix,1\n"
        "2,BigScience,GPT,78,13824,,2048,250880,A100,384,4,12,8,2,2048,full,fp16,zero1,"
        "after PCIe/NUMA fix,1\n"
        "3,BigScience,GPT,78,13824,96,2048,250880,A100,384,4,12,8,2,2048,full,fp16,zero1,,1\n"
        "4,BigScience,GPT,84,13824,96,2048,250880,A100,384,4,12,8,2,2048,full,fp16,zero1,"
        "after PCIe/NUMA fix,1\n"
        "5,x,Llama MaxText,80,8192,64,4096,32000,H100,64,1,1,64,2,128,none,bf16,zero3,,1\n"
        "6,x,Llama MaxText,80,8192,64,4096,32000,H100,64,1,1,64,2,128,,bf16,zero3,,1\n"
        "7,x,Llama MaxText,80,8192,64,4096,32000,H100,64,1,1,64,2,128,full,bf16,zero3,,1\n";
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_published *r = all_predicted(a, rows);
    assert_true(r[0].predicted == r[1].predicted);
    assert_true(fabs(r[2].predicted / r[0].predicted - 1.057) < 1e-9);
    /* 7 layers and a last one: as 7 in each stage, but for the head, which is in the last. */
    assert_true(r[0].predicted < r[3].predicted && r[0].predicted > 0.8 * r[3].predicted);
    /* What a row does not say that it made again is the least that fits. */
    assert_true(r[4].flagged && !r[5].flagged && !r[6].flagged);
    assert_true(r[4].predicted < r[5].predicted && r[5].predicted <= r[6].predicted);
}

static ll_err image_step(const char *model, const ll_cluster *c, ll_precision p, int samples,
                         bool fused, double *seconds, double *bytes, double *gradients)
{
    (void)model, (void)fused;
    *seconds = samples * 1e12 / ll_chip_peak(&c->chip, p);
    *bytes = *gradients = 1e9;
    return LL_OK;
}

/* A chip without products of a row's precision predicts nothing of images either. */
static void images(void **state)
{
    static const char rows[] = "id,source,arch,model,gpu,gpus,micro_batch,precision,iter_time_s\n"
                               "1,x,cnn,ResNet-50,V100,8,64,tf32,1\n"
                               "2,x,cnn,ResNet-50,V100,8,64,fp16,1\n"
                               "3,x,cnn,ResNet-50,A100,8,64,tf32,1\n";
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_published *r;
    int n;
    assert_int_equal(ll_published_read(rows, strlen(rows), "t.csv", NULL, 0, image_step, a, &r, &n),
                     LL_OK);
    assert_non_null(r[0].why);
    assert_non_null(strstr(r[0].why, "no matrix products in tf32"));
    assert_true(isnan(r[0].predicted));
    assert_true(!r[1].why && !r[2].why && r[1].predicted > 0 && r[2].predicted > 0);
}

static void searches(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_cluster) c = NULL;
    ll_lm m = {96, 12288, 49152, 96, 96, 2048, 51200, .tied = true};
    ll_found f, one, large;
    assert_int_equal(ll_cluster_load("dgx-a100", &c), LL_OK);
    ll_search s = {
        .cluster = c, .model = &m, .system = &ll_system_loopline, .precision = LL_PRECISION_bf16};
    s.ranks = 64, s.batch = 128, s.zero = s.remake = -1;
    assert_int_equal(ll_plan_search(&s, a, &f), LL_OK);
    assert_true(f.best[0].fits);
    assert_true(ll_lm_bytes_sum(&f.best[0].out.bytes) <= 80e9);
    for (int i = 1; i < f.n; i++)
        assert_true(!f.best[i].fits || f.best[i].out.step_s >= f.best[0].out.step_s);
    for (int i = 1; i < f.n; i++) /* of a mesh and a schedule no two that take as long */
        for (int k = 0; k < i; k++) {
            const ll_how *x = &f.best[i].how, *y = &f.best[k].how;
            assert_true(x->tensor != y->tensor || x->pipe != y->pipe || x->data != y->data ||
                        x->schedule != y->schedule || x->virtual_stages != y->virtual_stages ||
                        f.best[i].fits != f.best[k].fits ||
                        fabs(f.best[i].out.step_s / f.best[k].out.step_s - 1) > 0.005);
        }
    for (int i = 0; i < f.n; i += 1 + f.n / 200) { /* what is known of others changes nothing */
        ll_outcome o;
        assert_int_equal(ll_lm_step(c, &m, &f.best[i].how, a, false, &o), LL_OK);
        assert_true(o.step_s == f.best[i].out.step_s && o.moved == f.best[i].out.moved);
        assert_true(ll_lm_bytes_sum(&o.bytes) == ll_lm_bytes_sum(&f.best[i].out.bytes));
    }
    char mesh[LL_HOW_TEXT];
    s.tensor = 8, s.pipe = 4, s.data = 2, s.context = 1;
    assert_int_equal(ll_plan_search(&s, a, &one), LL_OK);
    assert_string_equal(ll_how_mesh(&one.best[0].how, mesh), "data=2,tensor=8,pipe=4");
    assert_true(one.best[0].out.step_s >= f.best[0].out.step_s);
    s.tensor = s.pipe = s.data = s.context = 0;
    c->chip.memory = 160;
    assert_int_equal(ll_plan_search(&s, a, &large), LL_OK);
    assert_true(large.best[0].out.step_s <= f.best[0].out.step_s);
    s.ranks = 7, s.batch = 8;
    assert_int_equal(ll_plan_search(&s, a, &f), LL_OK); /* a pipeline of 7 */
    assert_true(f.best[0].how.pipe == 7);
    /* Failures: with none, nothing is lost but checkpoints. */
    ll_training t = ll_train_cost(c, 64, 10, 1000, 1e12);
    c->cost.mtbf = 1e9;
    ll_training safe = ll_train_cost(c, 64, 10, 1000, 1e12);
    assert_true(t.goodput < safe.goodput && safe.goodput < 1 && t.hours > safe.hours);
    assert_true(fabs(safe.hours * safe.goodput * 3600 - 10000) < 1);
}

/* Every micro-batch that divides a rank's share can be asked for, and none is quicker than what was
 * found without. */
static void micro_batches(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_cluster) c = NULL;
    ll_lm m = {12, 768, 3072, 12, 12, 1024, 50304, .tied = true};
    ll_found f, one;
    assert_int_equal(ll_cluster_load("dgx-a100", &c), LL_OK);
    for (int share = 1; share <= 130; share++) {
        ll_search s = {.cluster = c,
                       .model = &m,
                       .system = &ll_system_loopline,
                       .precision = LL_PRECISION_bf16};
        s.ranks = s.data = 8, s.batch = 8 * share, s.zero = s.remake = -1;
        assert_int_equal(ll_plan_search(&s, a, &f), LL_OK);
        for (int micro = 1; micro <= share; micro++) {
            if (share % micro || (micro > 64 && micro < share)) continue;
            s.micro_batch = micro;
            if (ll_plan_search(&s, a, &one) != LL_OK)
                fail_msg("%d of %d samples are not tried", micro, share);
            assert_true(one.best[0].how.micro_batch == micro);
            assert_true(one.best[0].how.n_micro == share / micro);
            if (one.best[0].fits) assert_true(f.best[0].out.step_s <= one.best[0].out.step_s);
        }
    }
}

/* ZeRO cuts over data alone, and what axis sequence exchanges is told apart. */
static void over_sequence(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_cluster) c = NULL;
    ll_lm m = {12, 768, 3072, 12, 12, 1024, 50304, .tied = true};
    ll_how h = {.data = 4, .tensor = 1, .pipe = 1, .context = 4, .zero = 2, .n_micro = 1};
    ll_outcome out, slow;
    ll_found f;
    assert_int_equal(ll_cluster_load("dgx-a100", &c), LL_OK);
    h.micro_batch = 8, h.precision = LL_PRECISION_bf16, h.system = &ll_system_loopline;
    assert_int_equal(ll_lm_step(c, &m, &h, a, false, &out), LL_OK);
    double params = 12 * (4.0 * 768 * 768 + 2.0 * 768 * 3072) + 50304 * 768;
    assert_true(fabs(out.bytes.optimizer - 8 * params / 4) < 1);
    ll_search s = {
        .cluster = c, .model = &m, .system = &ll_system_loopline, .precision = LL_PRECISION_bf16};
    s.ranks = 7, s.batch = 7, s.zero = s.remake = -1;
    s.data = s.tensor = s.pipe = 1, s.context = 7;
    m.seq = 1022;
    assert_int_equal(ll_plan_search(&s, a, &f), LL_OK);
    for (int i = 0; i < f.n; i++) assert_int_equal(f.best[i].how.zero, 0);
    c->node.link /= 100;
    assert_int_equal(ll_lm_step(c, &m, &h, a, false, &slow), LL_OK);
    assert_true(slow.tensor_s > 0.5 * slow.step_s && out.tensor_s < 0.5 * out.step_s);
    assert_string_equal(ll_outcome_bound(&slow), "exchanges over axes tensor and sequence");
}

/* Steps of ours on an H200, as docs/performance.md has them. */
static void own_kernels(void **state)
{
    static const struct {
        ll_lm m;
        double batch, measured_s;
        ll_precision precision;
    } runs[] = {
        {{12, 768, 3072, 12, 12, 1024, 50304, .tied = true}, 64, 98.9e-3, LL_PRECISION_bf16},
        {{24, 1024, 4096, 16, 16, 1024, 50304, .tied = true}, 16, 71.5e-3, LL_PRECISION_bf16},
        {{48, 1600, 6400, 25, 25, 1024, 50304, .tied = true}, 16, 290e-3, LL_PRECISION_bf16},
        {{48, 1600, 6400, 25, 25, 1024, 50304, .tied = true}, 16, 214.5e-3, LL_PRECISION_fp8},
        {{12, 768, 3072, 12, 12, 1024, 50304, .tied = true}, 64, 118.9e-3, LL_PRECISION_fp8block},
        {{48, 1600, 6400, 25, 25, 1024, 50304, .tied = true}, 16, 297.8e-3, LL_PRECISION_fp8block},
        {{12, 768, 3072, 12, 12, 8192, 50304, .tied = true}, 8, 170.2e-3, LL_PRECISION_bf16},
        {{12, 768, 3072, 6, 6, 8192, 50304, .tied = true}, 8, 154.6e-3, LL_PRECISION_bf16},
        {{30, 576, 1536, 9, 3, 2048, 49152, true, true}, 8, 46.6e-3, LL_PRECISION_bf16},
        {{12, 2048, 5632, 16, 4, 4096, 32000, true, true}, 4, 131.9e-3, LL_PRECISION_bf16},
    };
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_cluster) c = NULL;
    assert_int_equal(ll_cluster_load("h200", &c), LL_OK);
    const ll_cluster own = ll_cluster_own(c);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        ll_how h = {.data = 1, .tensor = 1, .pipe = 1, .context = 1, .n_micro = 1};
        h.micro_batch = runs[i].batch;
        h.precision = runs[i].precision;
        h.system = &ll_system_loopline;
        ll_outcome ours, theirs;
        assert_int_equal(ll_lm_step(&own, &runs[i].m, &h, a, false, &ours), LL_OK);
        assert_int_equal(ll_lm_step(c, &runs[i].m, &h, a, false, &theirs), LL_OK);
        double error = ours.step_s / runs[i].measured_s - 1;
        if (fabs(error) > 0.07) fail_msg("run %zu is predicted %+.1f %%", i, 100 * error);
        if (runs[i].precision != LL_PRECISION_fp8block) /* which others have not */
            assert_true(theirs.step_s > 1.1 * ours.step_s);
    }
}

static double own_gemm(const char *text)
{
    LL_OWN(ll_cluster) c = NULL;
    assert_int_equal(ll_cluster_parse(text, strlen(text), "x.yaml", &c), LL_OK);
    return ll_cluster_own(c).chip.gemm / c->chip.gemm;
}

/* What was measured goes with the chip, wherever in the file that stands. */
static void own_of_chips(void **state)
{
    (void)state;
    assert_true(own_gemm("like: h200\nnode: {chips: 4}\n") > 1);
    assert_true(own_gemm("like: h200\nchip: {name: H300}\n") == 1);
    assert_true(
        own_gemm("own: {source: it, gemm: 0.9}\nlike: h200\nchip: {name: H300, gemm: 0.5}\n") ==
        1.8);
    assert_true(own_gemm("like: dgx-a100\n") == 1);
    refuse("like: h200\nown: {gemm: 2}\n", "x.yaml:2: own.gemm is '2'");
    refuse("like: h200\nown: {gemm_k: 0}\n", "own.gemm_k is '0'");
    refuse("like: dgx-a100\nown: {gemm: 0.5}\n", "own.gemm is set without own.source");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundled_clusters),
        cmocka_unit_test(mistakes_in_clusters),
        cmocka_unit_test(costs),
        cmocka_unit_test(hops),
        cmocka_unit_test(stages_by_time),
        cmocka_unit_test(published_rows),
        cmocka_unit_test(bad_cells),
        cmocka_unit_test(what_is_made_again),
        cmocka_unit_test(drops),
        cmocka_unit_test(messages_in_parts),
        cmocka_unit_test(offload),
        cmocka_unit_test(facts_of_sources),
        cmocka_unit_test(hosts_of_a_node),
        cmocka_unit_test(images),
        cmocka_unit_test(searches),
        cmocka_unit_test(micro_batches),
        cmocka_unit_test(over_sequence),
        cmocka_unit_test(own_kernels),
        cmocka_unit_test(own_of_chips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
