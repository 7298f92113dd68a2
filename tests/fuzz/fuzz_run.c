/* Any bytes as a run file: read or refused with a message; what is read prints, and reads back. */
#include "../run/run_models.h"
#include "base/err.h"
#include "run/run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ll_run *r, *again;
    if (ll_run_parse((const char *)data, size, "fuzz", &r) != LL_OK) {
        LL_ASSERT(*ll_error_text() && !r);
        return 0;
    }
    if (ll_run_finish(r) == LL_OK) {
        ll_arena *arena = ll_arena_new();
        char *text = ll_run_print(r, arena);
        ll_err e = ll_run_parse(text, strlen(text), "printed", &again);
        LL_ASSERT(e == LL_OK);
        e = ll_run_finish(again);
        LL_ASSERT(e == LL_OK && !strcmp(ll_run_print(again, arena), text));
        ll_run_free(again);
        ll_arena_free(arena);
    }
    ll_run_free(r);
    return 0;
}
