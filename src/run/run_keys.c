/* run_keys.c: the table of every key of a run file. Adding one is adding its field (run.h) and its
 * row. */
#include "data/data.h"
#include "pass/target.h"
#include "run/run_int.h"

#define OPTIMIZERS                                                                                 \
    "sgd momentum nesterov adagrad rmsprop adam adamw lars larc lamb muon schedule-free-adamw"
#define WORD(name) " " #name
#define WORDS(list) (&(list(WORD))[1]) /* an X-macro's names, with spaces between */

/* A row: the key, its field of ll_run, the default, what it may be, help. */
#define ROW(kind, name, field, initial, min, max, choices, help)                                   \
    {                                                                                              \
        name, LL_KEY_##kind, offsetof(ll_run, field), initial, help, min, max, choices             \
    }
#define INT(name, field, initial, min, max, help)                                                  \
    ROW(INT, name, field, initial, min, max, NULL, help)
#define NUMBER(name, field, initial, min, max, help)                                               \
    ROW(NUMBER, name, field, initial, min, max, NULL, help)
#define NUMBERS(name, field, initial, min, max, help)                                              \
    ROW(NUMBERS, name, field, initial, min, max, NULL, help)
#define BOOL(name, field, initial, help) ROW(BOOL, name, field, initial, 0, 0, NULL, help)
#define TEXT(name, field, initial, help) ROW(TEXT, name, field, initial, 0, 0, NULL, help)
#define CHOICE(name, field, initial, choices, help)                                                \
    ROW(CHOICE, name, field, initial, 0, 0, choices, help)
#define ENUM(name, field, initial, words, help) ROW(ENUM, name, field, initial, 0, 0, words, help)

const ll_key ll_run_keys[] = {
    TEXT("model.name", model.name, "",
         "name of the model; `loopline models` lists them, and `loopline models NAME` the sizes "
         "that are settings too (model.layers, model.width, ...); empty = the first model of "
         "model.file, or lenet5"),
    TEXT("model.file", model.file, "",
         "shared library with models (LL_EXPORT_MODELS in loopline.h), or an ONNX file (.onnx); a "
         "library's code is executed, so load only what you trust; empty = the bundled models, and "
         "the program's own"),
    CHOICE("model.loss", model.loss, "", "cross_entropy mse l1",
           "loss of an ONNX model, which needs one: of its first output against batch input y"),

    TEXT("data.name", data.name, "",
         "name of a dataset (`loopline data` lists them); empty = chosen by data.path and "
         "data.format, else the model's usual dataset"),
    TEXT("data.path", data.path, "",
         "file, folder or glob pattern with the data, if not in the usual place"),
    CHOICE("data.format", data.format, "", LL_DATA_FORMATS,
           "format of the files at data.path (docs/own.md)"),
    TEXT("data.val_path", data.val_path, "",
         "file, folder or glob pattern with the validation data; empty = the validation part of "
         "data.path (val/ beside train/, or a split column), else data.val_fraction of the "
         "training data"),
    TEXT("data.fields", data.fields, "",
         "which array or column feeds which model input, such as x=images,y=labels; for csv, npy, "
         "npz, safetensors, hdf5 and netcdf; csv: x=a+b+c joins columns of numbers, -id leaves one "
         "out; empty = matched by name, and of a csv all columns of numbers but the label are x"),
    TEXT("data.field", data.field, "text", "jsonl: name of the field that holds the text"),
    TEXT("data.tokenizer", data.tokenizer, "",
         "tokenizer for text and prompts: a tokenizer.json, a GGUF file, or a folder with "
         "tokenizer.json or with vocab.json and merges.txt; empty = bytes are tokens"),
    INT("data.token_bytes", data.token_bytes, "0", 0, 4,
        "bytes per token in token files without a header: 2 or 4; 0 = by file name (.u16 or .u32; "
        "others have llm.c's header)"),
    NUMBER(
        "data.val_fraction", data.val_fraction, "0.05", 0, 0.9,
        "fraction of the data held out for validation if there are no validation files; 0 = 0.05 "
        "of it"),
    INT("data.samples", data.samples, "0", 0, 1e9,
        "synthetic data: number of training samples; 0 = 10000"),
    BOOL("data.flip", data.flip, "false", "flip training images horizontally with probability 0.5"),
    INT("data.crop", data.crop, "0", 0, 64,
        "random crop of training images: pad by this many pixels on each side, then crop back to "
        "the original size at a random position; 0 = off"),
    TEXT("data.image", data.image, "",
         "resize images to this size: 224 or HEIGHTxWIDTH; empty = size of the files, or the "
         "model's size for images in folders"),
    INT("data.channels", data.channels, "0", 0, 4,
        "channels per image: 1 = grey, 3 = RGB, 4 = RGBA; 0 = as in the files, or as the "
        "model needs for images in folders"),
    NUMBERS("data.mean", data.mean, "[]", -1e30, 1e30,
            "mean subtracted from pixels scaled to 0..1: one per channel, or one for all; empty = "
            "the dataset's own; for image files ImageNet's, for grey images 0.5; csv: of x's "
            "columns, empty = of the training rows, 0 = none"),
    NUMBERS(
        "data.deviation", data.deviation, "[]", 1e-30, 1e30,
        "standard deviation that pixels are divided by after data.mean; same form and defaults; "
        "csv: of x's columns likewise, 1 = none"),
    NUMBER("data.centre", data.centre, "1", 0.01, 1,
           "validation: side of the centre crop, relative to the largest that has the target's "
           "aspect ratio (0.875 is common); 1 = all of it"),
    NUMBERS("data.scale", data.scale, "[]", 0.0001, 1,
            "training: random resized crop covering this range of the image's area, such as [0.08, "
            "1], with aspect ratio 3:4 to 4:3; empty = centre crop as in validation"),
    NUMBER("data.mixup", data.mixup, "0", 0, 1,
           "mixup: blend each training image and its label with another, weight drawn from Beta(a, "
           "a) with a = this; models of your own need ll_label_loss; 0 = off"),
    NUMBER("data.cutmix", data.cutmix, "0", 0, 1,
           "CutMix: replace a rectangle of each training image by another image's, share drawn "
           "from Beta(a, a); with data.mixup, each image gets one of the two; 0 = off"),
    NUMBER("data.jitter", data.jitter, "0", 0, 1,
           "colour jitter of training images: scale brightness, contrast and saturation by random "
           "factors in 1 +- this; 0 = off"),
    INT("data.threads", data.threads, "0", 0, 64,
        "data loader threads per rank; 0 = automatic (one per core if images must be decoded)"),
    TEXT("data.cache", data.cache, "",
         "local folder, shared by the ranks of a host, to prefetch and cache files from slow "
         "storage in; empty = no cache"),
    INT("data.fetch", data.fetch, "0", 0, LL_MAX_FETCH,
        "threads per rank that prefetch files; 0 = 16 with data.cache, else none"),
    NUMBER("data.delay", data.delay, "0", 0, 60,
           "seconds added to every file read, to simulate slow storage"),

    INT("train.batch", train.batch, "64", 1, 1e9,
        "global batch size: samples per step over all ranks"),
    INT("train.micro_batch", train.micro_batch, "0", 0, 1e9,
        "micro-batch size, in samples over all data-parallel ranks; gradients are accumulated over "
        "the micro-batches of a batch, which it must divide; 0 = the whole batch at once"),
    INT("train.steps", train.steps, "0", 0, 1e12, "stop after this many steps; 0 = no limit"),
    INT("train.epochs", train.epochs, "0", 0, 1e6,
        "stop after this many epochs; 0 = no limit; if train.steps is 0 too, train one epoch"),
    INT("train.seed", train.seed, "1", 0, LL_MANY,
        "random seed for initialization, data order, augmentation and dropout"),
    CHOICE("train.optimizer", train.optim.name, "adamw", OPTIMIZERS, "optimizer"),
    NUMBER("train.lr", train.schedule.lr, "0.001", LL_ABOVE_0, 1e6, "peak learning rate"),
    NUMBER("train.momentum", train.optim.momentum, "0", 0, 0.99999,
           "momentum of momentum, nesterov, lars, larc and muon; 0 = the optimizer's default (0.9; "
           "muon 0.95)"),
    NUMBER("train.beta1", train.optim.beta1, "0", 0, 0.9999999,
           "beta1 of Adam-type optimizers; 0 = the optimizer's default (0.9)"),
    NUMBER("train.beta2", train.optim.beta2, "0", 0, 0.9999999,
           "beta2 of Adam-type optimizers, and rmsprop's decay; 0 = the optimizer's default "
           "(0.999; rmsprop 0.99)"),
    NUMBER("train.eps", train.optim.eps, "0", 0, 1,
           "epsilon in the denominator of adaptive optimizers; 0 = the optimizer's default"),
    NUMBER("train.weight_decay", train.optim.weight_decay, "0", 0, 1e3, "weight decay coefficient"),
    CHOICE("train.no_decay", train.optim.no_decay, "1d", "1d none",
           "parameters exempt from weight decay: 1d = biases and norms, none = no parameter"),
    NUMBER("train.clip", train.optim.clip, "0", 0, LL_MANY,
           "clip gradients to this global L2 norm; 0 = off"),
    NUMBER("train.clip_value", train.optim.clip_value, "0", 0, LL_MANY,
           "clip every gradient element to +- this value, before train.clip; 0 = off"),
    BOOL("train.delay", train.delay, "false",
         "compute gradients at the parameters of one step earlier, as parallel.schedule=2bw does; "
         "reproduces 2bw's training without a pipeline, on any mesh"),
    NUMBER("train.ema", train.optim.ema, "0", 0, 0.9999999,
           "decay of an exponential moving average (EMA) of the parameters, used by validation, "
           "eval and predict; 0 = off"),
    NUMBER("train.trust", train.optim.trust, "0", 0, 1e3,
           "trust coefficient of lars and larc; 0 = 0.001"),
    ENUM("train.schedule", train.schedule.shape, "constant", WORDS(LL_SCHEDULES),
         "learning rate schedule after warmup"),
    NUMBER("train.warmup", train.schedule.warmup, "0", 0, 1e12,
           "linear warmup: number of steps or, below 1, fraction of the run"),
    NUMBER("train.min_lr", train.schedule.min_lr, "0", 0, 1e6,
           "learning rate that the cosine and linear schedules come to after the last step, whose "
           "own is above it"),
    INT("train.step_size", train.schedule.step_size, "0", 0, 1e12,
        "step schedule: multiply the learning rate by train.step_gamma every this many steps; 0 = "
        "at train.milestones"),
    NUMBER("train.step_gamma", train.schedule.step_gamma, "0.1", LL_ABOVE_0, 1,
           "step schedule: factor of each reduction"),
    NUMBERS("train.milestones", train.schedule.milestones, "[]", 0, 1e12,
            "step schedule: where the learning rate is reduced, in steps or, below 1, fractions of "
            "the run"),
    ENUM("train.scale_rule", train.schedule.scale_rule, "none", WORDS(LL_SCALE_RULES),
         "scale train.lr and train.min_lr with the batch size: linear = by batch/base_batch, sqrt "
         "= by its square "
         "root"),
    INT("train.base_batch", train.schedule.base_batch, "256", 1, 1e9,
        "batch size that train.lr is meant for, if train.scale_rule is set"),
    TEXT("train.init", train.init, "",
         "initial weights: a safetensors file, or a PyTorch state_dict (.pt, .pth); optimizer "
         "state and step start at zero; verify and bench ignore it; empty = random by train.seed"),
    TEXT("train.init_map", train.init_map, "",
         "map of tensor names and layouts for train.init: a file, or a bundled map (as-is, "
         "gguf-gpt2, gguf-llama, hf-bert, hf-gpt2, hf-llama, pytorch, torchvision-alexnet, "
         "torchvision-googlenet, torchvision-mobilenetv2, torchvision-resnet, "
         "torchvision-squeezenet, torchvision-vgg); empty = the bundled map that fits the file's "
         "names"),
    TEXT("train.init_skip", train.init_skip, "",
         "comma-separated patterns, such as fc.*: model tensors that keep their random "
         "initialization, and tensors in the file to ignore"),
    INT("train.lora", train.lora, "0", 0, 4096,
        "LoRA: rank of the adapters; only adapters are trained, all other weights are frozen; 0 = "
        "off"),
    TEXT("train.lora_on", train.lora_on, "*.attn.*.weight,*.mlp.*.weight",
         "LoRA: comma-separated patterns of the weights that get an adapter"),
    CHOICE("train.base", train.base, "f32", "f32 int8 int4 nf4",
           "with train.lora: storage type of the frozen weight matrices, in blocks of 32 (nf4 = "
           "QLoRA)"),
    ENUM("train.quantize", train.quantize, "none", WORDS(LL_ROUNDINGS),
         "quantization-aware training: matrix products see weights rounded to this type in "
         "blocks of 32, with straight-through gradients; stored weights stay f32; quantize the "
         "result with `compress --to int8` or int4"),
    INT("train.prompt", train.prompt, "0", 0, 4096,
        "prompt tuning: number of trainable vectors put before each sequence; only these are "
        "trained; needs rotary positions (llama); 0 = off"),
    TEXT("train.prune", train.prune, "none",
         "magnitude pruning of weight matrices: N:M (2:4 = keep the 2 largest of every 4) or the "
         "fraction to set to zero, such as 0.5; applied at the start unless train.prune_steps is "
         "set; pruned weights stay zero"),
    TEXT("train.prune_steps", train.prune_steps, "",
         "gradual pruning A:B[:K]: from step A to step B, every K steps (default a tenth of the "
         "range), along a cubic curve that prunes most early"),
    TEXT("train.teacher", train.teacher, "",
         "knowledge distillation: run, trained or imported, whose logits the model also learns "
         "from; empty = off"),
    NUMBER("train.teacher_weight", train.teacher_weight, "0.5", 0, 1,
           "weight w of the distillation loss; the model's own loss is weighted by 1 - w"),
    NUMBER("train.temperature", train.temperature, "2", 0.01, 1000,
           "distillation temperature: divides the teacher's and the model's logits"),
    TEXT("train.teacher_hidden", train.teacher_hidden, "",
         "distillation of hidden states: comma-separated pairs OURS=TEACHERS of model parts whose "
         "outputs are compared, such as h0=h2,h1=h5"),
    NUMBER("train.hidden_weight", train.hidden_weight, "1", 0, 1e6,
           "weight of the mean squared error over train.teacher_hidden in the training objective"),
    CHOICE("train.machine", train.machine, "cpu", WORDS(LL_TARGETS),
           "device to compute on; ref = slow reference kernels"),
    ENUM("train.precision", train.precision, "f32", WORDS(LL_PRECISIONS),
         "precision of matrix products and convolutions; parameters stay in f32; tf32, fp8 "
         "and fp8block (fp8 with a scale for each block of 128 numbers) need train.machine=cuda"),
    TEXT("train.conv", train.conv, "accurate",
         "convolution algorithm on CPUs: accurate (rounds no more than plain sums), fast (fastest "
         "by a benchmark that is cached per host; some round more), or one by name where it fits: "
         "direct, joined, gather, outer, im2col, winograd4, winograd2, fft16, fft32, plain"),
    TEXT("train.workspace", train.workspace, "auto",
         "limit of convolution workspace on CPUs beyond the step's peak memory, such as 64MiB: "
         "fewer images at a time, or another algorithm; auto = no limit"),
    BOOL("train.deterministic", train.deterministic, "true",
         "bitwise reproducible runs; false = faster on GPUs: algorithms chosen by timing, "
         "attention gradients summed in any order"),
    INT("train.threads", train.threads, "0", 0, 4096,
        "CPU threads per rank; 0 = the rank's share of the cores"),
    TEXT("train.memory", train.memory, "",
         "memory limit for the tensors of one rank, such as 2GiB, without communication buffers; "
         "pipeline stages and parallel.schedule=auto are chosen to fit; empty = no limit"),
    TEXT("train.offload", train.offload, "",
         "where to offload activations and optimizer state that exceed train.memory: a folder, or "
         "with train.machine=cuda `host` (pinned host memory); transfers overlap with compute; "
         "empty = no offload"),
    INT("train.eval_every", train.eval_every, "0", 0, 1e12,
        "steps between validations; 0 = once per epoch; there is always one at the end"),
    INT("train.eval_samples", train.eval_samples, "0", 0, 1e9,
        "validate on the first N samples only; 0 = all"),
    TEXT("train.best", train.best, "",
         "keep the checkpoint of the best validation as checkpoints/best.safetensors, judged by "
         "loss, accuracy, or a metric of the model: min:NAME or max:NAME; empty = off"),
    INT("train.patience", train.patience, "0", 0, 1e9,
        "early stopping: end after this many validations without improvement of train.best; 0 = "
        "off"),
    INT("train.log_every", train.log_every, "10", 1, 1e9, "steps between lines of metrics"),
    INT("train.save_every", train.save_every, "0", 0, 1e12,
        "steps between checkpoints; 0 = once per epoch; there is always one at the end"),
    BOOL("train.save_beside", train.save_beside, "true",
         "write checkpoints in the background, from a copy of the state; false = training waits"),
    INT("train.keep", train.keep, "2", 1, 1e6, "number of most recent checkpoints to keep"),
    INT("train.buddy", train.buddy, "0", 0, 1e12,
        "steps between in-memory checkpoints: copies of the state that survive rank failures, with "
        "several nodes also on a neighbour node; a restart by -n resumes from the newest; 0 = off"),
    NUMBER("train.spike", train.spike, "0", 0, 1e9,
           "skip the update of steps whose gradient norm exceeds this many times its running "
           "average (about 50 steps, after the first 20); 0 = off"),
    ENUM("train.spike_action", train.spike_action, "skip", WORDS(LL_SPIKE_ACTIONS),
         "on such a step: skip = skip the update; rollback = also restore the parameters of "
         "the newest checkpoint that train.save_every made, and go on with the next data"),
    INT("train.compare", train.compare, "0", 0, 1e12,
        "every this many steps, check that replicated parameters are bitwise equal on all ranks; "
        "end the run with rank and tensor if not; 0 = off"),

    TEXT("parallel.mesh", parallel.mesh, "",
         "mesh of ranks as a product of axes, such as data=2,tensor=2 (axes: docs/running.md); "
         "empty = data=RANKS"),
    INT("parallel.zero", parallel.zero, "0", 0, 3,
        "ZeRO stage, sharding over axis data: 1 = optimizer state, 2 = and gradients, 3 = and "
        "parameters; 0 = off"),
    BOOL("parallel.exact", parallel.exact, "false",
         "exact summation: losses and checkpoints are bitwise identical on every mesh (slower; f32 "
         "only)"),
    BOOL("parallel.tune", parallel.tune, "false",
         "benchmark collectives at the start if there is no tuning table yet for this machine and "
         "number of ranks"),
    TEXT("parallel.compress", parallel.compress, "none",
         "compression of gradients in the all-reduce over axis data: none, lossless, bf16, f16, "
         "int8, int4 (int8:huffman and int4:huffman for slow networks), qsgd:BITS, onebit, "
         "topk:SHARE[:BITS], or factors (gathers both factors of the weight gradients of fully "
         "connected layers)"),
    BOOL("parallel.canonical", parallel.canonical, "false",
         "sum over ranks in one fixed order, so that results do not depend on collective "
         "algorithm, tuning or timing"),
    CHOICE("parallel.overlap", parallel.overlap, "auto", "auto none all",
           "split operations to overlap compute with communication: auto = between hosts, where it "
           "pays; all = wherever possible"),
    CHOICE("parallel.sequence", parallel.sequence, "auto", "auto heads rows",
           "attention over axis sequence: heads = all-to-all from positions to heads (Ulysses); "
           "rows = queries stay, keys and values are gathered or passed round a ring; auto = the "
           "cheaper one"),
    TEXT("parallel.recompute", parallel.recompute, "none",
         "activation checkpointing: none, selective (recompute what is cheap), full (keep only "
         "each block's input), or the bytes of activations to keep per micro-batch over all ranks, "
         "such as 200MiB"),
    CHOICE("parallel.transport", parallel.transport, "auto", "auto nccl mpi host",
           "communication between GPUs: nccl, mpi (by an MPI library that takes GPUs' memory) or "
           "host (pinned memory and MPI); auto = nccl if every rank has its own GPU and there is "
           "no pipeline, else host"),
    NUMBER("parallel.timeout", parallel.timeout, "60", LL_ABOVE_0, 1e6,
           "seconds that other ranks wait for a rank before it counts as failed; may be below 1"),
    TEXT("parallel.schedule", parallel.schedule, "",
         "pipeline schedule: gpipe, 1f1b, interleaved, breadth-first, zb-h1, zb-h2, zb-v, "
         "dualpipe-v, auto (the fastest found), 2bw (steps overlap, gradients one step late; see "
         "train.delay), or a file with a schedule; empty = 1f1b"),
    INT("parallel.virtual_stages", parallel.virtual_stages, "0", 0, 64,
        "pipeline stages per rank; 0 = as the schedule needs, one or two"),
    TEXT("parallel.stages", parallel.stages, "",
         "pipeline: space-separated names or patterns of the nodes that begin stages 2, 3, ...; "
         "empty = balanced by cost"),
    BOOL("parallel.post_validation", parallel.post_validation, "false",
         "pipeline: stages update and begin the next step before the global gradient norm is "
         "known; the step is redone if train.clip would have changed it (docs/running.md)"),
    INT("parallel.replicas", parallel.replicas, "1", 1, 1e6,
        "number of model replicas: groups of ranks, each with the mesh and a share of every batch, "
        "that synchronize as parallel.consistency says"),
    CHOICE("parallel.consistency", parallel.said.name, "sync", LL_CONSISTENCIES,
           "preset for synchronization between replicas: default of each setting below that is not "
           "set (table in docs/running.md)"),
    ENUM("parallel.exchange", parallel.said.what, "", WORDS(LL_EXCHANGES),
         "what replicas exchange: gradients, parameters, or parameter differences since the last "
         "exchange; empty = the preset's"),
    INT("parallel.every", parallel.said.every, "-1", -1, 1e12,
        "steps between exchanges; 0 = never, -1 = the preset's"),
    INT("parallel.warm_up", parallel.said.warm_up, "-1", -1, 1e12,
        "steps of synchronous training before replicas diverge; -1 = the preset's"),
    ENUM("parallel.peers", parallel.said.peers, "", WORDS(LL_PEERS),
         "whom a replica exchanges with: all others, a random group, its neighbours on a ring or "
         "torus, the one at distance 1, 2, 4, ... in turn, or asynchronously a parameter server "
         "or a random partner (pairs); empty = the preset's"),
    INT("parallel.group", parallel.said.group, "-1", -1, 1e6,
        "with peers=groups: replicas per group; -1 = 2"),
    INT("parallel.fragments", parallel.said.fragments, "-1", -1, 1e6,
        "exchange differences in this many parts, spread evenly over parallel.every steps; -1 = "
        "the preset's"),
    INT("parallel.delay", parallel.said.delay, "-1", -1, 1e12,
        "steps by which an exchange of differences is overlapped with training before its result "
        "is applied; -1 = the preset's"),
    ENUM("parallel.server", parallel.said.server, "", WORDS(LL_SERVERS),
         "parameter server: sharded over all ranks, central on the first replica, or open "
         "(sharded, concurrent updates in any order: Hogwild); empty = the preset's"),
    INT("parallel.staleness", parallel.said.staleness, "-1", -1, 1e12,
        "parameter server: bound on how many steps replicas may be apart or, with "
        "exchange=gradient, how many rounds one may lag; -1 = the preset's"),
    INT("parallel.quorum", parallel.said.quorum, "-1", -1, 1e6,
        "parameter server with exchange=gradient: number of up-to-date gradients that complete a "
        "round; 0 = all replicas but one, -1 = the preset's"),
    TEXT("parallel.codec", parallel.said.codec, "",
         "compression of exchanged differences: none, lossless, bf16, f16, int8, int4 "
         "(int8:huffman and int4:huffman for slow networks), qsgd:BITS, onebit, topk:SHARE[:BITS]; "
         "empty = the preset's"),
    ENUM("parallel.outer", parallel.said.outer, "", WORDS(LL_OUTERS),
         "outer optimizer, which applies the mean difference; empty = the preset's"),
    NUMBER("parallel.outer_lr", parallel.said.outer_lr, "-1", -1, 100,
           "learning rate of the outer optimizer; -1 = the preset's"),
    NUMBER("parallel.outer_momentum", parallel.said.outer_momentum, "-1", -1, 1,
           "momentum of the outer optimizer; -1 = 0.9"),
    NUMBER("parallel.elastic", parallel.said.elastic, "-1", -1, 1,
           "elastic averaging (EASGD): pull replicas towards the common parameters with this "
           "strength, summed over all replicas, in place of replacing theirs; 0 = off, -1 = the "
           "preset's"),
    ENUM("parallel.seeds", parallel.said.seeds, "", WORDS(LL_SEEDS),
         "own = each replica has its own initialization and data order (ensembles); empty = the "
         "preset's"),
    NUMBER("parallel.replica_lr", parallel.replica_lr, "0", 0, 1e6,
           "factor on train.lr for replicas that diverge, as each sees a share of the batch; 0 = "
           "automatic: 1 for sgd, momentum and nesterov, or if parallel.outer is not sgd; else "
           "sqrt(replicas)"),
    ENUM("parallel.save", parallel.save, "replicas", WORDS(LL_KEPT_STATES),
         "content of checkpoints: replicas = the average and every replica's state; average = "
         "the average only, from which replicas cannot resume as they were"),

    TEXT("out", out, "", "run folder; empty = runs/ and the run's name"),
    {0},
};
_Static_assert(sizeof ll_run_keys / sizeof *ll_run_keys <= LL_MAX_KEYS, "LL_MAX_KEYS");

const ll_key_heading ll_run_headings[] = {
    {"model.name", "Model"},
    {"data.name", "Data"},
    {"data.flip", "Image preprocessing and augmentation"},
    {"data.threads", "Data loading"},
    {"train.batch", "Batch size and length of training"},
    {"train.optimizer", "Optimizer"},
    {"train.schedule", "Learning rate schedule"},
    {"train.init", "Initial weights"},
    {"train.lora", "Fine-tuning, quantization and pruning"},
    {"train.teacher", "Distillation"},
    {"train.machine", "Device, precision and memory"},
    {"train.eval_every", "Validation and logging"},
    {"train.save_every", "Checkpoints and fault tolerance"},
    {"parallel.mesh", "Parallelism and communication"},
    {"parallel.schedule", "Pipeline parallelism (mesh axis pipe)"},
    {"parallel.replicas", "Replicas (local SGD, DiLoCo, parameter server, ...)"},
    {"out", "Output"},
    {0}};

const ll_pattern_section ll_run_sections[] = {
    {"layout", offsetof(ll_run, layouts), "\"conv*.weight\": [-, -, -, channel]",
     "sharding of the tensors whose names match: for each dimension a mesh axis (or several: "
     "height*width), - for not sharded, . for unchanged; for example "
     "layout.conv*.weight=[-,-,-,channel]; `inspect --layouts` shows names; the last match wins"},
    {"params", offsetof(ll_run, params), "\"conv*.weight\": freeze",
     "training of the parameters whose names match: freeze, lr=FACTOR, decay=NUMBER, init=zeros, "
     "constant:A, normal:STD or uniform:A, separated by spaces; for example params.*.bias=lr=2 "
     "decay=0; the last match wins"},
    {0}};
