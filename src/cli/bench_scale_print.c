/* bench_scale_print.c: what loopline bench scale found, as a table and as JSON, with everything
 * that a reader needs in order to believe it: what was run on what, what a step's time has in it,
 * which steps were left out, and how far repeats lie apart. */
#include "cli/bench.h"
#include "cli/common.h"

static const char included[] = "reading of its data, forward, backward, communication, optimizer";
static const char excluded[] = "set-up, warm-up steps, validation, checkpoints, metrics";

/* ---- points, from job to job ---- */

typedef struct field {
    const char *name;
    size_t offset;
} field;

static const field fields[] = {
    {"flops", offsetof(ll_scale_point, flops)},
    {"exposed_s", offsetof(ll_scale_point, exposed_s)},
    {"most_exposed_s", offsetof(ll_scale_point, most_exposed_s)},
    {"sent_bytes", offsetof(ll_scale_point, sent)},
    {"shared_bytes", offsetof(ll_scale_point, read)},
    {"collectives", offsetof(ll_scale_point, collectives)},
    {"library_collectives", offsetof(ll_scale_point, library)},
    {"planned_bytes", offsetof(ll_scale_point, planned_bytes)},
    {"used_bytes", offsetof(ll_scale_point, used_bytes)},
    {"resident_bytes", offsetof(ll_scale_point, resident_bytes)},
    {"loss", offsetof(ll_scale_point, loss)},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static double *at(const ll_scale_point *p, const field *f)
{
    return (double *)(void *)((char *)(uintptr_t)p + f->offset);
}

json_t *ll_scale_point_json(const ll_scale_point *p)
{
    json_t *j =
        LL_JSON(LL_IS("ranks", p->ranks), LL_IS("nodes", p->nodes), LL_IS("threads", p->threads),
                LL_IS("mesh", p->mesh), LL_IS("batch", p->batch),
                LL_IS("parameters", p->parameters), LL_IS("tokens_in_sample", p->seq));
    for (int i = 0; i < FIELDS; i++) LL_JSON_ADD(j, LL_IS(fields[i].name, *at(p, &fields[i])));
    return LL_JSON_ADD(j, LL_IS("step_s", LL_JSON_LIST(i, p->n_step, p->times[i])));
}

ll_err ll_scale_point_parse(const char *text, size_t bytes, ll_arena *a, ll_scale_point *p)
{
    json_error_t why;
    const char *mesh;
    json_int_t batch, parameters, seq;
    json_t *times;
    *p = (ll_scale_point){0};
    json_auto_t *j = json_loadb(text, bytes, 0, &why);
    CHECK(j, LL_E_IO, "a job's output is not valid JSON: %s", why.text);
    int got = json_unpack(j, "{s:i,s:i,s:i,s:s,s:I,s:I,s:I,s:o}", "ranks", &p->ranks, "nodes",
                          &p->nodes, "threads", &p->threads, "mesh", &mesh, "batch", &batch,
                          "parameters", &parameters, "tokens_in_sample", &seq, "step_s", &times);
    CHECK(got == 0 && strlen(mesh) < sizeof p->mesh && json_array_size(times) > 0, LL_E_IO,
          "a job's output is not a measurement");
    strcpy(p->mesh, mesh);
    p->batch = batch;
    p->parameters = parameters;
    p->seq = seq;
    for (int i = 0; i < FIELDS; i++) *at(p, &fields[i]) = ll_json_number(j, fields[i].name);
    p->n_step = (int)json_array_size(times);
    p->times = LL_NEW_ARRAY(a, double, p->n_step);
    for (int i = 0; i < p->n_step; i++)
        p->times[i] = json_number_value(json_array_get(times, (size_t)i));
    return LL_OK;
}

/* ---- numbers made of them ---- */

/* Samples a second. */
static double rate_of(const ll_scale_row *x)
{
    return (double)x->batch / x->step_s;
}

/* One rank on the same cores with the same batch; NULL: there is none. */
static const ll_scale_row *beside(const ll_scale_bench_report *r, const ll_scale_row *x)
{
    for (int i = 0; i < r->n_row && x->ranks > 1; i++) {
        const ll_scale_row *y = &r->rows[i];
        if (y->ranks == 1 && y->threads == x->cores && y->batch == x->batch) return y;
    }
    return NULL;
}

static double speed_up(const ll_scale_bench_report *r, const ll_scale_row *x)
{
    return rate_of(x) / rate_of(&r->rows[0]);
}

/* Of the cores, against the first row. */
static double efficiency(const ll_scale_bench_report *r, const ll_scale_row *x)
{
    return speed_up(r, x) * r->rows[0].cores / x->cores;
}

static double against_one_rank(const ll_scale_bench_report *r, const ll_scale_row *x)
{
    const ll_scale_row *y = beside(r, x);
    return y ? rate_of(x) / rate_of(y) : NAN;
}

/* ---- JSON ---- */

static json_t *row_json(const ll_scale_bench_report *r, const ll_scale_row *x)
{
    json_t *j = ll_scale_point_json(&x->point);
    json_object_del(j, "step_s");
    return LL_JSON_ADD(
        j, LL_IS("cores", x->cores), LL_IS("more_threads_than_cores", x->crowded),
        LL_IS("step_ms", 1e3 * x->step_s),
        LL_IS("step_ms_quartiles", json_pack("[f,f]", 1e3 * x->q1_s, 1e3 * x->q3_s)),
        LL_IS("repeat_medians_ms", json_pack("[f,f]", 1e3 * x->least_s, 1e3 * x->most_s)),
        LL_IS("steps", x->point.n_step), LL_IS("samples_per_s", rate_of(x)),
        LL_IS("tokens_per_s", rate_of(x) * (double)x->point.seq), LL_IS("speed_up", speed_up(r, x)),
        LL_IS("efficiency", efficiency(r, x)),
        LL_IS("of_one_rank_on_these_cores", against_one_rank(r, x)));
}

ll_err ll_scale_bench_json(const ll_scale_bench_report *r)
{
    const ll_scale_bench_opts *o = r->opts;
    const ll_scale_row *base = &r->rows[0];
    json_t *rows = LL_JSON_LIST(i, r->n_row, row_json(r, &r->rows[i]));
    return ll_cli_json(LL_JSON(
        LL_IS("run", r->run->name), LL_IS("model", r->run->model.name),
        LL_IS("parameters", base->point.parameters), LL_IS("scaling", o->weak ? "weak" : "strong"),
        LL_IS("precision", ll_precision_name(r->run->train.precision)),
        LL_IS("optimizer", r->run->train.optim.name), LL_IS("zero", r->run->parallel.zero),
        LL_IS("processor", ll_tune_cpu(r->arena)), LL_IS("cores", r->cores),
        LL_IS("load_before", r->load), LL_IS("mpi", ll_transport_library()),
        LL_IS("version", ll_version()), LL_IS("time_includes", included),
        LL_IS("time_excludes", excluded), LL_IS("warm_up_steps", o->warm_up),
        LL_IS("steps_in_repeat", o->steps), LL_IS("repeats", o->repeats),
        LL_IS("baseline", LL_JSON(LL_IS("ranks", base->ranks), LL_IS("threads", base->threads))),
        LL_IS("rows", rows)));
}

/* ---- text ---- */

static void print_head(const ll_scale_bench_report *r)
{
    const ll_scale_bench_opts *o = r->opts;
    const ll_scale_row *base = &r->rows[0];
    printf("%s: %s, %s parameters, %s, %s; %s scaling: ", r->run->name, r->run->model.name,
           LL_AMOUNT(base->point.parameters), ll_precision_name(r->run->train.precision),
           r->run->train.optim.name, o->weak ? "weak" : "strong");
    if (o->weak)
        printf("%ld samples per step and rank\n", r->run->train.batch);
    else
        printf("%ld samples per step, divided among the ranks\n", r->run->train.batch);
    printf("machine: %s, %s; %s; loopline %s\n", ll_tune_cpu(r->arena),
           LL_COUNTED(r->cores, "core"), ll_transport_library(), ll_version());
    if (r->load > 0.5) printf("other programs were running at the start: load %.1f\n", r->load);
    printf("step time includes: %s\n  excludes: %s\n", included, excluded);
    printf("steps: %ld in each of %s, after %s; each repeat is a separate "
           "job, and rows take turns\n\n",
           o->steps, LL_COUNTED(o->repeats, "repeat"), LL_COUNTED(o->warm_up, "warm-up step"));
}

static const char *name_of(const ll_scale_row *x, char out[32])
{
    snprintf(out, 32, "%d x %d%s", x->ranks, x->threads, x->crowded ? "*" : "");
    return out;
}

static void print_speed(const ll_scale_bench_report *r, const ll_scale_row *x)
{
    char what[32], q[48], m[48], one[16] = "-";
    snprintf(q, sizeof q, "%.2f-%.2f", 1e3 * x->q1_s, 1e3 * x->q3_s);
    snprintf(m, sizeof m, "%.2f-%.2f", 1e3 * x->least_s, 1e3 * x->most_s);
    double of_one = against_one_rank(r, x), each = x->point.seq ? (double)x->point.seq : 1;
    if (!isnan(of_one)) snprintf(one, sizeof one, "%.2fx", of_one);
    printf("%-8s %-18s %6ld %9.2f %17s %17s %10s %7.2fx %5.0f %% %7s\n", name_of(x, what),
           *x->mesh ? x->mesh : "-", x->batch, 1e3 * x->step_s, q, m, LL_AMOUNT(each * rate_of(x)),
           speed_up(r, x), 100 * efficiency(r, x), one);
}

static void print_traffic(const ll_scale_row *x)
{
    const ll_scale_point *p = &x->point;
    char what[32];
    printf("%-8s %9.2f ms %5.1f %% %12s %12s %12.0f %12s %12s %12s\n", name_of(x, what),
           1e3 * p->exposed_s, 100 * p->exposed_s / x->mean_s, LL_BYTES(p->sent), LL_BYTES(p->read),
           p->collectives, LL_BYTES(p->planned_bytes), LL_BYTES(p->used_bytes),
           LL_BYTES(p->resident_bytes));
}

static void print_notes(const ll_scale_bench_report *r)
{
    bool crowded = false, library = false, one = false;
    for (int i = 0; i < r->n_row; i++) {
        crowded |= r->rows[i].crowded;
        library |= r->rows[i].point.library > 0;
        one |= !isnan(against_one_rank(r, &r->rows[i]));
    }
    printf("\nranks x: threads of each. speed-up: of %s, against the first row; effic.: the same "
           "for each core used\n",
           r->rows[0].point.seq ? "tokens/s" : "samples/s");
    if (one)
        printf("of one: against one rank with as many threads as these ranks have cores, on the "
               "same batch\n");
    printf("exposed: time a rank spends in collectives, mean of the ranks and steps, and its "
           "share of the mean step\nsent, shared: bytes of the rank with most, in messages and "
           "read from other "
           "ranks' shared memory%s\n",
           library ? " (without the MPI library's own collectives)" : "");
    printf("planned, used: tensors and communication buffers of the rank with most; resident: its "
           "process in all\n");
    if (crowded)
        printf("*: more threads than the %s: this shows overhead, not speed\n",
               LL_COUNTED(r->cores, "core"));
    if (r->opts->trace) printf("trace of the last repeat on most ranks: %s\n", r->opts->trace);
}

void ll_scale_bench_print(const ll_scale_bench_report *r)
{
    print_head(r);
    printf("%-8s %-18s %6s %9s %17s %17s %10s %8s %7s %7s\n", "ranks x", "mesh", "batch", "step ms",
           "quartiles", "repeats' medians", r->rows[0].point.seq ? "tokens/s" : "samples/s",
           "speed-up", "effic.", "of one");
    for (int i = 0; i < r->n_row; i++) print_speed(r, &r->rows[i]);
    printf("\n%-8s %12s %7s %12s %12s %12s %12s %12s %12s\n", "per step", "exposed", "", "sent",
           "shared", "collectives", "planned", "used", "resident");
    for (int i = 0; i < r->n_row; i++) print_traffic(&r->rows[i]);
    print_notes(r);
}
