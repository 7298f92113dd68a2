/* samples.h: samples of one field from a file that is not of the set: a picture, an array (.npy,
 * IDX), or text of tokens, brought to what the set's validation samples are. */
#pragma once
#include "base/arena.h"
#include "data/data.h"
#include "token/tokenizer.h"

typedef struct ll_samples {
    int64_t n;
    void *data;   /* n of them, of the field's type; the arena's */
    int64_t used; /* tokens: so many at the beginning of each are the file's; 0: all */
} ll_samples;

/* How files are read. */
typedef struct ll_samples_how {
    /* Whose sizes, means and deviations pictures and bytes are brought to; NULL: there is none, and
     * only arrays of numbers, which are taken as they are, can be read. */
    const ll_dataset *set;
    /* Makes tokens of text, with or without a set; NULL: tokens are bytes, if the set's are. */
    const ll_tokenizer *tokenizer;
    bool prefixes; /* whole numbers are tokens: an array's rows may have fewer than the field */
    int32_t pad;   /* the token behind those that a sample has */
} ll_samples_how;

ll_err ll_samples_read(const ll_samples_how *how, const ll_field *f, const char *path, ll_arena *a,
                       ll_samples *out);
