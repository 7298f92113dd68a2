/* residual.c: codecs' residuals to files and back. */
#include "weights/residual.h"

bool ll_is_residual(const char *name)
{
    return ll_ends_with(name, LL_RESIDUAL_SUFFIX);
}

/* Which of the ranks that sum a gradient this one is, and what it holds of the gradient: which may
 * be cut otherwise than its parameter, until it has been summed. */
static ll_st_part part_of(const ll_session *s, const ll_residual *r, const ll_shape *whole)
{
    const ll_placement *place = s->cut->place;
    const ll_mesh *m = &place->mesh;
    int rank = s->team->rank;
    ll_layout l = {0};
    bool summed = ll_gradient_layout(place, r->param, r->axes, &l);
    LL_ASSERT(summed);
    ll_st_part part = {.shape = {.n = whole->n + 1, .d = {1}}};
    part.at[0] = ll_mesh_member(m, r->axes, rank);
    for (int d = 0; d < whole->n; d++) {
        int64_t from, to;
        ll_layout_range(m, l.split[d], whole->d[d], rank, &from, &to);
        part.shape.d[d + 1] = to - from;
        part.at[d + 1] = from;
    }
    part.spare = ll_mesh_member(m, (ll_axes) ~(r->axes | ll_layout_axes(&l)), rank) != 0;
    return part;
}

ll_st_list ll_residual_tensors(const ll_session *s, ll_arena *arena)
{
    ll_residual *list;
    const ll_program *p = s->p;
    int n = ll_exec_residuals(s->e, arena, &list);
    ll_st_list l = {LL_NEW_ARRAY(arena, ll_st_tensor, n + 1),
                    LL_NEW_ARRAY(arena, ll_st_part, n + 1), n};
    for (int i = 0; i < n; i++) {
        const ll_slot *x = &p->slots[ll_program_input(p, list[i].param)];
        const ll_shape *whole = x->piece ? &x->piece->whole : &x->type.shape;
        ll_st_tensor *t = &l.tensors[i];
        t->name = ll_arena_printf(arena, "%s" LL_RESIDUAL_SUFFIX, list[i].param);
        t->dtype = LL_F32;
        t->shape = (ll_shape){.n = whole->n + 1};
        t->shape.d[0] = ll_mesh_group(&s->cut->place->mesh, list[i].axes);
        for (int d = 0; d < whole->n; d++) t->shape.d[d + 1] = whole->d[d];
        t->data = list[i].data;
        l.parts[i] = part_of(s, &list[i], whole);
    }
    return l;
}

size_t ll_residual_bytes(const ll_session *s)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    size_t sum = 0;
    ll_st_list l = ll_residual_tensors(s, a);
    for (int i = 0; i < l.n; i++) sum += (size_t)ll_numel(&l.parts[i].shape) * sizeof(float);
    return sum;
}

/* The same tensor, but for how many ranks had one. */
static ll_err check_shape(const ll_st_file *f, const ll_st_tensor *t, int64_t *ranks)
{
    ll_dtype dtype;
    ll_shape there, want = t->shape;
    char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT];
    TRY(ll_st_want(f, t->name, &dtype, &there));
    *ranks = there.n ? there.d[0] : 0;
    want.d[0] = *ranks;
    CHECK(dtype == LL_F32 && *ranks > 0 && ll_shape_equal(&want, &there), LL_E_SHAPE,
          "%s: tensor %s is %s%s, expected f32%s with any number of ranks in front", f->path,
          t->name, ll_dtype_name(dtype), ll_shape_print(&there, a), ll_shape_print(&t->shape, b));
    return LL_OK;
}

static ll_err load_one(const ll_st_file *f, const ll_st_tensor *t, const ll_st_part *part,
                       ll_arena *arena, int64_t *ranks)
{
    TRY(check_shape(f, t, ranks));
    if (*ranks == t->shape.d[0]) return ll_st_read_part(f, t->name, part, t->data);
    int64_t n = ll_numel(&part->shape);
    float *data = (float *)t->data, *one = LL_NEW_ARRAY(arena, float, n + 1);
    double *sum = LL_NEW_ARRAY(arena, double, n + 1);
    for (int64_t r = 0; r < *ranks; r++) {
        ll_st_part from = *part;
        from.at[0] = r;
        TRY(ll_st_read_part(f, t->name, &from, one));
        for (int64_t i = 0; i < n; i++) sum[i] += (double)one[i];
    }
    for (int64_t i = 0; i < n; i++) data[i] = (float)(sum[i] / (double)t->shape.d[0]);
    return LL_OK;
}

ll_err ll_residual_load(const ll_session *s, const ll_st_file *f, ll_arena *arena,
                        const char **note)
{
    LL_OWN(ll_arena) scratch = ll_arena_new();
    *note = NULL;
    ll_st_list l = ll_residual_tensors(s, scratch);
    const ll_st_tensor *t = l.tensors;
    int n = l.n, there = 0;
    for (int i = 0; i < f->n_entries; i++) there += ll_is_residual(f->entries[i].name);
    for (int i = 0; i < n; i++) {
        int64_t ranks = 0;
        memset(t[i].data, 0, (size_t)ll_numel(&l.parts[i].shape) * sizeof(float));
        if (!ll_st_find(f, t[i].name)) continue;
        TRY(load_one(f, &t[i], &l.parts[i], scratch, &ranks));
        if (ranks != t[i].shape.d[0])
            *note = ll_arena_printf(
                arena,
                "residuals of %ld ranks: their sum is divided among the %ld ranks of this run",
                ranks, t[i].shape.d[0]);
    }
    if (there && !n)
        *note = ll_arena_printf(arena, "the checkpoint's residuals are dropped: this run's codec "
                                       "keeps none (parallel.compress)");
    return LL_OK;
}
