/* graph_text.c: graphs, and trials of ops, read from text (its rules: src/ir/text.c). Loopline
 * writes such text and reads it nowhere: tests do. */
#include "ir/graph_text.h"

#include "base/near.h"
#include "ir/text_int.h"
#include "kern/attr.h"
#include "op/ops.h"
#include "pass/pass.h"

#include <ctype.h>

enum { NODES_MAX = 1000000, INPUTS_MAX = 16384, NAMED_MAX = 16384, NAME_LENGTH = 1023 };

static ll_err scan_type(ll_scan *s, ll_type *out)
{
    TRY(ll_scan_dtype(s, &out->dtype));
    return ll_scan_shape(s, &out->shape);
}

/* ---- chains ---- */
static ll_err scan_key(ll_scan *s, const char *key)
{
    char word[LL_WORD_MAX + 1];
    ll_scan_blank(s);
    const char *from = s->at;
    TRY(ll_scan_word(s, key, word));
    if (strcmp(word, key)) return ll_scan_fail(s, from, "expected %s=, found %s", key, word);
    return ll_scan_want(s, '=');
}

/* "r12", at most limit - 1 */
static ll_err scan_register(ll_scan *s, int limit, int16_t *out)
{
    int64_t r;
    ll_scan_blank(s);
    if (*s->at != 'r') return ll_scan_fail(s, s->at, "expected a register, such as r0");
    s->at++;
    TRY(ll_scan_int(s, "a register made before this step", 0, limit - 1, &r));
    *out = (int16_t)r;
    return LL_OK;
}

static ll_err scan_inputs(ll_scan *s, ll_fused_attr *f)
{
    TRY(scan_key(s, "in"));
    TRY(ll_scan_want(s, '['));
    if (ll_scan_is(s, ']')) return LL_OK;
    do {
        if (f->n_in == LL_FUSE_IN) return ll_scan_fail(s, s->at, "more than %d inputs", LL_FUSE_IN);
        /* An empty result reads nothing, and its inputs may have no elements. */
        int64_t least = ll_numel(&f->shape) ? 1 : 0, *repeat = &f->repeat[f->n_in];
        TRY(ll_scan_int(s, "a period", least, LL_TEXT_NUMEL, &f->period[f->n_in]));
        *repeat = 1;
        if (ll_scan_is(s, '*')) TRY(ll_scan_int(s, "a repeat", least, LL_TEXT_NUMEL, repeat));
        f->n_in++;
    } while (ll_scan_is(s, ','));
    return ll_scan_want(s, ']');
}

static ll_err scan_step_op(ll_scan *s, int16_t *op)
{
    char word[LL_WORD_MAX + 1];
    ll_scan_blank(s);
    const char *from = s->at;
    TRY(ll_scan_word(s, "an elementwise op", word));
    ll_near near = {.word = word};
    for (*op = 0; *op < LL_N_EW; ++*op) {
        if (!strcmp(word, ll_ew_op((ll_ew)*op)->name)) return LL_OK;
        ll_near_try(&near, ll_ew_op((ll_ew)*op)->name);
    }
    return ll_scan_fail(s, from, "no elementwise op %s%s", word, ll_near_hint(&near));
}

/* "r3=add(r0,r1)"; the register's 'r' is next */
static ll_err scan_step(ll_scan *s, ll_fused_attr *f)
{
    int reg = f->n_in + f->n_step;
    int64_t number;
    if (f->n_step == LL_FUSE_STEPS)
        return ll_scan_fail(s, s->at, "more than %d steps", LL_FUSE_STEPS);
    s->at++;
    TRY(ll_scan_int(s, "the next register", reg, reg, &number));
    TRY(ll_scan_want(s, '='));
    ll_fused_step *step = &f->step[f->n_step++];
    int16_t *const from[3] = {&step->a, &step->b, &step->c};
    TRY(scan_step_op(s, &step->op));
    TRY(ll_scan_want(s, '('));
    for (int i = 0; i < ll_ew_op((ll_ew)step->op)->n_in; i++) {
        if (i) TRY(ll_scan_want(s, ','));
        if (ll_scan_is(s, 'k'))
            *from[i] = LL_FUSE_K;
        else
            TRY(scan_register(s, reg, from[i]));
    }
    if (ll_scan_is(s, ',')) TRY(ll_scan_double(s, "a number", &step->k));
    return ll_scan_want(s, ')');
}

static ll_err scan_fused(ll_scan *s, void *attr)
{
    ll_fused_attr *f = (ll_fused_attr *)attr;
    TRY(ll_scan_want(s, '('));
    TRY(scan_key(s, "shape"));
    TRY(ll_scan_shape(s, &f->shape));
    TRY(ll_scan_want(s, ','));
    TRY(scan_inputs(s, f));
    TRY(ll_scan_want(s, ','));
    for (ll_scan_blank(s); *s->at == 'r'; ll_scan_blank(s)) {
        TRY(scan_step(s, f));
        TRY(ll_scan_want(s, ','));
    }
    TRY(scan_key(s, "out"));
    TRY(ll_scan_want(s, '['));
    do {
        int16_t reg = 0;
        if (f->n_out == LL_FUSE_OUT)
            return ll_scan_fail(s, s->at, "more than %d outputs", LL_FUSE_OUT);
        TRY(scan_register(s, f->n_in + f->n_step, &reg));
        TRY(ll_scan_want(s, ':'));
        TRY(ll_scan_dtype(s, &f->out_dtype[f->n_out]));
        f->out[f->n_out++] = reg;
    } while (ll_scan_is(s, ','));
    TRY(ll_scan_want(s, ']'));
    return ll_scan_want(s, ')');
}

/* ---- graphs ---- */
typedef struct parser {
    ll_scan s;
    ll_graph *g;
    ll_arena *scratch;
    int64_t *number; /* value i + 1 is called %number[i]; these grow */
    int n_number, cap_number, n_input;
} parser;

typedef struct def {
    int64_t number;
    ll_type type;
    const char *name, *from; /* NULL: no name; where the definition begins */
} def;

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static ll_err scan_number(parser *p, int64_t *out)
{
    TRY(ll_scan_want(&p->s, '%'));
    return ll_scan_int(&p->s, "a value's number", 1, INT32_MAX, out);
}

static ll_err scan_ref(parser *p, ll_val *out)
{
    int64_t k;
    ll_scan_blank(&p->s);
    const char *from = p->s.at;
    TRY(scan_number(p, &k));
    int64_t *at = p->n_number
                      ? (int64_t *)bsearch(&k, p->number, (size_t)p->n_number, sizeof k, compare)
                      : NULL;
    if (!at) return ll_scan_fail(&p->s, from, "%%%lld is not defined above", (long long)k);
    *out = (ll_val){(int32_t)(at - p->number) + 1};
    return LL_OK;
}

static ll_err scan_name(parser *p, const char *what, char name[NAME_LENGTH + 1])
{
    return ll_scan_string(&p->s, what, name, NAME_LENGTH + 1);
}

static ll_err scan_def(parser *p, def *d)
{
    char name[NAME_LENGTH + 1];
    ll_scan_blank(&p->s);
    *d = (def){.from = p->s.at};
    TRY(scan_number(p, &d->number));
    int64_t last = p->n_number ? p->number[p->n_number - 1] : 0;
    if (d->number <= last)
        return ll_scan_fail(&p->s, d->from, "%%%lld does not follow %%%lld", (long long)d->number,
                            (long long)last);
    ll_scan_blank(&p->s);
    if (*p->s.at == '"') {
        TRY(scan_name(p, "a value's name", name));
        d->name = ll_arena_strdup(p->g->arena, name);
    }
    TRY(ll_scan_want(&p->s, ':'));
    TRY(scan_type(&p->s, &d->type));
    p->number = (int64_t *)ll_arena_grow(p->scratch, p->number, sizeof(int64_t), p->n_number,
                                         &p->cap_number);
    p->number[p->n_number++] = d->number;
    return LL_OK;
}

/* Elements up to ')', as many as the type has. */
static ll_err scan_data(parser *p, const ll_type *type, ll_init *init)
{
    double *v = NULL;
    int n = 0, cap = 0;
    const char *from = p->s.at;
    for (bool more = !ll_scan_is(&p->s, ')'); more; more = ll_scan_is(&p->s, ',')) {
        v = (double *)ll_arena_grow(p->scratch, v, sizeof *v, n, &cap);
        TRY(ll_scan_double(&p->s, "an element", &v[n++]));
    }
    if (n) TRY(ll_scan_want(&p->s, ')'));
    if (n != ll_numel(&type->shape))
        return ll_scan_fail(&p->s, from, "%d elements, expected %lld", n,
                            (long long)ll_numel(&type->shape));
    ll_data *data = LL_NEW(p->g->arena, ll_data);
    void *to = ll_arena_alloc(p->g->arena, (size_t)n * ll_dtype_bytes(type->dtype) + 1);
    for (int i = 0; i < n; i++) ll_store(to, type->dtype, i, v[i]);
    *data = (ll_data){type->dtype, n, to};
    init->data = data;
    return LL_OK;
}

static ll_err scan_init(parser *p, const ll_type *type, ll_init *init)
{
    char word[LL_WORD_MAX + 1];
    ll_scan_blank(&p->s);
    const char *from = p->s.at;
    TRY(ll_scan_word(&p->s, "init=", word));
    if (strcmp(word, "init")) return ll_scan_fail(&p->s, from, "expected init=, found %s", word);
    TRY(ll_scan_want(&p->s, '='));
    ll_scan_blank(&p->s);
    from = p->s.at;
    TRY(ll_scan_word(&p->s, "zeros, constant, normal, uniform or data", word));
    int kind = 0;
    while (kind < LL_N_INIT && strcmp(word, ll_init_names[kind])) kind++;
    if (kind == LL_N_INIT)
        return ll_scan_fail(&p->s, from,
                            "no init %s, expected zeros, constant, normal, uniform or data", word);
    init->kind = (ll_init_kind)kind;
    if (kind == LL_ZEROS) return LL_OK;
    TRY(ll_scan_want(&p->s, '('));
    if (kind == LL_GIVEN) return scan_data(p, type, init);
    TRY(ll_scan_double(&p->s, "a number", &init->a));
    return ll_scan_want(&p->s, ')');
}

static ll_err parse_input(parser *p, const def *defs, int n_def, const char *word, const char *from)
{
    char name[NAME_LENGTH + 1];
    ll_init init = {0};
    int kind = LL_PARAM;
    while (kind < LL_N_KIND && strcmp(word, ll_kind_name((ll_kind)kind))) kind++;
    if (kind == LL_N_KIND)
        return ll_scan_fail(&p->s, from,
                            "expected param, state, batch, step, constant, carry or op(, found %s",
                            word);
    if (n_def != 1) return ll_scan_fail(&p->s, from, "an input is one value, not %d", n_def);
    if (defs->name)
        return ll_scan_fail(&p->s, defs->from, "an input's name belongs after %s", word);
    if (++p->n_input > INPUTS_MAX)
        return ll_scan_fail(&p->s, from, "more than %d inputs", INPUTS_MAX);
    TRY(scan_name(p, "the input's name", name));
    if (ll_kind_stays((ll_kind)kind)) TRY(scan_init(p, &defs->type, &init));
    if ((kind == LL_CONST) != (init.kind == LL_GIVEN))
        return ll_scan_fail(&p->s, from, "a constant has init=data, and no other input has");
    if (!ll_input(p->g, name, (ll_kind)kind, defs->type, init).id)
        return ll_scan_fail(&p->s, defs->from, "%s", p->g->err_text);
    return LL_OK;
}

/* The node's name after '#'; none: the op's stays. */
static ll_err parse_node_name(parser *p, ll_node *n)
{
    char name[NAME_LENGTH + 1];
    int len = 0;
    if (!ll_scan_is(&p->s, '#')) return LL_OK;
    ll_scan_blank(&p->s);
    if (*p->s.at == '"') {
        TRY(scan_name(p, "the node's name", name));
    } else {
        while (p->s.at[len] && !isspace((unsigned char)p->s.at[len])) len++;
        if (len == 0 || len > NAME_LENGTH)
            return ll_scan_fail(&p->s, p->s.at, "expected a node's name of 1 to %d bytes",
                                NAME_LENGTH);
        memcpy(name, p->s.at, (size_t)len);
        name[len] = '\0';
        p->s.at += len;
    }
    n->name = ll_arena_strdup(p->g->arena, name);
    return LL_OK;
}

static ll_err find_op(parser *p, const char *word, const char *from, const ll_op **out)
{
    *out = ll_op_find(word);
    if (*out) return LL_OK;
    ll_near near = {.word = word};
    for (const ll_op *const *op = ll_ops(); *op; op++) ll_near_try(&near, (*op)->name);
    return ll_scan_fail(&p->s, from, "no op %s%s", word, ll_near_hint(&near));
}

static ll_err check_type(parser *p, const def *d, ll_val v)
{
    const ll_value *x = ll_value_of(p->g, v);
    char want[LL_SHAPE_TEXT], got[LL_SHAPE_TEXT];
    if (x->type.dtype == d->type.dtype && ll_shape_equal(&x->type.shape, &d->type.shape))
        return LL_OK;
    return ll_scan_fail(&p->s, d->from, "%%%lld is stated as %s%s, but its op gives %s%s",
                        (long long)d->number, ll_dtype_name(d->type.dtype),
                        ll_shape_print(&d->type.shape, want), ll_dtype_name(x->type.dtype),
                        ll_shape_print(&x->type.shape, got));
}

static ll_err parse_node(parser *p, const def *defs, int n_def, const char *word, const char *from)
{
    const ll_op *op;
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    int n_in = 0;
    TRY(find_op(p, word, from, &op));
    if (op->n_out != n_def)
        return ll_scan_fail(&p->s, from, "%s gives %d values, not %d", word, op->n_out, n_def);
    if (p->g->n_node == NODES_MAX)
        return ll_scan_fail(&p->s, from, "more than %d nodes", NODES_MAX);
    TRY(ll_scan_want(&p->s, '('));
    p->n_number -= n_def; /* the node does not see what it defines */
    for (bool more = !ll_scan_is(&p->s, ')'); more;) {
        if (n_in == LL_MAX_IN)
            return ll_scan_fail(&p->s, p->s.at, "more than %d operands", LL_MAX_IN);
        TRY(scan_ref(p, &in[n_in++]));
        more = ll_scan_is(&p->s, ',');
        if (!more) TRY(ll_scan_want(&p->s, ')'));
    }
    p->n_number += n_def;
    void *attr = ll_arena_alloc(p->scratch, op->attr_size);
    TRY(ll_scan_attrs(&p->s, op, attr, NULL));
    if (ll_emit_all(p->g, op, attr, in, n_in, out) != LL_OK)
        return ll_scan_fail(&p->s, from, "%s", ll_error_message());
    for (int i = 0; i < n_def; i++) {
        TRY(check_type(p, &defs[i], out[i]));
        ll_value *v = ll_value_of(p->g, out[i]);
        v->name = defs[i].name;
        if (v->name && !strncmp(v->name, LL_GRADIENT, strlen(LL_GRADIENT)))
            v->gradient_of = v->name + strlen(LL_GRADIENT);
    }
    return parse_node_name(p, &p->g->nodes[p->g->n_node - 1]);
}

static ll_err parse_definition(parser *p)
{
    def defs[LL_MAX_OUT];
    int n = 0;
    do {
        if (n == LL_MAX_OUT)
            return ll_scan_fail(&p->s, p->s.at, "more than %d values in one line", LL_MAX_OUT);
        TRY(scan_def(p, &defs[n++]));
    } while (ll_scan_is(&p->s, ','));
    char word[LL_WORD_MAX + 1];
    TRY(ll_scan_want(&p->s, '='));
    ll_scan_blank(&p->s);
    const char *from = p->s.at;
    TRY(ll_scan_word(&p->s, "an op or a kind of input", word));
    ll_scan_blank(&p->s);
    if (*p->s.at == '(') return parse_node(p, defs, n, word, from);
    return parse_input(p, defs, n, word, from);
}

/* result "name" = %1, update "name" = %1, block 1 */
static ll_err parse_other(parser *p)
{
    char word[LL_WORD_MAX + 1], name[NAME_LENGTH + 1];
    const char *from = p->s.at;
    ll_graph *g = p->g;
    ll_val v;
    TRY(ll_scan_word(&p->s, "%, result, update, block or }", word));
    if (!strcmp(word, "block")) {
        int64_t block;
        TRY(ll_scan_int(&p->s, "a block's number", 0, NODES_MAX, &block));
        g->of.block = (int)block;
        return LL_OK;
    }
    bool result = !strcmp(word, "result");
    if (!result && strcmp(word, "update"))
        return ll_scan_fail(&p->s, from, "expected %%, result, update, block or }, found %s", word);
    TRY(scan_name(p, result ? "the result's name" : "an input's name", name));
    TRY(ll_scan_want(&p->s, '='));
    TRY(scan_ref(p, &v));
    if (g->n_result == NAMED_MAX || g->n_update == NAMED_MAX)
        return ll_scan_fail(&p->s, from, "more than %d results or updates", NAMED_MAX);
    ll_val input = result ? (ll_val){0} : ll_find(g, name);
    if (!result && !input.id) return ll_scan_fail(&p->s, from, "no input is named %s", name);
    if (result)
        ll_graph_result(g, name, v);
    else
        ll_graph_update(g, input, v);
    if (g->err != LL_OK) return ll_scan_fail(&p->s, from, "%s", g->err_text);
    return LL_OK;
}

/* Over the rest of the line, which may hold a comment only, and over empty lines after it. */
static ll_err end_line(parser *p)
{
    ll_scan *s = &p->s;
    for (;;) {
        ll_scan_blank(s);
        if (*s->at == '#') s->at += strcspn(s->at, "\n");
        if (!*s->at) return LL_OK;
        if (*s->at != '\n') return ll_scan_fail(s, s->at, "expected the end of the line");
        s->line_start = ++s->at;
        s->line++;
        if (s->at[strspn(s->at, " \t\r")] != '\n' && s->at[strspn(s->at, " \t\r")] != '#')
            return LL_OK;
    }
}

/* graph "name" { */
static ll_err parse_head(parser *p)
{
    char word[LL_WORD_MAX + 1], name[NAME_LENGTH + 1];
    const char *first = p->s.at + strspn(p->s.at, " \t\r");
    if (*first == '\n' || *first == '#') TRY(end_line(p));
    ll_scan_blank(&p->s);
    const char *from = p->s.at;
    TRY(ll_scan_word(&p->s, "graph", word));
    if (strcmp(word, "graph")) return ll_scan_fail(&p->s, from, "expected graph, found %s", word);
    TRY(scan_name(p, "the graph's name", name));
    TRY(ll_scan_want(&p->s, '{'));
    p->g->name = ll_arena_strdup(p->g->arena, name);
    return end_line(p);
}

static ll_err parse(parser *p)
{
    TRY(parse_head(p));
    while (!ll_scan_is(&p->s, '}')) {
        if (*p->s.at == '%')
            TRY(parse_definition(p));
        else
            TRY(parse_other(p));
        TRY(end_line(p));
    }
    TRY(end_line(p));
    ll_scan_blank(&p->s);
    if (*p->s.at) return ll_scan_fail(&p->s, p->s.at, "expected the end of the text after }");
    return LL_OK;
}

ll_err ll_parse(const char *text, ll_graph **out)
{
    LL_OWN(ll_graph) g = ll_graph_new("");
    LL_OWN(ll_arena) scratch = ll_arena_new();
    parser p = {.s = {.at = text, .line_start = text, .line = 1, .fused = scan_fused},
                .g = g,
                .scratch = scratch};
    *out = NULL;
    TRY(parse(&p));
    return LL_HAND(out, g);
}

/* "<5", ">", "%" or nothing, behind an operand's type. */
static ll_err scan_limit(ll_scan *s, int64_t *bound)
{
    *bound = 0;
    if (ll_scan_is(s, '<')) return ll_scan_int(s, "a limit", 1, INT32_MAX, bound);
    *bound = ll_scan_is(s, '>') ? 1 : ll_scan_is(s, '%') ? -1 : 0;
    return LL_OK;
}

static ll_err scan_types(ll_scan *s, int *n_in, ll_type *in, int64_t *limit)
{
    for (bool more = *s->at && *s->at != '{'; more; more = ll_scan_is(s, ',')) {
        if (*n_in == LL_MAX_IN) return ll_scan_fail(s, s->at, "more than %d operands", LL_MAX_IN);
        TRY(scan_type(s, &in[*n_in]));
        TRY(scan_limit(s, &limit[*n_in]));
        ++*n_in;
    }
    return LL_OK;
}

/* Of the op's loop dims, "*c, *c, * -> *c": each operand's shape. */
static ll_err shapes_of(const ll_scan *s, const char *dims, const ll_shape *extent, int n,
                        ll_type *in)
{
    for (int k = 0; k < n; k++, dims++) {
        in[k].shape = (ll_shape){0};
        for (; *dims && *dims != ',' && *dims != '-'; dims++) {
            const ll_shape *e = &extent[*dims & 127];
            if (*dims == ' ') continue;
            if (!e->n && *dims != '*') return ll_scan_fail(s, s->at, "%c has no extent", *dims);
            for (int d = 0; d < e->n; d++) in[k].shape.d[in[k].shape.n++] = e->d[d];
        }
        if (k + 1 < n && *dims != ',') return ll_scan_fail(s, s->at, "no operand %d", k + 1);
    }
    return LL_OK;
}

/* "*=2,3 c=7 1:i32<9 4> 5": extents of loops; operands that are not f32 of any numbers, or that
 * are there although they need not be. */
static ll_err scan_loops(ll_scan *s, const ll_op *op, int *n_in, ll_type *in, int64_t *limit)
{
    ll_shape extent[128] = {{0}};
    *n_in = op->n_in;
    for (int k = 0; k < LL_MAX_IN; k++) in[k].dtype = LL_F32, limit[k] = 0;
    for (ll_scan_blank(s); *s->at && *s->at != '{'; ll_scan_blank(s)) {
        int64_t k;
        if (isdigit((unsigned char)*s->at)) {
            TRY(ll_scan_int(s, "an operand", 0, LL_MAX_IN - 1, &k));
            if (k >= *n_in) *n_in = (int)k + 1;
            if (ll_scan_is(s, ':')) TRY(ll_scan_dtype(s, &in[k].dtype));
            TRY(scan_limit(s, &limit[k]));
            continue;
        }
        ll_shape *e = &extent[*s->at++ & 127];
        TRY(ll_scan_want(s, '='));
        do {
            if (e->n == LL_MAX_DIMS) return ll_scan_fail(s, s->at, "too many dimensions");
            TRY(ll_scan_int(s, "an extent", 0, INT32_MAX, &e->d[e->n++]));
        } while (ll_scan_is(s, ','));
    }
    return shapes_of(s, op->dims, extent, *n_in, in);
}

ll_err ll_parse_trial(const ll_op *op, const char *text, ll_arena *arena, int *n_in, ll_type *in,
                      int64_t *limit, void **attr)
{
    ll_scan s = {.at = text, .line_start = text, .line = 1, .fused = scan_fused};
    *n_in = 0;
    *attr = ll_arena_alloc(arena, op->attr_size);
    ll_scan_blank(&s);
    bool loops = *s.at && s.at[1] == '=';
    TRY(loops ? scan_loops(&s, op, n_in, in, limit) : scan_types(&s, n_in, in, limit));
    TRY(ll_scan_attrs(&s, op, *attr, NULL));
    ll_scan_blank(&s);
    if (*s.at) return ll_scan_fail(&s, s.at, "expected the end of %s's trial %s", op->name, text);
    return LL_OK;
}
