/* plan_try.c: the ways that a run can be cut, tried one after another.
 *
 * A mesh cuts all layers alike. What is quickest for convolutions (samples, or rows of images where
 * these are large) is not for fully connected layers, whose weights are many times what they read.
 * So a mesh is the start of a greedy walk over what its layers might do differently:
 *
 *     conv3.conv2d: [height, -, -, -]     from here on ranks have samples, not rows of images
 *     fc1.weight: [data, -]               weights are cut over the ranks that cut samples before
 *
 * Each that makes the step shorter stays. They are lines of section layout in run files
 * (pass/layouts.c). */
#include "cli/plan_try.h"

#include "cli/common.h"
#include "run/setup.h"

enum { MOST_PINS = 16, MOST_TURNS = 6, MOST_WEIGHTS = 8 };
static const double worth = 0.995; /* of the step without it that a layout must come to */

/* ---- one way ---- */

/* Bytes of what is kept from step to step, which is in memory all the time. */
static double kept_bytes(const ll_graph *g)
{
    double bytes = 0;
    LL_EACH (const ll_pair, u, g->updates, g->n_update) bytes += ll_val_bytes(g, u->input);
    return bytes;
}

/* A rank's program; *bytes: with what a step takes beside it that is made again with all bits. */
static ll_err lower_rank(const ll_cut *c, const ll_session_opts *o, const ll_recipe *w, int rank,
                         ll_program **out, size_t *bytes)
{
    LL_OWN(ll_graph) part = NULL;
    const ll_machine *cpu;
    ll_lower_opts l;
    double beside, own;
    TRY(ll_machine_find(o->machine, &cpu));
    TRY(ll_cut_lowers(c, o, cpu, NULL, rank, LL_WHOLE_STEP, &l));
    if (w->device) l.target = w->device, l.replayed = true;
    TRY(ll_cut_beside(c, &l, rank, &beside));
    l.memory = !w->aside ? 0 : w->aside > (size_t)beside ? w->aside - (size_t)beside : 1;
    TRY(ll_cut_part(c, c->place, rank, &part));
    CHECK(w->room <= 0 || w->aside || kept_bytes(part) <= w->room, LL_E_MEM, "no room for %s",
          LL_BYTES(kept_bytes(part)));
    TRY(ll_lower(part, &l, out));
    TRY(ll_cut_bytes(o, *out, &own));
    *bytes = (size_t)(own + beside);
    return LL_OK;
}

/* Of ranks whose bytes may differ, the one that has most. */
static ll_err lower_fullest(const ll_cut *c, const ll_session_opts *o, const ll_recipe *w,
                            ll_program **out, size_t *bytes)
{
    const int *ranks;
    int n;
    TRY(ll_cut_kinds(c, &ranks, &n));
    for (int k = 0; k < n; k++) {
        LL_OWN(ll_program) one = NULL;
        size_t has;
        TRY(lower_rank(c, o, w, ranks[k], &one, &has));
        if (*out && *bytes >= has) continue;
        ll_program *less = *out;
        *out = one;
        *bytes = has;
        one = less;
    }
    return LL_OK;
}

ll_err ll_recipe_compile(const ll_run *r, const ll_graph *g, const ll_recipe *w, int threads,
                         ll_program **out, size_t *bytes)
{
    LL_OWN(ll_graph) own = NULL;
    LL_OWN(ll_graph) late = NULL;
    LL_OWN(ll_cut) c = NULL;
    LL_OWN(ll_program) p = NULL;
    ll_session_opts o = ll_run_session(r, NULL, w->mesh);
    o.zero = w->zero;
    o.micro_batches = (int)w->micro;
    o.recompute = w->recompute;
    if (w->layouts) o.layouts = w->layouts;
    *out = NULL;
    if (!g) TRY(ll_run_graph(r, r->train.batch / w->micro, &r->train.optim, &own));
    if (!g) g = own;
    ll_step_order steps;
    TRY(ll_step_order_of(g, &o, &steps));
    if (steps.late) TRY(ll_delay(g, &late));
    ll_cut_opts how = {.per_node = w->per_node,
                       .canonical = r->parallel.canonical,
                       .wide = steps.wide,
                       .again = o.exact && !steps.wide};
    TRY(ll_cut_make(late ? late : g, &o, &how, &c));
    /* Times are a cluster's: of the program, what every machine has in it. */
    o.machine = NULL;
    if (!w->device) o.precision = r->train.precision == LL_PRECISION_f32 ? "f32" : "bf16";
    o.threads = threads;
    o.any_order = false;
    o.conv = o.workspace = NULL;
    TRY(lower_fullest(c, &o, w, &p, bytes));
    return LL_HAND(out, p);
}

/* Of a rank, whose scratch is by thread: on this machine those that train would take. */
static int threads_of(const ll_tries *s, const ll_recipe *w, int ranks)
{
    if (w->device) return 1;
    if (!strcmp(s->cluster->name, "this")) return ll_cli_threads(s->run, ranks);
    return s->run->train.threads ? (int)s->run->train.threads : 1;
}

bool ll_tries_way(ll_tries *s, const ll_recipe *w, ll_tried *o)
{
    LL_OWN(ll_program) p = NULL;
    ll_mesh m;
    size_t bytes;
    if (ll_mesh_parse(w->mesh, &m) != LL_OK ||
        ll_recipe_compile(s->run, s->g, w, threads_of(s, w, m.n_rank), &p, &bytes) != LL_OK) {
        bool named = !strncmp(ll_error_message(), w->mesh, strlen(w->mesh));
        snprintf(s->trouble, sizeof s->trouble, "%s%s%s", named ? "" : w->mesh, named ? "" : ": ",
                 ll_error_message());
        s->left_out++;
        return false;
    }
    *o = (ll_tried){.way = *w, .bytes = bytes, .kinds = ll_program_kinds(p)};
    o->out = ll_replay(s->cluster, p, m.n_rank > 1 ? &m : NULL, s->run->train.precision, false);
    if (o->out.small) o->out.small = ll_arena_strdup(s->arena, o->out.small); /* the program's */
    o->out.model = ll_model_flops(s->g, (int)w->micro) / m.n_rank;
    o->fits = (double)bytes <= ll_tries_room(s);
    return true;
}

double ll_tries_room(const ll_tries *s)
{
    const ll_chip *c = &s->cluster->chip;
    double limit = s->run->train.memory_bytes, room = 1e9 * (c->memory - c->reserved);
    return limit > 0 && limit < room ? limit : room;
}

const ll_tried *ll_tries_least(const ll_tries *s)
{
    const ll_tried *least = s->v;
    LL_EACH (const ll_tried, o, s->v, s->n)
        if (o->bytes < least->bytes) least = o;
    return least;
}

/* ---- different axes for different layers ---- */

typedef struct pins {
    const char *of[MOST_PINS];
    int n;
} pins;

static bool named_once(const ll_graph *g, const char *name)
{
    int n = 0;
    for (int i = 0; i < g->n_node; i++) n += !strcmp(g->nodes[i].name, name);
    return n == 1;
}

/* Convolutions whose images are smaller than those before. */
static pins find_turns(const ll_graph *g)
{
    pins p = {0};
    int64_t last = 0;
    for (int i = 0; i < g->n_node && p.n < MOST_TURNS; i++) {
        const ll_node *n = &g->nodes[i];
        const ll_shape *s = &ll_value_of(g, n->out[0])->type.shape;
        if (n->op->work != LL_WORK_CONVOLUTION || n->of.phase != LL_FORWARD || s->n != 4) continue;
        if (last && s->d[1] * s->d[2] < last && named_once(g, n->name)) p.of[p.n++] = n->name;
        last = s->d[1] * s->d[2];
    }
    return p;
}

static bool is_read_by_product(const ll_graph *g, int value)
{
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            if (g->nodes[i].in[k].id == value && g->nodes[i].op->work == LL_WORK_PRODUCT)
                return true;
    return false;
}

/* Weights of fully connected layers, largest first. */
static pins find_weights(const ll_graph *g)
{
    pins p = {0};
    int64_t sizes[MOST_WEIGHTS];
    for (int v = 1; v < g->n_value; v++) {
        const ll_value *x = &g->values[v];
        int64_t size = ll_numel(&x->type.shape);
        if (x->node >= 0 || x->kind != LL_PARAM || x->type.shape.n != 2) continue;
        if (!is_read_by_product(g, v)) continue;
        int at = p.n < MOST_WEIGHTS ? p.n++ : MOST_WEIGHTS - 1;
        if (at == MOST_WEIGHTS - 1 && p.of[at] && sizes[at] >= size) continue;
        for (; at > 0 && sizes[at - 1] < size; at--)
            p.of[at] = p.of[at - 1], sizes[at] = sizes[at - 1];
        p.of[at] = x->name, sizes[at] = size;
    }
    return p;
}

static bool is_better(const ll_tried *a, const ll_tried *b)
{
    if (a->fits != b->fits) return a->fits;
    if (!a->fits && (double)a->bytes < worth * (double)b->bytes) return true;
    return a->fits && a->out.step_s < worth * b->out.step_s;
}

/* With one layout more; what has too many has no more. */
static bool try_pin(ll_tries *s, const ll_tried *from, const char *pattern, const char *layout,
                    ll_tried *out)
{
    int n = 0;
    while (from->way.layouts && from->way.layouts[n].pattern) n++;
    ll_layout_rule *rules = LL_NEW_ARRAY(s->arena, ll_layout_rule, n + 2);
    if (n) memcpy(rules, from->way.layouts, sizeof *rules * (size_t)n);
    rules[n] = (ll_layout_rule){.pattern = pattern, .layout = layout, .origin = "plan"};
    rules[n + 1] = (ll_layout_rule){0};
    ll_recipe w = from->way;
    w.layouts = rules;
    return ll_tries_way(s, &w, out);
}

/* The best of some pins, one layout for each; from stays where none is better. */
static void try_each(ll_tries *s, const pins *p, const char *layout, ll_tried *from)
{
    ll_tried best = *from, o;
    for (int i = 0; i < p->n; i++)
        if (try_pin(s, from, p->of[i], layout, &o) && is_better(&o, &best)) best = o;
    *from = best;
}

static void try_layers(ll_tries *s, const pins *turns, const pins *weights, const ll_tried *mesh)
{
    char axes[LL_LAYOUT_TEXT];
    ll_mesh m;
    ll_tried now = *mesh, o;
    if (ll_mesh_parse(mesh->way.mesh, &m) != LL_OK) return;
    ll_axes_text(&m, (ll_axes)((1u << m.n) - 1), axes); /* every one: "data*height" */
    bool space = ll_mesh_axis(&m, LL_AXIS_HEIGHT) >= 0 || ll_mesh_axis(&m, LL_AXIS_WIDTH) >= 0;
    if (space) try_each(s, turns, ll_arena_printf(s->arena, "[%s, -, -, -]", axes), &now);
    const char *const ways[] = {ll_arena_printf(s->arena, "[%s, -]", axes),
                                ll_arena_printf(s->arena, "[-, %s]", axes)};
    for (int i = 0; i < weights->n; i++) {
        ll_tried best = now;
        for (int k = 0; k < 2; k++)
            if (try_pin(s, &now, weights->of[i], ways[k], &o) && is_better(&o, &best)) best = o;
        now = best;
    }
    if (now.way.layouts) LL_PUSH(s->arena, s->v, s->n, s->room, now);
}

/* Axes tensor, channel and filter cut every layer's weights by themselves; width does as height. */
static bool is_start(const ll_tried *o)
{
    ll_mesh m;
    if (o->way.zero || ll_mesh_parse(o->way.mesh, &m) != LL_OK) return false;
    return (ll_mesh_axis(&m, LL_AXIS_DATA) >= 0) + (ll_mesh_axis(&m, LL_AXIS_HEIGHT) >= 0) == m.n;
}

/* ---- all of them ---- */

void ll_tries_mesh(ll_tries *s, const char *mesh, int zero)
{
    ll_recipe w = {.zero = zero,
                   .per_node = (int)s->cluster->node.chips,
                   .micro = ll_run_micro_batches(s->run),
                   .recompute = s->run->parallel.recompute,
                   .device = ll_chip_is_core(&s->cluster->chip) ? NULL : ll_target_device()};
    ll_tried o;
    snprintf(w.mesh, sizeof w.mesh, "%s", mesh);
    if (ll_tries_way(s, &w, &o)) LL_PUSH(s->arena, s->v, s->n, s->room, o);
}

void ll_mesh_with(int64_t ranks, const char *axis, int64_t size, char out[LL_MESH_TEXT])
{
    int n = ranks == size ? 0 : snprintf(out, LL_MESH_TEXT, "data=%ld,", (ranks / size));
    snprintf(out + n, LL_MESH_TEXT - (size_t)n, "%s=%ld", axis, size);
}

void ll_tries_meshes(ll_tries *s, int64_t ranks, int zero)
{
    static const char *const axes[] = {"height", "width", "tensor", "channel", "filter"};
    char mesh[LL_MESH_TEXT];
    ll_mesh_with(ranks, "data", ranks, mesh);
    ll_tries_mesh(s, mesh, zero < 0 ? 0 : zero);
    if (ranks > 1 && zero < 0) ll_tries_mesh(s, mesh, 1);
    for (size_t a = 0; a < sizeof axes / sizeof *axes; a++)
        for (int64_t n = 2; n <= 8 && ranks % n == 0; n *= 2) {
            ll_mesh_with(ranks, axes[a], n, mesh);
            ll_tries_mesh(s, mesh, zero < 0 || ranks == n ? 0 : zero);
        }
}

void ll_tries_all(ll_tries *s, int64_t ranks, int zero)
{
    ll_tries_meshes(s, ranks, zero);
    if (ranks < 2 || s->run->layouts.n) return;
    pins turns = find_turns(s->g), weights = find_weights(s->g);
    for (int i = 0, n = s->n; i < n; i++) {
        ll_tried mesh_alone = s->v[i];
        if (is_start(&mesh_alone)) try_layers(s, &turns, &weights, &mesh_alone);
    }
}

static int quickest(const void *a, const void *b)
{
    const ll_tried *x = (const ll_tried *)a, *y = (const ll_tried *)b;
    if (x->fits != y->fits) return y->fits - x->fits;
    if (!x->fits && x->bytes != y->bytes) return x->bytes > y->bytes ? 1 : -1;
    return (x->out.step_s > y->out.step_s) - (x->out.step_s < y->out.step_s);
}

void ll_tries_sort(ll_tries *s)
{
    if (s->n) qsort(s->v, (size_t)s->n, sizeof *s->v, quickest);
}
