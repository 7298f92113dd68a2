/* agree.c: one rank's failure becomes everyone's, so that no rank walks on into a collective that
 * the others will never reach. First the lowest rank that failed is found (a minimum over all; none
 * is the normal case, and costs one small all-reduce), then it tells what went wrong. */
#include "comm/comm_int.h"
#include "comm/job.h"

#include <limits.h>
#include <stdio.h>

typedef union notice {
    struct {
        int32_t code;
        char message[1020];
    };
    int32_t words[256]; /* as it is sent */
} notice;

/* *who: the lowest rank that failed, INT_MAX: none did. */
static ll_err find_and_tell(ll_comm *c, bool failed, int32_t *who, notice *n)
{
    static const ll_coll_opts site = {.site = "agree"};
    *who = failed ? ll_comm_rank(c) : INT_MAX;
    TRY(ll_comm_allreduce(c, who, 1, LL_I32, LL_REDUCE_MIN, &site));
    if (*who == INT_MAX) return LL_OK;
    return ll_comm_broadcast(c, n->words, sizeof n->words / sizeof *n->words, LL_I32, *who, &site);
}

ll_err ll_comm_agree(ll_comm *c, ll_err mine)
{
    if (!c || ll_comm_size(c) == 1) return mine;
    notice own = {.code = (int32_t)mine}, n;
    if (mine != LL_OK) snprintf(own.message, sizeof own.message, "%s", ll_error_message());
    n = own;
    int32_t who;
    ll_err rc = find_and_tell(c, mine != LL_OK, &who, &n);
    if (rc != LL_OK) {
        /* The ranks cannot talk any more. What failed here first is worth more than that. */
        if (mine != LL_OK) FAIL(mine, "%s", own.message);
        return ll_frame(rc, __FILE__, __LINE__, __func__);
    }
    if (who == INT_MAX) return LL_OK;
    bool me = who == ll_comm_rank(c);
    /* From a rank that took another way it may be another collective's message. */
    n.message[sizeof n.message - 1] = '\0';
    if (n.code == LL_OK) n.code = LL_E_COMM;
    ll_err code = me ? RAISE((ll_err)n.code, "%s", own.message)
                     : RAISE((ll_err)n.code, "rank %d: %s", c->t->world[who], n.message);
    ll_job_share_failure(ll_error_message(), me ? LL_FAILURE_TELL : LL_FAILURE_HEARD);
    return code;
}
