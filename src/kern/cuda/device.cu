/* device.cu: errors of the CUDA runtime as ours; whether there is a GPU. */
#include "kern/cuda/gpu.cuh"

ll_err ll_cuda_failed(cudaError_t e, const char *file, int line, const char *func)
{
    ll_err code = e == cudaErrorMemoryAllocation ? LL_E_MEM : LL_E_DEVICE;
    return ll_raise(code, file, line, func, "CUDA: %s", cudaGetErrorString(e));
}

bool ll_cuda_here(void)
{
    static int n = -1;
    if (n < 0 && cudaGetDeviceCount(&n)) n = 0;
    return n > 0;
}
