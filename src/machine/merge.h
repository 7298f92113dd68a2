/* merge.h: which instructions of a program are one launch on a GPU, and which launches may run
 * beside each other. */
#pragma once
#include "machine/machine.h"

enum { LL_BRANCHES = 3 }; /* streams that launches are queued in, the one that computes first */

typedef struct ll_launch { /* an instruction, or several that are one */
    int n, room;
    int *instr;             /* [n], in the program's order */
    const ll_kcall **calls; /* [n] */
    void *table;            /* of several, in the GPU's memory: who opens it sets it */
    int branch;
    int after
        [LL_BRANCHES]; /* of each branch the last launch that it waits for, from 1 on; 0: none */
    bool awaited;      /* a launch in another branch waits for it */
} ll_launch;

/* The launches of instructions [from, to), in order; in the arena. Returns how many. An instruction
 * joins earlier ones of its kind (ll_many) where what lies between touches none of its memory, or
 * none of theirs. Nothing moves past a collective. */
int ll_merge(const ll_bound *instrs, int from, int to, ll_arena *arena, ll_launch *out);

/* Gives launches [from, to) branches, and says what they wait for besides those before them in
 * theirs: whatever writes what they touch, or touches what they write, before them. */
void ll_branches(const ll_bound *instrs, ll_launch *launches, int from, int to);
