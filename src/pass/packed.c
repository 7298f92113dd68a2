/* packed.c: weights of products as 8 or 4 bits. */
#include "pass/packed.h"

#include "op/op_int.h"

#include <math.h>
#include <stdio.h>

const char *ll_pack_name(ll_arena *a, const char *name, int bits, int part)
{
    if (!part) return ll_arena_printf(a, "%s.q%d", name, bits);
    return ll_arena_printf(a, "%s.%s", name, part == 1 ? "scale" : "least");
}

static uint8_t code(double v, double scale, double least)
{
    return (uint8_t)(scale > 0 ? fmin(fmax(rint((v - least) / scale), 0), 15) : 0);
}

/* Numbers that a block of 4 bits has exactly: those of a file of such blocks, or rounded before.
 * Their steps are a part of what lies between the least and the most. */
static bool on_grid(const float *v, double low, double high, uint16_t *scale, uint16_t *least)
{
    for (int steps = 1; steps <= 15 && high > low; steps++) {
        ll_store(scale, LL_F16, 0, (high - low) / steps);
        double d = ll_load(scale, LL_F16, 0);
        for (int first = 0; first + steps <= 15; first++) {
            int i = 0;
            ll_store(least, LL_F16, 0, low - first * d);
            double from = ll_load(least, LL_F16, 0);
            while (i < LL_PACK && (float)(from + d * code(v[i], d, from)) == v[i]) i++;
            if (i == LL_PACK) return true;
        }
    }
    return false;
}

/* How far numbers are off, squared, each counted so many times. */
static double loss_of(const float *v, const float *count, const uint16_t *scale,
                      const uint16_t *least)
{
    double sum = 0, d = ll_load(scale, LL_F16, 0), from = ll_load(least, LL_F16, 0);
    for (int i = 0; i < LL_PACK; i++) {
        double off = from + d * code(v[i], d, from) - (double)v[i];
        sum += off * off * (count ? (double)count[i] : 1);
    }
    return sum;
}

void ll_pack_range(const float *v, const float *count, uint16_t *scale, uint16_t *least)
{
    double low = v[0], high = v[0], best = -1;
    for (int i = 1; i < LL_PACK; i++)
        low = fmin(low, (double)v[i]), high = fmax(high, (double)v[i]);
    if (on_grid(v, low, high, scale, least)) return;
    for (int k = 0; k < (count ? 8 : 1); k++) { /* a narrower range has finer steps */
        uint16_t s, from;
        double in = 0.5 * 0.04 * k * (high - low);
        ll_store(&s, LL_F16, 0, (high - low - 2 * in) / 15);
        ll_store(&from, LL_F16, 0, low + in);
        double is = loss_of(v, count, &s, &from);
        if (best >= 0 && is >= best) continue;
        best = is, *scale = s, *least = from;
    }
}

static void pack4(const float *v, uint8_t *q, uint16_t *scale, uint16_t *least)
{
    ll_pack_range(v, NULL, scale, least);
    double by = ll_load(scale, LL_F16, 0), from = ll_load(least, LL_F16, 0);
    for (int i = 0; i < 16; i++)
        q[i] = (uint8_t)(code(v[i], by, from) | code(v[i + 16], by, from) << 4);
}

void ll_pack(const float *x, int64_t n, int bits, uint8_t *q, uint16_t *scale, uint16_t *least)
{
    for (int64_t b = 0; b < n / LL_PACK; b++) {
        const float *v = x + b * LL_PACK;
        if (bits == 4) {
            pack4(v, q + b * 16, scale + b, least + b);
            continue;
        }
        double top = 0;
        for (int i = 0; i < LL_PACK; i++) top = fmax(top, fabs((double)v[i]));
        ll_store(scale, LL_F16, b, top / 127);
        double by = ll_load(scale, LL_F16, b);
        for (int i = 0; i < LL_PACK; i++) {
            double k = by > 0 ? rint((double)v[i] / by) : 0;
            q[b * LL_PACK + i] = (uint8_t)(int8_t)fmin(fmax(k, -127), 127);
        }
    }
}

/* Rows of x and of w are summed over the same, last letters: "Fc,Nc->FN". */
static bool fits(const ll_graph *g, const ll_node *n, ll_matmul_parts *p, int *rows)
{
    if (n->op != &ll_op_matmul) return false;
    const ll_value *w = ll_value_of(g, n->in[1]), *x = ll_value_of(g, n->in[0]);
    if (w->node >= 0 || w->kind != LL_PARAM || w->type.dtype != LL_F32 ||
        ll_matmul_read(((const ll_matmul_attr *)n->attr)->spec, p) != LL_OK)
        return false;
    int summed = 0;
    while (summed < p->len[1] && !ll_matmul_has(p, 2, p->text[1][p->len[1] - 1 - summed])) summed++;
    *rows = p->len[1] - summed;
    int left = p->len[0] - summed;
    return summed && *rows > 0 && left >= 0 && x->type.shape.n < LL_MAX_DIMS &&
           w->type.shape.n < LL_MAX_DIMS && w->type.shape.d[p->len[1] - 1] % LL_PACK == 0 &&
           !strncmp(p->text[0] + left, p->text[1] + *rows, (size_t)summed) &&
           p->len[2] == left + *rows && !strncmp(p->text[2], p->text[0], (size_t)left) &&
           !strncmp(p->text[2] + left, p->text[1], (size_t)*rows);
}

int64_t ll_pack_cols(const ll_graph *g, const ll_node *n)
{
    ll_matmul_parts p;
    int rows;
    int64_t cols = 1;
    if (!fits(g, n, &p, &rows)) return 0;
    const ll_shape *w = &ll_value_of(g, n->in[1])->type.shape;
    for (int d = rows; d < w->n; d++) cols *= w->d[d];
    return cols;
}

static ll_shape in_blocks(const ll_shape *s, int64_t last)
{
    ll_shape out = *s;
    out.d[out.n - 1] /= LL_PACK;
    out.d[out.n++] = last;
    return out;
}

static void make(ll_rewrite *rw, const ll_node *n, const ll_matmul_parts *p, int rows, int bits)
{
    const ll_value *w = ll_value_of(rw->from, n->in[1]);
    ll_shape s = in_blocks(&w->type.shape, bits * LL_PACK / 8), scale = s, x;
    ll_val in[4] = {{0}};
    ll_packed_attr a = {.bits = bits, .rows = rows};
    scale.n--;
    ll_rewrite_at(rw, n);
    for (int k = 0; k < (bits == 4 ? 3 : 2); k++) {
        const char *name = ll_pack_name(rw->to->arena, w->name, bits, k);
        in[1 + k] = ll_find(rw->to, name);
        if (!in[1 + k].id)
            in[1 + k] =
                ll_input(rw->to, name, LL_PARAM, (ll_type){k ? LL_F16 : LL_U8, k ? scale : s},
                         (ll_init){LL_ZEROS, 0});
    }
    x = ll_graph_shape(rw->to, rw->map[n->in[0].id]);
    in[0] = ll_reshape(rw->to, rw->map[n->in[0].id], in_blocks(&x, LL_PACK));
    snprintf(a.spec, sizeof a.spec, "%.*s_,%.*s_,%.*s%s%.*s->%.*s", p->len[0], p->text[0],
             p->len[1], p->text[1], p->len[1], p->text[1], bits == 4 ? "," : "",
             bits == 4 ? p->len[1] : 0, p->text[1], p->len[2], p->text[2]);
    ll_rewrite_map(rw, n->out[0], ll_emit(rw->to, &ll_op_packed_matmul, &a, in, bits == 4 ? 4 : 3));
}

/* A new graph with the inputs of the old one that anybody reads as they are. */
static void begin(ll_rewrite *rw, const ll_graph *g)
{
    *rw = (ll_rewrite){.from = g, .to = ll_graph_new(g->name)};
    ll_arena *a = rw->to->arena;
    bool *read = LL_NEW_ARRAY(a, bool, g->n_value);
    ll_matmul_parts p;
    int rows;
    rw->map = LL_NEW_ARRAY(a, ll_val, g->n_value);
    rw->to->of.at = -1;
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            if (k != 1 || !fits(g, &g->nodes[i], &p, &rows)) read[g->nodes[i].in[k].id] = true;
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->node < 0 && (v->kind != LL_PARAM || read[i]))
            rw->map[i] = ll_input(rw->to, v->name, v->kind, v->type, v->init);
    }
}

ll_err ll_pack_graph(const ll_graph *g, int bits, ll_graph **out)
{
    ll_rewrite rw;
    ll_err rc = LL_OK;
    begin(&rw, g);
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        ll_matmul_parts p;
        int rows;
        if (fits(g, n, &p, &rows)) {
            make(&rw, n, &p, rows, bits);
            rc = ll_graph_check(rw.to);
        } else
            rc = ll_rewrite_copy(&rw, n);
    }
    return ll_rewrite_end(&rw, rc, out);
}
