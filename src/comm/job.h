/* job.h: this process as one of a job's, before, beside and after MPI: which rank its launcher made
 * it, which failure all ranks know of, and the end of all of them. Local, all of it. */
#pragma once
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What mpiexec or srun told this process by its environment: how many ranks it started (0: this
 * process was not started by one) and which this is (0 where unknown). */
int ll_job_size(void);
int ll_job_rank(void);

/* A failure with this message is known to all ranks (after ll_comm_agree, or a report of watch.h):
 * one of them, the teller, should print it. own: it befell the teller itself, and its message does
 * not say so. */
void ll_job_share_failure(const char *message, int teller, bool own);
/* The teller of this thread's most recent failure; -1: the failure is this rank's alone. */
int ll_job_teller(bool *own);

/* Ends all ranks of the job, as far as the launcher lets us; returns where it could not, or where
 * there are no others: then exit with the status. */
void ll_job_abort(int status);

#ifdef __cplusplus
}
#endif
