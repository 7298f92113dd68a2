/* Models of tokens in use: how long a text may become, prompts in PEFT's form, there and back. */
#include "cli/program.h"

#include <math.h>
#include <sys/resource.h>

static const char rail[] =
    "model: {name: llama, layers: 1, width: 16, heads: 2, kv_heads: 1, hidden: 24, seq: 12, "
    "vocab: 128}\n"
    "data: {format: text, path: t.txt}\n"
    "train: {batch: 4, steps: 30, lr: 0.01, threads: 1, log_every: 30}\n";

static void put_run(void **state)
{
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "l.yaml"), rail);
    must(*state, "train l.yaml --out l");
}

static char *text_of(void **state, const char *line)
{
    json_t *j = prints_json(*state, line);
    char *text = strdup(json_string_value(json_object_get(j, "text")));
    json_decref(j);
    return text;
}

/* A configuration of PEFT's that says something else than its tensor. */
static void contradicted(void **state)
{
    static const struct {
        const char *says, *told;
    } all[] = {{"\"num_virtual_tokens\": 9", "num_virtual_tokens is 9, but the tensor"},
               {"\"num_virtual_tokens\": \"3\"", "num_virtual_tokens is \"3\""},
               {"\"token_dim\": 64", "token_dim is 64, but the tensor"},
               {"\"num_transformer_submodules\": 2", "num_transformer_submodules is 2"}};
    const char *path = tmpdir_path(state, "peft/adapter_config.json");
    char *was = read_whole(path, NULL), text[256];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(text, sizeof text, "{\"peft_type\": \"PROMPT_TUNING\", %s}", all[i].says);
        write_text(path, text);
        refuses(*state, 1, "import hf --adapter peft --out x", all[i].told,
                "prompt_embeddings is [3,16]");
    }
    assert_false(file_exists(tmpdir_path(state, "x")));
    write_text(path, "{\"peft_type\": \"PROMPT_TUNING\", \"token_dim\": null}");
    must(*state, "import hf --adapter peft --out unsaid");
    write_text(path, was);
    free(was);
}

/* What export writes of a prompt is what import takes of PEFT's: the same text. */
static void prompts_of_peft(void **state)
{
    put_run(state);
    must(*state, "train l.yaml --out p -s train.prompt=3 -s train.lr=0.5 "
                 "--init l/checkpoints/step-00000030.safetensors");
    must(*state, "export l --hf hf");
    must(*state, "export p --adapter peft");
    char *config = read_whole(tmpdir_path(state, "peft/adapter_config.json"), NULL);
    json_t *j = json_loads(config, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "peft_type")), "PROMPT_TUNING");
    assert_string_equal(json_string_value(json_object_get(j, "task_type")), "CAUSAL_LM");
    assert_true(json_num(j, "num_virtual_tokens") == 3 && json_num(j, "token_dim") == 16);
    json_decref(j);
    free(config);
    outcome o = succeeds(*state, "import hf --adapter peft --out back");
    assert_non_null(strstr(o.out, "peft: a prompt of 3 vectors"));
    assert_non_null(strstr(o.err, "back: run.yaml"));
    outcome_free(&o);
    contradicted(state);
    must(*state, "import hf --out plain");
    char *with = text_of(state, "generate p -p train -n 40 -t 1 --json");
    char *back = text_of(state, "generate back -p train -n 40 -t 1 --json");
    char *plain = text_of(state, "generate plain -p train -n 40 -t 1 --json");
    assert_string_equal(with, back);
    assert_string_not_equal(with, plain);
    free(with), free(back), free(plain);
    o = succeeds(*state, "train l.yaml --out a -s train.lora=2 -s train.steps=1 "
                         "--init l/checkpoints/step-00000030.safetensors");
    assert_non_null(strstr(o.err, "; fresh: h0."));
    assert_non_null(strstr(o.err, ".lora_b and "));
    assert_null(strstr(o.err, "h0.mlp.down"));
    outcome_free(&o);
    must(*state, "export a --adapter lora --map hf-llama");
    refuses(*state, 1, "import hf --adapter lora --out x",
            "peft_type is LORA, expected PROMPT_TUNING", "merge_and_unload");
    refuses(*state, 1, "import hf --adapter hf --out x", "hf/adapter_config.json");
    refuses(*state, 1, "import hf --adapter peft", "--adapter needs --out");
    must(*state, "export l --gguf l.gguf");
    refuses(*state, 1, "import l.gguf --adapter peft --out x", "needs a Hugging Face folder");
    must(*state, "train l.yaml --out w -s model.width=8 -s train.steps=1");
    must(*state, "export w --hf narrow");
    refuses(*state, 1, "import narrow --adapter peft --out x", "prompt_embeddings [vectors,8]");
    assert_false(file_exists(tmpdir_path(state, "x")));
}

static void same_text(void **state, const char *one, const char *two)
{
    char *a = text_of(state, one), *b = text_of(state, two);
    assert_string_equal(a, b);
    free(a), free(b);
}

/* --context is taken as it is, or refused; a state is not read again where model.seq ends. */
static void contexts(void **state)
{
    put_run(state);
    must(*state, "train l.yaml --out y -s model.linear=1 -s model.decay=2 -s train.steps=200");
    write_text(tmpdir_path(state, "g.yaml"),
               "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 12, vocab: 128}\n"
               "data: {format: text, path: t.txt}\n"
               "train: {batch: 4, steps: 2, threads: 1}\n");
    must(*state, "train g.yaml --out g");
    must(*state, "train g.yaml --out h -s model.linear=1");
    refuses(*state, 1, "generate l -p a --context 13",
            "--context is 13, expected at most the 12 tokens of the model's sequences (model.seq)",
            "-s model.seq=13");
    refuses(*state, 1, "serve l --port 0 --context 13", "--context is 13", "-s model.seq=13");
    refuses(*state, 1, "generate g -p a --context 13", "its positions are weights");
    refuses(*state, 1, "generate h -p a --context 13", "its positions are weights");
    must(*state, "generate l -p a --context 13 -n 3 -s model.seq=13");
    must(*state, "generate l -p a --context 12 -n 30 --draft l");
    outcome o = succeeds(*state, "generate l -p in_the_beginning_was_a_ring -n 2");
    assert_non_null(strstr(o.err, "27 tokens at once, but only 12 are kept"));
    assert_non_null(strstr(o.err, "\n12 tokens read in "));
    outcome_free(&o);
    write_text(tmpdir_path(state, "q.jsonl"),
               "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n");
    o = succeeds(*state, "eval l --choices q.jsonl");
    assert_non_null(strstr(o.err, "question 1/1 | ")); /* how far it is */
    outcome_free(&o);
    refuses(*state, 1, "generate y -p a --context 1073741825",
            "--context is 1073741825, expected at most 1073741824; or leave it out");
    /* sizes that no tensor shows are those that were trained */
    refuses(*state, 1, "generate y -p a -s model.linear=0 -s model.decay=0", "model.linear is 0",
            "y was trained with 1", "only sample sizes (model.seq, model.image) may differ");
    refuses(*state, 1, "eval l -s model.window=3 -s model.seq=9",
            "model.window is 3, but l was trained with 0");
    refuses(*state, 1, "eval l.yaml -s out=y", "model.linear is 0, but y was trained with 1");
    refuses(*state, 1,
            "export l --weights x --checkpoint l/checkpoints/step-00000030.safetensors "
            "-s model.rope_base=9",
            "model.rope_base is 9, but l was trained with 100000");
    refuses(*state, 1, "train l --resume -s model.window=3 -s train.steps=31",
            "was made with model.window 0, but this run has 3");
    must(*state, "eval l -s model.window=12 -s model.seq=9 -s model.places=20"); /* as without */
    must(*state, "eval l --init l/checkpoints/step-00000030.safetensors -s model.window=3");
    same_text(state, "generate y -p train -n 60 -t 1 --json",
              "generate y -p train -n 60 -t 1 --json -s model.seq=100");
    same_text(state, "generate y -p train -n 60 -t 1 --json",
              "generate y -p train -n 60 -t 1 --json --context 90");
    char *all = text_of(state, "generate y -p train -n 60 -t 1 --json");
    char *cut = text_of(state, "generate y -p train -n 60 -t 1 --json --context 12");
    assert_string_not_equal(all, cut); /* what is read again is another text */
    free(all), free(cut);
    o = succeeds(*state, "generate y -p in_the_beginning_was_a_ring -n 2");
    assert_null(strstr(o.err, "only the last"));
    outcome_free(&o);
}

/* Forms are read to their ends; speed and what is kept are told of short and linear models too. */
static void forms(void **state)
{
    put_run(state);
    refuses(*state, 1, "compress l --to int8+", "--to int8+: nothing next to a +");
    refuses(*state, 1, "compress l --to f32,int8++kv8", "nothing next to a +");
    refuses(*state, 1, "compress l --to f32,", "--to f32,:", "none empty");
    refuses(*state, 1, "compress l --to f32,,int8", "none empty");
    refuses(*state, 1, "compress l --to int4+awq+awq", "+awq is given twice");
    refuses(*state, 1, "compress l --to int4+gptq+awq+gptq", "+gptq is given twice");
    refuses(*state, 1, "compress l --to 2:4+int8+int8", "+int8 is given twice");
    json_t *c = prints_json(*state, "compress l --to f32 --json -s model.seq=16");
    const json_t *f = json_array_get(json_object_get(c, "forms"), 0);
    assert_true(json_num(f, "drawn_per_s") > 0);
    assert_true(json_num(f, "cache_bytes_per_token") == 2 * 8 * sizeof(float));
    json_decref(c);
    must(*state, "train l.yaml --out y -s model.linear=1 -s train.steps=2");
    for (int seq = 12; seq < 40; seq += 12) {
        char line[128];
        snprintf(line, sizeof line, "compress y --to f32 --json -s model.seq=%d", seq);
        c = prints_json(*state, line);
        f = json_array_get(json_object_get(c, "forms"), 0);
        assert_true(json_num(f, "state_bytes") == 8 * 9 * sizeof(float));
        assert_null(json_object_get(f, "cache_bytes_per_token"));
        json_decref(c);
    }
    outcome o = succeeds(*state, "compress y --to f32");
    assert_non_null(strstr(o.out, " state "));
    outcome_free(&o);
}

/* What a run was trained with, where it stands in the way. */
static void trained_with(void **state)
{
    put_run(state);
    must(*state, "train l.yaml --out q -s model.width=32 -s train.quantize=int8 -s train.steps=2");
    refuses(*state, 1, "export q --c c", "--c cannot write rounded weights (train.quantize is int8",
            "-s train.quantize=none");
    refuses(*state, 1, "export q --onnx q.onnx",
            "--onnx cannot write rounded weights (train.quantize is int8",
            "-s train.quantize=none");
    must(*state, "export q --c c -s train.quantize=none");
    must(*state, "train l.yaml --out p -s train.prompt=3 -s train.steps=2 "
                 "--init l/checkpoints/step-00000030.safetensors");
    refuses(*state, 1, "train p --resume -s train.prompt=0 -s train.steps=4",
            "was made with train.prompt 3, but this run has 0: resume with --set train.prompt=3");
    must(*state, "train p --resume -s train.steps=4");
    must(*state, "train l.yaml --out a -s train.lora=2 -s train.steps=2 "
                 "--init l/checkpoints/step-00000030.safetensors");
    refuses(*state, 1, "train a --resume -s train.lora=3 -s train.steps=4",
            "was made with train.lora 2, but this run has 3: resume with --set train.lora=2");
    refuses(*state, 1, "eval p -s train.prompt=0", "1 tensor that the model does not have: prompt_",
            "set train.prompt to what its run had");
    refuses(*state, 1, "export a -s train.lora=0 --weights w", "weight.lora_a",
            "set train.lora to what its run had");
    refuses(*state, 1, "eval l --checkpoint a/checkpoints/step-00000002.safetensors", "lora_a");
    must(*state, "train l.yaml --out two -s model.layers=2 -s train.steps=1");
    refuses(*state, 1, "generate two -p a -s model.layers=1", "does not have: h1.attn.k.weight",
            "use the model settings of the run that wrote it");
    must(*state, "train l.yaml --out c -s train.lora=2 -s train.steps=1 -s model.width=32");
    refuses(
        *state, 1, "train c --resume -s train.base=int8 -s train.steps=4",
        "was made with train.base f32, but this run has int8: resume with --set train.base=f32");
}

/* Weights of fewer bits cost eval what they cost compress, and questions something too. */
static void fewer_bits(void **state)
{
    static const char *const types[] = {"f32", "int8", "int4"};
    char line[128];
    double likely[3];
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "l.yaml"), rail);
    must(*state, "train l.yaml --out w -s model.width=64 -s model.hidden=96 -s train.steps=60");
    write_text(tmpdir_path(state, "q.jsonl"),
               "{\"question\": \"a ring\", \"choices\": [\"of\", \"zz\"], \"answer\": 0}\n");
    json_t *c = prints_json(*state, "compress w --to f32,int8,int4 --samples 7 --json");
    for (int i = 0; i < 3; i++) {
        const json_t *f = json_array_get(json_object_get(c, "forms"), (size_t)i);
        snprintf(line, sizeof line, "eval w --weights %s --samples 7 --json", types[i]);
        json_t *e = prints_json(*state, line);
        double is = json_num(e, "perplexity"), want = json_num(f, "perplexity");
        printf("%s: perplexity %.6f, %.6f of compress\n", types[i], is, want);
        assert_true(fabs(is / want - 1) < 1e-5);
        assert_true(!i || fabs(json_num(f, "change")) > 1e-4);
        json_decref(e);
        snprintf(line, sizeof line, "eval w --weights %s --choices q.jsonl --json", types[i]);
        e = prints_json(*state, line);
        const json_t *q = json_array_get(json_object_get(e, "questions"), 0);
        likely[i] = json_number_value(json_array_get(json_object_get(q, "log_likelihood"), 0));
        assert_true(!i || likely[i] != likely[i - 1]);
        json_decref(e);
    }
    json_decref(c);
    outcome o = succeeds(*state, "compress w --to int4+gptq --calibrate 1000000000 -n 2");
    const char *first = strstr(o.err, "calibration: window 1/"); /* of an epoch, at most */
    assert_true(first && atol(strchr(first, '/') + 1) < 1000);
    outcome_free(&o);
    refuses(*state, 1, "eval w --weights int3", "--weights is 'int3', expected f32, int8 or int4");
    refuses(*state, 1, "eval w --weights int8 -s parallel.exact=true", "exact=false");
    refuses(*state, 1, "eval w --weights int8 --top 2",
            "combined with --classes, --confusion, --top");
    must(*state, "train l.yaml --out v -s model.width=12 -s train.steps=1");
    refuses(*state, 1, "eval v --weights int8", "blocks of 32 inputs");
    must(*state, "train l.yaml --out q -s model.width=32 -s train.quantize=int8 -s train.steps=2");
    refuses(*state, 1, "eval q --weights int8", "-s train.quantize=none");
    write_text(tmpdir_path(state, "m.yaml"),
               "model: {name: mlp, image: 8, width: 32, depth: 1, classes: 4}\n"
               "data: {name: synthetic, samples: 40}\ntrain: {batch: 8, steps: 1}\n");
    must(*state, "train m.yaml --out m");
    refuses(*state, 1, "eval m --weights int8", "needs a model of tokens, not mlp");
}

static double loss_of(void **state, const char *line)
{
    json_t *j = prints_json(*state, line);
    double loss = json_num(j, "val_loss");
    json_decref(j);
    return loss;
}

/* The loss is the mean over what is masked, however the set is cut into batches, of which each
 * draws its own. */
static void masked(void **state)
{
    FILE *f = fopen(tmpdir_path(state, "t.txt"), "w");
    for (int i = 0; i < 500; i++) fputs("abcdefghijkl", f); /* all windows are the same */
    fclose(f);
    write_text(tmpdir_path(state, "b.yaml"),
               "model: {name: bert, layers: 1, width: 16, heads: 2, hidden: 24, seq: 12, "
               "vocab: 128, mask: 3}\n"
               "data: {format: text, path: t.txt}\n"
               "train: {batch: 4, steps: 1, lr: 1e-9, threads: 1}\n");
    must(*state, "train b.yaml --out b");
    assert_float_equal(loss_of(state, "eval b --json"), log(128), 0.1);
    assert_float_equal(loss_of(state, "eval b --json -s train.batch=1"), log(128), 0.1);
    assert_float_equal(loss_of(state, "eval b --json -s train.batch=64"), log(128), 0.1);
    double one = loss_of(state, "eval b --json --samples 4"); /* a batch */
    assert_true(loss_of(state, "eval b --json --samples 8") != one);
    must(*state, "export b --onnx b.onnx --c b.c"); /* which hide nothing */
}

/* Pads among what is to be told weigh nothing, however the set is cut into batches. */
static void padded(void **state)
{
    FILE *f = fopen(tmpdir_path(state, "t.txt"), "w");
    for (int i = 0; i < 500; i++) fputs("abcdefghbbbbbbbbbbb", f); /* not as many in each window */
    fclose(f);
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: seq2seq, layers: 1, width: 16, heads: 2, hidden: 24, seq: 12, "
               "source: 5, vocab: 128, pad: 98}\n"
               "data: {format: text, path: t.txt}\n"
               "train: {batch: 4, steps: 1, lr: 1e-9, threads: 1}\n");
    must(*state, "train s.yaml --out s");
    double all = loss_of(state, "eval s --json");
    assert_true(all > 0.8 * log(128) && all < 2 * log(128));
    assert_float_equal(loss_of(state, "eval s --json -s train.batch=1"), all, 1e-5);
    assert_float_equal(loss_of(state, "eval s --json -s train.batch=64"), all, 1e-5);
}

/* Models of others, weights and runs, each where another one is wanted. */
static void mistaken(void **state)
{
    put_run(state);
    must(*state, "export l --hf hf");
    must(*state, "export l --gguf l.gguf");
    refuses(*state, 1, "generate l.gguf", "loopline import l.gguf --out DIR");
    must(*state, "train l.yaml --out few -s data.name=synthetic -s data.path= -s data.format= "
                 "-s model.vocab=64 -s train.steps=1");
    refuses(*state, 1, "export few --gguf few.gguf", "64 tokens are not bytes of text", "--hf");
    refuses(*state, 1, "eval hf",
            "hf is a model in another format: make a run of it with loopline import hf --out DIR");
    refuses(*state, 1, "generate l/checkpoints/step-00000030.safetensors", "is a file of weights",
            "--checkpoint (train: --init)");
    refuses(*state, 1, "import l", "l is already a run");
    static const char *const named[] = {".gguf", ".onnx", ".safetensors"};
    for (int i = 0; i < 3; i++) { /* a run is one, whatever its name */
        must(*state, "import hf --out i%s", named[i]);
        must(*state, "generate i%s -n 2", named[i]);
        must(*state, "inspect i%s", named[i]);
        must(*state, "train i%s --out t%s -s data.format=text -s data.path=t.txt -s train.steps=2",
             named[i], named[i]);
        must(*state, "eval t%s --samples 2", named[i]);
    }
    refuses(*state, 1, "import t.txt", "a folder with config.json");
    refuses(*state, 1, "import l/checkpoints/step-00000030.safetensors",
            "weights only (safetensors, a checkpoint of a run): give it", "a GGUF or an ONNX file");
    refuses(*state, 1, "import hf/model.safetensors", "weights only (safetensors): give it");
    write_text(tmpdir_path(state, "cut.safetensors"), "cut");
    refuses(*state, 1, "import cut.safetensors", "safetensors");
    must(*state, "import hf --out i");
    refuses(*state, 1, "import hf --out i", "i already holds a run"); /* and shows nothing */
    must(*state, "eval i -s data.format=text -s data.path=t.txt --samples 2");
    must(*state, "tokens train t.txt --vocab 280 --out tokenizer.json");
    refuses(*state, 1, "train l.yaml --out x -s data.tokenizer=tokenizer.json",
            "but model.vocab is 128: set model.vocab=");
    assert_false(file_exists(tmpdir_path(state, "x")));
    refuses(*state, 1, "generate l -p a --mesh data=2", "--mesh data=2: axis data gives",
            "use 2, or axis tensor");
    refuses(*state, 1, "generate l -p a --mesh sequence=2",
            "--mesh sequence=2: axis sequence cuts texts", "use axis tensor or pipe");
    json_t *j = prints_json(*state, "generate l -p a -p b -n 2 --json"); /* as its help says */
    assert_true(json_is_array(j) && json_array_size(j) == 2);
    json_decref(j);
    must(*state, "generate l -p a -n 2 --draft l"); /* fewer than are guessed at once */
    must(*state, "generate l -p a -n 1 --draft l");
    refuses(*state, 1, "generate l -p a -n 30 --draft l --draft-tokens 12",
            "--draft-tokens is 12, expected fewer than the 12 tokens that are kept");
}

/* Tuned on shorter sequences, a model of others still knows those that it came with. */
static void tuned_shorter(void **state)
{
    put_run(state);
    must(*state, "export l --hf hf");
    must(*state, "export l --gguf l.gguf");
    must(*state, "import hf --out i");
    must(*state, "import l.gguf --out j");
    const char *how = "-s data.format=text -s data.path=t.txt -s model.seq=5 -s train.lora=2 "
                      "-s train.steps=1 -s train.batch=4";
    must(*state, "train i --out a %s", how);
    must(*state, "train j --out b %s", how);
    refuses(*state, 1, "train a --resume -s model.places=99 -s train.steps=2",
            "was made with model.places 12, but this run has 99");
    must(*state, "export a --gguf a.gguf");
    must(*state, "export b --hf back");
    must(*state, "generate a -p train --context 12 -n 9");
    refuses(*state, 1, "generate a -p train --context 13",
            "the 12 tokens of the model's sequences (model.places)");
    json_t *j = prints_json(*state, "import a.gguf --json");
    assert_true(json_num(json_object_get(j, "sizes"), "seq") == 12);
    json_decref(j);
    char *text = read_whole(tmpdir_path(state, "back/config.json"), NULL);
    assert_non_null(strstr(text, "\"max_position_embeddings\": 12"));
    free(text);
}

/* An export that is refused leaves what was there, and nothing where nothing was. */
static void refused_exports(void **state)
{
    static const char *const runs[] = {"p", "lin"};
    static const char *const why[] = {"export it with --adapter", "model.linear is 1"};
    char line[128];
    put_run(state);
    must(*state, "train l.yaml --out p -s train.prompt=3 -s train.steps=1");
    must(*state, "train l.yaml --out lin -s model.linear=1 -s train.steps=1");
    must(*state, "train l.yaml --out a -s train.lora=2 -s train.steps=1");
    must(*state, "export l --hf hf");
    must(*state, "export l --hf kept");
    for (int i = 0; i < 2; i++) {
        snprintf(line, sizeof line, "export %s --hf hf --overwrite", runs[i]);
        refuses(*state, 1, line, why[i]);
        assert_same_file(tmpdir_path(state, "hf/config.json"),
                         tmpdir_path(state, "kept/config.json"));
        assert_same_file(tmpdir_path(state, "hf/model.safetensors"),
                         tmpdir_path(state, "kept/model.safetensors"));
        snprintf(line, sizeof line, "export %s --hf new/deep", runs[i]);
        refuses(*state, 1, line, why[i]);
        assert_false(file_exists(tmpdir_path(state, "new")));
    }
    /* nor does one that the disk has no room for: those that were there stay, all of them */
    struct rlimit was, small = {1000, 0};
    getrlimit(RLIMIT_FSIZE, &was);
    small.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    outcome o = program_run(*state, NULL, "export l --hf hf --overwrite");
    outcome n = program_run(*state, NULL, "export l --hf anew");
    outcome c = program_run(*state, NULL, "export l --c code");
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_DFL);
    if (o.status != 1 || !strstr(o.err, "model.safetensors")) fail_msg("%d: %s", o.status, o.err);
    assert_int_equal(n.status, 1);
    assert_int_equal(c.status, 1);
    outcome_free(&o), outcome_free(&n), outcome_free(&c);
    assert_false(file_exists(tmpdir_path(state, "anew")));
    assert_false(file_exists(tmpdir_path(state, "code")));
    for (int i = 0; i < 3; i++) {
        static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};
        char one[64], two[64];
        snprintf(one, sizeof one, "hf/%s", files[i]);
        snprintf(two, sizeof two, "kept/%s", files[i]);
        assert_same_file(tmpdir_path(state, one), tmpdir_path(state, two));
    }
    assert_int_equal(rmdir(tmpdir_path(state, "hf")), -1);
    must(*state, "export l --hf hf --overwrite");
    must(*state, "export a --adapter peft --map hf-llama");
    char *before = read_whole(tmpdir_path(state, "peft/adapter_config.json"), NULL);
    refuses(*state, 1, "export p --adapter peft",
            "peft/adapter_config.json already exists: use --overwrite to remove the files of an "
            "adapter");
    char *after = read_whole(tmpdir_path(state, "peft/adapter_config.json"), NULL);
    assert_string_equal(before, after);
    free(before), free(after);
    refuses(*state, 1, "export l --adapter peft --overwrite", "the model has no adapters");
    assert_true(file_exists(tmpdir_path(state, "peft/adapter_model.safetensors")));
    refuses(*state, 1, "export p --adapter l", "l already holds a run");
    must(*state, "export p --adapter peft --overwrite");
    refuses(*state, 1, "export l --hf .", ". holds other files (", "use --overwrite to write");
    assert_false(file_exists(tmpdir_path(state, "config.json")));
    assert_int_equal(mkdir(tmpdir_path(state, "repository"), 0777), 0);
    write_text(tmpdir_path(state, "repository/README.md"), "of a model\n");
    must(*state, "export l --hf repository");
    write_text(tmpdir_path(state, "repository/notes.txt"), "of somebody\n");
    must(*state, "export l --hf repository --overwrite");
    assert_true(file_exists(tmpdir_path(state, "repository/notes.txt")));
    must(*state, "export p --adapter kept"); /* beside a model: nothing of it is an adapter's */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(contexts, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(forms, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(trained_with, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(fewer_bits, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(masked, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(padded, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(mistaken, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(tuned_shorter, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(refused_exports, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(prompts_of_peft, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
