/* hosts.c: a file of hosts, and which of them answer. */
#include "cli/hosts.h"

#include "base/file.h"
#include "base/now.h"
#include "base/text.h"
#include "cli/launch.h"
#include "cli/procs.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const double answer_s = 3.0; /* a host is given to answer, where none has */
static const double more_s = 0.5;   /* and beside as long as those took that have */

static struct timespec written(const char *path)
{
    struct stat st = {0};
    return stat(path, &st) == 0 ? st.st_mtim : (struct timespec){0};
}

ll_err ll_hosts_read(ll_hosts *h)
{
    LL_OWN_MEMORY uint8_t *bytes = NULL;
    size_t size;
    int n = 0, room = 0;
    ll_host *list = NULL;
    struct timespec of = written(h->file);
    TRY(ll_file_read(h->file, 1 << 24, &bytes, &size));
    char *rest = NULL;
    for (char *line = strtok_r((char *)bytes, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        char name[256];
        int slots = 1;
        line[strcspn(line, "#")] = '\0';
        if (sscanf(line, " %255[^: \t]", name) != 1) continue;
        const char *count = strstr(line, "slots=") ? strstr(line, "slots=") + 6 : strchr(line, ':');
        if (count) slots = atoi(count + (*count == ':'));
        CHECK(slots >= 0, LL_E_ARG, "%s: '%s' has %d slots", h->file, name, slots);
        bool dead = false;
        for (int i = 0; i < h->n; i++)
            if (!strcmp(h->v[i].name, name)) dead = h->v[i].dead;
        LL_PUSH(h->arena, list, n, room, (ll_host){ll_arena_strdup(h->arena, name), slots, dead});
    }
    int64_t slots = 0;
    for (int i = 0; i < n; i++) slots += list[i].slots;
    CHECK(slots > 0, LL_E_ARG, "%s: no line names a host with slots, such as \"NAME slots=2\"",
          h->file);
    h->v = list;
    h->n = n;
    h->of = of; /* not of one that was being written: it is read again */
    return LL_OK;
}

void ll_hosts_probe(ll_hosts *h, const sigset_t *signals, bool all)
{
    pid_t *asked = LL_NEW_ARRAY(h->arena, pid_t, h->n + 1);
    double began = ll_now(), until = began + answer_s;
    int open = 0;
    for (int i = 0; i < h->n; i++) {
        if (!all && !h->v[i].dead) continue;
        const char *where = ll_arena_printf(h->arena, "%s:1", h->v[i].name);
        asked[i] =
            ll_cli_spawn(&(ll_mpiexec){.ranks = 1, .hosts = where, .probe = true}, signals, -1);
        open += asked[i] > 0;
        h->v[i].dead = true;
    }
    for (; open && ll_now() < until; nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL))
        for (int i = 0, status; i < h->n; i++) {
            if (asked[i] <= 0 || waitpid(asked[i], &status, WNOHANG) != asked[i]) continue;
            h->v[i].dead = ll_cli_code(status) != 0;
            asked[i] = 0;
            open--;
            double last = ll_now() + (ll_now() - began) + more_s;
            if (!h->v[i].dead && last < began + answer_s) until = last;
        }
    for (int i = 0; i < h->n; i++) {
        if (asked[i] <= 0) continue;
        ll_procs_end(asked[i]);
        waitpid(asked[i], NULL, 0);
    }
}

int64_t ll_hosts_slots(const ll_hosts *h)
{
    int64_t n = 0;
    for (int i = 0; i < h->n; i++) n += h->v[i].dead ? 0 : h->v[i].slots;
    return n;
}

bool ll_hosts_missing(const ll_hosts *h)
{
    for (int i = 0; i < h->n; i++)
        if (h->v[i].dead) return true;
    return false;
}

bool ll_hosts_changed(const ll_hosts *h)
{
    struct timespec now = written(h->file);
    return memcmp(&now, &h->of, sizeof now) != 0;
}

char *ll_hosts_words(const ll_hosts *h, int64_t ranks)
{
    ll_buf b = {.arena = h->arena};
    for (int i = 0; i < h->n && ranks; i++) {
        int64_t n = h->v[i].slots < ranks ? h->v[i].slots : ranks;
        if (h->v[i].dead || !n) continue;
        ll_buf_printf(&b, "%s%s:%ld", b.len ? "," : "", h->v[i].name, n);
        ranks -= n;
    }
    return b.text;
}
