/* tokenizer.h: text as tokens, by byte-level BPE: GPT-2's, and those of Llama 3, SmolLM and Qwen;
 * of GGUF files also by SentencePiece's scores, as Llama 2's.
 *
 * Text is cut into words by regular expressions (split.h); the bytes of a word are tokens, and
 * neighbours are merged, those first that the list of merges has first. Tokens have numbers;
 * special ones stand for no text, and are looked for in text only where that is asked. */
#pragma once
#include "base/arena.h"

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

typedef struct ll_tokenizer {
    ll_token *tokens;
    int n;           /* the largest number and one */
    int byte[256];   /* a byte's token; -1: none */
    int *by_bytes;   /* table: of texts, then of special ones; -1: empty */
    ll_merge *merge; /* table, by (a,b); rank -1: empty */
    unsigned mask, merge_mask;
    int *added, n_added; /* kinds that are not text, the longest first */
    bool whole;          /* a word that is a token is not merged */
    /* Of SentencePiece's vocabularies: what neighbours become is the token that they spell, that of
     * the least rank first; blanks are part of tokens, and texts are not cut. NULL: of merges. */
    const int *rank;
    bool leads;       /* of those: a text's tokens begin with a blank that it has not */
    int bos, eos;     /* what a text begins with, what ends one; -1: nothing */
    const char *chat; /* template; NULL: none */
    struct ll_pretok *split;
    const char *cuts[LL_CUTS]; /* its patterns */
    int n_cut;
    const char *path;
    ll_arena *arena;
} ll_tokenizer;

/* A tokenizer.json, a GGUF file, or a folder that has tokenizer.json, or vocab.json and merges.txt.
 */
ll_err ll_tokenizer_open(const char *path, ll_tokenizer **out);
ll_err ll_tokenizer_parse(const uint8_t *bytes, size_t size, const char *path, ll_tokenizer **out);
/* vocab.json and merges.txt. */
ll_err ll_tokenizer_parse_pair(const char *vocab, size_t n_vocab, const char *merges,
                               size_t n_merges, const char *path, ll_tokenizer **out);
void ll_tokenizer_close(ll_tokenizer *t);
LL_OWNED(ll_tokenizer, ll_tokenizer_close);

int ll_tokenizer_find(const ll_tokenizer *t, const char *token); /* -1: none */

/* Tokens of n bytes of any content, which the caller frees; special: also those that stand for no
 * text. */
ll_err ll_tokenizer_encode(const ll_tokenizer *t, const char *text, size_t n, bool special,
                           int32_t **out, int64_t *count);
/* A token's bytes; special ones have theirs too. NULL: there is no such token. */
const char *ll_tokenizer_bytes(const ll_tokenizer *t, int token, size_t *n);
bool ll_tokenizer_special(const ll_tokenizer *t, int token);

/* ---- writing (write.c) ---- */
struct ll_gguf_out;
/* Of the bytes below n alone: what a model of bytes has. */
ll_err ll_tokenizer_of_bytes(int n, ll_tokenizer **out);
/* tokenizer.json; with it tokenizer_config.json, into a folder. What both refuse first: */
ll_err ll_tokenizer_can_save(const ll_tokenizer *t);
ll_err ll_tokenizer_save_json(const ll_tokenizer *t, const char *path);
ll_err ll_tokenizer_save(const ll_tokenizer *t, const char *folder);
/* Pairs of a GGUF file whose model has a vocabulary of so many. */
ll_err ll_tokenizer_pairs(const ll_tokenizer *t, int vocab, struct ll_gguf_out *o);

/* ---- a tokenizer of one's own ---- */
typedef struct ll_bpe_opts {
    int vocab; /* tokens, the 256 bytes and the special one among them */
    int threads;
    const char *split; /* split.h; NULL: "gpt2" */
} ll_bpe_opts;
/* Learns merges of n texts, and writes a tokenizer.json. The same file for any number of threads.
 * *made: how many tokens. */
ll_err ll_bpe_train(const ll_bpe_opts *o, const char *const *texts, const size_t *sizes, int n,
                    const char *path, int *made);
