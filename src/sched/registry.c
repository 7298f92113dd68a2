/* registry.c: every algorithm. A file x.c of this folder declares ll_algos_x, an array that ends
 * with an empty entry; the build lists the files (CMakeLists.txt names those that are no
 * algorithms). */
#include "sched/emit.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define ALGOS(x) extern const ll_algo ll_algos_##x[];
#include "algo_list.inc"
#undef ALGOS

static const ll_algo *const files[] = {
#define ALGOS(x) ll_algos_##x,
#include "algo_list.inc"
#undef ALGOS
    NULL};

enum { ALGOS_MAX = 96 };

static int by_coll_and_name(const void *a, const void *b)
{
    const ll_algo *x = *(const ll_algo *const *)a, *y = *(const ll_algo *const *)b;
    return x->coll != y->coll ? (int)x->coll - (int)y->coll : strcmp(x->name, y->name);
}

static const ll_algo *sorted[ALGOS_MAX + 1];

__attribute__((constructor)) static void sort_algos(void)
{
    int n = 0;
    for (const ll_algo *const *f = files; *f; f++)
        for (const ll_algo *a = *f; a->name; a++) {
            LL_ASSERT(n < ALGOS_MAX);
            sorted[n++] = a;
        }
    qsort(sorted, (size_t)n, sizeof *sorted, by_coll_and_name);
}

const ll_algo *const *ll_algos(void)
{
    return sorted;
}

const ll_algo *ll_algo_find(ll_coll coll, const char *name)
{
    for (const ll_algo *const *a = sorted; *a; a++)
        if ((*a)->coll == coll && !strcmp((*a)->name, name)) return *a;
    return NULL;
}

bool ll_one_node(const int *node, int size)
{
    for (int i = 1; node && i < size; i++)
        if (node[i] != node[0]) return false;
    return true;
}

bool ll_algo_can(const ll_algo *a, const ll_coll_spec *s, const char **why)
{
    *why = "all ranks on one node";
    if (a->window && !ll_one_node(s->node, s->size)) return false;
    *why = "data from ll_comm_alloc";
    if (a->shared && !s->shared) return false;
    return !a->fits || a->fits(s, why);
}

const char *ll_algo_names(ll_arena *arena, ll_coll coll, const ll_coll_spec *s, bool canonical)
{
    const char *why;
    ll_buf b = {.arena = arena};
    for (const ll_algo *const *a = sorted; *a; a++)
        if ((*a)->coll == coll && (!s || ll_algo_can(*a, s, &why)) &&
            (!canonical || ((*a)->canonical && (*a)->canonical(s))))
            ll_buf_printf(&b, "%s%s", b.len ? ", " : "", (*a)->name);
    return b.len ? b.text : "none";
}

ll_err ll_algo_check(const ll_algo *a, const ll_coll_spec *s)
{
    const char *why;
    if (ll_algo_can(a, s, &why)) return LL_OK;
    LL_OWN(ll_arena) arena = ll_arena_new();
    FAIL(LL_E_COMM, "%s by %s on %d ranks needs %s; these can do it: %s", ll_coll_name(s->coll),
         a->name, s->size, why, ll_algo_names(arena, s->coll, s, false));
}

ll_err ll_sched_build(ll_arena *arena, const ll_algo *a, const ll_coll_spec *s, int rank,
                      const ll_sched **out)
{
    CHECK(s->size > 0 && rank >= 0 && rank < s->size, LL_E_ARG, "rank %d of %d", rank, s->size);
    CHECK(s->count >= 0 && s->segment >= 0, LL_E_ARG, "%ld elements in segments of %ld", s->count,
          s->segment);
    CHECK(s->root >= 0 && s->root < s->size, LL_E_ARG, "root %d of %d ranks", s->root, s->size);
    TRY(ll_algo_check(a, s));
    ll_steps e = {.arena = arena, .rank = rank, .size = s->size};
    a->emit(&e, s, rank);
    *out = ll_emit_finish(&e);
    return LL_OK;
}

const char *ll_coll_name(ll_coll c)
{
    static const char *const names[] = {
#define X(name, text) text,
        LL_COLLS(X)
#undef X
    };
    return names[c];
}

bool ll_coll_sums(ll_coll c)
{
    return c == LL_COLL_ALLREDUCE || c == LL_COLL_REDUCE_SCATTER;
}

void ll_coll_block(const ll_coll_spec *s, int b, int64_t *from, int64_t *to)
{
    if (!s->starts) {
        ll_share(s->count, s->size, b, from, to);
    } else {
        *from = s->starts[b];
        *to = s->starts[b + 1];
    }
}

int64_t ll_coll_between(const ll_coll_spec *s, int from, int to, int64_t *data, int64_t *out)
{
    int64_t start, end;
    if (!s->matrix) {
        ll_coll_block(s, to, &start, &end);
        *data = start;
        *out = from * (end - start);
        return end - start;
    }
    *data = *out = 0;
    for (int i = 0; i < to; i++) *data += s->matrix[from * s->size + i];
    for (int i = 0; i < from; i++) *out += s->matrix[i * s->size + to];
    return s->matrix[from * s->size + to];
}
