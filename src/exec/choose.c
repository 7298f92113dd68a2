/* choose.c: convolutions timed on this machine. Ranks take turns: each measures those kinds of its
 * program that no rank before it had, and tells the others, so that a kind is measured once and all
 * ranks choose by the same numbers. Rank 0 reads and writes the file. */
#include "exec/choose.h"

#include "base/file.h"
#include "base/num.h"

#include <limits.h>
#include <unistd.h>

enum { TIMES = 4, FEWEST_PARTS = 32, FILE_LIMIT = 4 << 20 };
static const double enough_s = 0.1; /* for one way */

/* ---- one kind ---- */

static size_t bytes_of(const ll_tensor *t)
{
    return ll_align64(ll_tensor_bytes(t->dtype, &t->shape));
}

/* Memory for operands and results, operands filled with numbers of about 1. */
static ll_err fill(ll_unbound *k, char **memory)
{
    size_t bytes = 64;
    for (int i = 0; i < k->c.n_in; i++) bytes += bytes_of(&k->in[i]);
    for (int i = 0; i < k->c.n_out; i++) bytes += bytes_of(&k->out[i]);
    *memory = (char *)aligned_alloc(64, bytes);
    CHECK(*memory, LL_E_MEM, "not enough memory to time a convolution: %zu bytes", bytes);
    char *at = *memory;
    for (int i = 0; i < k->c.n_in + k->c.n_out; i++) {
        ll_tensor *t = i < k->c.n_in ? &k->in[i] : &k->out[i - k->c.n_in];
        t->data = at;
        at += bytes_of(t);
        for (int64_t e = 0; i < k->c.n_in && e < ll_numel(&t->shape); e++)
            ll_store(t->data, t->dtype, e, (double)(e % 257 - 128) / 64);
    }
    return LL_OK;
}

/* The best of a few calls, as k->c says. */
static ll_err time_way(const ll_solver *s, ll_unbound *k, ll_way *way)
{
    way->solver = s->name;
    way->at_once = k->c.at_once;
    way->scratch = s->scratch ? s->scratch(&k->c) : 0;
    LL_OWN_MEMORY char *scratch = (char *)aligned_alloc(64, ll_align64(way->scratch + 64));
    CHECK(scratch, LL_E_MEM, "not enough memory to time a convolution: %zu bytes", way->scratch);
    k->c.scratch = scratch;
    way->seconds = INFINITY;
    TRY(s->run(&k->c)); /* pages, caches */
    double began = ll_now();
    for (int i = 0; i < TIMES && (i < 2 || ll_now() - began < enough_s); i++) {
        double start = ll_now();
        TRY(s->run(&k->c));
        way->seconds = fmin(way->seconds, ll_now() - start);
    }
    k->c.scratch = NULL;
    return LL_OK;
}

/* All solvers that need memory, that is, all but the plain one. */
static ll_err time_kind(const ll_solver *list, const char *key, ll_unbound *k, bool cuts,
                        ll_ways *w)
{
    LL_OWN_MEMORY char *memory = NULL;
    TRY(fill(k, &memory));
    int64_t images = k->in[0].shape.d[0];
    for (const ll_solver *s = list; s->run; s++) {
        if (!s->scratch || !ll_solver_fits(s, &k->c)) continue;
        size_t before = 0;
        for (int64_t some = images; some >= 1; some = some > 1 ? (some + 1) / 2 : 0) {
            k->c.at_once = some == images ? 0 : some;
            size_t room = s->scratch(&k->c);
            if (some < images && (!cuts || !s->cuts || images > some * FEWEST_PARTS)) break;
            if (some < images && room >= before) continue; /* smaller pieces must need less */
            before = room;
            ll_way way = {.key = key};
            TRY(time_way(s, k, &way));
            ll_ways_add(w, &way);
        }
    }
    return LL_OK;
}

static ll_err time_missing(const ll_program *p, bool cuts, const ll_ways *known, ll_ways *fresh)
{
    LL_EACH (const ll_instr, x, p->instrs, p->n_instr) {
        const ll_op *op = x->kernel.run ? ll_op_find(x->op) : NULL;
        const ll_solver *list = ll_way_list(p->target, op);
        if (!list) continue;
        ll_unbound k;
        ll_program_call(p, x, &k);
        const char *key = ll_way_key(op, &k.c, fresh->arena);
        if (ll_ways_has(known, key) || ll_ways_has(fresh, key)) continue;
        if (ll_numel(&k.in[0].shape)) TRY(time_kind(list, key, &k, cuts, fresh));
    }
    return LL_OK;
}

/* ---- the file, and other ranks ---- */

/* One file for each host, another with fewer images at once; NULL: there is no place for it. */
static const char *path_of(bool cuts, ll_arena *arena)
{
    char host[256] = "", folder[PATH_MAX];
    gethostname(host, sizeof host - 1);
    if (!ll_cache_folder(folder, sizeof folder) || ll_mkdirs(folder) != LL_OK) return NULL;
    return ll_arena_printf(arena, "%s/conv-%s%s-%s.txt", folder, cuts ? "cut-" : "", ll_version(),
                           host);
}

static ll_err read_kept(const char *path, ll_ways *w)
{
    LL_OWN_MEMORY uint8_t *data = NULL;
    size_t size;
    if (!path || access(path, R_OK)) return LL_OK;
    TRY(ll_file_read(path, FILE_LIMIT, &data, &size));
    CHECK(ll_ways_parse((const char *)data, w) == LL_OK, LL_E_IO, "%s: %s", path,
          ll_error_message());
    return LL_OK;
}

/* What rank `root` has in `mine`, to all tables. */
static ll_err share(ll_comm *c, int root, ll_ways *mine, ll_ways *all)
{
    const ll_coll_opts site = {.site = "convolutions"};
    char *text = ll_ways_print(mine, all->arena);
    double bytes = (double)strlen(text) + 1;
    if (c) {
        TRY(ll_comm_broadcast(c, &bytes, 1, LL_F64, root, &site));
        if (ll_comm_rank(c) != root) text = (char *)ll_arena_alloc(all->arena, (size_t)bytes);
        TRY(ll_comm_broadcast(c, text, (int64_t)bytes, LL_U8, root, &site));
    }
    return ll_ways_parse(text, all);
}

ll_err ll_choose_ways(const ll_program *p, ll_comm *c, bool cuts, ll_ways *out, const char **path)
{
    int size = c ? ll_comm_size(c) : 1, me = c ? ll_comm_rank(c) : 0;
    ll_ways mine = {.arena = out->arena};
    *path = path_of(cuts, out->arena);
    TRY(ll_comm_agree(c, me == 0 ? read_kept(*path, &mine) : LL_OK));
    TRY(share(c, 0, &mine, out));
    out->kept = out->n;
    for (int r = 0; r < size; r++) {
        mine = (ll_ways){.arena = out->arena};
        TRY(ll_comm_agree(c, r == me ? time_missing(p, cuts, out, &mine) : LL_OK));
        TRY(share(c, r, &mine, out));
    }
    if (me || !*path || out->n == out->kept) return LL_OK;
    const char *text = ll_ways_print(out, out->arena);
    return ll_file_write(*path, text, strlen(text));
}
