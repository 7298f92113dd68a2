/* grid_matmul.c: a product of exact mode (pass/exact.c) whose fixed point is made where operands
 * are packed, on the CPU, and never stored.
 *
 *     x, y f32, their scales m, n f32 -> matmul(grid(x, m), grid(y, n)), f64 */
#include "fuse/fuse_int.h"

#include <stdio.h>

LL_KERNELS(grid_matmul)

/* The letters of operand k's scales, in the product's. */
static bool scale_letters(const char *spec, const char *grid, int k, char out[LL_MAX_DIMS + 1])
{
    ll_matmul_parts p;
    const char *comma = strchr(grid, ',');
    if (!comma || ll_matmul_read(spec, &p) != LL_OK || comma - grid != p.len[k]) return false;
    for (const char *at = comma + 1; *at && *at != '-'; at++) {
        const char *d = (const char *)memchr(grid, *at, (size_t)p.len[k]);
        if (!d || !ll_matmul_has(&p, 2, p.text[k][d - grid])) return false;
        *out++ = p.text[k][d - grid];
    }
    *out = '\0';
    return true;
}

ll_err ll_scaled_dims(const char *spec, const char *a, const char *b, const char *result,
                      char dims[LL_DIMS_TEXT])
{
    char s[2][LL_MAX_DIMS + 1];
    ll_matmul_parts p;
    TRY(ll_matmul_read(spec, &p));
    CHECK(scale_letters(spec, a, 0, s[0]) && scale_letters(spec, b, 1, s[1]), LL_E_ARG,
          "scales \"%s\" and \"%s\" are not of the result of \"%s\"", a, b, spec);
    snprintf(dims, LL_DIMS_TEXT, "%.*s,%s,%s->%s", (int)(p.text[2] - spec) - 2, spec, s[0], s[1],
             result);
    return LL_OK;
}

bool ll_scaled_match(ll_match *m, const char *spec)
{
    for (int k = 0; k < 2; k++) {
        const ll_node *grid = ll_match_node(m, k ? "b" : "a");
        char letters[LL_MAX_DIMS + 1];
        for (int i = 0; i < 2; i++)
            if (ll_graph_dtype(m->g, grid->in[i]) != LL_F32)
                return ll_match_no(m, "operand %d is not f32", k);
        if (!scale_letters(spec, ((const ll_grid_attr *)grid->attr)->spec, k, letters))
            return ll_match_no(m, "scales of operand %d are not the result's", k);
    }
    return true;
}

static ll_err loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const ll_grid_matmul_attr *a = (const ll_grid_matmul_attr *)attr;
    const char *arrow = strstr(a->spec, "->");
    return ll_scaled_dims(a->spec, a->a, a->b, arrow ? arrow + 2 : "", dims);
}

static ll_err infer(ll_infer *i)
{
    const ll_grid_matmul_attr *a = (const ll_grid_matmul_attr *)i->attr;
    for (int k = 0; k < 4; k++)
        CHECK(i->in[k].dtype == LL_F32, LL_E_ARG, "operand %d is %s, expected f32", k,
              ll_dtype_name(i->in[k].dtype));
    CHECK(a->bits >= 1 && a->bits <= 50, LL_E_ARG, "bits is %ld, expected 1 to 50", a->bits);
    TRY(ll_check_bits(a->rounded, LL_F64));
    TRY(ll_infer_dims(i));
    i->out[0].dtype = LL_F64;
    return LL_OK;
}

#define MN "spec=\"mk,kn->mn\", a=\"ab,a->ab\", b=\"ab,b->ab\""
static const ll_op grid_matmul = {
    LL_CPU_OP(grid_matmul, PRODUCT, 4, 1),
    LL_ATTRS(ll_grid_matmul_attr, spec, a, b, bits, rounded),
    .loops = loops,
    .whole = "abcdefghijklmnopqrstuvwxyz",
    .infer = infer,
    .flop = 2,
    .trials = {"f32[6,12], f32[12,18], f32[6]>, f32[18]> {" MN ", bits=40, rounded=33}",
               "f32[70,301], f32[301,67], f32[70]>, f32[67]> {" MN ", bits=40, rounded=38}",
               "f32[3,5,7], f32[90,7], f32[3,5]>, f32[90]> {spec=\"btc,nc->btn\", "
               "a=\"abc,ab->abc\", b=\"ab,a->ab\", bits=40, rounded=32}",
               "f32[2,35,3,4], f32[2,6,3,4], f32[2,35,3]>, f32[2,6,3]> {spec=\"bthd,bshd->bhts\", "
               "a=\"abcd,abc->abcd\", b=\"abcd,abc->abcd\", bits=40, rounded=31}",
               "f32[2,3,5,4], f32[2,4,3,7], f32[2,3,5]>, f32[2,3,7]> {spec=\"bhts,bshe->bthe\", "
               "a=\"abcd,abc->abcd\", b=\"abcd,acd->abcd\", bits=40, rounded=31}",
               "f32[2,5,7], f32[2,5,3,1,4], f32[7]>, f32[3,4]> {spec=\"btc,btzhd->zhdc\", "
               "a=\"abc,c->abc\", b=\"abcde,ce->abcde\", bits=40, rounded=33}",
               "f32[3,20,50], f32[3,50,33], f32[3,20]>, f32[3,33]> {spec=\"amk,akn->nam\", "
               "a=\"abc,ab->abc\", b=\"abc,ac->abc\", bits=40, rounded=36}",
               "f32[7], f32[7], f32[]>, f32[]> {spec=\"k,k->\", a=\"a,->a\", b=\"a,->a\", "
               "bits=40, rounded=32}",
               "f32[4,0], f32[0,3], f32[4]>, f32[3]> {" MN ", bits=40, rounded=29}"},
};

static bool guard(ll_match *m)
{
    return ll_scaled_match(m, ((const ll_matmul_attr *)ll_match_node(m, "z")->attr)->spec);
}

static const ll_fusion_row rows[] = {
    {.pattern = "a = grid(x, m) {spec=$a, bits=$bits, out=f64, odd=1}\n"
                "b = grid(y, n) {spec=$b, bits=$bits, out=f64, odd=1}\n"
                "z = matmul(a, b) {spec=$spec, out=f64, bits=$rounded}",
     .replace = "z = grid_matmul(x, y, m, n) {spec=$spec, a=$a, b=$b, bits=$bits, "
                "rounded=$rounded}",
     .guard = guard},
    {0}};

LL_CPU_FUSION(grid_matmul, PRODUCTS, .rows = rows)
const ll_op *const ll_ops_grid_matmul[] = {&grid_matmul, NULL};
