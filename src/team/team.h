/* team.h: a mesh of live ranks. A team has a communicator for each set of axes that some collective
 * needs. */
#pragma once
#include "comm/comm.h"
#include "mesh/mesh.h"
#include "program/program.h"

enum { LL_AXIS_SETS = 1 << LL_MAX_AXES };

/* What ranks tell each other of their programs. */
typedef struct ll_team_noted {
    uint32_t sum, n; /* checksum of a set's collectives, and how many they are */
} ll_team_noted;

typedef struct ll_team {
    ll_comm *c; /* of all its ranks */
    ll_mesh m;
    int rank;
    ll_comm *group[LL_AXIS_SETS]; /* NULL: not made yet */
    ll_team_noted noted[LL_AXIS_SETS];
    int64_t n_noted;  /* of all of them, whose order is one */
    ll_comm *pipe;    /* of the ranks along axis pipe, for messages alone; NULL: there are none */
    int64_t messages; /* checksums of what is sent, less those of what is received */
    int64_t n_message;
} ll_team;

/* Collective. c must have as many ranks as the mesh, and outlive the team. */
ll_err ll_team_open(ll_comm *c, const ll_mesh *m, ll_team **out);
void ll_team_close(ll_team *t); /* collective */
/* Bytes that its communicators hold by themselves. */
size_t ll_team_bytes(const ll_team *t);
/* Collective, if that set was not asked for before. */
ll_err ll_team_group(ll_team *t, ll_axes axes, ll_comm **out);

/* Local. Takes down the collectives of a program, one by one in the order of their starts. */
void ll_team_note(ll_team *t, const ll_program *p, const ll_instr *x);
/* Collective. Fails on every rank where they are not the same on all of a group; then makes the
 * communicators that they need. */
ll_err ll_team_compare(ll_team *t);

/* Copies from a whole tensor the piece of this type. */
void ll_piece_cut(const ll_type *type, const ll_piece *piece, const void *whole, void *data);
/* Collective. Makes whole, on every rank, what each holds a piece of: data of whole shape, of which
 * this rank has set its own piece; piece NULL: another rank gives it. */
ll_err ll_team_collect(ll_team *t, const ll_layout *l, const ll_type *whole, const void *piece,
                       void *data);
