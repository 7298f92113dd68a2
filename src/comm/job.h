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

/* Who knows of a failure, and who prints it. */
typedef enum ll_failure {
    LL_FAILURE_ALONE, /* this rank's alone, as far as it knows */
    LL_FAILURE_TELL,  /* known to all ranks and this one's: it prints it */
    LL_FAILURE_TOLD,  /* known to all ranks: another one prints it, or it has been printed */
} ll_failure;
/* All ranks know of the failure with this message: after ll_comm_agree, or a report of watch.h. */
void ll_job_share_failure(const char *message, ll_failure how);
/* This thread's most recent failure. */
ll_failure ll_job_failure(void);

/* Ends all ranks of the job, as far as the launcher lets us; returns where it could not, or where
 * there are no others: then exit with the status. */
void ll_job_abort(int status);

#ifdef __cplusplus
}
#endif
