/* Any bytes as a file of PyTorch's, or as a map of weights: readers must refuse or accept, and
 * every element that an accepted tensor reaches must lie in the bytes. */
#include "weights/pth.h"
#include "weights/weight_map.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static void check_tensor(const uint8_t *data, size_t size, const ll_weight *t)
{
    if (t->shape.n < 0 || t->dtype == LL_N_DTYPE || !ll_numel(&t->shape)) return;
    uint64_t last = 0;
    for (int d = 0; d < t->shape.n; d++)
        last += (uint64_t)(t->shape.d[d] - 1) * (uint64_t)t->stride[d];
    must(t->data >= data &&
         (last + 1) * ll_dtype_bytes(t->dtype) <= (uint64_t)(data + size - t->data));
}

static void as_file(const uint8_t *data, size_t size)
{
    ll_weights w = {.path = "fuzz", .arena = ll_arena_new()};
    if (ll_pth_parse(data, size, &w) == LL_OK)
        for (int i = 0; i < w.n; i++) check_tensor(data, size, &w.all[i]);
    else
        must(ll_error_text()[0]);
    ll_arena_free(w.arena);
}

static void as_map(const uint8_t *data, size_t size)
{
    static const ll_shape shapes[] = {{0, {0}},       {1, {6}},          {2, {4, 6}},
                                      {3, {2, 3, 4}}, {4, {3, 2, 2, 5}}, {2, {0, 3}}};
    ll_map *m;
    if (ll_map_parse((const char *)data, size, "fuzz", &m) != LL_OK) {
        must(m == NULL && ll_error_text()[0]);
        return;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        ll_arena *a = ll_arena_new();
        ll_mapped x;
        const int64_t zero[LL_MAX_DIMS] = {0};
        int64_t stride[LL_MAX_DIMS] = {0};
        if (ll_map_find(m, a, "h1.attn.weight", &shapes[i], &x) == LL_OK && x.n) {
            int64_t step = 1;
            for (int d = x.shape.n - 1; d >= 0; step *= x.shape.d[d--]) stride[d] = step;
            must(step * x.n == ll_numel(&shapes[i]) * x.line.n_ours);
            ll_map_places p = ll_map_place(&x, stride, &shapes[i], zero, a);
            int64_t far = p.first, which = 0;
            for (int d = 0; d < shapes[i].n && step; d++) {
                far += p.at[d][shapes[i].d[d] - 1];
                which += p.which[d][shapes[i].d[d] - 1];
            }
            must(!step || (far < step && which == x.n - 1));
        }
        ll_arena_free(a);
    }
    ll_map_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 4 && data[0] == 'P' && data[1] == 'K')
        as_file(data, size);
    else
        as_map(data, size);
    return 0;
}
