/* team_int.h: a collective of a program, planned: what team.c works out and runs over comm/, and
 * gpu_talk.c runs between GPUs. */
#pragma once
#include "exec/team.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A range of one dimension of a tensor, all of the others: rows of bytes. */
typedef struct slab {
    size_t at, row, stride; /* bytes: of the first row, of a row, between rows */
    int64_t rows;
} slab;
size_t ll_slab_bytes(const slab *s);

struct ll_talk {
    ll_collective kind;
    ll_comm *c;
    int size, me;
    const ll_tensor *in, *out; /* [n] */
    int n;                     /* more than one: a bundle */
    ll_coll_call call;
    /* What goes to each rank, and what comes from each: ranges of in and out, [n][size]; where they
     * begin in what is packed, in bytes. */
    slab *give, *take;
    size_t *give_at, *take_at;
    size_t given;        /* bytes of what is packed to be sent */
    char *packing;       /* NULL: works where operand or result lie */
    ll_request *request; /* under way */
};

#ifdef __cplusplus
}
#endif
