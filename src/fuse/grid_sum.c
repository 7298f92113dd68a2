/* grid_sum.c: a plain sum of exact mode (pass/exact.c) without the array of its fixed point, on the
 * CPU: as many numbers are read, half as wide, and none are written.
 *
 *     x f32, m f32: a scale for each result -> sum of grid(x, m), f64 */
#include "fuse/fuse_int.h"

LL_KERNELS(grid_sum)

/* Is there one scale for each result of the sum, "abcd,ac->abcd" of "abcd->ac"? */
static bool is_scaled(const char *grid, const char *spec)
{
    ll_spec s;
    const char *at = strchr(grid, ',');
    if (!at || ll_spec_parse(spec, &s) != LL_OK || !ll_spec_shrinks(&s)) return false;
    for (int i = 0; i < s.n_in; i++)
        if (s.to[i] >= 0 && *++at != grid[i]) return false;
    return at[1] == '-';
}

static ll_err infer(ll_infer *i)
{
    const ll_grid_sum_attr *a = (const ll_grid_sum_attr *)i->attr;
    for (int k = 0; k < 2; k++)
        CHECK(i->in[k].dtype == LL_F32, LL_E_ARG, "operand %d is %s, expected f32", k,
              ll_dtype_name(i->in[k].dtype));
    CHECK(is_scaled(a->grid, a->spec), LL_E_ARG, "grid \"%s\" has not a scale for each of \"%s\"",
          a->grid, a->spec);
    i->out[0] = (ll_type){LL_F64, i->in[1].shape};
    return LL_OK;
}

static const ll_op grid_sum = {
    LL_CPU_OP(grid_sum, REDUCTION, 2, 1),
    LL_ATTRS(ll_grid_sum_attr, grid, spec, bits),
    .infer = infer,
    .trials = {"f32[40,9,1,24], f32[24]> {grid=\"abcd,d->abcd\", spec=\"nhwc->c\", bits=43}",
               "f32[7,140], f32[7]> {grid=\"ab,a->ab\", spec=\"nc->n\", bits=12}",
               "f32[3,900,3], f32[3,3]> {grid=\"abc,ac->abc\", spec=\"nhc->nc\", bits=40}",
               "f32[3,9001], f32[]> {grid=\"ab,->ab\", spec=\"ab->\", bits=38}",
               "f32[5,3], f32[5,3]> {grid=\"ab,ab->ab\", spec=\"ab->ab\", bits=50}",
               "f32[2,3,5,2], f32[2,5]> {grid=\"abcd,ac->abcd\", spec=\"abcd->ac\", bits=48}",
               "f32[70,700], f32[700]> {grid=\"ab,b->ab\", spec=\"ab->b\", bits=44}",
               "f32[0,3], f32[3]> {grid=\"ab,b->ab\", spec=\"ab->b\", bits=50}",
               "f32[], f32[]> {grid=\",->\", spec=\"->\", bits=50}"},
};

static bool guard(ll_match *m)
{
    const ll_node *grid = ll_match_node(m, "g"), *sum = ll_match_node(m, "z");
    for (int k = 0; k < 2; k++)
        if (ll_graph_dtype(m->g, grid->in[k]) != LL_F32)
            return ll_match_no(m, "operand %d is not f32", k);
    return is_scaled(((const ll_grid_attr *)grid->attr)->spec,
                     ((const ll_spec_attr *)sum->attr)->spec);
}

static const ll_fusion_row rows[] = {
    {.pattern = "g = grid(x, m) {spec=$grid, bits=$bits, out=f64, odd=0}\n"
                "z = sum(g) {spec=$spec}",
     .replace = "z = grid_sum(x, m) {grid=$grid, spec=$spec, bits=$bits}",
     .guard = guard},
    {0}};

LL_CPU_FUSION(grid_sum, FORWARD, .rows = rows)
const ll_op *const ll_ops_grid_sum[] = {&grid_sum, NULL};
