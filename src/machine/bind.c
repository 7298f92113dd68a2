/* bind.c: each OpenMP thread stays on a core of its own. Without it the system moves threads about
 * and steps take times that vary by tens of per cent. Only where the threads take every core: with
 * fewer, several programs may run side by side, and each would choose the same cores. The first
 * thread stays free, and finds the core that is left: the OpenMP library ends threads when a region
 * wants fewer and starts new ones later, and these inherit the first one's cores.
 *
 * Ranks of a node divide its cores: 8 cores and 3 ranks are cores 0-1, 2-4 and 5-7. A launcher may
 * have divided them already; so only ranks with the very same set of cores are counted. All ranks
 * have as many threads as the one with the fewest: sums depend on their number, and what several
 * ranks compute alike must stay the same to the bit. */
#define _GNU_SOURCE /* sets of CPUs */
#include "machine/bind.h"

#include <hwloc.h>
#include <omp.h>
#include <sched.h>

/* Of the cores in allowed, part i of n, with all their hardware threads; returns how many there
 * are. */
static int share_of(hwloc_topology_t topo, hwloc_const_cpuset_t allowed, int n, int i,
                    hwloc_cpuset_t out)
{
    hwloc_cpuset_t one = hwloc_bitmap_alloc();
    int cores = 0, k = 0, all = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
    hwloc_bitmap_zero(out);
    for (int round = 0; round < 2; round++) /* counts them, then takes some */
        for (int c = 0; c < all; c++) {
            hwloc_obj_t core = hwloc_get_obj_by_type(topo, HWLOC_OBJ_CORE, (unsigned)c);
            hwloc_bitmap_and(one, core->cpuset, allowed);
            if (hwloc_bitmap_iszero(one)) continue;
            cores += round == 0;
            if (round == 0) continue;
            if (k >= cores * i / n && k < cores * (i + 1) / n) hwloc_bitmap_or(out, out, one);
            k++;
        }
    hwloc_bitmap_free(one);
    return cores;
}

static void bind_to_cores(hwloc_topology_t topo, int threads)
{
    hwloc_cpuset_t allowed = hwloc_bitmap_alloc(), first = hwloc_bitmap_alloc();
    hwloc_get_cpubind(topo, allowed, HWLOC_CPUBIND_THREAD);
    if (share_of(topo, allowed, threads, 0, first) == threads) {
#pragma omp parallel num_threads(threads)
        {
            hwloc_cpuset_t mine = hwloc_bitmap_alloc();
            int number = omp_get_thread_num();
            share_of(topo, allowed, threads, number, mine);
            hwloc_bitmap_singlify(mine);
            if (number > 0) hwloc_set_cpubind(topo, mine, HWLOC_CPUBIND_THREAD);
            hwloc_bitmap_free(mine);
        }
    }
    hwloc_bitmap_free(first);
    hwloc_bitmap_free(allowed);
}

static bool user_binds(void)
{
    return getenv("OMP_PROC_BIND") || getenv("OMP_PLACES");
}

/* Of this process, as its threads and their cores are; by ll_bind_rank. */
static bool owns_cores, shares_cores;

bool ll_bind_owns_cores(void)
{
    return owns_cores;
}

void ll_bind_threads(int threads)
{
    static bool done;
    if (shares_cores) return; /* the others' threads would be bound to the same */
    if (done || threads < 2 || user_binds()) return;
    done = true;
    hwloc_topology_t topo;
    if (hwloc_topology_init(&topo)) return;
    if (hwloc_topology_load(topo) == 0) bind_to_cores(topo, threads);
    hwloc_topology_destroy(topo);
}

/* ---- ranks ---- */

/* threads: as asked for; 0: as many as there is room for. */
static int take_share(hwloc_topology_t topo, int n, int i, int threads)
{
    hwloc_cpuset_t allowed = hwloc_bitmap_alloc(), mine = hwloc_bitmap_alloc();
    hwloc_get_cpubind(topo, allowed, HWLOC_CPUBIND_THREAD);
    bool enough = share_of(topo, allowed, n, i, mine) >= n;
    int share = enough ? hwloc_bitmap_weight(mine) : hwloc_bitmap_weight(allowed) / n;
    if (threads <= 0) threads = share > 1 ? share : 1;
    owns_cores = enough && threads <= share && !user_binds();
    if (owns_cores) hwloc_set_cpubind(topo, mine, HWLOC_CPUBIND_THREAD);
    shares_cores = !owns_cores;
    hwloc_bitmap_free(mine);
    hwloc_bitmap_free(allowed);
    return threads;
}

/* How many ranks have this one's set of cores, and how many of them come before it. */
static ll_err count_sharers(ll_comm *c, int *n, int *i)
{
    int size = ll_comm_size(c), me = ll_comm_rank(c);
    const int *node = ll_comm_nodes(c);
    LL_OWN_MEMORY cpu_set_t *sets = (cpu_set_t *)calloc((size_t)size, sizeof *sets);
    CHECK(sets, LL_E_MEM, "not enough memory for the cores of %d ranks", size);
    if (sched_getaffinity(0, sizeof *sets, &sets[me])) CPU_ZERO(&sets[me]);
    TRY(ll_comm_allgather(c, sets, size * (int64_t)sizeof *sets, LL_U8, NULL));
    *n = *i = 0;
    for (int r = 0; r < size; r++) {
        if (node[r] != node[me] || !CPU_EQUAL(&sets[r], &sets[me])) continue;
        *i += r < me;
        *n += 1;
    }
    return LL_OK;
}

ll_err ll_bind_rank(ll_comm *c, int *threads)
{
    int n, i, want = *threads;
    if (ll_comm_size(c) == 1) return LL_OK;
    TRY(count_sharers(c, &n, &i));
    if (want <= 0 && getenv("OMP_NUM_THREADS")) want = omp_get_max_threads();
    hwloc_topology_t topo;
    bool known = n > 1 && hwloc_topology_init(&topo) == 0;
    if (known && hwloc_topology_load(topo) == 0) want = take_share(topo, n, i, want);
    if (known) hwloc_topology_destroy(topo);
    int32_t fewest = want > 0 ? want : omp_get_max_threads();
    TRY(ll_comm_allreduce(c, &fewest, 1, LL_I32, LL_REDUCE_MIN, NULL));
    *threads = fewest;
    return LL_OK;
}
