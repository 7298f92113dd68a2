/* checkpoint.c: names, order, pruning and loading of checkpoints. */
#include "weights/checkpoint.h"
#include "base/file.h"
#include "base/near.h"
#include "base/text.h"
#include "op/ops.h"
#include "pass/lora.h"
#include "run/ranks.h"
#include "run/teacher.h"
#include "weights/residual.h"
#include "weights/state.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#define SUFFIX ".safetensors"
#define ASIDE "/replaced" /* below the folder of checkpoints: of an earlier run */

typedef struct listing {
    ll_arena *arena;
    const char *folder;
    int64_t *steps; /* ascending */
    int n, capacity;
    const char **leftovers; /* paths of files that a killed process did not finish */
    int n_leftovers, leftovers_capacity;
} listing;

/* below: "" or ASIDE. */
static const char *path_of(ll_arena *a, const char *run, const char *below, int64_t step)
{
    return ll_arena_printf(a, "%s/checkpoints%s/step-%08ld" SUFFIX, run, below, step);
}

const char *ll_checkpoint_path(ll_arena *a, const char *run, int64_t step)
{
    return path_of(a, run, "", step);
}

/* -1: not a checkpoint's name; *rest: what follows it. */
static int64_t step_of(const char *name, const char **rest)
{
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9') return -1;
    char *end;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    if (errno || strncmp(end, SUFFIX, strlen(SUFFIX))) return -1;
    *rest = end + strlen(SUFFIX);
    return step;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void add_name(listing *l, const char *name)
{
    const char *rest;
    int64_t step = step_of(name, &rest);
    if (step < 0) return;
    if (*rest == '\0') {
        LL_PUSH(l->arena, l->steps, l->n, l->capacity, step);
    } else if (!strncmp(rest, LL_ATOMIC_MARK, strlen(LL_ATOMIC_MARK))) {
        LL_PUSH(l->arena, l->leftovers, l->n_leftovers, l->leftovers_capacity,
                ll_arena_printf(l->arena, "%s/%s", l->folder, name));
    }
}

static ll_err list(ll_arena *a, const char *run, const char *below, listing *l)
{
    *l = (listing){.arena = a, .folder = ll_arena_printf(a, "%s/checkpoints%s", run, below)};
    LL_OWN(DIR) d = opendir(l->folder);
    if (!d && errno == ENOENT) return LL_OK;
    CHECK(d, LL_E_IO, "%s: %s", l->folder, strerror(errno));
    errno = 0;
    for (struct dirent *e; (e = readdir(d)); errno = 0) add_name(l, e->d_name);
    CHECK(errno == 0, LL_E_IO, "%s: listing: %s", l->folder, strerror(errno));
    if (l->n) qsort(l->steps, (size_t)l->n, sizeof *l->steps, ascending);
    return LL_OK;
}

static ll_err remove_file(const char *path)
{
    CHECK(unlink(path) == 0 || errno == ENOENT, LL_E_IO, "%s: removing: %s", path, strerror(errno));
    return LL_OK;
}

ll_err ll_checkpoint_prune(const char *run, const ll_checkpoint *c, int keep)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    listing l, aside;
    TRY(list(a, run, "", &l));
    TRY(list(a, run, ASIDE, &aside));
    for (int i = 0; i < l.n_leftovers; i++) TRY(remove_file(l.leftovers[i]));
    int n = 0;
    while (n < l.n && l.steps[n] <= c->step) n++;
    for (int i = 0; keep > 0 && i < n - keep; i++)
        TRY(remove_file(path_of(a, run, "", l.steps[i])));
    for (int i = 0; c->is_first && i < aside.n; i++)
        TRY(remove_file(path_of(a, run, ASIDE, aside.steps[i])));
    if (c->is_first) rmdir(aside.folder); /* where somebody put other files there, it stays */
    return LL_OK;
}

ll_err ll_checkpoint_begin(const char *run, const ll_checkpoint *c, ll_arena *a, ll_st_writer **out)
{
    CHECK(c->step >= 0, LL_E_ARG, "checkpoint step is %ld, expected 0 or more", c->step);
    ll_st_content x = c->x;
    const char *folder = ll_arena_printf(a, "%s/checkpoints", run);
    TRY(ll_ranks_agree(x.comm, ll_ranks_lead(x.comm) ? ll_mkdirs(folder) : LL_OK));
    ll_st_pair *meta = LL_NEW_ARRAY(a, ll_st_pair, x.n_meta + 1);
    if (x.n_meta) memcpy(meta, x.meta, sizeof *meta * (size_t)x.n_meta);
    meta[x.n_meta++] = (ll_st_pair){"step", ll_arena_printf(a, "%ld", c->step)};
    x.meta = meta;
    return ll_st_begin(path_of(a, run, "", c->step), &x, out);
}

ll_err ll_checkpoint_set_aside(const char *run, int64_t after, ll_arena *arena, const char **what)
{
    listing l;
    *what = NULL;
    TRY(list(arena, run, "", &l));
    int first = 0;
    while (first < l.n && l.steps[first] <= after) first++;
    if (first == l.n) return LL_OK;
    TRY(ll_mkdirs(ll_arena_printf(arena, "%s" ASIDE, l.folder)));
    for (int i = first; i < l.n; i++) {
        const char *from = path_of(arena, run, "", l.steps[i]);
        CHECK(rename(from, path_of(arena, run, ASIDE, l.steps[i])) == 0, LL_E_IO,
              "%s: moving it aside: %s", from, strerror(errno));
    }
    int64_t from = l.steps[first], to = l.steps[l.n - 1];
    *what = from == to ? ll_arena_printf(arena, "checkpoint of step %ld", from)
                       : ll_arena_printf(arena, "%d checkpoints (steps %ld to %ld)", l.n - first,
                                         from, to);
    return LL_OK;
}

/* The last failure's message without the path that leads it. */
static const char *reason(const char *path)
{
    const char *why = ll_error_message();
    size_t n = strlen(path);
    return !strncmp(why, path, n) && !strncmp(why + n, ": ", 2) ? why + n + 2 : why;
}

/* A file named step-00000012 is of step 12. */
static ll_err open_header(const char *path, ll_st_file **f)
{
    const char *rest;
    int64_t named = step_of(ll_base_name(path), &rest), step;
    TRY(ll_st_open(path, f));
    if (named < 0 || *rest) return LL_OK;
    TRY(ll_checkpoint_int(*f, "step", &step));
    CHECK(step == named, LL_E_IO, "its metadata says step %ld", step);
    return LL_OK;
}

static ll_err check_readable(const char *path)
{
    CHECK(access(path, R_OK) == 0, LL_E_IO, "checkpoint %s: %s", path, strerror(errno));
    CHECK(!ll_is_folder(path), LL_E_IO, "checkpoint %s is a folder: name a file in it", path);
    return LL_OK;
}

ll_err ll_checkpoint_open(ll_comm *c, const char *path, ll_st_file **out)
{
    *out = NULL;
    LL_OWN(ll_st_file) f = NULL;
    TRY(ll_ranks_agree(c, check_readable(path)));
    ll_err rc = ll_ranks_agree(c, open_header(path, &f));
    if (rc == LL_OK) rc = ll_st_check(c, f);
    if (rc == LL_OK) return LL_HAND(out, f);
    if (rc == LL_E_COMM) return rc; /* nobody knows whether the file is good */
    return ll_ranks_agree(c, RAISE(rc, "checkpoint %s is damaged (%s)", path, reason(path)));
}

/* Rank 0 looks which there are: file systems may show others something else. */
static ll_err find_latest(ll_arena *a, const char *run, int64_t *newest, int64_t *before)
{
    listing l;
    TRY(list(a, run, "", &l));
    if (l.n > 0) *newest = l.steps[l.n - 1];
    if (l.n > 1) *before = l.steps[l.n - 2];
    return LL_OK;
}

int64_t ll_checkpoint_newest(const char *run)
{
    LL_KEEP_ERROR;
    LL_OWN(ll_arena) a = ll_arena_new();
    int64_t newest = -1, before;
    return find_latest(a, run, &newest, &before) == LL_OK ? newest : -1;
}

ll_err ll_checkpoint_open_latest(ll_comm *c, const char *run, ll_st_file **out)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    int64_t newest = -1, before = -1;
    *out = NULL;
    TRY(ll_ranks_agree(c, ll_ranks_lead(c) ? find_latest(a, run, &newest, &before) : LL_OK));
    TRY(ll_ranks_share(c, &newest, sizeof newest));
    TRY(ll_ranks_share(c, &before, sizeof before));
    if (newest < 0) return LL_OK;
    ll_err rc = ll_checkpoint_open(c, path_of(a, run, "", newest), out);
    if (rc == LL_OK || rc == LL_E_COMM) return rc;
    if (before < 0)
        rc = RAISE(rc, "%s; it is the run's only checkpoint", ll_error_message());
    else
        rc =
            RAISE(rc, "%s; the previous one, for train --resume --from or eval --checkpoint, is %s",
                  ll_error_message(), path_of(a, run, "", before));
    return ll_ranks_agree(c, rc);
}

ll_err ll_checkpoint_open_whole(ll_comm *c, const char *run, int64_t every, ll_arena *a,
                                const char **note, ll_st_file **out)
{
    listing l = {0};
    *out = NULL;
    *note = NULL;
    TRY(ll_ranks_agree(c, ll_ranks_lead(c) ? list(a, run, "", &l) : LL_OK));
    for (int i = 0;; i++) {
        int64_t step = i < l.n ? l.steps[l.n - 1 - i] : -1;
        TRY(ll_ranks_share(c, &step, sizeof step));
        if (step < 0) return LL_OK;
        if (step % every) continue;
        ll_err rc = ll_checkpoint_open(c, path_of(a, run, "", step), out);
        if (rc == LL_OK || rc == LL_E_COMM) return rc;
        *note = ll_arena_printf(a, "%s: skipped", ll_error_message());
    }
}

ll_err ll_checkpoint_int(const ll_st_file *f, const char *key, int64_t *value)
{
    const char *text = ll_st_meta(f, key);
    CHECK(text, LL_E_IO, "%s: metadata has no %s", f->path, key);
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    CHECK(!errno && end != text && *end == '\0', LL_E_IO,
          "%s: metadata %s is \"%.40s\", expected a whole number", f->path, key, text);
    *value = v;
    return LL_OK;
}

/* Of a tensor that only one of the run and the checkpoint has: why, where its name tells. */
static const char *why_not_both(const char *name, bool extra)
{
    static const struct {
        const char *end, *why[2]; /* the checkpoint has none; the run */
    } all[] = {{LL_NEXT,
                {" (a second version, which it does not have: set train.delay=false, and a "
                 "schedule other than 2bw)",
                 " (second versions of its parameters: set train.delay=true, or schedule 2bw)"}},
               {LL_EMA,
                {" (an average, which it does not have: set train.ema=0)",
                 " (averages of its parameters: set train.ema to what its run had)"}},
               {LL_LORA_A, {"", " (adapters: set train.lora to what its run had)"}},
               {LL_PROMPT, {"", " (a prompt: set train.prompt to what its run had)"}}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (ll_ends_with(name, all[i].end)) return all[i].why[extra];
    return "";
}

static ll_err fail_missing(const ll_st_file *f, const char *name)
{
    ll_near near = {.word = name};
    for (int i = 0; i < f->n_entries; i++) ll_near_try(&near, f->entries[i].name);
    FAIL(LL_E_IO, "%s has no tensor %s, which the model needs%s", f->path, name,
         *why_not_both(name, false) ? why_not_both(name, false) : ll_near_hint(&near));
}

static ll_err check_wanted(const ll_st_file *f, const ll_st_tensor *t)
{
    if (!ll_st_find(f, t->name)) return fail_missing(f, t->name);
    ll_dtype dtype = LL_F32;
    ll_shape shape = {0};
    TRY(ll_st_want(f, t->name, &dtype, &shape));
    char have[LL_SHAPE_TEXT], want[LL_SHAPE_TEXT];
    CHECK(dtype == t->dtype && ll_shape_equal(&shape, &t->shape), LL_E_SHAPE,
          "%s: tensor %s is %s%s, but %s%s in the model", f->path, t->name, ll_dtype_name(dtype),
          ll_shape_print(&shape, have), ll_dtype_name(t->dtype), ll_shape_print(&t->shape, want));
    return LL_OK;
}

static bool is_wanted(const char *name, const ll_st_tensor *tensors, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(name, tensors[i].name)) return true;
    return false;
}

/* Whether only training has a tensor: one that is of another of the file (a moment, an average), a
 * teacher's projection. */
static bool only_trains(const ll_st_file *f, const char *name)
{
    char of[512];
    const char *dot = strrchr(name, '.');
    if (ll_is_match(name)) return true;
    if (!dot || ll_is_lora(name)) return false;
    snprintf(of, sizeof of, "%.*s", (int)(dot - name), name);
    return ll_st_find(f, of);
}

/* model: what only training has it may have. */
static ll_err check_no_extra(const ll_st_file *f, const ll_st_tensor *tensors, int n, bool model)
{
    const char *names[3] = {"", "", ""};
    int extra = 0;
    for (int i = 0; i < f->n_entries; i++) {
        const char *name = f->entries[i].name;
        if (is_wanted(name, tensors, n) || ll_is_residual(name) ||
            !strncmp(name, LL_REPLICA, strlen(LL_REPLICA)) || (model && only_trains(f, name)))
            continue;
        if (extra < 3) names[extra] = name;
        extra++;
    }
    const char *why = why_not_both(names[0], true);
    CHECK(extra == 0, LL_E_SHAPE,
          "%s has %d tensor%s that the model does not have: %.80s%s%.80s%s%.80s%s%s", f->path,
          extra, extra > 1 ? "s" : "", names[0], extra > 1 ? ", " : "", names[1],
          extra > 2 ? ", " : "", names[2], extra > 3 ? ", ..." : "",
          *why || !model ? why : " (use the model settings of the run that wrote it)");
    return LL_OK;
}

ll_err ll_checkpoint_check_model(const ll_st_file *f, const ll_st_tensor *tensors, int n)
{
    return check_no_extra(f, tensors, n, true);
}

ll_err ll_checkpoint_load(const ll_st_file *f, const ll_st_tensor *tensors, const ll_st_part *parts,
                          int n, bool exact)
{
    for (int i = 0; i < n; i++) TRY(check_wanted(f, &tensors[i]));
    if (exact) TRY(check_no_extra(f, tensors, n, false));
    for (int i = 0; i < n; i++) {
        ll_st_part whole = {.shape = tensors[i].shape};
        if (!tensors[i].data && parts && parts[i].spare) continue; /* another stage's */
        TRY(ll_st_read_part(f, tensors[i].name, parts ? &parts[i] : &whole, tensors[i].data));
    }
    return LL_OK;
}
