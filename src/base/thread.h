/* thread.h: threads of Loopline's own. Signals are the program's: its threads take them, not ours. */
#pragma once
#include <pthread.h>
#include <stdbool.h>

/* False: there can be none. */
bool ll_thread_start(pthread_t *out, void *(*run)(void *), void *arg);
