/* copies.c: ranks that hold the same part of a tensor must hold the same bits of it: what
 * differs is broken memory or arithmetic. Each tells what it holds, and a checksum; all see who is
 * alone. */
#include "base/crc32c.h"
#include "run/ranks.h"
#include "weights/state.h"

typedef struct held {
    uint32_t part, crc; /* part: a hash of which it is; 0: none */
} held;

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const ll_st_tensor *const *)a)->name, (*(const ll_st_tensor *const *)b)->name);
}

static held hold(const ll_st_tensor *t, const ll_st_part *p)
{
    uint32_t part = 1;
    if (!t->data || !ll_numel(&p->shape)) return (held){0};
    for (int d = 0; d < p->shape.n; d++) {
        const int64_t cut[] = {p->at[d], p->shape.d[d]};
        part = ll_crc32c(part, cut, sizeof cut);
    }
    size_t bytes = ll_tensor_bytes(t->dtype, &p->shape);
    return (held){part | 1, ll_crc32c(0, t->data, bytes)};
}

/* Of one tensor: column of all, [size] rows of n. The rank with bits that fewest others have; -1:
 * all that hold the same part agree. *same: one that has other bits of it. */
static int odd_one(const held *all, int size, int n, int *same)
{
    int odd = -1, fewest = size + 1;
    for (int r = 0; r < size; r++) {
        const held *mine = &all[(int64_t)r * n];
        int with = 0, other = -1;
        for (int q = 0; q < size; q++) {
            const held *x = &all[(int64_t)q * n];
            if (!mine->part || x->part != mine->part) continue;
            with += x->crc == mine->crc;
            if (x->crc != mine->crc) other = q;
        }
        if (other < 0 || with > fewest || (with == fewest && odd >= 0)) continue;
        odd = r, *same = other, fewest = with;
    }
    return odd;
}

ll_err ll_copies_check(ll_comm *c, const ll_session *s, int64_t step)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    if (!c) return LL_OK;
    ll_st_list l = ll_session_tensors(s, a);
    int n = l.n, size = ll_comm_size(c), other = 0;
    const ll_st_tensor **named = LL_NEW_ARRAY(a, const ll_st_tensor *, n + 1);
    held *all = LL_NEW_ARRAY(a, held, (int64_t)size * n + 1);
    for (int i = 0; i < n; i++) named[i] = &l.tensors[i];
    if (n) qsort(named, (size_t)n, sizeof *named, by_name); /* stages list them in other orders */
    for (int i = 0; i < n; i++)
        all[(int64_t)ll_comm_rank(c) * n + i] = hold(named[i], &l.parts[named[i] - l.tensors]);
    TRY(ll_comm_allgather(c, all, (int64_t)size * n * 2, LL_I32, NULL));
    for (int i = 0; i < n; i++) {
        int odd = odd_one(all + i, size, n, &other);
        if (odd < 0) continue;
        ll_err rc = RAISE(LL_E_NUMERIC,
                          "after step %ld rank %d has other bits of %s than rank %d, but they "
                          "should be equal: its host's memory or arithmetic is faulty; continue on "
                          "another host from an earlier checkpoint (--resume --from)",
                          step, odd, named[i]->name, other);
        return ll_ranks_agree(c, rc);
    }
    return LL_OK;
}
