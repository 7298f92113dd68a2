/* notes.h: what a person should know of how kernels work in this run, such as that an op takes a
 * slow path. Kernels add notes while a program is made; whoever starts a run prints them. */
#pragma once
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Adds a line, once. */
void ll_kern_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Those that were not printed yet. */
void ll_kern_notes_print(FILE *to);

#ifdef __cplusplus
}
#endif
