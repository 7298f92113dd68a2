/* Any bytes as a safetensors file: the parser must refuse or accept, and what it accepts must hold
 * the promises of safetensors.c. */
#include "weights/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ll_st_file *f;
    if (ll_st_parse(data, size, size, "fuzz", &f) != LL_OK) {
        must(f == NULL && ll_error_text()[0]);
        return 0;
    }
    uint64_t total = 0;
    for (int i = 0; i < f->n_entries; i++) {
        const ll_st_entry *e = &f->entries[i];
        must(ll_st_find(f, e->name) == e);
        must(e->begin <= e->end && e->end <= size);
        total += e->end - e->begin;
        ll_dtype dtype;
        ll_shape shape;
        if (ll_st_want(f, e->name, &dtype, &shape) == LL_OK)
            must((uint64_t)ll_numel(&shape) * ll_dtype_bytes(dtype) == e->end - e->begin);
    }
    uint64_t header;
    memcpy(&header, data, 8);
    must(total + 8 + header == size);
    (void)ll_st_meta(f, "step");
    ll_st_close(f);
    return 0;
}
