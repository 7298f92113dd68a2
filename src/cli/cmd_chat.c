/* cmd_chat.c: loopline chat. Lines of standard input are answered, as the model's family writes
 * conversations; what was said before stays in its keys and values. */
#include "cli/talk.h"

#include <poll.h>
#include <unistd.h>

typedef struct opts {
    ll_talk_opts talk;
    const char *system;
} opts;

static const ll_arg args[] = {{"RUN_FOLDER", LL_OPT(ll_trained_opts, folder), NULL,
                               "run folder of a chat model: imported, or trained on conversations"},
                              {"--system", LL_OPT(opts, system), "TEXT", "system prompt"},
                              LL_TALK_ARGS(LL_TRAINED_JSON)};

static ll_err put(ll_talk *t, const ll_tokens *v)
{
    return ll_talk_put(t, 0, v->v, v->n);
}

static ll_err turn(ll_talk *t, const ll_family *f, const char *line)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_saying s = ll_talk_saying(t, a, 0, ll_family_stop(t, f));
    ll_tokens asked = {.arena = a}, end = {.arena = a};
    TRY(ll_family_turn(t, f, "user", line, &asked));
    TRY(ll_family_turn(t, f, "assistant", NULL, &asked));
    TRY(put(t, &asked));
    TRY(ll_talk_say(t, &s, 1, !t->o->of.json));
    TRY(ll_family_end(t, f, &end));
    TRY(put(t, &end));
    if (t->o->of.json)
        printf("{\"text\": %s, \"tokens\": %ld}", ll_text_quoted(a, s.text.text ? s.text.text : ""),
               s.tokens);
    printf("\n");
    return LL_OK;
}

static ll_err begin(ll_talk *t, const ll_family *f, const char *system)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_tokens v = {.arena = a};
    TRY(ll_family_begin(t, f, &v));
    if (system) TRY(ll_family_turn(t, f, "system", system, &v));
    return put(t, &v);
}

/* Ranks that follow hear of this one while nobody types. */
static ll_err wait_for_input(const ll_talk *t)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    while (t->comm && poll(&in, 1, 1000) == 0) TRY(ll_generator_idle(t->g));
    return LL_OK;
}

static ll_err converse(ll_talk *t, const ll_family *f, const char *system)
{
    LL_OWN_MEMORY char *line = NULL;
    size_t room = 0;
    TRY(begin(t, f, system));
    if (t->comm) setvbuf(stdin, NULL, _IONBF, 0); /* what was read is seen by no poll */
    for (;;) {
        TRY(wait_for_input(t));
        ssize_t n = getline(&line, &room, stdin);
        if (n <= 0) return LL_OK;
        if (line[n - 1] == '\n') line[n - 1] = '\0';
        if (*line) TRY(turn(t, f, line));
    }
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_TALK t = {0};
    const ll_family *f;
    TRY(ll_talk_begin(&o->talk, &t));
    TRY(ll_talk_family(&t, &f));
    ll_err rc = ll_talk_open(&t, 1, 2048);
    if (rc == LL_OK) rc = t.prints ? converse(&t, f, o->system) : ll_talk_follow(&t);
    return ll_talk_leave(&t, rc);
}

const ll_command ll_command_chat = {"chat", "chat with a language model in the terminal", args,
                                    sizeof(opts), run};
