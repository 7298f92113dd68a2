/* asked.h: what a client asks for, in the form of OpenAI's: bodies of /v1/completions and
 * /v1/chat/completions. Keys that are not known, and those that ask for what is not done here, are
 * refused by their names. */
#pragma once
#include "cli/args.h"
#include "infer/generate.h"

typedef struct ll_said {
    const char *who, *text;
} ll_said;

typedef struct ll_asked {
    const char *model;  /* NULL: not said */
    const char *prompt; /* NULL: tokens, or a conversation */
    int32_t *tokens;
    ll_said *said;
    int n_token, n_said;
    int64_t most; /* tokens of the answer; -1: not said */
    ll_draw_opts how;
    bool seeded, stream, usage;
    ll_words stop;
    const char *param; /* of a refusal, the key */
    ll_arena *arena;
} ll_asked;
/* usual: what holds where a request says nothing. In arena. */
ll_err ll_asked_parse(const char *text, size_t n, bool chat, const ll_draw_opts *usual, ll_arena *a,
                      ll_asked *out);
