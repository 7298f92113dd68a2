/* libs.cuh: the libraries' handles, one of each per process, made at first use, and their errors. */
#pragma once
#include "kern/cuda/gpu.cuh"

#include <cublasLt.h>
#include <cudnn.h>

extern "C" {
ll_err ll_cublas(cublasLtHandle_t *out);
ll_err ll_cudnn(cudnnHandle_t *out);
cudaDataType_t ll_cuda_type(ll_dtype t);
}

#define BLAS_TRY(call)                                                                             \
    do {                                                                                           \
        cublasStatus_t bs_ = (call);                                                               \
        CHECK(bs_ == CUBLAS_STATUS_SUCCESS, LL_E_DEVICE, "%.40s: %s", #call,                       \
              cublasLtGetStatusString(bs_));                                                       \
    } while (0)
#define DNN_TRY(call)                                                                              \
    do {                                                                                           \
        cudnnStatus_t ds_ = (call);                                                                \
        CHECK(ds_ == CUDNN_STATUS_SUCCESS, LL_E_DEVICE, "%.40s: %s", #call,                        \
              cudnnGetErrorString(ds_));                                                           \
    } while (0)
