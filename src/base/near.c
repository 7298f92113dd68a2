/* near.c: edit distance (optimal string alignment) by dynamic programming over three rows. */
#include "base/near.h"

#include "base/num.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { WORD_MAX = 63 }; /* longer words are never a slip of the finger apart: cut there */

static bool same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

int ll_edit_distance(const char *a, const char *b)
{
    int n = (int)strnlen(a, WORD_MAX), m = (int)strnlen(b, WORD_MAX);
    int rows[3][WORD_MAX + 1];
    for (int j = 0; j <= m; j++) rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = rows[i % 3], *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int change = up[j - 1] + !same(a[i - 1], b[j - 1]);
            now[j] = ll_min64(change, ll_min64(up[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                now[j] = ll_min64(now[j], up2[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

bool ll_near_try(ll_near *near, const char *known)
{
    bool is = !strcmp(near->word, known);
    size_t used = strlen(near->known);
    snprintf(near->known + used, sizeof near->known - used, " %s", known);
    int d = ll_edit_distance(near->word, known);
    int enough = ll_min64((int)strnlen(near->word, WORD_MAX), (int)strnlen(known, WORD_MAX)) / 3;
    /* dgx-h100 for h100, rather than h200. */
    bool part = d && strlen(near->word) >= 4 && strstr(known, near->word);
    if (part && (!near->part || strlen(known) < strlen(near->best)) &&
        (!near->best || near->distance))
        near->part = true;
    else if (d > (enough > 1 ? enough : 1) || (near->best && (d >= near->distance || near->part)))
        return is;
    near->best = known;
    near->distance = d;
    return is;
}

const char *ll_near_hint(ll_near *near)
{
    if (near->best) snprintf(near->hint, sizeof near->hint, "; did you mean %.70s?", near->best);
    return near->hint;
}
