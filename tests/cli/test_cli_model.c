/* Models and data of one's own (examples/own_run.c) in the whole tool: as a program that ends in
 * ll_main, and as a library that a run file names. */
#include "cli/program.h"
#include "loopline.h"

#include <unistd.h>

static const char *beside(const char *name)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    assert_true(n > 0);
    path[n] = '\0';
    strcpy(strrchr(path, '/') + 1, name);
    return path;
}

static outcome runs(const char *folder, const how *h, const char *line)
{
    outcome o = program_run(folder, h, line);
    if (o.status) fail_msg("%s: %s", line, o.err);
    return o;
}

static void as_program(void **state)
{
    const char *folder = *state;
    how own = {.other = beside("own_run")};
    outcome o = runs(folder, &own, "train waves -s train.steps=60 -s train.threads=1 --out w");
    assert_non_null(strstr(o.err, "frequency_error"));
    outcome_free(&o);
    o = runs(folder, &own, "eval w --json");
    json_t *j = json_of(o.out);
    double loss = json_num(j, "val_loss");
    assert_true(loss > 0 && loss < 1);
    assert_float_equal(loss, json_num(j, "frequency_loss") + json_num(j, "phase_loss"), 1e-5);
    json_decref(j);
    outcome_free(&o);
    static const char *const more[] = {"train w --resume -s train.steps=70",
                                       "verify waves -n 2 --mesh tensor=2 --steps 2"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        o = runs(folder, &own, more[i]);
        outcome_free(&o);
    }
    o = runs(folder, &own, "models");
    assert_non_null(strstr(o.out, "waves"));
    assert_non_null(strstr(o.out, "resnet50"));
    outcome_free(&o);
}

static void as_file(void **state)
{
    const char *folder = *state;
    char text[8192];
    snprintf(text, sizeof text,
             "model: {file: %s, width: 32}\ntrain: {steps: 20, batch: 32, threads: 1}\n",
             beside("libown_run_file.so"));
    write_text(tmpdir_path(state, "w.yaml"), text);
    outcome o = runs(folder, NULL, "train w.yaml --out w");
    outcome_free(&o);
    o = runs(folder, NULL, "eval w");
    assert_non_null(strstr(o.out, "phase_loss"));
    outcome_free(&o);
    size_t size;
    char *whole = read_whole(beside("libown_run_file.so"), &size);
    for (size_t part = 100; part < size; part += 1 + size / 7) { /* headers, code, sections */
        write_whole(tmpdir_path(state, "cut.so"), whole, part);
        refuses(folder, 1, "train w.yaml --out x -s model.file=cut.so", "it was cut short");
    }
    free(whole);
    refuses(folder, 1, "train w.yaml --out x -s model.file=none.so", "none.so cannot be found");
    refuses(folder, 1, "train w.yaml --out x -s model.file=w.yaml", "cannot be loaded");
    refuses(folder, 1, "train w.yaml --out x -s model.name=wave", "did you mean waves?");
    refuses(folder, 1, "train w.yaml --out x -s model.wide=3", "'wide' is not a size");
    refuses(folder, 1, "train w.yaml --out x -s data.name=synthetic", "takes batch data wave",
            "no field of that name, only x, y");
}

static ll_val of_nothing(ll_graph *g, const ll_build *b)
{
    return ll_mean(g, ll_batch(g, "x", LL_F32, LL_SHAPE(b->batch, 0)));
}

/* A model that cannot be made is told in its place; those after it are listed. */
static void some_ill(void **state)
{
    static const ll_model ill[] = {{.name = "empty", .declare = of_nothing, .next = &ill[1]},
                                   {.name = "empty2", .declare = of_nothing}};
    const char *path = tmpdir_path(state, "list");
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        bool json = freopen(path, "w", stdout) && freopen("/dev/null", "w", stderr);
        _exit(ll_main(2 + json, (char *[]){"own", "models", "--json", NULL}, ill));
    }
    int status;
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    char *text = read_whole(path, NULL);
    json_t *j = json_of(text);
    for (size_t i = 0; i < 2; i++)
        assert_non_null(json_string_value(json_object_get(json_array_get(j, i), "error")));
    assert_true(json_num(json_array_get(j, 2), "parameters") > 0);
    json_decref(j);
    free(text);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {IN_FOLDER(as_program), IN_FOLDER(as_file),
                                       IN_FOLDER(some_ill)};
    return cmocka_run_group_tests_name("cli_model", tests, NULL, NULL);
}
