/* choices.h: questions that a model of tokens answers by what it takes to be likely. */
#pragma once
#include "cli/talk.h"

/* eval --choices FILE: prints how many are right, of the first `most` (0: all). Of o folder,
 * checkpoint, init, weights, set and json. */
ll_err ll_cli_choices(const ll_talk_opts *o, const char *file, int64_t most);
