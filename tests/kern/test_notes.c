/* test_notes: every note is printed once, however many there are, to who asked kernels. */
#include "ir/graph_text.h"
#include "program/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int lines(ll_kern_notes *notes)
{
    FILE *f = tmpfile();
    int c, n = 0;
    assert_non_null(f);
    ll_kern_notes_print(notes, f);
    rewind(f);
    while ((c = fgetc(f)) != EOF) n += c == '\n';
    fclose(f);
    return n;
}

static void all_are_printed(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_kern_notes *notes = ll_kern_notes_in(a);
    assert_int_equal(lines(notes), 0);
    assert_null(ll_kern_notes_to((ll_noting){ll_kern_notes_add, notes}).note);
    for (int i = 0; i < 80; i++) ll_kern_note("head %d takes a plain, slow kernel", i / 2);
    assert_int_equal(lines(notes), 40);
    ll_kern_note("head %d takes a plain, slow kernel", 7);
    ll_kern_note("another");
    ll_kern_note("head 7 takes a plain"); /* the beginning of one is another */
    assert_int_equal(lines(notes), 2);
    assert_ptr_equal(ll_kern_notes_to((ll_noting){NULL, NULL}).to, notes);
    ll_kern_note("nobody hears it");
    assert_int_equal(lines(notes), 0);
}

/* Of an op whose kernel notes when it is asked, wherever it is lowered. */
static bool notes_it(const ll_kcall *)
{
    ll_kern_note("a slow kernel");
    return true;
}

static ll_err nothing(const ll_kcall *)
{
    return LL_OK;
}

static bool pick(const ll_op *, const ll_kcall *c, ll_solver *out)
{
    *out = (ll_solver){.run = nothing, .fits = notes_it};
    return ll_solver_fits(out, c);
}

static void lowering_gives_them_to_who_asks(void **state)
{
    (void)state;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_graph) g = NULL;
    ll_kern_notes *all[2] = {ll_kern_notes_in(a), ll_kern_notes_in(a)};
    ll_target noting = ll_target_ref;
    noting.pick = pick;
    assert_int_equal(ll_parse("graph \"g\" {\n  %1: f32[3] = batch \"x\"\n"
                              "  %2: f32[3] = relu(%1)\n  result \"y\" = %2\n}\n",
                              &g),
                     LL_OK);
    for (int i = 0; i < 3; i++) {
        LL_OWN(ll_program) p = NULL;
        ll_lower_opts o = {.target = &noting,
                           .notes = {i < 2 ? ll_kern_notes_add : NULL, all[i % 2]}};
        assert_int_equal(ll_lower(g, &o, &p), LL_OK);
    }
    for (int i = 0; i < 2; i++) assert_int_equal(lines(all[i]), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_are_printed),
                                       cmocka_unit_test(lowering_gives_them_to_who_asks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
