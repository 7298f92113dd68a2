/* device.cu: errors of the CUDA runtime as ours; the libraries' handles. */
#include "kern/cuda/libs.cuh"

ll_err ll_cuda_failed(cudaError_t e, const char *file, int line, const char *func)
{
    ll_err code = e == cudaErrorMemoryAllocation ? LL_E_MEM : LL_E_DEVICE;
    return ll_raise(code, file, line, func, "CUDA: %s", cudaGetErrorString(e));
}

static cublasLtHandle_t blas;
static cudnnHandle_t dnn;

ll_err ll_cublas(cublasLtHandle_t *out)
{
    if (!blas) BLAS_TRY(cublasLtCreate(&blas));
    *out = blas;
    return LL_OK;
}

ll_err ll_cudnn(cudnnHandle_t *out)
{
    if (!dnn) DNN_TRY(cudnnCreate(&dnn));
    *out = dnn;
    return LL_OK;
}

cudaDataType_t ll_cuda_type(ll_dtype t)
{
    switch (t) {
    case LL_F64: return CUDA_R_64F;
    case LL_BF16: return CUDA_R_16BF;
    case LL_F16: return CUDA_R_16F;
    case LL_F8_E4M3: return CUDA_R_8F_E4M3;
    case LL_F8_E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
    }
}
