/* args.h: commands and their arguments as tables.
 *
 *     typedef struct opts { const char *run; ll_words set; int64_t steps; bool json; } opts;
 *     static const ll_arg args[] = {
 *         {"RUN", LL_OPT(opts, run), NULL, "a run file or a bundled run's name"},
 *         {"--set", LL_OPT(opts, set), "KEY=VALUE", "override a setting"},
 *         {"--steps", LL_OPT(opts, steps), "N", "stop after N steps"},
 *         {"--json", LL_OPT(opts, json), NULL, "print one JSON object"},
 *         {0}};
 *     const ll_command ll_command_train = {"train", "trains a model", args, sizeof(opts), run};
 *
 * A file src/cli/cmd_x.c declares ll_command_x; the build finds it from its name. Parsing fills the
 * command's struct: what is not given stays zero, or the default. --help is made of the table. */
#pragma once
#include "base/arena.h"

typedef enum ll_arg_kind {
    LL_ARG_FLAG,   /* bool */
    LL_ARG_TEXT,   /* const char * */
    LL_ARG_INT,    /* int64_t, not negative */
    LL_ARG_COUNT,  /* int64_t, 1 or more; 0: not given */
    LL_ARG_NUMBER, /* double, finite */
    LL_ARG_AMOUNT, /* double, finite, above 0; 0: not given */
    LL_ARG_WORDS,  /* ll_words: may be given many times */
    LL_ARG_SETTING /* ll_words of a run's settings: adds "KEY=VALUE" to them; initial is the key,
                    * or, of an option without a value, all of it */
} ll_arg_kind;

typedef struct ll_words {
    const char **v;
    int n, capacity;
} ll_words;
/* What words "KEY=VALUE" say of a key, the last of them; NULL: nothing. */
const char *ll_words_said(const ll_words *w, const char *key);

/* Names that start with "--" are options: "--set a=b", "--set=a=b"; "--out|-o" has a short form.
 * Others are positional, in order; "[NAME]" may be left out, "NAME..." (WORDS) takes all the rest.
 * A name of NULL ends the table. */
typedef struct ll_arg {
    const char *name;
    ll_arg_kind kind;
    size_t offset;
    const char *value; /* options that take one: what it is called in the help */
    const char *help;
    const char *initial; /* the default, as one would write it; NULL: zero */
    int64_t most;        /* INT, COUNT: that it may be; 0: 9e15 */
    bool hidden;         /* from the help: loopline's own processes give it to each other */
} ll_arg;

/* A field of a command's struct, and the kind of option that its type makes: in a row
 * {"--json", LL_OPT(opts, json), NULL, "one JSON object"}. */
#define LL_OPT(type, field)                                                                        \
    _Generic(((type *)0)->field, bool: LL_ARG_FLAG, const char *: LL_ARG_TEXT,                     \
             int64_t: LL_ARG_INT, double: LL_ARG_NUMBER, ll_words: LL_ARG_WORDS),                  \
        offsetof(type, field)

typedef struct ll_command {
    const char *name, *help; /* help: one line, what it does */
    const ll_arg *args;
    size_t opts_bytes;
    ll_err (*run)(const void *opts);
    /* Makes what follows the options in --help: paragraphs, which are wrapped (ll_buf_wrapped); may
     * be NULL. */
    char *(*more)(ll_arena *arena);
    /* Commands of two words, "bench step"; ends with NULL. The word after this command's name picks
     * one, and the rest of this struct is not looked at. NULL: there are none. */
    const struct ll_command *const *subs;
} ll_command;

/* Fills opts (zeroed first) from the words after the command's name. *help: --help was among them,
 * and nothing else was checked. Strings are those of argv or of the arena. all: as ll_commands(),
 * of which messages tell what has an option that this one has not. */
ll_err ll_args_parse(const ll_command *c, const ll_command *const *all, int argc, char *const *argv,
                     ll_arena *arena, void *opts, bool *help);
char *ll_args_help(const ll_command *c, ll_arena *arena);
/* Options, and where it takes --set settings, whose names contain topic; NULL: there are none. */
char *ll_args_help_on(const ll_command *c, const char *topic, ll_arena *arena);

/* The exit status of a command that succeeds in something else than what it was asked for. */
enum { LL_EXIT_STOPPED = 75 }; /* by a signal, with a checkpoint: may be started again */
void ll_cli_exit_with(int status);

/* All commands, sorted by name; ends with NULL. */
const ll_command *const *ll_commands(void);
