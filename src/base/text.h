/* text.h: strings that grow, and numbers as people read them. */
#pragma once
#include "base/arena.h"

/* A string that grows in an arena: start with {.arena = a}; text ends with a zero byte and is NULL
 * until something was added; len = 0 empties it for reuse. */
typedef struct ll_buf {
    ll_arena *arena;
    char *text;
    size_t len, capacity;
} ll_buf;

void ll_buf_add(ll_buf *b, const void *bytes, size_t n);
void ll_buf_puts(ll_buf *b, const char *text);
void ll_buf_printf(ll_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* text as a JSON string, quotes included; bytes that are not UTF-8 become U+FFFD. */
void ll_buf_json(ll_buf *b, const char *text);
char *ll_text_quoted(ll_arena *a, const char *text); /* the same, for an argument of printf */

/* A line of help: "  left   text", where text starts at a column and is wrapped to a width; on a
 * line of its own where left leaves no room. */
void ll_buf_row(ll_buf *b, const char *left, int column, int width, const char *text);
/* Paragraphs, each one line of text, wrapped to a width; lines that begin with a blank stay. */
void ll_buf_wrapped(ll_buf *b, int width, const char *text);
/* How wide help is printed: the terminal's width, 100 at most; 100 where there is none. */
int ll_text_width(void);

bool ll_ends_with(const char *text, const char *end);
/* Are these n letters a word of the list, whose words have that character between them? */
bool ll_lists(const char *list, char between, const char *word, size_t n);

/* Bytes of the UTF-8 character at text: 1 to 4, or 0 where there is none (also at the end). */
int ll_utf8_at(const char *text);
bool ll_is_utf8(const char *text);

/* Each writes into out and returns it. */
#define LL_NUMBER_TEXT 32
const char *ll_text_count(double n, char out[LL_NUMBER_TEXT]);     /* 938, 18.8k, 124M */
const char *ll_text_loss(double x, char out[LL_NUMBER_TEXT]);      /* 0.1234, 1.235e+09 */
const char *ll_text_bytes(double bytes, char out[LL_NUMBER_TEXT]); /* 512 B, 212 MiB */
/* Not less than what is needed; not more than what there is: ll_text_to_bytes reads it back so. */
const char *ll_text_bytes_up(double bytes, char out[LL_NUMBER_TEXT]);
const char *ll_text_bytes_down(double bytes, char out[LL_NUMBER_TEXT]);
bool ll_text_to_bytes(const char *text, double *out);         /* 512B, 64MiB, 1.5 GB; false: none */
const char *ll_text_time(double s, char out[LL_NUMBER_TEXT]); /* 812 us, 3.41 ms, 1.20 s */
const char *ll_text_duration(double s, char out[LL_NUMBER_TEXT]); /* 4.2s, 2m 13s, 1h 02m */
/* 1 step, 2 steps: of a word that takes an s. */
const char *ll_text_counted(int64_t n, const char *word, char out[LL_NUMBER_TEXT]);
/* The same in place, as an argument of printf: LL_BYTES(p->bytes). */
#define LL_TEXT(of, x) ll_text_##of((double)(x), (char[LL_NUMBER_TEXT]){0})
#define LL_AMOUNT(x) LL_TEXT(count, x)
#define LL_BYTES(x) LL_TEXT(bytes, x)
#define LL_BYTES_UP(x) LL_TEXT(bytes_up, x)
#define LL_BYTES_DOWN(x) LL_TEXT(bytes_down, x)
#define LL_LOSS(x) LL_TEXT(loss, x)
#define LL_TIME(x) LL_TEXT(time, x)
#define LL_DURATION(x) LL_TEXT(duration, x)
#define LL_COUNTED(n, word) ll_text_counted(n, word, (char[LL_NUMBER_TEXT]){0})
/* The shortest decimal that reads back as the same number: as the same float where v is one. "null"
 * where v is not finite, for JSON has no such numbers. Always with a decimal point. */
const char *ll_text_number(double v, char out[LL_NUMBER_TEXT]);
