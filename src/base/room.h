/* room.h: memory that is wanted for a while, by several at different times. */
#pragma once
#include "base/arena.h"

typedef struct ll_want {
    size_t bytes;
    int from, to; /* moments between which it is in use, both among them */
    size_t at;    /* where it lies: found by ll_room_plan */
} ll_want;

/* Gives each its place, so that no two that are in use at one moment overlap; returns the bytes of
 * all together. */
size_t ll_room_plan(ll_want *wants, int n, ll_arena *arena);
