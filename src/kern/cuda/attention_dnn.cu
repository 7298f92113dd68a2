/* attention_dnn.cu: attention of bf16 heads as graphs of cuDNN operations, which its fused
 * engines recognise by their pattern.
 *   forward:   s = q k^T / sqrt(d), masked; p = softmax(s), lse kept; o = p v
 *   backward:  delta = sum_d do o; p = exp(s - lse), masked; dv = p^T do;
 *              ds = p (do v^T - delta) / sqrt(d); dk = ds^T q; dq = ds k
 * ds is stored (a slice of the batch at a time), which keeps the order of dq's sums fixed. Where
 * any order will do, dq is summed in f32 by atomic additions instead, and rounded at the end. q, k
 * and v are read from, and their gradients written to, the packed tensor by strides. Of separate
 * queries, keys and values (attend) there is the forward pass: causal or not, groups of heads. */
#include "kern/cuda/attention.cuh"
#include "kern/cuda/dnn.cuh"
#include "kern/heads.h"
#include "kern/notes.h"

#include <math.h>
#include <string.h>

enum { ID_Q = 1, ID_K, ID_V, ID_O, ID_LSE, ID_DO, ID_DQ, ID_DK, ID_DV, ID_DELTA, ID_SUM };
enum { ID_SCALE = 20, ID_ONE, ID_NONE, ID_LEN_Q, ID_LEN_K };

enum { WIDEST = 128, WHOLE_TILE = 128, LAST_TO_PAD = 91500 };
/* The backward pass stores ds, a bf16 for each score, so that dq is a sum in a fixed order. No more
 * than so much is stored at once. The other way, atomic additions, takes 8 % less time. */
static const int64_t MOST_WORKSPACE = (int64_t)2 << 30;
/* cuDNN 9.14 names another first for heads of 64, which takes 8 % longer on an H200. */
enum { FAST_FORWARD = 7, CLEARS_SUM = 914 };

/* What a plan depends on. */
typedef struct fused {
    char name[8];
    int64_t b, t, s, h, n, d; /* as ll_att has them */
    int64_t q_row, k_row, v_row;
    int64_t causal, grad, padded, any_order;
} fused;

typedef struct layout {
    int64_t n[4], at[4]; /* sizes, strides */
} layout;

/* A graph under construction, with the layouts that its tensors have. */
typedef struct build {
    ll_dnn_graph g;
    layout q, k, v, k_t, v_t; /* as they lie: [b,h,t,d], [b,n,s,d]; transposed: [b,n,d,s] */
    layout o, sum, stat;      /* [b,h,t,d] as o lies, and dense; [b,h,t,1] */
    layout square, square_t;  /* [b,h,t,s] */
    ll_desc scale, none, len_q, len_k;
} build;

static void lay_out(build *u, const fused *f)
{
    int64_t b = f->b, t = f->t, s = f->s, h = f->h, n = f->n, d = f->d;
    u->q = layout{{b, h, t, d}, {t * f->q_row, d, f->q_row, 1}};
    u->k = layout{{b, n, s, d}, {s * f->k_row, d, f->k_row, 1}};
    u->v = layout{{b, n, s, d}, {s * f->v_row, d, f->v_row, 1}};
    u->k_t = layout{{b, n, d, s}, {s * f->k_row, d, 1, f->k_row}};
    u->v_t = layout{{b, n, d, s}, {s * f->v_row, d, 1, f->v_row}};
    u->o = layout{{b, h, t, d}, {t * h * d, d, h * d, 1}};
    u->sum = layout{{b, h, t, d}, {h * t * d, t * d, d, 1}};
    u->stat = layout{{b, h, t, 1}, {h * t, t, 1, 1}};
    u->square = layout{{b, h, t, s}, {h * t * s, t * s, s, 1}};
    u->square_t = layout{{b, h, s, t}, {h * t * s, t * s, 1, s}};
}

static ll_desc tensor(build *u, int64_t id, ll_dtype t, const layout *l)
{
    return ll_dnn_tensor(&u->g, id, t, 4, l->n, l->at);
}

static ll_desc inner(build *u, cudnnDataType_t t, const layout *l)
{
    return ll_dnn_inner(&u->g, t, 4, l->n, l->at);
}

static ll_desc square(build *u, cudnnDataType_t t)
{
    return inner(u, t, &u->square);
}

static ll_desc column(build *u)
{
    return inner(u, CUDNN_DATA_FLOAT, &u->stat);
}

/* How an operation computes: one number. */
static ll_desc how_of(build *u, cudnnBackendDescriptorType_t type, cudnnBackendAttributeName_t name,
                      cudnnDataType_t compute)
{
    ll_desc how = ll_dnn_new(&u->g, type);
    ll_dnn_set(&u->g, how, name, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    return how;
}

/* Elementwise. t: the condition of BINARY_SELECT; axis: of GEN_INDEX. */
static ll_desc apply(build *u, cudnnPointwiseMode_t mode, cudnnDataType_t compute, ll_desc x,
                     ll_desc b, ll_desc t, ll_desc y, int64_t axis = 0)
{
    ll_dnn_graph *g = &u->g;
    ll_desc how =
        how_of(u, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, compute);
    ll_dnn_set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        ll_dnn_set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    ll_dnn_done(g, how);
    ll_desc op = ll_dnn_new(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    ll_dnn_add(g, op);
    return y;
}

static ll_desc point(build *u, cudnnPointwiseMode_t mode, ll_desc x, ll_desc b, ll_desc y)
{
    return apply(u, mode, CUDNN_DATA_FLOAT, x, b, NULL, y);
}

/* c = a b; m, n, k: tensors of how many rows, columns and terms count in each batch, or NULL. */
static ll_desc matmul(build *u, ll_desc a, ll_desc b, ll_desc c, ll_desc m, ll_desc n, ll_desc k)
{
    ll_dnn_graph *g = &u->g;
    ll_desc how =
        how_of(u, CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    ll_dnn_done(g, how);
    ll_desc op = ll_dnn_new(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k);
    ll_dnn_add(g, op);
    return c;
}

static void reduce(build *u, cudnnReduceTensorOp_t mode, ll_desc x, ll_desc y)
{
    ll_dnn_graph *g = &u->g;
    ll_desc how = how_of(u, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE,
                         CUDNN_DATA_FLOAT);
    ll_dnn_set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    ll_dnn_done(g, how);
    ll_desc op = ll_dnn_new(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    ll_dnn_give(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    ll_dnn_add(g, op);
}

static ll_desc reshape(build *u, ll_desc x, ll_desc y)
{
    ll_desc op = ll_dnn_new(&u->g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    ll_dnn_give(&u->g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    ll_dnn_give(&u->g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    ll_dnn_add(&u->g, op);
    return y;
}

static ll_desc index_of(build *u, ll_desc s, int axis, cudnnDataType_t compute)
{
    ll_desc y = square(u, CUDNN_DATA_INT32);
    return apply(u, CUDNN_POINTWISE_GEN_INDEX, compute, s, NULL, NULL, y, axis);
}

static ll_desc test(build *u, cudnnPointwiseMode_t mode, ll_desc x, ll_desc b)
{
    return apply(u, mode, CUDNN_DATA_BOOLEAN, x, b, NULL, square(u, CUDNN_DATA_BOOLEAN));
}

/* s where the condition holds, elsewhere -infinity. */
static ll_desc only(build *u, ll_desc s, ll_desc where)
{
    ll_desc y = square(u, CUDNN_DATA_FLOAT);
    return apply(u, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, s, u->none, where, y);
}

static ll_desc causal(build *u, ll_desc s)
{
    ll_desc row = index_of(u, s, 2, CUDNN_DATA_FLOAT), col = index_of(u, s, 3, CUDNN_DATA_FLOAT);
    return only(u, s, test(u, CUDNN_POINTWISE_CMP_GE, row, col));
}

/* Engines of cuDNN up to 9.15 count what lies past the last whole tile unless they are told. */
static ll_desc inside(build *u, ll_desc s)
{
    ll_desc row = index_of(u, s, 2, CUDNN_DATA_INT32), col = index_of(u, s, 3, CUDNN_DATA_INT32);
    ll_desc a = test(u, CUDNN_POINTWISE_CMP_LT, row, u->len_q);
    ll_desc b = test(u, CUDNN_POINTWISE_CMP_LT, col, u->len_k);
    return only(u, s, test(u, CUDNN_POINTWISE_LOGICAL_AND, a, b));
}

static ll_desc scores(build *u, ll_desc q, ll_desc kt)
{
    ll_desc s = matmul(u, q, kt, square(u, CUDNN_DATA_FLOAT), u->len_q, u->len_k, NULL);
    return point(u, CUDNN_POINTWISE_MUL, s, u->scale, square(u, CUDNN_DATA_FLOAT));
}

static void add_forward(build *u, bool is_causal)
{
    cudnnDataType_t f = CUDNN_DATA_FLOAT;
    ll_desc q = tensor(u, ID_Q, LL_BF16, &u->q);
    ll_desc kt = tensor(u, ID_K, LL_BF16, &u->k_t);
    ll_desc v = tensor(u, ID_V, LL_BF16, &u->v);
    ll_desc o = tensor(u, ID_O, LL_BF16, &u->o);
    ll_desc lse = tensor(u, ID_LSE, LL_F32, &u->stat);
    ll_desc s = scores(u, q, kt), top = column(u), sum = column(u);
    if (is_causal) s = causal(u, s);
    reduce(u, CUDNN_REDUCE_TENSOR_MAX, s, top);
    ll_desc e = point(u, CUDNN_POINTWISE_SUB, s, top, square(u, f));
    e = point(u, CUDNN_POINTWISE_EXP, e, NULL, square(u, f));
    reduce(u, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    ll_desc l = point(u, CUDNN_POINTWISE_LOG, sum, NULL, column(u));
    point(u, CUDNN_POINTWISE_ADD, top, l, lse);
    ll_desc p = point(u, CUDNN_POINTWISE_DIV, e, sum, square(u, CUDNN_DATA_BFLOAT16));
    matmul(u, p, v, o, NULL, NULL, NULL);
}

/* Rows become columns, in bf16: the left operand of a product. */
static ll_desc transposed(build *u, ll_desc x)
{
    return reshape(u, x, inner(u, CUDNN_DATA_BFLOAT16, &u->square_t));
}

/* dq = ds k. That the sums in f32 have memory of their own is how cuDNN is told that any order will
 * do. */
static void add_dq(build *u, ll_desc ds, ll_desc kt, bool any_order)
{
    ll_desc k = inner(u, CUDNN_DATA_FLOAT, &u->k);
    ll_desc dq = tensor(u, ID_DQ, LL_BF16, &u->q);
    reshape(u, kt, k);
    ll_desc to = any_order ? tensor(u, ID_SUM, LL_F32, &u->sum) : dq;
    matmul(u, ds, k, to, u->len_q, NULL, u->len_k);
    if (any_order) point(u, CUDNN_POINTWISE_IDENTITY, to, NULL, dq);
}

static void add_backward(build *u, bool any_order)
{
    cudnnDataType_t f = CUDNN_DATA_FLOAT;
    ll_desc q = tensor(u, ID_Q, LL_BF16, &u->q);
    ll_desc kt = tensor(u, ID_K, LL_BF16, &u->k_t);
    ll_desc vt = tensor(u, ID_V, LL_BF16, &u->v_t);
    ll_desc o = tensor(u, ID_O, LL_BF16, &u->o);
    ll_desc dout = tensor(u, ID_DO, LL_BF16, &u->o);
    ll_desc lse = tensor(u, ID_LSE, LL_F32, &u->stat);
    ll_desc dk = tensor(u, ID_DK, LL_BF16, &u->k);
    ll_desc dv = tensor(u, ID_DV, LL_BF16, &u->v);
    ll_desc one = ll_dnn_number(&u->g, ID_ONE, 4);
    ll_desc delta = tensor(u, ID_DELTA, LL_F32, &u->stat);

    ll_desc both = point(u, CUDNN_POINTWISE_MUL, dout, o, inner(u, f, &u->o));
    ll_desc sums = column(u);
    reduce(u, CUDNN_REDUCE_TENSOR_ADD, both, sums);
    point(u, CUDNN_POINTWISE_MUL, sums, one, delta);

    ll_desc s = point(u, CUDNN_POINTWISE_SUB, scores(u, q, kt), lse, square(u, f));
    if (u->len_q) s = inside(u, s);
    ll_desc p = point(u, CUDNN_POINTWISE_EXP, causal(u, s), NULL, square(u, f));
    matmul(u, transposed(u, p), dout, dv, u->len_k, NULL, u->len_q);

    ll_desc dp = matmul(u, dout, vt, square(u, f), u->len_q, u->len_k, NULL);
    ll_desc ds = point(u, CUDNN_POINTWISE_SUB, dp, delta, square(u, f));
    ds = point(u, CUDNN_POINTWISE_MUL, ds, p, square(u, f));
    ds = point(u, CUDNN_POINTWISE_MUL, ds, u->scale, square(u, f));
    matmul(u, transposed(u, ds), q, dk, u->len_k, NULL, u->len_q);
    add_dq(u, ds, kt, any_order);
}

static void build_graph(build *u, const fused *f)
{
    lay_out(u, f);
    u->scale = ll_dnn_number(&u->g, ID_SCALE, 4);
    if (f->causal) u->none = ll_dnn_number(&u->g, ID_NONE, 4);
    if (f->padded) {
        int64_t dims[4] = {f->b, 1, 1, 1}, strides[4] = {1, 1, 1, 1};
        u->len_q = ll_dnn_tensor(&u->g, ID_LEN_Q, LL_I32, 4, dims, strides);
        u->len_k = ll_dnn_tensor(&u->g, ID_LEN_K, LL_I32, 4, dims, strides);
    }
    if (f->grad)
        add_backward(u, f->any_order);
    else
        add_forward(u, f->causal);
}

/* ---- plans ---- */

/* Bytes of ds that a batch of one has. */
static int64_t bytes_of_ds(const fused *f)
{
    return f->h * ll_ceil_div(f->t, 64) * 64 * ll_ceil_div(f->t, 128) * 128 * (int64_t)sizeof(bf16);
}

/* How much of the batch the backward pass takes at once: a divisor of it. */
static int64_t slice_of(const fused *f)
{
    int64_t b = f->b;
    while (b > 1 && (f->b % b || b * bytes_of_ds(f) > MOST_WORKSPACE)) b--;
    return b;
}

/* attention, its gradient, or attend, which has no gradient here. */
static bool is_attend(const ll_kcall *c)
{
    return c->n_in >= 3 && c->n_out == 2;
}
static ll_att att_of(const ll_kcall *c)
{
    return is_attend(c) ? ll_att_of(c->in, NULL, c->attr) : ll_att_packed(qkv_of(c));
}

static fused fused_of(const ll_kcall *c, bool any_order)
{
    ll_att p = att_of(c);
    bool grad = c->n_out == 1;
    bool padded = grad && p.t % WHOLE_TILE && ll_dnn_version() <= LAST_TO_PAD;
    fused f = {"heads", p.b,     p.t,     p.s,           p.h,  p.n,    p.d,
               p.q_row, p.k_row, p.v_row, p.ahead < p.s, grad, padded, any_order};
    if (grad && !any_order) f.b = slice_of(&f);
    return f;
}

static ll_err plan_of(const ll_kcall *c, const fused *f, ll_dnn_plan **out)
{
    TRY(ll_dnn_open(c->ctx));
    *out = ll_dnn_find(c->ctx, f, sizeof *f);
    if (*out) return LL_OK;
    build u = {};
    u.g.ctx = c->ctx;
    build_graph(&u, f);
    ll_dnn_wanted want = {.tensor_cores = true, .prefer = f->grad ? 0 : FAST_FORWARD};
    ll_err rc = u.g.rc;
    if (rc == LL_OK) rc = ll_dnn_make(&u.g, f, sizeof *f, &want, out);
    ll_dnn_free(&u.g);
    return rc;
}

/* Why cuDNN has no kernel, or NULL. */
static const char *refusal(const ll_kcall *c, const fused *f)
{
    ll_dnn_plan *p;
    if (f->d % 8 || f->d > WIDEST) return "cuDNN takes heads of 8, 16, 24 ... 128";
    if (!c->ctx || ll_dnn_open(c->ctx) != LL_OK) return NULL; /* the run tells */
    return plan_of(c, f, &p) == LL_OK ? ll_dnn_refused(p) : ll_error_text();
}

/* A person is told where it has none. */
static bool fits(const ll_kcall *c, bool any_order)
{
    heads s = heads_of(c);
    if (qkv_of(c)->dtype != LL_BF16 || lse_of(c)->dtype != LL_F32 || s.b * s.t * s.h == 0)
        return false;
    fused f = fused_of(c, any_order);
    if (any_order && (s.d % 8 || s.d > WIDEST)) return false;
    const char *why = refusal(c, &f);
    if (why)
        ll_kern_note("attention%s of %lld heads of %lld, %lld long, in bf16: %s: %s",
                     c->n_in > 1 ? "'s gradient" : "", (long long)s.h, (long long)s.d,
                     (long long)s.t,
                     any_order ? "summed in order, not in any" : "plain kernels, slow", why);
    return !why;
}

/* Causal and square, or all seen, keys in whole tiles; without a mask. */
extern "C" bool attend_cuda_dnn_fits(const ll_kcall *c)
{
    ll_att p = ll_att_of(c->in, NULL, c->attr);
    bool square = p.ahead == 0 && p.t == p.s, all = p.ahead >= p.s && p.s % WHOLE_TILE == 0;
    for (int i = 0; i < 3; i++)
        if (c->in[i].dtype != LL_BF16) return false;
    if (c->n_in > 3 || c->out[1].dtype != LL_F32 || p.d != p.e || !(square || all) ||
        p.b * p.t * p.h * p.s == 0)
        return false;
    fused f = fused_of(c, false);
    return !refusal(c, &f);
}

/* Where a run keeps what in its scratch: cuDNN's workspace, then delta, the lengths, dq's sums. */
typedef struct room {
    size_t delta, len, sum, bytes;
} room;

static size_t after(size_t at, size_t bytes)
{
    return (size_t)ll_round_up((int64_t)(at + bytes), LL_WORKSPACE_SLACK);
}

static size_t bytes_of_sum(const fused *f)
{
    return f->any_order ? (size_t)(f->b * f->h * f->t * f->d) * sizeof(float) : 0;
}

static room room_of(const fused *f, size_t workspace)
{
    room r = {after(0, workspace), 0, 0, 0};
    r.len = after(r.delta, (size_t)(f->grad ? f->b * f->h * f->t : 0) * sizeof(float));
    r.sum = after(r.len, (size_t)(f->padded ? f->b : 0) * sizeof(int32_t));
    r.bytes = after(r.sum, bytes_of_sum(f)) + LL_WORKSPACE_SLACK;
    return r;
}

static size_t scratch(const ll_kcall *c, bool any_order)
{
    fused f = fused_of(c, any_order);
    ll_dnn_plan *p;
    if (c->ctx) return plan_of(c, &f, &p) == LL_OK ? room_of(&f, ll_dnn_workspace(p)).bytes : 0;
    if (f.grad) ll_kern_note("no GPU here: attention's workspace is what cuDNN 9.14 asks for");
    return room_of(&f, f.grad && !any_order ? (size_t)(f.b * bytes_of_ds(&f)) : 0).bytes;
}

/* ---- runs ---- */

typedef struct binding {
    int n;
    int64_t ids[16];
    void *data[16];
    float scale, one, none;
} binding;

static void bind(binding *a, int64_t id, const void *data)
{
    a->ids[a->n] = id;
    a->data[a->n++] = (void *)data;
}

static void bind_parts(binding *a, const ll_att *p, const int64_t ids[3])
{
    const void *const data[3] = {p->q, p->k, p->v};
    for (int z = 0; z < 3; z++) bind(a, ids[z], data[z]);
}

static void bind_numbers(binding *a, const ll_att *p)
{
    a->scale = (float)p->scale;
    a->one = 1;
    a->none = -INFINITY;
    bind(a, ID_SCALE, &a->scale);
    if (p->ahead < p->s) bind(a, ID_NONE, &a->none); /* else the graph has no such number */
}

static const int64_t parts[3] = {ID_Q, ID_K, ID_V}, parts_grad[3] = {ID_DQ, ID_DK, ID_DV};

extern "C" ll_err attention_cuda_dnn(const ll_kcall *c)
{
    ll_dnn_plan *plan;
    binding a = {};
    fused f = fused_of(c, false);
    ll_att p = att_of(c);
    TRY(plan_of(c, &f, &plan));
    bind_numbers(&a, &p);
    bind_parts(&a, &p, parts);
    bind(&a, ID_O, c->out[0].data);
    bind(&a, ID_LSE, c->out[1].data);
    return ll_dnn_run(plan, c, a.n, a.ids, a.data, workspace_of(c));
}

static __global__ void fill_lengths(int32_t *len, int64_t n, int32_t t)
{
    GRID_STRIDE(i, n) len[i] = t;
}

/* The packed tensor from a row on. */
static ll_att packed_from(const ll_tensor *qkv, int64_t row)
{
    ll_tensor t = *qkv;
    t.data = (bf16 *)t.data + row * 3 * t.shape.d[3] * t.shape.d[4];
    return ll_att_packed(&t);
}

static ll_err run_slice(const ll_kcall *c, const fused *f, ll_dnn_plan *p, const room *r, int64_t i)
{
    binding a = {};
    char *scratch = (char *)workspace_of(c);
    int64_t rows = i * f->b * f->t, width = f->h * f->d;
    ll_att in = packed_from(&c->in[1], rows), out = packed_from(&c->out[0], rows);
    bind_numbers(&a, &in);
    bind(&a, ID_ONE, &a.one);
    bind(&a, ID_DO, (bf16 *)c->in[0].data + rows * width);
    bind_parts(&a, &in, parts);
    bind(&a, ID_O, (bf16 *)c->in[2].data + rows * width);
    bind(&a, ID_LSE, (float *)c->in[3].data + rows * f->h);
    bind(&a, ID_DELTA, scratch + r->delta);
    bind_parts(&a, &out, parts_grad);
    if (f->padded) {
        bind(&a, ID_LEN_Q, scratch + r->len);
        bind(&a, ID_LEN_K, scratch + r->len);
    }
    if (f->any_order) bind(&a, ID_SUM, scratch + r->sum);
    return ll_dnn_run(p, c, a.n, a.ids, a.data, scratch);
}

/* Engines add to what is in dq's sums, but for those that were seen to clear it themselves: cuDNN
 * 9.14's on an H200, for heads of 64. */
static ll_err clear_sum(const ll_kcall *c, const fused *f, const room *r)
{
    if (ll_dnn_version() / 100 == CLEARS_SUM && c->ctx->major == 9 && f->d == 64) return LL_OK;
    CUDA_TRY(cudaMemsetAsync((char *)workspace_of(c) + r->sum, 0, bytes_of_sum(f), stream_of(c)));
    return LL_OK;
}

static ll_err backward(const ll_kcall *c, bool any_order)
{
    ll_dnn_plan *p;
    fused f = fused_of(c, any_order);
    TRY(plan_of(c, &f, &p));
    room r = room_of(&f, ll_dnn_workspace(p));
    if (f.padded) TRY(launch_each(c, f.b, fill_lengths, (char *)workspace_of(c) + r.len, f.b, f.t));
    if (any_order) TRY(clear_sum(c, &f, &r));
    for (int64_t i = 0; i < heads_of(c).b / f.b; i++) TRY(run_slice(c, &f, p, &r, i));
    return LL_OK;
}

extern "C" ll_err attention_grad_cuda_dnn(const ll_kcall *c)
{
    return backward(c, false);
}
extern "C" ll_err attention_grad_cuda_any(const ll_kcall *c)
{
    return backward(c, true);
}

extern "C" bool attention_cuda_dnn_fits(const ll_kcall *c)
{
    return fits(c, false);
}
extern "C" bool attention_grad_cuda_any_fits(const ll_kcall *c)
{
    return c->any_order && fits(c, true);
}

extern "C" size_t attention_cuda_dnn_scratch(const ll_kcall *c)
{
    return scratch(c, false);
}
extern "C" size_t attention_grad_cuda_any_scratch(const ll_kcall *c)
{
    return scratch(c, true);
}
