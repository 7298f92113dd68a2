/* bpe.h: words into tokens. Shared by the files of this folder. */
#pragma once
#include "base/arena.h"
#include "token/split.h"
#include "token/tokenizer.h"

/* An empty one; and its patterns. */
ll_tokenizer *ll_tokenizer_new(const char *path);
ll_err ll_tokenizer_cuts(ll_tokenizer *t, const char *const *patterns, int n);
int ll_token_find(const ll_tokenizer *t, const char *bytes, int n);
/* Makes the tables; merges: pairs of tokens, by rank. */
ll_err ll_tokenizer_finish(ll_tokenizer *t, const ll_merge *merges, int n_merge);
/* A vocabulary's spelling, in which bytes are printable characters, as bytes; -1: it is none. */
int ll_byte_text(const char *text, size_t n, char *out);
/* A byte's character there, UTF-8, with a zero byte behind it. */
void ll_byte_char(int byte, char out[4]);
/* Text with blanks in place of U+2581, by which SentencePiece spells them; how many bytes. */
size_t ll_plain_blanks(const char *text, size_t n, char *out);
