/* Any bytes as a cluster file: read or refused with a message; what is read prints, and reads back.
 */
#include "base/err.h"
#include "plan/cluster.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ll_cluster *c = NULL, *again = NULL;
    if (ll_cluster_parse((const char *)data, size, "fuzz", &c) != LL_OK) {
        LL_ASSERT(*ll_error_text() && !c);
        return 0;
    }
    ll_arena *arena = ll_arena_new();
    char *text = ll_cluster_print(c, arena);
    ll_err e = ll_cluster_parse(text, strlen(text), "printed", &again);
    LL_ASSERT(e == LL_OK && !strcmp(ll_cluster_print(again, arena), text));
    ll_cluster_free(again);
    ll_cluster_free(c);
    ll_arena_free(arena);
    return 0;
}
