/* init.c: initial values of parameters and state, from (seed, name, element index) alone. */
#include "machine/machine.h"

#include "base/rng.h"
#include "base/text.h"
#include "kern/blocks.h"
#include "kern/cpu/team.h"

enum { DRAWN = 32 }; /* elementary operations of a number */

/* Elements 4 block .. 4 block + 3. */
static void draw(const ll_init *init, uint64_t seed, uint64_t stream, uint64_t block, double v[4])
{
    float u[4] = {0};
    double x[4] = {0};
    if (init->kind == LL_NORMAL) ll_normal_4(seed, stream, block, x);
    if (init->kind == LL_UNIFORM) ll_uniform_4(seed, stream, block, u);
    for (int i = 0; i < 4; i++) {
        if (init->kind == LL_UNIFORM) x[i] = 2.0 * (double)u[i] - 1.0;
        v[i] = init->kind == LL_CONSTANT ? init->a : init->a * x[i];
    }
}

/* Elements of one row of a piece, which begins at element first of the whole. */
static void fill_row(const ll_init *init, uint64_t seed, uint64_t stream, int64_t first, int64_t n,
                     ll_dtype t, void *data, int64_t at)
{
    double v[4];
    for (int64_t i = 0; i < n; i++) {
        int64_t k = first + i;
        if (init->data) {
            ll_store(data, t, at + i, ll_load(init->data->elements, init->data->dtype, k));
            continue;
        }
        if (i == 0 || k % 4 == 0) draw(init, seed, stream, (uint64_t)(k / 4), v);
        ll_store(data, t, at + i, v[k % 4]);
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

void ll_init_fill(const ll_init *init, const char *name, uint64_t seed, const ll_type *type,
                  const ll_piece *piece, int threads, void *data)
{
    size_t length;
    bool next = false;
    const ll_block_kind *blocks = type->dtype == LL_U8 ? ll_block_named(name, &length) : NULL;
    if (!blocks && ll_ends_with(name, LL_NEXT))
        length = strlen(name) - strlen(LL_NEXT), next = true;
    LL_OWN_MEMORY char *plain =
        blocks || next ? strndup(name, length) : NULL; /* begins as "w" would */
    uint64_t stream = ll_stream(plain ? plain : name, 0);
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
    for (int64_t b = 0; b < (n + 3) / 4; b++) {
        double v[4];
        draw(init, seed, stream, (uint64_t)b, v);
        for (int64_t i = 4 * b; i < n && i < 4 * b + 4; i++) ll_store(data, t, i, v[i - 4 * b]);
    }
}
