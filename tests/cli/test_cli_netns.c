/* bench comm --netns: a small gradient between two hosts; a run that is ended early; what is
 * refused. Nothing may stay behind. Needs root and iproute2: elsewhere it says so and passes. */
#include "cli/program.h"

/* Hosts of scripts that no longer run: their names begin with ll and the script's process. */
static int hosts_left_behind(void)
{
    int n = 0, pid;
    DIR *d = opendir("/run/netns");
    for (struct dirent *e; d && (e = readdir(d));)
        n += sscanf(e->d_name, "ll%dh", &pid) == 1 && kill(pid, 0) != 0 && errno == ESRCH;
    if (d) closedir(d);
    return n;
}

static bool cannot_here(const outcome *o)
{
    const char *why = strstr(o->err, "cannot be made here: ");
    if (o->status == 0 || !why) return false;
    print_message("skipped: %s", why);
    return true;
}

static void small(void **state)
{
    const char *f = (const char *)*state;
    outcome o =
        program_run(f, NULL, "bench comm --netns --hosts 2 --rate 800mbit --count 500000 --json");
    if (!cannot_here(&o)) {
        if (o.status) fail_msg("status %d\n%s", o.status, o.err);
        json_t *j = json_of(o.out), *list = json_object_get(j, "results");
        assert_int_equal((int)json_num(j, "hosts"), 2);
        assert_int_equal((int)json_num(j, "rate_mbit"), 800);
        assert_true(json_num(j, "measured_mbit") < 900); /* the links are shaped */
        assert_true(json_num(j, "bound_ms") > 19.9 && json_num(j, "bound_ms") < 20.1);
        assert_int_equal(json_array_size(list), 9);
        for (size_t i = 0; i < 9; i++) {
            const json_t *r = json_array_get(list, i);
            bool dense = json_object_get(r, "algorithm") != NULL;
            /* A burst may pass at once, a millisecond's worth at most. */
            assert_true(json_num(r, "us") > (dense ? 15e3 : 10));
            assert_true(json_num(r, "error") < (dense ? 1e-5 : 1.5));
            if (!dense) assert_true(json_num(r, "bytes_on_wire") <= 1000200);
        }
        json_decref(j);
    }
    outcome_free(&o);
    assert_int_equal(hosts_left_behind(), 0);
}

static void ended_early(void **state)
{
    const char *f = (const char *)*state;
    const char *const words[] = {"bench",  "comm",   "--netns", "--hosts",  "2",
                                 "--rate", "10mbit", "--count", "20000000", NULL};
    pid_t child = program_start(f, NULL, words);
    sleep_ms(1500);
    kill(child, SIGTERM);
    outcome o = program_wait(f, child);
    if (!cannot_here(&o)) assert_int_equal(o.status, 1);
    outcome_free(&o);
    assert_int_equal(hosts_left_behind(), 0);
}

static void refused(void **state)
{
    const char *f = (const char *)*state;
    refuses(f, 1, "bench comm --netns --hosts 1", "--hosts 1", "2 to 250");
    refuses(f, 1, "bench comm --netns --hosts 251", "--hosts 251", "2 to 250");
    refuses(f, 1, "bench comm --netns --rate fast", "--rate fast", "gbit");
    refuses(f, 1, "bench comm --netns --rate 1kbit", "--rate 1kbit", "100kbit");
    refuses(f, 1, "bench comm --netns --count 5000000000", "--count 5000000000");
    refuses(f, 1, "bench comm --rate 1gbit", "go with --netns");
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(small),
        IN_FOLDER(ended_early),
        IN_FOLDER(refused),
    };
    return cmocka_run_group_tests_name("cli_netns", tests, NULL, NULL);
}
