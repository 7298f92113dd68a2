/* sparse.c: sums of streams. All sources are walked at once, in order of index. An element that
 * several have is summed in the canonical order of their ranks (sched.h), as the sum of dense
 * vectors would be; those that do not have it would add 0, which changes nothing but -0, and
 * streams have none.
 *
 *     rank 0   (2, a) (5, b)
 *     rank 1          (5, c)
 *     rank 2   (2, d)        (7, f)
 *     rank 3          (5, e)
 *     sum      (2, a + d) (5, (b + c) + e) (7, f) */
#include "comm/sparse.h"

#include <string.h>

/* T(a, b) of the sources that have the element, n of them, ranks ascending. */
static float tree(const ll_svec_head *has, int n, int a, int b)
{
    if (n == 1) return has[0].value;
    int q = ll_tree_split(b - a), left = 0;
    while (left < n && has[left].rank < a + q) left++;
    if (left == 0) return tree(has, n, a + q, b);
    if (left == n) return tree(has, n, a, a + q);
    return tree(has, left, a, a + q) + tree(has + left, n - left, a + q, b);
}

static inline void look(const ll_svec *s, ll_svec_head *h)
{
    if (h->at == s->count) {
        h->next = UINT32_MAX;
        return;
    }
    h->next = s->is_dense ? (uint32_t)h->at : s->index[h->at];
    h->value = s->is_dense ? s->dense[h->at] : s->value[h->at];
}

ll_err ll_svec_sum(const ll_svec *const *src, int n, bool dense, ll_svec_head *heads, ll_svec *dst)
{
    ll_svec_head *has = heads + n;
    int64_t total = 0, out = 0;
    for (int i = 0; i < n; i++) {
        total += src[i]->count;
        heads[i] = (ll_svec_head){.rank = i};
        look(src[i], &heads[i]);
    }
    dst->is_dense = dense || total > ll_svec_most(dst->len);
    CHECK(dst->is_dense ? dst->dense != NULL || !dst->len : total <= dst->room, LL_E_ARG,
          "a sum of %ld pairs does not fit in %ld pairs%s", total, dst->room,
          dst->dense ? ", or dense" : "");
    if (dst->is_dense && dst->len) memset(dst->dense, 0, sizeof(float) * (size_t)dst->len);
    for (;;) {
        uint32_t least = UINT32_MAX;
        int n_has = 0;
        for (int i = 0; i < n; i++) least = heads[i].next < least ? heads[i].next : least;
        if (least == UINT32_MAX) break;
        for (int i = 0; i < n; i++) {
            if (heads[i].next != least) continue;
            has[n_has++] = heads[i];
            heads[i].at++;
            look(src[i], &heads[i]);
        }
        float v = tree(has, n_has, 0, n);
        if (dst->is_dense) {
            dst->dense[least] = v;
        } else {
            dst->index[out] = least;
            dst->value[out++] = v;
        }
    }
    dst->count = dst->is_dense ? dst->len : out;
    return LL_OK;
}
