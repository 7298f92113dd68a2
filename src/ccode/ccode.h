/* ccode.h: a graph as a C program that needs libc and libm alone.
 *
 * The graph is lowered as for machine ref, after ops that have no loops of their own here became
 * others that have, and elementwise ones chains; each instruction becomes a function of plain
 * loops, its tensors places in one block of memory, which begins with the content of weights.bin.
 *
 *     DIR/model.h      the memory's size, where inputs and result lie, model_run
 *     DIR/model.c      the loops
 *     DIR/main.c       a program around them: cc -O2 -o model model.c main.c -lm
 *     DIR/weights.bin  parameters, statistics and constants
 *
 * Numbers are f32 and i32; sums are made in double. Every function is local. */
#pragma once
#include "program/program.h"

/* The content of an input that stays, by name. */
typedef ll_err ll_ccode_input(void *user, const char *name, void *data, size_t bytes);

/* Writes the files; g has one result and, along its batch, one sample. An op that no loops are
 * known for is LL_E_ARG and named, before anything is written. */
ll_err ll_ccode_write(const ll_graph *g, const char *folder, ll_ccode_input *input, void *user);
