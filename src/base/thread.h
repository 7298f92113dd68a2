/* thread.h: threads of our own. Signals are the program's: its threads take them, not these. */
#pragma once
#include <pthread.h>
#include <stdbool.h>

/* False: there can be none. */
bool ll_thread_start(pthread_t *out, void *(*run)(void *), void *arg);
