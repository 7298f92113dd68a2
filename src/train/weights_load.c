/* weights_load.c: weights in and out of sessions.
 *
 * Every tensor of ours is looked up in the map, which says which of theirs it is made of and of
 * what shape they must be. Where no map is named, the bundled one is taken that leaves the fewest
 * names without a partner, and then the fewest shapes that differ; ties go to the plain one, or, of
 * files of PyTorch, to the one for its layers. Elements are walked by a table of places for each
 * dimension (weight_map.h), the same into a session and out of it. */
#include "train/weights_load.h"

#include "base/near.h"
#include "base/text.h"
#include "train/checkpoint.h"
#include "train/ranks.h"
#include "train/residual.h"
#include "train/state.h"
#include "train/weights.h"

#include <fnmatch.h>
#include <inttypes.h>

/* ---- which tensors ---- */

/* Is it an optimizer's, PARAMETER.MOMENT? */
static bool is_moment(const ll_graph *g, const ll_value *v)
{
    const char *dot = v->kind == LL_STATE ? strrchr(v->name, '.') : NULL;
    if (!dot) return false;
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *p = &g->values[i];
        if (p->kind == LL_PARAM && p->node < 0 && !strncmp(p->name, v->name, dot - v->name) &&
            !p->name[dot - v->name])
            return true;
    }
    return false;
}

typedef struct tensors {
    ll_st_tensor *t;
    ll_st_part *parts; /* NULL: whole */
    bool *moment;
    int n;
} tensors;

static tensors tensors_of(const ll_session *s, ll_arena *a)
{
    tensors x = {0};
    x.n = ll_session_tensors(s, a, &x.t, &x.parts);
    x.moment = LL_NEW_ARRAY(a, bool, x.n);
    for (int i = 0; i < x.n; i++)
        x.moment[i] = is_moment(s->g, ll_value_of(s->g, ll_find(s->g, x.t[i].name)));
    return x;
}

static ll_st_part part_of(const tensors *x, int i)
{
    return x->parts ? x->parts[i] : (ll_st_part){.shape = x->t[i].shape};
}

/* ---- elements ---- */

/* Ours, and one of theirs. */
typedef struct copy {
    void *ours;
    ll_dtype dtype, other;
    uint8_t *theirs;
    int which; /* of several */
    bool out;  /* to theirs */
} copy;

/* n elements of one type that lie together on both sides. */
static void copy_row(const copy *c, int64_t i, int64_t at, int64_t n)
{
    size_t one = ll_dtype_bytes(c->dtype);
    uint8_t *there = c->theirs + (size_t)at * one, *here = (uint8_t *)c->ours + (size_t)i * one;
    memcpy(c->out ? there : here, c->out ? here : there, (size_t)n * one);
}

static void copy_one(const copy *c, int64_t i, int64_t at)
{
    uint8_t *there = c->theirs + (size_t)at * ll_dtype_bytes(c->other);
    uint64_t room = 0;                              /* theirs may lie at any byte */
    if (c->dtype == LL_F32 && c->other == LL_F32) { /* the usual ones, which are many */
        uint8_t *here = (uint8_t *)c->ours + (size_t)i * 4;
        memcpy(c->out ? there : here, c->out ? here : there, 4);
    } else if (c->out) {
        ll_store(&room, c->other, 0, ll_load(c->ours, c->dtype, i));
        memcpy(there, &room, ll_dtype_bytes(c->other));
    } else {
        memcpy(&room, there, ll_dtype_bytes(c->other));
        ll_store(c->ours, c->dtype, i, ll_load(&room, c->other, 0));
    }
}

/* Every element of the part that is in this one of theirs. */
static void walk(const copy *c, const ll_shape *part, const ll_map_places *p)
{
    int last = part->n - 1;
    int64_t n = ll_numel(part), row = part->n ? part->d[last] : 1, index[LL_MAX_DIMS] = {0};
    static int64_t here = 0;
    static int first = 0;
    const int64_t *at = part->n ? p->at[last] : &here;
    const int *of = part->n ? p->which[last] : &first;
    bool together = c->dtype == c->other;
    for (int64_t i = 1; i < row; i++)
        together = together && at[i] == at[i - 1] + 1 && of[i] == of[0];
    for (int64_t done = 0; done < n; done += row) {
        int64_t base = p->first;
        int which = 0;
        for (int d = 0; d < last; d++) {
            base += p->at[d][index[d]];
            which += p->which[d][index[d]];
        }
        if (together && which + of[0] == c->which) copy_row(c, done, base + at[0], row);
        for (int64_t i = 0; i < row && !together; i++)
            if (which + of[i] == c->which) copy_one(c, done + i, base + at[i]);
        for (int d = last - 1; d >= 0 && ++index[d] == part->d[d]; d--) index[d] = 0;
    }
}

/* ---- a file held against the model ---- */

typedef struct fit {
    const ll_weights *w;
    const tensors *x;
    ll_map *map;
    ll_mapped *made; /* [x->n] */
    bool *fresh;     /* [x->n]: keeps its values */
    bool *used;      /* [w->n] */
    int missing, extra, misshapen, n_fresh, n_unread;
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

/* Patterns of `skip`, one after the other; NULL after the last. */
static const char *next_pattern(ll_arena *a, const char **at)
{
    *at += strspn(*at, ", ");
    size_t n = strcspn(*at, ", ");
    if (!n) return NULL;
    const char *pattern = ll_arena_printf(a, "%.*s", (int)n, *at);
    *at += n;
    return pattern;
}

static bool skips(ll_arena *a, const char *skip, const char *name)
{
    for (const char *p; (p = next_pattern(a, &skip));)
        if (!fnmatch(p, name, 0)) return true;
    return false;
}

static int find_theirs(const fit *f, const char *name)
{
    const ll_weight *t = ll_weights_find(f->w, name);
    size_t n = strlen(f->map->prefix);
    if (!t && n && !strncmp(name, f->map->prefix, n)) t = ll_weights_find(f->w, name + n);
    return t ? (int)(t - f->w->all) : -1;
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
                if (!pass && at >= 0) f->used[at] = true;
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
                a->dtype != LL_N_DTYPE &&
                !memcmp(a->stride, b->stride, sizeof *a->stride * (size_t)a->shape.n);
    int64_t last = 0;
    for (int d = 0; same && d < a->shape.n; d++) last += (a->shape.d[d] - 1) * a->stride[d];
    same = same && (a->data == b->data ||
                    !memcmp(a->data, b->data, (size_t)(last + 1) * ll_dtype_bytes(a->dtype)));
    CHECK(same, LL_E_SHAPE, "%s: %s is not %s there; in the model they are one, by map %s",
          f->w->path, a->name, b->name, f->map->name);
    return LL_OK;
}

/* Theirs that are nothing to us, by the map. */
static ll_err hold_lines(fit *f, bool look)
{
    ll_map_match match;
    for (int k = 0; k < f->map->n; k++) {
        const ll_map_line *l = &f->map->lines[k];
        if (!strcmp(l->kind, "tied")) {
            int a = find_theirs(f, l->ours[0]), b = find_theirs(f, l->theirs[0]);
            if (a < 0 || b < 0) continue;
            f->used[a] = true;
            if (look && f->w->all[a].dtype != LL_N_DTYPE)
                TRY(check_tied(f, &f->w->all[a], &f->w->all[b]));
        }
        for (int i = 0; i < f->w->n && !strcmp(l->kind, "skip"); i++) {
            const char *name = f->w->all[i].name;
            const char *whole = ll_arena_printf(f->arena, "%s%s", f->map->prefix, name);
            if (ll_map_fits(l->theirs[0], name, &match) || ll_map_fits(l->theirs[0], whole, &match))
                f->used[i] = true;
        }
    }
    return LL_OK;
}

/* Of a checkpoint of ours: moments and residuals, PARAMETER.MOMENT. */
static bool is_training_state(const ll_weights *w, const char *name)
{
    const char *dot = strrchr(name, '.');
    if (!w->ours || !dot) return false;
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
        if (skips(f->arena, skip, name)) {
            list(&f->unread, f->n_unread++, name);
            continue;
        }
        list(&f->lines[1], f->extra++, name);
    }
}

static ll_err hold(fit *f, const ll_weights *w, const tensors *x, const char *map, const char *skip,
                   ll_arena *a)
{
    *f = (fit){.w = w, .x = x, .arena = a, .unread = {.arena = a}};
    for (int i = 0; i < 3; i++) f->lines[i].arena = a;
    f->made = LL_NEW_ARRAY(a, ll_mapped, x->n);
    f->fresh = LL_NEW_ARRAY(a, bool, x->n);
    f->used = LL_NEW_ARRAY(a, bool, w->n);
    for (int i = 0; i < x->n; i++) {
        f->fresh[i] = !x->moment[i] && skips(a, skip, x->t[i].name);
        f->n_fresh += f->fresh[i];
    }
    TRY(ll_map_open(map, &f->map));
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
static ll_err choose(fit *best, const ll_weights *w, const tensors *x, const ll_weights_from *from,
                     ll_arena *a)
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
    for (const char *p; (p = next_pattern(f->arena, &skip));) {
        ll_near near = {.word = p};
        bool any = false;
        for (int i = 0; i < f->x->n; i++) {
            if (f->x->moment[i]) continue;
            any |= !fnmatch(p, f->x->t[i].name, 0);
            ll_near_try(&near, f->x->t[i].name);
        }
        for (int i = 0; i < f->w->n; i++) any |= !fnmatch(p, f->w->all[i].name, 0);
        CHECK(any, LL_E_CONFIG, "train.init_skip %s: neither the model nor %s has such a tensor%s",
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
         "%s does not fit the model (by map %s): %s; train.init_skip leaves out patterns of names, "
         "train.init_map says how names are to be read",
         f->w->path, f->map->name, b.text);
}

/* ---- in ---- */

static void read_all(const fit *f)
{
    for (int i = 0; i < f->x->n; i++) {
        const ll_st_tensor *t = &f->x->t[i];
        const ll_mapped *m = &f->made[i];
        ll_st_part part = part_of(f->x, i);
        if (!t->data || f->fresh[i] || !ll_numel(&part.shape)) continue;
        if (f->x->moment[i]) {
            memset(t->data, 0, (size_t)ll_numel(&part.shape) * ll_dtype_bytes(t->dtype));
            continue;
        }
        for (int k = 0; k < m->n; k++) {
            LL_OWN(ll_arena) a = ll_arena_new();
            const ll_weight *w = &f->w->all[find_theirs(f, m->theirs[k])];
            copy c = {t->data, t->dtype, w->dtype, (uint8_t *)w->data, k, false};
            ll_map_places p = ll_map_place(m, w->stride, &part.shape, part.at, a);
            walk(&c, &part.shape, &p);
        }
    }
}

static const char *note_of(const fit *f, bool asked)
{
    ll_buf b = {.arena = f->arena};
    int n = 0, more = 0;
    const char *type = NULL;
    for (int i = 0; i < f->x->n; i++) n += !f->x->moment[i] && !f->fresh[i];
    for (int i = 0; i < f->w->n; i++) {
        ll_dtype t = f->w->all[i].dtype;
        if (t != LL_N_DTYPE && t != LL_F32) type = f->w->all[i].type;
    }
    ll_buf_printf(&b, "weights: %d tensors of %s (%s), by map %s%s", n, f->w->path, f->w->kind,
                  f->map->name, asked ? "" : ", which fits its names");
    if (type) ll_buf_printf(&b, "; %s converted", type);
    if (*f->w->prefix) ll_buf_printf(&b, "; without the prefix %s", f->w->prefix);
    for (int i = 0; i < f->x->n; i++)
        if (f->fresh[i]) ll_buf_printf(&b, "%s%s", more++ ? ", " : "; fresh: ", f->x->t[i].name);
    if (f->n_unread) ll_buf_printf(&b, "; not read: %s", f->unread.text);
    return b.text;
}

static ll_err load(ll_session *s, const ll_weights *w, const ll_weights_from *from, ll_arena *a,
                   fit *f)
{
    tensors *x = LL_NEW(a, tensors);
    *x = tensors_of(s, a);
    TRY(choose(f, w, x, from, a));
    if (from->skip) TRY(check_skip(f, from->skip));
    TRY(check_fit(f));
    return hold_lines(f, true);
}

ll_err ll_weights_load(ll_session *s, const ll_weights_from *from, ll_arena *arena,
                       const char **note)
{
    ll_comm *c = s->team ? ll_team_comm(s->team) : NULL;
    LL_OWN(ll_weights) w = NULL;
    fit f = {0};
    TRY(ll_weights_open(c, from->path, &w));
    ll_err rc = ll_ranks_agree(c, load(s, w, from, arena, &f));
    if (rc == LL_OK) {
        read_all(&f);
        *note = note_of(&f, from->map && *from->map);
        s->step = 0;
        rc = ll_ranks_agree(c, ll_session_loaded(s));
    }
    ll_map_close(f.map);
    return rc;
}

/* ---- out ---- */

typedef struct theirs {
    ll_st_tensor *t;
    int64_t *filled; /* elements */
    int n, room, filled_room;
    ll_arena *arena;
    ll_dtype dtype;
} theirs;

/* The tensor of that name; made where there is none yet. */
static int find_or_make(theirs *o, const char *name, const ll_shape *shape)
{
    for (int i = 0; i < o->n; i++)
        if (!strcmp(o->t[i].name, name)) return i;
    size_t bytes = (size_t)ll_numel(shape) * ll_dtype_bytes(o->dtype);
    o->t = (ll_st_tensor *)ll_arena_grow(o->arena, o->t, sizeof *o->t, o->n, &o->room);
    o->filled =
        (int64_t *)ll_arena_grow(o->arena, o->filled, sizeof *o->filled, o->n, &o->filled_room);
    o->filled[o->n] = 0;
    o->t[o->n] = (ll_st_tensor){name, o->dtype, *shape, ll_arena_try(o->arena, bytes + 1)};
    return o->n++;
}

static ll_err write_one(theirs *o, const ll_map *map, const ll_st_tensor *t)
{
    ll_mapped m;
    TRY(ll_map_find(map, o->arena, t->name, &t->shape, &m));
    CHECK(m.n, LL_E_CONFIG, "map %s has no line for %s", map->name, t->name);
    int64_t stride[LL_MAX_DIMS] = {0}, zero[LL_MAX_DIMS] = {0};
    for (int64_t d = m.shape.n - 1, step = 1; d >= 0; step *= m.shape.d[d--]) stride[d] = step;
    for (int k = 0; k < m.n; k++) {
        LL_OWN(ll_arena) a = ll_arena_new();
        int at = find_or_make(o, m.theirs[k], &m.shape);
        CHECK(o->t[at].data, LL_E_MEM, "no memory for %s", m.theirs[k]);
        copy c = {t->data, t->dtype, o->dtype, (uint8_t *)o->t[at].data, k, true};
        ll_map_places p = ll_map_place(&m, stride, &t->shape, zero, a);
        walk(&c, &t->shape, &p);
        o->filled[at] += ll_numel(&t->shape) / m.n;
    }
    return LL_OK;
}

static ll_err write_all(theirs *o, const ll_map *map, const tensors *x)
{
    for (int i = 0; i < x->n; i++)
        if (!x->moment[i]) TRY(write_one(o, map, &x->t[i]));
    for (int i = 0; i < o->n; i++)
        CHECK(o->filled[i] == ll_numel(&o->t[i].shape), LL_E_CONFIG,
              "map %s does not give each element of %s from one of the model", map->name,
              o->t[i].name);
    for (int i = 0; i < map->n; i++) {
        const ll_map_line *l = &map->lines[i];
        int n = o->n, k = 0;
        while (k < n && strcmp(o->t[k].name, l->theirs[0])) k++;
        if (strcmp(l->kind, "tied") || k == n) continue;
        ll_st_tensor again = o->t[k];
        int at = find_or_make(o, l->ours[0], &(ll_shape){.n = 1});
        again.name = l->ours[0];
        o->t[at] = again;
    }
    return LL_OK;
}

ll_err ll_weights_save(ll_session *s, const char *path, const char *map, ll_dtype dtype, int *n)
{
    LL_ASSERT(!s->team);
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_map) m = NULL;
    TRY(ll_map_open(map && *map ? map : LL_MAP_AS_IS, &m));
    tensors x = tensors_of(s, a);
    theirs o = {.arena = a, .dtype = dtype};
    TRY(write_all(&o, m, &x));
    ll_st_pair pt = {"format", "pt"};
    *n = o.n;
    return ll_st_write(path, &(ll_st_content){.tensors = o.t,
                                              .n = o.n,
                                              .meta = &pt,
                                              .n_meta = strcmp(m->name, LL_MAP_AS_IS) != 0});
}

/* ---- what loopline.h has of it ---- */

static ll_err restore(ll_session *s, const ll_st_file *f, ll_arena *a)
{
    ll_st_tensor *t;
    ll_st_part *parts;
    const char *note;
    int64_t step;
    int n = ll_session_tensors(s, a, &t, &parts);
    TRY(ll_checkpoint_int(f, "step", &step));
    TRY(ll_checkpoint_load(f, t, parts, n, false));
    TRY(ll_residual_load(s, f, a, &note));
    TRY(ll_session_loaded(s));
    s->step = (uint64_t)step;
    return LL_OK;
}

ll_err ll_session_load(ll_session *s, const char *path)
{
    ll_comm *c = s->team ? ll_team_comm(s->team) : NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_st_file) f = NULL;
    bool foreign = ll_weights_foreign(path);
    const char *note;
    TRY(ll_ranks_share(c, &foreign, sizeof foreign));
    if (foreign) return ll_weights_load(s, &(ll_weights_from){.path = path}, a, &note);
    TRY(ll_checkpoint_open(c, path, &f));
    return ll_ranks_agree(c, restore(s, f, a));
}
