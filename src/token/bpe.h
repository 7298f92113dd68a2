/* bpe.h: words into tokens. Shared by the files of this folder. */
#pragma once
#include "base/arena.h"
#include "token/split.h"
#include "token/tokenizer.h"

enum { LL_CUTS = 8 };
/* ALWAYS: looked for in any text; BYTE: of vocabularies with ranks, not found by its text. */
enum { LL_TOKEN_TEXT, LL_TOKEN_SPECIAL, LL_TOKEN_ALWAYS, LL_TOKEN_BYTE };

typedef struct ll_token {
    const char *bytes;
    int length, kind;
} ll_token;

/* Tokens a and b become another, before those of larger rank. */
typedef struct ll_merge {
    int a, b, to, rank;
} ll_merge;

struct ll_tokenizer {
    ll_token *tokens;
    int n;
    int byte[256];   /* a byte's token; -1: none */
    int *by_bytes;   /* table: of texts, then of special ones; -1: empty */
    ll_merge *merge; /* table, by (a,b); rank -1: empty */
    unsigned mask, merge_mask;
    int *added, n_added; /* kinds that are not text, the longest first */
    bool whole;          /* a word that is a token is not merged */
    /* Of SentencePiece's vocabularies: what neighbours become is the token that they spell, that of
     * the least rank first; blanks are part of tokens, and texts are not cut. NULL: of merges. */
    const int *rank;
    bool leads; /* of those: a text begins with a blank more */
    int bos, eos;
    const char *chat;
    ll_pretok *split;
    const char *cuts[LL_CUTS]; /* its patterns */
    int n_cut;
    const char *path;
    ll_arena *arena;
};

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
