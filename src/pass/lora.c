/* lora.c: adapters beside the weights of products. */
#include "pass/lora.h"

#include "op/op_int.h"

#include <fnmatch.h>
#include <stdio.h>

bool ll_is_lora(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (!strcmp(dot, LL_LORA_A) || !strcmp(dot, LL_LORA_B));
}

bool ll_is_prompt(const char *name)
{
    return !strcmp(name, LL_PROMPT);
}

bool ll_is_adapter(const char *name)
{
    return ll_is_lora(name) || ll_is_prompt(name);
}

const char *ll_pattern_next(ll_arena *a, const char **at)
{
    *at += strspn(*at, ", ");
    size_t n = strcspn(*at, ", ");
    const char *p = n ? ll_arena_printf(a, "%.*s", (int)n, *at) : NULL;
    *at += n;
    return p;
}

bool ll_patterns_have(ll_arena *a, const char *patterns, const char *name)
{
    for (const char *p; (p = ll_pattern_next(a, &patterns));)
        if (!fnmatch(p, name, 0)) return true;
    return false;
}

/* A letter that the spec has not. */
static char free_letter(const char *spec)
{
    char c = 'r';
    while (strchr(spec, c)) c = c == 'z' ? 'a' : (char)(c + 1);
    return c;
}

static ll_val adapter(ll_graph *g, const ll_value *w, const char *end, ll_shape s, ll_init init)
{
    const char *name = ll_arena_printf(g->arena, "%s%s", w->name, end);
    ll_val v = ll_find(g, name);
    return v.id ? v : ll_input(g, name, LL_PARAM, (ll_type){LL_F32, s}, init);
}

static void add(ll_rewrite *rw, const ll_node *n, const ll_matmul_parts *p, int rows, int64_t rank)
{
    const ll_value *w = ll_value_of(rw->from, n->in[1]);
    const char *spec = ((const ll_matmul_attr *)n->attr)->spec;
    const ll_shape *s = &w->type.shape;
    int cols = p->len[1] - rows, kept = 0;
    ll_shape a = {.n = cols + 1, .d = {rank}}, b = {.n = rows + 1};
    char mid[LL_SPEC_MAX] = "", one[LL_SPEC_MAX], two[LL_SPEC_MAX], r = free_letter(spec);
    double in = 1;
    for (int i = 0; i < cols; i++) in *= (double)(a.d[1 + i] = s->d[rows + i]);
    for (int i = 0; i < rows; i++) b.d[i] = s->d[i];
    b.d[rows] = rank;
    for (int i = 0; i < p->len[0]; i++) /* x's letters that are not summed over */
        if (!memchr(p->text[1] + rows, p->text[0][i], (size_t)cols)) mid[kept++] = p->text[0][i];
    snprintf(one, sizeof one, "%.*s,%c%.*s->%s%c", p->len[0], p->text[0], r, cols,
             p->text[1] + rows, mid, r);
    snprintf(two, sizeof two, "%s%c,%.*s%c->%.*s", mid, r, rows, p->text[1], r, p->len[2],
             p->text[2]);
    ll_val x = rw->map[n->in[0].id];
    ll_val va = adapter(rw->to, w, LL_LORA_A, a, (ll_init){LL_UNIFORM, 1 / sqrt(in)});
    ll_val vb = adapter(rw->to, w, LL_LORA_B, b, (ll_init){LL_ZEROS, 0});
    ll_val y = ll_matmul(rw->to, two, ll_matmul(rw->to, one, x, va), vb);
    ll_rewrite_map(rw, n->out[0], ll_add(rw->to, rw->map[n->out[0].id], y));
}

ll_err ll_lora(const ll_graph *g, int64_t rank, const char *patterns, ll_graph **out)
{
    ll_rewrite rw;
    ll_err rc = LL_OK;
    int made = 0;
    ll_rewrite_begin(&rw, g);
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        ll_matmul_parts p;
        int rows;
        rc = ll_rewrite_copy(&rw, n);
        if (rc != LL_OK || !(rows = ll_weight_rows(g, n, &p))) continue;
        if (!ll_patterns_have(rw.to->arena, patterns, ll_value_of(g, n->in[1])->name)) continue;
        add(&rw, n, &p, rows, rank);
        rc = ll_graph_check(rw.to);
        made++;
    }
    TRY(ll_rewrite_end(&rw, rc, out));
    if (!made) ll_graph_free(*out);
    CHECK(made, LL_E_ARG,
          "train.lora_on=\"%s\" matches no weights of products: see inspect --graph", patterns);
    return LL_OK;
}
