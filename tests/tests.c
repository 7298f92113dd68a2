/* Tests in one program (see CMakeLists.txt), which runs those that its words name, in turn. */
#include <omp.h>
#include <stdio.h>
#include <string.h>

#define TEST(name) int main_##name(int argc, char **argv);
#include "test_list.inc"
#undef TEST

static const struct {
    const char *name;
    int (*run)(int, char **);
} tests[] = {
#define TEST(name) {#name, main_##name},
#include "test_list.inc"
};

static int run(const char *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(tests[i].name, name) == 0) {
            char *argv[] = {(char *)name, NULL};
            printf("== %s\n", name);
            fflush(stdout);
            int rc = tests[i].run(1, argv);
            return rc == 77 ? 0 : rc; /* skipped */
        }
    fprintf(stderr, "there is no test %s\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    int failed = argc < 2;
    for (int i = 1; i < argc; i++) failed |= run(argv[i]) != 0;
    omp_pause_resource_all(omp_pause_hard); /* the search for leaks stumbles over threads' memory */
    return failed;
}
