/* beside_python.h: models beside Python's: a script leaves weights, batches and what they give in a
 * folder, and looks at what is exported. LOOPLINE_PYTHON names another python3. */
#pragma once
#include "exec/session.h"
#include "no_error.h"
#include "tmpdir.h"

#include <math.h>
#include <sys/wait.h>

/* The script's status: 77 where it lacks a package, and the test is skipped. */
static int python(const char *script, const char *first, const char *second)
{
    char line[4096];
    const char *other = getenv("LOOPLINE_PYTHON");
    snprintf(line, sizeof line, "%s '" LL_TESTS "/weights/%s' %s %s", other ? other : "python3",
             script, first, second);
    int rc = system(line);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : 1;
}

/* A file of just so many bytes, for free. */
static void *read_bytes(void **state, const char *name, size_t bytes)
{
    FILE *f = fopen(tmpdir_path(state, name), "rb");
    void *data = malloc(bytes + 1);
    assert_non_null(f);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, bytes + 1, f), bytes);
    fclose(f);
    return data;
}

/* A result of the session's beside the file that Python left. */
static void same_result(void **state, ll_session *s, const ll_graph *g, const char *result,
                        const char *file)
{
    ll_shape shape = ll_graph_shape(g, ll_find_result(g, result));
    int64_t n = ll_numel(&shape);
    size_t bytes = (size_t)n * sizeof(float);
    float *want = (float *)read_bytes(state, file, bytes), *have = (float *)malloc(bytes);
    no_error(ll_session_get(s, result, have, bytes));
    double most = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        double apart = fabs((double)have[i] - (double)want[i]);
        most = fmax(most, fabs((double)want[i]));
        if (!(apart <= off)) off = apart; /* NaN stays */
    }
    printf("%s: up to %.3g, off by %.2g\n", file, most, off);
    assert_true(most > 1e-3 && off <= 1e-4);
    free(want);
    free(have);
}
