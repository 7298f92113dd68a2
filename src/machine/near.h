/* near.h: what lies near a device of this node: cores, memory, network. By hwloc. */
#pragma once
#include "base/types.h"

#include <sched.h>

enum { LL_NEAR_MOST = 1024 }; /* devices of a node */

typedef struct ll_nearby {
    cpu_set_t cpus; /* none: not known */
    int32_t memory; /* a NUMA node; -1: not known, or of several */
    char nic[56];   /* "mlx5_0", of several that are as near "mlx5_0, mlx5_1"; "": none */
} ll_nearby;

/* Of PCI devices ("0000:17:00.0"). */
void ll_near_find(const char *const *bus, int n, ll_nearby *out);
/* Which of n devices rank `me` of a node's takes: in their order each takes, of those that have not
 * their share of ranks yet, one near its cores, of these one that the fewest have. */
int ll_near_choose(const ll_nearby *devices, int n, const cpu_set_t *ranks, int n_rank, int me);
/* "0000:17:00.0, memory of node 0, NIC mlx5_0; cores 0-7": of a device and the rank that has it. */
void ll_near_tell(const char *bus, const ll_nearby *d, const cpu_set_t *cores, char *text,
                  size_t room);
