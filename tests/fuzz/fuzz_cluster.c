/* Any bytes as a cluster file: read or refused with a message. */
#include "base/err.h"
#include "plan/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ll_cluster *c = NULL;
    ll_err e = ll_cluster_parse((const char *)data, size, "fuzz", &c);
    LL_ASSERT(e == LL_OK ? c != NULL : *ll_error_text() && !c);
    ll_cluster_free(c);
    return 0;
}
