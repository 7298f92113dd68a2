/* check.c: ONNX's own tests. Each runs in a process of its own, so that one that crashes or does
 * not end is one that failed. What cannot be declared is "not supported"; a number, type or shape
 * other than the one that was wanted, or a file that cannot be read, is a failure. */
#include "onnx/scope.h"
#include "base/file.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 120, MAX_REASON = 600 };
#define RTOL 1e-3 /* ONNX's own; bf16, whose steps are larger: two steps */
#define ATOL 1e-7
#define RTOL_BF16 0x1p-6

/* What a test's process tells. */
typedef struct outcome {
    ll_onnx_status status;
    double max_error;
    char reason[MAX_REASON];
} outcome;

static void differ(outcome *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void differ(outcome *r, const char *format, ...)
{
    va_list list;
    if (r->status == LL_ONNX_FAILED) return;
    va_start(list, format);
    vsnprintf(r->reason, sizeof r->reason, format, list);
    va_end(list);
    r->status = LL_ONNX_FAILED;
}

static ll_err read_tensor(ll_arena *a, const char *path, const Onnx__ValueInfo *info,
                          const host **out)
{
    LL_OWN_MEMORY uint8_t *data = NULL;
    size_t size;
    ProtobufCMessage *m;
    TRY(ll_file_read(path, (size_t)1 << 31, &data, &size));
    TRY(ll_onnx_unpack(&onnx__tensor__descriptor, data, size, path, a, &m));
    int declared = info->type && info->type->tensor_type ? info->type->tensor_type->elem_type : 0;
    return ll_onnx_tensor((const Onnx__Tensor *)m, declared, NULL, a, out);
}

static void compare(const char *name, const host *have, const host *want, outcome *r)
{
    char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT];
    if (have->type != want->type)
        differ(r, "%s is %s, expected %s", name, ll_onnx_type_name(have->type),
               ll_onnx_type_name(want->type));
    else if (!ll_shape_equal(&have->shape, &want->shape))
        differ(r, "%s has shape %s, expected %s", name, ll_shape_print(&have->shape, a),
               ll_shape_print(&want->shape, b));
    int64_t n = r->status == LL_ONNX_FAILED ? 0 : ll_numel(&want->shape);
    for (int64_t i = 0; i < n; i++) {
        double x = ll_onnx_at(have, i), y = ll_onnx_at(want, i), d = fabs(x - y);
        if ((isnan(x) && isnan(y)) || x == y) continue;
        if (d > r->max_error) r->max_error = d;
        if (!(d <= ATOL + (want->type == ONNX_BFLOAT16 ? RTOL_BF16 : RTOL) * fabs(y)))
            differ(r, "%s[%ld] is %.9g, expected %.9g", name, i, x, y);
    }
}

/* ---- one set of inputs and outputs ---- */

typedef struct test {
    ll_arena *arena;
    const ll_onnx *m;
    const char *folder, *machine; /* folder: of the set */
    outcome *r;
} test;

static ll_err inputs(test *t, int n, Onnx__ValueInfo *const *info, value **in)
{
    for (int i = 0; i < n; i++) {
        const char *path = ll_arena_printf(t->arena, "%s/input_%d.pb", t->folder, i);
        in[i] = LL_NEW(t->arena, value);
        in[i]->name = info[i]->name;
        CHECK(info[i]->type && info[i]->type->tensor_type, LL_E_ARG, "input %s is not a tensor",
              info[i]->name);
        TRY(read_tensor(t->arena, path, info[i], &in[i]->host));
        in[i]->type = in[i]->host->type;
        in[i]->shape = in[i]->host->shape;
    }
    return LL_OK;
}

/* The types that ONNX has more bits for: a result at their end was cut off. */
static bool cut_off(const host *h)
{
    for (int64_t i = 0; i < ll_numel(&h->shape) && ll_onnx_whole(h->type); i++)
        if (llabs(((const int64_t *)h->data)[i]) >= INT32_MAX) return true;
    return false;
}

static ll_err run_set(test *t, walk *w)
{
    const Onnx__Graph *g = t->m->model->graph;
    int n, n_out = (int)g->n_output;
    Onnx__ValueInfo **info = ll_onnx_inputs(t->arena, t->m, &n);
    value **in = LL_NEW_ARRAY(t->arena, value *, n + 1),
          **out = LL_NEW_ARRAY(t->arena, value *, n_out + 1);
    op top = {.w = w, .g = w->g};
    bool compute = false;
    TRY(inputs(t, n, info, in));
    TRY(ll_onnx_walk(w, in, out));
    for (int i = 0; i < n_out; i++) {
        if (ll_onnx_host_of(w, out[i])) continue;
        ll_onnx_result(&top, i, out[i]);
        compute = true;
    }
    if (compute) TRY(ll_onnx_run(w, &(ll_session_opts){.machine = t->machine}, n_out, out));
    for (int i = 0; i < n_out; i++) {
        const host *want;
        const char *path = ll_arena_printf(t->arena, "%s/output_%d.pb", t->folder, i);
        TRY(read_tensor(t->arena, path, g->output[i], &want));
        CHECK(!compute || !cut_off(want), LL_E_ARG, "whole numbers of more than 32 bits");
        compare(g->output[i]->name, out[i]->host, want, t->r);
    }
    return LL_OK;
}

static void run_test(const char *folder, const char *machine, outcome *r)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_onnx *m;
    ll_err rc = ll_onnx_load(a, ll_arena_printf(a, "%s/model.onnx", folder), &m);
    if (rc != LL_OK) differ(r, "%s", ll_error_message());
    int k = 0;
    for (; rc == LL_OK; k++) {
        const char *set = ll_arena_printf(a, "%s/test_data_set_%d", folder, k);
        if (access(set, F_OK)) break;
        test t = {a, m, set, machine, r};
        walk w = {.arena = a, .g = ll_graph_new("test"), .m = m};
        rc = run_set(&t, &w);
        ll_graph_free(w.g);
        if (rc == LL_E_IO) {
            differ(r, "%s", ll_error_message());
        } else if (rc != LL_OK) {
            r->status = LL_ONNX_NOT_SUPPORTED;
            snprintf(r->reason, sizeof r->reason, "%s", ll_error_message());
        }
    }
    if (rc == LL_OK && !k) differ(r, "no test_data_set_0");
}

/* ---- processes ---- */

static ll_err isolated(const char *folder, const char *machine, outcome *r)
{
    int fd[2], status;
    CHECK(!pipe(fd), LL_E_SYS, "pipe: %m");
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0, LL_E_SYS, "fork: %m");
    if (!pid) {
        outcome mine = {.status = LL_ONNX_PASSED};
        close(fd[0]);
        alarm(SECONDS);
        run_test(folder, machine, &mine);
        _exit(write(fd[1], &mine, sizeof mine) == sizeof mine ? 0 : 1);
    }
    close(fd[1]);
    ssize_t n = read(fd[0], r, sizeof *r);
    close(fd[0]);
    CHECK(waitpid(pid, &status, 0) == pid, LL_E_SYS, "waitpid: %m");
    if (n == sizeof *r) return LL_OK;
    *r = (outcome){.status = LL_ONNX_PASSED, .max_error = NAN};
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        differ(r, "took longer than %d s", SECONDS);
    else if (WIFSIGNALED(status))
        differ(r, "ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        differ(r, "ended by itself");
    return LL_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Folders in folder that have a model, sorted; folder itself, where it has one. */
static ll_err find(const char *folder, ll_arena *a, const char ***out, int *count)
{
    const char **list = NULL;
    int n = 0, capacity = 0;
    LL_OWN(DIR) d = opendir(folder);
    CHECK(d, LL_E_IO, "%s cannot be opened: %m", folder);
    bool itself = !access(ll_arena_printf(a, "%s/model.onnx", folder), F_OK);
    for (struct dirent *e; !itself && (e = readdir(d));) {
        if (e->d_name[0] == '.' ||
            access(ll_arena_printf(a, "%s/%s/model.onnx", folder, e->d_name), F_OK))
            continue;
        LL_PUSH(a, list, n, capacity, ll_arena_printf(a, "%s/%s", folder, e->d_name));
    }
    if (itself) LL_PUSH(a, list, n, capacity, folder);
    CHECK(n, LL_E_IO, "%s contains neither model.onnx nor folders with one", folder);
    qsort(list, (size_t)n, sizeof *list, by_name);
    *out = list;
    *count = n;
    return LL_OK;
}

ll_err ll_onnx_check(const char *folder, const char *machine, ll_arena *arena, ll_onnx_report *out)
{
    const char **list;
    int n;
    TRY(find(folder, arena, &list, &n));
    ll_onnx_test *all = LL_NEW_ARRAY(arena, ll_onnx_test, out->n + n);
    if (out->n) memcpy(all, out->tests, sizeof *all * (size_t)out->n);
    for (int i = 0; i < n; i++) {
        outcome r = {0};
        TRY(isolated(list[i], machine, &r));
        const char *name = ll_base_name(list[i]);
        all[out->n++] =
            (ll_onnx_test){*name ? name : list[i], r.status, ll_arena_strdup(arena, r.reason),
                           r.status == LL_ONNX_NOT_SUPPORTED ? NAN : r.max_error};
        out->count[r.status]++;
    }
    out->tests = all;
    return LL_OK;
}
