/* xml.h: whether a picture's text is well formed. */
#pragma once
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* Every element closed, in order; returns how many there are. */
static inline int check_xml(const char *svg)
{
    const char *open[16];
    size_t length[16];
    int depth = 0, n = 0;
    for (const char *c = svg; (c = strchr(c, '<')); c++) {
        const char *end = strchr(c, '>');
        assert_non_null(end);
        if (c[1] == '/') {
            assert_true(depth > 0);
            depth--;
            assert_true(!strncmp(c + 2, open[depth], length[depth]) &&
                        end == c + 2 + length[depth]);
            continue;
        }
        n++;
        assert_true(isalpha((unsigned char)c[1]));
        if (end[-1] == '/') continue;
        assert_true(depth < 16);
        open[depth] = c + 1;
        length[depth] = strcspn(c + 1, " >");
        depth++;
    }
    assert_int_equal(depth, 0);
    return n;
}
