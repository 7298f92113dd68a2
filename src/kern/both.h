/* both.h: a function of a header that kernels on CPUs and on GPUs both call. */
#pragma once

#ifdef __CUDACC__
#define LL_BOTH __host__ __device__
#else
#define LL_BOTH
#endif
