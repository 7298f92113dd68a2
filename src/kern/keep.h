/* keep.h: of a head's keys and values those that are attended to stay (heavy hitters: Zhang et al.,
 * H2O, 2023). An entry is its mass, what all queries so far have attended to it, and its token's
 * place; -1: none's. There are `rows` of them and `fresh` new ones behind: the newer half of rows
 * are the newest, the others those of most mass, of equal ones the later. As long as all have room
 * the row of a token is its place. */
#pragma once
#include "kern/both.h"

#include <stdint.h>

typedef struct ll_entries {
    float *mass, *place; /* [rows + fresh] */
    int64_t rows, fresh;
} ll_entries;

/* Leaves out what has no room, and moves new entries to rows that are free. */
static inline LL_BOTH void ll_entries_keep(const ll_entries *e, int64_t newest)
{
    int64_t all = e->rows + e->fresh, n = 0, free = 0;
    float recent = (float)(newest - (e->rows - e->rows / 2)); /* this place and those before go */
    for (int64_t i = 0; i < all; i++) n += e->place[i] >= 0;
    for (; n > e->rows; n--) {
        int64_t least = -1;
        for (int64_t i = 0; i < all; i++) {
            if (e->place[i] < 0 || e->place[i] > recent) continue;
            if (least < 0 || e->mass[i] < e->mass[least] ||
                (e->mass[i] == e->mass[least] && e->place[i] < e->place[least]))
                least = i;
        }
        if (least < 0) break;
        e->place[least] = -1;
    }
    for (int64_t i = e->rows; i < all; i++) {
        if (e->place[i] < 0) continue;
        while (free < e->rows && e->place[free] >= 0) free++;
        if (free == e->rows) break;
        e->place[free] = e->place[i], e->mass[free] = e->mass[i];
    }
}

/* The place of old entry j, if it is one. */
static inline LL_BOTH float ll_entry_place(float place, int64_t j, int64_t at)
{
    return place >= 0 && place < (float)at && j < at ? place : -1;
}
