/* notes.h: what a person should know of how kernels work in this run, such as that an op takes a
 * slow path. Kernels note it when they are asked whether they fit a call and what room it takes;
 * whoever asks says where notes go (lowering: ll_lower_opts.notes), and whoever starts a run prints
 * them. */
#pragma once
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ll_arena;
typedef struct ll_kern_notes ll_kern_notes;

ll_kern_notes *ll_kern_notes_in(struct ll_arena *arena);
/* From now on notes that this thread's calls of kernels make go there; NULL: are dropped. Returns
 * where they went. */
ll_kern_notes *ll_kern_notes_to(ll_kern_notes *to);
/* Adds a line, once. */
void ll_kern_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Those that were not printed yet. */
void ll_kern_notes_print(ll_kern_notes *notes, FILE *to);

#ifdef __cplusplus
}
#endif
