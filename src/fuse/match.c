/* match.c: finds where rows of a fusion fit in a graph, and puts their replacements there. fuse.h
 * says what a row means. */
#include "fuse/fuse_int.h"

#include <stdarg.h>
#include <stdio.h>

enum { REASONS = 3 };

typedef struct search {
    const ll_graph *g;
    const ll_fusion_row *row;
    bool *taken;      /* nodes that go */
    ll_match **found; /* by nodes where something stands */
    ll_match m;       /* the one that is looked at */
    int n_found, n_why[REASONS];
    char why[REASONS][sizeof(((ll_match *)0)->why)];
} search;

/* ---- for guards ---- */

static int word_of(const ll_match *m, const char *word)
{
    int w = ll_fuse_word(m->t, word);
    LL_ASSERT(w >= 0);
    return w;
}

ll_val ll_match_value(const ll_match *m, const char *word)
{
    return m->value[word_of(m, word)];
}

const ll_node *ll_match_node(const ll_match *m, const char *word)
{
    return ll_maker(m->g, ll_match_value(m, word));
}

const ll_node *ll_match_reader(const ll_match *m, ll_val v)
{
    bool one = m->uses[v.id] == 1 && m->first[v.id + 1] == m->first[v.id] + 1;
    return one ? &m->g->nodes[m->reader[m->first[v.id]]] : NULL;
}

void ll_match_bind(ll_match *m, const char *word, ll_val v)
{
    m->value[word_of(m, word)] = v;
}

void ll_match_set(ll_match *m, const char *hole, const void *data, size_t bytes)
{
    char word[LL_FUSE_WORD];
    snprintf(word, sizeof word, "$%s", hole);
    int w = ll_fuse_word(m->t, word);
    if (w < 0) return; /* another row's */
    memset(m->holes.attr[w], 0, LL_FUSE_ATTR);
    memcpy(m->holes.attr[w], data, bytes);
    m->holes.bound[w] = true;
}

bool ll_match_no(ll_match *m, const char *format, ...)
{
    va_list a;
    va_start(a, format);
    vsnprintf(m->why, sizeof m->why, format, a);
    va_end(a);
    return false;
}

/* ---- whether what was found can be replaced ---- */

static bool same_types(ll_match *m)
{
    for (int i = 1; i < m->t->n_same; i++) {
        const ll_type *a = &ll_value_of(m->g, m->value[m->t->same[0]])->type;
        const ll_type *b = &ll_value_of(m->g, m->value[m->t->same[i]])->type;
        if (!ll_type_equal(a, b))
            return ll_match_no(m, "%s and %s are not of one type", m->t->word[m->t->same[0]],
                               m->t->word[m->t->same[i]]);
    }
    return true;
}

static bool goes(const ll_match *m, const ll_node *n)
{
    for (int i = 0; n && i < m->t->n_line; i++)
        if (m->node[i] == n) return !m->t->line[i].kept;
    return false;
}

/* What goes is read by what goes, but for what the replacement makes. */
static bool unseen(ll_match *m)
{
    for (int i = 0; i < m->t->n_line; i++)
        for (int o = 0; o < m->t->line[i].n_out && !m->t->line[i].kept; o++) {
            int w = m->t->line[i].out[o], inside = 0;
            for (int j = 0; j < m->t->n_line; j++)
                for (int k = 0; k < m->node[j]->n_in && !m->t->line[j].kept; k++)
                    inside += m->node[j]->in[k].id == m->value[w].id;
            if (!m->t->made[w] && m->uses[m->value[w].id] > inside)
                return ll_match_no(m, "others read %s", m->t->word[w]);
        }
    return true;
}

static bool reads(const ll_fuse_line *l, int word)
{
    for (int k = 0; k < l->n_in; k++)
        if (l->in[k] == word) return true;
    return false;
}

/* Finds places for the lines; false where an operand is not made by then. */
static bool in_time(ll_match *m)
{
    bool made[LL_FUSE_WORDS] = {0};
    for (int i = m->t->n_new - 1; i >= 0; i--) {
        const ll_fuse_line *l = &m->t->put[i];
        m->at[i] = m->g->n_node;
        for (int o = 0; o < l->n_out; o++) {
            ll_val old = m->value[l->out[o]];
            int from = old.id ? ll_value_of(m->g, old)->node : m->g->n_node;
            if (from < m->at[i]) m->at[i] = from;
            for (int j = i + 1; j < m->t->n_new; j++)
                if (reads(&m->t->put[j], l->out[o]) && m->at[j] < m->at[i]) m->at[i] = m->at[j];
        }
    }
    for (int i = 0; i < m->t->n_new; i++) {
        const ll_fuse_line *l = &m->t->put[i];
        for (int k = 0; k < l->n_in; k++) {
            double number;
            ll_val v = l->in[k] < 0 || made[l->in[k]] ? (ll_val){0} : m->value[l->in[k]];
            const ll_node *n = v.id ? ll_maker(m->g, v) : NULL;
            if (!n || ll_constant_value(m->g, v, &number)) continue;
            if (n - m->g->nodes >= m->at[i] || goes(m, n))
                return ll_match_no(m, "%s is made after it", m->t->word[l->in[k]]);
        }
        for (int o = 0; o < l->n_out; o++) made[l->out[o]] = true;
    }
    return true;
}

/* ---- search ---- */

static bool commutes(const ll_op *op)
{
    return op == ll_ew_op(LL_EW_add) || op == ll_ew_op(LL_EW_mul);
}

static bool bind(ll_val *slot, ll_val v)
{
    if (!slot->id) *slot = v;
    return slot->id == v.id;
}

static bool fits(ll_match *m, const ll_fuse_line *l, const ll_node *n, bool swapped)
{
    for (int k = 0; k < l->n_in; k++) {
        ll_val v = n->in[swapped ? 1 - k : k];
        double number;
        if (l->in[k] < 0 ? !ll_constant_value(m->g, v, &number) || number != l->number
                         : !bind(&m->value[l->in[k]], v))
            return false;
    }
    for (int o = 0; o < l->n_out; o++)
        if (!bind(&m->value[l->out[o]], n->out[o])) return false;
    ll_shape first = n->n_in ? ll_graph_shape(m->g, n->in[0]) : LL_SCALAR;
    return ll_fuse_attrs(l, n->attr, &first, &m->holes);
}

static bool find_rest(search *s);

static bool try_node(search *s, int i, const ll_node *n)
{
    ll_match *m = &s->m;
    const ll_fuse_line *l = &m->t->line[i];
    if (n->op != l->op || n->n_in != l->n_in || s->taken[n - s->g->nodes]) return false;
    for (int j = 0; j < m->t->n_line; j++)
        if (m->node[j] == n) return false;
    ll_val value[LL_FUSE_WORDS];
    bool bound[LL_FUSE_WORDS];
    memcpy(value, m->value, sizeof value);
    memcpy(bound, m->holes.bound, sizeof bound);
    m->node[i] = n;
    for (int swapped = 0; swapped <= commutes(l->op); swapped++) {
        if (fits(m, l, n, swapped) && find_rest(s)) return true;
        memcpy(m->value, value, sizeof value);
        memcpy(m->holes.bound, bound, sizeof bound);
    }
    m->node[i] = NULL;
    return false;
}

/* Nodes for line i: that which makes a value it has, or those that read one. *any: it has one. */
static bool find_line(search *s, int i, bool *any)
{
    ll_match *m = &s->m;
    const ll_fuse_line *l = &m->t->line[i];
    *any = true;
    for (int o = 0; o < l->n_out; o++)
        if (m->value[l->out[o]].id) {
            const ll_node *n = ll_maker(s->g, m->value[l->out[o]]);
            return n && try_node(s, i, n);
        }
    for (int k = 0; k < l->n_in; k++) {
        int v = l->in[k] < 0 ? 0 : m->value[l->in[k]].id;
        for (int r = v ? m->first[v] : 0; v && r < m->first[v + 1]; r++)
            if (try_node(s, i, &s->g->nodes[m->reader[r]])) return true;
        if (v) return false;
    }
    return *any = false;
}

/* Lines that have no node yet, in an order in which each has a value of those that have. */
static bool find_rest(search *s)
{
    ll_match *m = &s->m;
    bool all = true, any = false, found;
    for (int i = 0; i < m->t->n_line; i++) {
        if (m->node[i]) continue;
        all = false;
        found = find_line(s, i, &any);
        if (any) return found;
    }
    return all && same_types(m) && (!s->row->guard || s->row->guard(m)) && unseen(m) && in_time(m);
}

static void find_readers(const ll_graph *g, ll_arena *a, ll_match *m)
{
    int *first = LL_NEW_ARRAY(a, int, g->n_value + 2), *reader, n = 0;
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) first[g->nodes[i].in[k].id + 1]++, n++;
    for (int v = 0; v < g->n_value; v++) first[v + 1] += first[v];
    int *at = (int *)ll_arena_copy(a, first, sizeof(int) * (size_t)(g->n_value + 1));
    reader = LL_NEW_ARRAY(a, int, n + 1);
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) reader[at[g->nodes[i].in[k].id]++] = i;
    m->first = first;
    m->reader = reader;
}

static void take(search *s, ll_arena *a)
{
    ll_match *m = (ll_match *)ll_arena_copy(a, &s->m, sizeof s->m);
    for (int i = 0; i < m->t->n_line; i++)
        if (!m->t->line[i].kept) s->taken[m->node[i] - s->g->nodes] = true;
    for (int i = 0; i < m->t->n_new; i++) s->found[m->at[i]] = m;
    s->n_found++;
}

static void note(search *s, const char *why)
{
    for (int k = 0; *why && k < REASONS; k++) {
        if (!s->n_why[k]) memcpy(s->why[k], why, sizeof s->why[k]);
        if (strcmp(s->why[k], why)) continue;
        s->n_why[k]++;
        return;
    }
}

static void find_all(search *s, const ll_fusion *f, const ll_fuse_text *texts, ll_arena *a)
{
    ll_match start = {.g = s->g, .uses = ll_uses(s->g, a)};
    find_readers(s->g, a, &start);
    for (int i = 0; i < s->g->n_node; i++) {
        char why[sizeof s->m.why] = "";
        for (int r = 0; f->rows[r].pattern && !s->taken[i]; r++) {
            if (s->g->nodes[i].op != texts[r].line[0].op) continue;
            s->row = &f->rows[r];
            s->m = start;
            s->m.t = &texts[r];
            bool found = try_node(s, 0, &s->g->nodes[i]);
            if (!*why) memcpy(why, s->m.why, sizeof why);
            if (found) *why = '\0';
            if (found) take(s, a);
            if (found) break;
        }
        note(s, why);
    }
}

/* ---- replacement ---- */

static ll_err put_lines(ll_rewrite *rw, ll_match *m, int at)
{
    for (int i = 0; i < m->t->n_new; i++) {
        const ll_fuse_line *l = &m->t->put[i];
        if (m->at[i] != at) continue;
        ll_graph_at(rw->to, &m->g->nodes[at]);
        for (int k = 0; k < l->n_in; k++) {
            if (l->in[k] < 0 || m->now[l->in[k]].id) continue;
            ll_val old = m->value[l->in[k]], *now = &m->now[l->in[k]];
            double number;
            CHECK(old.id, LL_E_GRAPH, "nothing says what %s is", m->t->word[l->in[k]]);
            *now = rw->map[old.id];
            if (!now->id && ll_constant_value(m->g, old, &number))
                *now =
                    ll_fill(rw->to, ll_graph_dtype(m->g, old), ll_graph_shape(m->g, old), number);
        }
        TRY(ll_fuse_put(rw->to, l, &m->holes, m->now));
        for (int o = 0; o < l->n_out; o++)
            if (m->value[l->out[o]].id) ll_rewrite_map(rw, m->value[l->out[o]], m->now[l->out[o]]);
    }
    return LL_OK;
}

static ll_err replace(const search *s, ll_graph **out)
{
    ll_rewrite rw;
    ll_err rc = LL_OK;
    ll_rewrite_begin(&rw, s->g);
    for (int i = 0; i < s->g->n_node && rc == LL_OK; i++) {
        if (s->found[i]) rc = put_lines(&rw, s->found[i], i);
        if (rc == LL_OK && !s->taken[i]) rc = ll_rewrite_copy(&rw, &s->g->nodes[i]);
    }
    return ll_rewrite_end(&rw, rc, out);
}

static void tell(ll_buf *log, const ll_fusion *f, const search *s, int fired)
{
    if (!log || (!fired && !s->n_why[0])) return;
    ll_buf_printf(log, "  %-20s %d\n", f->name, fired);
    for (int k = 0; k < REASONS && s->n_why[k]; k++)
        ll_buf_printf(log, "      not %d: %s\n", s->n_why[k], s->why[k]);
}

/* Once over the graph; *out stays NULL where nothing was found. */
static ll_err sweep(const ll_fusion *f, const ll_graph *g, ll_arena *a, ll_buf *log, int *fired,
                    ll_graph **out)
{
    ll_fuse_text texts[LL_FUSE_LINES];
    search *s = LL_NEW(a, search);
    s->g = g;
    for (int r = 0; f->rows[r].pattern; r++) {
        LL_ASSERT(r < LL_FUSE_LINES);
        TRY(ll_fuse_read(&f->rows[r], a, &texts[r]));
    }
    s->taken = LL_NEW_ARRAY(a, bool, g->n_node + 1);
    s->found = LL_NEW_ARRAY(a, ll_match *, g->n_node + 1);
    find_all(s, f, texts, a);
    *fired += s->n_found;
    if (s->n_found) return replace(s, out);
    tell(log, f, s, *fired);
    return LL_OK;
}

ll_err ll_fuse_one(const ll_fusion *f, const ll_graph *g, ll_buf *log, int *fired, ll_graph **out)
{
    int none = 0, *n = fired ? fired : &none;
    ll_err rc = LL_OK;
    *n = 0;
    *out = NULL;
    if (f->rewrite) {
        ll_graph *made;
        TRY(f->rewrite(g, n, &made));
        rc = ll_simplify(made, out); /* what it took in, and nobody else reads, goes */
        ll_graph_free(made);
        TRY(rc);
        if (*n && log) ll_buf_printf(log, "  %-20s %d\n", f->name, *n);
        return LL_OK;
    }
    for (ll_graph *last = NULL, *next; rc == LL_OK; last = next) {
        ll_arena *a = ll_arena_new();
        next = NULL;
        rc = sweep(f, last ? last : g, a, log, n, &next);
        ll_arena_free(a);
        if (rc == LL_OK && !next) {
            *out = last;
            return LL_OK;
        }
        ll_graph_free(last);
    }
    return ll_frame(rc, __FILE__, __LINE__, __func__);
}
