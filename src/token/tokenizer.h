/* tokenizer.h: text as tokens, by byte-level BPE: GPT-2's, and those of Llama 3, SmolLM and Qwen;
 * of GGUF files also by SentencePiece's scores, as Llama 2's.
 *
 * Text is cut into words by regular expressions (split.h); the bytes of a word are tokens, and
 * neighbours are merged, those first that the list of merges has first. Tokens have numbers;
 * special ones stand for no text, and are looked for in text only where that is asked. */
#pragma once
#include "base/arena.h"

typedef struct ll_tokenizer ll_tokenizer;
/* A tokenizer.json, a GGUF file, or a folder that has tokenizer.json, or vocab.json and merges.txt.
 */
ll_err ll_tokenizer_open(const char *path, ll_tokenizer **out);
ll_err ll_tokenizer_parse(const uint8_t *bytes, size_t size, const char *path, ll_tokenizer **out);
/* vocab.json and merges.txt. */
ll_err ll_tokenizer_parse_pair(const char *vocab, size_t n_vocab, const char *merges,
                               size_t n_merges, const char *path, ll_tokenizer **out);
void ll_tokenizer_close(ll_tokenizer *t);
LL_OWNED(ll_tokenizer, ll_tokenizer_close);

int ll_tokenizer_count(const ll_tokenizer *t); /* of tokens: the largest number and one */
int ll_tokenizer_bos(const ll_tokenizer *t);   /* what texts begin with; -1: nothing */
int ll_tokenizer_eos(const ll_tokenizer *t);   /* what ends a text; -1: nothing */
/* A text's tokens begin with a blank that the text has not. */
bool ll_tokenizer_leads(const ll_tokenizer *t);
int ll_tokenizer_find(const ll_tokenizer *t, const char *token); /* -1: none */
const char *ll_tokenizer_template(const ll_tokenizer *t);        /* of chats; NULL: none */

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
    const char *split;   /* split.h; NULL: "gpt2" */
    const char *special; /* NULL: "<|endoftext|>" */
} ll_bpe_opts;
/* Learns merges of n texts, and writes a tokenizer.json. The same file for any number of threads.
 * *made: how many tokens. */
ll_err ll_bpe_train(const ll_bpe_opts *o, const char *const *texts, const size_t *sizes, int n,
                    const char *path, int *made);
