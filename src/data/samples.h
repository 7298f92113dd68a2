/* samples.h: samples of one field from a file that is not of the set: a picture, an array (.npy,
 * IDX), or text of tokens, brought to what the set's validation samples are. */
#pragma once
#include "base/arena.h"
#include "data/data.h"
#include "token/tokenizer.h"

typedef struct ll_samples {
    int64_t n;
    void *data;   /* n of them, of the field's type; the arena's */
    int64_t used; /* tokens of text: the sample's first so many are the text's last ones */
} ll_samples;

/* d: the set, whose sizes, means and deviations pictures and bytes are brought to; NULL: there is
 * none, and only arrays of numbers, which are taken as they are, can be read. t: makes tokens of
 * text, with or without a set; NULL: tokens are bytes, if the set's are. */
ll_err ll_samples_read(const ll_dataset *d, const ll_tokenizer *t, const ll_field *f,
                       const char *path, ll_arena *a, ll_samples *out);
