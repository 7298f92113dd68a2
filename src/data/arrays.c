/* arrays.c: tensors of safetensors files as columns of a table. */
#include "data/table.h"

#include "data/safetensors.h"

ll_err ll_read_safetensors(ll_dataset *d, const char *path)
{
    ll_bytes b;
    LL_OWN(ll_st_file) f = NULL;
    TRY(ll_dataset_map(d, path, &b));
    TRY(ll_st_parse(b.data, b.size, b.size, path, &f));
    for (int i = 0; i < f->n_entries; i++) {
        const ll_st_entry *e = &f->entries[i];
        ll_array a = {.name = e->name,
                      .type = {e->is.kind, e->is.kind ? e->is.bits / 8 : 0},
                      .n_dim = e->n_dims,
                      .rows = {.data = b.data + f->data_at + e->begin}};
        for (int k = 0; k < e->n_dims && k < LL_MAX_DIMS; k++) a.dim[k] = e->dims[k];
        TRY(ll_table_offer(d, &a));
    }
    return LL_OK;
}
