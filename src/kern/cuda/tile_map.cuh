/* tile_map.cuh: how TMA of compute capability 9.0 sees a tensor of bf16. */
#pragma once
#include "kern/cuda/gpu.cuh"

#include <cuda.h>

extern "C" {
/* Sizes and a tile's from the fastest dimension on; pitch: bytes between elements of the second
 * dimension, the third and so on. A tile has rows of 128 or 64 bytes, permuted as sm90.cuh says. */
ll_err ll_tile_map(CUtensorMap *out, const void *data, int n, const cuuint64_t *size,
                   const cuuint64_t *pitch, const cuuint32_t *tile);
}
