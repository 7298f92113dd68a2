/* Any bytes as a token file, and as the packed text of bible-kjv-text, which its first bytes tell
 * apart. Token files need a long header: the input's first 16 bytes stand for it. */
#include "data/parse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static void check_tokens(const uint8_t *data, size_t size)
{
    int64_t n = -1;
    if (ll_tokens_parse(data, size, "fuzz", &n) == LL_OK)
        must(n > 0 && LL_TOKENS_HEADER + 2 * (size_t)n == size);
    else
        must(n == 0 && ll_error_text()[0]);
}

static void check_widened(const uint8_t *data, size_t size)
{
    if (size < 16) return;
    size_t whole = size - 16 + LL_TOKENS_HEADER;
    uint8_t *b = calloc(whole, 1);
    must(b != NULL);
    memcpy(b, data, 16);
    memcpy(b + LL_TOKENS_HEADER, data + 16, size - 16);
    check_tokens(b, whole);
    free(b);
}

static void check_bible(const uint8_t *data, size_t size)
{
    uint8_t *out;
    size_t n = 0;
    if (ll_bible_parse(data, size, "fuzz", &out, &n) != LL_OK) {
        must(out == NULL && ll_error_text()[0]);
        return;
    }
    volatile uint8_t sum = 0; /* every byte of the result must have been written */
    for (size_t i = 0; i < n; i++) sum = (uint8_t)(sum + out[i]);
    must(n > 0);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_tokens(data, size);
    check_widened(data, size);
    check_bible(data, size);
    return 0;
}
