/* Any bytes as metrics.jsonl: a resumed run cuts it or refuses it with a message, and then adds to
 * it; the picture of it is drawn or refused. Any bytes as what a job of bench scale prints. */
#include "base/file.h"
#include "cli/bench.h"
#include "train/curve.h"
#include "train/metrics.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/fuzz-lines-XXXXXX";

static void remove_folder(void)
{
    char path[64];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? "metrics.jsonl" : "curve.svg");
        unlink(path);
    }
    rmdir(folder);
}

static void make_folder(void)
{
    static bool made;
    if (made) return;
    made = mkdtemp(folder);
    LL_ASSERT(made);
    atexit(remove_folder);
}

static void put(const char *path, const uint8_t *data, size_t size)
{
    FILE *f = fopen(path, "w");
    LL_ASSERT(f && fwrite(data, 1, size, f) == size);
    fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ll_arena *a = ll_arena_new();
    ll_scale_point p;
    ll_err e = ll_scale_point_parse((const char *)data, size, a, &p);
    LL_ASSERT(e == LL_OK || *ll_error_message());
    make_folder();
    const char *path = ll_arena_printf(a, "%s/metrics.jsonl", folder);
    put(path, data, size);
    e = ll_curve_of_run(folder, "fuzz", NULL);
    LL_ASSERT(e == LL_OK || *ll_error_message());
    ll_metrics *m = NULL;
    if (ll_metrics_open(path, 5, &m) == LL_OK) {
        ll_metrics_begin(m, 6);
        ll_metrics_num(m, "loss", 1);
        e = ll_metrics_end(m);
        LL_ASSERT(e == LL_OK);
        ll_metrics_close(m);
        e = ll_metrics_open(path, 6, &m); /* what was kept reads again */
        LL_ASSERT(e == LL_OK);
    }
    ll_metrics_close(m);
    ll_arena_free(a);
    return 0;
}
