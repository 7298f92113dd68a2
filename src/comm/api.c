/* api.c: the collectives of loopline.h: arguments checked, and made into calls; where the
 * communicator's options say check, held against those of the other ranks. */
#include "comm/comm_int.h"

#include "base/text.h"
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
    LL_GIVEN(c);
    CHECK(n >= 0 && (data || n == 0), LL_E_ARG, "%s of %ld elements%s", ll_coll_name(coll), n,
          data ? "" : ", but argument data is NULL");
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

/* What a call has in common on all ranks; as it is sent. */
typedef union common {
    struct {
        int64_t count;
        int32_t coll, dtype, op, root;
    };
    int32_t words[6];
} common;

static const char *common_text(const common *x, ll_arena *arena)
{
    static const char *const ops[] = {"sum", "maximum", "minimum"};
    ll_buf b = {.arena = arena};
    ll_buf_printf(&b, "%s", ll_coll_name((ll_coll)x->coll));
    if (x->coll == LL_COLL_BARRIER) return b.text;
    ll_buf_printf(&b, " of %ld %s", x->count, ll_dtype_name((ll_dtype)x->dtype));
    if (x->coll == LL_COLL_ALLREDUCE || x->coll == LL_COLL_REDUCE_SCATTER)
        ll_buf_printf(&b, " (%s)", ops[x->op]);
    if (x->coll == LL_COLL_BROADCAST) ll_buf_printf(&b, " from %d", x->root);
    return b.text;
}

/* Fails on all ranks where one is about to make another call than the first. */
static ll_err compare(ll_comm *c, const ll_coll_call *call)
{
    int size = c->t->size;
    if (!c->opts.check || size == 1) return LL_OK;
    LL_OWN(ll_arena) arena = ll_arena_new();
    common *all = LL_NEW_ARRAY(arena, common, size);
    all[c->t->rank] = (common){.count = call->spec.count,
                               .coll = (int32_t)call->spec.coll,
                               .dtype = (int32_t)call->dtype,
                               .op = (int32_t)call->op,
                               .root = call->spec.root};
    int64_t words = size * (int64_t)(sizeof all->words / sizeof *all->words);
    const ll_coll_call gather = {.spec = {.coll = LL_COLL_ALLGATHER, .count = words},
                                 .data = all,
                                 .dtype = LL_I32,
                                 .site = "check"};
    TRY(ll_comm_run(c, &gather));
    for (int r = 1; r < size; r++)
        CHECK(!memcmp(&all[r], &all[0], sizeof *all), LL_E_ARG,
              "ranks must make the same call: rank %d calls %s, rank %d %s", c->t->world[0],
              common_text(&all[0], arena), c->t->world[r], common_text(&all[r], arena));
    return LL_OK;
}

static ll_err run(ll_comm *c, const ll_coll_call *call)
{
    TRY(compare(c, call));
    return ll_comm_run(c, call);
}

ll_err ll_comm_allreduce(ll_comm *c, void *data, int64_t n, ll_dtype t, ll_reduce op,
                         const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_ALLREDUCE, data, n, t, op, opts, &call));
    return run(c, &call);
}

ll_err ll_comm_allreduce_start(ll_comm *c, void *data, int64_t n, ll_dtype t, ll_reduce op,
                               const ll_coll_opts *opts, ll_request **out)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_ALLREDUCE, data, n, t, op, opts, &call));
    LL_GIVEN(out);
    TRY(compare(c, &call));
    return ll_comm_start(c, &call, out);
}

ll_err ll_comm_reduce_scatter(ll_comm *c, void *data, int64_t n, ll_dtype t, ll_reduce op,
                              const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_REDUCE_SCATTER, data, n, t, op, opts, &call));
    return run(c, &call);
}

ll_err ll_comm_allgather(ll_comm *c, void *data, int64_t n, ll_dtype t, const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_ALLGATHER, data, n, t, LL_REDUCE_SUM, opts, &call));
    return run(c, &call);
}

ll_err ll_comm_alltoall(ll_comm *c, const void *data, void *out, int64_t n, ll_dtype t,
                        const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_ALLTOALL, data, n, t, LL_REDUCE_SUM, opts, &call));
    CHECK(out || n == 0, LL_E_ARG, "argument out is NULL");
    call.out = out;
    return run(c, &call);
}

ll_err ll_comm_broadcast(ll_comm *c, void *data, int64_t n, ll_dtype t, int root,
                         const ll_coll_opts *opts)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_BROADCAST, data, n, t, LL_REDUCE_SUM, opts, &call));
    CHECK(root >= 0 && root < ll_comm_size(c), LL_E_ARG, "root %d of %d ranks", root,
          ll_comm_size(c));
    call.spec.root = root;
    return run(c, &call);
}

ll_err ll_comm_barrier(ll_comm *c)
{
    ll_coll_call call;
    TRY(make_call(c, LL_COLL_BARRIER, NULL, 0, LL_U8, LL_REDUCE_SUM, NULL, &call));
    return run(c, &call);
}
