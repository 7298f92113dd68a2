/* weights_load.c: weights of others into sessions.
 *
 * Every tensor of ours is looked up in the map, which says which of theirs it is made of and of
 * what shape they must be. Where no map is named, the bundled one is taken that leaves the fewest
 * names without a partner, and then the fewest shapes that differ; ties go to the plain one, or, of
 * files of PyTorch, to the one for its layers. Elements are walked by a table of places for each
 * dimension (weight_map.h), the same into a session and out of it. */
#include "weights/weights_load.h"

#include "base/near.h"
#include "pass/lora.h"
#include "token/gguf.h"
#include "weights/checkpoint.h"
#include "run/ranks.h"
#include "weights/residual.h"
#include "weights/state.h"
#include "run/teacher.h"
#include "weights/weights_copy.h"

#include <fnmatch.h>

/* ---- a file held against the model ---- */

typedef struct fit {
    const ll_weights *w;
    const ll_own_tensors *x;
    ll_map *map;
    ll_mapped *made; /* [x->n] */
    bool *fresh;     /* [x->n]: keeps its values */
    bool *used;      /* [w->n] */
    bool *mapped;    /* [w->n]: by a line of its own */
    int missing, extra, misshapen, n_unread, averages;
    ll_buf lines[3]; /* of those three kinds */
    ll_buf unread;   /* of theirs that are skipped by the user */
    ll_arena *arena;
} fit;

enum { LINE = 290 }; /* of an error's one line, what each kind may take */

static void list(ll_buf *b, int so_far, const char *text)
{
    if (b->len < LINE)
        ll_buf_printf(b, "%s%s", so_far ? ", " : "", text);
    else if (b->text[b->len - 1] != '.')
        ll_buf_puts(b, ", ...");
}

static int find_named(const fit *f, const char *name)
{
    const ll_weight *t = ll_weights_find(f->w, name);
    size_t n = strlen(f->map->prefix);
    if (!t && n && !strncmp(name, f->map->prefix, n)) t = ll_weights_find(f->w, name + n);
    return t ? (int)(t - f->w->all) : -1;
}

/* Of a checkpoint of ours the average, where there is one: as predict, eval and export take it. */
static int find_theirs(const fit *f, const char *name)
{
    int average = f->w->ours ? find_named(f, ll_arena_printf(f->arena, "%s" LL_EMA, name)) : -1;
    return average >= 0 ? average : find_named(f, name);
}

static void add_missing(fit *f, const char *theirs, const char *ours)
{
    ll_near near = {.word = theirs};
    for (int i = 0; i < f->w->n && f->lines[0].len < LINE; i++)
        if (!f->used[i]) ll_near_try(&near, f->w->all[i].name);
    const char *text =
        ll_arena_printf(f->arena, "%s%s%s%s%s%s", theirs, strcmp(theirs, ours) ? " for " : "",
                        strcmp(theirs, ours) ? ours : "", near.best ? " (nearest: " : "",
                        near.best ? near.best : "", near.best ? ")" : "");
    list(&f->lines[0], f->missing++, text);
}

static void check_shape(fit *f, int i, const ll_weight *t)
{
    char is[LL_SHAPE_TEXT] = "of many dimensions", want[LL_SHAPE_TEXT];
    if (t->shape.n >= 0) ll_shape_print(&t->shape, is);
    if (t->dtype != LL_N_DTYPE && ll_shape_equal(&t->shape, &f->made[i].shape)) return;
    const char *text = ll_arena_printf(f->arena, "%s is %s%s there, %s in the model", t->name,
                                       t->type, is, ll_shape_print(&f->made[i].shape, want));
    list(&f->lines[2], f->misshapen++, text);
}

/* Ours, one by one. Which are there is found out before what else may be meant. */
static ll_err hold_ours(fit *f)
{
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < f->x->n; i++) {
            const char *name = f->x->t[i].name;
            ll_mapped *m = &f->made[i];
            if (f->x->moment[i]) continue;
            if (!pass) TRY(ll_map_find(f->map, f->arena, name, &f->x->t[i].shape, m));
            if (pass && !m->n && !f->fresh[i]) add_missing(f, name, name);
            for (int k = 0; k < m->n; k++) {
                int at = find_theirs(f, m->theirs[k]);
                if (!pass && at >= 0) f->used[at] = f->mapped[at] = true;
                int plain = pass ? -1 : find_named(f, m->theirs[k]);
                if (plain >= 0) f->used[plain] = true;
                if (plain >= 0 && plain != at) f->averages++;
                if (!pass || f->fresh[i]) continue;
                if (at < 0)
                    add_missing(f, m->theirs[k], name);
                else
                    check_shape(f, i, &f->w->all[at]);
            }
        }
    return LL_OK;
}

/* A second name must have the same elements: else the model there is another one. */
static ll_err check_tied(const fit *f, const ll_weight *a, const ll_weight *b)
{
    bool same = a->dtype == b->dtype && ll_shape_equal(&a->shape, &b->shape) && a->shape.n >= 0 &&
                a->dtype != LL_N_DTYPE && a->quant == b->quant &&
                !memcmp(a->stride, b->stride, sizeof *a->stride * (size_t)a->shape.n);
    same = same && (a->data == b->data || !memcmp(a->data, b->data, ll_weight_bytes(a)));
    CHECK(same, LL_E_SHAPE, "%s: %s and %s differ, but the model ties them (map %s)", f->w->path,
          a->name, b->name, f->map->name);
    return LL_OK;
}

/* Theirs that are nothing to us, by the map. */
static ll_err hold_lines(fit *f, bool look)
{
    ll_map_match match;
    LL_EACH (const ll_map_line, l, f->map->lines, f->map->n) {
        if (!strcmp(l->kind, "tied")) {
            int a = find_theirs(f, l->ours[0]), b = find_theirs(f, l->theirs[0]);
            if (a < 0 || b < 0 || f->mapped[a]) continue;
            f->used[a] = true;
            if (look && f->w->all[a].dtype != LL_N_DTYPE)
                TRY(check_tied(f, &f->w->all[a], &f->w->all[b]));
        }
        bool refuse = !strcmp(l->kind, "refuse");
        for (int i = 0; i < f->w->n && (refuse || !strcmp(l->kind, "skip")); i++) {
            const char *name = f->w->all[i].name;
            const char *whole = ll_arena_printf(f->arena, "%s%s", f->map->prefix, name);
            if (!ll_map_fits(l->theirs[0], name, &match) &&
                !ll_map_fits(l->theirs[0], whole, &match))
                continue;
            f->used[i] = true;
            CHECK(!refuse || !look, LL_E_SHAPE,
                  "%s has a tensor %s, which changes the others in a way that the model does not "
                  "support (map %s)",
                  f->w->path, name, f->map->name);
        }
    }
    return LL_OK;
}

/* Of a checkpoint of ours: moments and residuals, PARAMETER.MOMENT; what each of several replicas
 * had; how it was held against a teacher. */
static bool is_training_state(const ll_weights *w, const char *name)
{
    const char *dot = strrchr(name, '.');
    if (!w->ours || !dot) return false;
    if (!strncmp(name, LL_REPLICA, strlen(LL_REPLICA)) || ll_is_match(name)) return true;
    char front[256];
    size_t n = (size_t)(dot - name);
    if (n >= sizeof front) return false;
    memcpy(front, name, n);
    front[n] = '\0';
    return ll_weights_find(w, front) || ll_is_residual(name);
}

static void hold_rest(fit *f, const char *skip)
{
    for (int i = 0; i < f->w->n; i++) {
        const char *name = f->w->all[i].name;
        if (f->used[i] || is_training_state(f->w, name)) continue;
        if (ll_patterns_have(f->arena, skip, name)) {
            list(&f->unread, f->n_unread++, name);
            continue;
        }
        list(&f->lines[1], f->extra++, name);
    }
}

static ll_err hold(fit *f, const ll_weights *w, const ll_own_tensors *x, const char *map,
                   const char *skip, ll_arena *a)
{
    *f = (fit){.w = w, .x = x, .arena = a, .unread = {.arena = a}};
    for (int i = 0; i < 3; i++) f->lines[i].arena = a;
    f->made = LL_NEW_ARRAY(a, ll_mapped, x->n);
    f->fresh = LL_NEW_ARRAY(a, bool, x->n);
    f->used = LL_NEW_ARRAY(a, bool, w->n);
    f->mapped = LL_NEW_ARRAY(a, bool, w->n);
    for (int i = 0; i < x->n; i++)
        f->fresh[i] = !x->moment[i] && ll_patterns_have(a, skip, x->t[i].name);
    TRY(ll_map_open(map, &f->map));
    for (int i = 0; i < x->n; i++) /* adapters begin anew where the file has none */
        if (!x->moment[i] && !f->fresh[i] &&
            (ll_is_adapter(x->t[i].name) || ll_is_match(x->t[i].name)) &&
            find_theirs(f, x->t[i].name) < 0)
            f->fresh[i] = true;
    TRY(hold_ours(f));
    TRY(hold_lines(f, false));
    hold_rest(f, skip);
    return LL_OK;
}

/* The better of two. */
static bool better(const fit *a, const fit *b)
{
    int x = a->missing + a->extra, y = b->missing + b->extra;
    if (x != y) return x < y;
    if (a->misshapen != b->misshapen) return a->misshapen < b->misshapen;
    return a->w->torch && !strcmp(a->map->name, "pytorch") && !strcmp(b->map->name, LL_MAP_AS_IS);
}

/* By the map that is named, or by the bundled one that fits best. */
static ll_err choose(fit *best, const ll_weights *w, const ll_own_tensors *x,
                     const ll_weights_from *from, ll_arena *a)
{
    const char *name, *skip = from->skip ? from->skip : "";
    *best = (fit){0};
    if (from->map && *from->map) return hold(best, w, x, from->map, skip, a);
    TRY(hold(best, w, x, LL_MAP_AS_IS, skip, a));
    for (int i = 0; !w->ours && (name = ll_map_bundled(i)); i++) {
        fit f = {0};
        ll_err rc = hold(&f, w, x, name, skip, a);
        bool take = rc == LL_OK && better(&f, best);
        ll_map *drop = take ? best->map : f.map;
        if (take) *best = f;
        ll_map_close(drop);
    }
    return LL_OK;
}

/* Every pattern is for something. */
static ll_err check_skip(const fit *f, const char *skip)
{
    for (const char *p; (p = ll_pattern_next(f->arena, &skip));) {
        ll_near near = {.word = p};
        bool any = false;
        for (int i = 0; i < f->x->n; i++) {
            if (f->x->moment[i]) continue;
            any |= !fnmatch(p, f->x->t[i].name, 0);
            ll_near_try(&near, f->x->t[i].name);
        }
        for (int i = 0; i < f->w->n; i++) any |= !fnmatch(p, f->w->all[i].name, 0);
        CHECK(any, LL_E_CONFIG, "train.init_skip=%s: neither the model nor %s has such a tensor%s",
              p, f->w->path, ll_near_hint(&near));
    }
    return LL_OK;
}

static ll_err check_fit(const fit *f)
{
    if (!f->missing && !f->extra && !f->misshapen) return LL_OK;
    const int n[3] = {f->missing, f->extra, f->misshapen};
    static const char *const what[3] = {"missing", "left over", "of another type or shape"};
    ll_buf b = {.arena = f->arena};
    for (int i = 0; i < 3; i++)
        if (n[i])
            ll_buf_printf(&b, "%s%d %s: %s", b.len ? "; " : "", n[i], what[i], f->lines[i].text);
    FAIL(LL_E_SHAPE,
         "%s does not fit the model (map %s): %s; use train.init_skip to leave out patterns of "
         "names, train.init_map to map names",
         f->w->path, f->map->name, b.text);
}

/* ---- in ---- */

/* A tensor of blocks, as floats; the caller frees them. */
static ll_err unpack(const ll_weight *w, float **out)
{
    int64_t n = ll_numel(&w->shape);
    *out = (float *)malloc((size_t)(n + 1) * sizeof **out);
    CHECK(*out, LL_E_MEM, "not enough memory for %s, %ld numbers", w->name, n);
    for (int64_t i = 0; i < n / w->quant->block; i++)
        w->quant->floats(w->data + i * w->quant->bytes, *out + i * w->quant->block);
    return LL_OK;
}

static ll_err read_from(const ll_st_tensor *t, const ll_st_part *part, const ll_mapped *m, int k,
                        const ll_weight *w)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN_MEMORY float *floats = NULL;
    if (w->quant) TRY(unpack(w, &floats));
    ll_weights_copy c = {
        t->data, t->dtype, w->dtype, floats ? (uint8_t *)floats : (uint8_t *)w->data, k, false};
    ll_map_places p = ll_map_place(m, w->stride, &part->shape, part->at, a);
    ll_weights_walk(&c, &part->shape, &p);
    return LL_OK;
}

static ll_err read_all(const fit *f)
{
    for (int i = 0; i < f->x->n; i++) {
        const ll_st_tensor *t = &f->x->t[i];
        const ll_mapped *m = &f->made[i];
        ll_st_part part = ll_weights_part(f->x, i);
        if (!t->data || f->fresh[i] || !ll_numel(&part.shape)) continue;
        if (f->x->moment[i]) {
            memset(t->data, 0, ll_tensor_bytes(t->dtype, &part.shape));
            continue;
        }
        const ll_block_kind *blocks = f->x->blocks[i];
        ll_st_tensor floats = *t;
        int64_t n = ll_numel(&part.shape);
        LL_OWN_MEMORY float *room = blocks ? (float *)malloc(sizeof *room * (size_t)n) : NULL;
        CHECK(room || !blocks, LL_E_MEM, "not enough memory for %s, %ld numbers", t->name, n);
        if (blocks) floats.data = room;
        for (int k = 0; k < m->n; k++)
            TRY(read_from(&floats, &part, m, k, &f->w->all[find_theirs(f, m->theirs[k])]));
        for (int64_t k = 0; blocks && k < n; k++)
            CHECK(isfinite(room[k]), LL_E_NUMERIC,
                  "%s has %g, which blocks of 8 or 4 bits cannot hold: the weights are damaged",
                  t->name, (double)room[k]);
        for (int64_t b = 0; blocks && b < n / LL_PACK; b++)
            blocks->pack(room + b * LL_PACK, (uint8_t *)t->data + b * blocks->bytes);
    }
    return LL_OK;
}

/* Those that begin anew: the first few by name, of adapters there are hundreds. */
static void note_fresh(const fit *f, ll_buf *b)
{
    enum { NAMED = 4 };
    int n = 0;
    for (int i = 0; i < f->x->n; i++) {
        if (!f->fresh[i] || ++n > NAMED) continue;
        ll_buf_printf(b, "%s%s", n > 1 ? ", " : "; fresh: ", f->x->t[i].name);
    }
    if (n > NAMED) ll_buf_printf(b, " and %d more", n - NAMED);
}

static const char *note_of(const fit *f, bool asked)
{
    ll_buf b = {.arena = f->arena};
    int n = 0;
    const char *type = NULL;
    for (int i = 0; i < f->x->n; i++) n += !f->x->moment[i] && !f->fresh[i];
    for (int i = 0; i < f->w->n; i++) {
        ll_dtype t = f->w->all[i].dtype;
        if (t != LL_N_DTYPE && (t != LL_F32 || f->w->all[i].quant)) type = f->w->all[i].type;
    }
    ll_buf_printf(&b, "weights: %d tensors of %s (%s), by map %s%s", n, f->w->path, f->w->kind,
                  f->map->name, asked ? "" : ", which fits its names");
    if (type) ll_buf_printf(&b, "; %s converted", type);
    if (f->averages) ll_buf_printf(&b, "; averages (train.ema) of %d", f->averages);
    if (*f->w->prefix) ll_buf_printf(&b, "; without the prefix %s", f->w->prefix);
    note_fresh(f, &b);
    if (f->n_unread) ll_buf_printf(&b, "; not read: %s", f->unread.text);
    return b.text;
}

static ll_err check(const ll_own_tensors *x, const ll_weights *w, const ll_weights_from *from,
                    ll_arena *a, fit *f)
{
    TRY(choose(f, w, x, from, a));
    if (from->skip) TRY(check_skip(f, from->skip));
    TRY(check_fit(f));
    return hold_lines(f, true);
}

/* Where gradients are a step late, both versions of a parameter begin alike. */
static ll_err begin_versions(ll_session *s, ll_arena *arena)
{
    for (int i = 0; i < s->n_kept && s->late; i++) {
        const ll_slot *x = &s->p->slots[s->kept[i]];
        int next = ll_program_input(s->p, ll_arena_printf(arena, "%s" LL_NEXT, x->name));
        if (next < 0) continue;
        CHECK(ll_shape_equal(&x->type.shape, &s->p->slots[next].type.shape), LL_E_SHARD,
              "importing weights with gradients a step late needs both versions of %s laid out "
              "alike: set parallel.zero=0 or 3",
              x->name);
        memcpy(ll_exec_data(s->e, next, 0), ll_exec_data(s->e, s->kept[i], 0), x->bytes);
    }
    return LL_OK;
}

ll_err ll_weights_load(ll_session *s, const ll_weights_from *from, ll_arena *arena,
                       const char **note)
{
    ll_comm *c = s->team ? s->team->c : NULL;
    LL_OWN(ll_weights) w = NULL;
    fit f = {0};
    TRY(ll_weights_open(c, from->path, &w));
    const ll_own_tensors x = ll_weights_tensors(s, arena);
    ll_err rc = ll_ranks_agree(c, check(&x, w, from, arena, &f));
    if (rc == LL_OK) {
        rc = ll_ranks_agree(c, read_all(&f));
        *note = note_of(&f, from->map && *from->map);
        s->step = 0;
        if (rc == LL_OK) rc = ll_ranks_agree(c, begin_versions(s, arena));
        if (rc == LL_OK) rc = ll_ranks_agree(c, ll_session_loaded(s));
    }
    ll_map_close(f.map);
    return rc;
}

ll_err ll_weights_check(const ll_graph *g, const ll_weights *w, const ll_weights_from *from,
                        ll_arena *arena)
{
    ll_own_tensors x = {.t = LL_NEW_ARRAY(arena, ll_st_tensor, g->n_value),
                        .moment = LL_NEW_ARRAY(arena, bool, g->n_value),
                        .blocks = LL_NEW_ARRAY(arena, const ll_block_kind *, g->n_value)};
    fit f = {0};
    LL_EACH (const ll_value, v, g->values + 1, g->n_value - 1) {
        if (v->node >= 0 || (v->kind != LL_PARAM && v->kind != LL_STATE)) continue;
        x.t[x.n] = (ll_st_tensor){v->name, v->type.dtype, v->type.shape, NULL};
        ll_weights_unblock(&x, x.n++, arena);
    }
    ll_err rc = check(&x, w, from, arena, &f);
    ll_map_close(f.map);
    return rc;
}

/* ---- what loopline.h has of it ---- */

static ll_err restore(ll_session *s, const ll_st_file *f, ll_arena *a)
{
    const char *note;
    int64_t step;
    ll_st_list l = ll_session_tensors(s, a);
    TRY(ll_checkpoint_int(f, "step", &step));
    TRY(ll_checkpoint_load(f, l.tensors, l.parts, l.n, false));
    TRY(ll_residual_load(s, f, a, &note));
    TRY(ll_session_loaded(s));
    s->step = (uint64_t)step;
    return LL_OK;
}

ll_err ll_session_load(ll_session *s, const char *path)
{
    ll_comm *c = s->team ? s->team->c : NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_st_file) f = NULL;
    bool foreign = ll_weights_foreign(path);
    const char *note;
    TRY(ll_ranks_share(c, &foreign, sizeof foreign));
    if (foreign) return ll_weights_load(s, &(ll_weights_from){.path = path}, a, &note);
    TRY(ll_checkpoint_open(c, path, &f));
    return ll_ranks_agree(c, restore(s, f, a));
}
