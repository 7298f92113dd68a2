/* cmd_bench.c: loopline bench, and of what it measures training steps. */
#include "cli/bench.h"
#include "cli/common.h"

#include "kern/notes.h"
#include "train/bench.h"

typedef struct opts {
    const char *model;
    ll_words set;
    double seconds;
    int64_t peak;
    bool json, profile;
} opts;

static const ll_arg args[] = {
    {"MODEL", LL_OPT(opts, model), NULL, "a model's name, or a run"},
    {"--batch|-b", LL_ARG_SETTING, offsetof(opts, set), "N", "batch size", "train.batch"},
    {"--threads|-t", LL_ARG_SETTING, offsetof(opts, set), "N",
     "CPU threads; if not given, one per core", "train.threads"},
    {"--machine", LL_ARG_SETTING, offsetof(opts, set), "M",
     "device to compute on: cpu, cuda or ref", "train.machine"},
    {"--precision", LL_ARG_SETTING, offsetof(opts, set), "P",
     "precision of matrix products and convolutions: f32, tf32, bf16, fp8, fp8block",
     "train.precision"},
    {"--seconds", LL_OPT(opts, seconds), "S",
     "how long to measure; a GPU is warmed up for as long first", "3"},
    {"--set|-s", LL_OPT(opts, set), "KEY=VALUE", "override a setting, such as model.layers=4"},
    {"--profile", LL_OPT(opts, profile), NULL, "print the time per op"},
    {"--peak", LL_ARG_COUNT, offsetof(opts, peak), "FLOPS",
     "peak FLOP/s of the GPU, to compute utilization; if not given, the vendor's figure"},
    {"--json", LL_OPT(opts, json), NULL, "print one JSON object to standard output"},
    {0}};

static json_t *lines_json(const ll_bench_line *lines, int n, const char *key)
{
    return LL_JSON_LIST(
        i, n,
        LL_JSON(LL_IS(key, lines[i].what), LL_IS("calls", lines[i].count),
                LL_IS("ms", 1e3 * lines[i].seconds),
                LL_IS("gflops", 1e-9 * lines[i].flops / (lines[i].seconds + 1e-12)),
                LL_IS("gb_per_s", 1e-9 * lines[i].bytes / (lines[i].seconds + 1e-12))));
}

/* What the speed is held against: on a GPU its stated peak, elsewhere a large product. */
static void add_peak(json_t *j, const ll_bench_report *b)
{
    double gflops = 1e-9 * b->work.made / b->step_s, model = 1e-9 * b->model / b->step_s;
    LL_JSON_ADD(j, LL_IS("model_flops", b->model));
    if (!*b->device) {
        LL_JSON_ADD(j, LL_IS("gflops", gflops), LL_IS("flops_done", b->work.made),
                    LL_IS("flops_of_loops", b->work.loops), LL_IS("flops_padded", b->work.padded),
                    LL_IS("gemm_gflops", b->gemm_gflops),
                    LL_IS("gemm_held_up", json_boolean(b->beside)),
                    LL_IS("percent_of_gemm_peak", 100 * gflops / b->gemm_gflops),
                    LL_IS("mfu", model / b->gemm_gflops), LL_IS("hfu", gflops / b->gemm_gflops));
        return;
    }
    LL_JSON_ADD(j, LL_IS("gpu", b->device), LL_IS("launches", b->n_launch),
                LL_IS("used_bytes", b->used_bytes), LL_IS("gflops", model),
                LL_IF(b->peak > 0, "peak_flops_per_s", b->peak),
                LL_IF(b->peak > 0, "mfu", 1e9 * model / b->peak));
}

static ll_err print_json(const ll_run *r, const ll_bench_report *b)
{
    double samples = (double)b->batch / b->step_s;
    json_t *j = LL_JSON(
        LL_IS("model", r->model.name), LL_IS("parameters", b->parameters), LL_IS("batch", b->batch),
        LL_IS("threads", b->threads), LL_IS("machine", r->train.machine),
        LL_IS("precision", ll_precision_name(r->train.precision)), LL_IS("steps", b->n_steps),
        LL_IS("step_ms", 1e3 * b->step_s), LL_IS("best_ms", 1e3 * b->best_s),
        LL_IF(b->cpu_s > 0, "cpu_ms", 1e3 * b->cpu_s),
        LL_IS("quartiles_ms", json_pack("[f,f]", 1e3 * b->q1_s, 1e3 * b->q3_s)),
        LL_IF(*b->device, "cool_ms", 1e3 * b->cool_s), LL_IS("samples_per_s", samples),
        LL_IS("tokens_per_s", samples * (double)b->seq));
    add_peak(j, b);
    return ll_cli_json(LL_JSON_ADD(
        j, LL_IS("peak_bytes", b->bytes), LL_IF(b->aside, "aside_bytes", b->aside),
        LL_IS("first_step_s", b->start_s), LL_IS("loss_first", b->first_loss),
        LL_IS("loss_last", b->last_loss), LL_IS("ops", lines_json(b->lines, b->n_line, "op")),
        LL_IS("classes", lines_json(b->classes, b->n_class, "class")),
        LL_IS("longest", lines_json(b->tops, b->n_top, "what"))));
}

/* All that was timed op by op: a mean, or of steps of their own, which the step's median may be far
 * from where other processes are in the way. */
static double seconds_of(const ll_bench_line *lines, int n)
{
    double sum = 0;
    LL_EACH (const ll_bench_line, l, lines, n) sum += l->seconds;
    return fmax(sum, 1e-12);
}

static void print_lines(const ll_bench_line *lines, int n, const char *title, double all)
{
    printf("\n%6s %10s %6s %10s %10s  %s\n", "calls", "ms", "%", "GFLOP/s", "GB/s", title);
    LL_EACH (const ll_bench_line, l, lines, n) {
        printf("%6d %10.3f %5.1f%% %10.1f %10.1f  %s\n", l->count, 1e3 * l->seconds,
               100 * l->seconds / all, 1e-9 * l->flops / (l->seconds + 1e-12),
               1e-9 * l->bytes / (l->seconds + 1e-12), l->what);
    }
}

static void print_speed(const ll_run *r, const ll_bench_report *b)
{
    char m[LL_NUMBER_TEXT];
    double gflops = 1e-9 * b->work.made / b->step_s, model = b->model / b->step_s;
    ll_text_bytes((double)b->bytes, m);
    if (!*b->device) {
        printf("model FLOPs: %.1f GFLOP/s, %.0f %% of a large matrix product here (%.1f, %s%s)   "
               "memory %s\n",
               1e-9 * model, 1e-7 * model / b->gemm_gflops, b->gemm_gflops, b->tiles,
               b->beside ? ", held up by others" : "", m);
        if (b->work.made != b->model)
            printf("executed FLOPs: %.1f GFLOP/s, %.0f %%: %.1f %% of what loops count, of "
                   "which %.1f %% is padding\n",
                   gflops, 100 * gflops / b->gemm_gflops, 100 * b->work.made / b->work.loops,
                   100 * b->work.padded / b->work.loops);
        return;
    }
    printf("%s: %.1f TFLOP/s of the model, ", b->device, 1e-12 * model);
    if (b->peak > 0)
        printf("%.1f %% of %.0f TFLOP/s (%s)", 100 * model / b->peak, 1e-12 * b->peak,
               ll_precision_name(r->train.precision));
    else
        printf("peak in %s is unknown (give --peak)", ll_precision_name(r->train.precision));
    printf("   %.3f ms before warm-up   %d launches\nmemory %s planned, %s used with libraries "
           "  first step after %.2f s\n",
           1e3 * b->cool_s, b->n_launch, m, LL_BYTES(b->used_bytes), b->start_s);
}

static void print_text(const ll_run *r, const ll_bench_report *b, bool profile)
{
    double samples = (double)b->batch / b->step_s;
    printf("%s, %s parameters, batch %ld, ", r->model.name, LL_AMOUNT(b->parameters), b->batch);
    if (!*b->device) printf("%d threads, ", b->threads);
    printf("%s\nstep %.3f ms (median of %d; min %.3f, quartiles %.3f and %.3f)   %s samples/s",
           ll_precision_name(r->train.precision), 1e3 * b->step_s, b->n_steps, 1e3 * b->best_s,
           1e3 * b->q1_s, 1e3 * b->q3_s, LL_AMOUNT(samples));
    if (b->seq) printf("   %s tokens/s", LL_AMOUNT(samples * (double)b->seq));
    printf("\n");
    if (b->cpu_s > 0) printf("of the thread's own time at least %.3f ms\n", 1e3 * b->cpu_s);
    print_speed(r, b);
    if (b->aside)
        printf("offloaded %s, to %s\n", LL_BYTES(b->aside),
               ll_target_find(r->train.machine)->aside.what);
    printf("loss on the fixed batch: %.4f -> %.4f\n", b->first_loss, b->last_loss);
    ll_kern_notes_print(r->kernels, stdout);
    double all = seconds_of(b->lines, b->n_line);
    if (*b->device || profile)
        printf("\nprofile: ops take %.3f ms a step in the mean; %% are parts of that\n", 1e3 * all);
    if (*b->device) print_lines(b->classes, b->n_class, "kernels", all);
    if (!profile) return;
    print_lines(b->lines, b->n_line, "op", all);
    print_lines(b->tops, b->n_top, "longest instructions, and their operands", all);
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_run) r = NULL;
    ll_bench_report *b = LL_NEW(a, ll_bench_report);
    CHECK(o->seconds >= 0, LL_E_ARG, "--seconds is %g, expected 0 or more", o->seconds);
    TRY(ll_cli_run_one(o->model, &o->set, true, &r));
    if (*r->parallel.mesh)
        fprintf(
            stderr,
            "one process, without the run's mesh %s: loopline bench scale measures several ranks\n",
            r->parallel.mesh);
    ll_bench_opts how = {.seconds = o->seconds, .profile = o->profile, .peak = (double)o->peak};
    TRY(ll_bench_step(r, &how, b));
    if (o->json) return print_json(r, b);
    print_text(r, b, o->profile);
    return LL_OK;
}

static const ll_command step = {"bench step", "time training steps of a model", args, sizeof(opts),
                                run};
static const ll_command *const subs[] = {&step, &ll_bench_comm_command, &ll_bench_scale_command,
                                         &ll_bench_consistency_command, NULL};

const ll_command ll_command_bench = {
    "bench", "benchmark training steps, collectives, scaling and replicas", .subs = subs};
