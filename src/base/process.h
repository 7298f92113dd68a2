/* process.h: what the system says of this process, and of others of this host. */
#pragma once
#include "base/err.h"

double ll_process_age(void);   /* seconds that it has run; NaN: not known */
size_t ll_process_bytes(void); /* in memory now: all of it, libraries too; 0: not known */
size_t ll_process_peak(void);  /* the most that it ever had (VmHWM); 0: not known */
size_t ll_process_code(void);  /* of it the program and libraries, which come as they are run */

/* Seconds that Ctrl-Z or Slurm's suspend (SIGTSTP) has stopped this process for, from the time on
 * that they are counted. Who stops it otherwise (SIGSTOP) may tell: SIGUSR2 by sigqueue, with
 * milliseconds, before SIGCONT. */
void ll_process_count_stops(void);
double ll_process_stopped(void);

/* Seconds that cores of this host have worked since it started, for all and for this process. */
typedef struct ll_core_time {
    double all, own; /* all NaN: not known */
    double when;     /* ll_now */
} ll_core_time;
ll_core_time ll_core_time_now(void);
/* Of the cores that so many threads of this host could have had, what others had, who worked on so
 * many: 0 to 1; NaN: not known. */
double ll_others_share(double worked_on, double threads);
#define LL_OTHERS_NOTABLE 0.1 /* from this on people are told */

/* A process, for others that may look for it by /proc. */
typedef struct ll_process {
    int64_t pid;
    uint64_t ticks, space; /* when it started; of which space of numbers its own is */
} ll_process;
ll_process ll_process_self(void); /* pid 0: not known */
/* Its state as /proc has it, 'T': stopped by a signal; 0: it is gone, or cannot be seen from here.
 */
char ll_process_state(const ll_process *p);
