/* shape.c: the ops that move elements, on the cpu: moves (moves.h) of boxes of them; a fill, and a
 * pad's zeros, are moves of one element to many places. A move goes by rows along the result's last
 * dimension. Where the operand steps far along that one (transposes), blocks of it and of the
 * dimension along which the operand lies together are swapped. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"
#include "kern/moves.h"

LL_KERNELS(fill, reshape, transpose, broadcast, slice, pad, concat)

enum { FROM = LL_FROM, TO = LL_TO, BLOCK = 32 /* a swapped block's side */ };

typedef uint32_t word __attribute__((may_alias));  /* an element of 4 bytes, of any type */
typedef uint64_t dword __attribute__((may_alias)); /* of 8 */

typedef struct move {
    ll_kernel_move of;
    bool swaps;
    int64_t items; /* elements; or blocks along the last dimension but one, of everything outside */
} move;

/* ---- rows ---- */

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

/* n elements; a few are not worth a call. */
static void copy_row(char *y, const char *x, size_t bytes, int64_t n)
{
    if (bytes == 4 && n < 8)
        for (int64_t i = 0; i < n; i++) ((word *)(void *)y)[i] = ((const word *)(const void *)x)[i];
    else
        memcpy(y, x, (size_t)n * bytes);
}

/* Elements [from, to), by rows along the last dimension: copied, or one element repeated. */
static void move_rows(const ll_kernel_move *m, int64_t from, int64_t to)
{
    const ll_walk *w = &m->w;
    int last = w->n - 1;
    bool repeats = w->stride[FROM][last] == 0;
    int64_t n = w->size[last], before = last ? w->size[last - 1] : 1;
    size_t xs = last ? (size_t)w->stride[FROM][last - 1] * m->bytes : 0;
    size_t ys = last ? (size_t)w->stride[TO][last - 1] * m->bytes : 0;
    while (from < to) {
        int64_t row = from / n, skip = from % n, rows = 1, len = ll_min64(n - skip, to - from);
        const char *x =
            m->x + (size_t)(ll_walk_at(w, FROM, last, row) + !repeats * skip) * m->bytes;
        char *y = m->y + (size_t)(ll_walk_at(w, TO, last, row) + skip) * m->bytes;
        if (len == n) rows = ll_min64(before - row % before, (to - from) / n);
        from += rows * len;
        for (int64_t r = 0; r < rows; r++, x += xs, y += ys) {
            if (repeats)
                splat(y, x, m->bytes, len);
            else
                copy_row(y, x, m->bytes, len);
        }
    }
}

/* ---- swaps ---- */

/* y[j][i] = x[i][j] for 4 x 4 elements of 4 bytes; strides in elements. */
static inline void swap_4x4(const word *x, int64_t xs, word *y, int64_t ys)
{
    ll_quad v[LL_QUAD];
    EACH (i, LL_QUAD) v[i] = *(const ll_quad *)(x + i * xs);
    ll_quad_transpose(v);
    EACH (i, LL_QUAD) *(ll_quad *)(y + i * ys) = v[i];
}

/* y[j][i] = x[i][j] for n x m elements, of 4 bytes and of 8, two rows at a time. */
static void swap_4(const word *x, int64_t xs, word *y, int64_t ys, int64_t n, int64_t m)
{
    int64_t n4 = n / 4 * 4, m4 = m / 4 * 4;
    for (int64_t i = 0; i < n4; i += 4)
        for (int64_t j = 0; j < m4; j += 4) swap_4x4(x + i * xs + j, xs, y + j * ys + i, ys);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i < n4 ? m4 : 0; j < m; j++) y[j * ys + i] = x[i * xs + j];
}

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

static void swap_block(const void *x, int64_t xs, void *y, int64_t ys, int64_t n, int64_t m,
                       size_t bytes)
{
    if (bytes == 4) {
        swap_4(x, xs, y, ys, n, m);
    } else if (bytes == 8) {
        swap_8(x, xs, y, ys, n, m);
    } else {
        for (int64_t e = 0; e < n * m; e++)
            memcpy((char *)y + (size_t)(e % m * ys + e / m) * bytes,
                   (const char *)x + (size_t)(e / m * xs + e % m) * bytes, bytes);
    }
}

/* Items are (outer, block of j), j being the last dimension but one, and i the last. Blocks of
 * BLOCK x BLOCK touch as many lines of the operand as of the result. */
static void swap_items(const ll_kernel_move *m, int64_t from, int64_t to)
{
    const ll_walk *w = &m->w;
    int i_dim = w->n - 1, j_dim = w->n - 2;
    int64_t n = w->size[i_dim], all = w->size[j_dim], blocks = ll_ceil_div(all, BLOCK);
    int64_t xs = w->stride[FROM][i_dim], ys = w->stride[TO][j_dim];
    for (int64_t item = from; item < to; item++) {
        int64_t o = item / blocks, j = item % blocks * BLOCK;
        const char *x = m->x + (size_t)(ll_walk_at(w, FROM, j_dim, o) + j) * m->bytes;
        char *y = m->y + (size_t)(ll_walk_at(w, TO, j_dim, o) + j * ys) * m->bytes;
        for (int64_t i = 0; i < n; i += BLOCK)
            swap_block(x + (size_t)(i * xs) * m->bytes, xs, y + (size_t)i * m->bytes, ys,
                       ll_min64(BLOCK, n - i), ll_min64(BLOCK, all - j), m->bytes);
    }
}

/* ---- moves ---- */

/* How to go about a move: the result must lie together along the last dimension, and the operand
 * along some dimension, or be repeated; where nothing else does, along one of a single element. */
static void plan(move *m)
{
    ll_walk *w = &m->of.w;
    m->items = 1;
    for (int i = 0; i < w->n; i++) m->items *= w->size[i];
    if (!m->items) return;
    ll_walk_merge(w);
    int last = w->n - 1, d = last;
    if (w->stride[FROM][last] > 1)
        while (d >= 0 && w->stride[FROM][d] != 1) d--;
    if (d < 0 || (w->stride[TO][last] != 1 && w->size[last] > 1)) {
        w->size[w->n] = w->stride[FROM][w->n] = w->stride[TO][w->n] = 1;
        w->n++;
        return;
    }
    m->swaps = d != last;
    if (!m->swaps) return;
    m->items = m->items / w->size[d] * ll_ceil_div(w->size[d], BLOCK) / w->size[last];
    ll_walk_last(w, d);
    ll_walk_last(w, last - 1);
}

typedef struct moves {
    const move *m;
    int n, threads;
} moves;

/* What threads from first to end - 1 move. */
static void some_moves(const void *given, int64_t first, int64_t end)
{
    const moves *all = (const moves *)given;
    for (const move *m = all->m; m < all->m + all->n; m++) {
        int64_t from = m->items * first / all->threads, to = m->items * end / all->threads;
        if (from < to) (m->swaps ? swap_items : move_rows)(&m->of, from, to);
    }
}

static ll_err run(const ll_kcall *c, const ll_kernel_move *given, int n)
{
    static const uint64_t zero;
    int threads = ll_team(c, ll_numel(&c->out[0].shape));
    move m[LL_MOVES];
    for (int i = 0; i < n; i++) {
        m[i] = (move){.of = given[i]};
        if (!m[i].of.x) m[i].of.x = (const char *)&zero;
        plan(&m[i]);
    }
    ll_in_parts(threads, threads, some_moves, &(moves){m, n, threads});
    return LL_OK;
}

#define KERNEL(name)                                                                               \
    ll_err name##_cpu(const ll_kcall *c)                                                           \
    {                                                                                              \
        ll_kernel_move m[LL_MOVES];                                                                \
        return run(c, m, ll_##name##_moves(c, m));                                                 \
    }
KERNEL(slice)
KERNEL(pad)
KERNEL(concat)
KERNEL(reshape)
KERNEL(transpose)
KERNEL(broadcast)

ll_err fill_cpu(const ll_kcall *c)
{
    char value[8];
    ll_kernel_move m[LL_MOVES];
    ll_store(value, c->out[0].dtype, 0, ((const ll_fill_attr *)c->attr)->value);
    ll_reshape_moves(&(ll_kcall){.in = c->out, .out = c->out}, m);
    memset(m->w.stride[FROM], 0, sizeof m->w.stride[FROM]);
    m->x = value;
    return run(c, m, 1);
}
