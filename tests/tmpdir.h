/* tmpdir.h: a folder of its own for each test, and what lies in it. */
#pragma once
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* cmocka set-up and tear-down: *state is the folder's name. */
static inline int tmpdir_setup(void **state)
{
    char *path = strdup("/tmp/loopline-test-XXXXXX");
    if (!path || !mkdtemp(path)) return -1;
    *state = path;
    return 0;
}

static inline int tmpdir_teardown(void **state)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", (const char *)*state);
    int rc = system(command);
    free(*state);
    return rc;
}

/* "folder/name", in one of a few buffers that take turns. */
static inline const char *tmpdir_path(void *const *state, const char *name)
{
    static char paths[8][512];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", (const char *)*state, name);
    return path;
}

/* Files in a folder, "." and ".." not counted; -1: no such folder. */
static inline int tmpdir_count(const char *folder)
{
    DIR *d = opendir(folder);
    if (!d) return -1;
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    return n;
}
