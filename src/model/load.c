/* load.c: models in a shared library. */
#include "model/model.h"

#include "base/err.h"

#include <dlfcn.h>

ll_err ll_models_load(const char *path, const ll_model **out)
{
    enum { MOST = 1000 };
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(lib, LL_E_IO, "%s cannot be loaded: %s", path, dlerror());
    const ll_model_file *f = (const ll_model_file *)dlsym(lib, "ll_models");
    CHECK(f, LL_E_IO, "%s has no models: add LL_EXPORT_MODELS(&my_model); (loopline.h)", path);
    CHECK(f->bytes == sizeof(ll_model) && f->models, LL_E_IO,
          "%s was compiled with loopline.h of another version: compile it again", path);
    int n = 0;
    for (const ll_model *m = f->models; m && n <= MOST; m = m->next) n++;
    CHECK(n <= MOST, LL_E_IO, "%s has more than %d models, or its list (next) is circular", path,
          MOST);
    *out = f->models;
    return LL_OK;
}
