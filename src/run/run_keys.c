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

const ll_key ll_run_keys[] = {
    TEXT("model.name", model.name, "",
         "the model; its own sizes are keys of this section too (loopline models); empty: the "
         "first of model.file, or lenet5"),
    TEXT("model.file", model.file, "",
         "a shared library with the model (LL_EXPORT_MODELS of loopline.h): its code is run, so "
         "name only what you trust; or an ONNX network (name.onnx); empty: bundled ones, and the "
         "program's own"),
    CHOICE("model.loss", model.loss, "", "cross_entropy mse l1",
           "of an ONNX network: its first output against batch data y"),

    TEXT("data.name", data.name, "",
         "a known dataset (loopline data); empty: by path and format, or else the one usual for "
         "the model"),
    TEXT("data.path", data.path, "",
         "a file, a folder or a pattern of files, where not the usual one"),
    CHOICE("data.format", data.format, "", LL_DATA_FORMATS, "of the files at path (docs/own.md)"),
    TEXT("data.val_path", data.val_path, "",
         "likewise, of files for validation (empty: files of path that say so, or val_fraction)"),
    TEXT("data.fields", data.fields, "",
         "npy, npz, safetensors, hdf5, netcdf: which array is which input of the model, such as "
         "x=images,y=labels (empty: by their names)"),
    TEXT("data.field", data.field, "text", "jsonl: the field that has the text"),
    TEXT("data.tokenizer", data.tokenizer, "",
         "makes tokens of text, of prompts too: a tokenizer.json, a GGUF file, or a folder with "
         "tokenizer.json, or vocab.json and merges.txt (empty: tokens are bytes)"),
    INT("data.token_bytes", data.token_bytes, "0", 0, 4,
        "tokens without a header: bytes of each, 2 or 4 (0: by the name, .u16 or .u32; others have "
        "llm.c's header)"),
    NUMBER("data.val_fraction", data.val_fraction, "0.05", LL_ABOVE_0, 0.9,
           "held out for validation where there are no test files"),
    INT("data.samples", data.samples, "0", 0, 1e9,
        "synthetic data: how many training samples (0: 10000)"),
    BOOL("data.flip", data.flip, "false", "mirror training images with probability 1/2"),
    INT("data.crop", data.crop, "0", 0, 64,
        "pad training images by so many pixels, then cut back at a random place"),
    TEXT("data.image", data.image, "",
         "bring images to this size: 224, or HEIGHTxWIDTH (empty: as files have it; of pictures in "
         "folders, as the model does)"),
    INT("data.channels", data.channels, "0", 0, 4,
        "of images: 1 grey, 3 colours, 4 and alpha (0: as files, or the model, have them)"),
    NUMBERS("data.mean", data.mean, "[]", -1e6, 1e6,
            "of bytes / 255, one for each channel or one for all, which becomes 0 (empty: the "
            "set's own; of files ImageNet's, of grey 0.5)"),
    NUMBERS("data.deviation", data.deviation, "[]", 1e-6, 1e6, "likewise, which becomes 1"),
    NUMBER("data.centre", data.centre, "1", 0.01, 1,
           "validation sees this part of the largest window in the middle (0.875 is usual)"),
    NUMBERS("data.scale", data.scale, "[]", 0.0001, 1,
            "training sees a random window of this part of the area, such as [0.08, 1], of "
            "proportions 3:4 to 4:3 (empty: the middle, as validation)"),
    NUMBER("data.mixup", data.mixup, "0", 0, 1,
           "blend each training image with another, by Beta(this, this), and their labels' losses "
           "alike; a model of one's own takes it by ll_label_loss (0: no)"),
    NUMBER("data.cutmix", data.cutmix, "0", 0, 1,
           "likewise, a rectangle of the other image in place of this one's; with mixup too, one "
           "of both for each image (0: no)"),
    NUMBER("data.jitter", data.jitter, "0", 0, 1,
           "change brightness, contrast and saturation of training images by factors of 1 +- this"),
    INT("data.threads", data.threads, "0", 0, 64,
        "that make samples (0: where pictures are decoded, one for each core of the process)"),
    TEXT("data.cache", data.cache, "",
         "a local folder, shared by the ranks of a host, that files on a slow store are copied to "
         "ahead of their use"),
    INT("data.fetch", data.fetch, "0", 0, LL_MAX_FETCH,
        "threads of each rank that read files ahead (0: 16 with data.cache, else none)"),
    NUMBER("data.delay", data.delay, "0", 0, 60,
           "seconds that every read of a file takes longer: to try a slow store"),

    INT("train.batch", train.batch, "64", 1, 1e9, "samples in a step, of all ranks together"),
    INT("train.micro_batch", train.micro_batch, "0", 0, 1e9,
        "samples computed at once; gradients of a batch add up over them (0: the batch)"),
    INT("train.steps", train.steps, "0", 0, 1e12, "stop after so many steps (0: no limit)"),
    INT("train.epochs", train.epochs, "0", 0, 1e6,
        "stop after so many passes over the data (0: no limit; both 0: one pass)"),
    CHOICE("train.optimizer", train.optim.name, "adamw", OPTIMIZERS, "how parameters are updated"),
    NUMBER("train.lr", train.schedule.lr, "0.001", LL_ABOVE_0, 1e6, "the peak learning rate"),
    NUMBER("train.momentum", train.optim.momentum, "0", 0, 0.99999, "0: 0.9"),
    NUMBER("train.beta1", train.optim.beta1, "0", 0, 0.9999999, "0: the optimizer's usual"),
    NUMBER("train.beta2", train.optim.beta2, "0", 0, 0.9999999, "0: the optimizer's usual"),
    NUMBER("train.eps", train.optim.eps, "0", 0, 1, "0: the optimizer's usual"),
    NUMBER("train.weight_decay", train.optim.weight_decay, "0", 0, 1e3, "of the parameters"),
    CHOICE("train.no_decay", train.optim.no_decay, "1d", "1d none",
           "what is spared weight decay: 1d (biases and norms) or none"),
    NUMBER("train.clip", train.optim.clip, "0", 0, LL_MANY,
           "scale gradients down to this global norm (0: never)"),
    NUMBER("train.clip_value", train.optim.clip_value, "0", 0, LL_MANY,
           "cut elements of gradients off at this size, before that (0: never)"),
    BOOL("train.delay", train.delay, "false",
         "gradients are of what parameters were a step before, as parallel.schedule 2bw takes "
         "them: trains serially, or on any mesh, what that trains"),
    NUMBER("train.ema", train.optim.ema, "0", 0, 0.9999999,
           "keep an average of parameters, which validation, eval and predict use: after each step "
           "so many times itself (0: none)"),
    NUMBER("train.trust", train.optim.trust, "0", 0, 1e3,
           "lars, larc: trust coefficient (0: 0.001)"),
    CHOICE("train.schedule", train.schedule.shape, "constant", LL_SCHEDULES,
           "how the rate falls after warm-up"),
    NUMBER("train.warmup", train.schedule.warmup, "0", 0, 1e12,
           "the rate rises for so many steps, or, below 1, this fraction of the run"),
    NUMBER("train.min_lr", train.schedule.min_lr, "0", 0, 1e6,
           "cosine, linear: what the rate falls to"),
    INT("train.step_size", train.schedule.step_size, "0", 0, 1e12,
        "step: multiply the rate by step_gamma every so many steps (0: at milestones)"),
    NUMBER("train.step_gamma", train.schedule.step_gamma, "0.1", LL_ABOVE_0, 1, "step: the factor"),
    NUMBERS("train.milestones", train.schedule.milestones, "[]", 0, 1e12,
            "step: where to multiply: steps, or, below 1, fractions of the run"),
    CHOICE("train.scale_rule", train.schedule.scale_rule, "none", LL_SCALE_RULES,
           "linear or sqrt: multiply lr by batch/base_batch, or by its square root"),
    INT("train.base_batch", train.schedule.base_batch, "256", 1, 1e9,
        "the batch lr is meant for, under a scale_rule"),
    TEXT("train.init", train.init, "",
         "weights to begin with: a safetensors file, or a state_dict that torch.save wrote; "
         "moments and step start at 0; verify and bench do not look at it (empty: initial values "
         "by train.seed)"),
    TEXT("train.init_map", train.init_map, "",
         "how names and layouts of train.init are read: a bundled map (as-is, gguf-gpt2, "
         "gguf-llama, hf-bert, hf-gpt2, hf-llama, pytorch, torchvision-alexnet, "
         "torchvision-googlenet, torchvision-mobilenetv2, torchvision-resnet, "
         "torchvision-squeezenet, torchvision-vgg) or a file; empty: the bundled one that fits its "
         "names"),
    TEXT("train.init_skip", train.init_skip, "",
         "patterns of tensors that keep their initial values, or that are not read of train.init: "
         "\"fc.*\""),
    INT("train.lora", train.lora, "0", 0, 4096,
        "adapters of so many rows beside weights of products, which alone are trained; 0: none"),
    TEXT("train.lora_on", train.lora_on, "*.attn.*.weight,*.mlp.*.weight",
         "patterns of the weights that have one, with commas between"),
    CHOICE("train.base", train.base, "f32", "f32 int8 int4 nf4",
           "with train.lora: what the frozen weights of products are kept as, in blocks of 32 "
           "(QLoRA)"),
    CHOICE("train.quantize", train.quantize, "none", "none int8 int4",
           "products read their weights as blocks of 32 of so many bits would have them, and "
           "gradients go straight to the weights, which stay f32: for compress --to int8 and int4"),
    INT("train.prompt", train.prompt, "0", 0, 4096,
        "so many vectors before the tokens of each sequence, which alone are trained (prompt "
        "tuning; of llama); 0: none"),
    TEXT("train.prune", train.prune, "none",
         "of what the run begins with, the smallest weights of products become zeros, and stay so: "
         "N:M (2:4: of each 4 that a product sums over 2 stay) or a share of each tensor (0.5)"),
    TEXT("train.prune_steps", train.prune_steps, "",
         "A:B[:K]: not at the beginning but little by little, from step A to step B, every K (a "
         "tenth part of them), most of it early"),
    TEXT("train.teacher", train.teacher, "",
         "a run, trained or imported, from whose logits the model learns besides (distillation)"),
    NUMBER("train.teacher_weight", train.teacher_weight, "0.5", 0, 1,
           "how much of what is minimised is the distance from the teacher; the rest is the loss"),
    NUMBER("train.temperature", train.temperature, "2", 0.01, 1000,
           "that logits, the teacher's and ours, are divided by"),
    TEXT("train.teacher_hidden", train.teacher_hidden, "",
         "parts of the model whose last values are held against parts of the teacher, with commas "
         "between: \"h0=h2,h1=h5\" (ours=its)"),
    NUMBER("train.hidden_weight", train.hidden_weight, "1", 0, 1e6,
           "how much the mean of their squared differences counts in what is minimised"),
    INT("train.seed", train.seed, "1", 0, LL_MANY, "of initial values, order and dropout"),
    CHOICE("train.machine", train.machine, "cpu", WORDS(LL_TARGETS), "what computes"),
    CHOICE("train.precision", train.precision, "f32", WORDS(LL_PRECISIONS),
           "of matrix products and convolutions; parameters are kept in f32 (tf32, fp8: machine "
           "cuda)"),
    TEXT("train.conv", train.conv, "accurate",
         "machine cpu, convolutions: accurate (sums of products), fast (the quickest, as measured "
         "here once and kept in the user's cache; some round more), or a solver where it fits: "
         "direct, joined, gather, outer, im2col, winograd4, winograd2, fft16, fft32, plain"),
    TEXT("train.workspace", train.workspace, "auto",
         "machine cpu: bytes by which what convolutions work in may raise the memory's peak, such "
         "as 64MiB: they take fewer images at once, or another way (auto: any)"),
    BOOL("train.deterministic", train.deterministic, "true",
         "the same bits in every run; false: on GPUs algorithms are chosen by timing them, and "
         "attention's gradient is summed in any order, which is quicker"),
    INT("train.threads", train.threads, "0", 0, 4096, "0: one for each core"),
    TEXT("train.memory", train.memory, "",
         "bytes that the tensors of a rank's step may take, such as 2GiB, without buffers of "
         "communication: a pipeline's stages, and schedule auto, are made to fit (empty: any)"),
    TEXT("train.offload", train.offload, "",
         "a folder; on machine cuda host, which is pinned memory: activations and the optimizer's "
         "state that train.memory has no room for lie in a file there, or in that, while nobody "
         "reads them, copied beside the step (empty: nothing does)"),
    INT("train.eval_every", train.eval_every, "0", 0, 1e12,
        "steps between validations (0: after each epoch); there is always one at the end"),
    INT("train.eval_samples", train.eval_samples, "0", 0, 1e9,
        "validate on the first so many samples (0: all)"),
    INT("train.save_every", train.save_every, "0", 0, 1e12,
        "steps between checkpoints (0: after each epoch); there is always one at the end"),
    BOOL("train.save_beside", train.save_beside, "true",
         "write them beside the steps, from a copy of the state; false: steps wait"),
    INT("train.keep", train.keep, "2", 1, 1e6, "checkpoints kept, the newest"),
    INT("train.buddy", train.buddy, "0", 0, 1e12,
        "steps between copies of the state to memory that outlives ranks, of several nodes also on "
        "another one: a job of -n that starts again goes on from there (0: from checkpoints)"),
    NUMBER("train.spike", train.spike, "0", 0, 1e9,
           "a step whose gradient's norm is so many times the usual (an average over about 50 "
           "steps, after the first 20) does not update parameters (0: every step does)"),
    CHOICE("train.spike_action", train.spike_action, "skip", "skip rollback",
           "of such a step: skip, or rollback: also go back to the parameters of the newest "
           "checkpoint, with the data that comes next"),
    INT("train.compare", train.compare, "0", 0, 1e12,
        "every so many steps, see that ranks which hold the same parameters have the same bits, "
        "and end the run, naming rank and tensor, where not (0: never)"),
    TEXT("train.best", train.best, "",
         "keep checkpoints/best.safetensors too, of the best validation by: loss, accuracy, or a "
         "metric of the model's own: min:NAME, max:NAME (empty: no)"),
    INT("train.patience", train.patience, "0", 0, 1e9,
        "stop after so many validations without a better one, by train.best (0: never)"),
    INT("train.log_every", train.log_every, "10", 1, 1e9, "steps between lines of metrics"),

    TEXT("parallel.mesh", parallel.mesh, "",
         "ranks as a product of axes, such as data=2,tensor=2 (empty: data=SIZE)"),
    INT("parallel.zero", parallel.zero, "0", 0, 3,
        "cut over axis data: 1 moments, 2 and gradients, 3 and parameters"),
    BOOL("parallel.exact", parallel.exact, "false",
         "sums are exact: losses and checkpoints have the same bits on every mesh"),
    BOOL("parallel.tune", parallel.tune, "false",
         "where no table of this machine and number of ranks is kept, measure collectives first"),
    TEXT("parallel.compress", parallel.compress, "none",
         "of gradients, where they are summed over axis data: none, lossless, bf16, f16, int8, "
         "int4 (either: \":huffman\", in fewer bytes for slow networks), qsgd:BITS, onebit, "
         "topk:SHARE[:BITS], or factors: of fully connected layers, both factors are gathered"),
    BOOL("parallel.canonical", parallel.canonical, "false",
         "sums over ranks in one order, so that no bit depends on algorithm, tuner or timing"),
    CHOICE("parallel.overlap", parallel.overlap, "auto", "auto none all",
           "nodes in pieces, to compute while ranks wait: auto: between nodes, where it is worth "
           "while; all: wherever possible"),
    CHOICE("parallel.sequence", parallel.sequence, "auto", "auto heads rows",
           "attention over axis sequence: heads: all-to-alls turn positions into heads; rows: "
           "queries stay cut, keys and values come by; auto: what is cheaper"),
    TEXT("parallel.recompute", parallel.recompute, "none",
         "activations that the backward pass makes again in place of keeping them: none, selective "
         "(what is cheap), full (all but what enters a block), or the bytes that may be kept of a "
         "micro-batch, all ranks together: 200MiB"),
    CHOICE("parallel.transport", parallel.transport, "auto", "auto nccl host",
           "how GPUs talk: nccl, or host: through pinned memory and MPI; auto: by NCCL where every "
           "rank has a GPU of its own and there is no pipeline"),
    TEXT("parallel.schedule", parallel.schedule, "",
         "of axis pipe, how stages take micro-batches: gpipe, 1f1b, interleaved, breadth-first, "
         "zb-h1, zb-h2, zb-v, dualpipe-v, auto, 2bw (steps overlap, gradients are a step late: "
         "train.delay), or a file of a schedule (empty: 1f1b)"),
    INT("parallel.virtual_stages", parallel.virtual_stages, "0", 0, 64,
        "of axis pipe, stages a rank (0: as the schedule wants, one or two)"),
    TEXT("parallel.stages", parallel.stages, "",
         "of axis pipe, patterns of the nodes that begin the second, third ... stage (empty: by "
         "cost)"),
    BOOL("parallel.post_validation", parallel.post_validation, "false",
         "of axis pipe, a stage updates before it knows the norm of all, and begins the next step; "
         "where train.clip would have changed the update, it is made again (docs/running.md)"),
    NUMBER("parallel.timeout", parallel.timeout, "60", LL_ABOVE_0, 1e6,
           "a rank that the others wait for longer than so many seconds (0.5 works) has failed"),
    INT("parallel.replicas", parallel.replicas, "1", 1, 1e6,
        "groups of ranks, each with the mesh and a share of every batch, that exchange as follows"),
    CHOICE("parallel.consistency", parallel.said.name, "sync", LL_CONSISTENCIES,
           "between replicas, how the following are set where they are not (docs/running.md)"),
    CHOICE("parallel.exchange", parallel.said.what, "", "gradient parameter difference",
           "what replicas exchange: gradients, parameters, or differences since the last time"),
    INT("parallel.every", parallel.said.every, "-1", -1, 1e12,
        "steps between exchanges (0: never; -1: the preset's)"),
    INT("parallel.warm_up", parallel.said.warm_up, "-1", -1, 1e12,
        "steps of synchronous training before replicas part (-1: the preset's)"),
    CHOICE("parallel.peers", parallel.said.peers, "",
           "all groups ring torus exponential server pairs",
           "with whom: all, random groups, neighbours, the one 1, 2, 4 ... further on in turn; or, "
           "each in its own time, with a server or with any other one"),
    INT("parallel.group", parallel.said.group, "-1", -1, 1e6, "replicas of a group (-1: 2)"),
    INT("parallel.fragments", parallel.said.fragments, "-1", -1, 1e6,
        "exchange a part of the differences at a time, all of them in parallel.every steps (-1: "
        "the preset's)"),
    INT("parallel.delay", parallel.said.delay, "-1", -1, 1e12,
        "of differences: steps that go on beside an exchange, before its result is had (-1: the "
        "preset's)"),
    CHOICE("parallel.server", parallel.said.server, "", "sharded central open",
           "where a server's parameters lie: cut over all ranks, or on the first replica; open: "
           "cut, and all add to them at once, in no order"),
    INT("parallel.staleness", parallel.said.staleness, "-1", -1, 1e12,
        "of a server: nobody is more than so many steps ahead of another, or, of gradients, so "
        "many rounds behind (-1: the preset's)"),
    INT("parallel.quorum", parallel.said.quorum, "-1", -1, 1e6,
        "of gradients at a server: so many of the newest parameters close a round (0: all "
        "replicas' but one; -1: the preset's)"),
    TEXT("parallel.codec", parallel.said.codec, "",
         "of differences: none, lossless, bf16, f16, int8, int4 (either: \":huffman\", in fewer "
         "bytes for slow networks), qsgd:BITS, onebit, topk:SHARE[:BITS] (empty: the preset's, "
         "none)"),
    CHOICE("parallel.outer", parallel.said.outer, "", "sgd momentum nesterov",
           "what makes a step of the mean difference"),
    NUMBER("parallel.outer_lr", parallel.said.outer_lr, "-1", -1, 100,
           "its rate (-1: the preset's)"),
    NUMBER("parallel.outer_momentum", parallel.said.outer_momentum, "-1", -1, 1,
           "its momentum (-1: 0.9)"),
    NUMBER("parallel.elastic", parallel.said.elastic, "-1", -1, 1,
           "in place of going on from the common parameters, the pull to them, of all replicas "
           "together (0: none; -1: the preset's)"),
    CHOICE("parallel.seeds", parallel.said.seeds, "", "shared own",
           "own: replicas begin with other parameters and see samples in another order"),
    NUMBER("parallel.replica_lr", parallel.replica_lr, "0", 0, 1e6,
           "times train.lr, of replicas that part: each steps by its share of the batch (0: 1 of "
           "sgd, momentum and nesterov, and beside another parallel.outer than sgd; of others, "
           "whose steps a share's noise makes shorter, the root of parallel.replicas)"),
    CHOICE("parallel.save", parallel.save, "replicas", "replicas average",
           "what checkpoints hold beside the average: every replica's state, or nothing"),

    TEXT("out", out, "", "the run's folder (empty: runs/ and the run's name)"),
    {0},
};
_Static_assert(sizeof ll_run_keys / sizeof *ll_run_keys <= LL_MAX_KEYS, "LL_MAX_KEYS");

const ll_pattern_section ll_run_sections[] = {
    {"layout", offsetof(ll_run, layouts), "\"conv*.weight\": [-, -, -, channel]",
     "how values of that name lie on the mesh; of several the last wins\n"
     "%23sfor each dimension axes (height*width), - for none, . for what others do,\n"
     "%23sas in layout.conv*.weight=[-,-,-,channel]; names: inspect --layouts\n"},
    {"params", offsetof(ll_run, params), "\"conv*.weight\": freeze",
     "how parameters of that name are trained: freeze, lr=TIMES, decay=NUMBER,\n"
     "%23sinit=zeros, constant:A, normal:A or uniform:A; several with spaces between,\n"
     "%23sas in params.*.bias=lr=2 decay=0; of several patterns the last wins\n"},
    {0}};
