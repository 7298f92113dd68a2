/* init.c: initial values of parameters and state, from (seed, name, element index) alone. */
#include "machine/machine.h"

#include "base/rng.h"
#include "base/text.h"
#include "kern/blocks.h"
#include "kern/cpu/team.h"

enum { DRAWN = 32, PIECE = 4096 }; /* elementary operations of a number; elements of a thread */

enum { RUN = 4 * LL_RNG_LANES };

/* Elements 4 block .. 4 block + RUN - 1. */
static void draw(const ll_init *init, uint64_t seed, uint64_t stream, uint64_t block, double v[RUN])
{
    uint32_t w[RUN];
    if (init->kind == LL_NORMAL) ll_normal_many(seed, stream, block, v);
    if (init->kind == LL_UNIFORM) ll_philox_many(seed, stream, block, w);
    for (int i = 0; i < RUN; i++) {
        if (init->kind == LL_UNIFORM) v[i] = 2.0 * (double)ll_uniform_of(w[i]) - 1.0;
        v[i] = init->kind == LL_CONSTANT ? init->a : init->a * v[i];
    }
}

/* Elements first .. first + n - 1 of the whole. */
static void fill_row(const ll_init *init, uint64_t seed, uint64_t stream, int64_t first, int64_t n,
                     ll_dtype t, void *data, int64_t at)
{
    double v[RUN];
    for (int64_t i = 0, m; i < n; i += m) {
        int64_t k = first + i, skip = init->data ? 0 : k % 4;
        m = n - i < RUN - skip ? n - i : RUN - skip;
        if (!init->data) draw(init, seed, stream, (uint64_t)(k / 4), v);
        for (int64_t j = 0; j < m; j++)
            ll_store(data, t, at + i + j,
                     init->data ? ll_load(init->data->elements, init->data->dtype, k + j)
                                : v[skip + j]);
    }
}

/* Blocks: rows of LL_PACK numbers, packed; NULL: numbers. */
static void fill_piece(const ll_init *init, uint64_t seed, uint64_t stream, const ll_type *type,
                       const ll_piece *piece, const ll_block_kind *blocks, int threads, void *data)
{
    ll_shape small = type->shape, large = piece->whole;
    const ll_shape *s = &small, *w = &large;
    if (blocks) small.d[s->n - 1] = large.d[s->n - 1] = LL_PACK;
    int64_t row = s->n ? s->d[s->n - 1] : 1, rows = row ? ll_numel(s) / row : 0;
#pragma omp parallel for num_threads(ll_team_for(threads, rows *row *DRAWN))
    for (int64_t r = 0; r < rows; r++) {
        int64_t rest = r, first = s->n ? piece->at[s->n - 1] : 0;
        int64_t stride = s->n ? w->d[s->n - 1] : 1;
        for (int d = s->n - 2; d >= 0; d--) {
            first += (piece->at[d] + rest % s->d[d]) * stride;
            rest /= s->d[d];
            stride *= w->d[d];
        }
        float x[LL_PACK];
        if (blocks)
            fill_row(init, seed, stream, first, row, LL_F32, x, 0);
        else
            fill_row(init, seed, stream, first, row, type->dtype, data, r * row);
        if (blocks) blocks->pack(x, (uint8_t *)data + r * blocks->bytes);
    }
}

uint64_t ll_init_stream(const char *name)
{
    size_t length = strlen(name);
    if (!ll_ends_with(name, LL_NEXT)) return ll_stream(name, 0);
    LL_OWN_MEMORY char *plain = strndup(name, length - strlen(LL_NEXT));
    return ll_stream(plain, 0); /* begins as what it comes after */
}

void ll_init_fill(const ll_init *init, const char *name, uint64_t seed, const ll_type *type,
                  const ll_piece *piece, int threads, void *data)
{
    size_t length = 0;
    const ll_block_kind *blocks = type->dtype == LL_U8 ? ll_block_named(name, &length) : NULL;
    LL_OWN_MEMORY char *plain = blocks ? strndup(name, length) : NULL; /* begins as "w" would */
    uint64_t stream = blocks ? ll_stream(plain, 0) : ll_init_stream(name);
    int64_t n = ll_numel(&type->shape);
    ll_dtype t = type->dtype;
    if (init->kind == LL_ZEROS) {
        memset(data, 0, (size_t)n * ll_dtype_bytes(t));
        return;
    }
    if (piece || init->data || blocks) {
        const ll_piece whole = {.whole = type->shape};
        fill_piece(init, seed, stream, type, piece ? piece : &whole, blocks, threads, data);
        return;
    }
#pragma omp parallel for num_threads(ll_team_for(threads, n *DRAWN))
    for (int64_t at = 0; at < n; at += PIECE)
        fill_row(init, seed, stream, at, n - at < PIECE ? n - at : PIECE, t, data, at);
}
