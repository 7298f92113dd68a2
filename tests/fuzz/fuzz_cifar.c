/* Any bytes as a CIFAR-10 file: accepted just where the length is whole records and every label is
 * below 10. */
#include "data/parse.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

/* A fuzzer rarely grows input to whole records by itself: the same bytes padded to some. */
static void check_padded(const uint8_t *data, size_t size)
{
    size_t records = size / LL_CIFAR_RECORD + 1, whole = records * LL_CIFAR_RECORD;
    uint8_t *b = calloc(whole, 1);
    int64_t n = -1;
    must(b != NULL);
    bool right = true;
    for (size_t i = 0; i < size; i++) /* spread: each record's label comes from the input */
        b[(i % records) * LL_CIFAR_RECORD + i / records] = data[i];
    for (size_t i = 0; i < records; i++) right = right && b[i * LL_CIFAR_RECORD] < 10;
    must((ll_cifar_parse(b, whole, "fuzz", &n) == LL_OK) == right);
    must(n == (right ? (int64_t)records : 0));
    free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t n = -1;
    if (ll_cifar_parse(data, size, "fuzz", &n) == LL_OK) {
        must(n > 0 && (size_t)n * LL_CIFAR_RECORD == size);
        for (int64_t i = 0; i < n; i++) must(data[i * LL_CIFAR_RECORD] < 10);
    } else {
        must(n == 0 && ll_error_text()[0]);
    }
    check_padded(data, size);
    return 0;
}
