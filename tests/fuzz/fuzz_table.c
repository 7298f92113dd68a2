/* Any bytes as the tuner's table: refused with words, or a table whose every choice can be made and
 * that comes back from its own file. */
#include "tune/tune_int.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static void choose(const ll_tuned_table *t, ll_coll coll, int64_t count)
{
    const ll_algo *a;
    int64_t segment;
    ll_coll_spec s = {.coll = coll, .size = 4, .count = count};
    if (ll_choose(t, &s, 4, true, count & 1, &a, &segment) != LL_OK) return;
    must(ll_algo_check(a, &s) == LL_OK && segment >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ll_tuned_table *t;
    if (ll_tune_parse((const char *)data, size, "fuzz", NULL, 4, &t) != LL_OK) {
        must(!t && ll_error_text()[0]);
        return 0;
    }
    int n = t->n_entry;
    const ll_tuned *e = t->entries;
    must(n > 0);
    for (int i = 0; i < n; i++) {
        must(e[i].n_way > 0 && e[i].bytes > 0 && e[i].why);
        choose(t, e[i].coll, (int64_t)(e[i].bytes / 4 % 100000));
    }
    must(ll_choose_bucket_bytes(t) > 0);
    ll_tuned_table_free(t);
    return 0;
}
