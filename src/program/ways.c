/* ways.c: the table of measured ways, and what is chosen by it. */
#include "program/ways.h"

#include <stdio.h>

const ll_solver *ll_way_list(const ll_target *t, const ll_op *op)
{
    const ll_solver *list = t->choices && op ? t->choices(op) : NULL;
    for (const ll_solver *s = list; s && s->run; s++)
        if (s->asked) return list;
    return NULL;
}

static bool is_solver(const ll_target *t, const char *name, ll_buf *all)
{
    bool found = false;
    for (const ll_op *const *op = ll_ops(); *op; op++)
        for (const ll_solver *s = ll_way_list(t, *op); s && s->run; s++) {
            found |= !strcmp(s->name, name);
            if (!all->text || !strstr(all->text, s->name)) ll_buf_printf(all, ", %s", s->name);
        }
    return found;
}

ll_err ll_conv_read(const ll_target *t, const char *conv, const char *workspace, ll_conv_how *out)
{
    *out = (ll_conv_how){0};
    bool plain = !conv || !strcmp(conv, "accurate"), any = !workspace || !strcmp(workspace, "auto");
    CHECK(plain || t->choices, LL_E_ARG, "conv=%s needs machine cpu, not %s: use accurate", conv,
          t->name);
    CHECK(any || t->choices, LL_E_ARG, "workspace=%s needs machine cpu, not %s: use auto",
          workspace, t->name);
    if (!plain && !(out->fast = !strcmp(conv, "fast"))) {
        LL_OWN(ll_arena) arena = ll_arena_new();
        ll_buf all = {.arena = arena};
        CHECK(is_solver(t, conv, &all), LL_E_ARG, "conv is '%.40s', expected accurate, fast%s",
              conv, all.text);
        out->solver = conv;
    }
    double bytes = 0;
    CHECK(any || (ll_text_to_bytes(workspace, &bytes) && bytes < 0x1p60), LL_E_ARG,
          "workspace is '%.40s', expected auto, or bytes such as 64MiB", workspace);
    out->limited = !any;
    out->workspace = (size_t)bytes;
    return LL_OK;
}

char *ll_way_key(const ll_op *op, const ll_kcall *c, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    ll_buf_puts(&b, op->name);
    for (int i = 0; i < c->n_in; i++)
        ll_buf_printf(&b, " %s%s", ll_dtype_name(c->in[i].dtype), LL_DIMS(&c->in[i].shape));
    ll_buf_printf(&b, " %s, %d threads", ll_print_attr(op, c->attr, arena), c->threads);
    return b.text;
}

void ll_ways_add(ll_ways *w, const ll_way *way)
{
    ll_way copy = *way;
    copy.key = ll_arena_strdup(w->arena, way->key);
    copy.solver = ll_arena_strdup(w->arena, way->solver);
    LL_PUSH(w->arena, w->v, w->n, w->room, copy);
}

bool ll_ways_has(const ll_ways *w, const char *key)
{
    for (int i = 0; w && i < w->n; i++)
        if (!strcmp(w->v[i].key, key)) return true;
    return false;
}

double ll_ways_seconds(const ll_ways *w, const char *key, const char *solver, int64_t at_once)
{
    for (int i = 0; w && i < w->n; i++)
        if (!strcmp(w->v[i].key, key) && !strcmp(w->v[i].solver, solver) &&
            w->v[i].at_once == at_once)
            return w->v[i].seconds;
    return 0;
}

static size_t room_of(const ll_solver *s, const ll_kcall *c)
{
    return s->scratch ? s->scratch(c) : 0;
}

/* The most images at once that it has room for; false: not even for one. */
static bool cut_to(const ll_solver *s, size_t limit, ll_kcall *c)
{
    int64_t images = c->n_in && c->in[0].shape.n ? c->in[0].shape.d[0] : 1;
    c->at_once = 0;
    if (room_of(s, c) <= limit) return true;
    for (int64_t some = images; s->cuts && some > 1;) {
        c->at_once = some = (some + 1) / 2;
        if (room_of(s, c) <= limit) return true;
    }
    return false;
}

/* Measured, of a solver that is still there, and no larger than it was. */
static const ll_solver *measured(const ll_solver *list, const ll_ways *w, const char *key,
                                 size_t limit, ll_kcall *c)
{
    const ll_solver *best = NULL;
    const ll_way *way = NULL;
    for (int i = 0; w && i < w->n; i++) {
        const ll_way *x = &w->v[i];
        if (strcmp(x->key, key) || (way && x->seconds >= way->seconds)) continue;
        ll_kcall try = *c;
        try.solver = x->solver, try.at_once = x->at_once;
        const ll_solver *s = ll_solver_for(list, &try);
        if (!s || strcmp(s->name, x->solver) || room_of(s, &try) > limit) continue;
        way = x, best = s;
    }
    if (best) c->solver = best->name, c->at_once = way->at_once;
    return best;
}

const ll_solver *ll_way_pick(const ll_solver *list, const ll_ways *w, const char *key, size_t limit,
                             ll_kcall *c)
{
    const ll_solver *s = measured(list, w, key, limit, c);
    if (s) return s;
    s = ll_solver_for(list, c);
    if (s && cut_to(s, limit, c)) return s;
    for (int asked = 0; asked < 2; asked++)
        for (s = list; s->run; s++)
            if (s->asked == asked && ll_solver_fits(s, c) && cut_to(s, limit, c)) {
                c->solver = s->name;
                return s;
            }
    return NULL;
}

char *ll_ways_print(const ll_ways *w, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    ll_buf_puts(&b, "");
    for (int i = 0; i < w->n; i++)
        ll_buf_printf(&b, "%.9g %zu %ld %s %s\n", w->v[i].seconds, w->v[i].scratch, w->v[i].at_once,
                      w->v[i].solver, w->v[i].key);
    return b.text;
}

ll_err ll_ways_parse(const char *text, ll_ways *w)
{
    for (int line = 1; *text; line++) {
        char solver[32], key[512];
        ll_way x = {.solver = solver, .key = key};
        int64_t some;
        int used = 0;
        int n = sscanf(text, "%lf %zu %ld %31[^ \n] %511[^\n]%n", &x.seconds, &x.scratch, &some,
                       solver, key, &used);
        CHECK(n == 5 && isfinite(x.seconds) && x.seconds >= 0 && some >= 0 && text[used] == '\n',
              LL_E_IO, "line %d of measured convolutions is none: remove the file", line);
        x.at_once = some;
        ll_ways_add(w, &x);
        text += used + 1;
    }
    return LL_OK;
}
