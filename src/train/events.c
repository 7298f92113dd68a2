/* events.c: a file is a row of records, each
 *
 *     length, 8 bytes | masked CRC-32C of those 8 | the message | masked CRC-32C of the message
 *
 * (little endian; masking turns the sum right by 15 bits and adds a constant, so that a sum stored
 * in data is not mistaken for one). A message is a protocol buffer, of which four fields serve:
 *
 *     Event    1 wall_time (double)  2 step (varint)  3 file_version (text)  5 summary
 *              7 session_log { 1 status (varint): 1 is START }
 *     Summary  1 value { 1 tag (text)  2 simple_value (float) } */
#include "train/events.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/text.h"
#include "train/recovery.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define FLUSH_EVERY_S 2.0
#define PREFIX "events.out.tfevents."

struct ll_events {
    ll_arena *arena;
    const char *path;
    int fd;
    double flushed_at;
    ll_buf event, value, pending;
};

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(ll_buf *b, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; v >= 128; v >>= 7) bytes[n++] = (uint8_t)(v | 128);
    bytes[n++] = (uint8_t)v;
    ll_buf_add(b, bytes, n);
}

static void put_key(ll_buf *b, int field, int kind)
{
    put_varint(b, (uint64_t)(field << 3 | kind));
}

static void put_bytes(ll_buf *b, int field, const void *data, size_t n)
{
    put_key(b, field, BYTES);
    put_varint(b, n);
    ll_buf_add(b, data, n);
}

static uint32_t masked_crc(const void *data, size_t n)
{
    uint32_t crc = ll_crc32c(0, data, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Begins e->event; what happened is added to it, then end_event. */
static void begin_event(ll_events *e, int64_t step)
{
    double now = ll_wall_now();
    e->event.len = 0;
    put_key(&e->event, 1, FIXED64);
    ll_buf_add(&e->event, &now, 8);
    put_key(&e->event, 2, VARINT);
    put_varint(&e->event, (uint64_t)step);
}

static void end_event(ll_events *e)
{
    uint64_t length = e->event.len;
    uint32_t sum = masked_crc(&length, 8);
    ll_buf_add(&e->pending, &length, 8);
    ll_buf_add(&e->pending, &sum, 4);
    ll_buf_add(&e->pending, e->event.text, e->event.len);
    sum = masked_crc(e->event.text, e->event.len);
    ll_buf_add(&e->pending, &sum, 4);
}

static ll_err write_head(ll_events *e, int64_t first_step)
{
    begin_event(e, 0);
    put_bytes(&e->event, 3, "brain.Event:2", 13);
    end_event(e);
    if (first_step > 1) {
        static const uint8_t start[] = {1 << 3 | VARINT, 1};
        begin_event(e, first_step);
        put_bytes(&e->event, 7, start, sizeof start);
        end_event(e);
    }
    return ll_events_flush(e);
}

/* A name that sorts by time, and that no other start, process or machine has. */
static int create(ll_arena *a, const char *folder, const char **path)
{
    char host[65] = "localhost";
    if (gethostname(host, sizeof host - 1)) host[0] = '\0';
    for (int i = 0;; i++) {
        *path = ll_arena_printf(a, "%s/" PREFIX "%010ld.%s.%ld.%d", folder, (long)ll_wall_now(),
                                host, (long)getpid(), i);
        int fd = open(*path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
}

ll_err ll_events_alone(const ll_events *e)
{
    const char *mine = strrchr(e->path, '/') + 1;
    const char *folder = ll_arena_printf(e->arena, "%.*s", (int)(mine - e->path), e->path);
    LL_OWN(DIR) d = opendir(folder);
    CHECK(d, LL_E_IO, "%s: %m", folder);
    for (struct dirent *f; (f = readdir(d));) {
        bool other = !strncmp(f->d_name, PREFIX, strlen(PREFIX)) && strcmp(f->d_name, mine);
        CHECK(!other || !unlinkat(dirfd(d), f->d_name, 0), LL_E_IO, "%s: removing " PREFIX "*: %m",
              folder);
    }
    return LL_OK;
}

ll_err ll_events_open(const char *folder, int64_t first_step, ll_events **out)
{
    const char *path;
    *out = NULL;
    TRY(ll_mkdirs(folder));
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN_FD int fd = create(a, folder, &path);
    CHECK(fd >= 0, LL_E_IO, "%s: creating: %m", path);
    ll_events *e = LL_NEW(a, ll_events);
    *e = (ll_events){.arena = a,
                     .path = path,
                     .fd = fd,
                     .event = {.arena = a},
                     .value = {.arena = a},
                     .pending = {.arena = a}};
    TRY(write_head(e, first_step));
    *out = e;
    a = NULL, fd = -1;
    return LL_OK;
}

ll_err ll_events_scalar(ll_events *e, int64_t step, const char *tag, double value)
{
    float simple = (float)value;
    e->value.len = 0;
    put_bytes(&e->value, 1, tag, strlen(tag));
    put_key(&e->value, 2, FIXED32);
    ll_buf_add(&e->value, &simple, 4);

    begin_event(e, step);
    size_t summary_bytes = e->value.len + 1; /* the value's key, its length, itself */
    for (uint64_t n = e->value.len; n; n >>= 7) summary_bytes++;
    put_key(&e->event, 5, BYTES);
    put_varint(&e->event, summary_bytes);
    put_bytes(&e->event, 1, e->value.text, e->value.len);
    end_event(e);
    return ll_wall_now() - e->flushed_at >= FLUSH_EVERY_S ? ll_events_flush(e) : LL_OK;
}

ll_err ll_events_flush(ll_events *e)
{
    bool full = false;
    ll_err rc = LL_OK;
    e->flushed_at = ll_wall_now();
    if (e->pending.len) rc = ll_append(e->fd, e->path, e->pending.text, e->pending.len, &full);
    if (!full) e->pending.len = 0; /* else with those to come */
    return rc;
}

void ll_events_close(ll_events *e)
{
    if (!e) return;
    /* Not by flush: a failure here must not take the place of one that is on its way up. */
    if (e->pending.len && write(e->fd, e->pending.text, e->pending.len) < 0) e->pending.len = 0;
    close(e->fd);
    ll_arena_free(e->arena);
}
