/* talk.h: what generate and chat have in common: a trained model of tokens, its tokenizer, and how
 * the next token is drawn. */
#pragma once
#include "cli/common.h"
#include "token/tokenizer.h"
#include "infer/generate.h"
#include "train/prune.h"

typedef struct ll_talk_opts {
    ll_trained_opts of;
    const char *mesh, *weights, *cache;
    int64_t tokens, seed, context, keep;
    ll_draw_opts draw; /* all but its seed and stream */
    bool exact;
    ll_words stop, source; /* source: of generate alone */
} ll_talk_opts;

/* Rows of their tables, and those that only some have; opts has an ll_talk_opts first. */
#define LL_TALK_ARGS(...)                                                                          \
    {"--tokens|-n", LL_OPT(ll_talk_opts, tokens), "N", "maximum number of tokens to generate",     \
     "400"},                                                                                       \
        {"--temperature|-t", LL_OPT(ll_talk_opts, draw.temperature), "T",                          \
         "sampling temperature; 0 = greedy", "0.8"},                                               \
        {"--top-k|-k", LL_OPT(ll_talk_opts, draw.top_k), "K",                                      \
         "sample from the K most likely tokens only; 0 = off", "0"},                               \
        {"--top-p", LL_OPT(ll_talk_opts, draw.top_p), "P",                                         \
         "nucleus sampling: from the fewest tokens with total probability P; 1 = off", "1"},       \
        {"--min-p", LL_OPT(ll_talk_opts, draw.min_p), "P",                                         \
         "sample from tokens at least P times as likely as the most likely one; 0 = off", "0"},    \
        {"--repetition", LL_OPT(ll_talk_opts, draw.repetition), "R",                               \
         "repetition penalty: divide the logits of earlier tokens by R; 1 = off", "1"},            \
        {"--stop", LL_OPT(ll_talk_opts, stop), "TEXT",                                             \
         "stop before this text; may be given several times"},                                     \
        {"--seed", LL_OPT(ll_talk_opts, seed), "N", "random seed for sampling", "1"},              \
        {"--context", LL_OPT(ll_talk_opts, context), "N",                                          \
         "context length in tokens: at most model.seq, or any number with linear attention; "      \
         "0 = as needed (chat and serve: up to 2048)",                                             \
         "0"},                                                                                     \
        {"--keep", LL_ARG_COUNT, offsetof(ll_talk_opts, keep), "N",                                \
         "keep only N tokens per head in the KV cache: half of them the most recent, half the "    \
         "most attended to (H2O); if not given, all of --context"},                                \
        {"--weights", LL_OPT(ll_talk_opts, weights), "TYPE",                                       \
         "type of weight matrices: f32, or int8 or int4 in blocks of 32", "f32"},                  \
        {"--cache", LL_OPT(ll_talk_opts, cache), "TYPE",                                           \
         "type of the KV cache: f32, int8 (one scale per token and head), or int4 (groups of 32: " \
         "keys per channel, values per token)",                                                    \
         "f32"},                                                                                   \
        {"--exact", LL_OPT(ll_talk_opts, exact), NULL,                                             \
         "exact summation: bitwise identical logits, so the same text, on every mesh"},            \
        {"--mesh|-m", LL_OPT(ll_talk_opts, mesh), "MESH",                                          \
         "run on several ranks, such as tensor=2, which are started here"},                        \
        LL_TRAINED_ARGS, __VA_ARGS__ __VA_OPT__(, )                                                \
    {                                                                                              \
        0                                                                                          \
    }

typedef struct ll_talk {
    const ll_talk_opts *o;
    ll_run *run;
    const char *mesh; /* --mesh, or -s parallel.mesh; NULL: neither */
    ll_comm *comm;    /* NULL: this process alone; a draft's is that of whom it guesses for */
    ll_generator *g;
    bool profile;    /* of what takes one token */
    ll_tokenizer *t; /* NULL: tokens are bytes */
    ll_draw_opts how;
    int64_t vocab, step;
    ll_generator_limit limit;
    int64_t chunk;         /* tokens of prompts that are read at once; 0: as generate.h has it */
    bool prints;           /* rank 0 */
    struct ll_talk *draft; /* guesses what this one says; NULL: none does */
    int64_t guesses;       /* at once */
    int number;            /* of a draft 1 (ll_generator_opts) */
    ll_calibrate calibrate;
    const char *prune; /* weights of products by this rule (prune.h); NULL: not looked at */
    ll_pruned pruned;  /* by that */
    bool quiet;        /* of its memory */
    bool waits;        /* who starts the ranks stays, and has the first asked to end */
    int64_t guessed, taken;
} ll_talk;
#define LL_TALK __attribute__((cleanup(ll_talk_close))) ll_talk
/* Of int8 8, of int4 4, of f32 0; else what option wants. */
ll_err ll_talk_bits(const char *option, const char *type, int *bits);
/* First the run and its tokenizer, then, with so many sequences of so many tokens, the rest. */
ll_err ll_talk_begin(const ll_talk_opts *o, ll_talk *t);
ll_err ll_talk_open(ll_talk *t, int64_t batch, int64_t places);
/* Of --mesh: starts the ranks. Part of ll_talk_open for who has nothing to do before it. */
ll_err ll_talk_ranks(ll_talk *t, int64_t batch);
void ll_talk_close(ll_talk *t);
/* Rank 0 leads; what others do after ll_talk_open, until it leaves. */
ll_err ll_talk_follow(ll_talk *t);
ll_err ll_talk_leave(ll_talk *t, ll_err rc); /* a failure of any rank comes out once */
/* A prompt's tokens; the caller frees them. */
ll_err ll_talk_encode(const ll_talk *t, const char *text, bool special, int32_t **out, int64_t *n);
/* Tokens of sequence i; tells where there are more than are kept. */
ll_err ll_talk_put(ll_talk *t, int64_t i, const int32_t *tokens, int64_t n);

/* What a sequence says until it is done. */
typedef struct ll_saying {
    ll_buf text;    /* without what ended it */
    size_t shown;   /* bytes that were printed */
    size_t hold;    /* bytes at the end that may yet become a stop text */
    int64_t tokens; /* that were drawn */
    bool done;
    bool ended; /* by itself, or a stop text: not by its length */
    ll_draw_opts how;
    int64_t most; /* tokens */
    ll_words stop;
    int stop_token; /* -1: none */
} ll_saying;
/* As the options have it; number i of several of one seed. */
ll_saying ll_talk_saying(const ll_talk *t, ll_arena *a, int64_t i, int stop_token);
/* Draws the next token of sequence i, which is ready. */
ll_err ll_talk_next(ll_talk *t, ll_saying *s, int64_t i);
/* Draws for n of them until they are done; stream: prints as it goes. With a draft, this model
 * looks at what that one would say, at several tokens in one run, and keeps what it would have said
 * itself: each token is drawn from this model's logits by the same number of the same seed, so
 * that the text is the one without. */
ll_err ll_talk_say(ll_talk *t, ll_saying *s, int64_t n, bool stream);

/* ---- conversations, as the model's family writes them ---- */
typedef struct ll_family ll_family;
ll_err ll_talk_family(const ll_talk *t, const ll_family **out);
int ll_family_stop(const ll_talk *t, const ll_family *f); /* the token that ends an answer */
typedef struct ll_tokens {
    int32_t *v;
    int n, room;
    ll_arena *arena;
} ll_tokens;
/* Adds a text's tokens, behind that which texts begin with, where there is one. */
ll_err ll_talk_add(const ll_talk *t, const char *text, ll_tokens *out);
/* Each adds tokens. Special ones are those of the family alone: what people say is text. */
ll_err ll_family_begin(const ll_talk *t, const ll_family *f, ll_tokens *out);
ll_err ll_family_turn(const ll_talk *t, const ll_family *f, const char *who, const char *text,
                      ll_tokens *out); /* text NULL: its words are the model's to find */
ll_err ll_family_end(const ll_talk *t, const ll_family *f, ll_tokens *out); /* of such an answer */

/* eval --choices FILE, questions that are answered by what is likely: prints how many are right, of
 * the first `most` (0: all). Of o which model it is, and weights. */
ll_err ll_cli_choices(const ll_talk_opts *o, const char *file, int64_t most);
