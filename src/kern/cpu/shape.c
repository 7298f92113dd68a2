/* shape.c: the ops that move elements, on the cpu. All but fill come down to a list of equal
 * copies: rows of some bytes, from one place each to another (slice, pad, concat: rows at fixed
 * strides; broadcast, transpose: rows where an odometer over the outer dimensions points).
 * Transposes whose last dimension moves swap two dimensions block by block instead. */
#include "base/spec.h"
#include "kern/attr.h"
#include "kern/cpu/vec.h"
#include "kern/kern.h"

#include <omp.h>

ll_kernel fill_cpu, transpose_cpu, broadcast_cpu, slice_cpu, pad_cpu, concat_cpu;

enum { MAX_IN = 16, CACHE_LINE = 64, BLOCK = 32 /* a transposed block's side */ };

typedef uint32_t word __attribute__((may_alias));  /* an element of 4 bytes, of any type */
typedef uint64_t dword __attribute__((may_alias)); /* of 8 */

static int threads_for(const ll_kcall *c, int64_t elements, int64_t items)
{
    int64_t t = elements < LL_PARALLEL_WORK ? 1 : c->threads;
    return (int)(t < items ? t : items < 1 ? 1 : items);
}

/* ---- rows at fixed strides; a NULL source means zeros ---- */

typedef struct rows {
    int64_t n;
    size_t bytes, from_stride, to_stride;
    const char *from;
    char *to;
} rows;

static void copy_rows(const rows *r, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        char *to = r->to + (size_t)i * r->to_stride;
        if (r->from)
            memcpy(to, r->from + (size_t)i * r->from_stride, r->bytes);
        else
            memset(to, 0, r->bytes);
    }
}

/* Part t of all: a range of the rows, or of a single row's bytes. */
static void copy_part(const rows *r, int t, int all)
{
    if (r->n >= all) {
        copy_rows(r, r->n * t / all, r->n * (t + 1) / all);
        return;
    }
    size_t lines = r->bytes / CACHE_LINE, begin = lines * (size_t)t / (size_t)all * CACHE_LINE;
    size_t end = t + 1 == all ? r->bytes : lines * (size_t)(t + 1) / (size_t)all * CACHE_LINE;
    rows part = *r;
    part.to += begin;
    part.bytes = end - begin;
    if (part.from) part.from += begin;
    copy_rows(&part, 0, r->n);
}

static void copy_all(const ll_kcall *c, const rows *r, int n)
{
    int threads = threads_for(c, ll_numel(&c->out[0].shape), c->threads);
    if (threads <= 1) {
        for (int i = 0; i < n; i++) copy_rows(&r[i], 0, r[i].n);
        return;
    }
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < n; i++) copy_part(&r[i], omp_get_thread_num(), omp_get_num_threads());
}

/* Elements before and after dimension dim, and bytes of an element. */
static int64_t outer(const ll_shape *s, int64_t dim)
{
    int64_t n = 1;
    for (int64_t i = 0; i < dim; i++) n *= s->d[i];
    return n;
}

static size_t inner_bytes(const ll_tensor *t, int64_t dim)
{
    size_t n = ll_dtype_bytes(t->dtype);
    for (int64_t i = dim + 1; i < t->shape.n; i++) n *= (size_t)t->shape.d[i];
    return n;
}

ll_err slice_cpu(const ll_kcall *c)
{
    const ll_range_attr *a = c->attr;
    size_t inner = inner_bytes(&c->in[0], a->dim);
    rows r = {.n = outer(&c->in[0].shape, a->dim),
              .bytes = (size_t)(a->to - a->from) * inner,
              .from_stride = (size_t)c->in[0].shape.d[a->dim] * inner,
              .to_stride = (size_t)(a->to - a->from) * inner,
              .from = (const char *)c->in[0].data + (size_t)a->from * inner,
              .to = c->out[0].data};
    copy_all(c, &r, 1);
    return LL_OK;
}

ll_err pad_cpu(const ll_kcall *c)
{
    const ll_range_attr *a = c->attr;
    size_t inner = inner_bytes(&c->in[0], a->dim);
    size_t before = (size_t)a->from * inner, after = (size_t)a->to * inner;
    size_t middle = (size_t)c->in[0].shape.d[a->dim] * inner, all = before + middle + after;
    int64_t n = outer(&c->in[0].shape, a->dim);
    char *to = c->out[0].data;
    rows r[3] = {{n, before, 0, all, NULL, to},
                 {n, middle, middle, all, c->in[0].data, to + before},
                 {n, after, 0, all, NULL, to + before + middle}};
    copy_all(c, r, 3);
    return LL_OK;
}

ll_err concat_cpu(const ll_kcall *c)
{
    const ll_range_attr *a = c->attr;
    size_t inner = inner_bytes(&c->out[0], a->dim), all = (size_t)c->out[0].shape.d[a->dim] * inner;
    rows r[MAX_IN];
    LL_ASSERT(c->n_in <= MAX_IN);
    char *to = c->out[0].data;
    for (int i = 0; i < c->n_in; i++) {
        size_t bytes = (size_t)c->in[i].shape.d[a->dim] * inner;
        r[i] = (rows){outer(&c->out[0].shape, a->dim), bytes, bytes, all, c->in[i].data, to};
        to += bytes;
    }
    copy_all(c, r, c->n_in);
    return LL_OK;
}

/* ---- fill ---- */

/* n copies of an element of size 1, 2, 4 or 8. */
static void splat(char *to, const char *value, size_t size, int64_t n)
{
    if (size == 4) {
        word v, *p = (word *)(void *)to;
        memcpy(&v, value, 4);
        for (int64_t i = 0; i < n; i++) p[i] = v;
    } else if (size == 8) {
        dword v, *p = (dword *)(void *)to;
        memcpy(&v, value, 8);
        for (int64_t i = 0; i < n; i++) p[i] = v;
    } else if (size == 1) {
        memset(to, *value, (size_t)n);
    } else {
        for (int64_t i = 0; i < n; i++) memcpy(to + (size_t)i * size, value, size);
    }
}

ll_err fill_cpu(const ll_kcall *c)
{
    const ll_fill_attr *a = c->attr;
    const ll_tensor *y = &c->out[0];
    int64_t n = ll_numel(&y->shape);
    size_t size = ll_dtype_bytes(y->dtype);
    char value[8];
    ll_store(value, y->dtype, 0, a->value);
    int threads = threads_for(c, n, n);
    if (threads <= 1) {
        splat(y->data, value, size, n);
        return LL_OK;
    }
#pragma omp parallel num_threads(threads)
    {
        int t = omp_get_thread_num(), all = omp_get_num_threads();
        int64_t from = n * t / all, to = n * (t + 1) / all;
        splat((char *)y->data + (size_t)from * size, value, size, to - from);
    }
    return LL_OK;
}

/* ---- broadcast and transpose: dimensions of the result, and how far each steps in the operand */

typedef struct walk {
    int n;
    int64_t size[LL_MAX_DIMS], stride[LL_MAX_DIMS]; /* stride 0: repeated */
    size_t bytes;                                   /* of an element */
    const char *x;
    char *y;
} walk;

/* The result's dimensions without those of 1; neighbours that step as one dimension become one. */
static ll_err make_walk(const ll_kcall *c, const char *spec, walk *w)
{
    ll_spec s;
    TRY(ll_spec_parse(spec, &s));
    int64_t stride[LL_MAX_DIMS + 1];
    const ll_shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    stride[x->n] = 1;
    for (int i = x->n - 1; i >= 0; i--) stride[i] = stride[i + 1] * x->d[i];
    w->n = 0;
    for (int i = 0; i < y->n; i++) {
        int64_t step = s.from[i] < 0 ? 0 : stride[s.from[i] + 1], d = y->d[i];
        int last = w->n - 1;
        if (d == 1) continue;
        if (last >= 0 && w->stride[last] == step * d) {
            w->size[last] *= d;
            w->stride[last] = step;
        } else {
            w->size[w->n] = d;
            w->stride[w->n++] = step;
        }
    }
    if (w->n == 0) {
        w->size[0] = w->stride[0] = 1;
        w->n = 1;
    }
    w->bytes = ll_dtype_bytes(c->in[0].dtype);
    w->x = c->in[0].data;
    w->y = c->out[0].data;
    return LL_OK;
}

/* Where in the operand row number `row` starts, counting over the first n dimensions. */
static int64_t row_start(const walk *w, int n, int64_t row)
{
    int64_t at = 0;
    for (int i = n - 1; i >= 0; i--) {
        at += row % w->size[i] * w->stride[i];
        row /= w->size[i];
    }
    return at;
}

/* n elements; short rows are not worth a call. */
static void copy_row(char *y, const char *x, size_t bytes, int64_t n)
{
    if (bytes == 4 && n < 16)
        for (int64_t i = 0; i < n; i++) ((word *)(void *)y)[i] = ((const word *)(const void *)x)[i];
    else if (bytes == 8 && n < 8)
        for (int64_t i = 0; i < n; i++)
            ((dword *)(void *)y)[i] = ((const dword *)(const void *)x)[i];
    else
        memcpy(y, x, (size_t)n * bytes);
}

/* Rows along the last dimension, which is either copied or one element repeated. */
static void walk_rows(const walk *w, int64_t from, int64_t to)
{
    int last = w->n - 1;
    int64_t n = w->size[last], at = 0, left = 0; /* rows until the dimension before wraps */
    for (int64_t r = from; r < to; r++) {
        if (left-- == 0) {
            at = row_start(w, last, r);
            left = last ? w->size[last - 1] - r % w->size[last - 1] - 1 : 0;
        }
        const char *x = w->x + (size_t)at * w->bytes;
        char *y = w->y + (size_t)(r * n) * w->bytes;
        if (w->stride[last] == 0)
            splat(y, x, w->bytes, n);
        else
            copy_row(y, x, w->bytes, n);
        if (last) at += w->stride[last - 1];
    }
}

/* y[j][i] = x[i][j] for 4 x 4 elements of 4 bytes; strides in elements. */
static inline void swap_4x4(const float *x, int64_t xs, float *y, int64_t ys)
{
    ll_quad v[LL_QUAD];
    EACH (i, LL_QUAD) v[i] = *(const ll_quad *)(x + i * xs);
    ll_quad_transpose(v);
    EACH (i, LL_QUAD) *(ll_quad *)(y + i * ys) = v[i];
}

/* y[j][i] = x[i][j] for n x m elements of 8 bytes, two rows at a time. */
static void swap_8(const dword *x, int64_t xs, dword *y, int64_t ys, int64_t n, int64_t m)
{
    int64_t i = 0;
    for (; i + 2 <= n; i += 2)
        for (int64_t j = 0; j < m; j++) {
            y[j * ys + i] = x[i * xs + j];
            y[j * ys + i + 1] = x[(i + 1) * xs + j];
        }
    for (int64_t j = 0; i < n && j < m; j++) y[j * ys + i] = x[i * xs + j];
}

/* y[j][i] = x[i][j] for an n x m block. */
static void swap_block(const char *x, int64_t xs, char *y, int64_t ys, int64_t n, int64_t m,
                       size_t bytes)
{
    if (bytes == 8) {
        swap_8((const dword *)(const void *)x, xs, (dword *)(void *)y, ys, n, m);
        return;
    }
    int64_t n4 = bytes == 4 ? n / 4 * 4 : 0, m4 = bytes == 4 ? m / 4 * 4 : 0;
    for (int64_t i = 0; i < n4; i += 4)
        for (int64_t j = 0; j < m4; j += 4)
            swap_4x4((const float *)x + i * xs + j, xs, (float *)y + j * ys + i, ys);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i < n4 ? m4 : 0; j < m; j++)
            memcpy(y + (size_t)(j * ys + i) * bytes, x + (size_t)(i * xs + j) * bytes, bytes);
}

/* The result's last dimension i steps by xs in the operand, its dimension d = j by 1; the rest is
 * outer. Blocks of BLOCK x BLOCK touch as many lines of the operand as of the result. */
typedef struct swap {
    walk outer;
    int64_t outer_to[LL_MAX_DIMS];      /* strides of the outer dimensions in the result */
    int64_t n_outer, n, m, xs, ys, n_j; /* sizes of i and j; blocks along j */
} swap;

static void make_swap(const walk *w, int d, swap *s)
{
    int64_t to[LL_MAX_DIMS + 1];
    to[w->n] = 1;
    for (int i = w->n - 1; i >= 0; i--) to[i] = to[i + 1] * w->size[i];
    s->outer = *w;
    s->outer.n = 0;
    s->n_outer = 1;
    for (int i = 0; i < w->n - 1; i++) {
        if (i == d) continue;
        s->outer.size[s->outer.n] = w->size[i];
        s->outer.stride[s->outer.n] = w->stride[i];
        s->outer_to[s->outer.n++] = to[i + 1];
        s->n_outer *= w->size[i];
    }
    s->n = w->size[w->n - 1];
    s->xs = w->stride[w->n - 1];
    s->m = w->size[d];
    s->ys = to[d + 1];
    s->n_j = (s->m + BLOCK - 1) / BLOCK;
}

/* Items are (outer, block of j). */
static void swap_items(const swap *s, int64_t from, int64_t to)
{
    size_t bytes = s->outer.bytes;
    for (int64_t item = from; item < to; item++) {
        int64_t o = item / s->n_j, j = item % s->n_j * BLOCK;
        int64_t m = s->m - j < BLOCK ? s->m - j : BLOCK, y_at = 0, rest = o;
        for (int i = s->outer.n - 1; i >= 0; i--) {
            y_at += rest % s->outer.size[i] * s->outer_to[i];
            rest /= s->outer.size[i];
        }
        const char *x = s->outer.x + (size_t)(row_start(&s->outer, s->outer.n, o) + j) * bytes;
        char *y = s->outer.y + (size_t)(y_at + j * s->ys) * bytes;
        for (int64_t i = 0; i < s->n; i += BLOCK) {
            int64_t n = s->n - i < BLOCK ? s->n - i : BLOCK;
            swap_block(x + (size_t)(i * s->xs) * bytes, s->xs, y + (size_t)i * bytes, s->ys, n, m,
                       bytes);
        }
    }
}

static ll_err move(const ll_kcall *c, const char *spec)
{
    walk w;
    int64_t all = ll_numel(&c->out[0].shape);
    if (all == 0) return LL_OK;
    TRY(make_walk(c, spec, &w));
    swap s;
    int d = w.n - 1; /* the dimension along which the operand lies contiguous */
    if (w.stride[d] > 1)
        while (w.stride[d] != 1) d--;
    bool rows = d == w.n - 1;
    if (!rows) make_swap(&w, d, &s);
    int64_t items = rows ? all / w.size[d] : s.n_outer * s.n_j;
    int threads = threads_for(c, all, items);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int t = omp_get_thread_num(), parts = omp_get_num_threads();
        int64_t from = items * t / parts, to = items * (t + 1) / parts;
        if (rows)
            walk_rows(&w, from, to);
        else
            swap_items(&s, from, to);
    }
    return LL_OK;
}

ll_err transpose_cpu(const ll_kcall *c)
{
    return move(c, ((const ll_spec_attr *)c->attr)->spec);
}

ll_err broadcast_cpu(const ll_kcall *c)
{
    return move(c, ((const ll_broadcast_attr *)c->attr)->spec);
}
