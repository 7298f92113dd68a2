/* same_files.h: two files that must have the same bytes. Include cmocka.h before it. */
#pragma once
#include <stdio.h>

static inline void same_files(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *h = fopen(b, "rb");
    assert_true(f && h);
    for (int x = 0, y, n = 0; x != EOF; n++) {
        x = getc(f);
        y = getc(h);
        if (x != y) fail_msg("%s and %s differ at byte %d", a, b, n);
    }
    fclose(f);
    fclose(h);
}
