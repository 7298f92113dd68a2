/* version.c: which Loopline this is; the number comes from CMakeLists.txt. */
#include "loopline.h"

const char *ll_version(void)
{
    return LL_VERSION;
}
