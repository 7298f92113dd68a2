/* program.h: the program as a user runs it: in a folder of its own, with arguments, and what came
 * of it: exit status, standard output, standard error.
 *
 * It is looked for beside the test's own executable. Its environment has nothing of the user's that
 * could change a result, and its threads wait without spinning: tests share a machine. */
#pragma once
#include "tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <cmocka.h>

enum { PROGRAM_ARGS = 64, PROGRAM_SECONDS = 400, PROGRAM_KILLED = 1000 };

/* How to start it, besides the arguments. */
typedef struct how {
    const char *out;   /* standard output goes to this file; NULL: it is read; "": closed */
    rlim_t file_bytes; /* no file may grow beyond; 0: any may */
    bool deaf;         /* standard error is a pipe that nobody reads any more */
    const char *other; /* another program in its place: a path */
    bool leaks;        /* under a sanitizer: look for leaks at the end, which takes seconds */
} how;

typedef struct outcome {
    int status; /* of exit; PROGRAM_KILLED + the signal where one ended it */
    char *out, *err;
} outcome;

/* ---- files ---- */

/* The whole of a file and a zero byte; NULL: there is none. */
static inline char *read_whole(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    size_t n = 0, room = 1 << 16, got;
    char *text = malloc(room + 1);
    while (text && (got = fread(text + n, 1, room - n, f)) > 0)
        if ((n += got) == room) text = realloc(text, (room *= 2) + 1);
    fclose(f);
    assert_non_null(text);
    text[n] = '\0';
    if (size) *size = n;
    return text;
}

static inline void write_whole(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline void write_text(const char *path, const char *text)
{
    write_whole(path, text, strlen(text));
}

/* Lines of text with some order in them; 6,000 bytes. */
static inline void put_text(const char *path)
{
    static char text[6001];
    static const char *const words[] = {"in the beginning ", "was ", "a ring of rails ",
                                        "and on it ",        "ran ", "a train.\n"};
    size_t n = 0;
    for (unsigned i = 7; n < sizeof text - 32; i = i * 75 % 65537)
        n += (size_t)sprintf(text + n, "%s", words[i % 6]);
    write_whole(path, text, n);
}

static inline bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* Fails unless both files are there and hold the same bytes. */
static inline void assert_same_file(const char *a, const char *b)
{
    size_t na, nb;
    char *ta = read_whole(a, &na), *tb = read_whole(b, &nb);
    if (!ta || !tb) fail_msg("%s: no such file", ta ? b : a);
    size_t same = 0;
    while (same < na && same < nb && ta[same] == tb[same]) same++;
    if (same < na || same < nb)
        fail_msg("%s (%zu bytes) and %s (%zu bytes) differ from byte %zu on", a, na, b, nb, same);
    free(ta);
    free(tb);
}

static inline bool same_file(const char *a, const char *b)
{
    size_t na, nb;
    char *ta = read_whole(a, &na), *tb = read_whole(b, &nb);
    bool same = ta && tb && na == nb && !memcmp(ta, tb, na);
    free(ta);
    free(tb);
    return same;
}

/* ---- starting and waiting ---- */

static inline void program_path(char path[4096])
{
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    assert_true(n > 0);
    path[n] = '\0';
    strcpy(strrchr(path, '/') + 1, "loopline");
}

/* In the child: never returns. */
static inline void program_become(const char *folder, const how *h, char *const *argv)
{
    char path[4096];
    program_path(path);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no program running */
    signal(SIGHUP, SIG_DFL);          /* the tests themselves may run under nohup, */
    signal(SIGINT, SIG_DFL);          /* or behind a shell's & */
    int closed = h->out && !*h->out;
    const char *out = h->out && *h->out ? h->out : "stdout.txt";
    bool good = chdir(folder) == 0;
    good = good && dup2(open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666), 1) == 1;
    good = good && dup2(open("stderr.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666), 2) == 2;
    good = good && dup2(open("/dev/null", O_RDONLY), 0) == 0;
    int ends[2];
    if (h->deaf) good = good && pipe(ends) == 0 && dup2(ends[1], 2) == 2;
    for (int fd = 3; fd < 32; fd++) close(fd);
    if (closed) close(1);
    if (h->file_bytes) {
        struct rlimit most = {h->file_bytes, h->file_bytes};
        good = good && setrlimit(RLIMIT_FSIZE, &most) == 0;
    }
    char options[512];
    const char *given = getenv("ASAN_OPTIONS");
    snprintf(options, sizeof options, "%s:detect_leaks=%d", given ? given : "", h->leaks);
    setenv("ASAN_OPTIONS", options, 1);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    setenv("XDG_CACHE_HOME", folder, 1);
    unsetenv("LOOPLINE_DATA");
    if (good) execv(h->other ? h->other : path, argv);
    _exit(126);
}

/* Starts the program with the words up to NULL; returns its process. */
static inline pid_t program_start(const char *folder, const how *h, const char *const *words)
{
    char *argv[PROGRAM_ARGS + 2] = {(char *)"loopline"};
    int n = 1;
    for (; *words; words++) {
        assert_true(n <= PROGRAM_ARGS);
        argv[n++] = (char *)*words;
    }
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) program_become(folder, h ? h : &(how){0}, argv);
    return child;
}

static inline void sleep_ms(double ms)
{
    struct timespec t = {(time_t)(ms / 1e3), (long)(1e6 * ms) % 1000000000};
    while (nanosleep(&t, &t) && errno == EINTR) continue;
}

static inline outcome program_wait(const char *folder, pid_t child)
{
    int status;
    time_t began = time(NULL);
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (time(NULL) - began > PROGRAM_SECONDS) {
            kill(child, SIGKILL);
            fail_msg("the program still runs after %d seconds", PROGRAM_SECONDS);
        }
        sleep_ms(1);
    }
    char path[4096];
    outcome o = {0};
    o.status = WIFEXITED(status) ? WEXITSTATUS(status) : PROGRAM_KILLED + WTERMSIG(status);
    snprintf(path, sizeof path, "%s/stdout.txt", folder);
    o.out = read_whole(path, NULL);
    snprintf(path, sizeof path, "%s/stderr.txt", folder);
    o.err = read_whole(path, NULL);
    if (!o.out) o.out = strdup("");
    if (!o.err) o.err = strdup(""); /* it was killed before it was the program */
    assert_true(o.status != 126);
    return o;
}

static inline void outcome_free(outcome *o)
{
    free(o->out);
    free(o->err);
    *o = (outcome){0};
}

/* "train a.yaml --json" and then the words up to NULL; words has no quotes. */
static inline outcome program_run(const char *folder, const how *h, const char *line)
{
    char text[2048];
    const char *words[PROGRAM_ARGS + 1];
    int n = 0;
    assert_true(strlen(line) < sizeof text);
    strcpy(text, line);
    char *rest = NULL;
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
        assert_true(n < PROGRAM_ARGS);
        words[n++] = w;
    }
    words[n] = NULL;
    return program_wait(folder, program_start(folder, h, words));
}

/* ---- what one expects ---- */

/* Runs it; fails unless it succeeds; the caller frees. */
static inline outcome succeeds(const char *folder, const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    outcome o = program_run(folder, NULL, line);
    if (o.status) fail_msg("loopline %s: status %d\n%s", line, o.status, o.err);
    return o;
}

/* The same where only the success matters. */
#define must(...)                                                                                  \
    do {                                                                                           \
        outcome o_ = succeeds(__VA_ARGS__);                                                        \
        outcome_free(&o_);                                                                         \
    } while (0)

/* Fails with this status; the last line of standard error holds every one of the texts (up to
 * NULL), and standard output is empty. */
static inline void refuses_how(const char *folder, const how *h, int status, const char *line,
                               const char *const *texts)
{
    outcome o = program_run(folder, h, line);
    if (o.status != status)
        fail_msg("loopline %s: status %d, expected %d\n%s", line, o.status, status, o.err);
    size_t n = strlen(o.err);
    if (n == 0 || o.err[n - 1] != '\n') fail_msg("loopline %s: no whole line: '%s'", line, o.err);
    o.err[n - 1] = '\0';
    const char *last = strrchr(o.err, '\n');
    last = last ? last + 1 : o.err;
    for (; *texts; texts++)
        if (!strstr(last, *texts))
            fail_msg("loopline %s: '%s', expected '%s' in it", line, last, *texts);
    if (*o.out) fail_msg("loopline %s: standard output has '%.200s'", line, o.out);
    outcome_free(&o);
}

#define refuses(folder, status, line, ...)                                                         \
    refuses_how(folder, NULL, status, line, (const char *const[]){__VA_ARGS__, NULL})

/* Text that must be one JSON value and nothing else. */
static inline json_t *json_of(const char *text)
{
    json_error_t why;
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!j) fail_msg("not one JSON value: %s (line %d)\n%s", why.text, why.line, text);
    return j;
}

/* Succeeds and prints one JSON value; the caller lets go of it. */
static inline json_t *prints_json(const char *folder, const char *line)
{
    outcome o = succeeds(folder, "%s", line);
    json_t *j = json_of(o.out);
    outcome_free(&o);
    return j;
}

static inline double json_num(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);
    if (!json_is_number(v)) fail_msg("%s is not a number", key);
    return json_number_value(v);
}
