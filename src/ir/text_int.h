/* text_int.h: what is written of graphs, and a reader that knows its line and column; shared by
 * ir/text.c (graphs) and ir/text_attr.c (attributes). The reader trusts nothing: every count, size
 * and name is bounded, and each failure says where it stands and what was wanted there. */
#pragma once
#include "base/text.h"
#include "ir/op.h"

enum { LL_WORD_MAX = 63 };
#define LL_TEXT_NUMEL ((int64_t)1 << 40) /* elements of one tensor, at most */

enum { LL_N_INIT = LL_GIVEN + 1 };
extern const char *const ll_init_names[LL_N_INIT];    /* by ll_init_kind */
const char *ll_quoted(ll_arena *a, const char *text); /* with \" \\ \n \t \xHH */
/* The shortest that reads back the same. */
const char *ll_exact(double v, char out[LL_NUMBER_TEXT]);
#define LL_EXACT(v) ll_exact(v, (char[LL_NUMBER_TEXT]){0})
const char *ll_dtype_text(ll_dtype t);                           /* "?": is none */
void ll_put_attrs(ll_buf *w, const ll_op *op, const void *attr); /* "{...}", or nothing */

typedef struct ll_scan {
    const char *at, *line_start;
    int line;
    ll_err (*fused)(struct ll_scan *s, void *attr); /* reads LL_A_FUSED; NULL: there is none */
} ll_scan;

/* Fails with "line L, column C: " and the message; from: where the offending text begins. */
ll_err ll_scan_fail(const ll_scan *s, const char *from, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ll_scan_blank(ll_scan *s);      /* over spaces, not over the end of the line */
bool ll_scan_is(ll_scan *s, char c); /* the next character that is no blank is c: takes it */
ll_err ll_scan_want(ll_scan *s, char c);
ll_err ll_scan_word(ll_scan *s, const char *what, char word[LL_WORD_MAX + 1]);
ll_err ll_scan_string(ll_scan *s, const char *what, char *text, size_t bytes);
ll_err ll_scan_int(ll_scan *s, const char *what, int64_t min, int64_t max, int64_t *out);
ll_err ll_scan_double(ll_scan *s, const char *what, double *out);
ll_err ll_scan_dtype(ll_scan *s, ll_dtype *out);
ll_err ll_scan_shape(ll_scan *s, ll_shape *out);
/* Fields of attributes that were given, by number; and those given as "$name": patterns have such.
 */
enum { LL_ATTR_FIELDS = 16 };
typedef struct ll_given {
    bool has[LL_ATTR_FIELDS];
    char hole[LL_ATTR_FIELDS][LL_WORD_MAX + 1];
} ll_given;
/* "{name=value, ...}" or nothing, into attr, which is zeroed and of op->attr_size bytes. given:
 * what was; NULL: there may be no holes. */
ll_err ll_scan_attrs(ll_scan *s, const ll_op *op, void *attr, ll_given *given);
size_t ll_attr_bytes(const ll_attr_field *f);
