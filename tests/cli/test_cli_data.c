/* Data of one's own in the whole tool: arrays of NumPy's as a model's inputs, shown, trained on the
 * same on one rank and two, told of in data.json, and no other data when it is resumed. */
#include "cli/program.h"

#include <math.h>
#include <string.h>

/* n elements behind NumPy's header. */
static void put_npy(const char *path, const char *type, const char *shape, const void *data,
                    size_t bytes)
{
    uint8_t file[8192] = "\x93NUMPY\1\0\x76";
    int n = snprintf((char *)file + 10, 119, "{'descr': '%s', 'fortran_order': False, 'shape': %s}",
                     type, shape);
    memset(file + 10 + n, ' ', (size_t)(118 - n));
    memcpy(file + 128, data, bytes);
    write_whole(path, file, 128 + bytes);
}

static void arrays(void **state)
{
    const char *folder = *state;
    uint8_t pixels[80 * 16];
    int64_t labels[80];
    for (int i = 0; i < 80; i++) {
        labels[i] = i % 3;
        for (int k = 0; k < 16; k++) pixels[i * 16 + k] = (uint8_t)(80 * (i % 3) + k);
    }
    put_npy(tmpdir_path(state, "images.npy"), "|u1", "(80, 4, 4)", pixels, sizeof pixels);
    put_npy(tmpdir_path(state, "labels.npy"), "<i8", "(80,)", labels, sizeof labels);
    write_text(tmpdir_path(state, "a.yaml"),
               "model: {name: mlp, image: 4, channels: 1, classes: 3, width: 8, depth: 1}\n"
               "data: {path: ., format: npy, fields: \"x=images,y=labels\"}\n"
               "train: {batch: 8, steps: 40, lr: 0.02, threads: 1}\nparallel: {exact: true}\n");
    outcome o = succeeds(folder, "data --path . --format npy --fields x=images,y=labels -n 1");
    assert_non_null(strstr(o.out, "76 train, 4 validation"));
    assert_non_null(strstr(o.out, "x f32[4,4]: 0 0.00392157"));
    outcome_free(&o);
    json_t *j = prints_json(folder, "train a.yaml --out a --json");
    assert_float_equal(json_num(j, "val_accuracy"), 1, 0);
    json_decref(j);
    o = succeeds(folder, "train a.yaml --out b -n 2 --set data.threads=3");
    outcome_free(&o);
    char other[512];
    snprintf(other, sizeof other, "%s", tmpdir_path(state, "a/metrics.jsonl"));
    assert_same_file(other, tmpdir_path(state, "b/metrics.jsonl"));
    size_t n;
    char *told = read_whole(tmpdir_path(state, "a/data.json"), &n);
    assert_non_null(strstr(told, "\"files\": 2"));
    assert_non_null(strstr(told, "{\"name\": \"images.npy\", \"bytes\": 1408}"));
    free(told);
    char moved[512];
    snprintf(moved, sizeof moved, "%s", tmpdir_path(state, "other.npy"));
    assert_int_equal(rename(tmpdir_path(state, "labels.npy"), moved), 0);
    o = succeeds(folder, "predict a images.npy"); /* data.json is enough */
    assert_non_null(strstr(o.out, "images.npy[4]   1 "));
    assert_null(strstr(o.err, "note"));
    outcome_free(&o);
    assert_int_equal(rename(moved, tmpdir_path(state, "labels.npy")), 0);
    put_npy(tmpdir_path(state, "more.npy"), "<i8", "(80,)", labels, sizeof labels);
    refuses(folder, 1, "train a.yaml --out a --resume --set train.steps=41", "was made with data",
            "this run has", "resume with the data and settings it started with");
    refuses(folder, 1, "train a.yaml --out c --set data.fields=x=images", "the model takes y",
            "data.fields");
}

/* A cell that makes a column of a CSV something else than numbers is told, with its line. */
static void columns_that_are_text(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "t.csv"),
               "x,age,note,label\n1,30,a,0\n2,n/a,b,1\n3,40,c,0\n4,50,d,1\n");
    outcome o = succeeds(f, "data --path t.csv --format csv -n 1");
    assert_non_null(strstr(o.out, "note: t.csv:3: column age: 'n/a' is not a number, so the "
                                  "column is left out"));
    assert_non_null(strstr(o.out, "; column note is text, so it is left out, unless data.fields"));
    outcome_free(&o);
    refuses(f, 1, "data --path t.csv --format csv --fields x=age,y=label",
            "t.csv:3: column age: 'n/a' is not a number");
    refuses(f, 1, "data --path t.csv --format csv --fields x=note,y=label",
            "t.csv:2: column note: 'a' is not a number");
    write_text(tmpdir_path(state, "t.csv"), "x,label\n1,0\n2,1\n3,one\n4,0\n5,1\n6,0\n");
    json_t *j = prints_json(f, "data --path t.csv --format csv --json");
    assert_string_equal(json_string_value(json_object_get(j, "note")),
                        "t.csv:4: column label: 'one' is not a number, so labels are names");
    json_decref(j);
    write_text(tmpdir_path(state, "t.csv"), "x,age,label\n1,?,0\n2, 1 ,1\n3,2,none\n");
    j = prints_json(f, "data --path t.csv --format csv --json"); /* the first cell too, and all */
    assert_string_equal(json_string_value(json_object_get(j, "note")),
                        "t.csv:2: column age: '?' is not a number, so the column is left out; "
                        "t.csv:4: column label: 'none' is not a number, so labels are names");
    json_decref(j);
    static const char *const bad[][2] = {
        {"x,label,class\n1,0,1\n", "columns label and class are both labels"},
        {"x;label\n1;0\n", "separated by semicolons, expected commas"},
        {"x,label\r1,0\r", "t.csv:1: a line ends in a carriage return alone"}};
    for (int i = 0; i < 3; i++) {
        write_text(tmpdir_path(state, "t.csv"), bad[i][0]);
        refuses(f, 1, "data --path t.csv --format csv", bad[i][1]);
    }
    write_text(tmpdir_path(state, "t.csv"), "x , Label\n1, b\n2,a\n3,b \n");
    j = prints_json(f, "data --path t.csv --format csv --json");
    assert_int_equal(json_num(j, "classes"), 2);
    json_decref(j);
    write_text(tmpdir_path(state, "t.csv"), ",Split,x,label,,\n0,train,1,0,,\n1,val,2,1,,\n");
    o = succeeds(f, "data --path t.csv --format csv");
    assert_non_null(strstr(o.out, "1 train, 1 validation"));
    assert_non_null(strstr(o.out, "column 1 has no name, so it is left out; column 5"));
    outcome_free(&o);
    write_text(tmpdir_path(state, "t.csv"), "x,label\n1,0\n1e999,1\n");
    refuses(f, 1, "data --path t.csv --format csv --fields x=x,y=label",
            "t.csv:3: column x: '1e999' is not a number");
}

/* A table from its file to predictions: sizes are the table's, one rank and two train the same, and
 * what was trained holds for other files. */
static void tables(void **state)
{
    const char *f = *state;
    char text[8192], *p = text;
    p += sprintf(p, "id,a,b,c,d,e,f,g,h,i,j,price,kind\n");
    for (int r = 0; r < 60; r++) {
        p += sprintf(p, "r%d", r);
        for (int c = 0; c < 10; c++) p += sprintf(p, ",%d", 1000 * c + (r * (c + 3)) % 17);
        p += sprintf(p, ",%.2f,%s\n", r * 3 % 17 / 4.0, r * 3 % 17 > 8 ? "big" : "small");
    }
    write_text(tmpdir_path(state, "t.csv"), text);
    write_text(tmpdir_path(state, "t.yaml"),
               "model: {name: mlp, width: 16, depth: 1}\n"
               "data: {path: t.csv, format: csv, fields: \"y=kind,-price\", val_fraction: 0.2}\n"
               "train: {batch: 8, epochs: 30, optimizer: adamw, lr: 0.02, threads: 1}\n"
               "parallel: {exact: true}\n");
    json_t *j = prints_json(f, "train t.yaml --out a --json");
    assert_float_equal(json_num(j, "val_accuracy"), 1, 0);
    json_decref(j);
    outcome o = succeeds(f, "train t.yaml --out b -n 2");
    assert_non_null(strstr(o.err, "x: 10 columns: a, b, c, d, e, f, g, h, i, j\n"));
    outcome_free(&o);
    char other[512];
    snprintf(other, sizeof other, "%s", tmpdir_path(state, "a/metrics.jsonl"));
    assert_same_file(other, tmpdir_path(state, "b/metrics.jsonl"));
    write_text(tmpdir_path(state, "new.csv"), "j,i,h,g,f,e,d,c,b,a\n"
                                              "9000,8000,7000,6000,5000,4000,3000,2000,1000,0\n"
                                              "9009,8010,7011,6012,5013,4014,3015,2016,1000,16\n");
    o = succeeds(f, "predict a new.csv"); /* rows that are no labels' */
    assert_non_null(strstr(o.out, "new.csv[0]  small "));
    outcome_free(&o);
    write_text(tmpdir_path(state, "less.csv"), "a,b,kind\n1,2,big\n");
    refuses(f, 1, "eval a -s data.path=less.csv", "less.csv has no column c, one of the 10");
    refuses(f, 1, "predict a less.csv", "less.csv has no column c, one of the 10");
    refuses(f, 1, "train a --resume -s data.fields=y=kind,x=b+a+c+d+e+f+g+h+i+j",
            "resume with --set data.fields=");
    j = prints_json(f, "train t.yaml --out r --json -s data.fields=y=price,-kind"); /* numbers */
    assert_in_range(json_num(j, "val_loss") * 1e6, 0, 2e5);
    json_decref(j);
    o = succeeds(f, "eval r");
    assert_non_null(strstr(o.out, ", error "));
    assert_null(strstr(o.err, "have changed"));
    outcome_free(&o);
    o = succeeds(f, "predict r new.csv");
    assert_non_null(strstr(o.out, "  value\n"));
    outcome_free(&o);
    write_text(tmpdir_path(state, "new.csv"), "a,b,c,d,e,f,g,h,i,j\n1,2,3,4,5,6,7,8,9,1e300\n");
    refuses(f, 1, "predict r new.csv", "new.csv: x of line 2: number 10 is too large for f32");
    refuses(f, 1, "train t.yaml --out c -s data.fields=y=price+a,x=b+c+kind",
            "column kind: 'small' is not a number: correct it, or leave the column out");
    refuses(f, 1, "train t.yaml --out c -s data.fields=y=e,-kind", "set model.outputs=1");
    refuses(f, 1, "train t.yaml --out c -s data.path=none.csv", "set model.features");
    refuses(f, 1, "train t.yaml --out c -s data.image=4", "image and channels apply only");
    o = succeeds(f, "export a --onnx a.onnx");
    assert_non_null(strstr(o.out, "x is 10 columns: a, b, c, d, e, f, g, h, i, j, each less its "
                                  "mean, divided by its deviation (a/data.json)"));
    outcome_free(&o);
    refuses(f, 1, "data t.csv", "'t.csv' is a path, not the name of a dataset", "format=csv");
    o = succeeds(
        f, "verify t.yaml -n 2 --steps 3 -s data.fields=y=price,-kind -s parallel.exact=false");
    outcome_free(&o);
    p[-2] = p[-2] == 'l' ? 'r' : 'x'; /* of the last row's kind */
    write_text(tmpdir_path(state, "t.csv"), text);
    j = prints_json(f, "eval r --json");
    const char *note = json_string_value(json_object_get(j, "note"));
    assert_true(note && strstr(note, "the data files have changed since training"));
    json_decref(j);
}

#define LAST "checkpoints/step-00000005.safetensors"

/* Numbers that no model can take are told with their sample, not blamed on the rate; and npy as
 * DIR/train and DIR/val. */
static void samples_are_named(void **state)
{
    const char *f = *state;
    float x[40 * 16], nan = __builtin_nanf("");
    int32_t y[40];
    for (int i = 0; i < 40 * 16; i++) x[i] = (float)(i % 7) - 3;
    for (int i = 0; i < 40; i++) y[i] = i % 3;
    static const char *const parts[] = {"d/train/", "d/val/"};
    mkdir(tmpdir_path(state, "d"), 0777);
    for (int bad = 0; bad < 4; bad++) {
        for (int k = 0; k < 2; k++) {
            char path[64];
            snprintf(path, sizeof path, "%s", parts[k]);
            mkdir(tmpdir_path(state, path), 0777);
            float was = x[17 * 16 + 5];
            if (bad == 1 + k) x[17 * 16 + 5] = nan;
            if (bad == 3 && !k) y[11] = 9;
            snprintf(path, sizeof path, "%sx.npy", parts[k]);
            put_npy(tmpdir_path(state, path), "<f4", "(40, 4, 4, 1)", x, sizeof x);
            snprintf(path, sizeof path, "%sy.npy", parts[k]);
            put_npy(tmpdir_path(state, path), "<i4", "(40,)", y, sizeof y);
            x[17 * 16 + 5] = was;
            y[11] = 2;
        }
        write_text(tmpdir_path(state, "s.yaml"),
                   "model: {name: mlp, image: 4, channels: 1, classes: 3, width: 8, depth: 1}\n"
                   "data: {path: d, format: npy}\n"
                   "train: {batch: 8, epochs: 1, threads: 1}\n");
        if (!bad) must(f, "train s.yaml --out good");
        if (bad == 1)
            refuses(f, 1, "train s.yaml", "loss is nan", "x of sample 17 of d/train is nan");
        if (bad == 1)
            refuses(f, 1, "train s.yaml -n 2", "loss is nan", "x of sample 17 of d/train is nan");
        if (bad == 2)
            refuses(f, 1, "train s.yaml --out v", "validation:", "x of sample 17 of d/val is nan");
        if (bad == 2) { /* and what was learned until then is saved, not its averages */
            refuses(f, 1, "train s.yaml -n 2 --out w --set train.ema=0.5 --exact",
                    "validation: step 5: loss is nan");
            must(f, "train s.yaml --out u --set train.ema=0.5 --exact --set train.eval_samples=8");
            char *saved = strdup(tmpdir_path(state, "w/" LAST));
            assert_same_file(saved, tmpdir_path(state, "u/" LAST));
            free(saved);
            assert_true(file_exists(tmpdir_path(state, "v/" LAST)));
        }
        if (bad == 3)
            refuses(f, 1, "train s.yaml --set train.micro_batch=4", "expected 0 to 2",
                    "y of sample 11 of d/train is 9");
    }
    outcome o = program_run(f, NULL, "data --path d --format npy -n 1");
    assert_non_null(strstr(o.out, "40 train, 40 validation"));
    outcome_free(&o);
    refuses(f, 1, "train gpt-kjv --set data.tokenizer=no.json", "data.tokenizer: no.json: No such");
}

/* A file of validation that cannot be read costs no step: what is trained is saved, on one rank and
 * on several, of which one alone has read it. Mended, the run ends with the bits of a whole one. */
static void validation_that_fails(void **state)
{
    const char *f = *state;
    float x[40 * 16];
    double y[40];
    for (int i = 0; i < 40 * 16; i++) x[i] = (float)(i % 7) - 3;
    for (int i = 0; i < 40; i++) y[i] = i % 3;
    mkdir(tmpdir_path(state, "d"), 0777);
    mkdir(tmpdir_path(state, "d/train"), 0777);
    mkdir(tmpdir_path(state, "d/val"), 0777);
    put_npy(tmpdir_path(state, "d/train/x.npy"), "<f4", "(40, 4, 4, 1)", x, sizeof x);
    put_npy(tmpdir_path(state, "d/val/x.npy"), "<f4", "(40, 4, 4, 1)", x, sizeof x);
    put_npy(tmpdir_path(state, "d/train/y.npy"), "<f8", "(40,)", y, sizeof y);
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: mlp, image: 4, channels: 1, classes: 3, width: 8, depth: 1}\n"
               "data: {path: d, format: npy}\nparallel: {exact: true}\n"
               "train: {batch: 16, steps: 9, threads: 1, eval_every: 7, ema: 0.9}\n");
    char whole[512];
    snprintf(whole, sizeof whole, "%s", tmpdir_path(state, "whole/metrics.jsonl"));
    static const struct {
        const char *ranks, *text;
        int at; /* 37: in the short batch behind the others */
        double y;
    } bad[] = {{"", "y of sample 13 of d/val is 9", 13, 9},
               {"", "y of sample 13 is 1.5", 13, 1.5},
               {"-n 2", "y of sample 13 is 1.5", 13, 1.5},
               {"-n 3", "y of sample 37 is 1.5", 37, 1.5}};
    put_npy(tmpdir_path(state, "d/val/y.npy"), "<f8", "(40,)", y, sizeof y);
    must(f, "train s.yaml --out whole");
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        char line[128];
        y[bad[k].at] = bad[k].y;
        put_npy(tmpdir_path(state, "d/val/y.npy"), "<f8", "(40,)", y, sizeof y);
        y[bad[k].at] = bad[k].at % 3;
        snprintf(line, sizeof line, "train s.yaml %s --out o --overwrite", bad[k].ranks);
        outcome o = program_run(f, NULL, line);
        assert_int_equal(o.status, 1);
        assert_non_null(strstr(o.err, bad[k].text));
        assert_non_null(strstr(o.err, "step 7, whose validation failed, is saved"));
        outcome_free(&o);
        snprintf(line, sizeof line, "train o %s --resume", bad[k].ranks);
        o = program_run(f, NULL, line);
        assert_int_equal(o.status, 1);
        assert_non_null(strstr(o.err, bad[k].text));
        outcome_free(&o);
        put_npy(tmpdir_path(state, "d/val/y.npy"), "<f8", "(40,)", y, sizeof y);
        o = succeeds(f, line);
        assert_non_null(strstr(o.err, "resumed after step 7 of 9"));
        assert_non_null(strstr(o.err, "validation is by other files than it was"));
        outcome_free(&o);
        assert_same_file(whole, tmpdir_path(state, "o/metrics.jsonl"));
    }
    put_npy(tmpdir_path(state, "d/val/x.npy"), "<f4", "(39, 4, 4, 1)", x, 39 * 16 * sizeof *x);
    put_npy(tmpdir_path(state, "d/val/y.npy"), "<f8", "(39,)", y, 39 * sizeof *y);
    outcome less = succeeds(f, "train o --resume -s train.steps=10"); /* a sample is left out */
    assert_non_null(strstr(less.err, "validation is by other files than it was"));
    outcome_free(&less);
    y[3] = 2; /* what it trains on may not change */
    put_npy(tmpdir_path(state, "d/train/y.npy"), "<f8", "(40,)", y, sizeof y);
    refuses(f, 1, "train o --resume -s train.steps=11", "its data files have changed");
}

/* Of a sample to train on that cannot be read one rank saves the steps before it. */
static void sample_that_fails(void **state)
{
    enum { N = 400, BAD = 300 }; /* the last four are for validation */
    const char *f = *state;
    static float x[N];
    static double y[N];
    for (int i = 0; i < N; i++) x[i] = (float)(i % 7) - 3;
    for (int i = 0; i < N; i++) y[i] = i == BAD ? 1.5 : i % 3;
    mkdir(tmpdir_path(state, "d"), 0777);
    put_npy(tmpdir_path(state, "d/x.npy"), "<f4", "(400, 1, 1, 1)", x, sizeof x);
    put_npy(tmpdir_path(state, "d/y.npy"), "<f8", "(400,)", y, sizeof y);
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: mlp, image: 1, channels: 1, classes: 3, width: 8, depth: 1}\n"
               "data: {path: d, format: npy, val_fraction: 0.01}\n"
               "train: {batch: 16, steps: 25, threads: 1, log_every: 1}\n");
    outcome o = program_run(f, NULL, "train s.yaml --out o");
    const char *said = strstr(o.err, ", after which a sample cannot be read, is saved");
    if (o.status != 1 || !strstr(o.err, "y of sample 300 is 1.5") || !said)
        fail_msg("%d: %s", o.status, o.err);
    int64_t step = 0;
    while (said[-1] != ' ') said--;
    assert_true(sscanf(said, "%ld", &step) == 1 && step > 0);
    outcome_free(&o);
    char line[96], name[64], whole[512];
    snprintf(line, sizeof line, "train s.yaml --out w -s train.steps=%ld", step);
    must(f, line);
    snprintf(name, sizeof name, "w/checkpoints/step-%08ld.safetensors", step);
    snprintf(whole, sizeof whole, "%s", tmpdir_path(state, name));
    *name = 'o';
    assert_same_file(whole, tmpdir_path(state, name));
    outcome end = succeeds(f, "eval o");
    outcome_free(&end);
}

/* A folder of pictures says how many classes there are; more than it has are told, and the rest
 * keep their names. */
static void folders_say_classes(void **state)
{
    const char *f = *state;
    size_t size;
    char *png = read_whole("tests/fuzz/corpus/pictures/grey.png", &size), path[64];
    assert_non_null(png);
    for (int i = 0; i < 9; i++) {
        static const char *const names[] = {"ant", "bee", "cat"};
        snprintf(path, sizeof path, "p/%s", names[i / 3]);
        if (i == 0) assert_int_equal(mkdir(tmpdir_path(state, "p"), 0777), 0);
        if (i % 3 == 0) assert_int_equal(mkdir(tmpdir_path(state, path), 0777), 0);
        snprintf(path + strlen(path), 16, "/%d.png", i);
        write_whole(tmpdir_path(state, path), png, size);
    }
    free(png);
    write_text(tmpdir_path(state, "p.yaml"),
               "model: {name: mlp, width: 8, image: 8, channels: 1}\n"
               "data: {path: p, format: images}\ntrain: {batch: 2, steps: 2, threads: 1}\n");
    for (int i = 0; i < 2; i++) {
        outcome o =
            succeeds(f, i ? "train p.yaml --out b -s model.classes=5" : "train p.yaml --out a");
        bool told = strstr(o.err, "\nnote: data images has 3 classes, but model.classes is 5\n");
        if (told != (i == 1)) fail_msg("%s", o.err);
        outcome_free(&o);
        json_t *j = prints_json(f, i ? "eval b --classes --json" : "eval a --classes --json");
        const json_t *classes = json_object_get(j, "classes");
        assert_int_equal(json_array_size(classes), i ? 5 : 3);
        const json_t *last = json_array_get(classes, 2), *more = json_array_get(classes, 4);
        assert_string_equal(json_string_value(json_object_get(last, "name")), "cat");
        if (i) assert_string_equal(json_string_value(json_object_get(more, "name")), "4");
        json_decref(j);
    }
    assert_int_equal(rename(tmpdir_path(state, "p/ant"), tmpdir_path(state, "ant")), 0);
    json_t *j = prints_json(f, "eval a --classes --json"); /* those left keep their numbers */
    const json_t *classes = json_object_get(j, "classes");
    assert_int_equal(json_array_size(classes), 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(json_num(json_array_get(classes, i), "support"), i > 0);
    json_decref(j);
}

/* Bits a byte are of the text that was evaluated: the tokenizer knows the text to train on and no
 * digits, of which each is a token. */
static void bits_of_what_was_evaluated(void **state)
{
    const char *f = *state;
    char digits[2001] = "";
    for (unsigned i = 0; i < 2000; i++) digits[i] = (char)('0' + i * i * 7 % 11 % 10);
    put_text(tmpdir_path(state, "t.txt"));
    char *text = read_whole(tmpdir_path(state, "t.txt"), NULL), both[8001];
    snprintf(both, sizeof both, "%s%s", text, digits);
    free(text);
    write_text(tmpdir_path(state, "v.txt"), digits);
    write_text(tmpdir_path(state, "both.txt"), both);
    must(f, "tokens train t.txt --vocab 290 --out k.json");
    write_text(tmpdir_path(state, "g.yaml"),
               "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 16}\n"
               "data: {format: text, path: t.txt, val_path: v.txt, tokenizer: k.json}\n"
               "train: {batch: 4, steps: 5, threads: 1}\n");
    must(f, "train g.yaml --out a");
    must(f, "train g.yaml --out b -s data.path=both.txt -s data.val_path= -s data.val_fraction=.1");
    static const char *const lines[] = {"eval a --json", "eval b --json",
                                        "eval a -s data.val_path=t.txt --json"};
    for (int i = 0; i < 3; i++) {
        json_t *j = prints_json(f, lines[i]);
        double bits = log2(json_num(j, "perplexity")), each = json_num(j, "bits_per_byte");
        if (i < 2) assert_float_equal(each, bits, 1e-6 * bits);
        if (i == 2) assert_true(each < 0.6 * bits); /* tokens of several bytes */
        json_decref(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(validation_that_fails, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(sample_that_fails, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(arrays, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(columns_that_are_text, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(folders_say_classes, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(bits_of_what_was_evaluated, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(tables, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(samples_are_named, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
