/* read.c: rows of fusions from their text, and single lines of them as nodes. */
#include "fuse/fuse_int.h"

#include "ir/text_int.h"

#include <ctype.h>
#include <stdio.h>

int ll_fuse_word(const ll_fuse_text *t, const char *word)
{
    for (int i = 0; i < t->n_word; i++)
        if (!strcmp(t->word[i], word)) return i;
    return -1;
}

static int add_word(ll_fuse_text *t, const char *lead, const char *word)
{
    char full[LL_FUSE_WORD];
    snprintf(full, sizeof full, "%s%s", lead, word);
    int had = ll_fuse_word(t, full);
    if (had >= 0) return had;
    LL_ASSERT(t->n_word < LL_FUSE_WORDS);
    memcpy(t->word[t->n_word], full, sizeof full);
    return t->n_word++;
}

static ll_err read_operands(ll_scan *s, ll_fuse_text *t, ll_fuse_line *l)
{
    char word[LL_WORD_MAX + 1];
    TRY(ll_scan_want(s, '('));
    for (bool more = !ll_scan_is(s, ')'); more;) {
        CHECK(l->n_in < LL_MAX_IN, LL_E_ARG, "more than %d operands", LL_MAX_IN);
        ll_scan_blank(s);
        if (isdigit((unsigned char)*s->at)) {
            TRY(ll_scan_double(s, "a number", &l->number));
            l->in[l->n_in++] = -1;
        } else {
            TRY(ll_scan_word(s, "an operand", word));
            l->in[l->n_in++] = add_word(t, "", word);
        }
        more = ll_scan_is(s, ',');
        if (!more) TRY(ll_scan_want(s, ')'));
    }
    return LL_OK;
}

static ll_err read_line(ll_scan *s, ll_arena *arena, ll_fuse_text *t, ll_fuse_line *l)
{
    char word[LL_WORD_MAX + 1];
    ll_given given = {0};
    l->kept = ll_scan_is(s, '+');
    do {
        CHECK(l->n_out < LL_MAX_OUT, LL_E_ARG, "more than %d results", LL_MAX_OUT);
        TRY(ll_scan_word(s, "a result", word));
        l->out[l->n_out++] = add_word(t, "", word);
    } while (ll_scan_is(s, ','));
    TRY(ll_scan_want(s, '='));
    TRY(ll_scan_word(s, "an op", word));
    l->op = ll_op_find(word);
    CHECK(l->op && l->op->n_out == l->n_out, LL_E_ARG, "no op %s of %d results", word, l->n_out);
    TRY(read_operands(s, t, l));
    l->attr = ll_arena_alloc(arena, l->op->attr_size);
    l->field = LL_NEW_ARRAY(arena, int8_t, LL_ATTR_FIELDS);
    TRY(ll_scan_attrs(s, l->op, l->attr, &given));
    for (int i = 0; i < LL_ATTR_FIELDS; i++)
        if (given.has[i])
            l->field[i] = (int8_t)(*given.hole[i] ? add_word(t, "$", given.hole[i]) + 1 : -1);
    return LL_OK;
}

static ll_err read_lines(const char *text, ll_arena *arena, ll_fuse_text *t, ll_fuse_line *lines,
                         int *n)
{
    ll_scan s = {.at = text, .line_start = text, .line = 1};
    for (; *s.at; s.line++, s.line_start = s.at) {
        CHECK(*n < LL_FUSE_LINES, LL_E_ARG, "more than %d lines", LL_FUSE_LINES);
        TRY(read_line(&s, arena, t, &lines[(*n)++]));
        ll_scan_blank(&s);
        CHECK(!*s.at || *s.at == '\n', LL_E_ARG, "expected the end of the line at \"%s\"", s.at);
        while (*s.at == '\n') s.at++;
    }
    return LL_OK;
}

ll_err ll_fuse_read(const ll_fusion_row *row, ll_arena *arena, ll_fuse_text *t)
{
    *t = (ll_fuse_text){0};
    TRY(read_lines(row->pattern, arena, t, t->line, &t->n_line));
    TRY(read_lines(row->replace, arena, t, t->put, &t->n_new));
    for (int i = 0; i < t->n_new; i++)
        for (int o = 0; o < t->put[i].n_out; o++) t->made[t->put[i].out[o]] = true;
    ll_scan s = {.at = row->same ? row->same : ""};
    for (char word[LL_WORD_MAX + 1]; *s.at;) {
        TRY(ll_scan_word(&s, "a value", word));
        t->same[t->n_same++] = add_word(t, "", word);
    }
    return LL_OK;
}

/* A spec with its letters in order, from a; '*' are so many as the operand's dimensions leave. */
static bool canonical(const char *spec, int dims, char out[LL_SPEC_MAX])
{
    char seen[LL_SPEC_MAX];
    int n = 0, at = 0, letters = 0, star = 0;
    for (const char *c = spec; isalpha((unsigned char)*c) || *c == '*'; c++) letters += *c != '*';
    if (strchr(spec, '*')) star = dims - letters;
    memset(out, 0, LL_SPEC_MAX);
    for (; *spec; spec++)
        for (int k = 0; k < (*spec == '*' ? star : 1); k++) {
            char c = *spec == '*' ? (char)('0' + k) : *spec;
            if (at == LL_SPEC_MAX - 1) return false;
            if (!isalnum((unsigned char)c)) {
                out[at++] = c;
                continue;
            }
            char *had = (char *)memchr(seen, c, (size_t)n);
            if (!had) *(had = &seen[n++]) = c;
            out[at++] = (char)('a' + (had - seen));
        }
    return star >= 0;
}

bool ll_fuse_attrs(const ll_fuse_line *l, const void *attr, const ll_shape *first, ll_fuse_holes *h)
{
    for (int i = 0; l->op->attrs && l->op->attrs[i].name; i++) {
        const ll_attr_field *f = &l->op->attrs[i];
        const char *is = (const char *)attr + f->offset, *want = (const char *)l->attr + f->offset;
        size_t bytes = ll_attr_bytes(f);
        if (!l->field[i]) continue;
        if (l->field[i] > 0) {
            int w = l->field[i] - 1;
            LL_ASSERT(bytes <= LL_FUSE_ATTR);
            if (!h->bound[w]) memcpy(h->attr[w], is, bytes);
            h->bound[w] = true;
            want = h->attr[w];
        } else if (f->kind == LL_A_SPEC) {
            char a[LL_SPEC_MAX], b[LL_SPEC_MAX];
            if (!canonical(is, 0, a) || !canonical(want, first->n, b) || strcmp(a, b)) return false;
            continue;
        }
        if (memcmp(is, want, bytes)) return false;
    }
    return true;
}

static ll_err make_attr(ll_graph *g, const ll_fuse_line *l, const ll_fuse_holes *h, ll_val first,
                        void **out)
{
    char *attr = (char *)ll_arena_copy(g->arena, l->attr, l->op->attr_size);
    for (int i = 0; l->op->attrs && l->op->attrs[i].name; i++) {
        const ll_attr_field *f = &l->op->attrs[i];
        char *at = attr + f->offset;
        if (l->field[i] > 0) {
            CHECK(h->bound[l->field[i] - 1], LL_E_GRAPH, "%s: nothing says what %s is", l->op->name,
                  f->name);
            memcpy(at, h->attr[l->field[i] - 1], ll_attr_bytes(f));
            ll_shape *s = (ll_shape *)(void *)at; /* attributes are compared as bytes */
            for (int d = f->kind == LL_A_SHAPE ? s->n : LL_MAX_DIMS; d < LL_MAX_DIMS; d++)
                s->d[d] = 0;
        } else if (f->kind == LL_A_SPEC && strchr(at, '*')) {
            char spec[LL_SPEC_MAX];
            canonical(at, ll_graph_shape(g, first).n, spec);
            memcpy(at, spec, sizeof spec);
        }
    }
    *out = attr;
    return LL_OK;
}

ll_err ll_fuse_put(ll_graph *g, const ll_fuse_line *l, const ll_fuse_holes *h, ll_val *now)
{
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    void *attr;
    ll_val like = {0}; /* constants are as the first operand that is none */
    for (int k = l->n_in - 1; k >= 0; k--)
        if (l->in[k] >= 0) like = now[l->in[k]];
    for (int k = 0; k < l->n_in; k++)
        in[k] = l->in[k] >= 0
                    ? now[l->in[k]]
                    : ll_fill(g, ll_graph_dtype(g, like), ll_graph_shape(g, like), l->number);
    TRY(ll_graph_check(g));
    TRY(make_attr(g, l, h, l->n_in ? in[0] : (ll_val){0}, &attr));
    if (l->op == ll_ew_op(LL_EW_cast) && ll_graph_dtype(g, in[0]) == ((ll_cast_attr *)attr)->dtype)
        out[0] = in[0];
    else
        TRY(ll_emit_all(g, l->op, attr, in, l->n_in, out));
    for (int o = 0; o < l->n_out; o++) now[l->out[o]] = out[o];
    return LL_OK;
}
