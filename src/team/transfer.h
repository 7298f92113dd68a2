/* transfer.h: a program's collective, planned: which elements of its operands go where, packed and
 * unpacked where they do not lie in one piece. Run here over comm/; a machine may run the same plan
 * by other means. */
#pragma once
#include "comm/codec.h"
#include "comm/subsets.h"
#include "team/team.h"

/* A range of one dimension of a tensor, all of the others: rows of bytes. */
typedef struct ll_strip {
    size_t at, row, stride; /* bytes: of the first row, of a row, between rows */
    int64_t rows;
} ll_strip;

typedef struct ll_transfer {
    ll_collective kind;
    ll_team *team;
    const void **attrs; /* [n] */
    ll_comm *c;
    int size, me;
    const ll_tensor *in, *out; /* [n] */
    int n;                     /* more than one: a bundle */
    ll_coll_call call;
    /* What goes to each rank, and what comes from each: ranges of in and out, [n][size]; where they
     * begin in what is packed, in bytes. */
    ll_strip *give, *take;
    size_t *give_at, *take_at;
    size_t given;            /* bytes of what is packed to be sent */
    char *packing;           /* NULL: works where operand or result lie */
    size_t room;             /* bytes of packing that are its own: of sums, which ranks share */
    const ll_memory *memory; /* where all of it lies; NULL: this process's */
    ll_codec *codec;         /* of sums: what they go through; NULL: none */
    ll_subsets *subsets;     /* of sums over other ranks each; NULL: all are over the same */
    ll_request *request;     /* under way */
} ll_transfer;

/* Local, where the team has compared the program. Plans it. in and out are read anew in each
 * run. packing: room of x's packing. */
ll_err ll_transfer_open(ll_team *team, ll_arena *arena, const ll_instr *x, const ll_tensor *in,
                        const ll_tensor *out, void *packing, const ll_memory *memory,
                        ll_transfer **made);
/* What a start packs, and a wait unpacks: strips of tensors, by who can reach both. pack false:
 * from packed to data. taken: where what others gave lies. */
typedef ll_err ll_strip_copy(void *context, char *packed, char *data, const ll_strip *s, bool pack);
ll_err ll_transfer_pack(const ll_transfer *t, ll_strip_copy *copy, void *context);
ll_err ll_transfer_unpack(const ll_transfer *t, ll_strip_copy *copy, void *context);
char *ll_transfer_taken(const ll_transfer *t);

/* ---- over comm/ ---- */
/* Collective. Sums of several tensors are packed in memory that the ranks of a node share. */
ll_err ll_transfer_prepare(ll_transfer *t, ll_arena *arena);
ll_err ll_transfer_reserve(ll_transfer *t); /* local, then: memory that is not this process's */
/* Local. What a sum goes through, which then is over when it has started; NULL: nothing. */
ll_err ll_transfer_compress(ll_transfer *t, const char *codec, uint64_t seed);
void ll_transfer_close(ll_transfer *t);
/* Scratch that it needs while it is under way; and where that is. */
ll_err ll_transfer_scratch(ll_transfer *t, size_t *bytes);
void ll_transfer_set_scratch(ll_transfer *t, void *scratch);
ll_err ll_transfer_start(ll_transfer *t, int64_t step); /* step: what codecs draw by */
ll_err ll_transfer_wait(ll_transfer *t);
