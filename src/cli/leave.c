/* leave.c: the end of a command that had a communicator. */
#include "cli/launch.h"

#include "comm/comm.h"
#include "comm/job.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

ll_err ll_cli_leave(ll_comm *c, ll_err rc)
{
    char message[1024];
    if (rc != LL_OK && ll_comm_size(c) > 1 && ll_job_failure() == LL_FAILURE_ALONE) {
        /* Not the pause of ll_cli_fail: those that are told now do not print. */
        fprintf(stderr, "%s: rank %d: %s\n", ll_cli_name(), ll_comm_rank(c), ll_error_text());
        ll_comm_give_up(c);
        ll_job_abort(ll_job_status(1));
        _exit(ll_job_status(1));
    }
    snprintf(message, sizeof message, "%s", ll_error_message());
    ll_comm_close(c);
    if (rc != LL_OK && strcmp(message, ll_error_message())) FAIL(rc, "%s", message);
    return rc;
}
