/* cmd_bench.c: loopline bench: what can be measured. */
#include "cli/bench.h"
#include "base/text.h"

typedef struct opts {
    const char *what;
    ll_words rest;
} opts;

static const ll_arg args[] = {
    {"WHAT", LL_ARG_TEXT, offsetof(opts, what), NULL, "step, comm or scale", NULL},
    {"[ARGUMENTS]...", LL_ARG_WORDS, offsetof(opts, rest), NULL, "bench WHAT --help lists them",
     NULL},
    {0}};

static const ll_command *const subs[] = {&ll_bench_step_command, &ll_bench_comm_command,
                                         &ll_bench_scale_command, NULL};

static const char *shown(const ll_command *c)
{
    if (c == &ll_bench_step_command) return "bench step MODEL";
    return c == &ll_bench_scale_command ? "bench scale RUN" : c->name;
}

static char *more(ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    for (const ll_command *const *c = subs; *c; c++)
        ll_buf_printf(&b, "  loopline %-22s %s\n", shown(*c), (*c)->help);
    ll_buf_puts(&b, "\nEach takes --help, and --json for one JSON value on standard output.\n");
    return b.text;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    FAIL(LL_E_ARG, "bench %s is not known: bench step MODEL, bench comm or bench scale RUN",
         o->what);
}

const ll_command ll_command_bench = {
    "bench", "times training steps, communication and scaling", args, sizeof(opts), run, more,
    subs};
