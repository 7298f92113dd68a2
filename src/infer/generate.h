/* generate.h: sequences that go on token by token. Two programs of one model share its weights and
 * a cache of keys and values: one takes `chunk` tokens of each sequence at a time (prompts), one
 * takes one (what is drawn). Sequences of a batch are of any lengths; each may begin anew while
 * others go on. A third program reads a few tokens that somebody guesses would follow, and tells
 * what follows each of them: of right guesses several count at once (Leviathan et al., 2023). Where
 * the model answers a source (a size "source"), a fourth reads those, each once. */
#pragma once
#include "infer/calibrate.h"
#include "infer/draw.h"
#include "run/run.h"

typedef struct ll_generator_opts {
    int64_t batch;   /* sequences; 0: 1 */
    int64_t places;  /* tokens of each that are kept; 0: as many as there may be */
    int64_t chunk;   /* 0: 64 */
    int64_t guesses; /* at most, of each; 0: none (ll_generator_guess) */
    int64_t keep;    /* entries of each head that stay (kern/keep.h); 0: all places' */
    int cache_bits;  /* of numbers in keys and values: 8 or 4 (kern/cache4.h), or 0: as they are */
    int bits;        /* of weights in products: 8, 4, or 0: as they are (pass/packed.h) */
    ll_calibrate calibrate; /* how weights of fewer bits are chosen; its bits are these */
    int number;             /* of several on the same ranks (ll_generator_follow) */
    ll_session_opts session;
    /* Fills a session's parameters. */
    ll_err (*load)(void *user, ll_session *s);
    void *user;
} ll_generator_opts;

/* How long a model's sequences may become. */
typedef struct ll_generator_limit {
    int64_t places; /* ll_run_places, or more than anybody wants */
    bool endless;   /* the latter: all that is kept of them is a state, and places are no weights */
    bool recurs;    /* a state of linear attention is among what is kept, which cannot go back */
    bool learned;   /* places are weights: there are no others than seq */
} ll_generator_limit;
ll_err ll_generator_limits(const ll_run *r, ll_generator_limit *out);

typedef struct ll_generator ll_generator;
/* Collective on a mesh, where rank 0 leads from then on: it alone puts, runs and draws, and the
 * others follow. */
ll_err ll_generator_open(const ll_run *r, const ll_generator_opts *o, ll_generator **out);
void ll_generator_close(ll_generator *g);
LL_OWNED(ll_generator, ll_generator_close);
/* Runs what rank 0 runs, of these n, by their numbers, until it dismisses all. It says now and then
 * that it is idle, where it waits for others than ranks: one that is silent is taken for lost. */
ll_err ll_generator_follow(ll_generator *const *g, int n);
ll_err ll_generator_idle(const ll_generator *g);
ll_err ll_generator_dismiss(const ll_generator *g);
int64_t ll_generator_places(const ll_generator *g);     /* tokens of a sequence that are kept */
size_t ll_generator_cache_bytes(const ll_generator *g); /* of keys and values, on this rank */
/* Is what it keeps of a sequence a state, of linear attention, rather than keys and values? */
bool ll_generator_recurs(const ll_generator *g);
size_t ll_generator_weight_bytes(const ll_generator *g); /* of parameters, on this rank */
size_t ll_generator_bytes(const ll_generator *g);        /* of all of its memory */

/* Adds tokens to a sequence; clear: it begins anew. */
ll_err ll_generator_put(ll_generator *g, int64_t sequence, const int32_t *tokens, int64_t n);
void ll_generator_clear(ll_generator *g, int64_t sequence);
/* What a sequence answers, of models that want it: at most as many tokens as their source. */
ll_err ll_generator_source(ll_generator *g, int64_t sequence, const int32_t *tokens, int64_t n);
/* Reads what was added. A sequence that outgrows its places goes on with the later half of them. */
ll_err ll_generator_run(ll_generator *g);
/* One program's run of it: a chunk, or a token, of each sequence that has any left. */
ll_err ll_generator_step(ll_generator *g);
bool ll_generator_ready(const ll_generator *g, int64_t sequence); /* all of it was read */
/* Reads what is left of each sequence and so many guesses behind it, `stride` apart, in one run.
 * Logits are then those behind the sequence. Where the token that is put next is the first guess,
 * accept makes them those behind it, and so on; false: there are no more, or no place is left. What
 * is not accepted is as if it had never been there. */
ll_err ll_generator_guess(ll_generator *g, const int32_t *guesses, int64_t stride, const int *n);
bool ll_generator_accept(ll_generator *g, int64_t sequence);
/* Sequence 0 becomes these tokens, one more than places at most, and to *sum is added minus the
 * logarithm of what each from `first` (1 or more) on has after those before it; by guesses, or one
 * by one where there are none. What it has of the others already is not read again. */
ll_err ll_generator_score(ll_generator *g, const int32_t *tokens, int64_t first, int64_t n,
                          double *sum);
/* Takes back all tokens behind the first n. */
void ll_generator_back(ll_generator *g, int64_t sequence, int64_t n);
/* Logits of what follows a sequence; its tokens so far. */
const float *ll_generator_logits(const ll_generator *g, int64_t sequence);
const int32_t *ll_generator_tokens(const ll_generator *g, int64_t sequence, int64_t *n);

/* What takes one token of each sequence, to be profiled. */
ll_session *ll_generator_session(const ll_generator *g);

/* The next token of a sequence, its draw number i: of seed, stream and i alone. */
int32_t ll_generator_draw(ll_generator *g, int64_t sequence, const ll_draw_opts *s, int64_t i);
