/* loops.c: the loops of a node, read from its op's dims string (see ir/op.h).
 *
 * Worked example: matmul "*mk, *kn -> *mn" on f32[8,5,7], f32[8,7,3]: '*' is one dimension here and
 * becomes loop A (extent 8); m=5, k=7, n=3; k vanishes and is in sum. */
#include "ir/op.h"

#include <ctype.h>

/* Loop of a letter, made when new; -1 when there is no room. */
static int loop_of(ll_loops *l, char letter)
{
    for (int i = 0; i < l->n; i++)
        if (l->letter[i] == letter) return i;
    if (l->n == LL_MAX_LOOPS) return -1;
    l->letter[l->n] = letter;
    l->extent[l->n] = -1;
    return l->n++;
}

/* One side of a dims string, operand by operand. */
typedef struct side {
    const char *text; /* of this operand: letters */
    int len;
    const char *rest; /* behind it: ",", "->" or the end */
} side;

/* The next operand's; the last one stands for any that follow (variadic). */
static void next_operand(side *s)
{
    if (s->text && *s->rest != ',') return;
    s->text = s->text ? s->rest + 1 : s->rest;
    while (*s->text == ' ') s->text++;
    s->rest = s->text;
    while (*s->rest && *s->rest != ',' && *s->rest != '-') s->rest++;
    s->len = (int)(s->rest - s->text);
    while (s->len && s->text[s->len - 1] == ' ') s->len--;
}

/* Matches letters of one operand with its dimensions; '*' takes what the letters leave. */
static ll_err match(ll_loops *l, const char *text, int len, const ll_type *t, const char *windows,
                    bool is_out, int8_t map[LL_MAX_DIMS])
{
    int letters = 0, stars = 0;
    for (int i = 0; i < len; i++) {
        if (text[i] == '*')
            stars++;
        else
            letters++;
    }
    int extra = t->shape.n - letters;
    CHECK(stars ? extra >= 0 : extra == 0, LL_E_SHAPE, "an operand of %d dimensions, expected %.*s",
          t->shape.n, len, text);
    int dim = 0;
    for (int i = 0; i < len; i++) {
        int repeat = text[i] == '*' ? extra : 1;
        for (int r = 0; r < repeat; r++, dim++) {
            char letter = text[i] == '*' ? (char)('A' + r) : text[i];
            if (letter == '_') {
                map[dim] = -1;
                continue;
            }
            int k = loop_of(l, letter);
            CHECK(k >= 0, LL_E_SHAPE, "more than %d loops", LL_MAX_LOOPS);
            map[dim] = (int8_t)k;
            bool sliding = windows && strchr(windows, letter);
            if (sliding) l->window[k] = true;
            if (sliding && !is_out && l->extent[k] >= 0) continue;
            int64_t d = t->shape.d[dim];
            if (sliding && is_out)
                l->extent[k] = d; /* the result's range counts */
            else if (l->extent[k] < 0)
                l->extent[k] = d;
            CHECK(l->extent[k] == d, LL_E_SHAPE, "loop %c runs over %ld and over %ld", letter,
                  l->extent[k], d);
        }
    }
    for (; dim < LL_MAX_DIMS; dim++) map[dim] = -1;
    return LL_OK;
}

static bool in_results(const ll_loops *l, int n_out, int loop)
{
    for (int o = 0; o < n_out; o++)
        for (int d = 0; d < LL_MAX_DIMS; d++)
            if (l->out[o][d] == loop) return true;
    return false;
}

static bool listed(const char *letters, char letter)
{
    if (!letters) return false;
    return strchr(letters, letter) || (isupper((unsigned char)letter) && strchr(letters, '*'));
}

/* A node's dims, made or the op's, with loops cleared; NULL: it has none. */
static ll_err dims_of(const ll_op *op, const void *attr, int n_in, const ll_type *in,
                      char made[LL_DIMS_TEXT], const char **dims, ll_loops *l)
{
    memset(l, 0, sizeof *l);
    memset(l->in, -1, sizeof l->in);
    memset(l->out, -1, sizeof l->out);
    CHECK(n_in <= LL_MAX_IN, LL_E_SHAPE, "%s has too many operands", op->name);
    *dims = op->dims;
    if (!op->loops) return LL_OK;
    *dims = made;
    return op->loops(attr, n_in, in, made);
}

static ll_err match_operands(const ll_op *op, const char *dims, int n_in, const ll_type *in,
                             ll_loops *l)
{
    side s = {.rest = dims};
    for (int i = 0; i < n_in; i++) {
        next_operand(&s);
        TRY(match(l, s.text, s.len, &in[i], op->window, false, l->in[i]));
    }
    return LL_OK;
}

ll_err ll_loops_of(const ll_op *op, const void *attr, int n_in, const ll_type *in, int n_out,
                   const ll_type *out, ll_loops *l)
{
    char made[LL_DIMS_TEXT];
    const char *dims;
    CHECK(n_out <= LL_MAX_OUT, LL_E_SHAPE, "%s has too many results", op->name);
    TRY(dims_of(op, attr, n_in, in, made, &dims, l));
    if (!dims) return LL_OK;
    const char *arrow = strchr(dims, '-');
    LL_ASSERT(arrow);
    side s = {.rest = arrow + 2};
    /* Results first where a window slides, so that the loop's extent is the result's. */
    for (int o = 0; o < n_out; o++) {
        next_operand(&s);
        TRY(match(l, s.text, s.len, &out[o], op->window, true, l->out[o]));
    }
    TRY(match_operands(op, dims, n_in, in, l));
    bool any = op->sum && *op->sum == '?';
    for (int k = 0; k < l->n; k++) {
        char c = l->letter[k];
        if (listed(op->whole, c))
            l->combine[k] = LL_WHOLE;
        else if (listed(op->sum, c))
            l->combine[k] = LL_SUM;
        else if (in_results(l, n_out, k))
            l->combine[k] = LL_FREE;
        else if (any)
            l->combine[k] = LL_SUM;
        else if (listed(op->max, c) || (op->max && *op->max == '?'))
            l->combine[k] = LL_MAX;
        else
            FAIL(LL_E_GRAPH, "%s: loop %c vanishes and is in none of sum, max, whole", op->name, c);
    }
    return LL_OK;
}

ll_dtype ll_infer_type(const ll_infer *i)
{
    int k = 0;
    while (k + 1 < i->n_in && i->op->wide_in >> k & 1) k++;
    return i->in[k].dtype;
}

/* The default shape rule: each result dimension is its loop's extent in the operands. */
ll_err ll_infer_dims(ll_infer *i)
{
    char made[LL_DIMS_TEXT];
    const char *dims;
    ll_loops l;
    TRY(dims_of(i->op, i->attr, i->n_in, i->in, made, &dims, &l));
    TRY(match_operands(i->op, dims, i->n_in, i->in, &l));
    const char *side = strchr(dims, '-') + 2;
    for (int o = 0; o < i->n_out; o++) {
        i->out[o] = (ll_type){.dtype = ll_infer_type(i)};
        ll_shape *s = &i->out[o].shape;
        for (; *side && *side != ','; side++) {
            if (*side == ' ') continue;
            for (int k = 0; k < l.n; k++)
                if (l.letter[k] == *side || (*side == '*' && l.letter[k] < 'a')) {
                    CHECK(s->n < LL_MAX_DIMS, LL_E_SHAPE, "more than %d dimensions", LL_MAX_DIMS);
                    s->d[s->n++] = l.extent[k];
                }
        }
        if (*side) side++;
    }
    return LL_OK;
}

ll_err ll_node_loops(const ll_graph *g, const ll_node *n, ll_loops *loops)
{
    ll_type in[LL_MAX_IN], out[LL_MAX_OUT];
    CHECK(n->n_in <= LL_MAX_IN, LL_E_SHAPE, "%s: more than %d operands", n->name, LL_MAX_IN);
    for (int i = 0; i < n->n_in; i++) in[i] = ll_value_of(g, n->in[i])->type;
    for (int i = 0; i < n->n_out; i++) out[i] = ll_value_of(g, n->out[i])->type;
    return ll_loops_of(n->op, n->attr, n->n_in, in, n->n_out, out, loops);
}

double ll_node_flops(const ll_graph *g, const ll_node *n)
{
    ll_loops l;
    if ((!n->op->flop && !n->op->cost) || ll_node_loops(g, n, &l) != LL_OK) return 0;
    if (n->op->cost) return n->op->cost(n->attr, &l);
    double points = n->op->flop;
    for (int k = 0; k < l.n; k++) points *= (double)l.extent[k];
    return points;
}

double ll_node_bytes(const ll_graph *g, const ll_node *n)
{
    double bytes = 0;
    for (int i = 0; i < n->n_in; i++) bytes += ll_val_bytes(g, n->in[i]);
    for (int o = 0; o < n->n_out; o++) bytes += ll_val_bytes(g, n->out[o]);
    return bytes;
}
