/* trainer_validate.c: validation, the best figure so far, and what a resumed run owes. */
#include "train/trainer_int.h"

/* The figure that train.best names, the smaller the better; NaN: there is none. */
static double figure(const trainer *t, double (*value)(const void *from, const char *name),
                     const void *from)
{
    const char *best = t->r->train.best, *name = best;
    bool largest = !strcmp(best, "accuracy") || !strncmp(best, "max:", 4);
    if (strchr(best, ':')) name = strchr(best, ':') + 1;
    double v = *best ? value(from, name) : NAN;
    return largest ? -v : v;
}

static double of_score(const void *from, const char *name)
{
    const ll_score *s = (const ll_score *)from;
    if (!strcmp(name, "loss")) return s->loss;
    if (!strcmp(name, "accuracy")) return s->accuracy;
    for (int i = 0; i < s->n_metric; i++)
        if (!strcmp(s->names[i], name)) return s->metrics[i];
    return NAN;
}

static double of_line(const void *from, const char *name)
{
    char key[LL_METRIC_NAME + 8];
    snprintf(key, sizeof key, "val_%s", name);
    return ll_json_number((const json_t *)from, key);
}

static void judge_figure(trainer *t, double v)
{
    t->better = v < t->best;
    t->since = t->better ? 0 : t->since + 1;
    if (t->better) t->best = v;
}

static ll_err judge(trainer *t, const ll_score *s)
{
    if (!*t->r->train.best) return LL_OK;
    double v = figure(t, of_score, s);
    CHECK(!isnan(v), LL_E_CONFIG, "train.best is %s, which validation of model %s does not report",
          t->r->train.best, t->r->model.name);
    judge_figure(t, v);
    return LL_OK;
}

/* Do all ranks know of what has just failed? Then they can still act together. */
static bool is_shared(const trainer *t)
{
    ll_failure how = ll_job_failure();
    return !t->comm || how == LL_FAILURE_TELL || how == LL_FAILURE_HEARD;
}

/* note: not where the metrics have it already. */
ll_err ll_trainer_validate(trainer *t, int64_t done, bool note, const ll_stop *stop)
{
    ll_score score;
    double began = ll_trainer_awake();
    ll_trainer_doing(t, "validation");
    if (t->loose) TRY(ll_loose_swap(t->loose, true));
    TRY(ll_session_swap_averages(t->s));
    /* Replicas have different numbers of batches: they do not ask each other before each. */
    ll_err rc = ll_evaluate(t->eval, t->r->train.eval_samples, t->loose ? NULL : stop, &score);
    if (rc == LL_E_NUMERIC && !t->loose) rc = ll_ranks_agree(t->comm, rc); /* it is so on all */
    bool whole = rc != LL_OK && !t->loose && is_shared(t);
    if (rc == LL_OK || whole) TRY(ll_session_swap_averages(t->s));
    if (rc == LL_OK && t->loose) rc = ll_loose_swap(t->loose, false);
    t->good.lost[LL_LOSS_VALIDATION] += ll_trainer_awake() - began;
    if (whole && (done > t->first || t->in_memory))
        ll_trainer_save_amid(t, done, "whose validation failed");
    TRY(rc);
    t->owed = score.samples == 0;
    if (t->owed) return LL_OK;
    t->report->val = score;
    TRY(judge(t, &score));
    if (note) TRY(ll_trainer_note_score(t, done, &score));
    if (t->lead && t->opts->watch.evaluated)
        t->opts->watch.evaluated(t->opts->watch.context, done, &score);
    return LL_OK;
}

/* Do the metrics have the validation of the step resumed after? */
static void see_score(void *context, int64_t step, const json_t *line)
{
    trainer *t = (trainer *)context;
    t->scored |= step == t->first && json_object_get(line, "val_loss");
    double v = figure(t, of_line, line);
    if (!isnan(v) && !t->revalidates) judge_figure(t, v);
}

/* The validation of the step resumed after, where its run was stopped before it had one; and of a
 * run that was over, for the report. */
ll_err ll_trainer_catch_up(trainer *t, const ll_stop *stop)
{
    if (t->first == 0) return LL_OK;
    const char *path = ll_trainer_file(t, "metrics.jsonl");
    size_t kept;
    ll_err rc = t->lead ? ll_metrics_lines(path, t->first, see_score, t, &kept) : LL_OK;
    TRY(ll_ranks_agree(t->comm, rc));
    TRY(ll_ranks_share(t->comm, &t->scored, sizeof t->scored));
    TRY(ll_ranks_share(t->comm, &t->best, sizeof t->best));
    TRY(ll_ranks_share(t->comm, &t->since, sizeof t->since));
    t->better = false;
    if (!ll_trainer_validation_due(t, t->first) || (t->scored && t->first < t->steps)) return LL_OK;
    int64_t since = t->since; /* the same one again is no new one */
    bool scored = t->scored;
    TRY(ll_trainer_validate(t, t->first, !scored, stop));
    if (scored) t->since = since;
    return LL_OK;
}
