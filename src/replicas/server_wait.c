/* server_wait.c: a replica that waits for others at a server. */
#include "replicas/server_int.h"

typedef struct awaited {
    ll_server *x;
    bool (*over)(const ll_server *x, int64_t what);
    int64_t what;
} awaited;

static ll_err look(void *arg, ll_awaited *now)
{
    const awaited *w = (const awaited *)arg;
    now->what = "other replicas";
    now->site = "server of replicas";
    TRY(ll_rma_head(w->x->store, w->x->h));
    now->moved = (uint64_t)w->x->h->turns;
    now->done = w->over(w->x, w->what);
    return LL_OK;
}

ll_err ll_server_wait(ll_server *x, bool (*over)(const ll_server *x, int64_t what), int64_t what)
{
    awaited w = {x, over, what};
    return ll_comm_await(x->o.peers, look, &w);
}
