/* registry.c: all models: a program's own, then those of the lists that the build found in
 * src/model/: a file x.c exports ll_models_x, pointers to its models, ending with NULL. */
#include "model/model.h"

#include "base/err.h"

#include <string.h>

#define MODEL(file) extern const ll_model *const ll_models_##file[];
#include "model_list.inc"
#undef MODEL

enum { MODELS_MAX = 64 };

static const ll_model *own;

void ll_models_add(const ll_model *list)
{
    own = list;
}

const ll_model *const *ll_model_all(void)
{
    static const ll_model *const *const lists[] = {
#define MODEL(file) ll_models_##file,
#include "model_list.inc"
#undef MODEL
        NULL};
    static const ll_model *all[MODELS_MAX + 1];
    static _Thread_local bool done;
    if (done) return all; /* filling twice writes the same pointers: threads need no lock */
    int n = 0;
    for (const ll_model *m = own; m && n < MODELS_MAX / 2; m = m->next) all[n++] = m;
    for (int i = 0; lists[i]; i++)
        for (int j = 0; lists[i][j]; j++) {
            LL_ASSERT(n < MODELS_MAX);
            all[n++] = lists[i][j];
        }
    done = true;
    return all;
}

const ll_model *ll_model_find(const char *name)
{
    for (const ll_model *const *m = ll_model_all(); *m; m++)
        if (!strcmp((*m)->name, name)) return *m;
    return NULL;
}

int64_t ll_build_size(const ll_build *b, const char *name)
{
    const ll_size *lists[] = {b->sizes, b->model ? b->model->sizes : NULL};
    for (int k = 0; k < 2 && lists[k]; k++)
        for (int i = 0; i < LL_MAX_SIZES && lists[k][i].name; i++)
            if (!strcmp(lists[k][i].name, name)) return lists[k][i].value;
    LL_ASSERT(b->g && "that the model declares a size of that name");
    ll_graph_reject(b->g, "the model reads a size %s, which is not in its list of sizes", name);
    return 1;
}
