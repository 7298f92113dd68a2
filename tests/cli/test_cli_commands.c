/* The commands besides train: each agrees with it, and prints what scripts rely on. */
#include "ir/graph_text.h"
#include "cli/program.h"
#include "ir/ir.h"

#include <math.h>

/* ---- eval ---- */

static const char picture[] = "model: {name: mlp, image: 8, width: 16, depth: 1, classes: 4}\n"
                              "data: {name: synthetic, samples: 300, val_fraction: 0.11}\n"
                              "train: {batch: 8, steps: 20, threads: 1, eval_samples: 5}\n";

static const char sentence[] =
    "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 12, vocab: 128}\n"
    "data: {format: text, path: t.txt}\n"
    "train: {batch: 4, steps: 30, lr: 0.01, threads: 1, log_every: 30}\n";

static const char *trained_gpt(void **state)
{
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "s.yaml"), sentence);
    must(*state, "train s.yaml --out g");
    return *state;
}

static void eval_agrees_with_train(void **state)
{
    const char *folder = *state;
    static const char *const keys[] = {"val_loss", "val_accuracy"};
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "s.yaml"), sentence);
    write_text(tmpdir_path(state, "p.yaml"), picture);
    for (int i = 0; i < 2; i++) {
        json_t *t = prints_json(folder, i ? "train s.yaml --json" : "train p.yaml --json");
        json_t *e =
            prints_json(folder, i ? "eval runs/s --json" : "eval runs/p --json --samples 5");
        for (int k = 0; k < 2; k++)
            assert_true(json_equal(json_object_get(t, keys[k]), json_object_get(e, keys[k])));
        assert_true(json_num(t, "val_loss") > 0);
        assert_int_equal(json_num(e, "step"), i ? 30 : 20);
        assert_int_equal(json_num(e, "samples"), i ? 24 : 5);
        json_decref(t);
        json_decref(e);
    }
    json_t *few = prints_json(folder, "eval runs/p --json --samples 9");
    assert_int_equal(json_num(few, "samples"), 9);
    double right = 9 * json_num(few, "val_accuracy");
    assert_true(fabs(right - rint(right)) < 1e-6); /* whole images */
    json_decref(few);
    outcome o = succeeds(folder, "eval p.yaml"); /* the run's newest folder */
    assert_non_null(strstr(o.out, "p after step 20: validation loss "));
    assert_non_null(strstr(o.err, "p: mlp on "));
    assert_non_null(strstr(o.err, "validation samples\nsample "));
    outcome_free(&o);
}

/* ---- generate ---- */

static char *text_of(const char *folder, const char *line)
{
    outcome o = succeeds(folder, "%s", line);
    char *text = strdup(o.out);
    outcome_free(&o);
    return text;
}

#define assert_texts(equal, folder, a, b)                                                          \
    do {                                                                                           \
        char *a_ = text_of(folder, a), *b_ = text_of(folder, b);                                   \
        if ((strcmp(a_, b_) == 0) != (equal)) fail_msg("%s\n%s\n%s\n%s", a, a_, b, b_);            \
        free(a_);                                                                                  \
        free(b_);                                                                                  \
    } while (0)

static void generate_text(void **state)
{
    const char *f = trained_gpt(state);
    assert_texts(true, f, "generate g -p a -n 40", "generate g -p a -n 40");
    assert_texts(true, f, "generate g -p a -n 40 --seed 1", "generate g -p a -n 40");
    assert_texts(false, f, "generate g -p a -n 40 --seed 2", "generate g -p a -n 40");
    assert_texts(false, f, "generate g -p a -n 40 -t 3", "generate g -p a -n 40");
    assert_texts(true, f, "generate g -p a -n 40 -t 0", "generate g -p a -n 40 --top-k 1");
    assert_texts(true, f, "generate g -p a -n 40 -t 0 --seed 9", "generate g -p a -n 40 -t 0");
    assert_texts(true, f, "generate g -p a -n 40 -k 500", "generate g -p a -n 40");
    char *text = text_of(f, "generate g -p abc -n 17");
    assert_memory_equal(text, "abc", 3);
    assert_int_equal(strlen(text), 3 + 17 + 1); /* bytes below 128; none is 0 here */
    free(text);
    text = text_of(f, "generate g -p abc -n 0");
    assert_string_equal(text, "abc\n");
    free(text);
    assert_texts(true, f, "generate g -p a -n 40 --profile", "generate g -p a -n 40");
    outcome o = succeeds(f, "generate g -p a -n 40 --profile");
    const char *table = strstr(o.err, "op, of a token\n");
    assert_non_null(table);
    assert_non_null(strstr(table, "  cached_attend\n"));
    outcome_free(&o);
    refuses(f, 1, "generate g --profile --draft g", "cannot be combined");
}

/* A prompt longer than the window: its end decides, what is before does not. */
/* With a model that guesses, right or wrong, the text is the one without. */
static void generate_with_a_draft(void **state)
{
    const char *f = trained_gpt(state);
    must(f, "train s.yaml --out h --set model.width=8 --set train.steps=15");
    must(f, "train s.yaml --out v --set model.vocab=140 --set train.steps=1");
    assert_texts(true, f, "generate g -p a -n 60 -t 0", "generate g -p a -n 60 -t 0 --draft h");
    assert_texts(true, f, "generate g -p a -n 60 -t 0",
                 "generate g -p a -n 60 -t 0 --draft g --draft-tokens 3");
    assert_texts(true, f, "generate g -p a -p rin -n 41 --seed 4 --top-k 20 --repetition 1.1",
                 "generate g -p a -p rin -n 41 --seed 4 --top-k 20 --repetition 1.1 --draft h");
    outcome o = succeeds(f, "generate g -p a -n 60 -t 0 --draft g");
    const char *end = strstr(o.err, " guesses were right");
    assert_non_null(end);
    while (end[-1] != '\n') end--;
    assert_true(atoi(end) > 30);
    outcome_free(&o);
    refuses(f, 1, "generate g --draft v", "its tokens differ from those of g");
    assert_texts(true, f, "generate g -p a -n 30 --seed 4",
                 "generate g -p a -n 30 --seed 4 --draft h --mesh tensor=2");
}

/* What answers a source is asked with one. */
static void generate_from_a_source(void **state)
{
    const char *f = trained_gpt(state);
    write_text(
        tmpdir_path(state, "q.yaml"),
        "model: {name: seq2seq, layers: 1, width: 16, heads: 2, hidden: 16, seq: 16, source: "
        "12, vocab: 128}\ndata: {format: text, path: t.txt}\n"
        "train: {batch: 4, steps: 30, lr: 0.01, threads: 1, log_every: 30}\n");
    must(f, "train q.yaml --out q");
    assert_texts(true, f, "generate q -p a -n 12 --source the_ring",
                 "generate q -p a -n 12 --source the_ring --mesh tensor=2");
    assert_texts(false, f, "generate q -p a -n 12 --source the_ring",
                 "generate q -p a -n 12 --source ran");
    assert_texts(true, f, "generate q -p a -p b -n 12 --source ran",
                 "generate q -p a -p b -n 12 --source ran --source ran");
    refuses(f, 1, "generate q -p a", "needs a source", "--source TEXT");
    refuses(f, 1, "serve q --port 0", "needs a source");
    refuses(f, 1, "generate g -p a --source b", "--source needs a model that reads one");
    refuses(f, 1, "generate q -p a --source 0123456789abcdef", "expected 1 to 12 (model.source)");
    refuses(f, 1, "generate q -p a --source a --source b", "one for each");
    refuses(f, 1, "generate q -p a --source a --draft q", "cannot be combined");
}

/* Keys and values of fewer tokens than there are; of model g, whose perplexity is `exact`. */
static void keeps_few(void **state, double exact)
{
    json_t *c =
        prints_json(*state, "compress g --to f32,f32+keep:12,f32+keep:6,int8+keep:3 --samples 7 "
                            "--json");
    for (size_t i = 1; i < 4; i++) { /* keep:12: all */
        const json_t *x = json_array_get(json_object_get(c, "forms"), i);
        static const double rows[] = {12, 12, 6, 3};
        double off = fabs(json_num(x, "perplexity") / exact - 1), full = 2 * 32 * sizeof(float);
        double more = i > 1 ? 2 * 2 * sizeof(float) : 0; /* masses and places, of 2 heads */
        assert_true(json_num(x, "cache_bytes_per_token") == floor(rows[i] * (full + more) / 12));
        assert_true(i == 1 ? off < 1e-5 : off > 0 && off < 1);
    }
    json_decref(c);
    refuses(*state, 1, "compress g --to int4+keep:0", "N of +keep:N is '0', expected");
    refuses(*state, 1, "compress g --to f32+keep:4+keep:5", "+keep:5 is given twice");
    refuses(*state, 1, "compress g --to nonsense --calibrate 1",
            "--to nonsense: expected f32, int8");
    refuses(*state, 1, "compress g --to f32+kv8+keep:4", "--keep needs --cache f32");
    refuses(*state, 1, "generate g --keep 4 --draft g", "--keep cannot be combined with --draft");
    refuses(*state, 1, "generate g --keep 4 --exact", "--keep needs --cache f32 and no exact");
}

/* With a state in place of keys and values. */
static void linear_states(void **state)
{
    must(*state, "train s.yaml --out y -s model.linear=1 -s train.steps=4");
    write_text(tmpdir_path(state, "y.jsonl"),
               "{\"question\": \"a\", \"choices\": [\"b\", \"cd\"], \"answer\": 0}\n");
    json_t *c = prints_json(*state, "compress y --samples 3 --json"), *e = NULL;
    assert_int_equal(json_array_size(json_object_get(c, "forms")), 3);
    e = prints_json(*state, "eval y --choices y.jsonl --json");
    json_decref(c);
    json_decref(e);
    refuses(*state, 1, "generate y --keep 4", "linear attention keeps a state");
    refuses(*state, 1, "train y --resume -s model.linear=0 -s train.steps=6",
            "was made with model.linear 1, but this run has 0: resume with --set model.linear=1");
    must(*state, "train s.yaml --out z -s train.quantize=int8 -s train.steps=4");
    refuses(*state, 1, "eval z --choices y.jsonl", "-s train.quantize=none");
    refuses(*state, 1, "train z --resume -s train.quantize=none -s train.steps=6",
            "was made with train.quantize int8");
    refuses(*state, 1,
            "verify s.yaml --mesh data=2 -s train.prune=2:4 -s train.prune_steps=10:20:5 "
            "-s train.steps=60",
            "use --steps 16 or more");
}

/* By the run g, whose settings are in s.yaml. */
static void teaches(void **state)
{
    must(*state, "train s.yaml --out t -s train.teacher=./g -s model.width=16 -s train.steps=4");
    must(*state, "train t --resume -s train.steps=6");
    must(*state, "train s.yaml --out h -s train.teacher=./g -s train.teacher_hidden=h0=h0 "
                 "-s model.width=16 -s train.steps=4");
    must(*state, "train h --resume -s train.steps=6");
    refuses(*state, 1, "train h --resume -s train.steps=8 -s train.teacher_hidden=h0=h0.mlp",
            "was made with train.teacher_hidden h0=h0");
    must(*state, "eval h");
    refuses(*state, 1,
            "train s.yaml --out u -s train.teacher=./g -s train.teacher_hidden=h0=h0 "
            "-s train.teacher_weight=0 -s model.vocab=129",
            "./g uses other tokens: its vocabulary is 128, this run's is 129");
    write_text(tmpdir_path(state, "q.yaml"),
               "model: {name: seq2seq, layers: 1, width: 16, heads: 2, hidden: 16, seq: 16, "
               "source: 12}\ndata: {format: text, path: t.txt}\n");
    refuses(
        *state, 1, "train q.yaml --out u",
        "data text holds bytes, but model.vocab is seq2seq's default 37000: set model.vocab=256");
    must(*state, "train s.yaml --out i -s model.width=16 -s train.steps=1 "
                 "--init h/checkpoints/step-00000006.safetensors");
    must(*state, "train s.yaml --out v -s model.width=12 -s train.steps=1");
    refuses(*state, 1, "compress v --to int8", "blocks of 32 inputs");
    refuses(*state, 1, "train s.yaml --out u -s train.teacher=s.yaml", "no checkpoint");
}

static void exports(void **state)
{
    must(*state, "export g --gguf g.gguf --dtype q4_1 --calibrate 9");
    must(*state, "export g --hf hf");
    refuses(*state, 1, "export g --hf hf", "model.safetensors already exists: use --overwrite");
    write_text(tmpdir_path(state, "hf/model-00001-of-00002.safetensors"), "of another");
    must(*state, "export g --hf hf --overwrite");
    assert_int_equal(access(tmpdir_path(state, "hf/model-00001-of-00002.safetensors"), F_OK), -1);
    assert_int_equal(access(tmpdir_path(state, "hf/tokenizer.json"), F_OK), 0); /* of bytes */
    refuses(*state, 1, "export g --hf g", "g already holds a run");
    refuses(*state, 1, "export g --gguf h.gguf --dtype q8_0 --calibrate 9", "q4_1");
    refuses(*state, 1, "export g --hf h --map hf-gpt2", "--map needs --weights FILE.safetensors");
    refuses(*state, 1, "export g --c h --dtype bf16", "--dtype needs --weights");
    refuses(*state, 1, "export g --gguf h.gguf --result logits",
            "--result needs --c DIR or --onnx");
    refuses(*state, 1, "export g --gguf h.gguf --overwrite",
            "--overwrite needs --adapter DIR or --hf DIR");
}

/* The first form is the model as eval measures it; others are smaller, and not the same. */
static void compresses(void **state)
{
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: gpt, layers: 1, width: 32, heads: 2, seq: 12, vocab: 128}\n"
               "data: {format: text, path: t.txt}\n"
               "train: {batch: 4, steps: 60, lr: 0.01, threads: 1, log_every: 60}\n");
    must(*state, "train s.yaml --out g");
    json_t *e = prints_json(*state, "eval g --json --samples 7");
    json_t *c =
        prints_json(*state, "compress g --to f32,int8,int4,f32+kv8,int4+gptq,int8+awq,int4+awq,"
                            "int4+awq+gptq,f32+kv4 --calibrate 9 --samples 7 --json");
    const json_t *f = json_object_get(c, "forms"), *first = json_array_get(f, 0);
    double exact = json_num(first, "perplexity");
    assert_true(fabs(exact / json_num(e, "perplexity") - 1) < 1e-5);
    for (size_t i = 1; i < 9; i++) {
        const json_t *x = json_array_get(f, i);
        const char *smaller = i == 3 || i == 8 ? "cache_bytes_per_token" : "weight_bytes";
        double off = fabs(json_num(x, "perplexity") / exact - 1);
        printf("%s: %+.3f%%\n", json_string_value(json_object_get(x, "form")),
               100 * json_num(x, "change"));
        /* 12 tokens are no group of keys, and the ring is larger than they are */
        assert_true(i == 8 || json_num(x, smaller) < json_num(first, smaller));
        assert_true(off > 0 && off < (i == 1 || i == 3 || i == 5 || i == 8 ? 0.02 : 0.3));
        assert_true(json_num(x, "drawn_per_s") > 0 && json_num(x, "read_per_s") > 0);
    }
    json_decref(e);
    json_decref(c);
    c = prints_json(*state, "compress g --to f32,2:4,sparse:0.5,2:4+int8 --samples 7 --json");
    for (size_t i = 0; i < 4; i++) {
        const json_t *x = json_array_get(json_object_get(c, "forms"), i);
        double off = fabs(json_num(x, "perplexity") / exact - 1);
        assert_true(json_num(x, "zeros") == (i ? 0.5 : 0));
        assert_true(i ? off > 1e-4 && off < 2 : off < 1e-5);
    }
    json_decref(c);
    /* zeros of training are those of the form, and a run that goes on keeps to them */
    must(*state,
         "train s.yaml --out p -s train.prune=2:4 -s train.steps=4 -s train.weight_decay=0.1 "
         "--init g/checkpoints/step-00000060.safetensors");
    must(*state, "train p --resume -s train.steps=6");
    c = prints_json(*state, "compress p --to f32,2:4 --samples 7 --json");
    for (size_t i = 0; i < 2; i++) {
        const json_t *x = json_array_get(json_object_get(c, "forms"), i);
        assert_true(json_num(x, "zeros") == 0.5 && json_num(x, "change") == 0);
    }
    json_decref(c);
    refuses(*state, 1, "train p --resume -s train.steps=8 -s train.prune=none",
            "was made with train.prune 2:4");
    c = prints_json(*state, "compress g --to int4 --samples 7 --json"); /* and what it is held to */
    const json_t *both = json_object_get(c, "forms");
    assert_int_equal(json_array_size(both), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(both, 0), "form")), "f32");
    assert_true(json_num(json_array_get(both, 1), "change") != 0);
    json_decref(c);
    keeps_few(state, exact);
    refuses(*state, 1, "compress g --to int3", "f32, int8, int4, int8+awq, int4+awq, int4+gptq");
    refuses(*state, 1, "compress g --to 4:2", "N:M with 0 < N < M");
    refuses(*state, 1, "compress g --to sparse:none", "sparse:SHARE");
    refuses(*state, 1, "compress g --to 2:4+int4", "4 bits would not keep the zeros");
    refuses(*state, 1, "compress g --to int8+x", "only +kv8, +kv4, +keep:N");
    refuses(*state, 1, "compress g --to int8+gptq", "+gptq (after int4)");
    refuses(*state, 1, "compress g --to f32+awq", "+awq (after int4 and int8)");
    refuses(*state, 1, "compress g --to 2:4+awq", "only +int8, +kv8, +kv4 and +keep:N");
    refuses(*state, 1, "compress g --to=", "--to is empty");
    refuses(*state, 1, "compress g --to int4 --calibrate 9",
            "--calibrate needs a form with +gptq or +awq");
    linear_states(state);
    teaches(state);
    exports(state);
}

/* Little by little; a run that goes on from between makes the same checkpoint, to the bit. */
static void prunes_gradually(void **state)
{
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: gpt, layers: 1, width: 32, heads: 2, seq: 12, vocab: 128}\n"
               "data: {format: text, path: t.txt}\n"
               "train: {batch: 4, steps: 60, lr: 0.01, threads: 1, log_every: 60}\n");
    must(*state, "train s.yaml --out l -s train.prune=0.8 -s train.prune_steps=1:6:2 "
                 "-s train.steps=8 -s train.ema=0.5 -s train.save_every=1 -s train.keep=9");
    for (int step = 3; step <= 5; step++) { /* before it is due, and behind it */
        char line[128];
        rename(tmpdir_path(state, "l/checkpoints/step-00000008.safetensors"),
               tmpdir_path(state, "whole.safetensors"));
        snprintf(line, sizeof line, "train l --resume --from l/checkpoints/step-%08d.safetensors",
                 step);
        must(*state, line);
        assert_same_file(tmpdir_path(state, "l/checkpoints/step-00000008.safetensors"),
                         tmpdir_path(state, "whole.safetensors"));
    }
    json_t *c = prints_json(*state, "compress l --to f32,sparse:0.8 --samples 7 --json");
    for (size_t i = 0; i < 2; i++) { /* of what is averaged over steps, too */
        const json_t *x = json_array_get(json_object_get(c, "forms"), i);
        assert_true(fabs(json_num(x, "zeros") - 0.8) < 1e-3 && json_num(x, "change") == 0);
    }
    json_decref(c);
    refuses(*state, 1, "train l --resume -s train.steps=9 -s train.prune_steps=1:7",
            "was made with train.prune_steps 1:6:2");
    refuses(*state, 1, "train s.yaml --out u -s train.prune=0.8 -s train.prune_steps=1:60",
            "last prunes after step 60, but the run ends after step 60");
    refuses(*state, 1,
            "train s.yaml --out u -s train.prune=0.8 -s train.prune_steps=1:6 "
            "-s train.delay=true",
            "train.prune_steps cannot be combined with gradients a step late");
}

/* What a run was trained for is what it generates with, but for inputs of products, which are
 * rounded to 8 bits there; its weights themselves are others. */
static void trains_for_blocks(void **state)
{
    put_text(tmpdir_path(state, "t.txt"));
    write_text(
        tmpdir_path(state, "b.yaml"),
        "model: {name: gpt, layers: 1, width: 32, heads: 1, seq: 12, vocab: 128}\n"
        "data: {format: text, path: t.txt}\n"
        "train: {batch: 4, steps: 60, lr: 0.05, threads: 1, log_every: 60, quantize: int4}\n");
    must(*state, "train b.yaml --out b");
    json_t *e = prints_json(*state, "eval b --json --samples 7");
    json_t *p = prints_json(*state, "eval b --json --samples 7 -s train.quantize=none");
    json_t *c = prints_json(*state, "compress b --to f32,int4 --samples 7 --json");
    const json_t *f = json_object_get(c, "forms");
    double rounded = json_num(e, "perplexity"), plain = json_num(p, "perplexity");
    double one = json_num(json_array_get(f, 0), "perplexity");
    double two = json_num(json_array_get(f, 1), "perplexity");
    printf("%.6g, not rounded %.6g; generating %.6g and %.6g\n", rounded, plain, two, one);
    assert_true(fabs(one / plain - 1) < 1e-5 && fabs(two / rounded - 1) < 2e-3);
    assert_true(fabs(rounded / plain - 1) > 2 * fabs(two / rounded - 1));
    json_decref(e);
    json_decref(p);
    json_decref(c);
    must(*state, "train b --resume -s train.steps=62");
    refuses(*state, 1, "compress b --to int4+gptq", "train.quantize=int4");
    refuses(*state, 1, "export b --gguf x.gguf --dtype q4_1 --calibrate 2", "train.quantize=int4");
    refuses(*state, 1, "train b.yaml --out u -s model.width=12", "rows of whole blocks of 32");
}

static double likely(const json_t *j, size_t question, size_t choice)
{
    const json_t *q = json_array_get(json_object_get(j, "questions"), question);
    return json_number_value(json_array_get(json_object_get(q, "log_likelihood"), choice));
}

/* Choices by likelihood: what was learned is taken, and the likelihood of two words is that of the
 * first, and of the second behind it. */
static void eval_choices(void **state)
{
    const char *f = trained_gpt(state);
    write_text(tmpdir_path(state, "q.jsonl"),
               "{\"question\": \"the\", \"choices\": [\" ring ran\", \" ring\", \"zq\"], "
               "\"answer\": \"zq\"}\n\r\n"
               "{\"question\": \"the ring\", \"choices\": [\"ran\", \"xyz\"], \"answer\": \"A\"}\n"
               "{\"question\": \"the ring\", \"choices\": [\" xyz\", \" ran\"], \"answer\": 1}");
    json_t *j = prints_json(f, "eval g --choices q.jsonl --json");
    const json_t *last = json_array_get(json_object_get(j, "questions"), 2);
    assert_true(json_array_size(json_object_get(j, "questions")) == 3);
    assert_true(json_num(last, "line") == 4 && json_num(last, "picked") == 1);
    assert_true(fabs(likely(j, 0, 0) - likely(j, 0, 1) - likely(j, 1, 0)) < 1e-4);
    assert_true(fabs(likely(j, 1, 0) - likely(j, 2, 1)) < 1e-5); /* a blank comes between */
    assert_true(fabs(likely(j, 1, 1) - likely(j, 2, 0)) < 1e-5);
    assert_true(likely(j, 0, 0) < likely(j, 0, 1) && likely(j, 0, 1) < 0);
    assert_true(fabs(json_num(j, "accuracy") - 2.0 / 3) < 1e-9);
    assert_true(fabs(json_num(j, "chance") - 4.0 / 9) < 1e-9);
    json_decref(j);
    j = prints_json(f, "eval g --choices q.jsonl --json --samples 1");
    assert_true(json_array_size(json_object_get(j, "questions")) == 1);
    json_decref(j);
    static const char *const bad[][2] = {
        {"x", "b.jsonl:2: not valid JSON"},
        {"{\"choices\": [\"a\", \"b\"], \"answer\": 0}",
         "b.jsonl:2: field \"question\" is missing"},
        {"{\"question\": \"a\", \"choices\": [\"a\"], \"answer\": 0}",
         "b.jsonl:2: field \"choices\""},
        {"{\"question\": \"a\", \"choices\": [\"a\", 7], \"answer\": 0}",
         "b.jsonl:2: choice 1 is empty or not a string"},
        {"{\"question\": \"a\", \"choices\": [\"a\", \"b\"], \"answer\": 2}",
         "b.jsonl:2: field \"answer\""},
        {"{\"question\": \"a\", \"choices\": [\"a\", \"b\"], \"answer\": \"C\"}",
         "letter (A to B)"},
        {"{\"question\": \"0123456789abcdef\", \"choices\": [\"a\", \"b\"], \"answer\": 0}",
         "b.jsonl:2: question and choice 0 are 18 tokens, but the model reads at most 12"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"question\": \"a\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n%s\n",
                 bad[i][0]);
        write_text(tmpdir_path(state, "b.jsonl"), text);
        refuses(f, 1, "eval g --choices b.jsonl", bad[i][1]);
    }
    refuses(f, 1, "eval g --choices q.jsonl --classes", "cannot be combined with --classes");
    refuses(f, 1, "eval g --choices none.jsonl", "none.jsonl: No such file");
}

static void generate_from_a_long_prompt(void **state)
{
    const char *f = trained_gpt(state);
    char *one = text_of(f, "generate g -n 9 -p 0123456789abthe_ring_ran_on");
    char *two = text_of(f, "generate g -n 9 -p zzzzzzzzzzzzthe_ring_ran_on");
    assert_int_equal(strlen(one), 27 + 9 + 1);
    assert_memory_equal(one, "0123456789ab", 12);
    assert_string_equal(one + 14, two + 14);
    free(one);
    free(two);
    json_t *j = prints_json(f, "generate g -n 9 -p the_ring --json");
    assert_int_equal(json_array_size(json_object_get(j, "tokens")), 8 + 9);
    assert_memory_equal(json_string_value(json_object_get(j, "text")), "the_ring", 8);
    json_decref(j);
}

/* A mesh may be said as a setting; what no rank can do is told once, before any is started where
 * that can be known. */
static void generate_on_meshes(void **state)
{
    const char *f = trained_gpt(state);
    outcome o = succeeds(f, "generate g -p a -n 9 -s parallel.mesh=tensor=2");
    assert_non_null(strstr(o.err, "memory of a rank"));
    outcome_free(&o);
    refuses(f, 1, "generate g -p a -m tensor=2 -s parallel.mesh=tensor=3", "leave one out");
    refuses(f, 1, "generate g -p a -m tensor=1000", "mesh tensor=1000 has 1000 ranks", "cores");
    static const char *const once[][2] = {
        {"generate g -p a -m tensor=2 --exact --weights int8", "cannot be combined"},
        {"generate g -p a -m tensor=2 --checkpoint nope", "nope"}};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) {
        o = program_run(f, NULL, once[i][0]);
        const char *at = strstr(o.err, once[i][1]);
        if (!o.status || !at || strstr(at + 1, "loopline generate:"))
            fail_msg("%s: status %d: %s", once[i][0], o.status, o.err);
        outcome_free(&o);
    }
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    refuses(f, 1, "generate g -p a", "3 ranks were started: use --mesh tensor=3");
    refuses(f, 1, "serve g --port 0", "3 ranks were started: use --mesh tensor=3");
    refuses(f, 1, "generate g -p a -m tensor=2", "has 2 ranks, but mpirun started 3: start 2");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
}

static void generate_refuses(void **state)
{
    const char *f = trained_gpt(state);
    refuses(f, 1, "generate g -t -1", "--temperature is -1", "0 or more");
    refuses(f, 2, "generate g -n -3", "-n is '-3'", "a whole number");
    refuses(f, 1, "generate g -p caf\xc3\xa9", "byte 195", "below 128");
    const char *const words[] = {"generate", "g", "-p", "", NULL};
    outcome o = program_wait(f, program_start(f, NULL, words));
    assert_int_equal(o.status, 1);
    assert_non_null(strstr(o.err, "--prompt is empty"));
    outcome_free(&o);
    write_text(tmpdir_path(state, "p.yaml"), picture);
    must(f, "train p.yaml --out p");
    refuses(f, 1, "generate p", "mlp does not generate text");
}

/* ---- inspect, models, data ---- */

/* The text of a graph reads back, and prints the same. */
static void check_graph(const char *folder, const char *line)
{
    char *text = text_of(folder, line);
    ll_graph *g;
    if (ll_parse(text, &g) != LL_OK) fail_msg("%s: %s", line, ll_error_text());
    assert_string_equal(ll_print(g, g->arena), text);
    ll_graph_free(g);
    free(text);
}

static void graphs_read_back(void **state)
{
    const char *f = *state;
    json_t *models = prints_json(f, "models --json"), *m;
    size_t i;
    assert_true(json_array_size(models) >= 2);
    json_array_foreach(models, i, m)
    {
        char line[128];
        const char *name = json_string_value(json_object_get(m, "name"));
        snprintf(line, sizeof line, "inspect %s --graph --set train.batch=2", name);
        check_graph(f, line);
        strcat(line, " --eval");
        check_graph(f, line);
    }
    json_decref(models);
}

static void inspects_runs_and_checkpoints(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "p.yaml"), picture);
    json_t *t = prints_json(f, "train p.yaml --out p --json");
    json_t *j = prints_json(f, "inspect p --json");
    assert_int_equal(json_num(j, "parameters"), json_num(t, "parameters"));
    assert_int_equal(json_num(j, "peak_bytes"), json_num(t, "tensor_bytes_planned"));
    assert_true(json_num(j, "flops") > 0);
    json_decref(j);
    j = prints_json(f, "inspect p/checkpoints/step-00000020.safetensors --json");
    assert_string_equal(json_string_value(json_object_get(j, "step")), "20");
    const json_t *tensors = json_object_get(j, "tensors");
    assert_int_equal(json_array_size(tensors), 12); /* two layers: weight, bias; adam's two each */
    assert_string_equal(json_string_value(json_object_get(json_array_get(tensors, 0), "name")),
                        "fc1.bias");
    json_decref(j);
    json_decref(t);
    char *text = text_of(f, "inspect p --program");
    assert_non_null(strstr(text, "\ntensors "));
    assert_non_null(strstr(text, "\nfusions, and how often:\n  chain "));
    free(text);
}

static void counts_parameters(void **state)
{
    static const struct {
        const char *name;
        double parameters;
    } known[] = {{"gpt", 124439808},     {"lenet5", 61706},
                 {"alexnet", 61100840},  {"resnet18", 11689512},
                 {"resnet34", 21797672}, {"resnet50", 25557032},
                 {"googlenet", 6624904}, {"mlp", 784 * 256 + 256 + 256 * 256 + 256 + 2570}};
    json_t *models = prints_json(*state, "models --json"), *m;
    size_t i, found = 0;
    json_array_foreach(models, i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (!strcmp(known[k].name, name)) {
                assert_true(json_num(m, "parameters") == known[k].parameters);
                found++;
            }
        assert_true(json_num(m, "flops_per_sample") > 0);
        assert_true(json_object_size(json_object_get(m, "sizes")) > 0);
    }
    assert_int_equal(found, sizeof known / sizeof *known);
    json_decref(models);
    models = prints_json(*state, "models gpt --json --set model.layers=48 --set model.width=1600 "
                                 "--set model.heads=25");
    assert_int_equal(json_array_size(models), 1);
    assert_true(json_num(json_array_get(models, 0), "parameters") == 1557611200);
    json_decref(models);
}

static void lists_data(void **state)
{
    const char *f = *state;
    json_t *sets = prints_json(f, "data --json"), *d;
    size_t i;
    bool synthetic = false;
    json_array_foreach(sets, i, d)
    {
        assert_true(json_is_string(json_object_get(d, "name")));
        assert_true(json_is_boolean(json_object_get(d, "installed")));
        synthetic |= !strcmp(json_string_value(json_object_get(d, "name")), "synthetic");
    }
    assert_true(synthetic);
    json_decref(sets);
    put_text(tmpdir_path(state, "t.txt"));
    d = prints_json(f, "data --path t.txt --format text --json");
    assert_string_equal(json_string_value(json_object_get(d, "kind")), "tokens");
    assert_int_equal(json_num(d, "vocab"), 256);
    json_decref(d);
    char *text = text_of(f, "data --path t.txt --format text --count 9");
    assert_non_null(strstr(text, "ring of rails"));
    free(text);
    text = text_of(f, "data synthetic --count 2 --val");
    assert_non_null(strstr(text, "10000 train"));
    free(text);
}

/* ---- bench, help ---- */

#define SMALL_GPT                                                                                  \
    "bench step gpt --json --seconds 0.05 --threads 1 --batch 2 --set model.layers=1 --set "       \
    "model.width=32 --set model.heads=2 --set model.seq=16 --set model.vocab=50"

static void bench_prints_its_keys(void **state)
{
    static const char *const keys[] = {
        "step_ms", "samples_per_s", "tokens_per_s", "gflops", "percent_of_gemm_peak",
        "mfu",     "hfu",           "peak_bytes",   "batch",  "threads"};
    json_t *j = prints_json(*state, SMALL_GPT);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) assert_true(json_num(j, keys[i]) > 0);
    assert_string_equal(json_string_value(json_object_get(j, "model")), "gpt");
    assert_string_equal(json_string_value(json_object_get(j, "machine")), "cpu");
    assert_string_equal(json_string_value(json_object_get(j, "precision")), "f32");
    assert_int_equal(json_num(j, "batch"), 2);
    assert_true(json_is_boolean(json_object_get(j, "gemm_held_up")));
    double samples = json_num(j, "samples_per_s"), ms = json_num(j, "step_ms");
    assert_true(fabs(samples - 2e3 / ms) < 1e-6 * samples);
    assert_true(fabs(json_num(j, "tokens_per_s") - 16 * samples) < 1e-5 * samples);
    assert_true(json_num(j, "loss_last") < json_num(j, "loss_first"));
    json_decref(j);
}

/* The model's FLOPs and those that kernels make: convolutions that make fewer, and a net that makes
 * activations again. */
static void flops_of_the_model(void **state)
{
    static const char *const runs[] = {"bench step lenet5 --batch 4 --set train.conv=fast",
                                       "bench step lenet5 --batch 4 --set parallel.recompute=full"};
    for (int again = 0; again < 2; again++) {
        char line[256];
        snprintf(line, sizeof line, "%s --json --seconds 0.05 --threads 1", runs[again]);
        json_t *j = prints_json(*state, line);
        double model = json_num(j, "model_flops"), made = json_num(j, "flops_done"),
               loops = json_num(j, "flops_of_loops");
        assert_true(again ? model < loops : model == loops && made < model);
        assert_true(fabs(json_num(j, "mfu") * made / (json_num(j, "hfu") * model) - 1) < 1e-6);
        json_decref(j);
    }
    double plain = 0; /* the same of the net as declared, whatever a step makes besides */
    static const char *const besides[] = {"", "--set parallel.exact=true",
                                          "--set train.optimizer=muon"};
    for (int i = 0; i < 3; i++) {
        char line[512];
        snprintf(line, sizeof line, "%s %s", SMALL_GPT, besides[i]);
        json_t *j = prints_json(*state, line);
        if (i == 0) plain = json_num(j, "model_flops");
        assert_true(json_num(j, "model_flops") == plain);
        assert_true(json_num(j, "flops_of_loops") > plain);
        json_decref(j);
    }
    json_t *j = prints_json(*state, "plan lenet5 --cluster dgx-h100 --ranks 2 --json --set "
                                    "parallel.recompute=full");
    const json_t *best = json_array_get(json_object_get(j, "plans"), 0);
    assert_true(json_num(best, "hardware_percent_of_peak") > json_num(best, "percent_of_peak"));
    json_decref(j);
}

static void every_command_has_help(void **state)
{
    static const char *const names[] = {"train",  "eval", "generate", "inspect",
                                        "models", "data", "bench"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char want[64];
        snprintf(want, sizeof want, "usage: loopline %s ", names[i]);
        outcome a = succeeds(*state, "%s --help", names[i]),
                b = succeeds(*state, "help %s", names[i]);
        if (strncmp(a.out, want, strlen(want))) fail_msg("%s --help: %s", names[i], a.out);
        assert_string_equal(a.out, b.out);
        assert_string_equal(a.err, "");
        assert_non_null(strstr(a.out, "--json"));
        outcome_free(&a);
        outcome_free(&b);
    }
    char *version = text_of(*state, "--version");
    assert_memory_equal(version, "loopline ", 9);
    free(version);
}

/* ---- plan ---- */

static void plans(void **state)
{
    static const char keys[] =
        "mesh layout schedule micro_batch micro_batches virtual_stages zero recompute offload "
        "train step_s low_s high_s model_flops_per_rank percent_of_peak hardware_percent_of_peak "
        "bytes_per_rank reserved_bytes bytes_by_kind samples_per_s tokens_per_s fits bubble "
        "exposed_comm_s bytes_moved";
    const char *folder = *state;
    write_text(tmpdir_path(state, "s.yaml"), sentence);
    write_text(tmpdir_path(state, "p.yaml"), picture);
    for (int i = 0; i < 2; i++) { /* by layers; compiled and replayed */
        json_t *j = prints_json(folder, i ? "plan p.yaml --cluster dgx-h100 --ranks 4 --json"
                                          : "plan s.yaml --cluster dgx-h100 --ranks 4 --json "
                                            "--report r.html --tokens 1e6 -s train.precision=fp8");
        json_t *best = json_array_get(json_object_get(j, "plans"), 0);
        char words[sizeof keys];
        strcpy(words, keys);
        for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
            assert_non_null(json_object_get(best, w));
        assert_true(json_num(best, "step_s") > 0 && json_is_true(json_object_get(best, "fits")));
        json_decref(j);
    }
    json_t *whole = prints_json(folder, "inspect s.yaml --json");
    json_t *count = prints_json(folder, "plan s.yaml --cluster dgx-h100 --ranks 4 --json");
    assert_true(json_num(whole, "parameters") == json_num(count, "parameters"));
    json_decref(whole);
    json_decref(count);
    size_t size;
    char *page = read_whole(tmpdir_path(state, "r.html"), &size);
    static const char *const parts[] = {"<h2>Roofline", " KiB", "are reserved",
                                        "Kernel speed: ", "loopline train s.yaml -n 4 "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(page, parts[i])) fail_msg("no '%s' in r.html", parts[i]);
    free(page);
    json_t *t = prints_json(folder, "train p.yaml --parallel auto --json --out one");
    assert_true(json_num(t, "predicted_step_ms") > 0);
    json_t *c = prints_json(folder, "plan --check one --json");
    json_t *run = json_array_get(json_object_get(c, "runs"), 0);
    assert_true(fabs(json_num(run, "step_ms") - json_num(t, "step_ms")) < 1e-3);
    assert_int_equal(json_num(c, "memory_exact"), 1);
    json_decref(t);
    json_decref(c);
    /* Errors of runs that others left no cores are in the mean, and apart. */
    assert_int_equal(mkdir(tmpdir_path(state, "two"), 0777), 0);
    write_text(tmpdir_path(state, "two/predictions.jsonl"),
               "{\"predicted_step_ms\":30,\"step_ms\":20,\"predicted_others\":0,\"others\":0.4}\n"
               "{\"predicted_step_ms\":22,\"step_ms\":20,\"predicted_others\":0.05,\"others\":0}\n"
               "{\"predicted_step_ms\":26,\"step_ms\":90,\"own_step_ms\":20}\n"
               "{\"predicted_step_ms\":26,\"step_ms\":90,\"own_step_ms\":null}\n");
    c = prints_json(folder, "plan --check two --json");
    assert_true(fabs(json_num(c, "mean_absolute_error") - 0.3) < 1e-6);
    assert_true(fabs(json_num(c, "mean_absolute_error_alone") - 0.1) < 1e-6);
    json_decref(c);
    outcome o = succeeds(folder, "plan --check two");
    assert_non_null(strstr(o.err, "of 1 that had their cores for themselves 10.0 %"));
    assert_non_null(strstr(o.err, "bytes of tensors and communication planned, used"));
    assert_non_null(strstr(o.err, "held up"));
    outcome_free(&o);
    /* A folder that cannot be read is told, and the others are. (Others may have held up `one`.) */
    write_text(tmpdir_path(state, "one/predictions.jsonl"),
               "{\"predicted_step_ms\":22,\"step_ms\":20}\n");
    o = program_run(folder, NULL, "plan --check one nosuch two");
    assert_int_equal(o.status, 1);
    assert_non_null(strstr(o.err, "nosuch/predictions.jsonl"));
    assert_non_null(strstr(o.err, "steps of 4 runs predicted"));
    assert_non_null(strstr(o.err, "1 of 3 folders could not be read"));
    outcome_free(&o);
    o = program_run(folder, NULL, "plan --check nosuch --check two --json");
    assert_int_equal(o.status, 1);
    c = json_of(o.out);
    assert_int_equal(json_array_size(json_object_get(c, "runs")), 4);
    json_decref(c);
    outcome_free(&o);
    json_t *large = prints_json(folder, "plan --large --json");
    assert_int_equal(json_array_size(json_object_get(large, "rows")), 10);
    assert_int_equal(json_num(large, "not_predicted"), 0); /* 72 heads on 16 ranks: 3-D products */
    json_decref(large);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(eval_agrees_with_train),
        IN_FOLDER(generate_text),
        IN_FOLDER(compresses),
        IN_FOLDER(eval_choices),
        IN_FOLDER(prunes_gradually),
        IN_FOLDER(trains_for_blocks),
        IN_FOLDER(generate_with_a_draft),
        IN_FOLDER(generate_from_a_source),
        IN_FOLDER(generate_from_a_long_prompt),
        IN_FOLDER(generate_on_meshes),
        IN_FOLDER(generate_refuses),
        IN_FOLDER(graphs_read_back),
        IN_FOLDER(inspects_runs_and_checkpoints),
        IN_FOLDER(counts_parameters),
        IN_FOLDER(lists_data),
        IN_FOLDER(bench_prints_its_keys),
        IN_FOLDER(flops_of_the_model),
        IN_FOLDER(every_command_has_help),
        IN_FOLDER(plans),
    };
    return cmocka_run_group_tests_name("cli_commands", tests, NULL, NULL);
}
