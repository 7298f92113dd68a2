/* named.h: a fusion by its name. */
#pragma once
#include "fuse/fuse.h"

#include <string.h>

static inline const ll_fusion *fusion_named(const char *name)
{
    const ll_fusion *const *f = ll_fusions();
    while (*f && strcmp((*f)->name, name)) f++;
    return *f;
}
