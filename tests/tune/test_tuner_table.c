/* Choices by rules and by a table, and the table as text; no ranks needed. */
#include "base/file.h"
#include "tune/tune_int.h"
#include "tmpdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- rules ---- */

/* Whatever is asked, the choice can do it; canonical choices are canonical. */
static void rules_choose_what_fits(void **state)
{
    (void)state;
    static const int two_nodes[] = {0, 0, 0, 1, 1, 1, 1, 1};
    static const int64_t counts[] = {0, 1, 7, 1000, 100000, 20000000};
    for (int c = 0; c < LL_N_COLL; c++)
        for (int size = 1; size <= 8; size++)
            for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
                for (int how = 0; how < 16; how++) {
                    bool window = how & 1, canonical = how & 2;
                    ll_coll_spec s = {.coll = (ll_coll)c,
                                      .size = size,
                                      .count = counts[k],
                                      .node = how & 4 ? two_nodes : NULL,
                                      .shared = (how & 8) && window};
                    const ll_algo *a = NULL;
                    int64_t segment;
                    if (ll_choose(NULL, &s, 4, window, canonical, &a, &segment) != LL_OK)
                        fail_msg("%s", ll_error_text());
                    assert_int_equal(ll_algo_check(a, &s), LL_OK);
                    assert_true(segment >= 0);
                    if (!window) assert_false(a->window || a->shared);
                    if (canonical && ll_coll_sums(s.coll)) assert_true(a->canonical(&s));
                    if (size > 1) assert_false(a->library);
                }
}

static void rules_know_sizes(void **state)
{
    (void)state;
    const ll_algo *a;
    int64_t segment;
    ll_coll_spec s = {.coll = LL_COLL_ALLREDUCE, .size = 4, .count = 256};
    assert_int_equal(ll_choose(NULL, &s, 4, true, false, &a, &segment), LL_OK);
    assert_string_equal(a->name, "window1");
    s.count = 1 << 22;
    assert_int_equal(ll_choose(NULL, &s, 4, true, false, &a, &segment), LL_OK);
    assert_string_equal(a->name, "window");
    s.shared = true;
    assert_int_equal(ll_choose(NULL, &s, 4, true, false, &a, &segment), LL_OK);
    assert_string_equal(a->name, "shared");
    s.shared = false;
    assert_int_equal(ll_choose(NULL, &s, 4, false, false, &a, &segment), LL_OK);
    assert_string_equal(a->name, "ring");
    assert_int_equal(segment, 65536);
}

/* ---- a table ---- */

static const char table[] =
    "{\"loopline_comm_table\": 1, \"key\": \"here\", \"ranks\": 4, \"seconds\": 1.25,"
    " \"model\": {\"alpha_us\": [1.5, 40], \"beta_ns\": [0.125, 8], \"gamma_ns\": 0.25,"
    "  \"kappa_ns\": 0.0625, \"sigma_us\": 0.5, \"share\": 2},"
    " \"entries\": ["
    " {\"collective\": \"all-reduce\", \"bytes\": 4096, \"shared\": false, \"why\": \"w\","
    "  \"ways\": [{\"algorithm\": \"ring\", \"segment_bytes\": 0, \"predicted_us\": 9,"
    "   \"measured_us\": 8},"
    "   {\"algorithm\": \"window1\", \"segment_bytes\": 0, \"predicted_us\": 0,"
    "   \"measured_us\": 10}]},"
    " {\"collective\": \"all-reduce\", \"bytes\": 1048576, \"shared\": false, \"why\": \"w\","
    "  \"ways\": [{\"algorithm\": \"ring\", \"segment_bytes\": 65536, \"predicted_us\": 9,"
    "   \"measured_us\": 800}]},"
    " {\"collective\": \"all-reduce\", \"bytes\": 16777216, \"shared\": false, \"why\": \"w\","
    "  \"ways\": [{\"algorithm\": \"ring\", \"segment_bytes\": 65536, \"predicted_us\": 12500,"
    "   \"measured_us\": 0}]},"
    " {\"collective\": \"all-reduce\", \"bytes\": 4096, \"shared\": true, \"why\": \"w\","
    "  \"ways\": [{\"algorithm\": \"shared\", \"segment_bytes\": 0, \"predicted_us\": 9,"
    "   \"measured_us\": 4}]}]}";

static const char *choice(const ll_tuned_table *t, ll_coll_spec s, bool window, bool canonical,
                          int64_t *segment)
{
    const ll_algo *a;
    s.coll = LL_COLL_ALLREDUCE;
    if (ll_choose(t, &s, 4, window, canonical, &a, segment) != LL_OK)
        fail_msg("%s", ll_error_text());
    return a->name;
}

static void a_table_is_followed(void **state)
{
    (void)state;
    ll_tuned_table *t;
    int64_t g;
    if (ll_tune_parse(table, strlen(table), "t", "here", 4, &t) != LL_OK)
        fail_msg("%s", ll_error_text());
    assert_true(t->was_read && t->seconds == 1.25);
    assert_true(fabs(t->model.alpha[1] - 40e-6) < 1e-12);
    assert_true(t->model.share == 2);
    /* 4 KB and what is nearer to it than to 1 MB; then 1 MB; shared has its own */
    assert_string_equal(choice(t, (ll_coll_spec){.size = 4, .count = 1}, true, false, &g), "ring");
    assert_int_equal(g, 0);
    assert_string_equal(choice(t, (ll_coll_spec){.size = 4, .count = 1024}, true, true, &g),
                        "window1");
    choice(t, (ll_coll_spec){.size = 4, .count = 16000}, true, false, &g);
    assert_int_equal(g, 0);
    choice(t, (ll_coll_spec){.size = 4, .count = 17000}, true, false, &g);
    assert_int_equal(g, 16384);
    assert_string_equal(
        choice(t, (ll_coll_spec){.size = 4, .count = 9, .shared = true}, true, false, &g),
        "shared");
    /* another number of ranks, or no canonical way in it: rules */
    assert_string_equal(choice(t, (ll_coll_spec){.size = 3, .count = 1}, true, false, &g),
                        "window1");
    assert_string_equal(choice(t, (ll_coll_spec){.size = 4, .count = 1 << 20}, true, true, &g),
                        "window");
    assert_int_equal(ll_choose_bucket_bytes(t), 1048576); /* 0.76 ns a byte; 16 MB: 0.75 */
    assert_true(ll_choose_bucket_bytes(NULL) > 0);
    ll_tuned_table_free(t);
}

static void a_table_survives_the_file(void **state)
{
    ll_tuned_table *t, *u;
    assert_int_equal(ll_tune_parse(table, strlen(table), "t", NULL, 4, &t), LL_OK);
    const char *path = tmpdir_path(state, "a/b/table.json");
    if (ll_tune_write(t, path, "there") != LL_OK) fail_msg("%s", ll_error_text());
    uint8_t *text;
    size_t n;
    assert_int_equal(ll_file_read(path, 1 << 20, &text, &n), LL_OK);
    assert_int_equal(ll_tune_parse((char *)text, n, path, "there", 4, &u), LL_OK);
    int nt = t->n_entry, nu = u->n_entry;
    const ll_tuned *et = t->entries, *eu = u->entries;
    assert_int_equal(nt, nu);
    for (int i = 0; i < nt; i++) {
        assert_int_equal(et[i].bytes, eu[i].bytes);
        assert_int_equal(et[i].n_way, eu[i].n_way);
        assert_ptr_equal(et[i].ways[0].algo, eu[i].ways[0].algo);
        assert_int_equal(et[i].ways[0].segment_bytes, eu[i].ways[0].segment_bytes);
        assert_true(et[i].ways[0].measured_s == eu[i].ways[0].measured_s);
    }
    assert_memory_equal(&t->model, &u->model, sizeof(ll_link_model));
    ll_tuned_table_free(t);
    ll_tuned_table_free(u);
    free(text);
}

/* The table with one text replaced is refused with these words. */
static void broken(const char *old, const char *new, const char *words)
{
    char text[4096];
    const char *at = strstr(table, old);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - table), table, new, at + strlen(old));
    ll_tuned_table *t;
    assert_int_equal(ll_tune_parse(text, strlen(text), "t.json", "here", 4, &t), LL_E_IO);
    assert_null(t);
    if (!strstr(ll_error_text(), words) || !strstr(ll_error_text(), "t.json"))
        fail_msg("'%s', want '%s' in it", ll_error_text(), words);
}

static void broken_tables_are_refused(void **state)
{
    (void)state;
    broken("\"ranks\"", "ranks", "not JSON");
    broken("table\": 1", "table\": 2", "format 2, expected 1");
    broken("\"here\"", "\"elsewhere\"", "a table for 'elsewhere', expected 'here'");
    broken("\"ranks\": 4", "\"ranks\": 5", "5 ranks, expected 4");
    broken("\"ring\"", "\"rinse\"", "no algorithm rinse");
    broken("all-reduce", "all-produce", "no collective all-produce");
    broken("[1.5, 40]", "[1.5]", "two numbers");
    broken("[1.5, 40]", "[1.5, -1]", "at least 0");
    broken("\"measured_us\": 8}", "\"measured_us\": \"8\"}", "measured_us is not a number");
    broken("\"bytes\": 4096", "\"bytes\": 0", "0 bytes");
    broken("\"segment_bytes\": 0", "\"segment_bytes\": -4", "segment_bytes");
    broken("\"entries\": [", "\"entries\": 1, \"x\": [", "entries is not a list");
    ll_tuned_table *t;
    for (size_t n = 0; n < strlen(table); n++)
        assert_int_equal(ll_tune_parse(table, n, "t.json", "here", 4, &t), LL_E_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_choose_what_fits),
        cmocka_unit_test(rules_know_sizes),
        cmocka_unit_test(a_table_is_followed),
        cmocka_unit_test_setup_teardown(a_table_survives_the_file, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(broken_tables_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
