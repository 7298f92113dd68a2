/* bench_netns.h: `loopline bench comm --netns`: hosts in network namespaces of this machine, joined
 * by links shaped to a rate, and on them one rank each that all-reduces a gradient: dense by
 * several algorithms, and by codecs. Needs root, ip and tc; fails saying what is missing. */
#pragma once
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_netns_opts {
    int hosts;        /* 0: 4 */
    const char *rate; /* of each link, both ways, as tc reads it; NULL: "1gbit" */
    int64_t count;    /* elements of the gradient; 0: 60000000 */
    bool json;        /* one JSON object on standard output in place of a table */
} ll_netns_opts;

/* Makes the hosts, runs this program on them with the same command line (`bench comm --netns
 * --hosts N --rate R --count C`) and takes the hosts down again. The copies know from the
 * environment variable LOOPLINE_NETNS that they are the ranks, and measure. */
ll_err ll_bench_netns(const ll_netns_opts *opts);

#ifdef __cplusplus
}
#endif
