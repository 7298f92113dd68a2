/* What comes out of a trained model: eval's classes, predictions, a
 * C program. */
#include "cli/program.h"
#include "xml.h"

#include <math.h>
#include <unistd.h>

static outcome runs(const char *folder, const char *line)
{
    outcome o = program_run(folder, NULL, line);
    if (o.status) fail_msg("%s: %s", line, o.err);
    return o;
}

static int setup(void **state)
{
    if (tmpdir_setup(state)) return -1;
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: lenet5}\ndata: {name: synthetic, samples: 400, val_fraction: 0.2}\n"
               "train: {steps: 20, batch: 32, threads: 1, lr: 0.02}\n");
    outcome o = runs(*state, "train s.yaml --out r");
    outcome_free(&o);
    return 0;
}

static int64_t at(const json_t *list, size_t i)
{
    return json_integer_value(json_array_get(list, i));
}

static double field(const json_t *list, size_t i, const char *name)
{
    return json_number_value(json_object_get(json_array_get(list, i), name));
}

static void eval_classes(void **state)
{
    outcome o = runs(*state, "eval r --classes --top 10 --confusion c.svg --json");
    json_t *j = json_of(o.out), *classes = json_object_get(j, "classes");
    const json_t *confusion = json_object_get(j, "confusion");
    int64_t all = 0, hits = 0;
    assert_int_equal(json_array_size(classes), 10);
    for (size_t i = 0; i < 10; i++) {
        int64_t row = 0, column = 0, hit = at(json_array_get(confusion, i), i);
        for (size_t k = 0; k < 10; k++) {
            row += at(json_array_get(confusion, i), k);
            column += at(json_array_get(confusion, k), i);
        }
        assert_int_equal(field(classes, i, "support"), row);
        if (row) assert_float_equal(field(classes, i, "recall"), (double)hit / (double)row, 1e-9);
        if (column)
            assert_float_equal(field(classes, i, "precision"), (double)hit / (double)column, 1e-9);
        all += row, hits += hit;
    }
    assert_int_equal(all, json_num(j, "samples"));
    assert_float_equal(json_num(j, "val_accuracy"), (double)hits / (double)all, 1e-9);
    assert_true(json_num(j, "val_accuracy") > 0.3 && json_num(j, "val_accuracy") < 1);
    assert_float_equal(json_num(j, "top_accuracy"), 1, 0); /* of 10 classes 10 */
    json_decref(j);
    outcome_free(&o);
    char *svg = read_whole(tmpdir_path(state, "c.svg"), NULL);
    assert_true(check_xml(svg) > 30);
    free(svg);
    o = runs(*state, "eval r --top 1 --classes");
    assert_non_null(strstr(o.out, "top-1 accuracy"));
    assert_non_null(strstr(o.err, "\nclasses: sample "));
    assert_non_null(strstr(o.err, "\nloss: sample "));
    assert_non_null(strstr(o.out, "precision"));
    outcome_free(&o);
}

/* A .npy of dense elements. */
static void write_npy(const char *path, const char *type, const char *shape, const void *data,
                      size_t size)
{
    char head[128];
    memset(head, ' ', sizeof head);
    int n = snprintf(head + 10, 118, "{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }",
                     type, shape);
    head[10 + n] = ' ';
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    head[127] = '\n';
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(head, 1, 128, f) + fwrite(data, 1, size, f), 128 + size);
    fclose(f);
}

static void some_numbers(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)((int)(i * 7919 % 101) - 50) / 25;
}

/* Numbers of a .npy of so many f32. */
static float *numbers(const char *path, size_t want)
{
    size_t size;
    char *all = read_whole(path, &size);
    assert_int_equal(size, 128 + want * sizeof(float));
    float *x = malloc(want * sizeof(float));
    memcpy(x, all + 128, want * sizeof(float));
    free(all);
    return x;
}

enum { PIXELS = 28 * 28 };

static void predict_arrays(void **state)
{
    static float x[70 * PIXELS]; /* more than are run at once */
    some_numbers(x, 70 * PIXELS);
    write_npy(tmpdir_path(state, "all.npy"), "<f4", "70, 28, 28", x, sizeof x);
    write_npy(tmpdir_path(state, "one.npy"), "<f4", "28, 28, 1", x + 69 * PIXELS, PIXELS * 4);
    outcome o = runs(*state, "predict r all.npy --npy all_out.npy");
    outcome_free(&o);
    o = runs(*state, "predict r one.npy --npy one_out.npy --json --top 10");
    float *all = numbers(tmpdir_path(state, "all_out.npy"), 700);
    float *one = numbers(tmpdir_path(state, "one_out.npy"), 10);
    json_t *j = json_of(o.out);
    const json_t *classes =
        json_object_get(json_array_get(json_object_get(j, "predictions"), 0), "classes");
    double sum = 0, most = -1e30, last = 1;
    int64_t best = -1;
    for (size_t k = 0; k < 10; k++) {
        assert_float_equal(one[k], all[690 + k], 1e-5);
        if (one[k] > most) most = one[k], best = (int64_t)k;
        double p = field(classes, k, "probability");
        assert_true(p <= last);
        sum += last = p;
    }
    assert_float_equal(sum, 1, 1e-6);
    assert_int_equal(field(classes, 0, "class"), best);
    assert_float_equal(log(field(classes, 0, "probability") / field(classes, 1, "probability")),
                       most - one[(int)field(classes, 1, "class")], 1e-5);
    json_decref(j);
    free(all), free(one);
    outcome_free(&o);
}

/* Bytes are normalised alike whatever file they come in; pictures are brought to size. */
static void predict_files(void **state)
{
    uint8_t idx[16 + PIXELS] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28};
    for (int i = 0; i < PIXELS; i++) idx[16 + i] = (uint8_t)(i * 37 % 251);
    write_npy(tmpdir_path(state, "u.npy"), "|u1", "28, 28", idx + 16, PIXELS);
    write_whole(tmpdir_path(state, "u.idx"), idx, sizeof idx);
    char line[600], here[400];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(line, sizeof line,
             "predict r u.npy u.idx %s/tests/fuzz/corpus/pictures/grey.png --npy u_out.npy", here);
    outcome o = runs(*state, line);
    outcome_free(&o);
    float *x = numbers(tmpdir_path(state, "u_out.npy"), 30);
    for (int k = 0; k < 10; k++) assert_true(x[k] == x[10 + k]);
    assert_true(x[0] != x[20]);
    free(x);
    static const char *const wrong[][2] = {
        {"predict r s.yaml", "s.yaml is neither a picture"},
        {"predict r u_out.npy",
         "u_out.npy has [3,10], expected one or several samples of [28,28,1]"},
        {"predict r u.npy --result nothing",
         "has no value or result nothing; it has loss, correct"},
        {"predict r u.npy --result loss", "loss of model lenet5 is not per sample"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        o = program_run(*state, NULL, wrong[i][0]);
        assert_int_not_equal(o.status, 0);
        if (!strstr(o.err, wrong[i][1])) fail_msg("%s: %s", wrong[i][0], o.err);
        outcome_free(&o);
    }
}

/* The token that follows a text is the one that generate takes. */
static void predict_text(void **state)
{
    char text[4000];
    for (size_t i = 0; i < sizeof text - 1; i++) text[i] = "one two three four "[i % 19];
    text[sizeof text - 1] = '\0';
    write_text(tmpdir_path(state, "all.txt"), text);
    write_text(tmpdir_path(state, "some.txt"), "one two thr");
    write_text(tmpdir_path(state, "g.yaml"),
               "model: {name: gpt, layers: 1, width: 32, heads: 2, seq: 16, vocab: 128}\n"
               "data: {format: text, path: all.txt}\n"
               "train: {steps: 60, batch: 16, threads: 1, optimizer: adamw, lr: 0.01}\n");
    outcome o = runs(*state, "train g.yaml --out g");
    outcome_free(&o);
    o = runs(*state, "generate g -n 1 -t 0 --json --prompt thr");
    json_t *j = json_of(o.out);
    int64_t next = at(json_object_get(j, "tokens"), 3);
    json_decref(j);
    outcome_free(&o);
    write_text(tmpdir_path(state, "some.txt"), "thr");
    o = runs(*state, "predict g some.txt --json");
    j = json_of(o.out);
    const json_t *p = json_array_get(json_object_get(j, "predictions"), 0);
    assert_int_equal(field(json_object_get(p, "classes"), 0, "class"), next);
    json_decref(j);
    outcome_free(&o);
}

static int64_t first_class(void **state, const char *line, size_t sample, double *probability)
{
    outcome o = runs(*state, line);
    json_t *j = json_of(o.out);
    const json_t *p = json_array_get(json_object_get(j, "predictions"), sample);
    const json_t *classes = json_object_get(p, "classes");
    if (!classes) fail_msg("%s: no classes: %s", line, o.out);
    int64_t class = (int64_t)field(classes, 0, "class");
    *probability = field(classes, 0, "probability");
    json_decref(j);
    outcome_free(&o);
    return class;
}

/* What follows a prefix is told of its last token, whatever fills up behind it: as generate has it,
 * of texts as of arrays, and with the model's own pad. */
static void predict_prefixes(void **state)
{
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "q.yaml"),
               "model: {name: seq2seq, layers: 1, width: 16, heads: 2, hidden: 16, seq: 16, "
               "source: 12, vocab: 128, pad: 127}\ndata: {format: text, path: t.txt}\n"
               "train: {batch: 4, steps: 30, lr: 0.01, threads: 1}\n");
    outcome o = runs(*state, "train q.yaml --out q");
    outcome_free(&o);
    write_text(tmpdir_path(state, "from.txt"), "ran");
    write_text(tmpdir_path(state, "so_far.txt"), "tr");
    o = runs(*state, "generate q -n 1 -t 0 --json --source ran --prompt tr");
    json_t *j = json_of(o.out);
    int64_t next = at(json_object_get(j, "tokens"), 2);
    json_decref(j);
    outcome_free(&o);
    double p, same;
    assert_int_equal(first_class(state, "predict q source=from.txt x=so_far.txt --json", 0, &p),
                     next);
    int32_t source[2][3] = {{'a', 'b', 'c'}, {'r', 'a', 'n'}}, x[2][16];
    for (int i = 0; i < 32; i++) x[i / 16][i % 16] = i % 16 < 2 ? "tr"[i % 16] : 127;
    write_npy(tmpdir_path(state, "from.npy"), "<i4", "2, 3", source, sizeof source);
    write_npy(tmpdir_path(state, "so_far.npy"), "<i4", "2, 16", x, sizeof x);
    assert_int_equal(first_class(state, "predict q source=from.npy x=so_far.npy --json", 1, &same),
                     next);
    assert_float_equal(same, p, 1e-6);
    write_text(tmpdir_path(state, "q/data.json"), "{\"kind\": \"records\"}"); /* as of arrays */
    assert_int_equal(first_class(state, "predict q source=from.npy x=so_far.npy --json", 1, &same),
                     next);
    write_npy(tmpdir_path(state, "long.npy"), "<i4", "1, 32", x, sizeof x);
    refuses(*state, 1, "predict q source=from.npy x=long.npy",
            "long.npy has [1,32], expected one or several samples of [16] tokens, or fewer");
}

/* Nothing attends to what fills up: a short text is as an array that has the model's pad. */
static void predict_padded(void **state)
{
    write_text(tmpdir_path(state, "b.yaml"),
               "model: {name: bert, layers: 1, width: 16, heads: 2, hidden: 16, seq: 12, vocab: "
               "131, mask: 130, pad: 129}\ndata: {format: text, path: t.txt}\n"
               "train: {batch: 4, steps: 3, lr: 0.01, threads: 1}\n");
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "short.txt"), "ring");
    int32_t x[12];
    for (int i = 0; i < 12; i++) x[i] = i < 4 ? "ring"[i] : 129;
    write_npy(tmpdir_path(state, "short.npy"), "<i4", "12", x, sizeof x);
    outcome o = runs(*state, "train b.yaml --out b");
    outcome_free(&o);
    double text, array;
    int64_t first = first_class(state, "predict b short.txt --json", 0, &text);
    assert_int_equal(first_class(state, "predict b short.npy --json", 0, &array), first);
    assert_true(text == array);
}

/* A model and data of one's own: a value that it names. */
static void predict_own(void **state)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    assert_true(n > 0);
    path[n] = '\0';
    strcpy(strrchr(path, '/') + 1, "own_run");
    how own = {.other = path};
    float x[3 * 64];
    some_numbers(x, 3 * 64);
    write_npy(tmpdir_path(state, "w.npy"), "<f4", "3, 64", x, sizeof x);
    static const char *const lines[] = {"train waves -s train.steps=5 -s train.threads=1 --out w",
                                        "predict w w.npy --result guess --npy w_out.npy"};
    for (int i = 0; i < 2; i++) {
        outcome o = program_run(*state, &own, lines[i]);
        if (o.status) fail_msg("%s: %s", lines[i], o.err);
        outcome_free(&o);
    }
    float *guess = numbers(tmpdir_path(state, "w_out.npy"), 3), truth[3] = {1, 2, 3};
    write_npy(tmpdir_path(state, "f.npy"), "<f4", "3, 1", truth, sizeof truth);
    outcome two = program_run(*state, &own,
                              "predict w frequency=f.npy wave=w.npy --result off --npy off.npy");
    if (two.status) fail_msg("%s", two.err);
    outcome_free(&two);
    float *off = numbers(tmpdir_path(state, "off.npy"), 3);
    for (int i = 0; i < 3; i++) assert_float_equal(off[i], guess[i] - truth[i], 1e-6);
    free(guess), free(off);
    two = program_run(*state, &own, "predict w w.npy --result off");
    assert_non_null(
        strstr(two.err, "off reads 2 inputs and needs one file for each: wave=FILE is missing"));
    outcome_free(&two);
    outcome o = program_run(*state, &own, "predict w w.npy");
    assert_non_null(strstr(o.err, "name it (ll_graph_name) and give --result"));
    outcome_free(&o);
}

/* What export --c writes, compiled, prints what predict gives. */
static void export_c(void **state)
{
    float x[2 * PIXELS];
    char command[600];
    double got;
    some_numbers(x, 2 * PIXELS);
    write_npy(tmpdir_path(state, "two.npy"), "<f4", "2, 28, 28", x, sizeof x);
    static const char *const lines[] = {"export r --c c", "predict r two.npy --npy two_out.npy"};
    for (int i = 0; i < 2; i++) {
        outcome o = runs(*state, lines[i]);
        outcome_free(&o);
    }
    float *want = numbers(tmpdir_path(state, "two_out.npy"), 20);
    snprintf(command, sizeof command,
             "cd %s/c && cc -O1 -o model model.c main.c -lm && ./model weights.bin ../two.npy",
             (const char *)*state);
    FILE *f = popen(command, "r");
    for (int k = 0; k < 20; k++) {
        assert_int_equal(fscanf(f, "%lf", &got), 1);
        assert_float_equal(got, want[k], 1e-5 * fmax(1, fabs((double)want[k])));
    }
    assert_int_equal(pclose(f), 0);
    free(want);
    write_npy(tmpdir_path(state, "bad.npy"), "<f4", "2, 14, 56", x, sizeof x);
    snprintf(command, sizeof command, "cd %s/c && ./model weights.bin ../bad.npy 2>&1",
             (const char *)*state);
    char line[200];
    f = popen(command, "r");
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(strstr(line, "expected samples of (28, 28, 1)"));
    assert_int_not_equal(pclose(f), 0);
    refuses(*state, 1, "predict r two.npy --npy two.npy", "--npy two.npy is an input",
            "another name");
    refuses(*state, 1, "predict r x=two.npy --npy two.npy", "--npy two.npy is an input");
    write_text(tmpdir_path(state, "r/a.safetensors"), "mine");
    write_text(tmpdir_path(state, "r/a.npy"), "mine");
    refuses(*state, 1, "export r --weights r/a.safetensors", "belongs to a run");
    refuses(*state, 1, "predict r two.npy --npy r/a.npy", "belongs to a run");
    refuses(*state, 2, "export r --weights r/run.yaml",
            "expected a name that ends in .safetensors");
    outcome o = program_run(*state, NULL, "export r");
    assert_non_null(strstr(o.err, "--c DIR"));
    outcome_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eval_classes),     cmocka_unit_test(predict_arrays),
        cmocka_unit_test(predict_files),    cmocka_unit_test(predict_text),
        cmocka_unit_test(predict_prefixes), cmocka_unit_test(predict_padded),
        cmocka_unit_test(predict_own),      cmocka_unit_test(export_c)};
    return cmocka_run_group_tests(tests, setup, tmpdir_teardown);
}
