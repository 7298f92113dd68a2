/* bench.h: loopline bench step and loopline bench comm. */
#pragma once
#include "cli/args.h"
#include "comm/tuner.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const ll_command ll_bench_step_command, ll_bench_comm_command;

/* ---- bench comm ---- */
typedef struct ll_comm_bench_opts {
    const char *op, *sizes, *algorithms, *segment, *dtype, *svg, *show, *table, *rate;
    ll_words codecs;
    int64_t ranks, count, hosts;
    double seconds;
    bool canonical, shared, fresh, json, list, netns;
} ll_comm_bench_opts;

ll_err ll_comm_bench_coll(const char *name, ll_coll *out);
/* "4K,64K,1M": bytes, in the arena. */
ll_err ll_comm_bench_sizes(ll_arena *a, const char *text, size_t **out, int *n);
ll_err ll_comm_bench_size(const char *text, size_t n_char, size_t *out);
ll_err ll_comm_bench_list(const ll_comm_bench_opts *o);
ll_err ll_comm_bench_show(const ll_comm_bench_opts *o);

#ifdef __cplusplus
}
#endif
