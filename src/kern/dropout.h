/* dropout.h: which random number belongs to an element: shared by the kernels of dropout. */
#pragma once
#include "kern/kern.h"

/* The stream of this step. */
uint64_t ll_dropout_stream(const ll_kcall *c);
/* Element i of this part as an index in the whole tensor, after all earlier micro-batches. */
uint64_t ll_dropout_index(const ll_kcall *c, int64_t i);
