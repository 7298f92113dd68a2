/* merge.h: which instructions of a program are one launch on a GPU. */
#pragma once
#include "machine/machine.h"

typedef struct ll_launch { /* an instruction, or several that are one */
    int n, room;
    int *instr;             /* [n], in the program's order */
    const ll_kcall **calls; /* [n] */
    void *table;            /* of several, in the GPU's memory: who opens it sets it */
} ll_launch;

/* The launches of instructions [from, to), in order; in the arena. Returns how many. An instruction
 * joins earlier ones of its kind (ll_many) where what lies between touches none of its memory, or
 * none of theirs. Nothing moves past a collective. */
int ll_merge(const ll_bound *instrs, int from, int to, ll_arena *arena, ll_launch *out);
