/* cmd_inspect.c: loopline inspect: what a run or a checkpoint is, before or after it runs. */
#include "cli/common.h"

#include "cli/inspect.h"
#include "comm/codec.h"
#include "kern/notes.h"

typedef struct opts {
    const char *what, *mesh, *form, *svg;
    ll_words set;
    int64_t zero, rank, nodes;
    bool graph, program, layouts, dot, schedule, conv, eval, json;
} opts;

static const ll_arg args[] = {
    {"WHAT", LL_OPT(opts, what), NULL, "a run, a model's name, or a checkpoint (.safetensors)"},
    {"--graph", LL_OPT(opts, graph), NULL,
     "print the graph as declared, with backward pass and update"},
    {"--program", LL_OPT(opts, program), NULL,
     "print the compiled program, with the memory address of every tensor"},
    {"--dot", LL_OPT(opts, dot), NULL,
     "print the graph in Graphviz format; pipe it into dot -Tsvg"},
    {"--mesh|-m", LL_OPT(opts, mesh), "MESH",
     "show one rank's graph and program on this mesh, such as data=2,tensor=2"},
    {"--zero", LL_OPT(opts, zero), "K",
     "with --mesh: ZeRO stage, sharding over axis data: 1 = optimizer state, 2 = and gradients, 3 "
     "= and parameters"},
    {"--rank", LL_OPT(opts, rank), "R", "with --mesh: the rank to show", "0"},
    {"--nodes", LL_OPT(opts, nodes), "N",
     "with --mesh: number of hosts that ranks are spread over, in order; operations are split to "
     "overlap with communication between hosts (parallel.overlap)",
     "1"},
    {"--layouts", LL_OPT(opts, layouts), NULL,
     "with --mesh: print the sharding of every tensor, and every collective"},
    {"--schedule", LL_OPT(opts, schedule), NULL,
     "with --mesh pipe=2 or more: print the pipeline's stages and a drawing of the schedule"},
    {"--conv", LL_OPT(opts, conv), NULL,
     "show the algorithm that train.conv=fast picks for each convolution under train.workspace, "
     "and the time under other limits; measures what is not in the cache yet"},
    {"--svg", LL_OPT(opts, svg), "FILE.svg", "with --schedule: write the drawing as SVG too"},
    {"--as", LL_OPT(opts, form), "text|csv",
     "with --schedule: print only the schedule, in a form that can be edited and passed to "
     "parallel.schedule"},
    {"--eval", LL_OPT(opts, eval), NULL, "show the evaluation graph instead of the training graph"},
    {"--machine", LL_ARG_SETTING, offsetof(opts, set), "M",
     "device to compile for: cpu, cuda or ref", "train.machine"},
    {"--set|-s", LL_OPT(opts, set), "KEY=VALUE", "override a setting of the run"},
    {"--json", LL_OPT(opts, json), NULL, "print one JSON object to standard output"},
    {0}};

/* ---- checkpoints ---- */

static ll_err show_checkpoint(const opts *o, const ll_st_file *f)
{
    json_auto_t *list = json_array();
    uint64_t bytes = 0;
    LL_EACH (const ll_st_entry, e, f->entries, f->n_entries) {
        json_t *dims = LL_JSON_LIST(d, e->n_dims, e->dims[d]);
        LL_OWN_MEMORY char *shape = json_dumps(dims, JSON_COMPACT);
        bytes += e->end - e->begin;
        if (!o->json) printf("%-40s %-5s %s\n", e->name, e->type, shape);
        json_array_append_new(
            list, LL_JSON(LL_IS("name", e->name), LL_IS("dtype", e->type), LL_IS("shape", dims)));
    }
    const char *step = ll_st_meta(f, "step");
    if (o->json)
        return ll_cli_json(LL_JSON(LL_IS("step", step), LL_IS("bytes", bytes),
                                   LL_IS("tensors", json_incref(list))));
    printf("%d tensors, %s, step %s\n", f->n_entries, LL_BYTES(bytes), step ? step : "unknown");
    return LL_OK;
}

/* ---- a mesh ---- */

typedef struct traffic { /* what one rank sends in a step, by kind of collective and by axes */
    const char *op;
    ll_axes axes;
    int64_t calls;
    double bytes;
} traffic;

typedef struct cut { /* a run's graph, as sessions of it have it */
    ll_session_opts asked;
    const ll_machine *machine;
    ll_context *ctx; /* of the GPU; NULL: none */
    ll_step_order steps;
    ll_room room;
    ll_cut *of;
    ll_graph *part;     /* the rank's that is asked for; NULL: nothing is cut */
    double least, most; /* bytes planned by ranks, of those with fewest and with most */
    traffic lines[64];
    int n_line;
} cut;

static ll_err bytes_sent(const ll_run *r, const ll_program *p, const ll_mesh *m, const ll_instr *x,
                         double *bytes)
{
    int size = ll_mesh_group(m, ll_collective_axes(x->collective, x->attr));
    int64_t n = 0;
    *bytes = 0;
    for (int o = 0; o < x->n_in; o++) {
        const ll_type *t = &p->slots[x->in[o]].type;
        *bytes += ll_collective_sent(m, x->collective, x->attrs[o], t);
        n += ll_numel(&t->shape);
    }
    return x->compressed ? ll_codec_estimate(r->parallel.compress, n, size, bytes) : LL_OK;
}

static ll_err count_traffic(const ll_run *r, const ll_program *p, const ll_mesh *m, cut *c)
{
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        if (!x->collective) continue;
        ll_axes axes = ll_collective_axes(x->collective, x->attr);
        int k = 0, times = ll_program_times(p, i);
        const char *op = x->compressed ? r->parallel.compress : x->op;
        while (k < c->n_line && (strcmp(c->lines[k].op, op) || c->lines[k].axes != axes)) k++;
        if (k == 64) continue;
        if (k == c->n_line) c->lines[c->n_line++] = (traffic){.op = op, .axes = axes};
        double bytes;
        TRY(bytes_sent(r, p, m, x, &bytes));
        c->lines[k].calls += times;
        c->lines[k].bytes += times * bytes;
    }
    return LL_OK;
}

static double sent_in_all(const cut *c)
{
    double sum = 0;
    for (int i = 0; i < c->n_line; i++) sum += c->lines[i].bytes;
    return sum;
}

static json_t *traffic_json(const cut *c)
{
    const traffic *t = c->lines;
    const ll_mesh *m = &c->of->place->mesh;
    return LL_JSON_LIST(
        i, c->n_line,
        LL_JSON(LL_IS("op", t[i].op),
                LL_IS("axes", ll_axes_text(m, t[i].axes, (char[LL_LAYOUT_TEXT]){0})),
                LL_IS("calls", t[i].calls), LL_IS("bytes", t[i].bytes)));
}

/* What axis sequence cuts of attention: "heads", "rows", or both in different layers; NULL: it cuts
 * none, or attention is products (exact sums). */
static const char *sequence_cut(const ll_placement *p)
{
    static const char *const names[] = {NULL, "heads", "rows", "heads and rows"};
    int a = ll_mesh_axis(&p->mesh, LL_AXIS_SEQUENCE), found = 0;
    for (int i = 0; a >= 0 && i < p->g->n_node; i++) {
        const ll_node *n = &p->g->nodes[i];
        ll_loops l;
        if (n->op->work != LL_WORK_ATTENTION || p->loop[i][a] < 0) continue;
        if (ll_node_loops(p->g, n, &l) != LL_OK) continue;
        found |= strchr("ts", l.letter[p->loop[i][a]]) ? 2 : 1; /* queries, keys */
    }
    return names[found];
}

static ll_err print_traffic(const opts *o, const ll_run *r, const ll_program *p, const cut *c)
{
    double bytes;
    TRY(ll_cut_bytes(&c->asked, p, &bytes));
    const char *cut = sequence_cut(c->of->place);
    char mesh[LL_MESH_TEXT];
    const ll_mesh *m = &c->of->place->mesh;
    printf("mesh %s: %s, tensors per rank %s", ll_mesh_text(m, mesh), LL_COUNTED(m->n_rank, "rank"),
           LL_BYTES(c->least));
    if (c->most > c->least) printf(" to %s", LL_BYTES(c->most));
    printf(" (%.0f bytes; train.memory limits this)", c->most);
    if (bytes > (double)p->bytes)
        printf(",\nof which %s are what %s leaves of gradients to the next step, besides the "
               "program's tensors",
               LL_BYTES(bytes - (double)p->bytes), r->parallel.compress);
    printf(";\ncommunication buffers come on top: train prints their size");
    if (cut) printf("\naxis sequence shards %s of attention", cut);
    printf("\nrank %ld sends %s per step:\n", o->rank, LL_BYTES(sent_in_all(c)));
    LL_EACH (const traffic, t, c->lines, c->n_line)
        printf("  %10s  %-14s over %-16s %s\n", LL_BYTES(t->bytes), t->op,
               ll_axes_text(m, t->axes, (char[LL_LAYOUT_TEXT]){0}), LL_COUNTED(t->calls, "call"));
    return LL_OK;
}

/* ---- one graph ---- */

static json_t *summary_json(const ll_run *r, const ll_graph *g, const ll_program *p, const cut *c)
{
    json_t *j = LL_JSON(
        LL_IS("model", r->model.name), LL_IS("parameters", ll_cli_numbers(g, LL_PARAM, NULL)),
        LL_IS("state", ll_cli_numbers(g, LL_STATE, NULL)), LL_IS("nodes", g->n_node),
        LL_IS("instructions", p->n_instr), LL_IS("flops", p->flops), LL_IS("peak_bytes", p->bytes),
        LL_IS("persistent_bytes", p->persistent_bytes), LL_IS("work_bytes", p->work_bytes),
        LL_IS("least_work_bytes", p->ideal_work_bytes), LL_IS("scratch_bytes", p->scratch_bytes),
        LL_IF(p->aside_bytes, "aside_bytes", p->aside_bytes),
        LL_IF(p->aside_bytes, "aside", p->target->aside.what));
    ll_memory_kinds m = ll_program_kinds(p);
    LL_JSON_ADD(j,
                LL_IS("bytes_by_kind",
                      LL_JSON(LL_IS("parameters", m.parameters), LL_IS("state", m.state),
                              LL_IS("gradients", m.gradients), LL_IS("activations", m.other),
                              LL_IS("batch", m.batch), LL_IS("scratch", m.scratch))),
                LL_IF(c->of->lean, "recompute",
                      LL_JSON(LL_IS("policy", r->parallel.recompute),
                              LL_IS("kept_bytes_before", c->of->recomputed.before),
                              LL_IS("kept_bytes", c->of->recomputed.after),
                              LL_IS("extra_flops", c->of->recomputed.extra),
                              LL_IS("nodes", c->of->recomputed.n_node))));
    if (!c->of->place) return j;
    char mesh[LL_MESH_TEXT];
    LL_JSON_ADD(j, LL_IS("mesh", ll_mesh_text(&c->of->place->mesh, mesh)),
                LL_IS("ranks", c->of->place->mesh.n_rank));
    const char *cut = sequence_cut(c->of->place);
    return LL_JSON_ADD(j, LL_IF(cut, "sequence", cut), LL_IS("bytes_per_rank", (int64_t)c->most),
                       LL_IS("sent_bytes", sent_in_all(c)), LL_IS("collectives", traffic_json(c)));
}

static ll_err show_summary(const opts *o, const ll_run *r, const ll_graph *g, const ll_program *p,
                           const cut *c)
{
    if (o->json) return ll_cli_json(summary_json(r, g, p, c));
    int64_t n_param, n_state, params = ll_cli_numbers(g, LL_PARAM, &n_param),
                              states = ll_cli_numbers(g, LL_STATE, &n_state);
    printf("model %s: %ld parameters in %ld tensors, %ld elements of state in %ld%s\n",
           r->model.name, params, n_param, states, n_state, c->of->place ? " on this rank" : "");
    printf("graph: %d nodes, %d blocks; program: %d instructions, %sFLOP per step\n", g->n_node,
           g->of.block, p->n_instr, LL_AMOUNT(p->flops));
    char line[256];
    if (c->of->lean)
        printf("%s\n",
               ll_recompute_text(r->parallel.recompute, &c->of->recomputed, line, sizeof line));
    if (c->of->place) TRY(print_traffic(o, r, p, c));
    const char *text = ll_program_print(p, p->arena), *tensors = strstr(text, "\ntensors ");
    printf("%s", tensors ? tensors + 1 : text);
    if (c->asked.exact && !c->steps.wide)
        printf("a step that has to be repeated with all bits (exact) takes more: train prints how "
               "much, and train.memory counts it\n");
    if (!strcmp(r->train.conv, "fast") && !c->asked.exact)
        printf("train.conv=fast picks convolutions by timing when a run starts: this is accurate's "
               "program, and a run may take more memory; --conv shows what is picked\n");
    ll_kern_notes_print(r->kernels, stdout);
    printf("\nFor the full text: --graph or --program%s%s.\n",
           c->of->place ? "; for the sharding: --layouts" : "",
           c->of->plan ? "; for the pipeline schedule: --schedule" : "");
    return LL_OK;
}

/* beside: bytes of a step made again with all bits; may be NULL. out NULL: how convolutions are
 * made is printed. */
static ll_err lower(const opts *o, const cut *c, const ll_graph *g, int rank, double *beside,
                    ll_program **out)
{
    ll_lower_opts l;
    ll_room room = c->room;
    TRY(ll_cut_lowers(c->of, &c->asked, c->machine, c->ctx, rank, LL_WHOLE_STEP, &l));
    if (room.aside || beside) TRY(ll_cut_beside(c->of, &l, rank, &room.beside));
    if (beside) *beside = room.beside;
    l.memory = ll_room_aside(&room);
    l.subsets = o->nodes > 1 && !l.pipe && !c->machine->device; /* they share no memory */
    return out ? ll_lower(g, &l, out) : ll_inspect_conv(g, &l);
}

static ll_err show_graph(const opts *o, const ll_run *r, const ll_graph *g, const cut *c)
{
    if (o->graph || o->dot) {
        fputs((o->graph ? ll_print : ll_print_dot)(g, g->arena), stdout);
        return LL_OK;
    }
    LL_OWN(ll_program) p = NULL;
    if (o->conv) return lower(o, c, g, (int)o->rank, NULL, NULL);
    TRY(lower(o, c, g, (int)o->rank, NULL, &p));
    if (!o->program) return show_summary(o, r, g, p, c);
    fputs(ll_program_print(p, p->arena), stdout);
    return LL_OK;
}

static ll_err show_schedule(const opts *o, const ll_run *r, const ll_graph *g, const cut *c)
{
    CHECK(c->of->plan, LL_E_ARG,
          "--schedule needs a pipeline, but mesh %s has none: add axis pipe=2", o->mesh);
    CHECK(c->of->plan->pipeline, LL_E_ARG,
          "--schedule cannot be combined with --eval: it shows training steps");
    return ll_inspect_pipe(&(ll_pipe_view){.g = g,
                                           .mesh = &c->of->place->mesh,
                                           .plan = c->of->plan,
                                           .form = o->form,
                                           .svg = o->svg,
                                           .goes_on = r->parallel.post_validation,
                                           .json = o->json});
}

/* What each rank plans to use, and what the one asked for sends. used: [ranks along pipe], of those
 * that have most. */
static ll_err measure(const opts *o, const ll_run *r, cut *c, double *used)
{
    const ll_mesh *m = &c->of->place->mesh;
    int n, pipe = ll_mesh_axis(m, LL_AXIS_PIPE), own = (int)o->rank;
    const int *ranks;
    TRY(ll_cut_kinds(c->of, &ranks, &n));
    c->least = c->most = 0;
    c->n_line = 0;
    bool counted = false;
    for (int i = 0; i < n + !counted; i++) {
        int k = i < n ? ranks[i] : own;
        LL_OWN(ll_graph) g = NULL;
        LL_OWN(ll_program) p = NULL;
        TRY(ll_cut_part(c->of, c->of->place, k, &g));
        double beside;
        TRY(lower(o, c, g, k, &beside, &p));
        double bytes, *most = &used[c->of->plan ? ll_mesh_coord(m, pipe, k) : 0];
        TRY(ll_cut_bytes(&c->asked, p, &bytes));
        if (bytes + beside > *most) *most = bytes + beside;
        if (bytes < c->least || !c->most) c->least = bytes;
        if (bytes > c->most) c->most = bytes;
        if (k == own) TRY(count_traffic(r, p, m, c));
        counted |= k == own;
    }
    return LL_OK;
}

static void forget(cut *c)
{
    ll_graph_free(c->part);
    ll_cut_free(c->of);
    c->part = NULL;
    c->of = NULL;
}

/* The graph cut over a mesh. */
static ll_err make_cut(const opts *o, const ll_run *r, const ll_graph *g, cut *c)
{
    ll_mesh m;
    TRY(ll_mesh_parse(o->mesh ? o->mesh : "", &m));
    CHECK(o->rank < m.n_rank, LL_E_ARG, "--rank is %ld, but mesh %s has ranks 0 to %d", o->rank,
          o->mesh, m.n_rank - 1);
    c->asked.threads = ll_cli_threads(r, m.n_rank);
    c->room.wide = c->asked.exact && !c->steps.wide && c->room.limit > 0;
    ll_cut_opts how = {.alone = !o->mesh,
                       .wide = c->steps.wide,
                       .again = c->room.wide && !o->layouts,
                       .unstaged = o->layouts,
                       .per_node = (int)(m.n_rank / o->nodes),
                       .canonical = r->parallel.canonical,
                       .room = &c->room};
    TRY(ll_cut_make(g, &c->asked, &how, &c->of));
    if (!c->of->place || o->layouts || ll_room_knows(&c->room, c->of->plan)) return LL_OK;
    return ll_cut_part(c->of, c->of->place, (int)o->rank, &c->part);
}

/* Nothing is cut: the one program. */
static ll_err measure_whole(const opts *o, const cut *c, double *used)
{
    LL_OWN(ll_program) p = NULL;
    TRY(lower(o, c, c->of->whole, 0, NULL, &p));
    *used = (double)p->bytes;
    return LL_OK;
}

/* As often as it takes for every rank to fit. */
static ll_err cut_to_fit(const opts *o, const ll_run *r, const ll_graph *g, cut *c)
{
    bool sums_up = !o->graph && !o->dot && !o->program && !o->schedule && !o->conv;
    c->room = ll_room_of(&c->asked, g);
    for (bool again = true; again;) {
        double own[LL_MAX_PIPE] = {0};
        forget(c);
        TRY(make_cut(o, r, g, c));
        const double *known = ll_room_knows(&c->room, c->of->plan), *used = known ? known : own;
        again = false;
        if (o->layouts) return LL_OK;
        bool judged = c->room.limit > 0 && (c->of->plan || sums_up || o->program);
        if (!known && c->part && (judged || sums_up)) TRY(measure(o, r, c, own));
        if (!known && !c->part && judged) TRY(measure_whole(o, c, own));
        if (judged) TRY(ll_room_judge(&c->room, c->of->plan, used, &again));
    }
    return LL_OK;
}

static ll_err show_whole(const opts *o, const ll_run *r, const ll_graph *g, cut *c)
{
    TRY(cut_to_fit(o, r, g, c));
    if (c->of->place && o->layouts) {
        fputs(ll_placement_print(c->of->place, c->of->place->arena), stdout);
        return LL_OK;
    }
    if (c->of->place && o->schedule) return show_schedule(o, r, c->of->whole, c);
    return show_graph(o, r, c->part ? c->part : c->of->whole, c);
}

/* As the session that trains it would have it, or the one that evaluates it. */
static ll_err show(const opts *o, const ll_run *r, const ll_graph *g)
{
    LL_OWN(ll_graph) late = NULL;
    cut c = {.asked = ll_run_session(r, NULL, o->mesh)};
    c.asked.zero = (int)o->zero;
    if (o->eval) {
        c.asked.micro_batches = 1;
        c.asked.recompute = NULL;
        c.asked.memory = 0;
    }
    TRY(ll_step_order_of(g, &c.asked, &c.steps));
    if (c.steps.late) TRY(ll_delay(g, &late));
    TRY(ll_machine_find(r->train.machine, &c.machine));
    if (c.machine->open_context) TRY(c.machine->open_context(0, &c.ctx)); /* where there is a GPU */
    ll_err rc = show_whole(o, r, late ? late : g, &c);
    forget(&c);
    if (c.ctx) c.machine->close_context(c.ctx);
    return rc;
}

static char *more(ll_arena *arena)
{
    return ll_arena_strdup(
        arena, "Example: look at a pipeline schedule, change it, and look at the result:\n\n"
               "  loopline inspect gpt-kjv --mesh pipe=4 -s train.micro_batch=1 --schedule\n"
               "  loopline inspect gpt-kjv --mesh pipe=4 -s train.micro_batch=1 \\\n"
               "      -s parallel.schedule=zb-h1 --schedule --svg zb-h1.svg\n"
               "  loopline inspect gpt-kjv --mesh pipe=4 -s train.micro_batch=1 \\\n"
               "      --schedule --as text > mine.txt\n"
               "  loopline inspect gpt-kjv --mesh pipe=4 -s train.micro_batch=1 \\\n"
               "      -s parallel.schedule=mine.txt --schedule\n");
}

/* Of what is asked for, what needs a mesh, or axis pipe. */
static ll_err check_mesh(const opts *o, const ll_run *r)
{
    const ll_run_parallel *p = &r->parallel;
    ll_mesh m;
    TRY(ll_mesh_parse(o->mesh ? o->mesh : "", &m));
    bool piped = ll_mesh_axis(&m, LL_AXIS_PIPE) >= 0;
    CHECK(o->mesh || (!o->layouts && !o->zero && !o->rank && o->nodes == 1), LL_E_ARG,
          "--layouts, --zero, --rank and --nodes need --mesh");
    CHECK(o->nodes >= 1 && m.n_rank % o->nodes == 0, LL_E_ARG,
          "--nodes is %ld, which does not divide %s equally", o->nodes,
          LL_COUNTED(m.n_rank, "rank"));
    CHECK(piped || (!*p->schedule && !*p->stages && p->virtual_stages <= 1), LL_E_ARG,
          "parallel.schedule, stages and virtual_stages need a pipeline: add pipe=2 or more to the "
          "mesh, or leave them out");
    CHECK(o->schedule || (!o->svg && !o->form), LL_E_ARG, "--svg and --as need --schedule");
    CHECK(!o->schedule || o->mesh, LL_E_ARG,
          "--schedule needs a pipeline: add --mesh pipe=2 and -s train.micro_batch=N");
    bool known = !o->form || !strcmp(o->form, "text") || !strcmp(o->form, "csv");
    CHECK(known, LL_E_ARG, "--as is '%s': expected text or csv", o->form);
    CHECK(!o->form || !o->json, LL_E_ARG, "--as %s is text: leave out --json", o->form);
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    int texts = o->graph + o->program + o->dot + o->layouts + o->conv;
    CHECK(!o->json || !texts, LL_E_ARG,
          "--graph, --program, --dot, --layouts and --conv are text: leave out --json");
    CHECK(texts + o->schedule <= 1, LL_E_ARG,
          "--graph, --program, --dot, --layouts, --conv and --schedule cannot be combined: use one "
          "of them");
    if (ll_ends_with(o->what, ".safetensors") && !ll_cli_holds_run(o->what)) {
        LL_OWN(ll_st_file) f = NULL;
        CHECK(!texts && !o->schedule && !o->eval && !o->mesh && !o->form && !o->svg && !o->zero &&
                  !o->rank && o->nodes == 1 && !o->set.n,
              LL_E_ARG, "%s is a checkpoint, which can be combined only with --json", o->what);
        TRY(ll_checkpoint_open(NULL, o->what, &f));
        return show_checkpoint(o, f);
    }
    LL_OWN(ll_run) r = NULL;
    LL_OWN(ll_graph) g = NULL;
    TRY(ll_cli_run_one(o->what, &o->set, true, &r));
    opts mine = *o;
    ll_mesh m = {0};
    if (!o->mesh && *r->parallel.mesh) mine.mesh = r->parallel.mesh;
    if (mine.mesh) TRY(ll_mesh_parse(mine.mesh, &m));
    bool cuts = !o->mesh || ll_mesh_axis(&m, LL_AXIS_DATA) >= 0; /* another mesh may have no data */
    if (mine.mesh && !mine.zero && cuts) mine.zero = r->parallel.zero;
    TRY(check_mesh(&mine, r));
    TRY(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), o->eval ? NULL : &r->train.optim,
                     &g));
    return show(&mine, r, g);
}

const ll_command ll_command_inspect = {
    "inspect", "show a run's graph, program and memory, or a checkpoint's tensors",
    args,      sizeof(opts),
    run,       more};
