/* recovery.c: lines of RUN/recovery.jsonl. */
#include "train/recovery.h"

#include "base/file.h"
#include "base/text.h"
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define NOTES "recovery.jsonl"

static const char *const events[] = {[LL_BEGAN] = "began",
                                     [LL_HALTED] = "stopped",
                                     [LL_LOST] = "lost",
                                     [LL_DONE] = "done",
                                     [LL_ENDED] = "ended"};

ll_err ll_start_parse(const char *text, ll_start *s)
{
    int end = 0;
    memset(s, 0, sizeof *s);
    int n = sscanf(text, "%16[0-9a-f];%d;%lf;%n", s->job, &s->number, &s->began, &end);
    size_t mesh = n == 3 && end ? strcspn(text + end, ";") : 0;
    CHECK(n == 3 && end && text[(size_t)end + mesh] == ';' && mesh < sizeof s->mesh &&
              s->number >= 0,
          LL_E_ARG, "--job is '%.60s': it is reserved for ranks that loopline starts itself", text);
    memcpy(s->mesh, text + end, mesh);
    s->out = text + (size_t)end + mesh + 1;
    return LL_OK;
}

char *ll_start_print(const ll_start *s, ll_arena *arena)
{
    return ll_arena_printf(arena, "%s;%d;%.3f;%s;%s", s->job, s->number, s->began, s->mesh, s->out);
}

ll_err ll_recovery_note(const ll_start *s, ll_recovery_event event, int64_t step, const char *text)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *path = ll_arena_printf(a, "%s/" NOTES, s->out);
    const char *line = ll_arena_printf(
        a, "{\"step\":%ld,\"job\":\"%s\",\"start\":%d,\"event\":\"%s\",\"at\":%.3f,\"text\":%s}\n",
        step, s->job, s->number, events[event], ll_wall_now() - s->began, ll_text_quoted(a, text));
    LL_OWN_FD int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 && errno == ENOENT) return LL_OK; /* no folder yet: nothing is lost with it */
    CHECK(fd >= 0, LL_E_IO, "%s: %m", path);
    ll_noted same;
    if (event == LL_LOST) (void)flock(fd, LOCK_EX); /* several ranks see it: one line */
    bool known = event == LL_LOST && ll_recovery_find(s, event, &same);
    return known ? LL_OK : ll_write_all(fd, path, line, strlen(line));
}

void ll_recovery_remove(const ll_start *s)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    unlink(ll_arena_printf(a, "%s/" NOTES, s->out));
}

typedef struct search {
    const ll_start *s;
    ll_recovery_event event;
    bool found;
    ll_noted last;
} search;

static void look(void *context, int64_t step, const json_t *line)
{
    search *x = (search *)context;
    const char *event = json_string_value(json_object_get(line, "event"));
    const char *job = json_string_value(json_object_get(line, "job"));
    if (!event || strcmp(event, events[x->event]) || !job || strcmp(job, x->s->job)) return;
    if (json_integer_value(json_object_get(line, "start")) != x->s->number) return;
    x->found = true;
    x->last.step = step;
    x->last.at = json_number_value(json_object_get(line, "at"));
    const char *text = json_string_value(json_object_get(line, "text"));
    snprintf(x->last.text, sizeof x->last.text, "%s", text ? text : "");
}

bool ll_recovery_find(const ll_start *s, ll_recovery_event event, ll_noted *out)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    search x = {.s = s, .event = event};
    size_t kept;
    ll_err rc =
        ll_metrics_lines(ll_arena_printf(a, "%s/" NOTES, s->out), INT64_MAX, look, &x, &kept);
    if (rc != LL_OK || !x.found) return false; /* none was written yet */
    *out = x.last;
    return true;
}

bool ll_recovery_began(const ll_start *s)
{
    ll_noted began;
    ll_start one = *s;
    for (one.number = 0; one.number < s->number; one.number++)
        if (ll_recovery_find(&one, LL_BEGAN, &began)) return true;
    return false;
}
