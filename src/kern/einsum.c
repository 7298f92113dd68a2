/* einsum.c: reads a checked product spec into loops and strides, and folds these. */
#include "kern/einsum.h"

static void add_operand(const char *letters, int n, const ll_shape *shape, int operand,
                        char name[LL_EINSUM_LOOPS], int *count, ll_einsum_loop *loop)
{
    int64_t stride = 1;
    for (int i = n - 1; i >= 0; i--) {
        int k = 0;
        while (k < *count && name[k] != letters[i]) k++;
        LL_ASSERT(k < *count && loop[k].extent == shape->d[i]);
        loop[k].has[operand] = true;
        loop[k].stride[operand] = stride;
        stride *= shape->d[i];
    }
}

/* Makes loops for the letters not yet seen. */
static void add_letters(const char *letters, int n, const ll_shape *shape,
                        char name[LL_EINSUM_LOOPS], int *count, ll_einsum_loop *loop)
{
    LL_ASSERT(n == shape->n);
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < *count && name[k] != letters[i]) k++;
        if (k < *count) continue;
        LL_ASSERT(k < LL_EINSUM_LOOPS);
        name[k] = letters[i];
        loop[k] = (ll_einsum_loop){.extent = shape->d[i]};
        ++*count;
    }
}

int ll_einsum_read(const char *spec, const ll_shape *a, const ll_shape *b, const ll_shape *c,
                   ll_einsum_loop loop[LL_EINSUM_LOOPS])
{
    const char *comma = strchr(spec, ','), *arrow = strstr(spec, "->");
    LL_ASSERT(comma && arrow);
    const char *text[3] = {spec, comma + 1, arrow + 2};
    int len[3] = {(int)(comma - spec), (int)(arrow - comma - 1), (int)strlen(arrow + 2)};
    const ll_shape *shape[3] = {a, b, c};
    char name[LL_EINSUM_LOOPS];
    int count = 0;
    for (int i = 0; i < 3; i++)
        add_letters(text[(i + 2) % 3], len[(i + 2) % 3], shape[(i + 2) % 3], name, &count, loop);
    for (int i = 0; i < 3; i++) add_operand(text[i], len[i], shape[i], i, name, &count, loop);
    return count;
}

enum { ROW, COLUMN, SUM, BATCH, N_KIND };

static int kind_of(const ll_einsum_loop *l)
{
    if (!l->has[LL_EINSUM_C]) return SUM;
    if (!l->has[LL_EINSUM_B]) return ROW;
    return l->has[LL_EINSUM_A] ? BATCH : COLUMN;
}

/* Sorts loops of one kind from the widest stride (in c, or in a for sums) to the narrowest, and
 * joins neighbours. Returns how many remain. */
static int fold(ll_einsum_loop *l, int n, int by)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && l[j].stride[by] > l[j - 1].stride[by]; j--) {
            ll_einsum_loop t = l[j];
            l[j] = l[j - 1];
            l[j - 1] = t;
        }
    int kept = 0;
    for (int i = 0; i < n; i++) {
        ll_einsum_loop *outer = kept ? &l[kept - 1] : NULL;
        bool joins = outer != NULL;
        for (int t = 0; t < 3 && joins; t++)
            joins = outer->stride[t] == l[i].stride[t] * l[i].extent;
        if (!joins) {
            l[kept++] = l[i];
            continue;
        }
        outer->extent *= l[i].extent;
        memcpy(outer->stride, l[i].stride, sizeof outer->stride);
    }
    return kept;
}

/* Takes the longest loop out of l; a loop of one point when there is none. */
static ll_einsum_loop take_longest(ll_einsum_loop *l, int *n)
{
    if (*n == 0) return (ll_einsum_loop){.extent = 1, .stride = {1, 1, 1}};
    int best = 0;
    for (int i = 1; i < *n; i++)
        if (l[i].extent >= l[best].extent) best = i;
    ll_einsum_loop out = l[best];
    --*n;
    memmove(l + best, l + best + 1, sizeof *l * (size_t)(*n - best));
    return out;
}

void ll_einsum_fold(const char *spec, const ll_shape *a, const ll_shape *b, const ll_shape *c,
                    ll_einsum_plan *out)
{
    ll_einsum_loop all[LL_EINSUM_LOOPS], l[N_KIND][LL_EINSUM_LOOPS];
    int count[N_KIND] = {0};
    *out = (ll_einsum_plan){0};
    int n = ll_einsum_read(spec, a, b, c, all);
    for (int i = 0; i < n; i++) {
        if (all[i].extent == 1) continue;
        int kind = kind_of(&all[i]);
        l[kind][count[kind]++] = all[i];
    }
    for (int k = 0; k < N_KIND; k++)
        count[k] = fold(l[k], count[k], k == SUM ? LL_EINSUM_A : LL_EINSUM_C);
    out->row = take_longest(l[ROW], &count[ROW]);
    out->column = take_longest(l[COLUMN], &count[COLUMN]);
    out->sum = take_longest(l[SUM], &count[SUM]);
    for (int k = 0; k < N_KIND; k++)
        for (int i = 0; i < count[k]; i++) {
            if (k == SUM)
                out->sums[out->n_sums++] = l[k][i];
            else
                out->around[out->n_around++] = l[k][i];
        }
}

int64_t ll_einsum_points(const ll_einsum_loop *l, int n)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++) p *= l[i].extent;
    return p;
}
