/* relay.h: a process that passes on what its child, a launcher of ranks, prints, and signals to it.
 * Launchers lose what cannot be written, and end as if it were: whoever stays knows. */
#pragma once
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

/* Before the child is there; *before: the signals that it blocks. alone: it hears nothing of the
 * terminal's, so that it is told of those too; its ranks are, by SIGTERM, rather than it. */
void ll_relay_begin(bool alone, sigset_t *before);
/* Until the child has ended, with *status: what comes from it goes to our standard output; from -1:
 * nothing does. Is all of it there? */
bool ll_relay(int from, pid_t child, const sigset_t *before, int *status);
/* To do something else, or begin again; ends this process where a signal came meanwhile. */
void ll_relay_end(const sigset_t *before);
