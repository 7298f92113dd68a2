/* args.c: words of a command line into a command's struct, by its table; help from the same. */
#define _GNU_SOURCE /* strcasestr */
#include "cli/args.h"
#include "base/text.h"
#include "run/run.h"

#include <errno.h>
#include <math.h>

typedef struct parse {
    const ll_command *command, *const *all;
    ll_arena *arena;
    void *opts;
    int argc, at;
    char *const *argv;
    uint64_t given; /* which options, by their rows */
} parse;

const char *ll_words_said(const ll_words *w, const char *key)
{
    size_t n = strlen(key);
    for (int i = w->n - 1; i >= 0; i--)
        if (!strncmp(w->v[i], key, n) && w->v[i][n] == '=') return w->v[i] + n + 1;
    return NULL;
}

static bool is_option(const ll_arg *a)
{
    return a->name[0] == '-';
}

static const char *long_name(const ll_arg *a, ll_arena *arena)
{
    return ll_arena_printf(arena, "%.*s", (int)strcspn(a->name, "|"), a->name);
}

static const ll_arg *find_option(const ll_command *c, const char *word, size_t n)
{
    const ll_arg *a = c->args;
    while (a->name && !(is_option(a) && ll_lists(a->name, '|', word, n))) a++;
    return a->name ? a : NULL;
}

/* ---- what an unknown option may have meant ---- */

typedef struct others {
    const char *word;
    ll_buf have;           /* commands that have it */
    const ll_arg *setting; /* of one of them, where it stands for a setting; NULL: of none */
    int n;
} others;

static void add_commands(others *o, const ll_command *const *c)
{
    enum { SHOWN = 4 };
    for (; *c; c++) {
        if ((*c)->subs) add_commands(o, (*c)->subs);
        const ll_arg *a = (*c)->subs ? NULL : find_option(*c, o->word, strlen(o->word));
        if (!a) continue;
        if (a->kind == LL_ARG_SETTING) o->setting = a;
        if (o->n++ < SHOWN) ll_buf_printf(&o->have, "%s%s", o->n > 1 ? ", " : "", (*c)->name);
    }
}

/* Words that other programs have for an option that this command has. */
static const char *called(const parse *p, const char *word)
{
    static const struct {
        const char *theirs, *option, *ours; /* theirs: with blanks around */
    } words[] = {
        {" --gpus --num-gpus --nproc-per-node --num-processes --nprocs --np -np ", "-n", "-n N"},
        {" --world-size --nnodes --num-nodes --ranks ", "-n", "-n N"},
        {" --steps ", "--seconds", "--seconds S"},
        {" --tp --tensor-parallel --tensor-parallel-size --tensor-model-parallel-size ", "--mesh",
         "--mesh tensor=N"},
        {" --pp --pipeline-parallel --pipeline-parallel-size --pipeline-model-parallel-size ",
         "--mesh", "--mesh pipe=N"},
        {" --dp --data-parallel --data-parallel-size ", "--mesh", "--mesh data=N"},
        {" --cp --sp --context-parallel-size ", "--mesh", "--mesh sequence=N"},
        {" --micro-batch-size ", "--set", "-s train.micro_batch=N"},
        {" --fp16 --bf16 ", "--precision", "--precision bf16"},
        {" --use-distributed-optimizer --deepspeed ", "--zero", "--zero 1, 2 or 3"},
        {" --recompute-granularity --checkpoint-activations --gradient-checkpointing ", "--mesh",
         "-s parallel.recompute=full"},
        {" --load --resume-from-checkpoint ", "--resume", "--resume"},
        {" --max-tokens --max-new-tokens ", "--tokens", "--tokens N"},
        {" --output-dir --output --save-dir --logdir --log-dir --save ", "--out", "--out DIR"}};
    char *plain = ll_arena_printf(p->arena, " %s ", word);
    for (char *c = plain; *c; c++)
        if (*c == '_') *c = '-';
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(words[i].theirs, plain) &&
            find_option(p->command, words[i].option, strlen(words[i].option)))
            return ll_arena_printf(p->arena, "; use %s", words[i].ours);
    return NULL;
}

/* "; -s parallel.exact=true sets it", "; train, verify have it", or nothing. */
static const char *elsewhere(const parse *p, const char *word)
{
    others o = {.word = word, .have = {.arena = p->arena}};
    add_commands(&o, p->all);
    const char *key = strncmp(word, "--", 2) ? NULL
                      : o.setting            ? o.setting->initial
                                             : ll_run_key_of(word + 2, p->arena);
    bool ranks = key && !strncmp(key, "parallel.", 9); /* of commands that have some */
    if (key && find_option(p->command, "--set", 5) &&
        (!ranks || find_option(p->command, "--mesh", 6)))
        return ll_arena_printf(p->arena, "; use -s %s%s", key, strchr(key, '=') ? "" : "=...");
    if (!o.n) return "";
    return ll_arena_printf(p->arena, "; %s%s", o.have.text,
                           o.n > 4   ? " and others have it"
                           : o.n > 1 ? " have it"
                                     : " has it");
}

static ll_err unknown_option(const parse *p, const char *word, size_t n)
{
    ll_near near = {.word = ll_arena_printf(p->arena, "%.*s", (int)n, word)};
    for (const ll_arg *a = p->command->args; a->name; a++)
        if (is_option(a)) ll_near_try(&near, long_name(a, p->arena));
    ll_near_try(&near, "--help");
    CHECK(strcmp(near.word, "--help"), LL_E_ARG, "--help takes no value");
    const char *here = called(p, near.word);
    FAIL(LL_E_ARG, "%s has no option %s%s%s; see loopline %s --help", p->command->name, near.word,
         here ? here : ll_near_hint(&near), here ? "" : elsewhere(p, near.word), p->command->name);
}

/* Digits; or 1e10, 1.5G, 10B, where that is whole. */
static bool read_count(const char *text, int64_t *out)
{
    static const char units[] = "kMGTB";
    static const double sizes[] = {1e3, 1e6, 1e9, 1e12, 1e9};
    size_t n = strspn(text, "0123456789");
    char *end;
    errno = 0;
    *out = strtol(text, &end, 10);
    if (n && !text[n]) return errno == 0;
    double v = n ? strtod(text, &end) : 0;
    const char *unit = n && *end ? strchr(units, *end) : NULL;
    if (unit) v *= sizes[unit - units], end++;
    *out = v < 9e15 ? (int64_t)v : 0;
    return n && strspn(text, "0123456789.eE+") + (unit != NULL) == strlen(text) && !*end &&
           v < 9e15 && v == floor(v);
}

/* What is written says by its name what it is: no SVG goes into x.png. */
static ll_err check_ending(const ll_arg *a, const char *name, const char *text)
{
    static const char written[] = " .svg .html .safetensors .gguf .onnx .npy ";
    const char *form = a->value ? strchr(a->value, '.') : NULL, *slash = strrchr(text, '/');
    bool named = a->value && (!strncmp(a->value, "FILE", 4) || !strcmp(a->value, "DIR"));
    CHECK(*text || !named, LL_E_ARG, "%s is '', expected a name: %s", name, a->value);
    const char *ending = strrchr(slash ? slash : text, '.');
    bool checked = form && strstr(written, form) && ending;
    CHECK(!checked || !strcmp(ending, form), LL_E_ARG,
          "%s is '%s', expected a name that ends in %s", name, text, form);
    return LL_OK;
}

/* name: as it was said. */
static ll_err store(const parse *p, const ll_arg *a, const char *name, const char *text)
{
    void *to = (char *)p->opts + a->offset;
    char *end = NULL;
    errno = 0;
    switch (a->kind) {
    case LL_ARG_FLAG: *(bool *)to = true; return LL_OK;
    case LL_ARG_TEXT: *(const char **)to = text; return check_ending(a, name, text);
    case LL_ARG_INT:
    case LL_ARG_COUNT: {
        int64_t v = 0, least = a->kind == LL_ARG_COUNT;
        bool unit = *text >= '0' && *text <= '9' && text[strspn(text, "0123456789")];
        CHECK(read_count(text, &v) && v >= least && (!a->most || v <= a->most), LL_E_ARG,
              "%s is '%s', expected a whole number, %d or more (at most %s%s", name, text,
              (int)least, a->most ? ll_arena_printf(p->arena, "%ld", a->most) : "9e15",
              unit ? "), such as 4000, 1e10 or 10G" : ")");
        *(int64_t *)to = v;
        return LL_OK;
    }
    case LL_ARG_NUMBER:
    case LL_ARG_AMOUNT: {
        double v = strtod(text, &end);
        bool above = a->kind == LL_ARG_AMOUNT;
        CHECK(*text && !*end && isfinite(v) && (v > 0 || !above), LL_E_ARG,
              "%s is '%s', expected a number%s", name, text, above ? " above 0" : "");
        *(double *)to = v;
        return LL_OK;
    }
    case LL_ARG_SETTING:
    case LL_ARG_WORDS: {
        ll_words *w = (ll_words *)to;
        if (a->kind == LL_ARG_SETTING)
            text = a->value ? ll_arena_printf(p->arena, "%s=%s", a->initial, text) : a->initial;
        LL_PUSH(p->arena, w->v, w->n, w->capacity, text);
        return LL_OK;
    }
    }
    return LL_OK;
}

/* The option at argv[at], and its value. */
static ll_err take_option(parse *p)
{
    const char *word = p->argv[p->at++];
    size_t n = strcspn(word, "=");
    const ll_arg *a = find_option(p->command, word, n);
    if (!a) return unknown_option(p, word, n);
    const char *name = ll_arena_printf(p->arena, "%.*s", (int)n, word);
    uint64_t bit = 1ull << (a - p->command->args) % 64;
    /* of settings and counts the last is meant, as with --set: advice may be put behind a line */
    CHECK(!(p->given & bit) ||
              (a->kind != LL_ARG_TEXT && a->kind != LL_ARG_NUMBER && a->kind != LL_ARG_AMOUNT),
          LL_E_ARG, "%s is given twice: give it once", name);
    p->given |= bit;
    if (!a->value) {
        CHECK(!word[n], LL_E_ARG, "%s takes no value, but is given '%s'", name, word + n + 1);
        return store(p, a, name, NULL);
    }
    if (word[n]) return store(p, a, name, word + n + 1);
    CHECK(p->at < p->argc, LL_E_ARG, "%s needs a value: %s %s", name, name, a->value);
    return store(p, a, name, p->argv[p->at++]);
}

static ll_err take_positional(parse *p, const ll_arg **next)
{
    while ((*next)->name && is_option(*next)) (*next)++;
    const char *word = p->argv[p->at++];
    CHECK((*next)->name, LL_E_ARG, "unexpected argument '%s'; see loopline %s --help", word,
          p->command->name);
    TRY(store(p, *next, (*next)->name, word));
    if ((*next)->kind != LL_ARG_WORDS) (*next)++;
    return LL_OK;
}

/* What was left out: defaults, and the positional words there must be. */
static ll_err check_rest(const parse *p, const ll_arg *next)
{
    for (; next->name; next++) {
        bool many = next->kind == LL_ARG_WORDS;
        bool given = many && ((const ll_words *)((char *)p->opts + next->offset))->n > 0;
        if (is_option(next) || next->name[0] == '[' || given) continue;
        FAIL(LL_E_ARG, "%s needs %s: %s", p->command->name, next->name, next->help);
    }
    return LL_OK;
}

ll_err ll_args_parse(const ll_command *c, const ll_command *const *all, int argc, char *const *argv,
                     ll_arena *arena, void *opts, bool *help)
{
    parse p = {.command = c, .all = all, .arena = arena, .opts = opts, .argc = argc, .argv = argv};
    *help = false;
    memset(opts, 0, c->opts_bytes);
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) *help = true;
    if (*help) return LL_OK;
    for (const ll_arg *a = c->args; a->name; a++)
        if (a->initial && a->kind != LL_ARG_SETTING) TRY(store(&p, a, a->name, a->initial));
    const ll_arg *next = c->args;
    bool only_words = false; /* after "--" */
    while (p.at < argc) {
        const char *word = argv[p.at];
        if (!only_words && !strcmp(word, "--")) {
            only_words = true;
            p.at++;
        } else if (!only_words && word[0] == '-' && word[1]) {
            TRY(take_option(&p));
        } else {
            TRY(take_positional(&p, &next));
        }
    }
    return check_rest(&p, next);
}

/* ---- help ---- */

enum { COLUMN = 26 };

static void help_line(ll_buf *b, const char *left, const ll_arg *a, int width)
{
    const char *text = a->help;
    if (a->initial)
        text = ll_arena_printf(b->arena, "%s [%s%s]", text,
                               a->kind == LL_ARG_SETTING ? "sets " : "default: ", a->initial);
    ll_buf_row(b, left, COLUMN, width, text);
}

static void help_option(ll_buf *b, const ll_arg *a, int width)
{
    size_t n = strcspn(a->name, "|");
    const char *shorter = a->name[n] ? a->name + n + 1 : "";
    const char *left =
        ll_arena_printf(b->arena, "%s%s%.*s%s%s", shorter, *shorter ? ", " : "", (int)n, a->name,
                        a->value ? " " : "", a->value ? a->value : "");
    help_line(b, left, a, width);
}

char *ll_args_help(const ll_command *c, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    int width = ll_text_width();
    ll_buf_printf(&b, "usage: loopline %s", c->name);
    for (const ll_arg *a = c->args; a->name; a++)
        if (!is_option(a)) ll_buf_printf(&b, " %s", a->name);
    ll_buf_puts(&b, " [options]\n\n");
    ll_buf_wrapped(&b, width, ll_arena_printf(arena, "%c%s.\n\n", c->help[0] & ~0x20, c->help + 1));
    for (const ll_arg *a = c->args; a->name; a++)
        if (!is_option(a)) help_line(&b, a->name, a, width);
    ll_buf_puts(&b, c->args->name && !is_option(c->args) ? "\nOptions:\n" : "Options:\n");
    for (const ll_arg *a = c->args; a->name; a++)
        if (is_option(a) && !a->hidden) help_option(&b, a, width);
    help_line(&b, "-h, --help", &(ll_arg){.help = "show this help"}, width);
    if (!c->more) return b.text;
    ll_buf_puts(&b, "\n");
    ll_buf_wrapped(&b, width, c->more(arena));
    return b.text;
}

char *ll_args_help_on(const ll_command *c, const char *topic, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    int width = ll_text_width();
    const char *word = topic + strspn(topic, "-");
    bool settings = false;
    for (const ll_arg *a = c->args; a->name && *word; a++) {
        settings |= !strncmp(a->name, "--set", strcspn(a->name, "|"));
        if (is_option(a) && !a->hidden && strcasestr(a->name, word)) help_option(&b, a, width);
    }
    const char *of = settings ? ll_run_help(word, width, arena) : NULL;
    if (of) ll_buf_printf(&b, "%s%s", b.text ? "\n" : "", of);
    return b.text;
}
