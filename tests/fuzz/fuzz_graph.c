/* Graph text from anyone: parsing never crashes, and what parses is well formed, prints, and prints
 * the same again after a second parse. */
#include "ir/op.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ll_graph *g, *again;
    ll_arena *a = ll_arena_new();
    char *text = (char *)ll_arena_alloc(a, size + 1);
    if (size) memcpy(text, data, size);
    if (ll_parse(text, &g) == LL_OK) {
        LL_ASSERT(ll_verify(g) == LL_OK);
        char *printed = ll_print(g, a);
        LL_ASSERT(ll_parse(printed, &again) == LL_OK);
        LL_ASSERT(!strcmp(ll_print(again, a), printed));
        ll_graph_free(again);
        ll_graph_free(g);
    }
    ll_arena_free(a);
    return 0;
}
