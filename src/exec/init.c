/* init.c: initial values of parameters and state, from (seed, name, element index) alone. */
#include "exec/exec.h"

#include "base/rng.h"

#include <math.h>

static double at(const ll_init *init, uint64_t seed, uint64_t stream, uint64_t i)
{
    switch (init->kind) {
    case LL_CONSTANT: return init->a;
    case LL_NORMAL: return init->a * ll_normal_at(seed, stream, i);
    case LL_UNIFORM: return init->a * (2.0 * (double)ll_uniform_at(seed, stream, i) - 1.0);
    default: return 0;
    }
}

void ll_init_fill(const ll_init *init, const char *name, uint64_t seed, const ll_type *type,
                  void *data)
{
    uint64_t stream = ll_stream(name, 0);
    int64_t n = ll_numel(&type->shape);
    ll_dtype t = type->dtype;
#pragma omp parallel for if (n > LL_PARALLEL_WORK)
    for (int64_t i = 0; i < n; i++) ll_store(data, t, i, at(init, seed, stream, (uint64_t)i));
}
