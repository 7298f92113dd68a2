/* transport_mpi_library.c: the MPI library's errors, and its own collectives, non-blocking. Their
 * arguments are ints; types and operators that MPI does not have (bf16, f16) are pairs of bytes and
 * functions of ours. */
#include "base/types.h"
#include "comm/comm.h"
#include "comm/transport_mpi.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

ll_err ll_mpi_error(int rc, const char *file, int line, const char *func, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (MPI_Error_string(rc, text, &n) != MPI_SUCCESS) snprintf(text, sizeof text, "code %d", rc);
    for (char *p = text; *p; p++)
        if (*p == '\n') *p = ' ';
    return ll_raise(LL_E_COMM, file, line, func, "%.*s: %s", (int)strcspn(call, "("), call, text);
}

/* ---- types and operators ---- */

enum { N_REDUCE = 3, N_HALF = 2 };

static struct {
    bool made;
    MPI_Datatype half[N_HALF]; /* bf16, f16 */
    MPI_Op op[N_REDUCE];       /* of these */
} ours;

static void fold(void *in, void *inout, const int *n, const MPI_Datatype *t, ll_reduce op)
{
    const void *both[] = {in, inout};
    ll_fold(inout, both, 2, *n, *t == ours.half[0] ? LL_BF16 : LL_F16, op);
}

static void sum(void *in, void *inout, int *n, MPI_Datatype *t)
{
    fold(in, inout, n, t, LL_REDUCE_SUM);
}

static void max(void *in, void *inout, int *n, MPI_Datatype *t)
{
    fold(in, inout, n, t, LL_REDUCE_MAX);
}

static void min(void *in, void *inout, int *n, MPI_Datatype *t)
{
    fold(in, inout, n, t, LL_REDUCE_MIN);
}

static ll_err make_types(void)
{
    static MPI_User_function *const functions[N_REDUCE] = {sum, max, min};
    if (ours.made) return LL_OK;
    for (int h = 0; h < N_HALF; h++) {
        MPI_TRY(MPI_Type_contiguous(2, MPI_BYTE, &ours.half[h]));
        MPI_TRY(MPI_Type_commit(&ours.half[h]));
    }
    for (int r = 0; r < N_REDUCE; r++) MPI_TRY(MPI_Op_create(functions[r], 1, &ours.op[r]));
    ours.made = true;
    return LL_OK;
}

void ll_mpi_types_free(void)
{
    for (int h = 0; ours.made && h < N_HALF; h++) MPI_Type_free(&ours.half[h]);
    for (int r = 0; ours.made && r < N_REDUCE; r++) MPI_Op_free(&ours.op[r]);
    ours.made = false;
}

static ll_err type_of(ll_dtype t, MPI_Datatype *out)
{
    switch (t) {
    case LL_F64: *out = MPI_DOUBLE; return LL_OK;
    case LL_F32: *out = MPI_FLOAT; return LL_OK;
    case LL_I32: *out = MPI_INT32_T; return LL_OK;
    case LL_U8: *out = MPI_UINT8_T; return LL_OK;
    default: break;
    }
    TRY(make_types());
    *out = ours.half[t == LL_F16];
    return LL_OK;
}

static MPI_Op op_of(ll_dtype t, ll_reduce op)
{
    if (t == LL_BF16 || t == LL_F16) return ours.op[op];
    return op == LL_REDUCE_SUM ? MPI_SUM : op == LL_REDUCE_MAX ? MPI_MAX : MPI_MIN;
}

/* ---- arguments ---- */

/* Counts and places, kept in the message: what this rank sends, then what it receives. */
typedef struct places {
    int *send, *send_at, *recv, *recv_at; /* [size] */
} places;

static ll_err room_for_places(mpi_message *x, int size, places *out)
{
    if (x->n_count < 4 * size) {
        int *larger = (int *)realloc(x->counts, sizeof(int) * 4 * (size_t)size);
        CHECK(larger, LL_E_MEM, "not enough memory for the counts of %d ranks", size);
        x->counts = larger;
        x->n_count = 4 * size;
    }
    *out = (places){x->counts, x->counts + size, x->counts + 2 * size, x->counts + 3 * size};
    return LL_OK;
}

static void blocks(const ll_coll_spec *s, int *counts, int *at)
{
    for (int b = 0; b < s->size; b++) {
        int64_t from, to;
        ll_coll_block(s, b, &from, &to);
        counts[b] = (int)(to - from);
        at[b] = (int)from;
    }
}

/* All-to-all: in OUT everything that comes lies packed, in order of the rank it comes from. */
static ll_err exchange_places(const ll_coll_spec *s, int me, places *p)
{
    for (int i = 0; i < s->size; i++) {
        int64_t data, out, other, sent = ll_coll_between(s, me, i, &data, &other);
        int64_t received = ll_coll_between(s, i, me, &other, &out);
        CHECK(data + sent <= INT_MAX && out + received <= INT_MAX, LL_E_COMM,
              "the MPI library's all-to-all moves at most 2^31 - 1 elements per rank");
        p->send[i] = (int)sent;
        p->send_at[i] = (int)data;
        p->recv[i] = (int)received;
        p->recv_at[i] = (int)out;
    }
    return LL_OK;
}

/* ---- the collectives ---- */

/* MPI leaves the result at the start of its buffer, we want it in the rank's block: by way of a
 * temporary one. */
static ll_err reduce_scatter(mpi_transport *m, mpi_message *x, const ll_library_call *call,
                             const places *p, MPI_Datatype type)
{
    size_t elem = ll_dtype_bytes(call->dtype), bytes = (size_t)p->recv[m->t.rank] * elem;
    if (x->temp_bytes < bytes) {
        char *larger = (char *)realloc(x->temp, bytes);
        CHECK(larger, LL_E_MEM, "not enough memory for %zu bytes of a reduce-scatter", bytes);
        x->temp = larger;
        x->temp_bytes = bytes;
    }
    MPI_TRY(MPI_Ireduce_scatter(call->data, x->temp, p->recv, type, op_of(call->dtype, call->op),
                                m->comm, &x->request));
    x->copy_to = (char *)call->data + (size_t)p->recv_at[m->t.rank] * elem;
    x->copy_bytes = bytes;
    return LL_OK;
}

ll_err ll_mpi_library(mpi_transport *m, mpi_message *x, const ll_library_call *call)
{
    const ll_coll_spec *s = call->spec;
    MPI_Datatype type;
    places p;
    TRY(type_of(call->dtype, &type));
    TRY(room_for_places(x, s->size, &p));
    CHECK(
        s->count <= INT_MAX, LL_E_COMM,
        "%ld elements: the MPI library's collectives take at most 2^31 - 1: use another algorithm",
        s->count);
    int n = (int)s->count;
    switch (s->coll) {
    case LL_COLL_ALLREDUCE:
        MPI_TRY(MPI_Iallreduce(MPI_IN_PLACE, call->data, n, type, op_of(call->dtype, call->op),
                               m->comm, &x->request));
        return LL_OK;
    case LL_COLL_BROADCAST:
        MPI_TRY(MPI_Ibcast(call->data, n, type, s->root, m->comm, &x->request));
        return LL_OK;
    case LL_COLL_BARRIER: MPI_TRY(MPI_Ibarrier(m->comm, &x->request)); return LL_OK;
    case LL_COLL_ALLTOALL:
        TRY(exchange_places(s, m->t.rank, &p));
        MPI_TRY(MPI_Ialltoallv(call->data, p.send, p.send_at, type, call->out, p.recv, p.recv_at,
                               type, m->comm, &x->request));
        return LL_OK;
    case LL_COLL_REDUCE_SCATTER:
        blocks(s, p.recv, p.recv_at);
        return reduce_scatter(m, x, call, &p, type);
    default: break;
    }
    blocks(s, p.recv, p.recv_at);
    MPI_TRY(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, call->data, p.recv, p.recv_at, type, m->comm,
                            &x->request));
    return LL_OK;
}
