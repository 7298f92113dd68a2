/* bundled.h: files that the build compiles in (ll_bundle in CMakeLists.txt): a list of them is the
 * rows that it makes, and {0}. */
#pragma once
#include "base/near.h"

#define LL_BUNDLED(name, ...) {name, (const char *)(const unsigned char[]){__VA_ARGS__}},
typedef struct ll_bundled {
    const char *name, *text; /* text: zero-terminated */
} ll_bundled;

/* That of the name near->word; NULL: there is none. */
static inline const ll_bundled *ll_bundled_find(const ll_bundled *all, ll_near *near)
{
    while (all->name && !ll_near_try(near, all->name)) all++;
    return all->name ? all : NULL;
}
