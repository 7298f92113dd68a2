/* bench_netns_int.h: what bench_netns.c and bench_netns_rank.c share. */
#pragma once
#include "cli/bench_netns.h"
#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bits a second of a link: "1gbit" is 1e9; 0: "none". */
ll_err ll_netns_rate(const char *text, double *bits);
/* On a rank: measures; rank 0 prints. Collective. */
ll_err ll_netns_measure(ll_comm *c, const ll_netns_opts *opts);

#ifdef __cplusplus
}
#endif
