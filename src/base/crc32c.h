/* crc32c.h: the Castagnoli CRC-32, which TensorBoard's event files and our checkpoints carry. */
#pragma once
#include "base/err.h"

/* Of n more bytes after those that gave crc; begin with 0. */
uint32_t ll_crc32c(uint32_t crc, const void *data, size_t n);

/* The same of data that lies in pieces, in several hands. A remainder is linear in the data: that
 * of the whole is the exclusive or of those of the pieces, each with zeros in place of the others.
 * Begin with 0; ll_crc32c_piece adds n bytes, ll_crc32c_zeros n zeros, up to the end of the whole;
 * ll_crc32c_of makes the checksum of the remainder of all, of so many bytes. */
uint32_t ll_crc32c_piece(uint32_t remainder, const void *data, size_t n);
uint32_t ll_crc32c_copy(uint32_t remainder, void *to, const void *from, size_t n); /* and copies */
uint32_t ll_crc32c_zeros(uint32_t remainder, uint64_t n);
uint32_t ll_crc32c_of(uint32_t remainder, uint64_t bytes);
