/* layouts.c: layouts that a person asks for, by patterns of names.
 *
 *     "conv*.weight"   [-, -, -, channel]      as stored, and as every node of the model finds it
 *     "x"              [., -, -, channel]      batch data
 *     "conv2.conv2d"   [., height, -, -]       the result of a node, or of all of that name
 *
 * Each dimension has the axes that cut it (height*width), - for none, or . for whatever axes that
 * the layout does not name would do there. Axes that the mesh does not have cut nothing. Patterns
 * are those of the shell (* ? [a-z]); of several that match a value the last wins. A pattern with
 * wildcards is about the values that have as many dimensions as its layout.
 *
 * What is asked of a parameter is kept to: the nodes that read it, and those that make its
 * gradient, cut the loop that its layout cuts, and bring their other operands to that. What is
 * asked of a node's result is where it lies afterwards: how the node makes it is weighed as always,
 * with the way from there. */
#include "base/near.h"
#include "pass/place_int.h"

#include <fnmatch.h>
#include <stdio.h>

static const char *const axis_names[] = {
#define X(name, text, alias, help) text,
    LL_AXIS_KINDS(X)
#undef X
};

/* ---- one layout ---- */

/* Fails, for what is wrong with a rule. */
#define BAD(r, format, ...)                                                                        \
    FAIL(LL_E_CONFIG, "%s%slayout \"%s\": %s: " format, (r)->origin ? (r)->origin : "",            \
         (r)->origin ? ": " : "", (r)->pattern, (r)->layout, ##__VA_ARGS__)

static ll_err read_axis(const ll_layout_rule *r, const ll_mesh *m, const char *word, int dim,
                        ll_axes *seen, ll_pin *out)
{
    int k = 0;
    while (k < LL_N_AXIS_KIND && strcmp(axis_names[k], word)) k++;
    if (k == LL_N_AXIS_KIND) {
        ll_near near = {.word = word};
        for (int i = 0; i < LL_N_AXIS_KIND; i++) ll_near_try(&near, axis_names[i]);
        BAD(r, "unknown axis '%.20s'%s", word,
            near.best ? ll_near_hint(&near) : "; expected names of axes, - or .");
    }
    if (seen[k / 8] >> (k % 8) & 1) BAD(r, "axis %s is given twice", word);
    seen[k / 8] |= (ll_axes)(1u << (k % 8));
    int a = ll_mesh_axis(m, (ll_axis_kind)k);
    if (a >= 0) out->layout.split[dim] |= (ll_axes)(1u << a);
    return LL_OK;
}

/* "height*width", "-" or ".". */
static ll_err read_dim(const ll_layout_rule *r, const ll_mesh *m, char *text, int dim,
                       ll_axes *seen, ll_pin *out)
{
    char *rest = NULL;
    if (!strcmp(text, "-")) return LL_OK;
    if (!strcmp(text, ".")) {
        out->any |= (uint8_t)(1u << dim);
        return LL_OK;
    }
    for (char *w = strtok_r(text, "*", &rest); w; w = strtok_r(NULL, "*", &rest))
        TRY(read_axis(r, m, w, dim, seen, out));
    return LL_OK;
}

ll_err ll_pin_read(const ll_layout_rule *r, const ll_mesh *m, ll_pin *out)
{
    char text[256], *rest = NULL;
    ll_axes seen[(LL_N_AXIS_KIND + 7) / 8] = {0};
    size_t n = 0;
    *out = (ll_pin){.rule = r};
    for (const char *c = r->layout; *c; c++) {
        if (*c == ' ' || *c == '[' || *c == ']') continue;
        if (n + 1 == sizeof text) BAD(r, "it is too long");
        text[n++] = *c;
    }
    text[n] = '\0';
    for (char *w = strtok_r(text, ",", &rest); w; w = strtok_r(NULL, ",", &rest)) {
        if (out->n_dim == LL_MAX_DIMS) BAD(r, "it has more dimensions than values can have");
        TRY(read_dim(r, m, w, out->n_dim++, seen, out));
    }
    if (!out->n_dim) BAD(r, "expected an entry for each dimension, as in [tensor, -]");
    return LL_OK;
}

/* ---- which values it is of ---- */

static const char *name_of(const ll_graph *g, int v)
{
    const ll_value *x = &g->values[v];
    if (x->node < 0) return x->kind == LL_STEP ? NULL : x->name;
    const ll_node *n = &g->nodes[x->node];
    return x->name ? x->name : n->out[0].id == v ? n->name : NULL;
}

static bool is_of(const ll_graph *g, int v, const char *pattern)
{
    const ll_value *x = &g->values[v];
    const char *name = name_of(g, v);
    if (name && !fnmatch(pattern, name, 0)) return true;
    return x->node >= 0 && g->nodes[x->node].out[0].id == v &&
           !fnmatch(pattern, g->nodes[x->node].name, 0);
}

static ll_err nothing_matches(const ll_graph *g, const ll_pin *pin, int other)
{
    ll_near near = {.word = pin->rule->pattern};
    if (other)
        BAD(pin->rule, "it has %d dimensions, but %s has %s", pin->n_dim, name_of(g, other),
            LL_DIMS(&g->values[other].type.shape));
    for (int v = 1; v < g->n_value; v++)
        if (name_of(g, v)) ll_near_try(&near, name_of(g, v));
    BAD(pin->rule, "%s has no value of this name%s%s", g->name, ll_near_hint(&near),
        pin->rule->origin ? "; see loopline inspect RUN --mesh MESH --layouts" : "");
}

/* Has every dimension an element for each rank that shares it? */
static ll_err check_extents(const ll_graph *g, const ll_mesh *m, const ll_pin *pin, int v)
{
    const ll_shape *s = &g->values[v].type.shape;
    for (int d = 0; d < pin->n_dim; d++) {
        int ranks = ll_mesh_group(m, pin->layout.split[d]);
        if (s->d[d] < ranks)
            BAD(pin->rule, "dimension %d of %.80s %s is too short for %d ranks", d, name_of(g, v),
                LL_DIMS(s), ranks);
    }
    return LL_OK;
}

static ll_err match(const ll_graph *g, const ll_mesh *m, const ll_pin *pin, bool lenient,
                    const ll_pin **pins)
{
    bool any = false;
    int other = 0; /* of another number of dimensions */
    for (int v = 1; v < g->n_value; v++) {
        if (!is_of(g, v, pin->rule->pattern)) continue;
        if (g->values[v].type.shape.n != pin->n_dim) {
            other = v;
            continue;
        }
        TRY(check_extents(g, m, pin, v));
        pins[v] = pin;
        any = true;
    }
    return any || lenient ? LL_OK : nothing_matches(g, pin, other);
}

ll_err ll_pins_find(const ll_graph *g, const ll_mesh *m, const ll_layout_rule *rules, bool lenient,
                    ll_arena *arena, const ll_pin ***out)
{
    const ll_pin **pins = LL_NEW_ARRAY(arena, const ll_pin *, g->n_value);
    for (const ll_layout_rule *r = rules; r && r->pattern; r++) {
        ll_pin *pin = LL_NEW(arena, ll_pin);
        TRY(ll_pin_read(r, m, pin));
        TRY(match(g, m, pin, lenient, pins));
    }
    *out = pins;
    return LL_OK;
}

/* ---- what follows from it ---- */

/* That axis cuts; -1: none, as where nothing is asked (NULL). */
static int pin_dim(const ll_pin *pin, int axis)
{
    for (int d = 0; pin && d < pin->n_dim; d++)
        if (pin->layout.split[d] >> axis & 1) return d;
    return -1;
}

ll_layout ll_pin_settle(const ll_pin *pin, const ll_layout *made)
{
    ll_layout l = pin->layout;
    ll_axes named = ll_layout_axes(&pin->layout);
    for (int d = 0; d < LL_MAX_DIMS; d++)
        if (pin->any >> d & 1) l.split[d] |= made->split[d] & (ll_axes)~named;
    return l;
}

/* Bytes from a result of so many bytes that axis (of p ranks) cuts along dim to what is asked. */
static double pin_cost(const ll_pin *pin, int axis, int p, int dim, double bytes)
{
    int want = pin_dim(pin, axis);
    double share = (double)(p - 1) / p;
    if (dim == want || dim < 0) return 0;
    if (want >= 0) return bytes * share / p;
    return pin->any >> dim & 1 ? 0 : bytes * share;
}

/* ---- what it means for a node ---- */

/* Dimension dim of value v, which is asked to be cut, is walked by no loop that can be. */
static ll_err refuse(const placer *c, ll_val v, int dim, const ll_node *n)
{
    BAD(c->p->pins[v.id]->rule, "dimension %d of %.80s cannot be cut: %.80s (%s) needs it whole",
        dim, name_of(c->g, v.id), n->name, n->op->name);
}

/* Is v a parameter that is asked to be cut by axis a? *dim: there. */
static bool pinned_param(const placer *c, ll_val v, int a, int *dim)
{
    const ll_value *x = ll_value_of(c->g, v);
    if (!v.id || !c->p->pins[v.id] || x->node >= 0 || x->kind != LL_PARAM) return false;
    *dim = pin_dim(c->p->pins[v.id], a);
    return *dim >= 0;
}

ll_err ll_place_pinned(const placer *c, int node, const ll_loops *l, int a, int *loop)
{
    const ll_node *n = &c->g->nodes[node];
    int d;
    *loop = -1;
    for (int o = 0; o < n->n_out; o++) {
        d = pin_dim(c->p->pins[n->out[o].id], a);
        int by = d >= 0 ? l->out[o][d] : 0;
        if (by < 0 || (d >= 0 && l->combine[by] == LL_WHOLE && !n->op->expand))
            return refuse(c, n->out[o], d, n);
    }
    if (!c->p->micro[node]) return LL_OK;
    for (int i = 0; i < n->n_in && *loop < 0; i++) {
        if (!pinned_param(c, n->in[i], a, &d)) continue;
        *loop = l->in[i][d];
        if (*loop < 0 || !ll_place_cuttable(c, node, l, *loop)) return refuse(c, n->in[i], d, n);
    }
    if (*loop >= 0 || n->n_out != 1 || !pinned_param(c, c->aim[n->out[0].id], a, &d)) return LL_OK;
    int by = l->out[0][d];
    if (by >= 0 && l->combine[by] == LL_FREE && ll_place_cuttable(c, node, l, by)) *loop = by;
    return LL_OK;
}

bool ll_place_asked(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop)
{
    for (int o = 0; o < n->n_out; o++) {
        int d = pin_dim(c->p->pins[n->out[o].id], a);
        if (d >= 0 && l->out[o][d] == loop) return true;
    }
    return false;
}

double ll_place_unpinned(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop)
{
    double sum = 0;
    for (int o = 0; o < n->n_out; o++) {
        const ll_pin *pin = c->p->pins[n->out[o].id];
        int d = ll_dim_of(l->out[o], loop);
        if (pin) sum += pin_cost(pin, a, c->m->size[a], d, ll_val_bytes(c->g, n->out[o]));
    }
    return sum;
}
