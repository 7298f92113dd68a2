/* stage.h: files of a folder, all or none. They are written to a folder inside it, and take their
 * places when the last of them is on disk; whatever fails before that, a full disk above all,
 * leaves those that were there.
 *
 *     TRY(ll_stage_open(folder, clear, &s));
 *     TRY(ll_file_write(... ll_stage_path(s) ...));
 *     return ll_stage_commit(s); */
#pragma once
#include "base/err.h"
#include "base/own.h"

/* Says whether files may be written to a folder, in place of some that are there: asked before the
 * folder is touched, and told to remove those when all others are on disk. */
typedef struct ll_clear {
    ll_err (*call)(void *user, const char *folder, bool remove);
    void *user;
} ll_clear;

typedef struct ll_stage ll_stage;
/* Asks (NULL: nothing is in the way), and makes the folder where there is none. */
ll_err ll_stage_open(const char *folder, const ll_clear *clear, ll_stage **out);
const char *ll_stage_path(const ll_stage *s); /* where they are written */
ll_err ll_stage_commit(ll_stage *s);
void ll_stage_close(ll_stage *s);
LL_OWNED(ll_stage, ll_stage_close);
