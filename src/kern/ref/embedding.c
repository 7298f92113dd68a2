/* embedding.c: rows of a table by index, and the transpose of it, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

ll_kernel embedding_ref, embedding_grad_ref;

/* The row of the table that index i names; -1: not in this part. */
static ll_err row_at(const ll_embedding_attr *a, const ll_tensor *index, int64_t i, int64_t v,
                     int64_t *row)
{
    int64_t k = ((const int32_t *)index->data)[i];
    *row = k - a->from;
    if (*row >= 0 && *row < v) return LL_OK;
    CHECK(a->part, LL_E_ARG, "index %lld is %lld, want 0 to %lld", (long long)i, (long long)k,
          (long long)v - 1);
    *row = -1;
    return LL_OK;
}

ll_err embedding_ref(const ll_kcall *c)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const ll_tensor *table = &c->in[0], *y = &c->out[0];
    int64_t n = ll_numel(&c->in[1].shape), v = table->shape.d[0], width = table->shape.d[1], row;
    for (int64_t i = 0; i < n; i++) {
        TRY(row_at(a, &c->in[1], i, v, &row));
        for (int64_t j = 0; j < width; j++)
            ll_set(y, i * width + j, row < 0 ? 0 : ll_at(table, row * width + j) + 0.0);
    }
    return LL_OK;
}

ll_err embedding_grad_ref(const ll_kcall *c)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const ll_tensor *dy = &c->in[0], *out = &c->out[0];
    int64_t n = ll_numel(&c->in[1].shape), v = out->shape.d[0], width = out->shape.d[1], row;
    for (int64_t i = 0; i < n; i++) TRY(row_at(a, &c->in[1], i, v, &row));
    for (int64_t k = 0; k < v; k++)
        for (int64_t j = 0; j < width; j++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++)
                if (((const int32_t *)c->in[1].data)[i] - a->from == k)
                    sum += ll_at(dy, i * width + j);
            ll_set(out, k * width + j, sum);
        }
    return LL_OK;
}
