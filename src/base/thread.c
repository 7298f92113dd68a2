/* thread.c: a thread is started with every signal blocked, but those that its own doing brings: a
 * handler of these (mapped.c; who crashes says so) is to see them. */
#include "base/thread.h"

#include <signal.h>

bool ll_thread_start(pthread_t *out, void *(*run)(void *), void *arg)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(out, NULL, run, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}
