/* metrics.c: lines go to the file whole, one write each, so a reader sees no half line and a killed
 * process loses at most the line it was writing. */
#include "train/metrics.h"
#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ll_metrics {
    ll_arena *arena;
    const char *path;
    int fd;
    ll_buf line;
};

/* The step a line tells. */
static ll_err step_of_line(const char *path, int number, const char *text, size_t n, int64_t *step)
{
    json_error_t why;
    json_t *line = json_loadb(text, n, 0, &why);
    const json_t *value = json_object_get(line, "step");
    bool good = json_is_integer(value);
    *step = json_integer_value(value);
    json_decref(line);
    CHECK(good, LL_E_IO, "%s: line %d is not an object with a whole number \"step\"", path, number);
    return LL_OK;
}

/* Bytes of the lines up to step keep_to. */
static ll_err kept_bytes(const char *path, const char *text, size_t n, int64_t keep_to,
                         size_t *kept)
{
    *kept = 0;
    for (int number = 1; *kept < n; number++) {
        const char *line = text + *kept;
        const char *end = (const char *)memchr(line, '\n', n - *kept);
        if (!end) return LL_OK; /* unfinished */
        int64_t step = 0;
        TRY(step_of_line(path, number, line, (size_t)(end - line), &step));
        if (step > keep_to) return LL_OK;
        *kept = (size_t)(end + 1 - text);
    }
    return LL_OK;
}

static ll_err drop_after(const char *path, int fd, int64_t keep_to)
{
    uint8_t *text;
    size_t n, kept = 0;
    TRY(ll_file_read(path, SIZE_MAX / 4, &text, &n));
    ll_err rc = kept_bytes(path, (const char *)text, n, keep_to, &kept);
    free(text);
    TRY(rc);
    CHECK(ftruncate(fd, (off_t)kept) == 0, LL_E_IO, "%s: cutting to %zu bytes: %s", path, kept,
          strerror(errno));
    return LL_OK;
}

ll_err ll_metrics_open(const char *path, int64_t keep_to, ll_metrics **out)
{
    *out = NULL;
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (keep_to < 0 ? O_TRUNC : 0);
    int fd = open(path, flags, 0666);
    CHECK(fd >= 0, LL_E_IO, "%s: %s", path, strerror(errno));
    ll_err rc = keep_to < 0 ? LL_OK : drop_after(path, fd, keep_to);
    if (rc != LL_OK) {
        close(fd);
        return rc;
    }
    ll_arena *a = ll_arena_new();
    ll_metrics *m = LL_NEW(a, ll_metrics);
    *m = (ll_metrics){.arena = a, .path = ll_arena_strdup(a, path), .fd = fd, .line = {.arena = a}};
    *out = m;
    return LL_OK;
}

static void add_key(ll_metrics *m, const char *key)
{
    ll_buf_puts(&m->line, ",");
    ll_buf_json(&m->line, key);
    ll_buf_puts(&m->line, ":");
}

void ll_metrics_begin(ll_metrics *m, int64_t step)
{
    m->line.len = 0;
    ll_buf_printf(&m->line, "{\"step\":%lld", (long long)step);
}

void ll_metrics_int(ll_metrics *m, const char *key, int64_t value)
{
    add_key(m, key);
    ll_buf_printf(&m->line, "%lld", (long long)value);
}

void ll_metrics_num(ll_metrics *m, const char *key, double value)
{
    char text[LL_NUMBER_TEXT];
    add_key(m, key);
    ll_buf_puts(&m->line, ll_text_number(value, text));
}

ll_err ll_metrics_end(ll_metrics *m)
{
    ll_buf_puts(&m->line, "}\n");
    return ll_write_all(m->fd, m->path, m->line.text, m->line.len);
}

void ll_metrics_close(ll_metrics *m)
{
    if (!m) return;
    close(m->fd);
    ll_arena_free(m->arena);
}
