/* launch.h: commands on several ranks: `-n 4` starts them through mpiexec, and a failure comes out
 * once, whoever of them it befell.
 *
 * A command with ranks does, in this order:
 *     TRY(ll_cli_launch(o->ranks, NULL));        returns in the ranks only
 *     ll_comm *c;
 *     TRY(ll_comm_open(&opts, &c));              ranks that were given other words are refused
 *     return ll_cli_leave(c, work(c, o));        closes c
 * and prints its results on rank 0 alone. */
#pragma once
#include "base/err.h"

#include <signal.h>

const char *ll_cli_program(void); /* "loopline", or the file of a program with its own models */
void ll_cli_call_it(const char *path); /* that file */
/* The program's own words, kept for ll_cli_launch; ll_main calls it. */
void ll_cli_launch_args(int argc, char *const *argv);
const char *ll_cli_name(void); /* "loopline train": of those words */
/* Ranks that are cared for: when one dies or stalls, or its host goes, all are started anew, with
 * --job among their words (supervise.c); the first SIGTERM or SIGINT reaches them as SIGUSR1. */
typedef struct ll_care {
    ll_err (*start)(int64_t ranks, const struct ll_care *care); /* ll_cli_supervise */
    int64_t restarts;  /* in a row, without progress in between; 0: none at all */
    const char *mesh;  /* that was asked for; "": data=RANKS */
    const char *out;   /* the run's folder, where its starts are noted (train/recovery.h) */
    const char *above; /* what it lies in, where that is removed if empty in the end; NULL: not */
    double timeout;    /* after which ranks that wait for one say that it is lost */
    const char *hosts; /* a file of hosts and slots, read again at each start; NULL: mpiexec's */
} ll_care;
enum { LL_RANKS_MOST = 1 << 20 }; /* as many as a mesh may have */
/* ranks as given by -n; 0: not given. Returns where this process is to do the work: nothing is to
 * be launched, or it is one of the ranks. Otherwise starts mpiexec, and ends when the job is over;
 * returns only if there is no process for it. Before MPI is initialised; ranks get the very words
 * of this program, -n among them. care: who stays meanwhile; NULL: ll_cli_wait. */
ll_err ll_cli_launch(int64_t ranks, const ll_care *care);
ll_err ll_cli_supervise(int64_t ranks, const ll_care *care);
/* A start that passes on what ranks print, and signals: to their launcher, with care to
 * the ranks, as SIGTERM, which their launcher would call a failure. Ends with its status; not with
 * 0 where what they print cannot be written. */
ll_err ll_cli_wait(int64_t ranks, const ll_care *care);
/* ll_cli_launch of those that take a mesh and no -n. Many more ranks than cores are not started
 * unless a launcher was asked to. */
ll_err ll_cli_launch_mesh(const char *mesh, int64_t ranks, const ll_care *care);
typedef struct ll_mpiexec {
    int64_t ranks;
    const char *hosts; /* "a:2,b:2"; NULL: the launcher's own */
    const char *job;   /* a word for the ranks; NULL: none */
    bool probe;        /* in place of the ranks: a program that does nothing */
} ll_mpiexec;
/* Starts one, away from the terminal's signals, that ends when this process does; signals: that it
 * blocks; out: a file, its standard output. */
pid_t ll_cli_spawn(const ll_mpiexec *how, const sigset_t *signals, int out);
int ll_cli_code(int status); /* of waitpid: an exit status, or 128 and the signal */
/* The exit status of a program that would end with code: in place of 0 an error, which is told,
 * where not all that it printed could be written (whole: what went there past stdio). */
int ll_cli_printed(bool whole, int code);
/* Starts the program anew with these words (after "loopline"), on so many ranks of so many threads,
 * waits for it, and returns what it wrote on its standard output, by way of a file in memory; the
 * caller frees. Its standard error is this one's. Fails where it does. Signals are passed on, and
 * end this process after it. */
ll_err ll_cli_job(int64_t ranks, int64_t threads, const char *const *words, int n, char **out,
                  size_t *bytes);
/* The mpiexec that would be used: LOOPLINE_MPIEXEC, or the one found at build. */
const char *ll_cli_mpiexec(void);
/* What the ranks get through the environment: may more ranks than cores run, how they wait, their
 * threads. Nothing that the user has set is changed. For tests that start mpiexec themselves. */
void ll_cli_launch_env(int64_t ranks);

/* Closes c (collective) and returns rc. Where the work failed on this rank alone the others wait in
 * collectives that it will never reach: then it prints the failure and ends them all. */
ll_err ll_cli_leave(ll_comm *c, ll_err rc);
/* Prints this thread's failure as text, once for all ranks, led by who (such as "loopline train");
 * ends the other ranks where it is this one's alone. Returns status. */
int ll_cli_fail(const char *who, const char *text, int status);
