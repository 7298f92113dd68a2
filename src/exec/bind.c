/* bind.c: each OpenMP thread stays on a core of its own. Without it the system moves threads about
 * and steps take times that vary by tens of per cent. Only where the threads take every core: with
 * fewer, several programs may run side by side, and each would choose the same cores. The first
 * thread stays free, and finds the core that is left: the OpenMP library ends threads when a region
 * wants fewer and starts new ones later, and these inherit the first one's cores. */
#include "exec/exec.h"

#include <hwloc.h>
#include <omp.h>
#include <stdlib.h>

/* Core number `want` among those this process may run on. */
static bool core_set(hwloc_topology_t topo, hwloc_const_cpuset_t allowed, int want,
                     hwloc_cpuset_t out)
{
    int n = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
    for (int i = 0; i < n; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(topo, HWLOC_OBJ_CORE, (unsigned)i);
        hwloc_bitmap_and(out, core->cpuset, allowed);
        if (hwloc_bitmap_iszero(out)) continue;
        if (want-- > 0) continue;
        hwloc_bitmap_singlify(out);
        return true;
    }
    return false;
}

static void bind_to_cores(hwloc_topology_t topo, int threads)
{
    hwloc_cpuset_t allowed = hwloc_bitmap_alloc();
    hwloc_get_cpubind(topo, allowed, HWLOC_CPUBIND_PROCESS);
    hwloc_cpuset_t last = hwloc_bitmap_alloc();
    if (core_set(topo, allowed, threads - 1, last) && !core_set(topo, allowed, threads, last)) {
#pragma omp parallel num_threads(threads)
        {
            hwloc_cpuset_t mine = hwloc_bitmap_alloc();
            int number = omp_get_thread_num();
            if (number > 0 && core_set(topo, allowed, number, mine))
                hwloc_set_cpubind(topo, mine, HWLOC_CPUBIND_THREAD);
            hwloc_bitmap_free(mine);
        }
    }
    hwloc_bitmap_free(last);
    hwloc_bitmap_free(allowed);
}

void ll_bind_threads(int threads)
{
    static bool done;
    if (done || threads < 2 || getenv("OMP_PROC_BIND") || getenv("OMP_PLACES")) return;
    done = true;
    hwloc_topology_t topo;
    if (hwloc_topology_init(&topo)) return;
    if (hwloc_topology_load(topo) == 0) bind_to_cores(topo, threads);
    hwloc_topology_destroy(topo);
}
