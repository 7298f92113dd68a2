/* registry.c: all ops, from the lists that the build found in src/op/ and src/fuse/. */
#include "ir/op.h"

#define FUSIONS(file) OPS(file)
#define OPS(file) extern const ll_op *const ll_ops_##file[];
#include "op_list.inc"
#include "fuse_list.inc"
#undef OPS

enum { OPS_MAX = 256 };

const ll_op *const *ll_ops(void)
{
    static const ll_op *const *const lists[] = {
#define OPS(file) ll_ops_##file,
#include "op_list.inc"
#include "fuse_list.inc"
#undef OPS
        NULL};
    static const ll_op *all[OPS_MAX + 1];
    static _Thread_local bool done;
    if (done) return all; /* filling twice writes the same pointers: threads need no lock */
    int n = 0;
    for (int i = 0; lists[i]; i++)
        for (int j = 0; lists[i][j]; j++) {
            LL_ASSERT(n < OPS_MAX);
            all[n++] = lists[i][j];
        }
    done = true;
    return all;
}

const char *ll_work_name(ll_work w)
{
    static const char *const names[] = {
#define X(name, text) text,
        LL_WORKS(X)
#undef X
    };
    return names[w];
}

const ll_op *ll_op_find(const char *name)
{
    for (const ll_op *const *op = ll_ops(); *op; op++)
        if (!strcmp((*op)->name, name)) return *op;
    return NULL;
}
