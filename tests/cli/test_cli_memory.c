/* The memory that a run plans is what the system says that it took: every bundled run, small. */
#include "cli/program.h"
#include "base/text.h"
#include "run/run.h"

#include <math.h>

#define PAIR                                                                                       \
    "-n 2 --set data.name=synthetic --set data.samples=64 --set train.batch=4 --set model.seq=32 " \
    "--set model.layers=2 --set train.threads=1 "
#define REPLICAS PAIR "--set parallel.replicas=2 --set parallel.consistency="

/* Fewer samples where time matters; sets that may not be installed are generated. */
static const struct {
    const char *run, *settings;
} rows[] = {
    {"mlp-fashion", "--set train.steps=20"}, /* as many as read most of the data */
    {"lenet5-fashion", "--set train.steps=20"},
    {"gpt-kjv", "--set data.val_fraction=0.001"},
    {"resnet18-fashion", "--set data.name=synthetic --set data.samples=16 --set train.batch=8"},
    {"resnet18-cifar10", "--set data.name=synthetic --set data.samples=16 --set train.batch=8 "
                         "--set model.width=8"},
    {"gpt2-124m", "--set data.name=synthetic --set data.samples=8 --set train.batch=1 "
                  "--set train.micro_batch=1 --set model.seq=32 --set model.layers=1 "
                  "--set model.vocab=9000"},
    {"gpt-kjv", "--exact --set model.layers=2 --set data.name=synthetic --set train.batch=4 "
                "--set model.seq=64 --set train.memory=62MiB --set train.offload=."},
    {"mlp-fashion", "--set train.batch=8192 --set model.width=64"}, /* batches are most of it */
    {"gpt-kjv", PAIR}, /* each sees what the other sums */
    {"gpt-kjv", PAIR "--set train.buddy=1"},
    {"gpt-kjv", REPLICAS "local --set parallel.every=1"},
    {"gpt-kjv", REPLICAS "diloco --set parallel.every=1"},
    {"gpt-kjv", REPLICAS "ad-psgd"},
    {"gpt-kjv", REPLICAS "eager"},
    {"gpt-kjv", REPLICAS "ensemble"},
};
enum { ROWS = sizeof rows / sizeof *rows };

static bool has_data(const char *folder, const char *name)
{
    json_t *list = prints_json(folder, "data --json"), *set;
    bool here = false;
    size_t i;
    json_array_foreach(list, i,
                       set) if (!strcmp(json_string_value(json_object_get(set, "name")), name))
        here = json_is_true(json_object_get(set, "installed"));
    json_decref(list);
    return here;
}

static void planned_is_used(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    print_message("the sanitizer's own memory would count\n");
    skip();
#endif
    bool has_images = has_data(*state, "fashion-mnist"), has_text = has_data(*state, "kjv");
    for (int k = 0; k < ROWS; k++) {
        bool here = strstr(rows[k].run, "fashion") ? has_images : has_text;
        char line[512];
        snprintf(line, sizeof line,
                 "train %s --json --out m%d --set train.steps=2 --set train.epochs=0 %s %s",
                 rows[k].run, k, rows[k].settings, here ? "" : "--set data.name=synthetic");
        json_t *j = prints_json(*state, line);
        double planned = json_num(j, "peak_bytes_planned"), used = json_num(j, "peak_bytes_used");
        print_message("%-18s planned %7.1f MiB, used %7.1f MiB, tensors %7.1f\n", rows[k].run,
                      planned / 1048576, used / 1048576,
                      json_num(j, "tensor_bytes_planned") / 1048576);
        if (fabs(planned - used) > 0.03 * used + 5 * 1048576)
            fail_msg("%s: planned %.0f bytes, used %.0f", rows[k].run, planned, used);
        json_decref(j);
    }
}

/* What an error says that it takes, as it is given to train.memory. */
static const char *taken(const outcome *o, const char *before, char out[32])
{
    const char *said = strstr(o->err, before);
    char number[16], unit[8];
    if (o->status != 1 || !said ||
        sscanf(said + strlen(before), " %15[0-9.] %7[KMiB]", number, unit) != 2)
        fail_msg("%d: no figure behind '%s': %s", o->status, before, o->err);
    snprintf(out, 32, "%s%s", number, unit);
    return out;
}

/* The figure that an error names is enough, of every command that takes a limit; inspect names
 * train's; and what train tells of a step, and inspect of a rank, is what is limited. */
static void what_is_named_is_enough(void **state)
{
    static const char run[] =
        "model: {name: gpt, layers: 1, width: 24, heads: 2, seq: 11, vocab: 50}\n"
        "data: {name: synthetic, samples: 64}\ntrain: {batch: 6, steps: 1, threads: 1}\n";
    static const struct {
        int ranks;
        const char *how;
    } of[] = {{1, ""},
              {2, "--mesh data=2 -s parallel.compress=topk:0.1"},
              {2, "--mesh data=2 --zero 3"},
              {2, "--mesh tensor=2 -s train.offload=."},
              {2, "--mesh pipe=2 -s train.micro_batch=1 -s parallel.schedule=auto"},
              {2, "--mesh pipe=2 -s train.micro_batch=2 -s train.offload=."}};
    write_text(tmpdir_path(state, "r.yaml"), run);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char line[256], limit[32], shown[32];
        json_t *trained = NULL;
        bool verified = strstr(of[i].how, "zero") || strstr(of[i].how, "auto");
        for (int k = 0; k < 2 + verified; k++) {
            static const char *const commands[] = {"train r.yaml --json --overwrite --out a -n %d",
                                                   "inspect r.yaml --json",
                                                   "verify r.yaml --steps 1 --json -n %d"};
            size_t n = (size_t)snprintf(line, sizeof line, commands[k], of[i].ranks);
            snprintf(line + n, sizeof line - n, " %s -s train.memory=", of[i].how);
            n = strlen(line);
            snprintf(line + n, sizeof line - n, "20KiB");
            outcome o = program_run(*state, NULL, line);
            taken(&o, " takes", k ? shown : limit);
            assert_non_null(strstr(o.err, "memory 20.0 KiB is too little"));
            assert_non_null(strstr(o.err, ": allow that, or try "));
            assert_true((k == 2) == (strstr(o.err, "keep every gradient") != NULL));
            outcome_free(&o);
            snprintf(line + n, sizeof line - n, "%s", k ? shown : limit);
            json_t *j = prints_json(*state, line);
            if (k == 0) {
                trained = json_incref(j);
                assert_true(json_num(j, "tensor_bytes_planned") ==
                            json_num(j, "tensor_bytes_used"));
                assert_true((json_num(j, "comm_bytes_planned") > 0) == (of[i].ranks > 1));
            } else if (k == 1) {
                assert_string_equal(shown, limit);
                assert_true(json_num(trained, "step_bytes_planned") ==
                            json_num(j, of[i].ranks > 1 ? "bytes_per_rank" : "peak_bytes"));
            }
            json_decref(j);
        }
        json_decref(trained);
    }
}

/* plan's figures are of tensors, as train's are: within the limit, without what chips reserve. Of
 * compiled models they are inspect's to the byte, but for what kernels of CPUs work in. */
static void plans_are_limited(void **state)
{
    static const char *const of[] = {
        "plan gpt-kjv --cluster dgx-h100 --ranks 2 --top 100000",
        "plan lenet5-fashion --cluster dgx-h100 --ranks 2 --top 100000"};
    char limit[32], line[256];
    for (int i = 0; i < 2; i++) {
        outcome o;
        snprintf(line, sizeof line, "%s -s train.memory=20KiB", of[i]);
        o = program_run(*state, NULL, line);
        taken(&o, "on 2 ranks: use", limit);
        outcome_free(&o);
        snprintf(line, sizeof line, "%s --json -s train.memory=%s", of[i], limit);
        json_t *j = prints_json(*state, line), *p;
        double most;
        size_t k;
        assert_true(ll_text_to_bytes(limit, &most));
        json_array_foreach(json_object_get(j, "plans"), k, p)
        {
            bool fits = json_is_true(json_object_get(p, "fits"));
            assert_true(k > 0 || fits);
            assert_true(fits == (json_num(p, "bytes_per_rank") <= most));
        }
        json_decref(j);
    }
    json_t *p = prints_json(
        *state, "plan lenet5-fashion --cluster dgx-h100 --ranks 2 --mesh data=2 --json");
    json_t *j =
        prints_json(*state, "inspect lenet5-fashion --mesh data=2 --json -s train.threads=1");
    assert_true(json_num(json_array_get(json_object_get(p, "plans"), 0), "bytes_per_rank") ==
                json_num(j, "bytes_per_rank") - json_num(j, "scratch_bytes"));
    json_decref(p);
    json_decref(j);
}

/* Of ranks whose parts are not equal, or have halos, the fullest; in as many threads. */
static void plan_is_of_the_fullest(void **state)
{
    static const struct {
        int ranks;
        const char *what;
    } of[] = {{3, "mlp-fashion --mesh tensor=3"},
              {3, "lenet5-fashion --mesh tensor=3 -s train.threads=3"},
              {7, "lenet5-fashion --mesh height=7"},
              {9, "lenet5-fashion --mesh tensor=3,height=3"},
              {6, "lenet5-fashion --mesh data=3,filter=2"}};
    write_text(tmpdir_path(state, "c.yaml"), "like: dgx-a100\nchip: {name: core, names: []}\n"
                                             "node: {chips: 16}\n");
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char line[256];
        double most = 0;
        snprintf(line, sizeof line, "plan %s --cluster c.yaml --json", of[i].what);
        json_t *p = prints_json(*state, line), *j = NULL;
        for (int k = 0; k < of[i].ranks; k++) {
            json_decref(j);
            snprintf(line, sizeof line, "inspect %s --json --rank %d%s", of[i].what, k,
                     strstr(of[i].what, "threads") ? "" : " -s train.threads=1");
            j = prints_json(*state, line);
            most = fmax(most, json_num(j, "peak_bytes"));
        }
        double planned = json_num(json_array_get(json_object_get(p, "plans"), 0), "bytes_per_rank");
        if (planned != most || json_num(j, "bytes_per_rank") != most)
            fail_msg("%s: planned %.0f, inspected %.0f, the fullest has %.0f", of[i].what, planned,
                     json_num(j, "bytes_per_rank"), most);
        json_decref(p);
        json_decref(j);
    }
}

/* inspect counts what train does, and what is said to fit does, and is not what was tried. */
static void hints_are_true(void **state)
{
    static const char run[] = "model: {name: lenet5}\ndata: {name: synthetic, samples: 100}\n"
                              "train: {batch: 48, steps: 1}\n";
    char line[256];
    long long micro = 0;
    write_text(tmpdir_path(state, "r.yaml"), run);
    json_t *j = prints_json(*state, "inspect r.yaml --json");
    double bytes = json_num(j, "peak_bytes");
    json_decref(j);
    j = prints_json(*state, "train r.yaml --json --out a");
    assert_true(json_num(j, "tensor_bytes_planned") == bytes);
    json_decref(j);
    snprintf(line, sizeof line, "train r.yaml --out b --set train.memory=%.0fKiB",
             floor(bytes / 1024) - 1);
    outcome o = program_run(*state, NULL, line);
    const char *hint = strstr(o.err, "; it would fit with -s train.micro_batch=");
    if (o.status != 1 || !hint) fail_msg("%d: %s", o.status, o.err);
    sscanf(hint, "; it would fit with -s train.micro_batch=%lld: ", &micro);
    assert_true(micro > 0 && micro < 48 && !strstr(hint, "--mesh") && !strstr(hint, "memory="));
    outcome_free(&o);
    must(*state, "%s --set train.micro_batch=%lld", line, micro);
}

static const char gpt[] =
    "model: {name: gpt, layers: 2, width: 32, heads: 4, seq: 32, vocab: 128}\n"
    "data: {name: synthetic, samples: 64}\ntrain: {batch: 8, steps: 1, threads: 1}\n";

/* What a run that is refused is told to try, as words of a command: it trains. Returns the hint. */
static const char *follow(void **state, const char *line, char hint[512])
{
    static const char before[] = "it would fit with ";
    outcome o = program_run(*state, NULL, line);
    const char *said = strstr(o.err, before);
    if (o.status != 1 || !said) fail_msg("%s: %s", line, o.err);
    snprintf(hint, 512, "%.*s", (int)strcspn(said, ":\n"), said);
    outcome_free(&o);
    char words[512], *folder;
    snprintf(words, sizeof words, "%s", hint + strlen(before));
    if ((folder = strstr(words, "FOLDER"))) memcpy(folder, "./////", 6);
    must(*state, "%s %s", line, words);
    return hint;
}

/* Less and less memory: what is said to fit is made again, laid aside, then cut over more ranks.
 * Each is given back, and trains. */
static void other_hints(void **state)
{
    write_text(tmpdir_path(state, "g.yaml"), gpt);
    json_t *j = prints_json(*state, "inspect g.yaml --json --set train.micro_batch=1");
    double limit = json_num(j, "peak_bytes");
    json_decref(j);
    bool aside = false, ranks = false;
    for (int i = 0; i < 20 && !ranks; i++) {
        char line[256], hint[512];
        limit *= 0.8;
        snprintf(line, sizeof line, "train g.yaml --out %c --set train.memory=%.0fB", 'a' + i,
                 limit);
        follow(state, line, hint);
        aside |= strstr(hint, " -s train.offload=FOLDER") != NULL;
        ranks = strstr(hint, " -n ") && strstr(hint, " --mesh ");
    }
    assert_true(aside && ranks);
}

/* Replicas have a part of each batch, and where they give gradients to a server nothing is laid
 * aside that updates read, as it would be without them: by tensor, by zero 3, and made again, on 4
 * and 8 ranks. */
static void hints_of_replicas(void **state)
{
    static const char *const memory[] = {"600KiB", "500KiB", "400KiB"};
    write_text(tmpdir_path(state, "g.yaml"), gpt);
    for (int i = 0; i < 3; i++) {
        char line[256], hint[512];
        snprintf(line, sizeof line,
                 "train g.yaml -n 2 -s parallel.replicas=2 -s parallel.consistency=eager "
                 "--out %c --set train.memory=%s",
                 'a' + i, memory[i]);
        assert_null(strstr(follow(state, line, hint), "offload"));
    }
}

/* What a codec keeps is counted, and it goes with some meshes alone; without a pipeline there is no
 * schedule. */
static void hints_go_together(void **state)
{
    char hint[512];
    write_text(tmpdir_path(state, "g.yaml"), gpt);
    follow(state, "train g.yaml -n 2 --compress topk:0.1 --out a -s train.memory=800KiB", hint);
    follow(state,
           "train g.yaml -n 2 --mesh pipe=2 -s parallel.schedule=zb-h1 --out b -s "
           "train.micro_batch=2 -s train.memory=300KiB",
           hint);
    assert_non_null(strstr(hint, " -s parallel.schedule="));
}

/* Where what keeps all values fits, a limit changes nothing. */
static void room_enough_is_no_limit(void **state)
{
    static const struct {
        const char *what;
        int times; /* its bytes: exact sums want room for a step made again, too */
    } of[] = {{"lenet5 --mesh data=2,tensor=2 --zero 3", 1},
              {"lenet5 --mesh data=2,tensor=2 --zero 3", 2},
              {"lenet5 --mesh pipe=2,data=2 --zero 3", 1},
              {"mlp --mesh data=2 --zero 1 --set parallel.exact=true", 30},
              {"gpt --mesh tensor=2 --set train.batch=2", 1}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char line[256];
        snprintf(line, sizeof line, "inspect %s --json", of[i].what);
        json_t *plain = prints_json(*state, line);
        double bytes = json_num(plain, "bytes_per_rank");
        snprintf(line, sizeof line,
                 "inspect %s --json --set train.offload=. --set train.memory=%.0fB", of[i].what,
                 of[i].times * bytes);
        json_t *j = prints_json(*state, line);
        if (!json_equal(plain, j))
            fail_msg("%s: %.0f bytes, with room for them %.0f", of[i].what, bytes,
                     json_num(j, "bytes_per_rank"));
        json_decref(j);
        json_decref(plain);
    }
}

/* Stages that fit are found under any limit that leaves room for them, not under a lower one alone.
 */
static void stages_that_fit(void **state)
{
    static const char run[] =
        "inspect lenet5 --mesh pipe=3 --set train.batch=32 --set "
        "train.micro_batch=4 --set train.threads=1 --set train.optimizer=adamw --json";
    json_t *j = prints_json(*state, run);
    double bytes = json_num(j, "bytes_per_rank");
    json_decref(j);
    for (int percent = 98; percent >= 86; percent -= 3) {
        char line[256];
        snprintf(line, sizeof line, "%s --set train.memory=%.0fB", run, bytes * percent / 100);
        j = prints_json(*state, line);
        assert_true(json_num(j, "bytes_per_rank") <= bytes * percent / 100);
        json_decref(j);
    }
}

/* A machine of two cores, whatever it is measured to be. */
static void describe_machine(void **state, const char *memory)
{
    char host[256] = "", text[512], path[512];
    setenv("XDG_CACHE_HOME", *state, 1);
    gethostname(host, sizeof host - 1);
    snprintf(path, sizeof path, "%s/loopline", (const char *)*state);
    if (mkdir(path, 0777) && errno != EEXIST) fail_msg("%s", path);
    snprintf(path, sizeof path, "%s/loopline/this-%s.yaml", (const char *)*state, host);
    snprintf(text, sizeof text,
             "like: dgx-a100\nchip: {name: core, names: [], f32: 0.1, memory: %s, reserved: 0}\n"
             "node: {chips: 2}\n",
             memory);
    write_text(path, text);
}

/* --parallel auto takes no mesh that does not fit, and plans of too many ranks are warned of. */
static void of_this_machine(void **state)
{
    static const char run[] = "model: {name: mlp, image: 8, width: 512}\n"
                              "data: {name: synthetic, samples: 100}\n"
                              "train: {batch: 4, steps: 1, threads: 1}\n";
    write_text(tmpdir_path(state, "r.yaml"), run);
    describe_machine(state, "1");
    must(*state, "train r.yaml --parallel auto -n 2 --out a");
    outcome o = succeeds(*state, "plan r.yaml --cluster this --ranks 4");
    assert_non_null(strstr(o.err, "warning: this machine has 2 x core for 4 ranks"));
    outcome_free(&o);
    o = succeeds(*state, "plan r.yaml --cluster this --ranks 2");
    assert_null(strstr(o.err, "warning"));
    outcome_free(&o);
    describe_machine(state, "0.001");
    o = program_run(*state, NULL, "train r.yaml --parallel auto -n 2 --out b");
    if (o.status != 1 || !strstr(o.err, "no mesh of 2 ranks fits")) fail_msg("%s", o.err);
    outcome_free(&o);
    unsetenv("XDG_CACHE_HOME");
}

/* What no rank can do one of them says. */
static void said_once(void **state)
{
    static const char run[] = "model: {name: mlp, image: 8, width: 64}\n"
                              "data: {name: synthetic, samples: 100}\n"
                              "train: {batch: 4, micro_batch: 2, threads: 1, memory: 1KiB}\n";
    write_text(tmpdir_path(state, "r.yaml"), run);
    outcome o = program_run(*state, NULL, "train r.yaml -n 2 --mesh pipe=2 --out a");
    const char *first = strstr(o.err, "out of memory");
    if (o.status != 1 || !first || strstr(first + 1, "out of memory"))
        fail_msg("%d: %s", o.status, o.err);
    assert_non_null(strstr(first, "recompute full"));
    assert_non_null(strstr(first, "schedule auto"));
    outcome_free(&o);
    refuses(*state, 1, /* nor is it told to do what it does */
            "train r.yaml -n 2 --mesh pipe=2 --out a -s parallel.recompute=full "
            "-s parallel.schedule=auto",
            "allow that, or try offload, smaller micro-batches, or more stages");
    refuses(*state, 1, "train r.yaml -n 2 --mesh pipe=2 --out a -s train.micro_batch=1",
            "allow that, or try offload, recompute full, schedule auto, or more stages");
}

static void every_run_has_a_row(void **state)
{
    (void)state;
    for (const ll_bundled *b = ll_bundled_runs(); b->name; b++) {
        int k = 0;
        while (k < ROWS && strcmp(rows[k].run, b->name)) k++;
        if (k == ROWS) fail_msg("%s is bundled, but its memory is not looked at", b->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_run_has_a_row),
        cmocka_unit_test_setup_teardown(what_is_named_is_enough, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(plans_are_limited, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(plan_is_of_the_fullest, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(hints_are_true, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(other_hints, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(hints_of_replicas, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(hints_go_together, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(room_enough_is_no_limit, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(stages_that_fit, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(of_this_machine, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(said_once, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(planned_is_used, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests_name("cli_memory", tests, NULL, NULL);
}
