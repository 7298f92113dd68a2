/* Graph text from anyone: parsing never crashes, and what parses is well formed, prints, and prints
 * the same again after a second parse. Half of the mutations replace one number of the text, so
 * that sizes and attributes no op expects get past the grammar. */
#include "ir/graph_text.h"
#include "ir/op.h"

#include <ctype.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ll_graph *g, *again;
    ll_arena *a = ll_arena_new();
    char *text = (char *)ll_arena_alloc(a, size + 1);
    if (size) memcpy(text, data, size);
    if (ll_parse(text, &g) == LL_OK) {
        LL_ASSERT(ll_verify(g) == LL_OK);
        char *printed = ll_print(g, a);
        LL_ASSERT(ll_parse(printed, &again) == LL_OK);
        LL_ASSERT(!strcmp(ll_print(again, a), printed));
        ll_graph_free(again);
        ll_graph_free(g);
    }
    ll_arena_free(a);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static const char *const numbers[] = {"0",
                                          "1",
                                          "2",
                                          "3",
                                          "4",
                                          "5",
                                          "7",
                                          "8",
                                          "16",
                                          "-1",
                                          "-2",
                                          "99",
                                          "1048576",
                                          "2147483647",
                                          "-2147483648",
                                          "4294967296",
                                          "1099511627776",
                                          "9223372036854775807",
                                          "-9223372036854775808",
                                          "0.5",
                                          "1e308",
                                          "nan"};
    enum { N = sizeof numbers / sizeof *numbers };
    size_t count = 0, from = 0;
    srand(seed);
    if (rand() % 2) return LLVMFuzzerMutate(data, size, max_size);
    for (size_t i = 0; i < size; i++)
        if (isdigit(data[i]) && (!i || !isalnum(data[i - 1])) && rand() % (int)++count == 0)
            from = i; /* each number equally likely */
    if (!count) return LLVMFuzzerMutate(data, size, max_size);
    size_t to = from;
    while (to < size && isdigit(data[to])) to++;
    const char *number = numbers[rand() % N];
    size_t n = strlen(number), rest = size - to;
    if (from + n + rest > max_size) return LLVMFuzzerMutate(data, size, max_size);
    memmove(data + from + n, data + to, rest);
    memcpy(data + from, number, n);
    return from + n + rest;
}
