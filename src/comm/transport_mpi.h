/* transport_mpi.h: shared by the two files of the MPI transport. */
#pragma once
#include "comm/transport.h"

#include <mpi.h>

typedef struct mpi_message {
    struct mpi_message *next; /* while spare */
    MPI_Request request;
    bool is_recv;
    /* Of a library collective: arguments that must stay until it is over, and a result that is
     * copied to its place then. */
    int *counts;
    int n_count; /* room */
    char *temp;
    size_t temp_bytes; /* room */
    void *copy_to;
    size_t copy_bytes;
} mpi_message;

typedef struct mpi_transport {
    ll_transport t;
    MPI_Comm comm, node_comm; /* node_comm: NULL handle until the first share */
    int *node, *world, *node_ranks;
    mpi_message *spare;
} mpi_transport;

/* Windows (transport_mpi_window.c), as transport.h has them. */
ll_err ll_mpi_expose(ll_transport *t, size_t bytes, void **window);
void ll_mpi_conceal(ll_transport *t, void *window);
ll_err ll_mpi_reach(ll_transport *t, void *window, int rank, bool alone);
ll_err ll_mpi_leave(ll_transport *t, void *window, int rank);
ll_err ll_mpi_move(ll_transport *t, void *window, int rank, size_t at, const char *from, char *to,
                   size_t bytes);
void ll_mpi_serve(ll_transport *t);

/* Starts the library's own collective as the message x. */
ll_err ll_mpi_library(mpi_transport *m, mpi_message *x, const ll_library_call *call);
/* The types and operators MPI lacks, made by the first use; let go of before MPI ends. */
void ll_mpi_types_free(void);

ll_err ll_mpi_error(int rc, const char *file, int line, const char *func, const char *call);
#define MPI_TRY(call)                                                                              \
    do {                                                                                           \
        int rc_ = (call);                                                                          \
        if (rc_ != MPI_SUCCESS) return ll_mpi_error(rc_, __FILE__, __LINE__, __func__, #call);     \
    } while (0)
