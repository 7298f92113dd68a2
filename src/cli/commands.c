/* commands.c: every command, from the files cmd_*.c that the build found, and the way from a
 * command line to one of them. */
#include "cli/args.h"
#include "base/near.h"
#include "cli/launch.h"
#include "comm/job.h"
#include "model/model.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define COMMAND(x) extern const ll_command ll_command_##x;
#include "command_list.inc"
#undef COMMAND

const ll_command *const *ll_commands(void)
{
    static const ll_command *const all[] = {
#define COMMAND(x) &ll_command_##x,
#include "command_list.inc"
#undef COMMAND
        NULL};
    return all;
}

static void usage(FILE *f)
{
    fprintf(
        f, "usage: loopline COMMAND [arguments]\n\n"
           "Parallel deep-learning training: a model is written once, as serial code, and compiled "
           "for any mesh of ranks.\n\n");
    for (const ll_command *const *c = ll_commands(); *c; c++)
        fprintf(f, "  %-10s %s\n", (*c)->name, (*c)->help);
    fprintf(f, "\nEvery command takes --help; COMMAND --help WORD shows only its options and "
               "settings with WORD in their name,\nas in: loopline train --help lr. loopline "
               "--help WORD says which commands have such ones.\nloopline --version prints the "
               "version.\n");
}

/* Commands with options or settings that have the word in their name; false: there are none. */
static bool tell_where(const char *word, const ll_command *const *all, bool told, ll_arena *arena)
{
    for (const ll_command *const *c = all; *c; c++) {
        if ((*c)->subs) {
            told = tell_where(word, (*c)->subs, told, arena);
            continue;
        }
        if (!ll_args_help_on(*c, word, arena)) continue;
        if (!told) printf("Options or settings with '%s' in their name are shown by:\n", word);
        printf("  loopline %s --help %s\n", (*c)->name, word);
        told = true;
    }
    return told;
}

/* NULL: there is none. */
static const ll_command *find(ll_near *name)
{
    for (const ll_command *const *c = ll_commands(); *c; c++)
        if (ll_near_try(name, (*c)->name)) return *c;
    return NULL;
}

/* Is word the second word of this command's name? */
static bool is_second(const ll_command *c, const char *word)
{
    const char *second = strchr(c->name, ' ');
    return second && !strcmp(second + 1, word);
}

static bool is_help(const char *word)
{
    return !strcmp(word, "--help") || !strcmp(word, "-h");
}

/* Of commands of two words: the second is not one, or help is asked for. */
static int no_second(const ll_command *c, const char *word)
{
    ll_near near = {.word = word};
    bool help = is_help(word);
    if (help) printf("usage: loopline %s WHAT [options]\n\n", c->name);
    for (const ll_command *const *s = c->subs; *s; s++) {
        ll_near_try(&near, strchr((*s)->name, ' ') + 1);
        if (help) printf("  loopline %-18s %s\n", (*s)->name, (*s)->help);
    }
    if (help)
        printf("\nEach takes --help, and --json for one JSON value on standard output.\n");
    else
        fprintf(stderr, "loopline: %s needs WHAT, one of:%s%s; see loopline %s --help\n", c->name,
                near.known, ll_near_hint(&near), c->name);
    return help ? 0 : 2;
}

static int good_status;

void ll_cli_exit_with(int status)
{
    good_status = status;
}

/* All of it, or of a word behind --help what it names. */
static int print_help(const ll_command *c, int argc, char *const *argv, ll_arena *arena)
{
    int at = 0;
    while (!is_help(argv[at])) at++;
    const char *topic = at + 1 < argc && argv[at + 1][0] != '-' ? argv[at + 1] : NULL;
    const char *text = topic ? ll_args_help_on(c, topic, arena) : ll_args_help(c, arena);
    if (text) {
        fputs(text, stdout);
        return 0;
    }
    fprintf(stderr,
            "loopline: %s has no option or setting with '%s' in its name; see loopline "
            "%s --help (sizes of models: loopline models)\n",
            c->name, topic, c->name);
    return 2;
}

static int run(const ll_command *c, int argc, char *const *argv, ll_arena *arena)
{
    for (const ll_command *const *s = c->subs; s && *s && argc > 0; s++)
        if (is_second(*s, argv[0])) return run(*s, argc - 1, argv + 1, arena);
    if (c->subs && argc > 1 && is_help(argv[0]) && argv[1][0] != '-') {
        char *const words[] = {argv[1], argv[0]};
        for (const ll_command *const *s = c->subs; *s; s++)
            if (is_second(*s, argv[1])) return run(c, 2, words, arena);
        if (tell_where(argv[1], c->subs, false, arena)) return 0;
        fprintf(stderr,
                "loopline: %s has no command, option or setting '%s'; see loopline %s "
                "--help\n",
                c->name, argv[1], c->name);
        return 2;
    }
    if (c->subs) return no_second(c, argc > 0 ? argv[0] : "");
    void *opts = ll_arena_alloc(arena, c->opts_bytes);
    bool help;
    if (ll_args_parse(c, ll_commands(), argc, argv, arena, opts, &help) != LL_OK)
        return ll_cli_fail("loopline", ll_error_message(), 2);
    if (help) return print_help(c, argc, argv, arena);
    if (c->run(opts) == LL_OK) return good_status;
    return ll_cli_fail(ll_cli_name(), ll_error_text(), ll_job_status(1));
}

/* A standard stream that is closed would lend its number to the next file opened, which would then
 * get what is printed. */
static void fill_closed_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd) return;
}

static int dispatch(int argc, char *const *argv)
{
    const char *first = argc > 1 ? argv[1] : "";
    if (!strcmp(first, "--version")) {
        printf("loopline %s\n", ll_version());
        return 0;
    }
    bool asked = is_help(first) || !strcmp(first, "help");
    if (argc < 2 || (asked && argc == 2)) {
        usage(asked ? stdout : stderr);
        return asked ? 0 : 2;
    }
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_near name = {.word = asked ? argv[2] : first};
    const ll_command *c = find(&name);
    if (!c && asked && tell_where(argv[2], ll_commands(), false, arena)) return 0;
    if (!c) {
        fprintf(stderr, "loopline: unknown command '%s'%s; see loopline --help\n", name.word,
                ll_near_hint(&name));
        return 2;
    }
    if (!asked) return run(c, argc - 2, argv + 2, arena);
    char *const words[] = {(char *)"--help", argc > 3 ? argv[3] : NULL, (char *)"--help"};
    if (c->subs && argc > 3) return run(c, 2, words + 1, arena); /* help bench step */
    return run(c, argc > 3 ? 2 : 1, words, arena);
}

/* The exit status: 0 (or LL_EXIT_STOPPED), 1 where the command failed, 2 of a wrong call. */
int ll_main(int argc, char *const *argv, const ll_model *models)
{
    fill_closed_streams();
    ll_models_add(models);
    if (models && argc > 0) ll_cli_call_it(argv[0]);
    ll_cli_launch_args(argc, argv);
    return ll_cli_printed(true, dispatch(argc, argv));
}
