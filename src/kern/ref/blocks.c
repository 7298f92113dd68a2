/* quantize_blocks and dequantize_blocks, reference: the largest magnitude of each block, then
 * every element over its scale; and back. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(quantize_blocks, dequantize_blocks)

typedef struct matrix { /* element (r, c) of it is x's r * down + c * across */
    int64_t rows, cols, down, across;
} matrix;

static matrix matrix_of(const ll_tensor *x, int64_t n_rows, bool transposed)
{
    int64_t rows = 1, cols = 1;
    for (int d = 0; d < x->shape.n; d++) *(d < n_rows ? &rows : &cols) *= x->shape.d[d];
    return transposed ? (matrix){cols, rows, 1, cols} : (matrix){rows, cols, cols, 1};
}

static void quantize(const ll_kcall *c, bool transposed, const ll_tensor *q,
                     const ll_tensor *scales)
{
    bool square = ((const ll_blocks_attr *)c->attr)->square;
    const ll_tensor *x = &c->in[0];
    matrix m = matrix_of(x, ((const ll_blocks_attr *)c->attr)->rows, transposed);
    float *scale = (float *)scales->data;
    for (int64_t i = 0; i < ll_numel(&scales->shape); i++) scale[i] = 0;
    for (int64_t i = 0; i < m.rows * m.cols; i++) {
        int64_t r = i / m.cols, k = i % m.cols;
        float *most = &scale[ll_block_at(square, m.rows, m.cols, r, k)];
        float v = fabsf((float)ll_at(x, r * m.down + k * m.across));
        if (!(v <= *most)) *most = v; /* NaN stays */
    }
    for (int64_t i = 0; i < ll_numel(&scales->shape); i++) scale[i] = ll_block_scale(scale[i]);
    for (int64_t i = 0; i < m.rows * m.cols; i++) {
        int64_t r = i / m.cols, k = i % m.cols;
        float by = 1 / scale[ll_block_at(square, m.rows, m.cols, r, k)];
        ll_set(q, i, (float)ll_at(x, r * m.down + k * m.across) * by);
    }
}

ll_err quantize_blocks_ref(const ll_kcall *c)
{
    quantize(c, ((const ll_blocks_attr *)c->attr)->transposed, &c->out[0], &c->out[1]);
    if (c->n_out > 2) quantize(c, true, &c->out[2], &c->out[3]);
    return LL_OK;
}

ll_err dequantize_blocks_ref(const ll_kcall *c)
{
    const ll_blocks_attr *a = (const ll_blocks_attr *)c->attr;
    matrix m = matrix_of(&c->in[0], a->rows, false);
    for (int64_t i = 0; i < m.rows * m.cols; i++) {
        int64_t at = ll_block_at(a->square, m.rows, m.cols, i / m.cols, i % m.cols);
        ll_set(&c->out[0], i, ll_at(&c->in[0], i) * ll_at(&c->in[1], at));
    }
    return LL_OK;
}
