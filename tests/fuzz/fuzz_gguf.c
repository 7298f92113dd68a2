/* Any bytes as a GGUF file, and as a tokenizer: readers must refuse or accept, tensors of what is
 * accepted must lie in the bytes, and an accepted tokenizer must take any text. */
#include "token/gguf.h"
#include "token/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static void as_gguf(const uint8_t *data, size_t size)
{
    ll_arena *a = ll_arena_new();
    ll_gguf g;
    float out[256];
    if (ll_gguf_parse(data, size, "fuzz", a, &g) != LL_OK)
        must(ll_error_text()[0]);
    else
        for (int i = 0; i < g.n_tensor; i++) {
            const ll_gguf_tensor *t = &g.tensors[i];
            if (!t->data || t->shape.n < 0 || !ll_numel(&t->shape)) continue;
            int64_t blocks = ll_numel(&t->shape) / t->quant->block;
            must(t->data >= data && blocks * t->quant->bytes <= data + size - t->data);
            if (t->quant->floats) t->quant->floats(t->data, out);
        }
    ll_arena_free(a);
}

static void as_tokenizer(const uint8_t *data, size_t size)
{
    ll_tokenizer *t, *pair;
    int32_t *v;
    int64_t n;
    if (ll_tokenizer_parse(data, size, "fuzz", &t) == LL_OK) {
        if (ll_tokenizer_encode(t, "a\xFF bc 12", 8, true, &v, &n) == LL_OK) free(v);
    } else
        must(t == NULL && ll_error_text()[0]);
    ll_tokenizer_close(t);
    const uint8_t *zero = (const uint8_t *)memchr(data, 0, size);
    if (!zero) return;
    size_t first = (size_t)(zero - data);
    if (ll_tokenizer_parse_pair((const char *)data, first, (const char *)zero + 1, size - first - 1,
                                "fuzz", &pair) != LL_OK)
        must(pair == NULL);
    ll_tokenizer_close(pair);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    as_gguf(data, size);
    as_tokenizer(data, size);
    return 0;
}
