/* hosts.h: the file of hosts that ranks may be started on (train --hosts), and who answers. */
#pragma once
#include "base/arena.h"

#include <signal.h>
#include <time.h>

typedef struct ll_host {
    char *name;
    int slots;
    bool dead;
} ll_host;

typedef struct ll_hosts {
    const char *file; /* NULL: none was given */
    ll_host *v;
    int n;
    struct timespec of; /* when the file was written that they are of */
    ll_arena *arena;
} ll_hosts;

/* Lines "NAME slots=2", "NAME:2" or "NAME"; # begins a remark. Known ones keep what is known of
 * them. */
ll_err ll_hosts_read(ll_hosts *h);
bool ll_hosts_changed(const ll_hosts *h); /* the file, since */
/* Does each host answer? By the launcher's own way to it; those that are known to live are asked
 * only where all are. signals: those that the launcher is started with. */
void ll_hosts_probe(ll_hosts *h, const sigset_t *signals, bool all);
int64_t ll_hosts_slots(const ll_hosts *h);              /* of those that answer */
bool ll_hosts_missing(const ll_hosts *h);               /* does one not answer? */
char *ll_hosts_words(const ll_hosts *h, int64_t ranks); /* for so many: "a:2,b:2" */
