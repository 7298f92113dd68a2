/* rows.c: a tensor [*,c] seen as rows (see rows.h). No ops of its own. */
#include "op/rows.h"

#include <stdio.h>

typedef char spec[24];

/* "abc->ab" (keep leading), "abc->c" (keep last), and the same backwards. */
static void write_spec(spec s, int n, bool leading, bool backwards)
{
    static const char letters[] = "abcdef";
    char part[8];
    if (leading)
        snprintf(part, sizeof part, "%.*s", n - 1, letters);
    else
        snprintf(part, sizeof part, "%c", letters[n - 1]);
    if (backwards)
        snprintf(s, sizeof(spec), "%s->%.*s", part, n, letters);
    else
        snprintf(s, sizeof(spec), "%.*s->%s", n, letters, part);
}

static bool has_rows(ll_graph *g, ll_val x)
{
    if (!x.id) return false;
    if (ll_graph_shape(g, x).n > 0) return true;
    ll_reject(g, LL_E_SHAPE, "a scalar has no last dimension");
    return false;
}

static ll_val reduced(ll_graph *g, ll_val x, bool leading,
                      ll_val (*by)(ll_graph *g, ll_val x, const char *spec))
{
    spec s;
    if (!has_rows(g, x)) return (ll_val){0};
    write_spec(s, ll_graph_shape(g, x).n, leading, false);
    return by(g, x, s);
}

ll_val ll_row_sum(ll_graph *g, ll_val x)
{
    return reduced(g, x, true, ll_sum);
}

ll_val ll_row_max(ll_graph *g, ll_val x)
{
    return reduced(g, x, true, ll_amax);
}

ll_val ll_col_sum(ll_graph *g, ll_val x)
{
    return ll_graph_shape(g, x).n == 1 ? x : reduced(g, x, false, ll_sum);
}

ll_val ll_row_spread(ll_graph *g, ll_val v, const ll_shape *shape)
{
    spec s;
    if (!v.id) return v;
    write_spec(s, shape->n, true, true);
    return ll_broadcast(g, v, s, *shape);
}

ll_val ll_col_spread(ll_graph *g, ll_val v, const ll_shape *shape)
{
    spec s;
    if (!v.id || shape->n == 1) return v;
    write_spec(s, shape->n, false, true);
    return ll_broadcast(g, v, s, *shape);
}

int64_t ll_row_length(const ll_graph *g, ll_val x)
{
    ll_shape s = ll_graph_shape(g, x);
    return s.n ? s.d[s.n - 1] : 1;
}

ll_val ll_add_some(ll_graph *g, ll_val a, ll_val b)
{
    if (!a.id) return b;
    return b.id ? ll_add(g, a, b) : a;
}

ll_val ll_sibling(const ll_graph *g, ll_val v, int k)
{
    if (!v.id) return v;
    return g->nodes[ll_value_of(g, v)->node].out[k];
}

double ll_extent(const ll_loops *l, char letter)
{
    for (int k = 0; k < l->n; k++)
        if (l->letter[k] == letter) return (double)l->extent[k];
    return 1;
}

ll_err ll_infer_floats(ll_infer *i)
{
    ll_dtype t = ll_infer_type(i);
    for (int k = 0; k < i->n_in; k++) {
        ll_dtype want = i->op->wide_in >> k & 1 ? ll_wide(t) : t;
        CHECK(ll_dtype_is_float(i->in[k].dtype) && i->in[k].dtype == want, LL_E_ARG,
              "operand %d is %s; expected %s, beside %s of the others", k,
              ll_dtype_name(i->in[k].dtype), ll_dtype_name(want), ll_dtype_name(t));
    }
    return ll_infer_dims(i);
}

ll_err ll_check_float(ll_dtype t, const char *what)
{
    CHECK(ll_dtype_is_float(t), LL_E_ARG, "%s %s, expected a float type", what, ll_dtype_name(t));
    return LL_OK;
}

ll_err ll_check_index(const ll_infer *i, int operand)
{
    CHECK(i->in[operand].dtype == LL_I32, LL_E_ARG, "operand %d holds indices and must be i32",
          operand);
    return LL_OK;
}

const ll_op *const ll_ops_rows[] = {NULL};
