/* crc32c.h: the Castagnoli CRC-32, which TensorBoard's event files and our checkpoints carry. */
#pragma once
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of n more bytes after those that gave crc; begin with 0. */
uint32_t ll_crc32c(uint32_t crc, const void *data, size_t n);

#ifdef __cplusplus
}
#endif
