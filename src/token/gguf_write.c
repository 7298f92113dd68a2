/* gguf_write.c: GGUF, version 3, as gguf.c reads it. */
#include "base/file.h"
#include "base/num.h"
#include "token/gguf.h"

#include <string.h>

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, TEXT = 8, ARRAY = 9, ALIGN = 32 };

static void number(ll_buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) ll_buf_add(b, &(uint8_t){(uint8_t)(v >> (8 * i))}, 1);
}

static void text(ll_buf *b, const char *s)
{
    number(b, strlen(s), 8);
    ll_buf_puts(b, s);
}

/* Pairs are put as often as they change; what is told of a key last counts. */
static ll_buf *pair(ll_gguf_out *o, const char *key, int type)
{
    int i = 0;
    while (i < o->n && strcmp(o->keys[i], key)) i++;
    LL_ASSERT(i < LL_GGUF_PAIRS);
    if (i == o->n) o->n++;
    o->keys[i] = ll_arena_strdup(o->arena, key);
    o->values[i] = (ll_buf){.arena = o->arena};
    number(&o->values[i], (uint64_t)type, 4);
    return &o->values[i];
}

void ll_gguf_put_int(ll_gguf_out *o, const char *key, uint32_t v)
{
    number(pair(o, key, U32), v, 4);
}

void ll_gguf_put_real(ll_gguf_out *o, const char *key, double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    number(pair(o, key, F32), bits, 4);
}

void ll_gguf_put_bool(ll_gguf_out *o, const char *key, bool v)
{
    number(pair(o, key, BOOL), v, 1);
}

void ll_gguf_put_text(ll_gguf_out *o, const char *key, const char *v)
{
    text(pair(o, key, TEXT), v);
}

void ll_gguf_put_texts(ll_gguf_out *o, const char *key, const char *const *v, int n)
{
    ll_buf *b = pair(o, key, ARRAY);
    number(b, TEXT, 4);
    number(b, (uint64_t)n, 8);
    for (int i = 0; i < n; i++) text(b, v[i]);
}

void ll_gguf_put_ints(ll_gguf_out *o, const char *key, const int *v, int n)
{
    ll_buf *b = pair(o, key, ARRAY);
    number(b, I32, 4);
    number(b, (uint64_t)n, 8);
    for (int i = 0; i < n; i++) number(b, (uint32_t)v[i], 4);
}

static size_t bytes_of(const ll_gguf_tensor *t)
{
    return (size_t)ll_numel(&t->shape) / (size_t)t->quant->block * (size_t)t->quant->bytes;
}

static size_t aligned(size_t n)
{
    return ll_round_up(n, ALIGN);
}

ll_err ll_gguf_write(const ll_gguf_out *o, const ll_gguf_tensor *t, int n, const char *path)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_atomic) f = NULL;
    ll_buf b = {.arena = a};
    static const uint8_t zeros[ALIGN];
    size_t at = 0;
    ll_buf_puts(&b, "GGUF");
    number(&b, 3, 4);
    number(&b, (uint64_t)n, 8);
    number(&b, (uint64_t)o->n, 8);
    for (int i = 0; i < o->n; i++) {
        text(&b, o->keys[i]);
        ll_buf_add(&b, o->values[i].text, o->values[i].len);
    }
    for (int i = 0; i < n; i++) {
        text(&b, t[i].name);
        number(&b, (uint64_t)t[i].shape.n, 4);
        for (int d = t[i].shape.n - 1; d >= 0; d--) number(&b, (uint64_t)t[i].shape.d[d], 8);
        number(&b, (uint64_t)t[i].quant->id, 4);
        number(&b, at, 8);
        at += aligned(bytes_of(&t[i]));
    }
    ll_buf_add(&b, zeros, aligned(b.len) - b.len);
    TRY(ll_atomic_open(path, &f));
    TRY(ll_atomic_add(f, b.text, b.len));
    for (int i = 0; i < n; i++) {
        size_t bytes = bytes_of(&t[i]);
        TRY(ll_atomic_add(f, t[i].data, bytes));
        TRY(ll_atomic_add(f, zeros, aligned(bytes) - bytes));
    }
    return ll_atomic_commit(f);
}
