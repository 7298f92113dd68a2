/* Any bytes as a sparse stream that a rank sent: reading never goes beyond its rooms, and what is
 * accepted has ascending indices within the vector and survives being written and read again. The
 * first bytes choose the length, the room and the bits. */
#include "comm/sparse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ll_svec make(int64_t len, int64_t room, bool dense)
{
    ll_svec s = {.len = len, .room = room};
    s.index = (uint32_t *)malloc(4 * (size_t)room);
    s.value = (float *)malloc(4 * (size_t)room);
    s.dense = dense ? (float *)malloc(4 * (size_t)len) : NULL;
    LL_ASSERT((s.index && s.value) || !room);
    return s;
}

static void let_go(ll_svec *s)
{
    free(s->index);
    free(s->value);
    free(s->dense);
}

static void check(ll_svec *s, int bits)
{
    LL_ASSERT(s->is_dense ? s->count == s->len && (s->dense || !s->len) : s->count <= s->room);
    for (int64_t i = 0; i < s->count && !s->is_dense; i++)
        LL_ASSERT(s->index[i] < s->len && (i == 0 || s->index[i - 1] < s->index[i]));
    size_t room =
        s->is_dense ? ll_svec_dense_bytes(s->len, 0) : ll_svec_bound(s->len, s->count, 0, NULL);
    uint8_t *bytes = (uint8_t *)malloc(room);
    ll_svec again = make(s->len, s->len, true);
    ll_svec_code exact = {0};
    size_t n = ll_svec_write(s, &exact, bytes);
    LL_ASSERT(n <= room && ll_svec_read(bytes, n, 0, &again) == LL_OK);
    if (again.is_dense == s->is_dense)
        LL_ASSERT(!s->count ||
                  !memcmp(s->is_dense ? s->dense : s->value,
                          s->is_dense ? again.dense : again.value, 4 * (size_t)s->count));
    LL_ASSERT(bits || again.is_dense || !again.count ||
              !memcmp(s->index, again.index, 4 * (size_t)s->count));
    let_go(&again);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) return 0;
    static const int widths[] = {0, 2, 3, 4, 5, 6, 7, 8};
    int bits = widths[data[0] % 8];
    int64_t len = data[1] | (data[0] & 0x80 ? data[2] << 8 : 0);
    int64_t room = data[3] < len ? data[3] : len;
    ll_svec s = make(len, room, data[0] & 0x40);
    uint8_t *bytes = (uint8_t *)malloc(size - 4); /* exactly, for the address sanitizer */
    if (size > 4) memcpy(bytes, data + 4, size - 4);
    if (ll_svec_read(bytes, size - 4, bits, &s) == LL_OK)
        check(&s, bits);
    else
        LL_ASSERT(ll_error_text()[0]);
    free(bytes);
    let_go(&s);
    return 0;
}
