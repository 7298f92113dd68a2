/* machine.c: the table of machines. */
#include "machine/machine.h"

extern const ll_machine ll_machine_cpu, ll_machine_ref, ll_machine_cuda;
static const ll_machine *const machines[] = {&ll_machine_cpu,
#ifdef LL_CUDA
                                             &ll_machine_cuda,
#endif
                                             &ll_machine_ref};
enum { N = sizeof machines / sizeof *machines };

const ll_machine *ll_machine_of(const ll_target *t)
{
    for (int i = 0; i < N; i++)
        if (machines[i]->target == t) return machines[i];
    return NULL;
}

ll_err ll_machine_find(const char *name, const ll_machine **out)
{
#define X(name) " " #name
    const ll_target *t = ll_target_find(name);
    CHECK(t, LL_E_ARG, "machine %s is not known: there are" LL_TARGETS(X), name);
#undef X
    *out = ll_machine_of(t);
    CHECK(*out, LL_E_DEVICE,
          "this build has no CUDA: install nvcc, cuBLAS and cuDNN and configure with -DLL_CUDA=ON, "
          "or use machine cpu");
    return LL_OK;
}
