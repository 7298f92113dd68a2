/* A node described to hwloc (HWLOC_XMLFILE) in place of this one: two sockets of four cores and two
 * GPUs each, a network device beside each pair, which GPU 3 shares a bridge with. */
#define _GNU_SOURCE /* sets of CPUs */
#include "machine/near.h"

#include "tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const buses[] = {"0000:01:00.0", "0000:02:00.0", "0000:41:00.0", "0000:42:00.0"};

static int gp = 1;

static void open_object(FILE *f, const char *type, int index, unsigned cpus, unsigned nodes)
{
    fprintf(f,
            "<object type=\"%s\" os_index=\"%d\" cpuset=\"0x%x\" complete_cpuset=\"0x%x\" "
            "nodeset=\"0x%x\" complete_nodeset=\"0x%x\" gp_index=\"%d\"",
            type, index, cpus, cpus, nodes, nodes, gp++);
}

static void pci(FILE *f, const char *bus, const char *type, const char *class_, const char *os)
{
    fprintf(f,
            "<object type=\"PCIDev\" os_index=\"%d\" gp_index=\"%d\" pci_busid=\"%s\" "
            "pci_type=\"%s [10de:2335] [10de:18be] a1\" pci_link_speed=\"0\">",
            gp * 16, gp, bus, type);
    gp++;
    if (os)
        fprintf(f, "<object type=\"OSDev\" gp_index=\"%d\" name=\"%s\" osdev_type=\"%s\"/>", gp, os,
                class_);
    gp++;
    fprintf(f, "</object>\n");
}

static void bridge(FILE *f, bool host, int from, int to)
{
    fprintf(f, "<object type=\"Bridge\" os_index=\"%d\" gp_index=\"%d\" bridge_type=\"%d-1\" ",
            gp * 16, gp, !host);
    fprintf(f, "depth=\"%d\" bridge_pci=\"0000:[%02x-%02x]\"", host ? 0 : 1, from, to);
    if (!host)
        fprintf(f,
                " pci_busid=\"0000:%02x:01.0\" pci_type=\"0604 [1000:c010] [1000:0] b0\" "
                "pci_link_speed=\"0\"",
                from);
    gp++;
    fprintf(f, ">\n");
}

static void write_node(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM "
               "\"hwloc2.dtd\">\n<topology version=\"2.0\">\n");
    open_object(f, "Machine", 0, 0xff, 3);
    fprintf(f, " allowed_cpuset=\"0xff\" allowed_nodeset=\"0x3\">\n");
    for (int s = 0; s < 2; s++) {
        unsigned cpus = s ? 0xf0 : 0xf, nodes = 1u << s;
        open_object(f, "Package", s, cpus, nodes);
        fprintf(f, ">\n");
        open_object(f, "NUMANode", s, cpus, nodes);
        fprintf(f, " local_memory=\"1073741824\"/>\n");
        for (int c = 4 * s; c < 4 * s + 4; c++) {
            open_object(f, "Core", c, 1u << c, nodes);
            fprintf(f, ">");
            open_object(f, "PU", c, 1u << c, nodes);
            fprintf(f, "/></object>\n");
        }
        int at = s ? 0x40 : 0;
        bridge(f, true, at, at + 0x1f);
        pci(f, buses[2 * s], "0302", NULL, NULL);
        if (s) bridge(f, false, at + 2, at + 3);
        pci(f, buses[2 * s + 1], "0302", NULL, NULL);
        if (s) pci(f, "0000:43:00.0", "0207", "3", "mlx5_1");
        if (s) fprintf(f, "</object>\n");
        pci(f, s ? "0000:44:00.0" : "0000:03:00.0", "0200", "2", s ? "eth1" : "eth0");
        if (!s) pci(f, "0000:04:00.0", "0207", "3", "mlx5_0");
        if (s) pci(f, "0000:45:00.0", "0207", "3", "mlx5_2");
        fprintf(f, "</object></object>\n");
    }
    fprintf(f, "</object></topology>\n");
    fclose(f);
}

static cpu_set_t cores(int from, int to)
{
    cpu_set_t s;
    CPU_ZERO(&s);
    for (int i = from; i <= to; i++) CPU_SET(i, &s);
    return s;
}

static int setup(void **state)
{
    int rc = tmpdir_setup(state);
    if (rc) return rc;
    write_node(tmpdir_path(state, "node.xml"));
    return setenv("HWLOC_XMLFILE", tmpdir_path(state, "node.xml"), 1);
}

static void what_is_near(void **state)
{
    (void)state;
    ll_nearby d[5];
    const char *const five[] = {buses[0], buses[1], buses[2], buses[3], "0000:99:00.0"};
    ll_near_find(five, 5, d);
    for (int i = 0; i < 4; i++) {
        cpu_set_t want = i < 2 ? cores(0, 3) : cores(4, 7);
        assert_true(CPU_EQUAL(&d[i].cpus, &want));
        assert_int_equal(d[i].memory, i / 2);
    }
    assert_string_equal(d[0].nic, "mlx5_0");
    assert_string_equal(d[2].nic, "mlx5_1, mlx5_2");
    assert_string_equal(d[3].nic, "mlx5_1");
    assert_true(CPU_COUNT(&d[4].cpus) == 0 && d[4].memory == -1 && !*d[4].nic);
    char text[128];
    cpu_set_t few = cores(4, 5);
    ll_near_tell(buses[3], &d[3], &few, text, sizeof text);
    assert_string_equal(text, "0000:42:00.0, memory of node 1, NIC mlx5_1; cores 4-5");
    ll_near_tell(buses[0], &d[0], &few, text, sizeof text);
    assert_string_equal(text, "0000:01:00.0, memory of node 0, NIC mlx5_0; cores 4-5, far from it");
    CPU_SET(7, &few);
    ll_near_tell(five[4], &d[4], &few, text, sizeof text);
    assert_string_equal(text, "0000:99:00.0; cores 4-5,7");
}

/* Each of n ranks with so many cores, from `first` on. */
static void choose(int n, int first, int each, const int *want)
{
    ll_nearby d[4];
    cpu_set_t sets[8];
    ll_near_find(buses, 4, d);
    for (int r = 0; r < n; r++) {
        int from = (first + r * each) % 8;
        sets[r] = cores(from, from + each - 1);
    }
    for (int r = 0; r < n; r++) assert_int_equal(ll_near_choose(d, 4, sets, n, r), want[r]);
}

static void who_takes_which(void **state)
{
    (void)state;
    choose(4, 0, 2, (const int[]){0, 1, 2, 3});
    choose(4, 4, 2, (const int[]){2, 3, 0, 1});
    choose(2, 0, 4, (const int[]){0, 2});
    choose(8, 0, 1, (const int[]){0, 1, 0, 1, 2, 3, 2, 3});
    choose(3, 0, 8, (const int[]){0, 1, 2}); /* of cores that all have */
    ll_nearby unknown[2] = {{.memory = -1}, {.memory = -1}};
    cpu_set_t sets[3] = {cores(0, 0), cores(1, 1), cores(2, 2)};
    for (int r = 0; r < 3; r++) assert_int_equal(ll_near_choose(unknown, 2, sets, 3, r), r % 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_near),
        cmocka_unit_test(who_takes_which),
    };
    return cmocka_run_group_tests_name("near", tests, setup, tmpdir_teardown);
}
