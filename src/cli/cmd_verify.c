/* cmd_verify.c: loopline verify: a layout may change speed and memory, never the result. */
#include "cli/common.h"
#include "cli/verify_many.h"

#include "comm/codec.h"
#include "comm/job.h"
#include "kern/notes.h"
#include "pass/prune.h"
#include "verify/verify.h"
#include "weights/weights_load.h"

typedef ll_verify_words opts;

static const double TOLERANCE = 1e-5; /* as --tolerance says */

static const ll_arg args[] = {
    {"[RUN]", LL_OPT(opts, run), NULL, "a run, or a model's name"},
    {"--mesh|-m", LL_ARG_SETTING, offsetof(opts, set), "MESH",
     "mesh to verify, such as data=2,tensor=2; if not given, the run's, or data=RANKS; with "
     "--matrix, only strategies of this mesh",
     "parallel.mesh"},
    {"--ranks|-n", LL_ARG_COUNT, offsetof(opts, ranks), "N",
     "start this many ranks; if not given, as many as the mesh has", .most = LL_RANKS_MOST},
    {"--zero", LL_ARG_SETTING, offsetof(opts, set), "K",
     "ZeRO stage, sharding over axis data: 1 = optimizer state, 2 = and gradients, 3 = and "
     "parameters",
     "parallel.zero"},
    {"--steps", LL_OPT(opts, steps), "N", "number of training steps to compare", "5"},
    {"--tolerance", LL_OPT(opts, tolerance), "T", "largest relative difference that passes",
     "1e-5"},
    {"--exact", LL_ARG_SETTING, offsetof(opts, set), NULL,
     "use exact summation, and require bitwise equality", "parallel.exact=true"},
    {"--batch|-b", LL_ARG_SETTING, offsetof(opts, set), "N", "global batch size", "train.batch"},
    {"--random", LL_OPT(opts, random), NULL,
     "use random batches instead of the run's data; always so for a model's name"},
    {"--set|-s", LL_OPT(opts, set), "KEY=VALUE", "override a setting of the run"},
    {"--json", LL_OPT(opts, json), NULL, "print one JSON object to standard output"},
    {"--matrix", LL_OPT(opts, matrix), NULL,
     "verify small models (or the one named by RUN) under every parallel strategy, and print a "
     "table; uses -n 8 if not given"},
    {"--pipelines", LL_OPT(opts, pipelines), NULL,
     "with --matrix: every pipeline schedule too, on 2, 3 and 4 stages with 1, 2, 5 and 8 "
     "micro-batches"},
    {"--fuzz", LL_ARG_AMOUNT, offsetof(opts, fuzz), "SECONDS",
     "verify random small models, meshes and settings for this long; uses -n 8 if not given"},
    {"--seed", LL_OPT(opts, seed), "N", "with --fuzz: random seed", "1"},
    {0}};

static char *more(ll_arena *arena)
{
    return ll_arena_strdup(
        arena,
        "Trains twice in one job, from the same seed on the same batches: on rank 0 alone, "
        "and on all ranks with the mesh. Initial values must be bitwise equal. After every "
        "step, loss and other results, every gradient, parameter and optimizer state are "
        "compared, on every rank that holds a copy or a shard. If one differs by more than "
        "the tolerance, the exit status is 1, and the tensor, the op that computes it, the "
        "rank and the element that differs most are printed.\n\n"
        "The relative difference of a tensor is the 2-norm of parallel - serial divided by "
        "the 2-norm of serial. Optimizers that divide by the gradient's magnitude (Adam) "
        "take a full step even where the gradient is rounding noise: elements of a "
        "parameter and its moments whose gradient is below 1e-2 of the tensor's mean and "
        "agrees to fewer than 3 digits are excluded from then on, and their number is "
        "printed. Gradients are always compared in full.\n\n"
        "If the tolerance is missed (for example at relu's kink, in batch norms over few "
        "samples, or in bf16), f32 cannot decide: both sides train again in f64, where "
        "rounding is 5e8 times smaller and tensors may differ by at most 1e-6; and with "
        "exact summation, where no bit may differ.\n\n"
        "Tensors are also compared in parts (ranges of each dimension), each by its own "
        "norm, since f64 says nothing about the f32 and bf16 kernels. If a part differs by "
        "more than 100 tolerances, more serial runs with parameters changed in the last bit show "
        "how much rounding alone changes it. Up to 16 times that passes (4 times in bf16). Beyond, "
        "bf16 fails; f32 fails if the relative difference is above 0.25 or above 4096 times that, "
        "and f64 decides in between, and where rounding alone changes a tensor by more than its "
        "norm. No failure is reported if the ranks match, up to rounding, "
        "one of 24 further such serial runs: then rounding flipped a single decision, which is "
        "printed. Parts excused by rounding are counted. "
        "Tolerances below 1e-6 are applied literally.\n\n"
        "train.memory limits the ranks, not the serial run. Ranks keep all gradients in "
        "full to the end of a step, so memory use differs from train's.\n\n"
        "With --exact both sides train with exact summation, and no bit may differ.\n\n"
        "--matrix verifies small models under every strategy and prints a Markdown table: "
        "the worst difference, the difference in f64 where f32 was too noisy, and the "
        "number of differing bits with exact summation. --fuzz draws random models, sizes, "
        "meshes, pipelines, ZeRO stages, exact summation, overlap, optimizers, "
        "micro-batches and precisions; failures are printed as the command that reproduces "
        "them. Both accept settings that they do not choose themselves: with --set "
        "train.machine=cuda, their ranks share a GPU.\n");
}

static ll_err print_json(const ll_verify_report *v, const char *mesh)
{
    json_t *first = json_null();
    if (v->name[0])
        first = LL_JSON(LL_IS("name", v->name), LL_IS("op", v->op), LL_IS("part", v->part),
                        LL_IS("rank", v->rank), LL_IS("index", v->index),
                        LL_IS("serial", v->serial), LL_IS("parallel", v->parallel),
                        LL_IS("step", v->step), LL_IS("rel_diff", v->rel_diff));
    return ll_cli_json(
        LL_JSON(LL_IS("ok", v->ok), LL_IS("max_rel_diff", v->max_rel_diff[0]),
                LL_IS("init_identical", v->init_identical), LL_IS("first_difference", first),
                LL_IS("mesh", mesh), LL_IS("steps", v->steps), LL_IS("worst", v->worst[0]),
                LL_IS("worst_step", v->worst_step[0]), LL_IS("unjudged_in_f32", v->unjudged),
                LL_IS("unjudged_in_f64", v->unjudged_in_f64), LL_IS("parts", v->blocks),
                LL_IS("parts_unjudged", v->unjudged_blocks),
                LL_IS("rounding", v->unjudged ? v->rounding : NAN), LL_IS("restarts", v->restarts),
                LL_IS("decided_by_rounding", v->corners),
                LL_IS("decided_step", v->corners ? json_integer(v->corner_step) : json_null()),
                LL_IS("decided_rel_diff", v->corners ? v->corner_rel_diff : NAN),
                LL_IS("decided_tensor", v->corners ? v->corner : NULL),
                LL_IS("f64_rel_diff", v->worst[1][0] ? v->max_rel_diff[1] : NAN),
                LL_IS("differing", v->differing < 0 ? json_null() : json_integer(v->differing)),
                LL_IS("tensors", v->tensors), LL_IS("elements", v->elements),
                LL_IS("left_out", v->left_out), LL_IS("loss_serial", v->loss[0]),
                LL_IS("loss_parallel", v->loss[1]), LL_IS("bytes_serial", v->bytes[0]),
                LL_IS("bytes_per_rank", v->bytes[1])));
}

static void print_text(const ll_run *r, const ll_verify_report *v, const char *mesh, int zero)
{
    printf("%s on %s%s%s: %s, %s compared in each\n", r->model.name, *mesh ? mesh : "one rank",
           zero ? ", zero " : "", zero ? (const char *[]){"", "1", "2", "3"}[zero] : "",
           LL_COUNTED(v->steps, "step"), LL_COUNTED(v->tensors, "tensor"));
    printf("initial parameters and state: %s\n", v->init_identical ? "identical" : "DIFFERENT");
    if (v->steps)
        printf("loss of step %ld: %.9g serial, %.9g parallel\n", v->steps, v->loss[0], v->loss[1]);
    if (r->parallel.exact) printf("exact: %ld elements differ in a bit\n", v->differing);
    if (v->steps)
        printf("worst relative difference: %.2e (%s, step %ld)\n", v->max_rel_diff[0], v->worst[0],
               v->worst_step[0]);
    if (v->unjudged)
        printf("too noisy to judge in %s: parameters changed in their last bit change a serial run "
               "by %.2e;\nranks went on from serial values after %s\n",
               ll_precision_name(r->train.precision), v->rounding, LL_COUNTED(v->restarts, "step"));
    if (v->unjudged_blocks)
        printf("%ld of %ld parts of gradients are off by more than 5 %%, which rounding in %s "
               "does too:\nin these a mistake of its kernels would not show\n",
               v->unjudged_blocks, v->blocks, ll_precision_name(r->train.precision));
    if (v->corners)
        printf("a decision that rounding made (relu's corner, a pooled pair), in %ld of the "
               "steps: in step %ld\n%s differs by %.2e, and ranks make what a serial run makes "
               "whose parameters\nwere changed in their last bits\n",
               v->corners, v->corner_step, v->corner, v->corner_rel_diff);
    if (v->worst[1][0])
        printf("so both trained again in f64: worst relative difference %.2e (%s, step %ld)\n",
               v->max_rel_diff[1], v->worst[1], v->worst_step[1]);
    if (v->unjudged && v->differing >= 0)
        printf("%sand with exact sums: %ld elements differ in a bit\n",
               v->unjudged_in_f64 ? "which is too noisy there as well, " : "", v->differing);
    if (v->unjudged && v->differing < 0 && v->ok)
        printf("with exact sums attention has no form by heads: f64 judges alone\n");
    if (v->left_out)
        printf("excluded because their gradient is rounding noise: %ld of %ld elements\n",
               v->left_out, v->elements);
    printf("memory planned for tensors (without communication buffers): %s serial, %s per rank\n",
           LL_BYTES(v->bytes[0]), LL_BYTES(v->bytes[1]));
    printf(v->ok ? "the ranks train what one process trains\n"
                 : "DIFFERENT: the ranks do not train what one process trains\n");
}

static ll_err verdict(const ll_verify_report *v)
{
    CHECK(v->init_identical, LL_E_DIFFER,
          "%s does not start the same: element %ld is %.9g in serial, %.9g on rank %d", v->name,
          v->index, v->serial, v->parallel, v->rank);
    CHECK(v->ok || v->differing <= 0, LL_E_DIFFER,
          "step %ld: %ld elements differ in a bit, first of %s (made by %s): element %ld is "
          "%.9g in serial, %.9g on rank %d",
          v->step, v->differing, v->name, v->op, v->index, v->serial, v->parallel, v->rank);
    CHECK(v->ok, LL_E_DIFFER,
          "step %ld%s: %s (made by %s)%s%s differs by %.2e, more than %.2g: element %ld is %.9g "
          "in serial, %.9g on rank %d",
          v->step, v->in_f64 ? " in f64" : "", v->name, v->op, v->part[0] ? ", " : "", v->part,
          v->rel_diff, v->allowed, v->index, v->serial, v->parallel, v->rank);
    return LL_OK;
}

/* The run's data where it can be had: a set that is not installed is said and replaced. */
static bool lacks_data(const opts *o, const ll_run *r, bool speak)
{
    if (o->random || ll_model_find(o->run)) return true;
    LL_OWN(ll_dataset) d = NULL;
    if (ll_run_dataset(r, &d) == LL_OK) return false;
    if (speak)
        fprintf(stderr, "random batches in place of the run's data: %s\n", ll_error_message());
    return true;
}

/* What no step reaches is not proved. */
static ll_err reaches_pruning(const opts *o, const ll_run *r)
{
    ll_prune_steps s;
    TRY(ll_prune_steps_parse(r->train.prune_steps, &s));
    int64_t first = s.from + s.every < s.to ? s.from + s.every : s.to;
    CHECK(!s.to || o->steps > first, LL_E_ARG,
          "train.prune_steps=%s first prunes after step %ld, but verify runs %ld: use --steps %ld "
          "or more",
          r->train.prune_steps, first, o->steps, first + 1);
    return LL_OK;
}

static ll_err verify(const opts *o, const ll_mesh *m, const ll_run *r, ll_comm *c)
{
    char mesh[LL_MESH_TEXT];
    ll_mesh_text(m, mesh);
    TRY(ll_comm_agree(c, ll_mesh_fits(m, ll_comm_size(c))));
    CHECK(ll_comm_size(c) > 1, LL_E_ARG,
          "there is one rank, but verify compares several with one: use --mesh data=2, or -n 2");
    /* Rank 0 decides for all: nodes may have different files. */
    double random = lacks_data(o, r, ll_comm_rank(c) == 0);
    if (ll_comm_size(c) > 1) TRY(ll_comm_broadcast(c, &random, 1, LL_F64, 0, NULL));
    ll_verify_opts v = {.session = {.comm = c, .mesh = mesh},
                        .steps = o->steps,
                        .tolerance = r->parallel.exact ? 0 : o->tolerance};
    ll_verify_report report;
    TRY(ll_comm_agree(c, reaches_pruning(o, r)));
    TRY(ll_verify_run(r, &v, random != 0, &report));
    ll_err rc = LL_OK;
    if (ll_comm_rank(c) == 0) {
        ll_kern_notes_print(r->kernels, stderr);
        if (o->json)
            rc = print_json(&report, mesh);
        else
            print_text(r, &report, mesh, (int)r->parallel.zero);
        fflush(stdout);
        if (rc == LL_OK) rc = verdict(&report);
    }
    return ll_comm_agree(c, rc);
}

/* Both trainings begin with values of the seed; a run whose weights could not be read, or do not
 * fit, is no run all the same, nor is one whose model does not take its settings. */
static ll_err check_model(const ll_run *r)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_weights) w = NULL;
    const ll_weights_from from = {r->train.init, r->train.init_map, r->train.init_skip};
    TRY(ll_run_graph(r, 1, NULL, &g));
    if (!*r->train.init) return LL_OK;
    TRY(ll_weights_open(NULL, r->train.init, &w));
    return ll_weights_check(g, w, &from, a);
}

static ll_err launch_and_verify(const opts *o, const ll_run *r)
{
    CHECK(!ll_codec_asked(r->parallel.compress), LL_E_CONFIG,
          "verify cannot be used with parallel.compress=%s, whose changes are no layout errors: "
          "use --set parallel.compress=none",
          r->parallel.compress);
    ll_mesh m;
    char by_ranks[32];
    int64_t ranks = o->ranks ? o->ranks : ll_job_size(); /* 0: neither -n nor a launcher */
    snprintf(by_ranks, sizeof by_ranks, "data=%ld", ranks);
    const char *said = *r->parallel.mesh ? r->parallel.mesh : ranks ? by_ranks : "";
    TRY(ll_mesh_parse(said, &m));
    ranks = o->ranks;
    if (!ranks && ll_job_size() <= 1) ranks = m.n_rank;
    if (ranks) TRY(ll_mesh_fits(&m, (int)ranks));
    TRY(ll_cli_launch(ranks, NULL));
    ll_comm *c;
    /* The others wait while rank 0 trains alone: more patience than a run's. */
    TRY(ll_comm_open(
        &(ll_comm_opts){.timeout_s = 10 * r->parallel.timeout, .canonical = r->parallel.canonical},
        &c));
    return ll_cli_leave(c, verify(o, &m, r, c));
}

/* What the cases of --matrix and --fuzz choose by themselves cannot be chosen for them. */
static ll_err refuse_own(const opts *o)
{
    static const char *const own[] = {"model.",         "parallel.mesh",     "parallel.zero",
                                      "parallel.exact", "parallel.schedule", "parallel.sequence",
                                      "train.batch",    "train.micro_batch", "train.threads"};
    static const char *const drawn[] = {"parallel.",     "train.optimizer",   "train.seed",
                                        "train.clip",    "train.precision",   "train.memory",
                                        "train.offload", "train.weight_decay"};
    int n_drawn = o->fuzz > 0 ? (int)(sizeof drawn / sizeof *drawn) : 0;
    for (int i = 0; i < o->set.n; i++)
        for (int k = 0; k < (int)(sizeof own / sizeof *own) + n_drawn; k++) {
            int d = k - (int)(sizeof own / sizeof *own);
            const char *key = d < 0 ? own[k] : drawn[d];
            if (o->matrix && !strcmp(key, "parallel.mesh")) continue; /* those of it alone */
            CHECK(strncmp(o->set.v[i], key, strlen(key)) != 0, LL_E_ARG,
                  "%s: %s choose this setting themselves; they take others, such as -s "
                  "train.machine=cuda",
                  o->set.v[i], d < 0 ? "--matrix and --fuzz" : "the draws of --fuzz");
        }
    return LL_OK;
}

static ll_err run_many(const opts *o)
{
    CHECK(!o->random, LL_E_ARG,
          "--matrix and --fuzz always use random batches: leave out --random");
    TRY(refuse_own(o));
    CHECK(!o->matrix || o->fuzz <= 0, LL_E_ARG,
          "--matrix cannot be combined with --fuzz: use one of them");
    CHECK(!o->run || ll_model_find(o->run), LL_E_ARG,
          "--matrix and --fuzz need a model, which %s is not", o->run);
    int64_t ranks = o->ranks ? o->ranks : ll_job_size() ? ll_job_size() : 8;
    CHECK(ranks > 1, LL_E_ARG, "--matrix and --fuzz need 2 ranks or more: use -n 8");
    LL_OWN(ll_run) r = NULL; /* settings that no run can have */
    TRY(ll_cli_run_one(o->run ? o->run : "mlp", &o->set, true, &r));
    if (o->matrix) TRY(ll_verify_matrix_has(o, (int)ranks));
    TRY(ll_cli_launch(o->ranks || !ll_job_size() ? ranks : 0, NULL));
    ll_comm *c;
    TRY(ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &c));
    return ll_cli_leave(c, (o->matrix ? ll_verify_matrix : ll_verify_fuzz)(c, o));
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_OWN(ll_run) r = NULL;
    CHECK(o->fuzz > 0 || o->seed == 1, LL_E_ARG,
          "--seed needs --fuzz; for a run use --set train.seed=%ld", o->seed);
    CHECK(!o->pipelines || o->matrix, LL_E_ARG, "--pipelines needs --matrix");
    CHECK(o->steps >= 1, LL_E_ARG, "--steps is 0, expected 1 or more");
    CHECK(o->tolerance >= 0, LL_E_ARG, "--tolerance is %g, expected 0 or more", o->tolerance);
    if (o->matrix || o->fuzz > 0) return run_many(o);
    CHECK(o->run, LL_E_ARG, "verify needs a run or a model's name, --matrix or --fuzz SECONDS");
    TRY(ll_cli_run_one(o->run, &o->set, true, &r));
    CHECK(!r->parallel.exact || o->tolerance == TOLERANCE, LL_E_ARG,
          "--tolerance=%g cannot be combined with exact sums, which must not differ in any bit: "
          "leave it out",
          o->tolerance);
    TRY(check_model(r));
    return launch_and_verify(o, r);
}

const ll_command ll_command_verify = {
    "verify", "check that training on a mesh gives the same results as on one process",
    args,     sizeof(opts),
    run,      more};
