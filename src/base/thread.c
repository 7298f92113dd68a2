/* thread.c: a thread is started with every signal blocked. */
#include "base/thread.h"

#include <signal.h>

bool ll_thread_start(pthread_t *out, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(out, NULL, run, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}
