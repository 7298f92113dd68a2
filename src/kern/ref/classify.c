/* classify, reference: by rows, logits made as often as they are wanted. */
#include "kern/attr.h"
#include "kern/kern.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel classify_ref;

static double logit(const ll_kcall *c, int64_t row, int64_t v)
{
    int64_t k = ll_cols(&c->in[0]);
    double sum = c->n_in == 5 ? ll_at(&c->in[4], v) : 0;
    for (int64_t i = 0; i < k; i++)
        sum += ll_at(&c->in[0], row * k + i) * ll_at(&c->in[1], v * k + i);
    return sum;
}

static double sum_from(const ll_kcall *c, int64_t row, int64_t n, double from)
{
    double sum = 0;
    for (int64_t v = 0; v < n; v++) sum += exp(logit(c, row, v) - from);
    return sum;
}

ll_err classify_ref(const ll_kcall *c)
{
    const ll_tensor *e = &c->out[0];
    int64_t rows = ll_numel(&c->in[3].shape), n = ll_cols(e);
    for (int64_t r = 0; r < rows; r++) {
        int64_t label = ((const int32_t *)c->in[2].data)[r];
        CHECK(label >= 0 && label < n, LL_E_ARG, "label of row %lld is %lld, want 0 to %lld",
              (long long)r, (long long)label, (long long)n - 1);
        double picked = logit(c, r, label), from = picked, sum = sum_from(c, r, n, from);
        if (sum > LL_CLASSIFY_MOST) {
            for (int64_t v = 0; v < n; v++) from = fmax(from, logit(c, r, v));
            sum = sum_from(c, r, n, from);
        }
        for (int64_t v = 0; v < n; v++)
            ll_set(e, r * n + v, exp(logit(c, r, v) - from) - (v == label ? sum : 0));
        ll_set(&c->out[1], r, ll_at(&c->in[3], r) / sum);
        ll_set(&c->out[2], r, log(sum) + from - picked);
    }
    return LL_OK;
}
