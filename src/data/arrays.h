/* arrays.h: parsed files of named arrays, offered to a table. */
#pragma once
#include "data/table.h"

/* The variables of a classic NetCDF file. */
ll_err ll_cdf_offer(ll_dataset *d, const uint8_t *bytes, size_t size, const char *path);
