/* api.c: the collectives of loopline.h: arguments checked, and made into calls. */
#include "comm/comm.h"

#include "base/types.h"

/* Fails, naming those there are. */
static ll_err find_algorithm(ll_coll coll, const char *name, const ll_algo **out)
{
    *out = ll_algo_find(coll, name);
    if (*out) return LL_OK;
    LL_OWN(ll_arena) arena = ll_arena_new();
    FAIL(LL_E_ARG, "no %s by the name of %s; there are: %s", ll_coll_name(coll), name,
         ll_algo_names(arena, coll, NULL, false));
}

static ll_err make_call(ll_comm *c, ll_coll coll, const void *data, int64_t n, ll_dtype t,
                        ll_reduce op, const ll_coll_opts *opts, ll_coll_call *out)
{
    CHECK(c, LL_E_ARG, "no communicator");
    CHECK(n >= 0 && (data || n == 0), LL_E_ARG, "%s of %ld elements%s", ll_coll_name(coll), n,
          data ? "" : " without data");
    CHECK((int)t >= 0 && t < LL_N_DTYPE, LL_E_ARG, "unknown type %d", (int)t);
    bool eight = t == LL_F8_E4M3 || t == LL_F8_E5M2;
    CHECK(!eight || coll == LL_COLL_ALLGATHER || coll == LL_COLL_ALLTOALL ||
              coll == LL_COLL_BROADCAST,
          LL_E_ARG, "%s of %s: 8-bit floats can be moved but not summed: use bf16 or f32",
          ll_coll_name(coll), ll_dtype_name(t));
    CHECK((int)op >= LL_REDUCE_SUM && op <= LL_REDUCE_MIN, LL_E_ARG, "unknown reduction %d",
          (int)op);
    *out = (ll_coll_call){
        .spec = {.coll = coll, .count = n}, .data = (void *)data, .dtype = t, .op = op};
    if (!opts) return LL_OK;
    CHECK(opts->segment >= 0, LL_E_ARG, "segments of %ld elements", opts->segment);
    out->spec.segment = opts->segment;
    out->site = opts->site;
    return opts->algorithm ? find_algorithm(coll, opts->algorithm, &out->algo) : LL_OK;
}

ll_err ll_comm_allreduce(ll_comm *c, void *data, int64_t n, ll_dtype t, ll_reduce op,
                         const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_ALLREDUCE, data, n, t, op, opts, &call));
    return ll_comm_run(c, &call);
}

ll_err ll_comm_allreduce_start(ll_comm *c, void *data, int64_t n, ll_dtype t, ll_reduce op,
                               const ll_coll_opts *opts, ll_request **out)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_ALLREDUCE, data, n, t, op, opts, &call));
    return ll_comm_start(c, &call, out);
}

ll_err ll_comm_reduce_scatter(ll_comm *c, void *data, int64_t n, ll_dtype t, ll_reduce op,
                              const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_REDUCE_SCATTER, data, n, t, op, opts, &call));
    return ll_comm_run(c, &call);
}

ll_err ll_comm_allgather(ll_comm *c, void *data, int64_t n, ll_dtype t, const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_ALLGATHER, data, n, t, LL_REDUCE_SUM, opts, &call));
    return ll_comm_run(c, &call);
}

ll_err ll_comm_alltoall(ll_comm *c, const void *data, void *out, int64_t n, ll_dtype t,
                        const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_ALLTOALL, data, n, t, LL_REDUCE_SUM, opts, &call));
    call.out = out;
    return ll_comm_run(c, &call);
}

ll_err ll_comm_broadcast(ll_comm *c, void *data, int64_t n, ll_dtype t, int root,
                         const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_BROADCAST, data, n, t, LL_REDUCE_SUM, opts, &call));
    CHECK(root >= 0 && root < ll_comm_size(c), LL_E_ARG, "root %d of %d ranks", root,
          ll_comm_size(c));
    call.spec.root = root;
    return ll_comm_run(c, &call);
}

ll_err ll_comm_barrier(ll_comm *c)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_BARRIER, NULL, 0, LL_U8, LL_REDUCE_SUM, NULL, &call));
    return ll_comm_run(c, &call);
}
