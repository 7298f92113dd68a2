/* metrics.c: lines go to the file whole, one write each, so a reader sees no half line and a killed
 * process loses at most the line it was writing. */
#include "train/metrics.h"
#include "base/file.h"
#include "base/text.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_OWED = 1 << 24 };

struct ll_metrics {
    ll_arena *arena;
    const char *path;
    int fd;
    ll_buf line, owed; /* owed: lines that found the disk full */
};

ll_err ll_metrics_lines(const char *path, int64_t keep_to,
                        void (*each)(void *context, int64_t step, const json_t *line),
                        void *context, size_t *kept)
{
    LL_OWN_MEMORY uint8_t *bytes = NULL;
    size_t n;
    *kept = 0;
    TRY(ll_file_read(path, SIZE_MAX / 4, &bytes, &n));
    const char *text = (const char *)bytes, *end;
    for (int number = 1; *kept < n && (end = strchr(text + *kept, '\n')); number++) {
        json_t *line = json_loadb(text + *kept, (size_t)(end - text) - *kept, 0, NULL);
        const json_t *value = json_object_get(line, "step");
        bool good = json_is_integer(value);
        int64_t step = json_integer_value(value);
        if (good && each && step <= keep_to) each(context, step, line);
        json_decref(line);
        CHECK(good, LL_E_IO, "%s: line %d is not an object with a whole number \"step\"", path,
              number);
        if (step > keep_to) break;
        *kept = (size_t)(end + 1 - text);
    }
    return LL_OK;
}

ll_err ll_metrics_open(const char *path, int64_t keep_to, ll_metrics **out)
{
    *out = NULL;
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (keep_to < 0 ? O_TRUNC : 0);
    LL_OWN_FD int fd = open(path, flags, 0666);
    CHECK(fd >= 0, LL_E_IO, "%s: %m", path);
    if (keep_to >= 0) {
        size_t kept;
        TRY(ll_metrics_lines(path, keep_to, NULL, NULL, &kept));
        CHECK(ftruncate(fd, (off_t)kept) == 0, LL_E_IO, "%s: cutting to %zu bytes: %m", path, kept);
    }
    ll_arena *a = ll_arena_new();
    ll_metrics *m = LL_NEW(a, ll_metrics);
    *m = (ll_metrics){.arena = a,
                      .path = ll_arena_strdup(a, path),
                      .fd = fd,
                      .line = {.arena = a},
                      .owed = {.arena = a}};
    *out = m;
    fd = -1;
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
    ll_buf_printf(&m->line, "{\"step\":%ld", step);
}

void ll_metrics_int(ll_metrics *m, const char *key, int64_t value)
{
    add_key(m, key);
    ll_buf_printf(&m->line, "%ld", value);
}

void ll_metrics_num(ll_metrics *m, const char *key, double value)
{
    char text[LL_NUMBER_TEXT];
    add_key(m, key);
    ll_buf_puts(&m->line, ll_text_number(value, text));
}

ll_err ll_metrics_end(ll_metrics *m)
{
    struct stat st;
    CHECK(fstat(m->fd, &st) != 0 || st.st_nlink > 0, LL_E_IO,
          "%s was removed while the run wrote it: what was logged so far is lost", m->path);
    ll_buf_puts(&m->line, "}\n");
    ll_buf_add(&m->owed, m->line.text, m->line.len);
    return ll_metrics_flush(m, false);
}

ll_err ll_metrics_flush(ll_metrics *m, bool last)
{
    bool full = false;
    if (m->owed.len) TRY(ll_append(m->fd, m->path, m->owed.text, m->owed.len, &full));
    CHECK(!full || (!last && m->owed.len < MOST_OWED), LL_E_IO, "%s: the disk is full", m->path);
    if (!full) m->owed.len = 0;
    return LL_OK;
}

void ll_metrics_close(ll_metrics *m)
{
    if (!m) return;
    close(m->fd);
    ll_arena_free(m->arena);
}
