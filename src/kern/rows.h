/* rows.h: one element of a tensor; a tensor [*,c] seen as rows of c numbers. */
#pragma once
#include "kern/kern.h"

static inline double ll_at(const ll_tensor *t, int64_t i)
{
    return ll_load(t->data, t->dtype, i);
}
static inline void ll_set(const ll_tensor *t, int64_t i, double v)
{
    ll_store(t->data, t->dtype, i, v);
}
static inline int64_t ll_rows(const ll_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->shape.n - 1; i++) n *= t->shape.d[i];
    return n;
}
static inline int64_t ll_cols(const ll_tensor *t)
{
    return t->shape.n ? t->shape.d[t->shape.n - 1] : 1;
}
/* Labels come from data files: all are looked at before threads start. */
static inline ll_err ll_check_labels(const ll_tensor *label, int64_t of)
{
    const int32_t *at = (const int32_t *)label->data;
    for (int64_t r = 0; r < ll_numel(&label->shape); r++)
        CHECK(at[r] >= 0 && at[r] < of, LL_E_ARG, "label of row %ld is %d, expected 0 to %ld", r,
              at[r], of - 1);
    return LL_OK;
}
