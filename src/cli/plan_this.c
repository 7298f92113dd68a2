/* plan_this.c: cluster `this`: this machine. Its cores and memory are asked for, products and
 * copies are timed for a moment, and what was found is kept as a cluster file in the user's cache,
 * by the host's name: remove it to measure again. What was found on a busy machine is not kept. */
#include "base/file.h"
#include "base/process.h"
#include "cli/plan.h"
#include "machine/machine.h"
#include "train/bench.h"

#include <hwloc.h>
#include <unistd.h>

/* Bytes a second, read and written, of copies by all threads. */
static ll_err copy_rate(int threads, double *out)
{
    enum { BYTES = 32 << 20, ROUNDS = 8 };
    LL_OWN_MEMORY char *memory = (char *)malloc(2 * (size_t)BYTES);
    CHECK(memory, LL_E_MEM, "not enough memory to time copies");
    memset(memory, 1, 2 * (size_t)BYTES);
    double best = INFINITY;
    for (int i = 0; i < ROUNDS; i++) {
        double start = ll_now();
#pragma omp parallel for num_threads(threads)
        for (int k = 0; k < 64; k++)
            memcpy(memory + BYTES + k * (BYTES / 64), memory + k * (BYTES / 64), BYTES / 64);
        best = fmin(best, ll_now() - start);
    }
    *out = 2 * BYTES / best;
    return LL_OK;
}

static int cores(void)
{
    hwloc_topology_t t;
    int n = 0;
    if (hwloc_topology_init(&t) == 0) {
        if (hwloc_topology_load(t) == 0) n = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE);
        hwloc_topology_destroy(t);
    }
    return n > 0 ? n : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* A GPU is described by the bundled cluster whose chip it is; its memory is asked for. */
static ll_err describe_gpu(ll_buf *b, bool *found)
{
    const ll_machine *m;
    ll_device_facts f = {0};
    *found = false;
    if (ll_machine_find(ll_target_device()->name, &m) != LL_OK || !m->device ||
        m->ask(0, LL_PRECISION_bf16, &f) != LL_OK)
        return LL_OK;
    for (int i = 0; ll_cluster_name(i) && !*found; i++) {
        LL_OWN(ll_cluster) c = NULL;
        TRY(ll_cluster_load(ll_cluster_name(i), &c));
        char first[64];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(c->chip.names, ","), c->chip.names);
        if (!*first || !strstr(f.name, first)) continue;
        *found = true;
        ll_buf_printf(b, "like: %s\nchip: {memory: %.6g}\nnode: {chips: 1}\n", ll_cluster_name(i),
                      1e-9 * (double)f.bytes);
    }
    return LL_OK;
}

/* A core is a chip: ranks are bound to them. */
static ll_err describe_cpu(ll_buf *b, double *others)
{
    int n = cores();
    double gflops, copies, memory;
    ll_core_time from = ll_core_time_now();
    bool beside; /* *others tells */
    TRY(ll_gemm_peak(1, LL_LARGE_GEMM, false, &gflops, &beside));
    TRY(copy_rate(1, &copies));
    ll_core_time to = ll_core_time_now();
    *others = ll_others_share((to.all - from.all - to.own + from.own) / (to.when - from.when), 1);
    memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    ll_buf_printf(b,
                  "like: dgx-a100\n"
                  "about: \"this machine, measured: remove the file to measure again\"\n"
                  "chip: {name: " LL_CORE
                  ", names: [], machine: none, bf16: %.6g, tf32: 0, f32: %.6g, vector: %.6g,\n"
                  "  memory: %.6g, bandwidth: %.6g, units: 1, tile_m: 16, tile_n: 16, gemm: 0.9,\n"
                  "  gemm_f32: 0.9, gemm_k: 8, stream: 0.8, attention: 0.5, conv: 0.6,\n"
                  "  launch: 1, reserved: 0.05}\n"
                  "node: {chips: %d, link: %.6g, efficiency: 0.5, latency: 5, host: %.6g}\n"
                  "network: {topology: fat-tree, gbps: 10, efficiency: 0.8, latency: 30}\n"
                  "cost: {watts: 15, price: 0.02}\n",
                  gflops / 1e3, gflops / 1e3, gflops / 4e3, memory / 1e9 / n, copies / 1e9, n,
                  copies / 2e9, copies / 2e9);
    return LL_OK;
}

ll_err ll_plan_cluster(const char *what, ll_cluster **out)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_buf b = {.arena = arena};
    char host[256] = "";
    bool gpu;
    if (strcmp(what, "this")) return ll_cluster_load(what, out);
    char folder[3072];
    gethostname(host, sizeof host - 1);
    CHECK(ll_cache_folder(folder, sizeof folder), LL_E_ARG,
          "neither XDG_CACHE_HOME nor HOME is set, so there is no place to store `this`: set one "
          "of them");
    const char *path = ll_arena_printf(arena, "%s/this-%s.yaml", folder, host);
    if (!access(path, R_OK))
        TRY(ll_cluster_load(path, out));
    else {
        double others = 0;
        TRY(describe_gpu(&b, &gpu));
        if (!gpu) TRY(describe_cpu(&b, &others));
        TRY(ll_cluster_parse(b.text, b.len, path, out));
        if (others >= LL_OTHERS_NOTABLE)
            fprintf(stderr,
                    "this machine was measured while other processes used %.0f %% of the core: the "
                    "result is not kept, and the next plan measures again\n",
                    100 * others);
        else {
            TRY(ll_mkdirs(folder));
            TRY(ll_file_write(path, b.text, b.len));
            fprintf(stderr, "this machine was measured: %s\n", path);
        }
    }
    (*out)->name = "this";
    return LL_OK;
}
