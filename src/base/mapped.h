/* mapped.h: mapped files that somebody cuts short while they are used. To read what is gone would
 * end the process (SIGBUS) without a word; here zeros take its place, and the next check fails and
 * names the file. */
#pragma once
#include "base/err.h"

/* Handles SIGBUS: of files noted here; of others as before. */
void ll_mapped_guard(void);
/* A file is mapped, or is about to be no more. Where there is no memory to note it, it is not. */
void ll_mapped_add(const void *data, size_t size, const char *path);
void ll_mapped_remove(const void *data);
/* Were all bytes there that were read so far? Whoever reads noted files checks behind it. */
ll_err ll_mapped_check(void);
/* And are all files as long as they were? What is gone of a last page reads as zeros, without a
 * signal. Asks for each: once for many samples. */
ll_err ll_mapped_whole(void);
