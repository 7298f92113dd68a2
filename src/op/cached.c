/* cached.c: generation. Sequences go on token by token; keys and values of what they have so far
 * are state, [b,s,n,d], of which the first at[b] places are filled.
 *
 *   cached_attend: q [b,t,n,g,d], of new tokens k, v [b,t,n,d]; their cache; at [b] -> [b,t,n,g,d]
 *     New token i sees the at[b] places of the cache and new tokens up to itself.
 *   cache_write: cache, new [b,t,n,d], at [b] -> the cache with the new ones behind the old; what
 *     has no place is left out, so that sequences with at = s keep theirs. In place.
 *   cache_keep: q, k; their cache of keys; kept [b,s,n,2]; at, count [b] -> kept, of which key is
 *     in which place, with count of the new tokens (kern/keep.h), where there are fewer places than
 *     tokens: attention then sees at or all s places of the cache, whichever are fewer.
 *   cache_place: cache, new, kept, at -> the cache with new ones where kept has them. In place.
 * A cache is of their float type, e = d, or of bytes with a scale for each row, e = d + 2
 * (kern/cache8.h), or of 4 bits (kern/cache4.h), whose keys have more rows than there are places,
 * and are written before they are looked at. */
#include "op/op_int.h"
#include "op/rows.h"

LL_KERNELS(cached_attend, cache_write, cache_keep, cache_place)

/* Of 4 bits: keys have a ring, in which what is read at once and a group have room. */
static ll_err check_ring(const ll_infer *i, int64_t bits, int64_t ring)
{
    const ll_shape *keys = &i->in[i->op->n_in == 6 ? 3 : 0].shape, *new = &i->in[1].shape;
    CHECK(bits == 0 || bits == 4 || bits == 8, LL_E_ARG, "a cache of %ld bits: 8, 4, or 0", bits);
    if (!ring && (bits != 4 || i->op->n_in != 6)) return LL_OK;
    CHECK(bits == 4 && keys->n == 4 && new->n == 4, LL_E_ARG,
          "a ring of newest keys is of 4 bits, and those of [b,r,n,e] and [b,t,n,d]");
    CHECK(ring >= LL_CACHE4_GROUP - 1 + new->d[1] && ring <= keys->d[1] / 2, LL_E_SHAPE,
          "a ring of %ld newest keys of %ld rows, %ld tokens at once: expected %ld or more", ring,
          keys->d[1], new->d[1], (LL_CACHE4_GROUP - 1 + new->d[1]));
    int64_t places =
        i->op->n_in == 6 && i->in[4].shape.n == 4 ? i->in[4].shape.d[1] : keys->d[1] - 2 * ring;
    CHECK(keys->d[1] == ll_cache_rows(places, ring), LL_E_SHAPE,
          "keys of %ld rows, expected %ld for %ld places", keys->d[1], ll_cache_rows(places, ring),
          places);
    return LL_OK;
}

/* The last operand is i32, all before it are of one float type, or, of caches, bytes. */
static ll_err infer(ll_infer *i)
{
    bool attends = i->op->n_in == 6;
    int cache = attends ? 3 : 0, n_cache = attends ? 2 : 1;
    const ll_type *new = &i->in[attends ? 0 : 1];
    const ll_cached_attr *look = (const ll_cached_attr *)i->attr;
    const ll_cache_write_attr *write = (const ll_cache_write_attr *)i->attr;
    int64_t bits = attends ? look->bits : write->bits;
    TRY(check_ring(i, bits, attends ? look->ring : write->ring));
    for (int k = 0; k + 1 < i->n_in; k++) {
        const ll_type *x = &i->in[k];
        bool kept = k >= cache && k < cache + n_cache;
        ll_dtype want = kept && bits ? LL_U8 : new->dtype;
        CHECK(ll_dtype_is_float(new->dtype) && x->dtype == want, LL_E_ARG,
              "operand %d is %s, expected %s", k, ll_dtype_name(x->dtype),
              ll_dtype_is_float(new->dtype) ? ll_dtype_name(want) : "a float type");
        int64_t d = new->shape.n ? new->shape.d[new->shape.n - 1] : 0;
        CHECK(!kept || x->shape.n != 4 || x->shape.d[3] == ll_cache_row(bits, d), LL_E_SHAPE,
              "operand %d has rows of %ld, expected %ld", k, x->shape.d[3], ll_cache_row(bits, d));
    }
    TRY(ll_check_index(i, i->n_in - 1));
    return ll_infer_dims(i);
}

static const ll_op cached_attend = {
    LL_REF_OP(cached_attend, ATTENTION, 6, 1, .scratch = cached_attend_cpu_scratch, .parts = true),
    LL_ATTRS(ll_cached_attr, scale, window, bits, ring),
    .dims = "btngd, btnd, btnd, brne, bsne, b -> btngd",
    .whole = "trsde",
    .infer = infer,
    .no_grad = true,
    .flop = 4,
    .trials = {"b=2 t=3 n=2 g=2 d=4 r=7 e=4 s=7 5:i32<8 {scale=0.5, window=0}",
               "b=3 t=1 n=1 g=3 d=5 r=9 e=5 s=9 5:i32<10 {scale=0.3, window=4}",
               "b=1 t=4 n=1 g=1 d=3 r=1 e=3 s=1 5:i32<2 {scale=1, window=2}",
               "b=2 t=3 n=2 g=2 d=5 r=7 e=7 s=7 3:u8 4:u8 5:i32<8 {scale=0.5, window=0, bits=8}",
               "b=1 t=1 n=1 g=3 d=16 r=9 e=18 s=9 3:u8 4:u8 5:i32<10 {scale=0.1, window=4, bits=8}",
               "b=2 t=3 n=2 g=2 d=5 r=100 e=6 s=7 3:u8 4:u8 5:i32<8 {scale=0.5, window=0, bits=4, "
               "ring=34}",
               "b=3 t=1 n=1 g=3 d=37 r=170 e=25 s=71 3:u8 4:u8 5:i32<72 {scale=0.01, window=0, "
               "bits=4, ring=37}",
               "b=1 t=2 n=2 g=1 d=64 r=162 e=38 s=96 3:u8 4:u8 5:i32<97 {scale=0.01, window=35, "
               "bits=4, ring=33}"},
};

static const ll_op cache_write = {
    LL_PLAIN_OP(cache_write, COPY, 3, 1),
    LL_ATTRS(ll_cache_write_attr, bits, ring),
    .dims = "bsne, btnd, b -> bsne",
    .whole = "sted",
    .infer = infer,
    .no_grad = true,
    .f64 = true,
    .in_place = 1,
    .trials = {"f32[2,5,2,3], f32[2,2,2,3], i32[2]<6", "f32[1,4,1,1], f32[1,1,1,1], i32[1]<4",
               "u8[2,5,2,5], f32[2,2,2,3], i32[2]<6 {bits=8}",
               "u8[2,5,2,5], f32[2,2,2,3], i32[2]<6 {bits=4}",
               "u8[1,7,3,25], f32[1,5,3,37], i32[1]<7 {bits=4}",
               "u8[2,162,2,6], f32[2,2,2,5], i32[2]<97 {bits=4, ring=33}"},
};

/* All but indices are f32. */
static ll_err infer_kept(ll_infer *i)
{
    int floats = i->n_in == 6 ? 4 : 3;
    for (int k = 0; k < i->n_in; k++) {
        const ll_type *x = &i->in[k];
        if (k >= floats)
            TRY(ll_check_index(i, k));
        else
            CHECK(x->dtype == LL_F32, LL_E_ARG, "operand %d is %s, expected f32", k,
                  ll_dtype_name(x->dtype));
        bool kept = k == floats - 1;
        CHECK(!kept || (x->shape.n == 4 && x->shape.d[3] == 2), LL_E_SHAPE,
              "operand %d: expected a mass and a place for each entry", k);
    }
    return ll_infer_dims(i);
}

static const ll_op cache_keep = {
    LL_REF_OP(cache_keep, ATTENTION, 6, 1, .scratch = cache_keep_cpu_scratch, .parts = true),
    LL_ATTRS(ll_cache_keep_attr, scale),
    .dims = "btngd, btnd, bsnd, bsnz, b, b -> bsnz",
    .whole = "tgdsz",
    .infer = infer_kept,
    .no_grad = true,
    .flop = 2,
    .trials = {"b=2 t=3 n=2 g=2 d=4 s=7 z=2 4:i32<9 5:i32<4 {scale=0.5}",
               "b=3 t=1 n=1 g=3 d=5 s=1 z=2 4:i32<5 5:i32<2 {scale=0.3}",
               "b=1 t=5 n=3 g=1 d=3 s=2 z=2 4:i32<2 5:i32<6 {scale=1}"},
};

static const ll_op cache_place = {
    LL_PLAIN_OP(cache_place, COPY, 4, 1),
    .dims = "bsnd, btnd, bsnz, b -> bsnd",
    .whole = "stdz",
    .infer = infer_kept,
    .no_grad = true,
    .in_place = 1,
    .trials = {"b=2 s=5 n=2 d=3 t=2 z=2 3:i32<2", "b=1 s=4 n=1 d=1 t=1 z=2 3:i32<1"},
};

/* ---- what models are made with ---- */

ll_val ll_build_each(const ll_build *b, const char *name)
{
    ll_val v = ll_find(b->g, name);
    return v.id ? v : ll_batch(b->g, name, LL_I32, LL_SHAPE(b->batch));
}

ll_val ll_build_places(const ll_build *b)
{
    if (!b->cache) return (ll_val){0};
    ll_val at = ll_reshape(b->g, ll_build_each(b, "at"), LL_SHAPE(b->batch, 1));
    ll_val place = ll_add(b->g, at, ll_arange(b->g, LL_I32, b->step, 0, 1));
    ll_val last = ll_fill(b->g, LL_I32, LL_SCALAR, (double)(b->cache - 1));
    return ll_min(b->g, place, last); /* what is no token may stand behind the last place */
}

ll_val ll_build_kept(const ll_build *b, const char *name, ll_dtype dtype, ll_shape shape, ll_val x)
{
    ll_graph *g = b->g;
    if (!b->cache) return x;
    const char *full = ll_scoped(g, ll_arena_printf(g->arena, "%s" LL_CACHE, name));
    ll_val kept = ll_input(g, full, LL_STATE, (ll_type){dtype, shape}, (ll_init){LL_ZEROS, 0});
    if (!b->source || !x.id) return kept;
    ll_shape each = {.n = shape.n};
    for (int i = 0; i < shape.n; i++) each.d[i] = i ? 1 : shape.d[0];
    ll_val fresh = ll_reshape(g, ll_cast(g, ll_build_each(b, "fresh"), dtype), each);
    ll_graph_update(g, kept, ll_select(g, fresh, x, kept));
    return x;
}

ll_val ll_build_last(const ll_build *b, ll_val x)
{
    if (x.id && !b->cache && b->prompt && ll_find(b->g, LL_PROMPT).id)
        return ll_slice(b->g, x, 1, b->prompt, ll_graph_shape(b->g, x).d[1]);
    if (!b->cache || b->all || !x.id) return x;
    ll_val last = ll_one_hot(b->g, ll_build_each(b, "last"), b->step, ll_graph_dtype(b->g, x));
    ll_shape s = ll_graph_shape(b->g, x);
    return ll_reshape(b->g, ll_matmul(b->g, "bt,btc->bc", last, x), LL_SHAPE(s.d[0], 1, s.d[2]));
}

/* Where tokens are below n: rows of them, else of the prompt. */
static ll_val of_both(ll_graph *g, ll_val table, ll_val prompt, ll_val tokens)
{
    ll_shape t = ll_graph_shape(g, tokens);
    int64_t n = ll_graph_shape(g, table).d[0];
    ll_val end = ll_fill(g, LL_I32, LL_SCALAR, (double)n), zero = ll_fill(g, LL_I32, LL_SCALAR, 0);
    ll_val last = ll_fill(g, LL_I32, LL_SCALAR, (double)(n - 1));
    ll_val hard = ll_embedding(g, table, ll_min(g, tokens, last));
    ll_val soft = ll_embedding(g, prompt, ll_max(g, ll_sub(g, tokens, end), zero));
    ll_val is = ll_cast(g, ll_less(g, tokens, end), ll_graph_dtype(g, hard));
    return ll_select(g, ll_reshape(g, is, LL_SHAPE(t.d[0], t.d[1], 1)), hard, soft);
}

ll_val ll_build_embed(const ll_build *b, ll_val table, ll_val tokens)
{
    ll_graph *g = b->g;
    if (!b->prompt || !table.id || !tokens.id) return ll_embedding(g, table, tokens);
    int64_t n = b->prompt, c = ll_graph_shape(g, table).d[1];
    ll_val prompt = ll_param(g, LL_PROMPT, LL_SHAPE(n, c), (ll_init){LL_NORMAL, 0.02});
    if (b->cache) return of_both(g, table, prompt, tokens);
    ll_val rows[2] = {ll_broadcast(g, prompt, "pc->bpc", LL_SHAPE(b->batch, n, c)),
                      ll_embedding(g, table, tokens)};
    return ll_concat(g, rows, 2, 1);
}

/* Adds to scores: 0 for the last `window` keys of each query, else -1e30. */
static ll_val window_mask(ll_graph *g, int64_t t, int64_t window)
{
    ll_val key = ll_arange(g, LL_F32, t, 0, 1), query = ll_reshape(g, key, LL_SHAPE(t, 1));
    ll_val far = ll_fill(g, LL_F32, LL_SCALAR, (double)window - 0.5);
    return ll_scale(g, ll_less(g, far, ll_sub(g, query, key)), -1e30);
}

/* Of fewer entries than tokens: those that are attended to. */
static ll_val kept_few(const ll_build *b, const char *name, ll_val q, ll_val k, ll_val v,
                       int64_t window)
{
    ll_graph *g = b->g;
    ll_shape s = ll_graph_shape(g, k);
    ll_val at = ll_build_each(b, "at"), keep[3], new[2] = {k, v};
    ll_cached_attr a = {1 / sqrt((double)s.d[3]), 0, 0, 0};
    if (window > 0 && window < b->cache) {
        ll_graph_reject(g, "keep %ld: a model with a window (%ld) forgets by itself", b->keep,
                        window);
        return (ll_val){0};
    }
    s.d[1] = b->keep;
    for (int i = 0; i < 3; i++) {
        const char *full = ll_scoped(g, ll_arena_printf(g->arena, "%s.%s" LL_CACHE, name,
                                                        i == 0   ? "k"
                                                        : i == 1 ? "v"
                                                                 : "kept"));
        if (i == 2) s.d[3] = 2;
        keep[i] = ll_input(g, full, LL_STATE, (ll_type){LL_F32, s}, (ll_init){LL_ZEROS, 0});
    }
    ll_val y = LL_EMIT(g, &cached_attend, &a, q, k, v, keep[0], keep[1], at);
    ll_val next = LL_EMIT(g, &cache_keep, &(ll_cache_keep_attr){a.scale}, q, k, keep[0], keep[2],
                          at, ll_build_each(b, "count"));
    for (int i = 0; i < 2; i++)
        ll_graph_update(g, keep[i], LL_EMIT(g, &cache_place, NULL, keep[i], new[i], next, at));
    ll_graph_update(g, keep[2], next);
    return y;
}

static ll_val cached(const ll_build *b, const char *name, ll_val q, ll_val k, ll_val v,
                     int64_t window)
{
    ll_graph *g = b->g;
    ll_shape s = ll_graph_shape(g, k);
    ll_val at = ll_build_each(b, "at"), keep[2], new[2] = {k, v};
    ll_cached_attr a = {1 / sqrt((double)s.d[3]), window, b->cache_bits, 0};
    if (a.bits == 4) a.ring = LL_CACHE4_GROUP - 1 + (b->longest ? b->longest : b->step);
    s.d[3] = ll_cache_row(a.bits, s.d[3]);
    for (int i = 0; i < 2; i++) {
        const char *full =
            ll_scoped(g, ll_arena_printf(g->arena, "%s.%s" LL_CACHE, name, i ? "v" : "k"));
        ll_cache_write_attr w = {a.bits, i ? 0 : a.ring};
        s.d[1] = ll_cache_rows(b->cache, w.ring);
        keep[i] = ll_input(g, full, LL_STATE, (ll_type){a.bits ? LL_U8 : LL_F32, s},
                           (ll_init){LL_ZEROS, 0});
        ll_val next = LL_EMIT(g, &cache_write, &w, keep[i], new[i], at);
        ll_graph_update(g, keep[i], next);
        if (w.ring) keep[i] = next;
    }
    return LL_EMIT(g, &cached_attend, &a, q, k, v, keep[0], keep[1], at);
}

ll_val ll_self_attend(const ll_build *b, const char *name, ll_val q, ll_val k, ll_val v,
                      int64_t window)
{
    ll_graph *g = b->g;
    if (!q.id || !k.id || !v.id) return (ll_val){0};
    if (b->cache && b->keep && b->keep < b->cache) return kept_few(b, name, q, k, v, window);
    if (b->cache) return cached(b, name, q, k, v, window);
    int64_t t = ll_graph_shape(g, q).d[1];
    ll_attend_opts o = {.causal = LL_CAUSAL};
    if (window > 0 && window < t) o.mask = window_mask(g, t, window);
    return ll_attend(g, q, k, v, &o);
}

const ll_op *const ll_ops_cached[] = {&cached_attend, &cache_write, &cache_keep, &cache_place,
                                      NULL};
