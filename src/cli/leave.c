/* leave.c: the beginning and the end of a command that has a communicator. */
#include "cli/launch.h"

#include "comm/comm.h"
#include "comm/job.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A rank with other words would take other ways, and the ranks wait for each other or, worse, take
 * each other's messages for their own. */
static ll_err check_words(ll_comm *c)
{
    uint32_t mine = ll_cli_words(), first = mine;
    TRY(ll_comm_broadcast(c, &first, 1, LL_I32, 0, &(ll_coll_opts){.site = "the words"}));
    ll_err rc = LL_OK;
    if (mine != first)
        rc = ll_raise(LL_E_ARG, __FILE__, __LINE__, __func__,
                      "the words after loopline are not those of rank 0: every rank must be "
                      "started with the same");
    return ll_comm_agree(c, rc);
}

ll_err ll_cli_open(const ll_comm_opts *opts, ll_comm **out)
{
    TRY(ll_comm_open(opts, out));
    if (ll_comm_size(*out) == 1) return LL_OK;
    ll_err rc = check_words(*out);
    if (rc == LL_OK) return LL_OK;
    rc = ll_cli_leave(*out, rc);
    *out = NULL;
    return rc;
}

ll_err ll_cli_leave(ll_comm *c, ll_err rc)
{
    char message[1024];
    if (rc != LL_OK && ll_comm_size(c) > 1 && ll_job_failure() == LL_FAILURE_ALONE) {
        /* Not the pause of ll_cli_fail: those that are told now do not print. */
        fprintf(stderr, "%s: rank %d: %s\n", ll_cli_name(), ll_comm_rank(c), ll_error_text());
        ll_comm_give_up(c);
        ll_job_abort(1);
        _exit(1);
    }
    snprintf(message, sizeof message, "%s", ll_error_message());
    ll_comm_close(c);
    if (rc != LL_OK && strcmp(message, ll_error_message())) FAIL(rc, "%s", message);
    return rc;
}
