/* Bad input: each is refused in one line that names the thing and says what would be right; nothing
 * is printed on standard output, and no folder is left behind. */
#include "cli/program.h"

static const char picture[] = "model: {name: mlp, image: 8, width: 16, depth: 1, classes: 4}\n"
                              "data: {name: synthetic, samples: 40}\n"
                              "train: {batch: 8, steps: 4, threads: 1}\n";
static const char sentence[] =
    "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 12, vocab: 32}\n"
    "data: {name: synthetic, samples: 30}\n"
    "train: {batch: 4, steps: 4, threads: 1}\n";

#define LLAMA                                                                                      \
    "model: {name: llama, layers: 1, width: 16, heads: 2, kv_heads: 1, hidden: 32, seq: 12, "      \
    "vocab: 32}\ndata: {name: synthetic, samples: 30}\n"

static void put_runs(void *const *state)
{
    write_text(tmpdir_path(state, "l.yaml"), LLAMA "train: {batch: 4}\n");
    write_text(tmpdir_path(state, "p.yaml"), picture);
    write_text(tmpdir_path(state, "s.yaml"), sentence);
}

static void assert_no_run(void *const *state)
{
    assert_int_equal(tmpdir_count(tmpdir_path(state, "runs")), -1);
}

/* ---- the command line ---- */

static void command_line(void **state)
{
    const char *f = *state;
    put_runs(state);
    refuses(f, 2, "trian p.yaml", "unknown command 'trian'", "did you mean train?", "--help");
    refuses(f, 2, "train p.yaml --rezume", "--rezume", "did you mean --resume?", "--help");
    refuses(f, 2, "train p.yaml --out", "--out needs a value", "DIR");
    refuses(f, 2, "train p.yaml --json=yes", "--json takes no value", "yes");
    refuses(f, 2, "serve x --json", "serve has no option --json", "and others have it");
    refuses(f, 2, "inspect p.yaml --exact", "no option --exact; use -s parallel.exact=true");
    refuses(f, 2, "TRAIN p.yaml", "unknown command 'TRAIN'; did you mean train?");
    refuses(f, 2, "train --help=3", "--help takes no value");
    refuses(f, 2, "train p.yaml --batch-size 4", "use -s train.batch=...");
    refuses(f, 1, "train p.yaml -s train.optimizer=adam -s train.eps=1e-39", "train.eps is '1e-39'",
            "1.2e-38");
    refuses(f, 2, "train p.yaml --layers 4", "use -s model.layers=...");
    refuses(f, 2, "train p.yaml --gpus 2", "--gpus; use -n N");
    refuses(f, 2, "train p.yaml --nproc_per_node 2", "use -n N");
    refuses(f, 2, "train p.yaml --tp 2", "use --mesh tensor=N");
    refuses(f, 2, "train p.yaml --output-dir x", "use --out DIR");
    refuses(f, 2, "train p.yaml --micro_batch_size 4", "use -s train.micro_batch=N");
    refuses(f, 2, "eval p.yaml --output-dir x", "no option --output-dir; see"); /* it has none */
    refuses(f, 1, "plan s.yaml --cluster h200 -n 4 --mesh data:2", "expected data=SIZE");
    refuses(f, 1, "train p.yaml --mesh data=1,data=1", "has data twice");
    refuses(f, 2, "predict x y --npy=", "--npy is '', expected a name: FILE.npy");
    refuses(f, 2, "eval out --mesh data=2", "no option --mesh; ", "and others have it");
    refuses(f, 2, "train p.yaml --published x", "no option --published; plan has it");
    refuses(f, 2, "eval out --checkpoint a --checkpoint b", "--checkpoint is given twice");
    refuses(f, 1, "train p.yaml -s learning_rate=1", "did you mean train.lr?");
    refuses(f, 1, "models mlp -s train.batch=4", "train.batch=4 is not a model size");
    refuses(f, 2, "train", "train needs RUN");
    refuses(f, 2, "train p.yaml q.yaml", "unexpected argument 'q.yaml'");
    refuses(f, 2, "eval runs/p --samples many", "--samples is 'many'", "a whole number");
    refuses(f, 1, "train p.yaml --from x.safetensors", "--from needs --resume");
    refuses(f, 1, "train p.yaml --resume --overwrite", "cannot be combined");
    refuses(f, 2, "bench speed mlp", "bench needs WHAT", "step comm scale");
    refuses(f, 2, "--help trian", "unknown command 'trian'; did you mean train?");
    refuses(f, 2, "bench --help zzz", "bench has no command, option or setting 'zzz'");
    static const char *const helps[][2] = {{"train --help Lr", "train.lr"},
                                           {"--help lr", "loopline train --help lr"},
                                           {"bench --help scale", "usage: loopline bench scale"},
                                           {"bench --help profile", "loopline bench step --help"}};
    for (size_t i = 0; i < sizeof helps / sizeof *helps; i++) {
        outcome h = succeeds(f, "%s", helps[i][0]);
        if (!strstr(h.out, helps[i][1])) fail_msg("%s: %s", helps[i][0], h.out);
        outcome_free(&h);
    }
    outcome o = program_run(f, NULL, "");
    assert_int_equal(o.status, 2);
    assert_non_null(strstr(o.err, "usage: loopline COMMAND"));
    outcome_free(&o);
    assert_no_run(state);
}

static void commands(void **state)
{
    const char *f = *state;
    put_runs(state);
    refuses(f, 1, "models rensnet18", "'rensnet18'", "did you mean resnet18?");
    refuses(f, 1, "models gpt -s layers=2", "did you mean model.layers?"); /* and no table */
    refuses(f, 1, "train p.yaml -s widht=2", "did you mean model.width?");
    refuses(f, 1, "train p.yaml -s train.workspace=x", "--set train.workspace=x: train.workspace");
    refuses(f, 1, "train p.yaml -s parallel.codec=int8",
            "--set parallel.codec=int8: parallel.codec");
    refuses(f, 1, "train p.yaml -s train.memory=1GB -s train.offload=nosuch",
            "--set train.offload=nosuch: train.offload is nosuch, which is not a writable folder");
    refuses(f, 1, "train s.yaml -s data.tokenizer=nosuch", "data.tokenizer: nosuch");
    refuses(f, 1, "models xyzzy", "'xyzzy'", "models:", " gpt ");
    refuses(f, 1, "data --format csv", "--format needs a NAME, or --path");
    refuses(f, 1, "data synthetic --format csv", "'synthetic' has its own format");
    refuses(f, 1, "data synthetic --from 10000",
            "--from is 10000, but there are only 10000 samples");
    refuses(f, 1, "data synthetic --path p.yaml", "data synthetic is generated");
    refuses(f, 1, "bench comm -n 1 --op sum", "unknown collective 'sum' (collectives: all-reduce ");
    refuses(f, 1, "bench step p.yaml --seconds -1", "--seconds is -1, expected 0 or more");
    refuses(f, 2, "bench scale p.yaml --steps 0", "--steps is '0'", "1 or more");
    refuses(f, 1, "verify p.yaml", "there is one rank", "--mesh data=2");
    refuses(f, 2, "eval out --confusion x.png", "--confusion is 'x.png'", "ends in .svg");
    refuses(f, 1, "serve out --port 70000", "--port is 70000, expected at most 65535");
    refuses(f, 1, "data fashion-mnst", "'fashion-mnst'", "did you mean fashion-mnist?");
    refuses(f, 1, "inspect p.yaml --graph --json", "--graph", "leave out --json");
    refuses(f, 1, "inspect x.safetensors --mesh data=2", "is a checkpoint", "only with --json");
    refuses(f, 1, "inspect x.safetensors --graph", "is a checkpoint", "only with --json");
    refuses(f, 1, "plan --large --report x.html", "--report", "need a RUN");
    refuses(f, 1, "plan --large --check x", "cannot be combined");
    refuses(f, 1, "plan --check x --cluster this", "--cluster, which needs a RUN");
    refuses(f, 1, "plan s.yaml x --cluster h200", "unexpected argument 'x'");
    refuses(f, 1, "plan s.yaml --large", "'s.yaml' cannot be combined with --published");
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 2 -s train.optimizer=sgd", "sgd", "adamw");
    must(f, "plan s.yaml --cluster h200 --ranks 2 -s train.memory=1GiB -s train.offload=host");
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 2 -s train.memory=1KiB",
            "nothing fits train.memory=1KiB on 2 ranks");
    outcome none = program_run(f, NULL, "plan s.yaml --cluster h200 -n 2 -s train.memory=1KiB");
    assert_int_equal(none.status, 1);
    assert_true(!strncmp(none.err, "None of these plans fits", 24));
    outcome_free(&none);
    refuses(f, 1, "plan p.yaml --cluster h200 --ranks 2 --mesh pipe=2", "axis pipe");
    refuses(f, 1, "plan p.yaml --cluster h200 --ranks 4 --mesh data=2", "needs 2 ranks", "is 4");
    refuses(f, 1, "plan p.yaml --cluster h200 --ranks 2 -s parallel.replicas=2", "one replica");
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 2 -s parallel.exact=true", "plain sums");
    refuses(f, 1, "plan p.yaml --cluster h200 --ranks 2 -s parallel.schedule=gpipe",
            "parallel.schedule");
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 2 -s parallel.recompute=selective", "full");
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 2 -s parallel.schedule=gpipe", "zb-h2");
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 2 -s parallel.sequence=rows",
            "parallel.sequence: plans of transformers on a cluster do not support it");
    static const char *const uncounted[] = {"model.linear=1",          "model.window=6",
                                            "model.head=16",           "train.lora=2",
                                            "train.prompt=2",          "train.prune=2:4",
                                            "train.teacher=l",         "train.quantize=int8",
                                            "train.ema=0.99",          "train.delay=true",
                                            "train.micro_batch=2",     "parallel.compress=int8",
                                            "parallel.canonical=true", "parallel.transport=host"};
    for (size_t i = 0; i < sizeof uncounted / sizeof *uncounted; i++) {
        char line[128], key[64];
        snprintf(line, sizeof line, "plan l.yaml --cluster h200 --ranks 2 -s %s", uncounted[i]);
        snprintf(key, sizeof key, "%.*s: plans of", (int)strcspn(uncounted[i], "="), uncounted[i]);
        refuses(f, 1, line, key);
    }
    write_text(tmpdir_path(state, "e.yaml"), LLAMA "train: {batch: 4, ema: 0.9}\n");
    refuses(f, 1, "plan e.yaml --cluster h200 --ranks 2", "train.ema: plans of", "-s train.ema=0");
    static const char *const in_file[] = {"stages: h.1.*", "overlap: none", "sequence: rows"};
    for (size_t i = 0; i < sizeof in_file / sizeof *in_file; i++) {
        char text[512], want[64];
        snprintf(text, sizeof text, LLAMA "train: {batch: 4}\nparallel: {%s}\n", in_file[i]);
        snprintf(want, sizeof want, "parallel.%.*s: plans of", (int)strcspn(in_file[i], ":"),
                 in_file[i]);
        write_text(tmpdir_path(state, "f.yaml"), text);
        refuses(f, 1, "plan f.yaml --cluster h200 --ranks 2", want);
    }
    write_text(tmpdir_path(state, "f.yaml"), LLAMA "train: {batch: 4}\nparallel: {zero: 1}\n");
    outcome told = succeeds(f, "plan f.yaml --cluster h200 --ranks 2");
    assert_non_null(strstr(told.err, "The run file's parallel.zero: plans try other values too"));
    outcome_free(&told);
    must(f,
         "plan l.yaml --cluster h200 --ranks 2 -s model.window=12 -s train.lora=0"); /* as none */
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 4 -s parallel.mesh=data=2", "needs 2 ranks");
    refuses(f, 1, "plan --check x", "x/predictions.jsonl");
    refuses(f, 1, "plan p.yaml --cluster h200 --ranks 2 --mesh width=2",
            "no mesh of 2 ranks: width=2: nothing in mlp");            /* and not width=2: twice */
    must(f, "plan s.yaml --cluster h200 --ranks 3 --mesh sequence=3"); /* as train */
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 1 -s model.layers=8 -s model.width=16384",
            "nothing fits the ", "GiB reserved)", "use --ranks 2 (tensor=2 fits)");
    refuses(f, 1, "generate x --draft-tokens 2", "--draft-tokens needs --draft");
    refuses(f, 1, "verify mlp --seed 7", "--seed needs --fuzz", "train.seed=7");
    refuses(f, 1, "import . --out x --names n.txt", "--names");
    assert_no_run(state);
}

static void plans(void **state)
{
    const char *f = *state;
    put_runs(state);
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 2 -s train.machine=cpu",
            "train.machine=cpu: cluster h200 has H200", "--cluster this");
    refuses(f, 1, "plan p.yaml --cluster h200 --ranks 2 -s parallel.canonical=true",
            "parallel.canonical: plans of models that are compiled");
    refuses(f, 1, "plan p.yaml --cluster h200 --ranks 2 -s parallel.transport=host",
            "parallel.transport: plans of models that are compiled");
    refuses(f, 1, "plan s.yaml --cluster h200 --mesh data=72", /* ranks are the mesh's */
            "no plan of 72 ranks: data=72 does not cut train.batch 4", "-s train.batch=72");
    must(f, "plan s.yaml --cluster h200 --mesh data=72 -s train.batch=72");
    refuses(f, 1, "plan s.yaml --cluster h200 --ranks 72", "-s train.batch=72 would do");
    must(f, "plan gpt2-124m --cluster dgx-a100 --ranks 61 -s train.batch=549"); /* not its 4 */
    refuses(f, 1, "plan s.yaml --cluster h200",
            "expected --ranks N (chips of cluster h200) or --mesh");
    refuses(f, 1, "plan s.yaml --cluster h200 --mesh tensor=3", "tensor=3 does not cut 2 heads");
    refuses(f, 1, "plan s.yaml --cluster h200 --mesh pipe=2", "pipe=2 is more than the model's");
    refuses(f, 2, "plan s.yaml --cluster h200 --ranks 2147483648", "1 or more (at most 1048576)");
    refuses(f, 1, "plan gpt-kjv --cluster this --mesh pipe=2", "on a cluster that is not `this`");
    assert_int_equal(mkfifo(tmpdir_path(state, "fifo"), 0600), 0);
    refuses(f, 1, "plan --published fifo", "fifo is a pipe that nobody writes to");
    refuses(f, 1, "plan --published heldout", "heldout: No such file", "did you mean held-out?",
            "bundled tables: held-out large");
#define STAGES "plan s.yaml --cluster h200 -s model.layers=16 -s train.batch=64 --json --top 99"
    /* What train refuses is not proposed: more lanes than NCCL's streams. */
    outcome round = succeeds(f, STAGES " --mesh pipe=2");
    assert_non_null(strstr(round.out, "interleaved"));
    assert_null(strstr(round.out, "\"virtual_stages\": 8"));
    outcome_free(&round);
    must(f, STAGES " --mesh pipe=4 -s parallel.schedule=interleaved");
    round = succeeds(f, "plan gpt --cluster tpu-v5e -s train.batch=512 -s train.precision=bf16 "
                        "--json --mesh pipe=4 -s parallel.schedule=zb-h2");
    assert_null(strstr(round.out, "\"bubble\": -")); /* many micro-batches are told from fewer */
    outcome_free(&round);
    outcome told = program_run(f, NULL, "plan --check x");
    assert_null(strstr(told.err, "folder ")); /* no table of nothing */
    outcome_free(&told);
    told = succeeds(f, "plan s.yaml --cluster h200 --ranks 2 --mesh pipe=2 -s model.layers=2");
    assert_non_null(strstr(told.err, "--mesh pipe=2"));
    assert_non_null(strstr(told.err, "-s parallel.transport=nccl"));
    assert_non_null(strstr(told.err, "micro x number: micro-batch size per rank"));
    assert_null(strstr(told.err, " 0.000 "));
    outcome_free(&told);
}

/* ---- run files and settings ---- */

static void bad_file(void *const *state, const char *text, const char *const *texts)
{
    write_text(tmpdir_path(state, "bad.yaml"), text);
    refuses_how(*state, NULL, 1, "train bad.yaml", texts);
}
#define BAD_FILE(text, ...) bad_file(state, text, (const char *const[]){__VA_ARGS__, NULL})

static void run_files(void **state)
{
    const char *f = *state;
    BAD_FILE("model: {name: mlp}\ntrain:\n  bacth: 3\n", "bad.yaml:3: unknown key 'train.bacth'",
             "did you mean train.batch?");
    BAD_FILE("modle: {name: mlp}\n", "bad.yaml:1: 'modle'", "did you mean model?");
    BAD_FILE("model: {name: mlp, witdh: 8}\n", "bad.yaml:1: 'witdh' is not a size of model mlp",
             "did you mean width?");
    BAD_FILE("train: {batch: big}\n", "bad.yaml:1: train.batch is 'big'", "a whole number from 1");
    BAD_FILE("\n\ntrain: {batch: 2.5}\n", "bad.yaml:3: train.batch is '2.5'", "a whole number");
    BAD_FILE("train: {batch: [1, 2]}\n", "bad.yaml:1: train.batch", "a whole number");
    BAD_FILE("data: {flip: maybe}\n", "bad.yaml:1: data.flip is 'maybe'", "true or false");
    BAD_FILE("train: {lr: -1}\n", "bad.yaml:1: train.lr is '-1'", "above 0");
    BAD_FILE("train: {keep: 0}\n", "bad.yaml:1: train.keep is '0'", "from 1");
    BAD_FILE("train: {seed: 99999999999999999999}\n", "train.seed", "a whole number");
    BAD_FILE("model: {name: mlp\ntrain: [", "bad.yaml:2: not YAML", "starts on line 1");
    BAD_FILE("train: {batch: 1}\ntrain: {batch: 2}\n", "bad.yaml:2: section train", "second time");
    BAD_FILE("train: {lr: 1, lr: 2}\n", "bad.yaml:1: train.lr was already set at bad.yaml:1");
    BAD_FILE("model: {name: mpl}\n", "bad.yaml:1: unknown model 'mpl'", "did you mean mlp?",
             "models:");
    BAD_FILE("train: {optimizer: adamm}\n", "bad.yaml:1: train.optimizer is 'adamm'",
             "did you mean adam?", "sgd momentum");
    BAD_FILE("model: {name: mlp}\ndata: {name: fashion-mnits}\n", "bad.yaml:2: unknown dataset",
             "'fashion-mnits'", "did you mean fashion-mnist?");
    BAD_FILE("train: {batch: 10, micro_batch: 3}\n", "bad.yaml:1: train.micro_batch=3",
             "train.batch=10");
    BAD_FILE("train: {schedule: step}\n", "train.step_size or train.milestones");
    refuses(f, 1, "train nosuch.yaml", "nosuch.yaml: No such file");
    refuses(f, 1, "train lenet5-fashon", "'lenet5-fashon'", "did you mean lenet5-fashion?");
    refuses(f, 1, "train xyzzy", "'xyzzy'", "bundled runs:", "mlp-fashion", "my/run.yaml");
    refuses(f, 1, "train .", "./run.yaml: No such file", "the folder contains no run");
    BAD_FILE("", "bad.yaml sets nothing", "model: {name: lenet5}");
    BAD_FILE("# later\n", "bad.yaml sets nothing");
    BAD_FILE("train:\n\tbatch: 3\n", "bad.yaml:2: not YAML: a tab", "indent lines with spaces");
    refuses(f, 1, "train resnet18", "'resnet18' is a model, not a run", "resnet18-cifar10");
    refuses(f, 1, "bench step rensnet18", "no run named 'rensnet18'; did you mean resnet18?");
    refuses(f, 1, "bench step lenet", "'lenet'; did you mean lenet5?");
    refuses(f, 2, "bench step lenet5 --steps 5", "has no option --steps; use --seconds S;");
    refuses(f, 2, "train mlp-fashion --ranks 2", "has no option --ranks; use -n N;");
    assert_no_run(state);
}

static void settings(void **state)
{
    const char *f = *state;
    put_runs(state);
    refuses(f, 1, "train p.yaml --set layout.nosuch*=[-]", "nosuch*", "no value of this name");
    refuses(f, 1, "train p.yaml -s model.name=lenet5",
            "--set model.name=lenet5: 'width' of p.yaml:1 is not a size of model lenet5");
    refuses(f, 1, "train p.yaml -s model.n_layer=2", "of model mlp (its sizes: image", "width");
    refuses(f, 1, "train p.yaml --machine gpu", "did you mean cuda?"); /* which is no slip */
    refuses(f, 1, "train p.yaml -s train.precision=float32", "did you mean f32?");
    refuses(f, 1, "train p.yaml -s train.batch=80",
            "--set train.batch=80: train.batch is 80, more than the 40 samples", "use 40 or less");
    refuses(f, 1, "train p.yaml -s data.path=d", "--set data.path=d: data synthetic is generated");
    refuses(f, 1, "train p.yaml --set train.bacth=3", "--set train.bacth=3", "train.batch?");
    refuses(f, 1, "train p.yaml --set bacth=3", "--set bacth=3", "did you mean train.batch?");
    refuses(f, 1, "train p.yaml --set train.batch", "expected key=value");
    refuses(f, 1, "train p.yaml --set train.batch=0", "train.batch is '0'", "from 1 to");
    refuses(f, 1, "train p.yaml --set train.lr=1e30", "train.lr is '1e30'", "at most 1e+06");
    refuses(f, 1, "train p.yaml --set model.width=0", "model mlp of", "width 0");
    refuses(f, 1, "train p.yaml --set model.width=1000000000", "this machine has", "smaller",
            "model");
    refuses(f, 1, "train p.yaml --set model.depth=1000000000",
            "depth 1000000000, expected at most");
    refuses(f, 1, "train s.yaml --set model.layers=1000000000",
            "layers 1000000000, expected 1 to 10000");
    refuses(f, 1, "train s.yaml --set model.layers=0", "layers 0, expected 1");
    refuses(f, 1, "train s.yaml --set model.heads=3",
            "setting: model gpt: width 16 is not a multiple of heads 3");
    refuses(f, 1, "inspect s.yaml --set params.wpx=freeze", "\"wpx\"; did you mean wp");
    refuses(f, 1, "inspect s.yaml --set params.nothere=freeze", "\"nothere\": the first is wte");
    refuses(f, 1, "train s.yaml --set model.linear=2", "gpt: model.linear is 2, expected 0 or 1");
    refuses(f, 1, "train s.yaml --set model.decay=3", "gpt: model.decay is 3", "model.linear=1");
    refuses(f, 1, "inspect llama --set model.linear=2",
            "llama: model.linear is 2, expected 0 or 1");
    refuses(f, 1, "inspect llama --set model.tied=7", "llama: model.tied is 7, expected 0 or 1");
    refuses(f, 1, "inspect llama --set model.decay=3", "llama: model.decay is 3", "model.linear=1");
    refuses(f, 1, "inspect llama --set model.linear=1 --set model.window=9",
            "llama: model.window is 9", "model.linear=0");
    refuses(f, 1, "inspect llama --set model.rope_base=0",
            "llama: model.rope_base is 0, expected 1");
    refuses(f, 1, "inspect llama --set model.heads=6 --set model.width=578",
            "llama: width 578 is not a multiple of heads 6", "model.head");
    refuses(f, 1, "train s.yaml --set train.prune=0.5 --set train.prune_steps=1:3:3",
            "'1:3:3' is not a range of pruning steps", "K at most B - A");
    refuses(f, 1, "train s.yaml --set data.flip=true", "data.flip applies only to images", "gpt");
    refuses(f, 1, "train p.yaml --set train.trust=1", "train.optimizer lars or larc, not adamw");
    refuses(f, 1, "train p.yaml --set train.workspace=1MiB", "only to convolutions",
            "model mlp does not");
    refuses(f, 1, "inspect s.yaml --set train.conv=fast", "only to convolutions",
            "model gpt does not");
    assert_no_run(state);
    outcome v = program_run(f, NULL, "verify s.yaml --mesh data=2 --set train.prompt=3");
    assert_int_equal(v.status, 1);
    assert_non_null(strstr(v.err, "train.prompt needs a model that embeds"));
    assert_ptr_equal(strchr(v.err, '\n'), v.err + strlen(v.err) - 1); /* once, in one line */
    outcome_free(&v);
    outcome o = program_run(
        f, NULL, "train p.yaml --zero 1 --tune --set train.compare=2 -s train.warmup=90 --out one");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.err, "parallel.zero=1 has no effect: axis data has one rank\n"));
    assert_non_null(strstr(o.err, "train.compare has no effect: there is one rank\n"));
    assert_non_null(strstr(o.err, "train.warmup=90 is longer than the run of 4 steps"));
    assert_non_null(strstr(o.err, "parallel.tune has no effect: there is one rank\n"));
    outcome_free(&o);
}

/* ---- data ---- */

/* An IDX file: magic, sizes as said, `bytes` bytes of value 3. */
static void put_idx(const char *path, int n_dim, const uint32_t *dims, size_t bytes)
{
    static uint8_t file[1 << 16];
    size_t at = 4;
    memcpy(file, (uint8_t[]){0, 0, 8, (uint8_t)n_dim}, 4);
    for (int i = 0; i < n_dim; i++)
        for (int b = 24; b >= 0; b -= 8) file[at++] = (uint8_t)(dims[i] >> b);
    memset(file + at, 3, bytes);
    write_whole(path, file, at + bytes);
}

/* 20 images to train on and 20 to validate with, 8 x 8; labels are 3. */
static void put_images(void *const *state)
{
    static const char *const stems[] = {"d/train", "d/t10k"};
    mkdir(tmpdir_path(state, "d"), 0777);
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-images-idx3-ubyte", stems[i]);
        put_idx(tmpdir_path(state, name), 3, (uint32_t[]){20, 8, 8}, 20 * 64);
        snprintf(name, sizeof name, "%s-labels-idx1-ubyte", stems[i]);
        put_idx(tmpdir_path(state, name), 1, (uint32_t[]){20}, 20);
    }
}

static void images(void **state)
{
    const char *f = *state;
    static const char run[] = "model: {name: mlp, image: 8, width: 16, depth: 1, classes: 4}\n"
                              "data: {format: idx, path: d}\n"
                              "train: {batch: 8, steps: 2, threads: 1}\n";
    write_text(tmpdir_path(state, "r.yaml"), run);
    refuses(f, 1, "train r.yaml", "d: No such file");
    put_images(state);
    must(f, "train r.yaml --out good");
    refuses(f, 1, "train r.yaml --set model.image=9", "mlp takes samples of f32[9,9,1]",
            "f32[8,8,1]", "set the model's sizes");
    refuses(f, 1, "train r.yaml --set model.classes=3", "d/train-labels-idx1-ubyte: label 3",
            "offset 8", "0 to 2", "classes are 3");
    const char *labels = tmpdir_path(state, "d/t10k-labels-idx1-ubyte");
    char *good = read_whole(labels, NULL);
    good[8 + 13] = 9; /* a validation label alone */
    write_whole(labels, good, 28);
    refuses(f, 1, "train r.yaml", "d/t10k-labels-idx1-ubyte: label 9 at offset 21", "0 to 3");
    write_whole(labels, good, 20);
    refuses(f, 1, "train r.yaml", "d/t10k-labels-idx1-ubyte", "20");
    free(good);
    put_images(state);
    const char *pixels = tmpdir_path(state, "d/train-images-idx3-ubyte");
    put_idx(pixels, 3, (uint32_t[]){20, 8, 8}, 20 * 64 - 1);
    refuses(f, 1, "train r.yaml", "d/train-images-idx3-ubyte", "1280", "1279");
    put_idx(pixels, 3, (uint32_t[]){0xffffffff, 0xffffffff, 0xffffffff}, 64);
    refuses(f, 1, "train r.yaml", "d/train-images-idx3-ubyte", "4294967295");
    write_whole(pixels, "\0\0\10", 3);
    refuses(f, 1, "train r.yaml", "d/train-images-idx3-ubyte", "3 bytes");
    write_whole(pixels, "not an idx file, surely", 23);
    refuses(f, 1, "train r.yaml", "d/train-images-idx3-ubyte");
    static char text[9000];
    memset(text, 'a', sizeof text - 1);
    write_text(tmpdir_path(state, "a.txt"), text);
    refuses(f, 1, "train r.yaml --set data.format=text --set data.path=a.txt",
            "--set data.path=a.txt: model mlp takes images, but data text has tokens");
    put_images(state);
    put_runs(state);
    /* Of settings that do not go together, the one that was just asked for; what is proposed can
     * be had. */
    refuses(f, 1, "train good --resume -s data.name=cifar",
            "--set data.name=cifar: data.name=cifar cannot be combined",
            "data.name= reads d, -s data.format= -s data.path= reads cifar");
    must(f, "train good --resume -s data.name=cifar -s data.name=");
    refuses(f, 1, "train good --resume -s data.name=cifar -s data.format= -s data.path=",
            "--set data.name=cifar: unknown dataset 'cifar'");
    refuses(f, 1, "train good --resume -s data.name=synthetic -s data.format= -s data.path=",
            "resume with --set data.name=\"\" --set data.path=d --set data.format=idx",
            "--init FILE starts over");
    must(f, "train p.yaml --exact --out s");
    refuses(f, 1, "train s --resume -s data.name=cifar",
            "--set data.name=cifar: unknown dataset 'cifar'"); /* not s/run.yaml's samples */
    refuses(f, 1, "train s --resume -s train.precision=bf16",
            "--set train.precision=bf16: parallel.exact needs train.precision=f32, not bf16");
    assert_no_run(state);
}

/* A token file as llm.c writes it; `said` tokens in its header. */
static void put_tokens(const char *path, int n, int said, int value)
{
    static uint8_t file[1024 + 2 * 1000];
    const int32_t head[3] = {20240520, 1, said};
    memset(file, 0, sizeof file);
    memcpy(file, head, sizeof head);
    for (int i = 0; i < n; i++) file[1024 + 2 * i] = (uint8_t)(i % value);
    write_whole(path, file, 1024 + 2 * (size_t)n);
}

static void tokens(void **state)
{
    const char *f = *state;
    static const char run[] =
        "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 12, vocab: 32}\n"
        "data: {format: tokens, path: t.bin}\n"
        "train: {batch: 4, steps: 2, threads: 1}\n";
    const char *path = tmpdir_path(state, "t.bin");
    write_text(tmpdir_path(state, "r.yaml"), run);
    refuses(f, 1, "train r.yaml", "t.bin: no such file");
    put_tokens(path, 1000, 1000, 32);
    must(f, "train r.yaml --out good");
    put_tokens(path, 1000, 1000, 33);
    refuses(f, 1, "train r.yaml --out bad", "model.vocab is 32, too small", "t.bin has token 32",
            "set model.vocab=33");
    assert_false(file_exists(tmpdir_path(state, "bad"))); /* refused before there is a run */
    must(f, "train r.yaml --out bad --set model.vocab=33");
    put_tokens(path, 1000, 1001, 32);
    refuses(f, 1, "train r.yaml", "t.bin", "1001 tokens", "2000 bytes");
    put_tokens(path, 1000, -5, 32);
    refuses(f, 1, "train r.yaml", "t.bin", "-5 tokens");
    put_tokens(path, 10, 10, 32);
    refuses(f, 1, "train r.yaml", "t.bin", "less than one window of seq + 1 = 13");
    write_text(path, "short");
    refuses(f, 1, "train r.yaml", "t.bin: 5 bytes", "header");
    refuses(f, 1,
            "train r.yaml --set data.format=text --set data.path=r.yaml "
            "--set data.val_fraction=0.3 --out bad2",
            "model.vocab is 32, too small", "r.yaml has token", "set model.vocab=256");
    assert_no_run(state);
}

/* ---- where it should go ---- */

static void folders(void **state)
{
    const char *f = *state;
    put_runs(state);
    must(f, "train p.yaml --out out");
    refuses(f, 1, "train p.yaml --out out", "out already holds a run", "--resume", "--overwrite",
            "--out DIR");
    refuses(f, 1, "train p.yaml --out none --resume", "none has no checkpoint", "without --resume");
    assert_false(file_exists(tmpdir_path(state, "none")));
    refuses(f, 1, "train p.yaml --out p.yaml", "p.yaml is a file");
    refuses(f, 1, "train p.yaml --out p.yaml/x", "p.yaml/x", "p.yaml is a file");
    refuses(f, 1, "train p.yaml --out /proc/nowhere/x", "/proc/nowhere");
    refuses(f, 1, "eval nothing", "'nothing'");
    refuses(f, 1, "eval ./nothing", "./nothing");
    refuses(f, 1, "eval out -s parallel.mesh=data=2", "eval runs in one process");
    refuses(f, 1, "eval out -s train.prune=2:4", "train.prune applies only to training");
    refuses(f, 1, "eval out -s train.lr=1", "train.lr applies only to training",
            "eval does not read it");
    refuses(f, 1, "eval out --checkpoint out", "checkpoint out is a folder: name a file in it");
    refuses(f, 1, "eval p.yaml", "runs/p has no checkpoint", "loopline train");
    /* A run that never saved cannot be resumed, and says how to go on. */
    char *run = read_whole(tmpdir_path(state, "out/run.yaml"), NULL);
    mkdir(tmpdir_path(state, "empty"), 0777);
    write_text(tmpdir_path(state, "empty/run.yaml"), run);
    free(run);
    refuses(f, 1, "train empty --resume", "empty has no checkpoint", "--overwrite");
    write_text(tmpdir_path(state, "empty/order-0.txt"), "of a run that is replaced\n");
    must(f, "train empty --overwrite");
    assert_false(file_exists(tmpdir_path(state, "empty/order-0.txt")));
    assert_no_run(state);
}

/* A run file may be a stranger's: it does not say where in the file system to write. */
static void run_files_of_strangers(void **state)
{
    const char *f = *state;
    char text[1024], *run;
    put_runs(state);
    run = read_whole(tmpdir_path(state, "p.yaml"), NULL);
    static const char *const outs[] = {"/tmp/ll-strange", "../strange", "a/../../strange"};
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%sout: %s\n", run, outs[i]);
        write_text(tmpdir_path(state, "x.yaml"), text);
        refuses(f, 1, "train x.yaml", "x.yaml sets out: ", outs[i], "give --out");
    }
    must(f, "train x.yaml --out ../here/../%s/b", strrchr(f, '/') + 1);
    must(f, "train b --resume"); /* a folder that the user has named */
    snprintf(text, sizeof text, "%sout: in..side/c\n", run);
    write_text(tmpdir_path(state, "x.yaml"), text);
    must(f, "train x.yaml");
    snprintf(text, sizeof text, "%sout: %s/d\n", run, f);
    write_text(tmpdir_path(state, "x.yaml"), text);
    must(f, "train x.yaml");
    free(run);
}

/* A rate is blamed for what an update has made, not for what the run began with. */
static void not_finite(void **state)
{
    const char *f = *state;
    static const char wild[] =
        "train p.yaml -s model.depth=6 -s train.optimizer=sgd -s train.lr=1e6";
    put_runs(state);
    must(f, "%s --out a -s train.steps=1", wild);
    refuses(f, 1,
            "train p.yaml --out b -s model.depth=6 -s train.lr=0.001 --init "
            "a/checkpoints/step-00000001.safetensors",
            "step 1: ", "there was no update before it");
    char line[256];
    snprintf(line, sizeof line, "%s --out c -s train.steps=9 -s train.epochs=0", wild);
    refuses(f, 1, line, "a lower train.lr (the rate was 1e+06)");
}

/* What cannot be printed is an error, for JSON and for people. */
static void standard_output(void **state)
{
    const char *f = *state;
    const how full = {.out = "/dev/full"}, closed = {.out = ""};
    static const char *const lines[] = {
        "train p.yaml --out out --overwrite --json", "models --json", "models", "data synthetic",
        "inspect p.yaml --graph", "eval out", "--help", "train --help", "--version",
        /* mpiexec loses it, and says nothing */
        "train p.yaml --out out --overwrite --json -n 2", "verify p.yaml -n 2 --steps 1",
        "bench comm -n 2 --sizes 4K --seconds 0.05 --table t.json"};
    put_runs(state);
    must(f, "train p.yaml --out out");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        for (int k = 0; k < 2; k++) {
            const char *wanted[] = {"standard output cannot be written", NULL};
            refuses_how(f, k ? &closed : &full, 1, lines[i], wanted);
        }
    must(f, "eval out"); /* nothing was printed into the run's files */
}

/* Under the address sanitizer: a way out through an error frees what a good end frees. */
static void leaves_nothing_behind(void **state)
{
    const char *f = *state;
    const how careful = {.leaks = true};
    put_runs(state);
    outcome o = program_run(f, &careful, "train s.yaml --out out --json");
    if (o.status) fail_msg("status %d\n%s", o.status, o.err);
    outcome_free(&o);
    static const char *const lines[] = {
        "train p.yaml --set train.optimizer=sgd --set train.lr=1e6 --set train.steps=90",
        "eval out --set model.width=8",
    };
    static const char *const wanted[] = {"not a finite number", "in the model"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        refuses_how(f, &careful, 1, lines[i], (const char *const[]){wanted[i], NULL});
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(command_line),
        IN_FOLDER(commands),
        IN_FOLDER(plans),
        IN_FOLDER(run_files),
        IN_FOLDER(settings),
        IN_FOLDER(images),
        IN_FOLDER(leaves_nothing_behind),
        IN_FOLDER(tokens),
        IN_FOLDER(run_files_of_strangers),
        IN_FOLDER(not_finite),
        IN_FOLDER(standard_output),
        IN_FOLDER(folders),
    };
    return cmocka_run_group_tests_name("cli_errors", tests, NULL, NULL);
}
