/* collectives.h: data for collectives whose results are known. Element i of rank r is a small
 * integer, so that sums are exact in every type and every order; what a collective must fill is
 * poisoned first, and what lies behind the data must not change. */
#pragma once
#include "base/types.h"
#include "comm/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != LL_OK) fail_msg("%s: %s\n%s", #call, ll_error_text(), ll_error_frames());    \
    } while (0)

enum { GUARD = 16 }; /* elements behind the data */

static inline double value(int rank, int64_t i)
{
    return (double)((i * 7 + rank * 5 + i / 13) % 13);
}

static inline double combined(int size, int64_t i, ll_reduce op)
{
    double v = value(0, i);
    for (int r = 1; r < size; r++) {
        double x = value(r, i);
        if (op == LL_REDUCE_SUM) v += x;
        if ((op == LL_REDUCE_MAX && x > v) || (op == LL_REDUCE_MIN && x < v)) v = x;
    }
    return v;
}

static inline void fill(void *data, ll_dtype t, int rank, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) ll_store(data, t, i, value(rank, i));
}

static inline void block_of(int64_t n, int size, int b, int64_t *from, int64_t *to)
{
    ll_share(n, size, b, from, to);
}

/* Elements of DATA, and of OUT for an all-to-all. */
static inline int64_t out_count(const ll_coll_spec *s, int rank)
{
    int64_t from, to;
    block_of(s->count, s->size, rank, &from, &to);
    return s->coll == LL_COLL_ALLTOALL ? (to - from) * s->size : 0;
}

static inline void prepare(const ll_coll_spec *s, int rank, ll_dtype t, void *data, void *out)
{
    size_t e = ll_dtype_bytes(t);
    int64_t from, to;
    memset(data, 0x7f, (size_t)(s->count + GUARD) * e);
    memset(out, 0x7f, (size_t)(out_count(s, rank) + GUARD) * e);
    block_of(s->count, s->size, rank, &from, &to);
    bool is_root = rank == s->root;
    switch (s->coll) {
    case LL_COLL_ALLGATHER: fill(data, t, rank, from, to); break;
    case LL_COLL_BROADCAST:
        if (is_root) fill(data, t, rank, 0, s->count);
        break;
    default: fill(data, t, rank, 0, s->count);
    }
}

static inline void must_be(const void *data, ll_dtype t, int64_t at, double want, const char *where)
{
    double got = ll_load(data, t, at);
    if (got != want) fail_msg("%s: element %lld is %g, not %g", where, (long long)at, got, want);
}

/* Blocks as their owners had them. */
static inline void expect_gathered(const ll_coll_spec *s, ll_dtype t, const void *data,
                                   const char *where)
{
    for (int b = 0; b < s->size; b++) {
        int64_t from, to;
        block_of(s->count, s->size, b, &from, &to);
        for (int64_t i = from; i < to; i++) must_be(data, t, i, value(b, i), where);
    }
}

static inline void expect_exchanged(const ll_coll_spec *s, int rank, ll_dtype t, const void *out,
                                    const char *where)
{
    int64_t from, to;
    block_of(s->count, s->size, rank, &from, &to);
    for (int r = 0; r < s->size; r++)
        for (int64_t i = from; i < to; i++)
            must_be(out, t, r * (to - from) + i - from, value(r, i), where);
}

static inline void expect_guard(const void *data, size_t e, int64_t n, const char *where)
{
    const unsigned char *g = (const unsigned char *)data + (size_t)n * e;
    for (size_t i = 0; i < GUARD * e; i++)
        if (g[i] != 0x7f) fail_msg("%s: wrote %zu bytes behind the data", where, i);
}

static inline void expect(const ll_coll_spec *s, int rank, ll_dtype t, ll_reduce op,
                          const void *data, const void *out, const char *where)
{
    int64_t from = 0, to = s->count;
    switch (s->coll) {
    case LL_COLL_ALLREDUCE:
    case LL_COLL_REDUCE_SCATTER:
        if (s->coll == LL_COLL_REDUCE_SCATTER) block_of(s->count, s->size, rank, &from, &to);
        for (int64_t i = from; i < to; i++) must_be(data, t, i, combined(s->size, i, op), where);
        break;
    case LL_COLL_ALLGATHER: expect_gathered(s, t, data, where); break;
    case LL_COLL_ALLTOALL: expect_exchanged(s, rank, t, out, where); break;
    case LL_COLL_BROADCAST:
        for (int64_t i = from; i < to; i++) must_be(data, t, i, value(s->root, i), where);
        break;
    default: break;
    }
    expect_guard(data, ll_dtype_bytes(t), s->count, where);
    expect_guard(out, ll_dtype_bytes(t), out_count(s, rank), where);
}
