/* cmd_inspect.c: loopline inspect: what a run or a checkpoint is, before or after it runs. */
#include "cli/common.h"

#include "base/text.h"
#include "program/program.h"

#include <stdio.h>
#include <string.h>

typedef struct opts {
    const char *what;
    ll_words set;
    bool graph, program, eval, json;
} opts;

static const ll_arg args[] = {
    {"WHAT", LL_ARG_TEXT, offsetof(opts, what), NULL,
     "a run, a model's name, or a checkpoint (a .safetensors file)", NULL},
    {"--graph", LL_ARG_FLAG, offsetof(opts, graph), NULL,
     "the graph as declared, with gradients and update, as text", NULL},
    {"--program", LL_ARG_FLAG, offsetof(opts, program), NULL,
     "the program it is compiled to, with every tensor's place in memory", NULL},
    {"--eval", LL_ARG_FLAG, offsetof(opts, eval), NULL, "the graph for evaluation, not training",
     NULL},
    {"--set|-s", LL_ARG_WORDS, offsetof(opts, set), "KEY=VALUE", "override a setting", NULL},
    {"--json", LL_ARG_FLAG, offsetof(opts, json), NULL, "one JSON object on standard output", NULL},
    {0}};

/* ---- checkpoints ---- */

static ll_err show_checkpoint(const opts *o, const ll_st_file *f)
{
    json_t *list = json_array();
    uint64_t bytes = 0;
    for (int i = 0; i < ll_st_count(f); i++) {
        const ll_st_entry *e = ll_st_at(f, i);
        json_t *dims = json_array();
        char shape[256] = "";
        size_t at = 0;
        for (int d = 0; d < e->n_dims; d++) {
            json_array_append_new(dims, json_integer(e->dims[d]));
            if (at < sizeof shape - 24)
                at += (size_t)snprintf(shape + at, sizeof shape - at, "%s%lld", d ? "," : "",
                                       (long long)e->dims[d]);
        }
        bytes += e->end - e->begin;
        if (!o->json) printf("%-40s %-5s [%s]\n", e->name, e->type, shape);
        json_array_append_new(
            list, json_pack("{s:s,s:s,s:o}", "name", e->name, "dtype", e->type, "shape", dims));
    }
    const char *step = ll_st_meta(f, "step");
    if (o->json) {
        json_t *j = json_object();
        json_object_set_new(j, "step", step ? json_string(step) : json_null());
        json_object_set_new(j, "bytes", json_integer((json_int_t)bytes));
        json_object_set_new(j, "tensors", list);
        return ll_cli_json(j);
    }
    json_decref(list);
    char b[LL_NUMBER_TEXT];
    printf("%d tensors, %s, step %s\n", ll_st_count(f), ll_text_bytes((double)bytes, b),
           step ? step : "not said");
    return LL_OK;
}

static bool is_checkpoint(const char *what)
{
    size_t n = strlen(what);
    return n > 12 && !strcmp(what + n - 12, ".safetensors");
}

/* ---- runs ---- */

static void count_values(const ll_graph *g, ll_kind kind, int64_t *n, int64_t *numbers)
{
    *n = *numbers = 0;
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0 && g->values[i].kind == kind)
            ++*n, *numbers += ll_numel(&g->values[i].type.shape);
}

static ll_err show_summary(const opts *o, const ll_run *r, const ll_graph *g, const ll_program *p)
{
    int64_t n_param, params, n_state, states;
    count_values(g, LL_PARAM, &n_param, &params);
    count_values(g, LL_STATE, &n_state, &states);
    if (o->json)
        return ll_cli_json(json_pack(
            "{s:s,s:I,s:I,s:i,s:i,s:f,s:I,s:I,s:I,s:I,s:I}", "model", r->model.name, "parameters",
            (json_int_t)params, "state", (json_int_t)states, "nodes", g->n_node, "instructions",
            p->n_instr, "flops", p->flops, "peak_bytes", (json_int_t)p->bytes, "persistent_bytes",
            (json_int_t)p->persistent_bytes, "work_bytes", (json_int_t)p->work_bytes,
            "least_work_bytes", (json_int_t)p->ideal_work_bytes, "scratch_bytes",
            (json_int_t)p->scratch_bytes));
    char t[LL_NUMBER_TEXT];
    printf("model %s: %lld parameters in %lld tensors, %lld numbers of state in %lld\n",
           r->model.name, (long long)params, (long long)n_param, (long long)states,
           (long long)n_state);
    printf("graph: %d nodes, %d blocks; program: %d instructions, %sFLOP a step\n", g->n_node,
           g->n_block, p->n_instr, ll_text_count(p->flops, t));
    const char *text = ll_program_print(p, p->arena), *memory = strstr(text, "\nmemory ");
    printf("%s", memory ? memory + 1 : text);
    printf("\n--graph and --program show the whole.\n");
    return LL_OK;
}

static ll_err show_graph(const opts *o, const ll_run *r, ll_graph *g)
{
    if (o->graph) {
        fputs(ll_print(g, g->arena), stdout);
        return LL_OK;
    }
    ll_program *p = NULL;
    ll_lower_opts l = {.machine = "cpu",
                       .precision = r->train.precision,
                       .threads = r->train.threads ? (int)r->train.threads : 1,
                       .n_micro = o->eval ? 1 : (int)ll_run_micro_batches(r)};
    TRY(ll_lower(g, &l, &p));
    ll_err rc = LL_OK;
    if (o->program)
        fputs(ll_program_print(p, p->arena), stdout);
    else
        rc = show_summary(o, r, g, p);
    ll_program_free(p);
    return rc;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    CHECK(!(o->json && (o->graph || o->program)), LL_E_ARG,
          "--graph and --program are text: leave out --json");
    if (is_checkpoint(o->what)) {
        ll_st_file *f = NULL;
        TRY(ll_checkpoint_open(NULL, o->what, &f));
        ll_err rc = show_checkpoint(o, f);
        ll_st_close(f);
        return rc;
    }
    ll_run *r = NULL;
    ll_graph *g = NULL;
    TRY(ll_cli_run(o->what, &o->set, true, &r));
    ll_err rc = ll_run_graph(r, r->train.batch / ll_run_micro_batches(r),
                             o->eval ? NULL : &r->train.optim, &g);
    if (rc == LL_OK) rc = show_graph(o, r, g);
    ll_graph_free(g);
    ll_run_free(r);
    return rc;
}

const ll_command ll_command_inspect = {"inspect",
                                       "shows a run's graph, program and memory, or a "
                                       "checkpoint's tensors",
                                       args,
                                       sizeof(opts),
                                       run,
                                       NULL,
                                       NULL};
