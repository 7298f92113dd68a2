/* job.h: this process as one of a job's, before, beside and after MPI: which rank its launcher made
 * it, which failure all ranks know of, and the end of all of them. Local, all of it. */
#pragma once
#include "base/err.h"

#include <sys/types.h>

/* What mpiexec or srun told this process by its environment: how many ranks it started (0: this
 * process was not started by one) and which this is (0 where unknown). */
int ll_job_size(void);
int ll_job_rank(void);
/* Which rank a process is whose environment, "NAME=VALUE" with a zero after each, is this; -1: not
 * known. */
int ll_job_rank_in(const char *environment, size_t bytes);

/* A hash of the words that this process was started with, which must be the same on all ranks; 0
 * where nobody has set it. */
void ll_job_set_words(uint32_t hash);
uint32_t ll_job_words(void);

/* How the mpiexec of this MPI is told on which hosts: "--host". */
const char *ll_job_hosts_option(void);
/* Before MPI begins on this host: Open MPI keeps a job's files in a folder that all jobs of a user
 * share, which the last one removes; one that begins just then fails, without a word where it is
 * told to be quiet. This job gets one of its own. */
void ll_job_own_folder(void);
/* Of a process that was killed, which could not remove it. */
void ll_job_remove_folder(pid_t pid);

/* Who knows of a failure, and who prints it. */
typedef enum ll_failure {
    LL_FAILURE_ALONE, /* this rank's alone, as far as it knows */
    LL_FAILURE_TELL,  /* known to all ranks, and befell this one, which prints it */
    LL_FAILURE_HEARD, /* known to all ranks, and befell another one, which prints it */
    LL_FAILURE_LATE,  /* the same, but that one may be gone: print it if the job goes on */
    LL_FAILURE_TOLD,  /* known to all ranks, and printed already */
} ll_failure;
/* All ranks know of the failure with this message: by ll_comm_agree, or by the watch. */
void ll_job_share_failure(const char *message, ll_failure how);
/* A rank died, stalled or never came: no failure of this one's, and starting all anew may help. */
void ll_job_lose(void);
/* Somebody who would do so waits for this job's end (cli/supervise.c). */
void ll_job_set_cared(void);
bool ll_job_is_cared(void);
/* Something befell another rank that this process did: whoever notes what befalls a job does so. */
void ll_job_set_note(void (*note)(const char *text));
void ll_job_note(const char *text);
/* What to exit with after a failure: the status, or what tells that one of the two. */
enum { LL_JOB_LOST = 69 };
int ll_job_status(int status);
/* This thread's most recent failure. */
ll_failure ll_job_failure(void);

/* Ends all ranks of the job, as far as the launcher lets us; returns where it could not, or where
 * there are no others: then exit with the status. */
void ll_job_abort(int status);
/* The same without a word to MPI, which may be busy with beginning. */
void ll_job_abort_unbegun(int status);
