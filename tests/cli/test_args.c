/* Command lines: options, positional words, mistakes, help. */
#include "cli/args.h"
#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

typedef struct opts {
    const char *run, *second, *out;
    ll_words set;
    int64_t steps;
    double rate;
    bool json;
    unsigned char guard[8];
} opts;

static char *more(ll_arena *arena)
{
    return ll_arena_strdup(arena, "More to say.\n");
}

static const ll_arg args[] = {
    {"RUN", LL_ARG_TEXT, offsetof(opts, run), NULL, "what to train", NULL},
    {"--set", LL_ARG_WORDS, offsetof(opts, set), "KEY=VALUE", "override a setting", NULL},
    {"--steps|-n", LL_ARG_INT, offsetof(opts, steps), "N", "how many", "12"},
    {"[SECOND]", LL_ARG_TEXT, offsetof(opts, second), NULL, "a second word", NULL},
    {"--rate", LL_ARG_NUMBER, offsetof(opts, rate), "X", "how fast", NULL},
    {"--json", LL_ARG_FLAG, offsetof(opts, json), NULL, "print one JSON object", NULL},
    {"--out|-o", LL_ARG_TEXT, offsetof(opts, out), "FOLDER", "where to", NULL},
    {"--inner", LL_ARG_TEXT, offsetof(opts, second), "WORD", "for ranks", NULL, .hidden = true},
    {"--mesh", LL_ARG_SETTING, offsetof(opts, set), "MESH", "of ranks", "parallel.mesh"},
    {"--exact", LL_ARG_SETTING, offsetof(opts, set), NULL, "sums", "parallel.exact=true"},
    {0}};
static const ll_command command = {"train", "trains a model", args, sizeof(opts), NULL, more, NULL};

static ll_err parse(const ll_command *c, const char *line, ll_arena *arena, opts *o, bool *help)
{
    char *words[16], *rest = NULL;
    int n = 0;
    memset(o, 0x7f, sizeof *o);
    for (char *w = strtok_r(ll_arena_strdup(arena, line), " ", &rest); w;
         w = strtok_r(NULL, " ", &rest))
        words[n++] = w;
    return ll_args_parse(c, ll_commands(), n, words, arena, o, help);
}

static void reads_all_forms(void **state)
{
    (void)state;
    ll_arena *arena = ll_arena_new();
    opts o;
    bool help = true;
    assert_int_equal(parse(&command, "a", arena, &o, &help), LL_OK);
    assert_false(help);
    assert_string_equal(o.run, "a");
    assert_null(o.second);
    assert_null(o.out);
    assert_int_equal(o.set.n, 0);
    assert_int_equal(o.steps, 12);
    assert_false(o.json);
    const char *line = "--json --set a=b x -n 5 --set=c=d --rate -1e-3 y -o z";
    assert_int_equal(parse(&command, line, arena, &o, &help), LL_OK);
    assert_string_equal(o.run, "x");
    assert_string_equal(o.second, "y");
    assert_string_equal(o.out, "z");
    assert_int_equal(o.set.n, 2);
    assert_string_equal(o.set.v[0], "a=b");
    assert_string_equal(o.set.v[1], "c=d");
    assert_int_equal(o.steps, 5);
    assert_true(o.rate == -1e-3);
    assert_true(o.json);
    assert_int_equal(parse(&command, "x --mesh data=2 --set a=b --exact", arena, &o, &help), LL_OK);
    assert_int_equal(o.set.n, 3);
    assert_string_equal(o.set.v[0], "parallel.mesh=data=2");
    assert_string_equal(o.set.v[2], "parallel.exact=true");
    assert_int_equal(parse(&command, "-- --json -", arena, &o, &help), LL_OK);
    assert_string_equal(o.run, "--json");
    assert_string_equal(o.second, "-");
    assert_false(o.json);
    assert_int_equal(parse(&command, "--jsn --help", arena, &o, &help), LL_OK);
    assert_true(help);
    ll_arena_free(arena);
}

static void many_words(void **state)
{
    (void)state;
    static const ll_arg list[] = {
        {"FILE...", LL_ARG_WORDS, offsetof(opts, set), NULL, "files", NULL},
        {"--json", LL_ARG_FLAG, offsetof(opts, json), NULL, "print JSON", NULL},
        {0}};
    static const ll_command files = {"files", "reads files", list, sizeof(opts), NULL, NULL, NULL};
    ll_arena *arena = ll_arena_new();
    opts o;
    bool help;
    assert_int_equal(parse(&files, "a b --json c d e f g h i", arena, &o, &help), LL_OK);
    assert_int_equal(o.set.n, 9);
    assert_string_equal(o.set.v[8], "i");
    assert_int_equal(parse(&files, "--json", arena, &o, &help), LL_E_ARG);
    assert_string_equal(ll_error_message(), "files needs FILE...: files");
    assert_null(ll_args_help_on(&files, "mesh", arena)); /* it takes no settings */
    ll_arena_free(arena);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"", "train needs RUN: what to train"},
        {"--json", "train needs RUN"},
        {"a b c", "unexpected argument 'c'; see loopline train --help"},
        {"a --jsno", "train has no option --jsno; did you mean --json?"},
        {"a --stesp=4", "train has no option --stesp; did you mean --steps?"},
        {"a -z", "train has no option -z; see loopline train --help"},
        {"a -=4", "train has no option -; see loopline train --help"},
        {"a --json=1", "--json takes no value, but is given '1'"},
        {"a --steps", "--steps needs a value: --steps N"},
        {"a --steps 4.5", "--steps is '4.5', expected a whole number"},
        {"a --steps 10X", "0 or more (at most 9e15), such as 4000, 1e10 or 10G"},
        {"a --steps=", "--steps is '', expected a whole number"},
        {"a -n -1", "-n is '-1', expected a whole number, 0 or more (at most 9e15)"},
        {"a -n 99999999999999999999", "expected a whole number"},
        {"a --rate fast", "--rate is 'fast', expected a number"},
        {"a --rate inf", "--rate is 'inf', expected a number"},
    };
    ll_arena *arena = ll_arena_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        opts o;
        bool help;
        assert_int_equal(parse(&command, cases[i].line, arena, &o, &help), LL_E_ARG);
        if (!strstr(ll_error_message(), cases[i].says))
            fail_msg("'%s' says: %s", cases[i].line, ll_error_message());
    }
    ll_arena_free(arena);
}

static void help_is_the_table(void **state)
{
    (void)state;
    ll_arena *arena = ll_arena_new();
    const char *want = "usage: loopline train RUN [SECOND] [options]\n\n"
                       "Trains a model.\n\n"
                       "  RUN                     what to train\n"
                       "  [SECOND]                a second word\n\n"
                       "Options:\n"
                       "  --set KEY=VALUE         override a setting\n"
                       "  -n, --steps N           how many [default: 12]\n"
                       "  --rate X                how fast\n"
                       "  --json                  print one JSON object\n"
                       "  -o, --out FOLDER        where to\n"
                       "  --mesh MESH             of ranks [sets parallel.mesh]\n"
                       "  --exact                 sums [sets parallel.exact=true]\n"
                       "  -h, --help              show this help\n\n"
                       "More to say.\n";
    assert_string_equal(ll_args_help(&command, arena), want);
    const char *some = ll_args_help_on(&command, "mesh", arena);
    want = "  --mesh MESH             of ranks [sets parallel.mesh]\n\n"
           "Parallelism and communication:\n"
           "  parallel.mesh           ";
    assert_memory_equal(some, want, strlen(want));
    assert_null(ll_args_help_on(&command, "no-such", arena));
    ll_arena_free(arena);
}

/* Every command there is: a usable table, and a help without failing. */
static void commands_are_whole(void **state)
{
    (void)state;
    ll_arena *arena = ll_arena_new();
    for (const ll_command *const *c = ll_commands(); *c; c++) {
        assert_true((*c)->name && (*c)->help);
        if ((*c)->subs) continue;
        assert_true((*c)->args && (*c)->run);
        assert_non_null(strstr(ll_args_help(*c, arena), (*c)->name));
        for (const ll_arg *a = (*c)->args; a->name; a++) {
            assert_non_null(a->help);
            assert_true(a->offset < (*c)->opts_bytes);
            bool takes = a->kind != LL_ARG_FLAG && a->name[0] == '-';
            if (a->kind == LL_ARG_SETTING) takes = !strchr(a->initial, '=');
            assert_int_equal(a->value != NULL, takes);
        }
    }
    ll_arena_free(arena);
}

static void exit_status(void **state)
{
    (void)state;
    char *const none[] = {(char *)"loopline"};
    char *const bad[] = {(char *)"loopline", (char *)"no-such"};
    char *const help[] = {(char *)"loopline", (char *)"--help"};
    char *const version[] = {(char *)"loopline", (char *)"--version"};
    assert_int_equal(ll_main(1, none, NULL), 2);
    assert_int_equal(ll_main(2, bad, NULL), 2);
    assert_int_equal(ll_main(2, help, NULL), 0);
    assert_int_equal(ll_main(2, version, NULL), 0);
    char *const some[] = {(char *)"loopline", (char *)"train", (char *)"--help", (char *)"lr"};
    char *const other[] = {(char *)"loopline", (char *)"help", (char *)"train", (char *)"lr"};
    char *const none_so[] = {(char *)"loopline", (char *)"train", (char *)"--help", (char *)"qq"};
    assert_int_equal(ll_main(4, some, NULL), 0);
    assert_int_equal(ll_main(4, other, NULL), 0);
    assert_int_equal(ll_main(4, none_so, NULL), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_all_forms),    cmocka_unit_test(many_words),
        cmocka_unit_test(mistakes_are_named), cmocka_unit_test(help_is_the_table),
        cmocka_unit_test(commands_are_whole), cmocka_unit_test(exit_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
