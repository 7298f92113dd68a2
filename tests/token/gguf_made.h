/* gguf_made.h: GGUF files made by hand. */
#pragma once
#include "base/text.h"

#include <stdint.h>
#include <string.h>

static inline void gguf_int(ll_buf *b, uint64_t v, int bytes)
{
    ll_buf_add(b, &v, (size_t)bytes);
}
static inline void gguf_text(ll_buf *b, const char *s)
{
    gguf_int(b, strlen(s), 8);
    ll_buf_puts(b, s);
}
static inline void gguf_begin(ll_buf *b, int tensors, int pairs)
{
    ll_buf_puts(b, "GGUF");
    gguf_int(b, 3, 4);
    gguf_int(b, (uint64_t)tensors, 8);
    gguf_int(b, (uint64_t)pairs, 8);
}
static inline void gguf_pair_int(ll_buf *b, const char *key, uint32_t v)
{
    gguf_text(b, key);
    gguf_int(b, 4, 4);
    gguf_int(b, v, 4);
}
static inline void gguf_pair_float(ll_buf *b, const char *key, float v)
{
    gguf_text(b, key);
    gguf_int(b, 6, 4);
    ll_buf_add(b, &v, 4);
}
static inline void gguf_pair_text(ll_buf *b, const char *key, const char *v)
{
    gguf_text(b, key);
    gguf_int(b, 8, 4);
    gguf_text(b, v);
}
static inline void gguf_pair_texts(ll_buf *b, const char *key, const char *const *v, int n)
{
    gguf_text(b, key);
    gguf_int(b, 9, 4);
    gguf_int(b, 8, 4);
    gguf_int(b, (uint64_t)n, 8);
    for (int i = 0; i < n; i++) gguf_text(b, v[i]);
}
/* n_dim dimensions, the first runs fastest. */
static inline void gguf_tensor(ll_buf *b, const char *name, int n_dim, const int64_t *d, int type,
                               uint64_t at)
{
    gguf_text(b, name);
    gguf_int(b, (uint64_t)n_dim, 4);
    for (int i = 0; i < n_dim; i++) gguf_int(b, (uint64_t)d[i], 8);
    gguf_int(b, (uint64_t)type, 4);
    gguf_int(b, at, 8);
}
static inline void gguf_align(ll_buf *b)
{
    while (b->len % 32) gguf_int(b, 0, 1);
}
