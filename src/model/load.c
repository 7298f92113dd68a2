/* load.c: models in a shared library. */
#include "model/model.h"

#include "base/err.h"
#include "base/file.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The loader maps what headers promise, and a part that is not there would end the process. What is
 * no library of this machine it tells itself. */
static ll_err check_whole(const char *path)
{
    struct stat st;
    Elf64_Ehdr h;
    Elf64_Phdr p;
    LL_OWN_FD int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) return LL_OK;
    CHECK(S_ISREG(st.st_mode), LL_E_IO, "%s cannot be loaded: it is no regular file", path);
    uint64_t size = (uint64_t)st.st_size;
    if (size < sizeof h) return LL_OK;
    TRY(ll_read_all(fd, path, &h, sizeof h, 0));
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) || h.e_ident[EI_CLASS] != ELFCLASS64) return LL_OK;
    uint64_t end = h.e_phoff + (uint64_t)h.e_phnum * sizeof p, sections = h.e_shoff;
    if (sections) sections += (uint64_t)h.e_shnum * h.e_shentsize;
    for (int i = 0; end <= size && i < h.e_phnum; i++) {
        TRY(ll_read_all(fd, path, &p, sizeof p, h.e_phoff + (uint64_t)i * sizeof p));
        if (p.p_type == PT_LOAD && p.p_offset + p.p_filesz > end) end = p.p_offset + p.p_filesz;
    }
    if (sections > end) end = sections;
    CHECK(end <= size, LL_E_IO,
          "%s has %ld bytes of the %ld that its headers tell of: it was cut short: build or copy "
          "it again",
          path, size, end);
    return LL_OK;
}

ll_err ll_models_load(const char *path, const ll_model **out)
{
    enum { MOST = 1000 };
    TRY(check_whole(path));
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
