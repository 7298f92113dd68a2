/* near.c: a device's place in the node. Of the network, what shares the lowest bridge with it. */
#define _GNU_SOURCE /* sets of CPUs */
#include "machine/near.h"

#include <hwloc.h>
#include <stdio.h>
#include <string.h>

/* ---- network ---- */

static bool is_network(hwloc_obj_t o, bool fast)
{
    hwloc_obj_osdev_type_t t = o->attr->osdev.type;
    return t == (fast ? HWLOC_OBJ_OSDEV_OPENFABRICS : HWLOC_OBJ_OSDEV_NETWORK) && o->parent &&
           o->parent->type == HWLOC_OBJ_PCI_DEVICE;
}

/* How many levels above the device the first object is that holds both. */
static int levels_between(hwloc_obj_t device, hwloc_obj_t other)
{
    int up = 0;
    for (hwloc_obj_t a = device; a; a = a->parent, up++)
        for (hwloc_obj_t b = other; b; b = b->parent)
            if (a == b) return up;
    return up;
}

static void find_network(hwloc_topology_t topo, hwloc_obj_t device, bool fast, ll_nearby *out)
{
    int least = 1 << 30;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_osdev(topo, o));) {
        int levels = is_network(o, fast) ? levels_between(device, o) : least + 1;
        if (levels > least) continue;
        size_t used = levels < least ? 0 : strlen(out->nic);
        least = levels;
        if (used + strlen(o->name) + 3 > sizeof out->nic) continue;
        snprintf(out->nic + used, sizeof out->nic - used, "%s%s", used ? ", " : "", o->name);
    }
}

/* ---- a device ---- */

static void find_one(hwloc_topology_t topo, const char *bus, ll_nearby *out)
{
    unsigned cpu;
    hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topo, bus);
    hwloc_obj_t above = device ? hwloc_get_non_io_ancestor_obj(topo, device) : NULL;
    if (!above) return;
    hwloc_bitmap_foreach_begin(cpu, above->cpuset) if (cpu < CPU_SETSIZE) CPU_SET(cpu, &out->cpus);
    hwloc_bitmap_foreach_end();
    if (hwloc_bitmap_weight(above->nodeset) == 1) out->memory = hwloc_bitmap_first(above->nodeset);
    find_network(topo, device, true, out);
    if (!*out->nic) find_network(topo, device, false, out);
}

void ll_near_find(const char *const *bus, int n, ll_nearby *out)
{
    /* What hwloc would load others' libraries for. */
    static const char *const left_out[] = {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"};
    hwloc_topology_t topo;
    memset(out, 0, sizeof *out * (size_t)n);
    for (int i = 0; i < n; i++) out[i].memory = -1;
    if (hwloc_topology_init(&topo)) return;
    hwloc_topology_set_io_types_filter(topo, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        hwloc_topology_set_components(topo, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, left_out[i]);
    bool known = hwloc_topology_load(topo) == 0;
    for (int i = 0; known && i < n; i++) find_one(topo, bus[i], &out[i]);
    hwloc_topology_destroy(topo);
}

/* ---- ranks ---- */

/* Of a device that is not known none is. */
static bool is_near(const ll_nearby *d, const cpu_set_t *cores)
{
    cpu_set_t both;
    CPU_AND(&both, &d->cpus, cores);
    return CPU_COUNT(&both) > 0;
}

int ll_near_choose(const ll_nearby *devices, int n, const cpu_set_t *ranks, int n_rank, int me)
{
    int taken[LL_NEAR_MOST] = {0}, share = (n_rank + n - 1) / n, best = 0;
    for (int r = 0; r <= me; r++) {
        best = -1;
        for (int k = 0; k < n; k++) {
            if (taken[k] == share) continue;
            bool near = is_near(&devices[k], &ranks[r]);
            bool other = best >= 0 && is_near(&devices[best], &ranks[r]);
            if (best < 0 || near > other || (near == other && taken[k] < taken[best])) best = k;
        }
        taken[best]++;
    }
    return best;
}

/* "0-7,16-23". */
static const char *name_cores(const cpu_set_t *set, char *text, size_t room)
{
    size_t used = 0;
    *text = '\0';
    for (int i = 0, to; i < CPU_SETSIZE; i = to + 1) {
        to = i;
        if (!CPU_ISSET(i, set)) continue;
        while (to + 1 < CPU_SETSIZE && CPU_ISSET(to + 1, set)) to++;
        char one[32];
        int n = snprintf(one, sizeof one, to > i ? "%s%d-%d" : "%s%d", used ? "," : "", i, to);
        if (used + (size_t)n + 5 > room) return strcat(text, ",...");
        memcpy(text + used, one, (size_t)n + 1);
        used += (size_t)n;
    }
    return text;
}

void ll_near_tell(const char *bus, const ll_nearby *d, const cpu_set_t *cores, char *text,
                  size_t room)
{
    char names[32], memory[32] = "";
    bool far = CPU_COUNT(&d->cpus) && !is_near(d, cores);
    if (d->memory >= 0) snprintf(memory, sizeof memory, ", memory of node %d", (int)d->memory);
    snprintf(text, room, "%s%s%s%s; cores %s%s", bus, memory, *d->nic ? ", NIC " : "", d->nic,
             name_cores(cores, names, sizeof names), far ? ", far from it" : "");
}
