/* Run files: reading, overriding, checking, printing; and every mistake's message. */
#include "run/run_models.h"
#include "base/err.h"
#include "base/file.h"
#include "ir/ir.h"
#include "tmpdir.h"
#include "run/run_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static ll_run *parse(const char *text)
{
    ll_run *r;
    if (ll_run_parse(text, strlen(text), "x.yaml", &r) != LL_OK) fail_msg("%s", ll_error_text());
    return r;
}

static ll_run *finished(const char *text)
{
    ll_run *r = parse(text);
    if (ll_run_finish(r) != LL_OK) fail_msg("%s", ll_error_text());
    return r;
}

/* Reading or finishing text must fail, with each of the words in the message. */
static void rejects(const char *text, const char *words[3])
{
    ll_run *r = NULL;
    ll_err e = ll_run_parse(text, strlen(text), "x.yaml", &r);
    if (e == LL_OK) e = ll_run_finish(r);
    if (e == LL_OK) fail_msg("accepted: %s", text);
    assert_int_equal(e, LL_E_CONFIG);
    assert_null(strchr(ll_error_message(), '\n'));
    for (int i = 0; i < 3 && words[i]; i++)
        if (!strstr(ll_error_message(), words[i]))
            fail_msg("%s\n says: %s\n without: %s", text, ll_error_message(), words[i]);
    ll_run_free(r);
}

static void reads_every_kind(void **state)
{
    (void)state;
    ll_run *r = finished("model: {name: picture, classes: 7}\n"
                         "data: {path: some/where, format: idx, flip: true, crop: 4}\n"
                         "train:\n"
                         "  batch: 32\n"
                         "  micro_batch: 8\n"
                         "  lr: 3e-4 # a comment\n"
                         "  optimizer: lamb\n"
                         "  schedule: step\n"
                         "  milestones: [0.5, 900]\n"
                         "out: \"a \\\"b\\\"\"\n");
    assert_ptr_equal(r->model.def, &picture);
    assert_string_equal(r->model.sizes[0].name, "height");
    assert_int_equal(r->model.sizes[0].value, 28);
    assert_int_equal(r->model.sizes[1].value, 7);
    assert_string_equal(r->data.path, "some/where");
    assert_string_equal(r->data.format, "idx");
    assert_string_equal(r->data.name, "");
    assert_true(r->data.flip);
    assert_int_equal(r->data.crop, 4);
    assert_int_equal(r->train.batch, 32);
    assert_int_equal(ll_run_micro_batches(r), 4);
    assert_true(r->train.schedule.lr == 3e-4);
    assert_string_equal(r->train.optim.name, "lamb");
    assert_int_equal(r->train.schedule.milestones.n, 2);
    assert_true(r->train.schedule.milestones.v[1] == 900);
    assert_string_equal(r->out, "a \"b\"");
    assert_int_equal(r->train.precision, LL_PRECISION_f32); /* defaults */
    assert_int_equal(r->train.keep, 2);
    ll_run_free(r);
}

static void defaults_follow_the_model(void **state)
{
    (void)state;
    ll_run *r = finished("model: {name: sentence}");
    assert_string_equal(r->data.name, "kjv");
    assert_string_equal(r->out, "runs/x");
    ll_run_free(r);
    r = finished("model: {name: picture}\ntrain:\ndata: ~\n");
    assert_string_equal(r->data.name, "fashion-mnist");
    ll_run_free(r);
    r = parse("");
    assert_string_equal(r->model.name, "");
    ll_run_free(r);
}

static void set_overrides(void **state)
{
    (void)state;
    ll_run *r = parse("model: {name: picture}\ntrain: {batch: 64}\n");
    const char *good[] = {
        "train.batch=128",     "train.batch=96",         "model.height=32",       "model.height=64",
        "train.schedule=step", "train.milestones=10,20", "train.milestones=[30]", "out=a=b"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (ll_run_set(r, good[i]) != LL_OK) fail_msg("%s", ll_error_text());
    assert_int_equal(ll_run_finish(r), LL_OK);
    assert_int_equal(r->train.batch, 96);
    assert_int_equal(r->model.sizes[0].value, 64);
    assert_int_equal(r->train.schedule.milestones.n, 1);
    assert_true(r->train.schedule.milestones.v[0] == 30);
    assert_string_equal(r->out, "a=b");

    static const struct {
        const char *set, *says;
    } bad[] = {
        {"train.bacth=4",
         "--set train.bacth=4: unknown key 'train.bacth'; did you mean train.batch?"},
        {"batch=4", "did you mean train.batch?"},
        {"train.batch", "expected key=value"},
        {"=4", "expected key=value"},
        {"train.batch=4.5", "train.batch is '4.5', expected a whole number from 1 to 1000000000"},
        {"train.batch=", "expected a whole number"},
        {"train=4", "unknown key 'train'"},
        {"out=a\nb", "control characters"},
        {"out=\xff", "not UTF-8"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ll_run_set(r, bad[i].set), LL_E_CONFIG);
        if (!strstr(ll_error_message(), bad[i].says))
            fail_msg("says: %s, without: %s", ll_error_message(), bad[i].says);
    }
    assert_int_equal(r->train.batch, 96);
    ll_run_free(r);
}

static void set_that_breaks_is_named(void **state)
{
    (void)state;
    ll_run *r = parse("model: {name: picture}\ntrain: {batch: 64}\n");
    assert_int_equal(ll_run_set(r, "train.micro_batch=7"), LL_OK);
    assert_int_equal(ll_run_finish(r), LL_E_CONFIG);
    assert_string_equal(
        ll_error_message(),
        "--set train.micro_batch=7: train.micro_batch=7 does not divide train.batch=64");
    ll_run_free(r);
}

static const struct {
    const char *text, *words[3];
} mistakes[] = {
    /* keys */
    {"train:\n  batch: 4\n  bacth: 4\n", {"x.yaml:3", "train.bacth", "train.batch?"}},
    {"trian: {batch: 4}", {"x.yaml:1", "'trian' is not a section", "did you mean train?"}},
    {"\n\nplan: 4", {"x.yaml:3: unknown key 'plan'"}},
    {"plan: {mesh: 1}", {"'plan' is not a section"}},
    {"parallel: {zero: 4}",
     {"x.yaml:1: parallel.zero is '4', expected a whole number from 0 to 3"}},
    {"parallel: {messh: a}", {"x.yaml:1", "did you mean parallel.mesh?"}},
    {"data: {batch: 4}", {"data.batch", "did you mean train.batch?"}},
    {"model: {name: sentence,\n layer: 3}", {"x.yaml:2", "layer", "did you mean layers?"}},
    {"model: {name: sentense}", {"x.yaml:1", "sentense", "did you mean sentence?"}},
    {"model: {name: 5}", {"models: picture sentence"}},
    {"train: {seed: 1, batch: 3,\n seed: 2}", {"x.yaml:2: train.seed was already set at", ":1"}},
    {"model: {name: picture, height: 1, height: 2}", {"model.height was already set"}},
    {"train: {seed: 1}\nmodel: {name: picture}\ntrain: {batch: 1}", {"x.yaml:3", "second time"}},
    /* types */
    {"train: {batch: many}", {"x.yaml:1", "train.batch is 'many'", "whole number"}},
    {"train: {batch: 1e3}", {"'1e3'", "whole number"}},
    {"train: {batch: [1, 2]}", {"train.batch is a list, '1,2', expected a whole number"}},
    {"\xef\xbb\xbftrain: {batch: 0}", {"x.yaml:1: train.batch is '0'"}}, /* a mark of UTF-8 */
    {"train: {batch: {a: 1}}", {"train.batch has keys below it"}},
    {"train: {lr: 0x10}", {"train.lr is '0x10', expected a number above 0, at most 1e+06"}},
    {"train: {lr: nan}", {"'nan'"}},
    {"train: {offload: /tmp}\nmodel: {name: picture}",
     {"x.yaml:1: train.offload needs train.memory"}},
    {"train: {memory: 1MB, offload: host}\nmodel: {name: picture}",
     {"x.yaml:1: train.offload is host", "machine cpu", "name a folder (./host"}},
    {"train: {memory: 1MB, offload: host, machine: ref}\nmodel: {name: picture}",
     {"machine ref", "name a folder"}},
    {"train: {memory: 1MB, machine: cuda, offload: /tmp}\nmodel: {name: picture}",
     {"x.yaml:1: train.offload is /tmp", "pinned host memory, not to files", "use host"}},
    {"train: {lr: inf}", {"'inf'"}},
    {"train: {lr: 1e999}", {"'1e999'"}},
    {"train: {lr: }", {"train.lr is ''"}},
    {"data: {flip: 1}", {"data.flip is '1', expected true or false"}},
    {"train: {milestones: 5x}", {"'5x', expected a list of numbers"}},
    {"train: {milestones: [[1]]}", {"a list inside train.milestones"}},
    {"train: {milestones: [1,2,3,4,5,6,7,8,9]}", {"more than 8 numbers"}},
    {"train: {optimizer: adma}", {"'adma'; did you mean adam?", "lamb"}},
    {"train: {optimizer: zzzzzzz}", {"expected one of: sgd"}},
    {"model: {name: picture, height: tall}", {"x.yaml:1: model.height is 'tall'"}},
    {"model: {name: picture, height: [1]}", {"model.height is a list"}},
    {"train: 5", {"x.yaml:1: train needs keys below it"}},
    {"just words", {"x.yaml:1: expected sections"}},
    {"- a\n- b", {"expected sections"}},
    {"? [a]\n: b", {"must be a word"}},
    {"train: {[a]: b}", {"must be a word"}},
    {"train: {\"sched\\0ule\": step}", {"zero byte"}},
    /* ranges */
    {"train: {batch: 0}", {"train.batch is '0', expected a whole number from 1"}},
    {"train: {batch: -3}", {"'-3'"}},
    {"train: {batch: 99999999999999999999}", {"whole number"}},
    {"train: {lr: 0}", {"train.lr is '0', expected a number above 0"}},
    {"train: {lr: -1}", {"'-1'"}},
    {"train: {beta1: 1}", {"train.beta1 is '1', expected a number from 0 to 0.9999999"}},
    {"train: {seed: 1000000000000001}", {"a whole number from 0 to 1000000000000000"}},
    {"train: {lr: 1e-40}", {"train.lr is '1e-40', which f32 rounds to 0", "1.2e-38"}},
    {"train: {clip: 1e-400}", {"which f32 rounds to 0"}},
    {"train: {learningrate: 1}", {"did you mean train.lr?"}},
    {"train: {batchsize: 3}", {"did you mean train.batch?"}},
    {"data: {val_fraction: 0.95}", {"0.9"}},
    {"model: {name: picture, height: -1}", {"model.height is '-1'"}},
    /* several keys */
    {"model: {name: picture}\ntrain: {batch: 10,\n micro_batch: 4}",
     {"x.yaml:3: train.micro_batch=4 does not divide train.batch=10"}},
    {"model: {name: picture}\ntrain: {schedule: step}", {"x.yaml:2", "step_size", "milestones"}},
    {"model: {name: picture}\ntrain: {milestones: [1]}", {"applies only to train.schedule step"}},
    {"model: {name: picture}\ntrain: {schedule: step, step_size: 3, milestones: [1]}",
     {"cannot be combined"}},
    {"model: {name: picture}\ntrain: {min_lr: 1e-5}", {"cosine or linear, not constant"}},
    {"model: {name: picture}\ntrain: {schedule: cosine, min_lr: 5}", {"above train.lr"}},
    {"model: {name: picture}\ntrain: {teacher_weight: 0.9}",
     {"x.yaml:2: train.teacher_weight needs train.teacher"}},
    {"model: {name: picture}\ntrain: {teacher: x, hidden_weight: 0.9}",
     {"x.yaml:2: train.hidden_weight needs train.teacher_hidden"}},
    {"model: {name: picture}\ntrain: {temperature: 3}", {"train.temperature needs"}},
    {"model: {name: picture}\ntrain: {teacher: x, teacher_hidden: a=b, teacher_weight: 0,\n"
     " temperature: 3}",
     {"x.yaml:3: train.temperature applies only to logits"}},
    {"model: {name: picture}\ndata: {path: a}", {"data.path needs data.format"}},
    {"model: {name: picture}\ndata: {format: idx}", {"needs data.path"}},
    {"model: {name: picture}\ndata: {name: a, path: b, format: idx}", {"-s data.name= reads b"}},
    {"model: {name: picture}\ndata: {samples: 5}", {"synthetic, not fashion-mnist"}},
    {"model: {name: sentence}\ndata: {crop: 5}", {"data.crop applies only to images"}},
    /* YAML itself */
    {"train: {batch: 4", {"x.yaml:2: not YAML: ", "starts on line 1"}},
    {"train:\n\tbatch: 4", {"x.yaml:2: not YAML: "}},
    {"a: \xff\xfe", {"not YAML: "}},
    {"train: &a {batch: 4}", {"anchors and aliases"}},
    {"train: {batch: &a 4}", {"anchors and aliases"}},
    {"train: *a", {"anchors and aliases"}},
    {"train: {batch: !!int 4}", {"tags"}},
    {"---\ntrain:\n---\ntrain:\n", {"x.yaml:3: a second document"}},
};

static void mistakes_are_named(void **)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        rejects(mistakes[i].text, (const char **)mistakes[i].words);
}

static void what_nothing_reads_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words[3];
    } cases[] = {
        {"model: {name: picture}\ntrain: {trust: 0.1}",
         {"x.yaml:2: train.trust applies only to train.optimizer lars or larc"}},
        {"model: {name: picture}\ntrain: {optimizer: momentum,\n eps: 0.1}",
         {"x.yaml:3: train.eps applies only to", "muon or schedule-free-adamw, not momentum",
          "(default: "}},
        {"model: {name: picture}\ntrain: {step_gamma: 0.5}",
         {"train.step_gamma applies only to train.schedule step"}},
        {"model: {name: picture}\ntrain: {optimizer: schedule-free-adamw,\n schedule: step, "
         "step_size: 9}",
         {"x.yaml:3: train.optimizer=schedule-free-adamw needs", "train.schedule=constant"}},
        {"model: {name: picture}\ntrain: {spike: 9}\nparallel: {schedule: 2bw}",
         {"x.yaml:2: train.spike cannot be combined", "2bw"}},
        {"model: {name: picture}\ntrain: {memory: 1GiB}\nparallel: {schedule: 2bw}",
         {"x.yaml:2: train.memory cannot be combined", "2bw"}},
        {"model: {name: picture}\nparallel: {replicas: 2, consistency: streaming, exact: true}",
         {"x.yaml:2: parallel.exact cannot be combined with parallel.codec=int4", "lossless"}},
        {"model: {name: picture}\nparallel: {sequence: rows}",
         {"x.yaml:2: parallel.sequence applies only to attention, which model picture does not "
          "have"}},
        {"model: {name: picture}\ntrain: {base_batch: 64}",
         {"train.scale_rule linear or sqrt, not none"}},
        {"model: {name: picture}\ntrain: {lora_on: x}",
         {"train.lora_on needs train.lora, which is not set"}},
        {"model: {name: picture}\ntrain: {prune: \"4:2\"}",
         {"x.yaml:2: train.prune: '4:2' is not a pruning rule", "such as 2:4", "such as 0.5"}},
        {"model: {name: picture}\ntrain: {prune: 1}",
         {"x.yaml:2: train.prune: '1' is not a pruning rule"}},
        {"model: {name: picture}\ntrain: {prune: 0.5, prune_steps: \"9:2\"}",
         {"x.yaml:2: train.prune_steps: '9:2' is not a range of pruning steps",
          "such as 100:500:20"}},
        {"model: {name: picture}\ntrain: {prune_steps: \"2:9\"}",
         {"train.prune_steps needs train.prune, which is not set"}},
        {"model: {name: picture}\ntrain: {prompt: 5, lora: 2}",
         {"train.prompt cannot be combined with train.lora"}},
        {"model: {name: picture}\ntrain: {prune: 0.5, lora: 2}",
         {"train.prune cannot be combined with train.lora"}},
        {"model: {name: picture}\ntrain: {prune: 0.5, batch: 4}\n"
         "parallel: {replicas: 2, consistency: local}",
         {"train.prune cannot be combined with replicas", "set parallel.consistency=sync"}},
        {"model: {name: picture}\ntrain: {quantize: int4, lora: 2}",
         {"x.yaml:2: train.quantize cannot be combined with train.lora", "use train.base"}},
        {"model: {name: picture}\ntrain: {quantize: int8, prune: 0.5}",
         {"train.quantize cannot be combined with train.prune"}},
        {"model: {name: picture}\ntrain: {quantize: int8, optimizer: muon}",
         {"train.quantize cannot be combined with train.optimizer=muon"}},
        {"model: {name: picture}\ntrain: {quantize: int4, precision: bf16}",
         {"train.quantize=int4 needs train.precision=f32, not bf16"}},
        {"model: {name: picture}\ntrain: {quantize: nf4}", {"none", "int8", "int4"}},
        {"model: {name: picture}\ntrain: {spike_action: rollback}",
         {"needs train.spike, which is not set"}},
        {"model: {name: picture}\ntrain: {patience: 2}", {"needs train.best"}},
        {"model: {name: picture}\ndata: {tokenizer: x}", {"data.tokenizer applies only to text"}},
        {"model: {name: picture}\ntrain: {init_skip: x}", {"needs train.init"}},
        {"model: {name: picture}\nparallel: {save: average}", {"needs parallel.replicas"}},
        {"model: {name: picture}\nparallel: {replica_lr: 2}", {"needs parallel.replicas"}},
        {"model: {name: picture}\ntrain: {batch: 4}\nparallel: {replicas: 2, replica_lr: 2}",
         {"train as one", "sync"}},
        {"model: {name: picture}\ntrain: {offload: x}", {"needs train.memory"}},
        {"model: {name: picture}\ntrain: {conv: fast}\nparallel: {exact: true}",
         {"use one of them"}},
        {"model: {name: picture}\nparallel: {transport: host}",
         {"parallel.transport applies only to train.machine cuda, not cpu"}},
        {"model: {name: picture}\ndata: {field: y, format: csv, path: a}",
         {"data.field applies only to data.format jsonl, not"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rejects(cases[i].text, (const char **)cases[i].words);
}

/* What a file says goes with what --set replaces; what --set says does not. */
static void replaced_settings(void **state)
{
    (void)state;
    ll_run *r = parse("model: {name: picture}\ntrain: {optimizer: adamw, beta2: 0.9, eps: 1e-7}");
    assert_int_equal(ll_run_set(r, "train.optimizer=rmsprop"), LL_OK);
    assert_true(r->train.optim.beta2 == 0.9 && r->train.optim.eps == 1e-7);
    assert_int_equal(ll_run_set(r, "train.optimizer=adagrad"), LL_OK);
    assert_true(r->train.optim.beta2 == 0 && r->train.optim.eps == 1e-7);
    assert_int_equal(ll_run_finish(r), LL_OK);
    ll_run_free(r);
    r = parse("model: {name: picture}");
    assert_int_equal(ll_run_set(r, "train.beta2=0.9"), LL_OK);
    assert_int_equal(ll_run_set(r, "train.optimizer=sgd"), LL_OK);
    assert_int_equal(ll_run_finish(r), LL_E_CONFIG);
    ll_run_free(r);
}

/* The table of who reads what against the graphs that optimizers make. */
static void optimizers_read_what_they_say(void **state)
{
    (void)state;
    static const char *const keys[] = {"momentum", "beta1", "beta2", "eps", "trust"};
    const ll_key *k = ll_run_keys;
    while (strcmp(k->name, "train.optimizer")) k++;
    char *all = strdup(k->choices), *rest = NULL;
    int read = 0;
    for (char *o = strtok_r(all, " ", &rest); o; o = strtok_r(NULL, " ", &rest))
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            ll_arena *a = ll_arena_new();
            char *plain = NULL;
            bool differs = false;
            ll_run *r = NULL;
            for (int set = 0; set < 2; set++) {
                const char *text =
                    ll_arena_printf(a,
                                    "model: {name: picture}\ntrain: "
                                    "{optimizer: %s%s%s%s}",
                                    o, set ? ", " : "", set ? keys[i] : "", set ? ": 0.25" : "");
                ll_run_free(r);
                r = parse(text);
                ll_graph *g = ll_graph_new("o");
                ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 3));
                ll_val w = ll_param(g, "w", LL_SHAPE(4, 3), (ll_init){0});
                ll_val b = ll_param(g, "b", LL_SCALAR, (ll_init){0}); /* muon's are two kinds */
                ll_val y = ll_mul(g, b, ll_matmul(g, "bk,nk->bn", x, w));
                ll_minimize(g, ll_mean(g, y), &r->train.optim);
                assert_int_equal(ll_graph_check(g), LL_OK);
                char *now = ll_print(g, a);
                if (set) differs = strcmp(now, plain) != 0;
                plain = now;
                ll_graph_free(g);
            }
            if ((ll_run_finish(r) == LL_OK) != differs)
                fail_msg("%s: %s is %s", o, keys[i], differs ? "read, and refused" : "accepted");
            read += differs;
            ll_run_free(r);
            ll_arena_free(a);
        }
    free(all);
    assert_int_equal(read, 25);
}

static void hostile_sizes(void **state)
{
    (void)state;
    ll_run *r;
    enum { MANY = 70 * 1024 };
    char *bytes = malloc(MANY);
    memset(bytes, '#', MANY);
    assert_int_equal(ll_run_parse(bytes, MANY, "big.yaml", &r), LL_E_CONFIG);
    assert_non_null(strstr(ll_error_message(), "big.yaml: 71680 bytes"));
    assert_null(r);
    memset(bytes, '[', 60000); /* deep nesting */
    assert_int_equal(ll_run_parse(bytes, 60000, "deep.yaml", &r), LL_E_CONFIG);
    memset(bytes, '{', 60000);
    assert_int_equal(ll_run_parse(bytes, 60000, "deep.yaml", &r), LL_E_CONFIG);
    for (int i = 0; i + 2 <= 60000; i += 2) memcpy(bytes + i, "- ", 2);
    assert_int_equal(ll_run_parse(bytes, 60000, "deep.yaml", &r), LL_E_CONFIG);
    memcpy(bytes, "out: ", 5); /* a long value, in a message that is not */
    memset(bytes + 5, '\t', 60000);
    memcpy(bytes, "train: {batch: ", 15);
    memset(bytes + 15, 'x', 50000);
    bytes[50015] = '}';
    assert_int_equal(ll_run_parse(bytes, 50016, "long.yaml", &r), LL_E_CONFIG);
    assert_true(strlen(ll_error_message()) < 200);
    free(bytes);
}

static void prints_and_reads_back(void **state)
{
    (void)state;
    static const char *const runs[] = {
        "model: {name: sentence, width: 100}\ntrain: {lr: 1.2345678901234567e-5, seed: 123456789}",
        ("model: {name: picture}\ndata: {path: \"a b\\\\ \\\"c\\\" \xc3\xa9 #: x\", format: idx}\n"
         "train: {schedule: step, milestones: [0.1, 0.30000000000000004, 700]}\nout: -dash"),
        "model: {name: picture}\nout: \"~\"\ndata: {name: \"null\"}",
        ("model: {name: picture}\nlayout: {\"a*.\\\"w\": [., -, height*width], b.w: '[data,-]'}\n"
         "parallel: {compress: topk:0.01:4, canonical: true}")};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        ll_run *first = finished(runs[i]);
        ll_arena *arena = ll_arena_new();
        char *text = ll_run_print(first, arena);
        ll_run *second = finished(text);
        assert_string_equal(ll_run_print(second, arena), text);
        assert_string_equal(first->out, second->out);
        assert_string_equal(first->data.path, second->data.path);
        assert_memory_equal(&first->train.seed, &second->train.seed, sizeof(int64_t));
        assert_true(first->train.schedule.lr == second->train.schedule.lr);
        for (const ll_key *k = ll_run_keys; k->name; k++) { /* every key stands in the text */
            const char *dot = strrchr(k->name, '.');
            char line[64];
            snprintf(line, sizeof line, "%s%s: ", dot ? "\n  " : "\n", dot ? dot + 1 : k->name);
            if (!strstr(text, line)) fail_msg("%s is not printed", k->name);
        }
        ll_run_free(first);
        ll_run_free(second);
        ll_arena_free(arena);
    }
}

/* Of several patterns the last counts: a setting moves one to the end. */
static void layouts_in_order(void **state)
{
    (void)state;
    ll_run *r;
    const char *text = "model: {name: picture}\nlayout:\n  a: [-, data]\n  b*: \"[tensor]\"\n";
    assert_int_equal(ll_run_parse(text, strlen(text), "l.yaml", &r), LL_OK);
    assert_int_equal(ll_run_set(r, "layout.a=[data,-]"), LL_OK);
    for (int i = 0; i < 20; i++) {
        char more[64];
        snprintf(more, sizeof more, "layout.c%d=[.]", i % 15);
        assert_int_equal(ll_run_set(r, more), LL_OK);
    }
    assert_int_equal(ll_run_finish(r), LL_OK);
    assert_int_equal(r->layouts.n, 17);
    assert_string_equal(r->layouts.v[0].pattern, "b*");
    assert_string_equal(r->layouts.v[0].origin, "l.yaml:4");
    assert_string_equal(r->layouts.v[1].pattern, "a");
    assert_string_equal(r->layouts.v[1].layout, "[data,-]");
    assert_string_equal(r->layouts.v[16].pattern, "c4");
    assert_null(r->layouts.v[17].pattern);
    ll_run_free(r);
    rejects("model: {name: picture}\nlayout: {a: [dat]}",
            (const char *[]){":2: ", "unknown axis 'dat'", "did you mean data?"});
    rejects("model: {name: picture}\nlayout: {a: [-], a: [data]}",
            (const char *[]){":2: ", "already set", "layout \"a\""});
    rejects("model: {name: picture}\nlayuot: {a: [-]}",
            (const char *[]){":2: ", "'layuot'", "did you mean layout?"});
}

static void steps_of_a_run(void **state)
{
    (void)state;
    static const struct {
        const char *train;
        int64_t samples, steps;
    } cases[] = {{"{batch: 64}", 60000, 938},
                 {"{batch: 64, epochs: 2}", 60000, 1875},
                 {"{batch: 64, steps: 100}", 60000, 100},
                 {"{batch: 64, steps: 100000}", 60000, 100000},
                 {"{batch: 64, steps: 100, epochs: 1}", 60000, 100},
                 {"{batch: 64, steps: 1000, epochs: 1}", 60000, 938},
                 {"{batch: 64, epochs: 1}", 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        snprintf(text, sizeof text, "model: {name: picture}\ntrain: %s", cases[i].train);
        ll_run *r = finished(text);
        assert_int_equal(ll_run_steps(r, cases[i].samples), cases[i].steps);
        assert_int_equal(ll_run_micro_batches(r), 1);
        ll_run_free(r);
    }
}

static void replicas_have_rates(void **)
{
    static const struct {
        const char *train, *parallel;
        double rate;
    } cases[] = {{"adamw", "replicas: 4, consistency: ssp", 2},
                 {"lamb", "replicas: 16, consistency: gossip", 4},
                 {"adamw", "replicas: 4, consistency: diloco", 1},
                 {"adamw", "replicas: 4, consistency: diloco, outer: sgd", 2},
                 {"sgd", "replicas: 4, consistency: local", 1},
                 {"momentum", "replicas: 4, consistency: gossip", 1},
                 {"sgd", "replicas: 4, consistency: local, replica_lr: 3", 3},
                 {"adamw", "replicas: 4, consistency: ssp, replica_lr: 1", 1},
                 {"adamw", "replicas: 4, consistency: ensemble", 1},
                 {"adamw", "replicas: 4, consistency: sync", 1},
                 {"adamw", "mesh: data=4", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "model: {name: picture}\ntrain: {batch: 64, optimizer: %s}\nparallel: {%s}",
                 cases[i].train, cases[i].parallel);
        ll_run *r = finished(text);
        assert_true(ll_run_replica_lr(r) == cases[i].rate);
        ll_run_free(r);
    }
}

static void finds_files(void **state)
{
    const char *folder = tmpdir_path(state, "mine"), *file = tmpdir_path(state, "mine/run.yaml");
    const char text[] = "model: {name: picture}\ntrain: {batch: 5}\n";
    assert_int_equal(ll_mkdirs(folder), LL_OK);
    assert_int_equal(ll_file_write(file, text, sizeof text - 1), LL_OK);
    const char *ways[] = {folder, file};
    for (int i = 0; i < 2; i++) {
        ll_run *r;
        assert_int_equal(ll_run_load(ways[i], &r), LL_OK);
        assert_int_equal(r->train.batch, 5);
        assert_string_equal(r->name, "mine");
        assert_string_equal(r->file, file);
        ll_run_free(r);
    }
    ll_run *r;
    assert_int_equal(ll_run_load(tmpdir_path(state, "none.yaml"), &r), LL_E_IO);
    assert_non_null(strstr(ll_error_message(), "none.yaml"));
    assert_null(r);
}

static void finds_bundled_runs(void **state)
{
    (void)state;
    int n = 0;
    for (const ll_bundled *b = ll_bundled_runs(); b->name; b++, n++) {
        ll_run *r;
        assert_int_equal(ll_run_load(b->name, &r), LL_OK);
        assert_string_equal(r->name, b->name);
        ll_run_free(r);
        assert_int_equal(ll_run_parse(b->text, strlen(b->text), b->name, &r), LL_OK);
        ll_run_free(r);
    }
    assert_true(n >= 6);
    ll_run *r;
    assert_int_equal(ll_run_load("lenet-fashion", &r), LL_E_CONFIG);
    assert_string_equal(ll_error_message(),
                        "no run named 'lenet-fashion'; did you mean lenet5-fashion?");
    assert_int_equal(ll_run_load("zzz", &r), LL_E_CONFIG);
    assert_non_null(strstr(ll_error_message(), "bundled runs: "));
}

static void help_has_every_key(void **state)
{
    (void)state;
    ll_arena *arena = ll_arena_new();
    const char *help = ll_run_help("", 1 << 20, arena);
    for (const ll_key *k = ll_run_keys; k->name; k++) {
        assert_non_null(strstr(help, k->name));
        assert_non_null(strstr(help, k->help));
    }
    int n = 0; /* a heading of a key that is not there would never show, nor would those below it */
    for (const ll_key_heading *h = ll_run_headings; h->first; h++, n++)
        assert_non_null(strstr(help, ll_arena_printf(arena, "%s:\n", h->text)));
    assert_true(n > 10);
    help = ll_run_help("warm", 60, arena);
    assert_memory_equal(help, "Learning rate schedule:\n  train.warmup            ", 50);
    assert_null(strstr(help, "train.lr"));
    assert_non_null(strstr(help, "  parallel.warm_up"));
    for (const char *line = help; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 60);
    assert_null(ll_run_help("no-such", 60, arena));
    ll_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_kind),
        cmocka_unit_test(defaults_follow_the_model),
        cmocka_unit_test(set_overrides),
        cmocka_unit_test(set_that_breaks_is_named),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(what_nothing_reads_is_refused),
        cmocka_unit_test(replaced_settings),
        cmocka_unit_test(optimizers_read_what_they_say),
        cmocka_unit_test(hostile_sizes),
        cmocka_unit_test(prints_and_reads_back),
        cmocka_unit_test(layouts_in_order),
        cmocka_unit_test(steps_of_a_run),
        cmocka_unit_test(replicas_have_rates),
        cmocka_unit_test_setup_teardown(finds_files, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(finds_bundled_runs),
        cmocka_unit_test(help_has_every_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
