/* bench_scale_print.c: what loopline bench scale found, as a table and as JSON, with everything
 * that a reader needs in order to believe it: what was run on what, what a step's time has in it,
 * which steps were left out, and how far repeats lie apart. */
#include "cli/bench.h"
#include "cli/common.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
        json_pack("{s:i,s:i,s:i,s:s,s:I,s:I,s:I}", "ranks", p->ranks, "nodes", p->nodes, "threads",
                  p->threads, "mesh", p->mesh, "batch", (json_int_t)p->batch, "parameters",
                  (json_int_t)p->parameters, "tokens_in_sample", (json_int_t)p->seq);
    for (int i = 0; i < FIELDS; i++)
        json_object_set_new(j, fields[i].name, ll_cli_number(*at(p, &fields[i])));
    json_t *times = json_array();
    for (int i = 0; i < p->n_step; i++) json_array_append_new(times, ll_cli_number(p->times[i]));
    json_object_set_new(j, "step_s", times);
    return j;
}

static ll_err read_point(const json_t *j, ll_arena *a, ll_scale_point *p)
{
    const char *mesh;
    json_int_t batch, parameters, seq;
    json_t *times;
    int got =
        json_unpack((json_t *)j, "{s:i,s:i,s:i,s:s,s:I,s:I,s:I,s:o}", "ranks", &p->ranks, "nodes",
                    &p->nodes, "threads", &p->threads, "mesh", &mesh, "batch", &batch, "parameters",
                    &parameters, "tokens_in_sample", &seq, "step_s", &times);
    CHECK(got == 0 && strlen(mesh) < sizeof p->mesh && json_array_size(times) > 0, LL_E_IO,
          "what a job printed is no measurement");
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

ll_err ll_scale_point_parse(const char *text, size_t bytes, ll_arena *a, ll_scale_point *out)
{
    json_error_t why;
    *out = (ll_scale_point){0};
    json_auto_t *j = json_loadb(text, bytes, 0, &why);
    CHECK(j, LL_E_IO, "what a job printed is not JSON: %s", why.text);
    return read_point(j, a, out);
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
    json_object_set_new(j, "cores", json_integer(x->cores));
    json_object_set_new(j, "more_threads_than_cores", json_boolean(x->crowded));
    json_object_set_new(j, "step_ms", ll_cli_number(1e3 * x->step_s));
    json_object_set_new(j, "step_ms_quartiles", json_pack("[f,f]", 1e3 * x->q1_s, 1e3 * x->q3_s));
    json_object_set_new(j, "repeat_medians_ms",
                        json_pack("[f,f]", 1e3 * x->least_s, 1e3 * x->most_s));
    json_object_set_new(j, "steps", json_integer(x->point.n_step));
    json_object_set_new(j, "samples_per_s", ll_cli_number(rate_of(x)));
    json_object_set_new(j, "tokens_per_s", ll_cli_number(rate_of(x) * (double)x->point.seq));
    json_object_set_new(j, "speed_up", ll_cli_number(speed_up(r, x)));
    json_object_set_new(j, "efficiency", ll_cli_number(efficiency(r, x)));
    json_object_set_new(j, "of_one_rank_on_these_cores", ll_cli_number(against_one_rank(r, x)));
    return j;
}

ll_err ll_scale_bench_json(const ll_scale_bench_report *r)
{
    const ll_scale_bench_opts *o = r->opts;
    const ll_scale_row *base = &r->rows[0];
    json_t *rows = json_array(), *j = json_object();
    for (int i = 0; i < r->n_row; i++) json_array_append_new(rows, row_json(r, &r->rows[i]));
    json_object_set_new(j, "run", json_string(r->run->name));
    json_object_set_new(j, "model", json_string(r->run->model.name));
    json_object_set_new(j, "parameters", json_integer(base->point.parameters));
    json_object_set_new(j, "scaling", json_string(o->weak ? "weak" : "strong"));
    json_object_set_new(j, "precision", json_string(r->run->train.precision));
    json_object_set_new(j, "optimizer", json_string(r->run->train.optim.name));
    json_object_set_new(j, "zero", json_integer(r->run->parallel.zero));
    json_object_set_new(j, "processor", json_string(ll_tune_cpu(r->arena)));
    json_object_set_new(j, "cores", json_integer(r->cores));
    json_object_set_new(j, "load_before", ll_cli_number(r->load));
    json_object_set_new(j, "mpi", json_string(ll_transport_library()));
    json_object_set_new(j, "version", json_string(ll_version()));
    json_object_set_new(j, "time_includes", json_string(included));
    json_object_set_new(j, "time_excludes", json_string(excluded));
    json_object_set_new(j, "warm_up_steps", json_integer(o->warm_up));
    json_object_set_new(j, "steps_in_repeat", json_integer(o->steps));
    json_object_set_new(j, "repeats", json_integer(o->repeats));
    json_object_set_new(j, "baseline",
                        json_pack("{s:i,s:i}", "ranks", base->ranks, "threads", base->threads));
    json_object_set_new(j, "rows", rows);
    return ll_cli_json(j);
}

/* ---- text ---- */

static void print_head(const ll_scale_bench_report *r)
{
    const ll_scale_bench_opts *o = r->opts;
    const ll_scale_row *base = &r->rows[0];
    char n[LL_NUMBER_TEXT];
    printf("%s: %s, %s parameters, %s, %s; %s scaling: ", r->run->name, r->run->model.name,
           ll_text_count((double)base->point.parameters, n), r->run->train.precision,
           r->run->train.optim.name, o->weak ? "weak" : "strong");
    if (o->weak)
        printf("%lld samples a step for each rank\n", (long long)r->run->train.batch);
    else
        printf("%lld samples a step, divided among the ranks\n", (long long)r->run->train.batch);
    printf("machine: %s, %d core%s; %s; loopline %s\n", ll_tune_cpu(r->arena), r->cores,
           r->cores == 1 ? "" : "s", ll_transport_library(), ll_version());
    if (r->load > 0.5) printf("other work on the machine when it began: a load of %.1f\n", r->load);
    printf("a step's time has: %s\n  not: %s\n", included, excluded);
    printf("steps: %lld in each of %lld repeats, after %lld left out; every repeat is a job of its "
           "own, and all rows take turns\n\n",
           (long long)o->steps, (long long)o->repeats, (long long)o->warm_up);
}

static const char *name_of(const ll_scale_row *x, char out[32])
{
    snprintf(out, 32, "%d x %d%s", x->ranks, x->threads, x->crowded ? "*" : "");
    return out;
}

static void print_speed(const ll_scale_bench_report *r, const ll_scale_row *x)
{
    char what[32], q[48], m[48], rate[LL_NUMBER_TEXT], one[16] = "-";
    snprintf(q, sizeof q, "%.2f-%.2f", 1e3 * x->q1_s, 1e3 * x->q3_s);
    snprintf(m, sizeof m, "%.2f-%.2f", 1e3 * x->least_s, 1e3 * x->most_s);
    double of_one = against_one_rank(r, x), each = x->point.seq ? (double)x->point.seq : 1;
    if (!isnan(of_one)) snprintf(one, sizeof one, "%.2fx", of_one);
    printf("%-8s %-18s %6lld %9.2f %17s %17s %10s %7.2fx %5.0f %% %7s\n", name_of(x, what),
           *x->mesh ? x->mesh : "-", (long long)x->batch, 1e3 * x->step_s, q, m,
           ll_text_count(each * rate_of(x), rate), speed_up(r, x), 100 * efficiency(r, x), one);
}

static void print_traffic(const ll_scale_row *x)
{
    const ll_scale_point *p = &x->point;
    char what[32], a[LL_NUMBER_TEXT], b[LL_NUMBER_TEXT], c[LL_NUMBER_TEXT], d[LL_NUMBER_TEXT],
        e[LL_NUMBER_TEXT];
    printf("%-8s %9.2f ms %5.1f %% %12s %12s %12.0f %12s %12s %12s\n", name_of(x, what),
           1e3 * p->exposed_s, 100 * p->exposed_s / x->step_s, ll_text_bytes(p->sent, a),
           ll_text_bytes(p->read, b), p->collectives, ll_text_bytes(p->planned_bytes, c),
           ll_text_bytes(p->used_bytes, d), ll_text_bytes(p->resident_bytes, e));
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
    printf("exposed: time a rank spends in collectives, mean of the ranks, and its share of the "
           "step\nsent, shared: bytes of the rank with most, in messages and read from other "
           "ranks' shared memory%s\n",
           library ? " (without the MPI library's own collectives)" : "");
    printf("planned, used: tensors and communication buffers of the rank with most; resident: its "
           "process in all\n");
    if (crowded)
        printf("*: more threads than the %d core%s: this shows overhead, not speed\n", r->cores,
               r->cores == 1 ? "" : "s");
    if (r->opts->trace) printf("trace of the last repeat on most ranks: %s\n", r->opts->trace);
}

void ll_scale_bench_print(const ll_scale_bench_report *r)
{
    print_head(r);
    printf("%-8s %-18s %6s %9s %17s %17s %10s %8s %7s %7s\n", "ranks x", "mesh", "batch", "step ms",
           "quartiles", "repeats' medians", r->rows[0].point.seq ? "tokens/s" : "samples/s",
           "speed-up", "effic.", "of one");
    for (int i = 0; i < r->n_row; i++) print_speed(r, &r->rows[i]);
    printf("\n%-8s %12s %7s %12s %12s %12s %12s %12s %12s\n", "a step", "exposed", "", "sent",
           "shared", "collectives", "planned", "used", "resident");
    for (int i = 0; i < r->n_row; i++) print_traffic(&r->rows[i]);
    print_notes(r);
}
