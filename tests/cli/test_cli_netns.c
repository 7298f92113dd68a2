/* scripts/netns.sh: bench comm between two hosts with shaped links; a run that is ended early; what
 * is refused. Nothing may stay behind. Needs root and iproute2: elsewhere it says so and passes. */
#include "cli/launch.h"
#include "cli/ranks.h"

enum { CANNOT = 77 }; /* the script's status where it cannot be done here */

/* Hosts of a script that no longer runs: their names begin with ll and the script's process. */
static int hosts_left_behind(pid_t script)
{
    int n = 0;
    char name[32];
    snprintf(name, sizeof name, "ll%ldh", (long)script);
    DIR *d = opendir("/run/netns");
    for (struct dirent *e; d && (e = readdir(d));) n += !strncmp(e->d_name, name, strlen(name));
    if (d) closedir(d);
    return n;
}

/* netns.sh run HOSTS loopline bench comm WORDS, up to NULL, at a rate; end: when hosts are. */
static outcome between_hosts(const char *folder, const char *hosts, const char *rate, bool end,
                             const char *const *words)
{
    char script[4096], program[4096];
    const char *argv[32] = {script, "run", hosts, program, "bench", "comm"};
    int n = 6;
    assert_non_null(realpath("scripts/netns.sh", script));
    program_path(program);
    while (*words) argv[n++] = *words++;
    setenv("NETNS_RATE", rate, 1);
    setenv("NETNS_MPIEXEC", ll_cli_mpiexec(), 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    pid_t child = program_start(folder, &(how){.other = "/bin/bash"}, argv);
    if (end) {
        char host[64];
        snprintf(host, sizeof host, "/run/netns/ll%ldh%s", (long)child, hosts);
        while (!program_over(child) && !file_exists(host)) sleep_ms(5);
        sleep_ms(1000); /* some run on them by then */
        kill(child, SIGTERM);
    }
    outcome o = program_wait(folder, child);
    if (o.status == CANNOT) print_message("skipped: %s", o.err);
    assert_int_equal(hosts_left_behind(child), 0);
    return o;
}

static void small(void **state)
{
    static const char *const words[] = {"--sizes",   "2000000", "--algorithms", "ring,mpi",
                                        "--seconds", "0.5",     "--codec",      "qsgd:4",
                                        "--table",   "",        "--json",       NULL};
    outcome o = between_hosts(*state, "2", "800mbit", false, words);
    if (o.status != CANNOT) {
        if (o.status) fail_msg("status %d\n%s", o.status, o.err);
        json_t *list = json_of(o.out), *r;
        size_t i;
        assert_true(json_array_size(list) >= 3);
        json_array_foreach(list, i, r)
        {
            bool codec = json_is_true(json_object_get(r, "codec"));
            assert_int_equal((int)json_num(r, "ranks"), 2);
            assert_int_equal((int)json_num(r, "nodes"), 2);
            /* 20 ms at this rate; a burst may pass at once, a millisecond's worth at most. */
            assert_true(json_num(r, "min_us") > (codec ? 10 : 15e3));
            if (codec) assert_true(json_num(r, "bytes_on_wire") <= 300000);
        }
        json_decref(list);
    }
    outcome_free(&o);
}

static void ended_early(void **state)
{
    static const char *const words[] = {"--sizes", "80M", "--table", "", NULL};
    outcome o = between_hosts(*state, "2", "10mbit", true, words);
    if (o.status != CANNOT) assert_int_equal(o.status, 143);
    outcome_free(&o);
}

/* A namespace of the same name is somebody else's: it stays, whatever becomes of ours. */
static void leaves_others_alone(void **state)
{
    char script[4096], mine[64], command[256];
    snprintf(mine, sizeof mine, "lo%d", (int)getpid());
    assert_non_null(realpath("scripts/netns.sh", script));
    snprintf(command, sizeof command, "ip netns add %sh2 2>/dev/null", mine);
    if (geteuid() != 0 || system(command) != 0) {
        print_message("skipped: no network namespaces here\n");
        return;
    }
    setenv("NETNS_PREFIX", mine, 1);
    setenv("NETNS_RATE", "none", 1);
    const char *argv[] = {script, "up", "3", NULL};
    pid_t child = program_start(*state, &(how){.other = "/bin/bash"}, argv);
    outcome o = program_wait(*state, child);
    unsetenv("NETNS_PREFIX");
    assert_int_equal(o.status, CANNOT);
    char path[128];
    snprintf(path, sizeof path, "/run/netns/%sh2", mine);
    bool there = file_exists(path);
    snprintf(path, sizeof path, "/run/netns/%sh1", mine);
    bool ours = file_exists(path);
    snprintf(command, sizeof command, "ip netns del %sh2", mine);
    assert_int_equal(system(command), 0);
    assert_true(there);
    assert_false(ours);
    outcome_free(&o);
}

static void refused(void **state)
{
    static const struct {
        const char *hosts, *rate, *says;
    } cases[] = {{"0", "1gbit", "want 1 to 250"},
                 {"251", "1gbit", "want 1 to 250"},
                 {"2", "fast", "mbit or gbit"},
                 {"2", "1kbit", "100kbit at least"}};
    for (int i = 0; i < 4; i++) {
        outcome o =
            between_hosts(*state, cases[i].hosts, cases[i].rate, false, (const char *[]){NULL});
        if (o.status != CANNOT) {
            assert_int_equal(o.status, 2);
            assert_non_null(strstr(o.err, cases[i].says));
        }
        outcome_free(&o);
    }
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(small),
        IN_FOLDER(ended_early),
        IN_FOLDER(leaves_others_alone),
        IN_FOLDER(refused),
    };
    return cmocka_run_group_tests_name("cli_netns", tests, NULL, NULL);
}
