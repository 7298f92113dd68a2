/* codec_topk.h: what only the top-k codec has. */
#pragma once
#include "comm/codec.h"
#include "comm/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From now on in this form, on every rank; LL_SPARSE_AUTO: the fastest. */
void ll_codec_topk_form(ll_codec *k, ll_sparse_form form);
/* Elements that each rank sends. */
int64_t ll_codec_topk_count(const ll_codec *k);

#ifdef __cplusplus
}
#endif
