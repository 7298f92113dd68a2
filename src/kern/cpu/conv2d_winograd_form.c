/* conv2d_winograd_form.c: the forms F(m, r). Their matrices are all there is to one: one text makes
 * every transform of them, vectors along channels. Points are 0, p, -p, ..: a row is the one before
 * it with odd columns negated. */
#include "kern/cpu/conv2d_winograd.h"

/* Element (i, j) of T, or of its transpose. */
LL_INLINE float entry(const float *t, const int rows, const int cols, const bool turned, int i,
                      int j)
{
    return turned ? t[j * rows + i] : t[i * cols + j];
}

/* Unrolled, zeros and ones cost nothing. */
LL_INLINE void add(ll_vec *sum, bool *any, float e, ll_vec x)
{
    if (e == 0) return;
    if (*any)
        *sum += x * e;
    else
        *sum = x * e;
    *any = true;
}

/* The sum over columns first, first + step, .. of row i. */
LL_INLINE ll_vec sum_of(const float *t, const int rows, const int cols, const bool turned,
                        const int i, const int first, const int step, const ll_vec *in)
{
    ll_vec sum = {0};
    bool any = false;
    LL_UNROLL for (int j = first; j < cols; j += step)
        add(&sum, &any, entry(t, rows, cols, turned, i, j), in[j]);
    return sum;
}

/* out = T in. Rows 2i - 1 and 2i (by_rows), or columns, are a pair, but for the first and last. */
LL_INLINE void apply(const float *t, const int rows, const int cols, const bool turned,
                     const bool by_rows, const ll_vec *in, ll_vec *out)
{
    if (by_rows) {
        out[0] = sum_of(t, rows, cols, turned, 0, 0, 1, in);
        LL_UNROLL for (int i = 1; i + 1 < rows; i += 2)
        {
            ll_vec even = sum_of(t, rows, cols, turned, i, 0, 2, in);
            ll_vec odd = sum_of(t, rows, cols, turned, i, 1, 2, in);
            out[i] = even + odd;
            out[i + 1] = even - odd;
        }
        out[rows - 1] = sum_of(t, rows, cols, turned, rows - 1, 0, 1, in);
        return;
    }
    /* Of a pair, the sum where it is read by even rows, the difference by odd. */
    ll_vec both[LL_WINOGRAD_MOST];
    both[0] = in[0];
    both[cols - 1] = in[cols - 1];
    LL_UNROLL for (int j = 1; j + 1 < cols; j += 2)
    {
        both[j] = in[j] + in[j + 1];
        both[j + 1] = in[j] - in[j + 1];
    }
    EACH (i, rows) {
        ll_vec sum = {0};
        bool any = false;
        EACH (j, cols) {
            bool ends = j == 0 || j == cols - 1;
            if (!ends && (j % 2 == 1) != (i % 2 == 0)) continue;
            float e = entry(t, rows, cols, turned, i, j);
            if (!ends && j % 2 == 0) e = -e; /* its own column is the second of the pair */
            add(&sum, &any, e, both[j]);
        }
        out[i] = sum;
    }
}

/* T X T' of n vectors; X [cols][cols], of which a list, where there is one, has the addresses. */
LL_INLINE void change_by(const float *t, const int rows, const int cols, const bool turned,
                         const bool by_rows, const float *const *list, const float *from,
                         int64_t from_row, int64_t from_col, float *to, int64_t to_row,
                         int64_t to_col, int64_t n)
{
    for (int64_t at = from_row; n > 0; n--, at += LL_LANES, from += LL_LANES, to += LL_LANES) {
        ll_vec half[LL_WINOGRAD_MOST][LL_WINOGRAD_MOST], in[LL_WINOGRAD_MOST],
            out[LL_WINOGRAD_MOST];
        EACH (j, cols) {
            EACH (i, cols)
                in[i] =
                    ll_vec_at(list ? list[i * cols + j] + at : from + i * from_row + j * from_col);
            apply(t, rows, cols, turned, by_rows, in, out);
            EACH (i, rows) half[i][j] = out[i];
        }
        EACH (i, rows) {
            apply(t, rows, cols, turned, by_rows, half[i], out);
            EACH (j, rows) ll_vec_to(to + i * to_row + j * to_col, out[j]);
        }
    }
}

#define CHANGE(name, t, rows, cols, turned, by_rows)                                               \
    static __attribute__((noinline)) void name(const float *from, int64_t fr, int64_t fc,          \
                                               float *to, int64_t tr, int64_t tc, int64_t n)       \
    {                                                                                              \
        change_by(t, rows, cols, turned, by_rows, NULL, from, fr, fc, to, tr, tc, n);              \
    }
#define LISTED(name, t, rows, cols, turned)                                                        \
    static __attribute__((noinline)) void name(const float *const *from, int64_t at, float *to,    \
                                               int64_t tr, int64_t tc, int64_t n)                  \
    {                                                                                              \
        change_by(t, rows, cols, turned, true, from, NULL, at, 0, to, tr, tc, n);                  \
    }
#define FORM(name, m, r, b, g, a)                                                                  \
    LISTED(name##_x, b, m + r - 1, m + r - 1, false)                                               \
    CHANGE(name##_w, g, m + r - 1, r, false, true)                                                 \
    CHANGE(name##_y, a, m, m + r - 1, false, false)                                                \
    LISTED(name##_dy, a, m + r - 1, m, true)                                                       \
    CHANGE(name##_dw, g, r, m + r - 1, true, false)                                                \
    static const ll_winograd name = {m, r, name##_x, name##_dy, name##_w, name##_y, name##_dw};

static const float b4[] = {1, 0, -1, 0, /* points 0 1 -1 and infinity */
                           0, 1, 1,  0, 0, -1, 1, 0, 0, 1, 0, -1};
static const float b6[] = {4, 0,  -5, 0, 1, 0, /* points 0 1 -1 2 -2 and infinity */
                           0, -4, -4, 1, 1, 0,  0,  4, -4, -1, 1, 0, 0,  -2, -1,
                           2, 1,  0,  0, 2, -1, -2, 1, 0,  0,  4, 0, -5, 0,  1};
#define SIXTH (1.f / 6)
#define PART (1.f / 24)
static const float g23[] = {1, 0, 0, .5f, .5f, .5f, .5f, -.5f, .5f, 0, 0, 1};
static const float a23[] = {1, 1, 1, 0, 0, 1, -1, -1};
static const float g43[] = {.25f,   0,         0,        -SIXTH, -SIXTH,   -SIXTH,
                            -SIXTH, SIXTH,     -SIXTH,   PART,   2 * PART, 4 * PART,
                            PART,   -2 * PART, 4 * PART, 0,      0,        1};
static const float a43[] = {1, 1, 1, 1, 1, 0, 0, 1, -1, 2, -2, 0,
                            0, 1, 1, 4, 4, 0, 0, 1, -1, 8, -8, 1};
static const float g25[] = {.25f,      0,         0,      0,         0,        -SIXTH,
                            -SIXTH,    -SIXTH,    -SIXTH, -SIXTH,    -SIXTH,   SIXTH,
                            -SIXTH,    SIXTH,     -SIXTH, PART,      2 * PART, 4 * PART,
                            8 * PART,  16 * PART, PART,   -2 * PART, 4 * PART, -8 * PART,
                            16 * PART, 0,         0,      0,         0,        1};
static const float a25[] = {1, 1, 1, 1, 1, 0, 0, 1, -1, 2, -2, 1};
FORM(f23, 2, 3, b4, g23, a23)
FORM(f43, 4, 3, b6, g43, a43)
FORM(f25, 2, 5, b6, g25, a25)

const ll_winograd *ll_winograd_for(const ll_conv_shape *v, int m)
{
    static const ll_winograd *const all[] = {&f23, &f43, &f25};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->m == m && all[i]->r == v->r && all[i]->r == v->s) return all[i];
    return NULL;
}
