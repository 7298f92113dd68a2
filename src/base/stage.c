/* stage.c: files of a folder, all or none. */
#include "base/stage.h"

#include "base/arena.h"
#include "base/file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct ll_stage {
    ll_arena *arena;
    const char *folder, *inside;
    const ll_clear *clear;
    bool made; /* the folder was not there */
};

ll_err ll_stage_open(const char *folder, const ll_clear *clear, ll_stage **out)
{
    *out = NULL;
    if (clear) TRY(clear->call(clear->user, folder, false));
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_stage) s = LL_NEW(a, ll_stage);
    *s = (ll_stage){.arena = a, .folder = ll_arena_strdup(a, folder), .clear = clear};
    s->made = !ll_is_folder(folder);
    s->inside = ll_arena_printf(a, "%s/" LL_ATOMIC_MARK "%ld", folder, (long)getpid());
    TRY(ll_mkdirs(s->inside));
    return LL_HAND(out, s);
}

const char *ll_stage_path(const ll_stage *s)
{
    return s->inside;
}

/* Moves what is inside up, or removes it. */
static ll_err each(const ll_stage *s, bool keep)
{
    LL_OWN(DIR) d = opendir(s->inside);
    CHECK(d, LL_E_IO, "%s: %m", s->inside);
    for (struct dirent *e; (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        const char *from = ll_arena_printf(s->arena, "%s/%s", s->inside, e->d_name);
        const char *to = ll_arena_printf(s->arena, "%s/%s", s->folder, e->d_name);
        CHECK(!(keep ? rename(from, to) : unlink(from)), LL_E_IO, "%s: %m", keep ? to : from);
    }
    return LL_OK;
}

ll_err ll_stage_commit(ll_stage *s)
{
    if (s->clear) TRY(s->clear->call(s->clear->user, s->folder, true));
    s->made = false;
    return each(s, true);
}

void ll_stage_close(ll_stage *s)
{
    if (!s) return;
    LL_KEEP_ERROR;
    if (ll_is_folder(s->inside)) (void)each(s, false);
    (void)rmdir(s->inside);
    if (s->made) (void)rmdir(s->folder); /* where nothing is in it */
    ll_arena_free(s->arena);
}
