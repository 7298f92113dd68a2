/* einsum.c: reads a checked product spec into loops and strides. */
#include "kern/einsum.h"

static void add_operand(const char *letters, int n, const ll_shape *shape, int operand,
                        char name[LL_EINSUM_LOOPS], int *count, ll_einsum_loop *loop)
{
    int64_t stride = 1;
    for (int i = n - 1; i >= 0; i--) {
        int k = 0;
        while (k < *count && name[k] != letters[i]) k++;
        LL_ASSERT(k < *count && loop[k].extent == shape->d[i]);
        loop[k].has[operand] = true;
        loop[k].stride[operand] = stride;
        stride *= shape->d[i];
    }
}

/* Makes loops for the letters not yet seen. */
static void add_letters(const char *letters, int n, const ll_shape *shape,
                        char name[LL_EINSUM_LOOPS], int *count, ll_einsum_loop *loop)
{
    LL_ASSERT(n == shape->n);
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < *count && name[k] != letters[i]) k++;
        if (k < *count) continue;
        LL_ASSERT(k < LL_EINSUM_LOOPS);
        name[k] = letters[i];
        loop[k] = (ll_einsum_loop){.extent = shape->d[i]};
        ++*count;
    }
}

int ll_einsum_read(const char *spec, const ll_shape *a, const ll_shape *b, const ll_shape *c,
                   ll_einsum_loop loop[LL_EINSUM_LOOPS])
{
    const char *comma = strchr(spec, ','), *arrow = strstr(spec, "->");
    LL_ASSERT(comma && arrow);
    const char *text[3] = {spec, comma + 1, arrow + 2};
    int len[3] = {(int)(comma - spec), (int)(arrow - comma - 1), (int)strlen(arrow + 2)};
    const ll_shape *shape[3] = {a, b, c};
    char name[LL_EINSUM_LOOPS];
    int count = 0;
    for (int i = 0; i < 3; i++)
        add_letters(text[(i + 2) % 3], len[(i + 2) % 3], shape[(i + 2) % 3], name, &count, loop);
    for (int i = 0; i < 3; i++) add_operand(text[i], len[i], shape[i], i, name, &count, loop);
    return count;
}
