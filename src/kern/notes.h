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

typedef struct ll_noting { /* note: NULL: nobody is told */
    void (*note)(void *to, const char *line);
    void *to;
} ll_noting;

/* From now on this is told what this thread's calls of kernels note. Returns what was. */
ll_noting ll_kern_notes_to(ll_noting to);
void ll_kern_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

ll_kern_notes *ll_kern_notes_in(struct ll_arena *arena);
/* Of ll_kern_notes: each line once. */
void ll_kern_notes_add(void *notes, const char *line);
/* Those that were not printed yet. */
void ll_kern_notes_print(ll_kern_notes *notes, FILE *to);

#ifdef __cplusplus
}
#endif
