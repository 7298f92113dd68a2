/* cmd_chat.c: loopline chat. Lines of standard input are answered, as the model's family writes
 * conversations; what was said before stays in its keys and values. */
#include "base/text.h"
#include "cli/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct opts {
    ll_talk_opts talk;
    const char *system;
} opts;

static const ll_arg args[] = {
    {"RUN_FOLDER", LL_OPT(ll_talk_opts, folder), NULL,
     "of a model of tokens that was imported, or trained on conversations"},
    {"--system", LL_OPT(opts, system), "TEXT", "what it is told first"},
    LL_TALK_ARGS(LL_TALK_PRINTED)};

static ll_err put(ll_talk *t, const ll_tokens *v)
{
    return ll_generator_put(t->g, 0, v->v, v->n);
}

static ll_err turn(ll_talk *t, const ll_family *f, const char *line)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_saying s = ll_talk_saying(t, a, 0, ll_family_stop(t, f));
    ll_buf quoted = {.arena = a};
    ll_tokens asked = {.arena = a}, end = {.arena = a};
    TRY(ll_family_turn(t, f, "user", line, &asked));
    TRY(ll_family_turn(t, f, "assistant", NULL, &asked));
    TRY(put(t, &asked));
    TRY(ll_talk_say(t, &s, 1, !t->o->json));
    TRY(ll_family_end(t, f, &end));
    TRY(put(t, &end));
    if (t->prints && t->o->json) {
        ll_buf_json(&quoted, s.text.text ? s.text.text : "");
        printf("{\"text\": %s, \"tokens\": %lld}", quoted.text, (long long)s.tokens);
    }
    if (t->prints) printf("\n");
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

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_TALK t = {0};
    const ll_family *f;
    char *line = NULL;
    size_t room = 0;
    ll_err rc = LL_OK;
    TRY(ll_talk_begin(&o->talk, &t));
    TRY(ll_talk_family(&t, &f));
    CHECK(!o->talk.mesh, LL_E_ARG, "chat reads what people type: one rank (generate takes --mesh)");
    TRY(ll_talk_open(&t, 1, 2048));
    TRY(begin(&t, f, o->system));
    for (ssize_t n; rc == LL_OK && (n = getline(&line, &room, stdin)) > 0;) {
        if (line[n - 1] == '\n') line[n - 1] = '\0';
        if (*line) rc = turn(&t, f, line);
    }
    free(line);
    return rc;
}

const ll_command ll_command_chat = {"chat", "answers what is typed", args, sizeof(opts), run};
