/* recovery.h: a run that is started several times: which start this is, and what is noted of them.
 *
 * Who starts the ranks (cli/supervise.c) gives them a word, "--job ID;2;1763290000.250;data=3;OUT":
 * of which job they are, the how manieth start, when the first began, the mesh and the run's
 * folder. Starts, losses and ends are lines of RUN/recovery.jsonl:
 *
 *     {"step":120,"job":"9c31...","start":2,"event":"began","at":21.4,"text":"4 ranks ..."} */
#pragma once
#include "base/now.h"
#include "mesh/mesh.h"

typedef struct ll_start {
    char job[17];            /* hexadecimal */
    int number;              /* 0: the first */
    double began;            /* the first, by the clock on the wall */
    char mesh[LL_MESH_TEXT]; /* "": as the run says */
    const char *out;
} ll_start;

/* out stays in the text. */
ll_err ll_start_parse(const char *text, ll_start *s);
char *ll_start_print(const ll_start *s, ll_arena *arena);
/* The clock on the wall, in seconds. */
static inline double ll_wall_now(void)
{
    return ll_clock(CLOCK_REALTIME);
}

typedef enum ll_recovery_event {
    LL_BEGAN,  /* rank 0: opened, at this step */
    LL_HALTED, /* who ends a rank that a signal has stopped, before */
    LL_LOST,   /* rank 0 or 1: a rank is lost, as the watch reports it */
    LL_DONE,   /* rank 0: nothing is left to do, "0" or the status to end with */
    LL_ENDED   /* the supervisor: of how it ended */
} ll_recovery_event;

/* Adds a line. In one write, so that those of several processes do not mix. */
ll_err ll_recovery_note(const ll_start *s, ll_recovery_event event, int64_t step, const char *text);
void ll_recovery_remove(const ll_start *s); /* all lines */
/* Is there such a line of this start? *out is left alone where there is none. */
typedef struct ll_noted {
    int64_t step;
    double at; /* seconds since the first start began */
    char text[1024];
} ll_noted;
bool ll_recovery_find(const ll_start *s, ll_recovery_event event, ll_noted *out);
bool ll_recovery_began(const ll_start *s); /* did any start of the job before this one? */
