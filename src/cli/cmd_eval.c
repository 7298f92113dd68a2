/* cmd_eval.c: loopline eval. */
#include "cli/common.h"

#include <math.h>
#include <stdio.h>

typedef struct opts {
    const char *folder, *checkpoint;
    ll_words set;
    int64_t samples;
    bool json;
} opts;

static const ll_arg args[] = {
    {"RUN_FOLDER", LL_ARG_TEXT, offsetof(opts, folder), NULL, "where loopline train put the run"},
    {"--checkpoint", LL_ARG_TEXT, offsetof(opts, checkpoint), "FILE",
     "this one, not the run's newest"},
    {"--samples", LL_ARG_INT, offsetof(opts, samples), "N",
     "the first N validation samples (0: all)"},
    {"--set|-s", LL_ARG_WORDS, offsetof(opts, set), "KEY=VALUE", "override a setting of the run"},
    {"--json", LL_ARG_FLAG, offsetof(opts, json), NULL, "one JSON object on standard output"},
    {0}};

static ll_err score(const opts *o, const ll_trained *t, ll_score *out)
{
    LL_OWN(ll_dataset) d = NULL;
    ll_evaluator *e;
    TRY(ll_run_dataset(t->run, &d));
    TRY(ll_evaluator_open(t->run, d, t->s, &e));
    ll_err rc = ll_evaluate(e, o->samples, NULL, out);
    ll_evaluator_close(e);
    return rc;
}

static ll_err show(const opts *o, const ll_trained *t, const ll_score *s)
{
    if (o->json) {
        json_t *j = json_object();
        json_object_set_new(j, "model", json_string(t->run->model.name));
        json_object_set_new(j, "step", json_integer(t->step));
        json_object_set_new(j, "val_loss", ll_cli_number(s->loss));
        json_object_set_new(j, "val_accuracy", ll_cli_number(s->accuracy));
        for (int i = 0; i < s->n_metric; i++)
            json_object_set_new(j, s->names[i], ll_cli_number(s->metrics[i]));
        json_object_set_new(j, "samples", json_integer(s->samples));
        return ll_cli_json(j);
    }
    printf("%s after step %lld: validation loss %.4f", t->run->name, (long long)t->step, s->loss);
    if (!isnan(s->accuracy)) printf(", accuracy %.2f %%", 100 * s->accuracy);
    for (int i = 0; i < s->n_metric; i++) printf(", %s %.4g", s->names[i], s->metrics[i]);
    printf(" on %lld samples\n", (long long)s->samples);
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_TRAINED t = {0};
    ll_score s;
    TRY(ll_cli_trained(o->folder, o->checkpoint, &o->set, 1, &t));
    TRY(score(o, &t, &s));
    return show(o, &t, &s);
}

const ll_command ll_command_eval = {"eval", "measures a trained model on the validation data", args,
                                    sizeof(opts), run};
