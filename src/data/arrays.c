/* arrays.c: tensors of safetensors files as columns of a table. */
#include "data/table.h"

#include "data/safetensors.h"

/* The types of safetensors that have numbers of whole bytes. */
static ll_elem st_type(const char *name)
{
    static const struct {
        const char *name;
        ll_elem type;
    } types[] = {{"F64", {'f', 8}}, {"F32", {'f', 4}}, {"F16", {'f', 2}}, {"BF16", {'b', 2}},
                 {"I64", {'i', 8}}, {"I32", {'i', 4}}, {"I16", {'i', 2}}, {"I8", {'i', 1}},
                 {"U64", {'u', 8}}, {"U32", {'u', 4}}, {"U16", {'u', 2}}, {"U8", {'u', 1}},
                 {"BOOL", {'?', 1}}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name)) return types[i].type;
    return (ll_elem){0};
}

ll_err ll_read_safetensors(ll_dataset *d, const char *path)
{
    ll_bytes b;
    LL_OWN(ll_st_file) f = NULL;
    TRY(ll_dataset_map(d, path, &b));
    TRY(ll_st_parse(b.data, b.size, b.size, path, &f));
    for (int i = 0; i < f->n_entries; i++) {
        const ll_st_entry *e = &f->entries[i];
        ll_array a = {.name = e->name,
                      .type = st_type(e->type),
                      .n_dim = e->n_dims,
                      .rows = {.data = b.data + f->data_at + e->begin}};
        for (int k = 0; k < e->n_dims && k < LL_MAX_DIMS; k++) a.dim[k] = e->dims[k];
        TRY(ll_table_offer(d, &a));
    }
    return LL_OK;
}
