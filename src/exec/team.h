/* team.h: a mesh of live ranks, and a program's collectives on it. A team has a communicator for
 * each set of axes that some collective needs. A talk is one collective instruction, prepared:
 * which elements of its operand go where, packed and unpacked where they do not lie in one piece.
 */
#pragma once
#include "comm/comm.h"
#include "mesh/mesh.h"
#include "program/program.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_team ll_team;
typedef struct ll_talk ll_talk;

/* Collective. c must have as many ranks as the mesh, and outlive the team. */
ll_err ll_team_open(ll_comm *c, const ll_mesh *m, ll_team **out);
void ll_team_close(ll_team *t); /* collective */
const ll_mesh *ll_team_mesh(const ll_team *t);
ll_comm *ll_team_comm(const ll_team *t); /* of all its ranks */
int ll_team_rank(const ll_team *t);
/* Bytes that its communicators hold by themselves. */
size_t ll_team_bytes(const ll_team *t);
/* Collective, if that set was not asked for before. */
ll_err ll_team_group(ll_team *t, ll_axes axes, ll_comm **out);

/* Collective over the team, in the order of the program. in and out are read anew in each run.
 * packing: room of x's packing. */
ll_err ll_talk_open(ll_team *t, ll_arena *arena, const ll_instr *x, const ll_tensor *in,
                    const ll_tensor *out, void *packing, ll_talk **talk);
/* Scratch that it needs while it is under way; and where that is. */
ll_err ll_talk_scratch(ll_talk *t, size_t *bytes);
void ll_talk_set_scratch(ll_talk *t, void *scratch);
ll_err ll_talk_start(ll_talk *t);
ll_err ll_talk_wait(ll_talk *t);
/* Takes down the collectives of a program, one by one in the order of their starts; then,
 * collective over the team: fails on every rank where they are not the same on all of a group. */
void ll_team_note(ll_team *t, const ll_program *p, const ll_instr *x);
ll_err ll_team_compare(ll_team *t);

/* Copies from a whole tensor the piece of this type; and a piece into its whole. */
void ll_piece_cut(const ll_type *type, const ll_piece *piece, const void *whole, void *data);
void ll_piece_paste(const ll_type *type, const ll_piece *piece, const void *data, void *whole);
/* Collective. Makes whole, on every rank, what each holds a piece of: data of whole shape, of which
 * this rank has set its own piece. */
ll_err ll_team_collect(ll_team *t, const ll_layout *l, const ll_type *whole, const void *piece,
                       void *data);

#ifdef __cplusplus
}
#endif
