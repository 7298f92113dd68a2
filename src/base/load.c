/* load.c: libraries opened by name; where they are looked for is dlopen's to say. */
#include "base/load.h"

#include <dlfcn.h>

ll_err ll_load_library(const ll_library *l)
{
    if (l->calls[0]) return LL_OK;
    void *lib = dlopen(l->file, RTLD_NOW | RTLD_LOCAL);
    CHECK(lib, LL_E_DEVICE,
          "%s cannot be loaded (%s): install %s, or name its folder in LD_LIBRARY_PATH", l->file,
          dlerror(), l->what);
    int n = 0;
    while (l->names[n]) n++;
    for (int i = n - 1; i >= 0; i--) {
        void *call = dlsym(lib, l->names[i]);
        CHECK(call, LL_E_DEVICE, "%s has no %s: install a newer %s", l->file, l->names[i], l->what);
        l->calls[i] = call;
    }
    return LL_OK;
}
