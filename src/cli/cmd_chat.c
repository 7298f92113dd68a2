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
    {"RUN_FOLDER", LL_ARG_TEXT, offsetof(ll_talk_opts, folder), NULL,
     "of a model of tokens that was imported, or trained on conversations"},
    {"--system", LL_ARG_TEXT, offsetof(opts, system), "TEXT", "what it is told first"},
    LL_TALK_ARGS("400")};

/* How families write who says what; mark: what their templates have and others have not. */
typedef struct family {
    const char *mark, *begin, *role, *after_role, *end, *stop;
} family;
static const family families[] = {
    {"<|im_start|>", "", "<|im_start|>", "\n", "<|im_end|>\n", "<|im_end|>"},
    {"<|start_header_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n",
     "<|eot_id|>", "<|eot_id|>"},
};

static ll_err family_of(const ll_talk *t, const family **out)
{
    const char *template = t->t ? ll_tokenizer_template(t->t) : NULL;
    CHECK(template, LL_E_ARG,
          "%s: its tokenizer says nothing of conversations (chat_template): use generate",
          t->o->folder);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strstr(template, families[i].mark)) {
            *out = &families[i];
            return LL_OK;
        }
    FAIL(LL_E_ARG,
         "%s: conversations are not written with <|im_start|> or <|start_header_id|>, "
         "the families that are known: use generate",
         t->o->folder);
}

/* Special tokens are those of the template alone: what people say is text. */
static ll_err put(ll_talk *t, const char *text, bool special)
{
    LL_OWN_MEMORY int32_t *v = NULL;
    int64_t n;
    TRY(ll_talk_encode(t, text, special, &v, &n));
    return ll_generator_put(t->g, 0, v, n);
}

/* NULL text: its words are the model's to find. */
static ll_err put_turn(ll_talk *t, const family *f, const char *who, const char *text)
{
    TRY(put(t, f->role, true));
    TRY(put(t, who, false));
    TRY(put(t, f->after_role, true));
    if (!text) return LL_OK;
    TRY(put(t, text, false));
    return put(t, f->end, true);
}

static ll_err turn(ll_talk *t, const family *f, const char *line)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_saying s = {.text.arena = a};
    ll_buf quoted = {.arena = a};
    TRY(put_turn(t, f, "user", line));
    TRY(put_turn(t, f, "assistant", NULL));
    TRY(ll_talk_say(t, &s, 1, ll_tokenizer_find(t->t, f->stop), !t->o->json));
    TRY(put(t, f->end, true));
    if (t->prints && t->o->json) {
        ll_buf_json(&quoted, s.text.text ? s.text.text : "");
        printf("{\"text\": %s, \"tokens\": %lld}", quoted.text, (long long)s.tokens);
    }
    if (t->prints) printf("\n");
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_TALK t = {0};
    const family *f;
    char *line = NULL;
    size_t room = 0;
    ll_err rc = LL_OK;
    TRY(ll_talk_begin(&o->talk, &t));
    TRY(family_of(&t, &f));
    CHECK(!o->talk.mesh, LL_E_ARG, "chat reads what people type: one rank (generate takes --mesh)");
    TRY(ll_talk_open(&t, 1, 2048));
    if (*f->begin) TRY(put(&t, f->begin, true));
    if (o->system) TRY(put_turn(&t, f, "system", o->system));
    for (ssize_t n; rc == LL_OK && (n = getline(&line, &room, stdin)) > 0;) {
        if (line[n - 1] == '\n') line[n - 1] = '\0';
        if (*line) rc = turn(&t, f, line);
    }
    free(line);
    return rc;
}

const ll_command ll_command_chat = {"chat", "answers what is typed", args, sizeof(opts), run};
