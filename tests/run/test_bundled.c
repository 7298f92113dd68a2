/* Every bundled run against the real models: it finishes, prints, reads back, and its model can be
 * declared in the sizes it asks for. */
#include "base/err.h"
#include "run/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static ll_run *finished(const char *text, const char *name)
{
    ll_run *r;
    if (ll_run_parse(text, strlen(text), name, &r) != LL_OK) fail_msg("%s", ll_error_text());
    if (ll_run_finish(r) != LL_OK) fail_msg("%s", ll_error_text());
    return r;
}

static void bundled(void **state)
{
    const ll_bundled *b = (const ll_bundled *)*state;
    ll_arena *arena = ll_arena_new();
    ll_run *r = finished(b->text, b->name);
    char *text = ll_run_print(r, arena);
    ll_run *again = finished(text, "printed");
    assert_string_equal(ll_run_print(again, arena), text);

    ll_build build = {.batch = r->train.batch / ll_run_micro_batches(r), .training = true};
    memcpy(build.sizes, r->model.sizes, sizeof build.sizes);
    ll_graph *g = ll_graph_new(b->name);
    ll_val loss = r->model.def->declare(g, &build);
    ll_minimize(g, loss, &r->train.optim);
    if (ll_graph_check(g) != LL_OK) fail_msg("%s: %s", b->name, ll_error_text());
    ll_graph_free(g);
    ll_run_free(again);
    ll_run_free(r);
    ll_arena_free(arena);
}

static void all_there(void **state)
{
    (void)state;
    static const char *const names[] = {"lenet5-fashion", "mlp-fashion",      "resnet18-fashion",
                                        "gpt-kjv",        "resnet18-cifar10", "gpt2-124m"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const ll_bundled *b = ll_bundled_runs();
        while (b->name && strcmp(b->name, names[i])) b++;
        if (!b->name) fail_msg("%s is not bundled", names[i]);
    }
}

int main(void)
{
    static struct CMUnitTest tests[32] = {cmocka_unit_test(all_there)};
    size_t n = 1;
    for (const ll_bundled *b = ll_bundled_runs(); b->name && n < 32; b++)
        tests[n++] = (struct CMUnitTest){b->name, bundled, NULL, NULL, (void *)(uintptr_t)b};
    return _cmocka_run_group_tests("bundled", tests, n, NULL, NULL);
}
