/* choices.h: questions that a model of tokens answers by what it takes to be likely. */
#pragma once
#include "cli/common.h"

/* eval --choices FILE: prints how many are right. */
ll_err ll_cli_choices(const char *folder, const char *checkpoint, const char *init,
                      const ll_words *set, const char *file, int64_t most, bool json);
