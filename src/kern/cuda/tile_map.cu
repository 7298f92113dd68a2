/* tile_map.cu: descriptions of tensors for TMA, by the driver. */
#include "kern/cuda/tile_map.cuh"

typedef CUresult (*encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static ll_err encoder_of(encoder *out)
{
    static encoder known;
    cudaDriverEntryPointQueryResult found;
    if (!known) {
        void *f = NULL;
        CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                  cudaEnableDefault, &found));
        CHECK(f && found == cudaDriverEntryPointSuccess, LL_E_DEVICE,
              "the driver has no cuTensorMapEncodeTiled: expected one of CUDA 12 or later");
        known = (encoder)f;
    }
    *out = known;
    return LL_OK;
}

extern "C" ll_err ll_tile_map(CUtensorMap *out, const void *data, int n, const cuuint64_t *size,
                              const cuuint64_t *pitch, const cuuint32_t *tile)
{
    const cuuint32_t each[5] = {1, 1, 1, 1, 1};
    bool wide = tile[0] * sizeof(bf16) == 128;
    encoder encode = NULL;
    TRY(encoder_of(&encode));
    CUresult rc = encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)n, (void *)data, size,
                         pitch, tile, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    CHECK(rc == CUDA_SUCCESS, LL_E_DEVICE,
          "cuTensorMapEncodeTiled of %d dimensions, the fastest %llu and %llu: error %d", n,
          (unsigned long long)size[0], (unsigned long long)size[1], (int)rc);
    return LL_OK;
}
