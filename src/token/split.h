/* split.h: text into the words that tokens do not cross, by regular expressions (PCRE2). Each cuts
 * what the one before it has left: what it finds and what lies between are pieces. */
#pragma once
#include "base/arena.h"

typedef struct ll_pretok ll_pretok;
/* Patterns by a name that GGUF files have ("gpt-2", "llama-bpe", "smollm", ...); NULL: none. */
const char *const *ll_pretok_known(const char *name);
#define LL_PRETOK_GPT2 "gpt-2"
/* A name of each; NULL after the last. */
const char *ll_pretok_name(int i);
bool ll_pretok_whole(const char *name); /* a word that is a token is not merged */
ll_err ll_pretok_open(const char *const *patterns, int n, const char *path, ll_pretok **out);
void ll_pretok_close(ll_pretok *s);
LL_OWNED(ll_pretok, ll_pretok_close);
/* Calls f with each piece, in order. */
typedef void ll_pretok_piece(void *user, const char *text, size_t n);
ll_err ll_pretok_text(const ll_pretok *s, const char *text, size_t n, ll_pretok_piece *f,
                      void *user);
