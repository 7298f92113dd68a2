/* grid, ungrid: numbers as fixed point, so that sums of them are exact (pass/exact.c).
 *
 *     grid    x, m           -> round(x 2^(bits - e)), e with m < 2^e: a whole number, held in f64,
 *                               from -2^bits to 2^bits - 1; odd = 1: the odd number beside it, and
 *                               0 of 0 only (base/num.h); out = u8: its level instead, 1 and
 *                               the exponent of its largest power of two (1 also where x is so
 *                               small that nothing is left of it), and 0 of 0
 *     ungrid  z, m1 [, m2]   -> z 2^(e1 + e2 - bits), rounded once
 *
 * m are the largest magnitudes of parts of x (absmax); the spec says which element of them belongs
 * to which of x: "nhwc,n->nhwc" has one for each image, "nhwf,n,f->nhwf" two for each element. A
 * scale that is not finite makes NaN of all it belongs to. Zeros are always +0. */
#include "op/op_int.h"

enum { MOST_SCALES = 2 };

LL_KERNELS(grid, ungrid)

/* The spec may come from text: lists of letters, the first one the result's, the others of it. */
static ll_err check_spec(const char *spec, int n_in)
{
    CHECK(strnlen(spec, LL_SPEC_MAX) < LL_SPEC_MAX, LL_E_ARG, "spec is longer than %d characters",
          LL_SPEC_MAX - 1);
    const char *arrow = strstr(spec, "->");
    CHECK(arrow, LL_E_ARG, "spec \"%s\", expected one like \"nhwc,n->nhwc\"", spec);
    size_t n = strlen(arrow + 2), lists = 1;
    CHECK(n <= LL_MAX_DIMS && strspn(arrow + 2, "abcdefghijklmnopqrstuvwxyz") == n, LL_E_ARG,
          "spec \"%s\": the result's letters are not up to %d of a to z", spec, LL_MAX_DIMS);
    CHECK(!strncmp(spec, arrow + 2, n) && (spec[n] == ',' || spec + n == arrow), LL_E_ARG,
          "spec \"%s\": the first operand's letters must be the result's", spec);
    for (const char *c = spec, *list = spec; c < arrow; c++) {
        if (*c == ',') lists++, list = c + 1;
        CHECK(*c == ',' || strchr(arrow + 2, *c), LL_E_ARG,
              "spec \"%s\": '%c' is no letter of the result", spec, *c);
        CHECK(*c == ',' || !memchr(list, *c, (size_t)(c - list)), LL_E_ARG,
              "spec \"%s\": %c is twice in one operand", spec, *c);
    }
    CHECK((int)lists == n_in, LL_E_ARG, "spec \"%s\" has %d operands, given %d", spec, (int)lists,
          n_in);
    return LL_OK;
}

static ll_err loops(const void *attr, int n_in, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const ll_grid_attr *a = (const ll_grid_attr *)attr;
    TRY(check_spec(a->spec, n_in));
    strcpy(dims, a->spec);
    return LL_OK;
}

static const ll_op grid;
static const ll_attr_field attrs[] = {LL_FIELD(ll_grid_attr, spec, LL_A_SPEC),
                                      LL_FIELD(ll_grid_attr, bits, LL_A_INT),
                                      LL_FIELD(ll_grid_attr, out, LL_A_DTYPE),
                                      LL_FIELD(ll_grid_attr, odd, LL_A_BITS),
                                      {0}};

static ll_err infer(ll_infer *i)
{
    const ll_grid_attr *a = (const ll_grid_attr *)i->attr;
    CHECK(i->n_in >= 2 && i->n_in <= 1 + MOST_SCALES, LL_E_ARG,
          "%d operands, expected a tensor and 1 or %d scales", i->n_in, MOST_SCALES);
    for (int k = 0; k < i->n_in; k++)
        CHECK(ll_dtype_is_float(i->in[k].dtype), LL_E_ARG,
              "operand %d is %s, expected a float type", k, ll_dtype_name(i->in[k].dtype));
    CHECK((unsigned)a->out < LL_N_DTYPE &&
              (ll_dtype_is_float(a->out) || (i->op == &grid && a->out == LL_U8)),
          LL_E_ARG, "the result must be of a float type");
    CHECK(a->bits >= 1 && a->bits <= 100, LL_E_ARG, "bits is %ld, expected 1 to 100", a->bits);
    CHECK(!a->odd || (a->odd == 1 && i->op == &grid && a->out == LL_F64), LL_E_ARG,
          "odd is %ld, expected 1 of grid in f64, or 0", a->odd);
    TRY(ll_infer_dims(i));
    i->out[0].dtype = a->out;
    return LL_OK;
}

#define GRID_OP(fn, operands)                                                                      \
    LL_SOME_OP(fn, OTHER, operands, 1, .scratch = grid_cpu_scratch),                               \
        .attr_size = sizeof(ll_grid_attr), .attrs = attrs, .loops = loops, .infer = infer,         \
        .flop = 2, .no_grad = true, .f64 = true

static const ll_op grid = {
    GRID_OP(grid, 2),
    .trials = {"f32[2,5,1,3], f32[2]> {spec=\"nhwc,n->nhwc\", bits=18, out=f64}",
               "f32[3,7], f32[]> {spec=\"ab,->ab\", bits=40, out=f64}",
               "f32[2,3,5], f32[2,5]> {spec=\"abc,ac->abc\", bits=21, out=f64}",
               "f32[70,3], f32[3]> {spec=\"ab,b->ab\", bits=8, out=f64}",
               "f32[2,3], f32[3,2]> {spec=\"ab,ba->ab\", bits=21, out=f64}",
               "f32[0,3], f32[3]> {spec=\"ab,b->ab\", bits=21, out=f64}",
               "f32[3,9001], f32[9001]> {spec=\"ab,b->ab\", bits=21, out=f64}",
               "f32[3,150], f32[3]> {spec=\"ab,a->ab\", bits=40, out=f64, odd=1}",
               "f64[3,150], f64[3]> {spec=\"ab,a->ab\", bits=36, out=f64, odd=1}",
               "f32[3,7], f32[7]> {spec=\"ab,b->ab\", bits=60, out=u8}"},
};

static const ll_op ungrid = {
    GRID_OP(ungrid, -1),
    .trials = {"f64[2,5,2,3], f32[2]>, f32[3]> {spec=\"nhwf,n,f->nhwf\", bits=40, out=f32}",
               "f64[3,700], f32[700]> {spec=\"ab,b->ab\", bits=45, out=f32}",
               "f64[2,90,50,3], f32[2]>, f32[3]> {spec=\"nhwf,n,f->nhwf\", bits=40, out=f32}",
               "f64[2,3,5,4], f32[2,5,3]>, f32[2,4,3]> {spec=\"bhts,bth,bsh->bhts\", bits=44, "
               "out=f32}",
               "f64[3,150], f32[3]>, f32[150]> {spec=\"ab,a,b->ab\", bits=44, out=f32}",
               "f64[5], f32[5]>, f32[]> {spec=\"a,a,->a\", bits=30, out=f32}",
               "f64[], f32[]> {spec=\",->\", bits=50, out=f32}",
               "f32[5,7,3], f32[3,5]> {spec=\"abc,ca->abc\", bits=1, out=f32}",
               "f64[3,150], f64[3]>, f32[150]> {spec=\"ab,a,b->ab\", bits=44, out=f64}",
               "f64[3,0], f32[3]> {spec=\"ab,a->ab\", bits=50, out=f32}"},
};

/* "abcd,ac,b->abcd": the result's dimensions are a, b, ...; dims[s] lists those of scale s. */
static ll_grid_attr attr_of(int n_dim, const ll_grid_scale *scale, int n_scale, int bits,
                            ll_dtype out)
{
    static const char letters[] = "abcdefghijklmnop";
    ll_grid_attr a = {0};
    char *at = a.spec;
    at = (char *)memcpy(at, letters, (size_t)n_dim) + n_dim;
    for (int s = 0; s < n_scale; s++) {
        *at++ = ',';
        for (int i = 0; i < scale[s].n; i++) *at++ = letters[scale[s].dim[i]];
    }
    *at++ = '-', *at++ = '>';
    memcpy(at, letters, (size_t)n_dim);
    a.bits = bits;
    a.out = out;
    return a;
}

ll_val ll_to_grid(ll_graph *g, ll_val x, const ll_grid_scale *m, int bits, bool odd, ll_dtype out)
{
    ll_grid_attr a = attr_of(ll_graph_shape(g, x).n, m, 1, bits, out);
    a.odd = odd;
    return LL_EMIT(g, &grid, &a, x, m->value);
}

ll_val ll_from_grid(ll_graph *g, ll_val z, const ll_grid_scale *m, int n_scale, int bits,
                    ll_dtype out)
{
    ll_grid_attr a = attr_of(ll_graph_shape(g, z).n, m, n_scale, bits, out);
    ll_val in[1 + MOST_SCALES] = {z};
    for (int s = 0; s < n_scale; s++) in[1 + s] = m[s].value;
    return ll_emit(g, &ungrid, &a, in, 1 + n_scale);
}

const ll_op *const ll_ops_grid[] = {&grid, &ungrid, NULL};
