/* trainer_notes.c: the lines that steps and validations leave in metrics, timing and events. */
#include "train/trainer_int.h"

/* A number of the line that is begun, and of events: "loss" and "train/loss", "val_loss" and
 * "val/loss". */
static ll_err note(trainer *t, int64_t step, const char *split, const char *name, double value)
{
    char key[LL_METRIC_NAME + 8], tag[LL_METRIC_NAME + 8];
    snprintf(key, sizeof key, "%s%.*s", *split == 'v' ? "val_" : "", LL_METRIC_NAME, name);
    snprintf(tag, sizeof tag, "%s/%.*s", split, LL_METRIC_NAME, name);
    ll_metrics_num(t->metrics, key, value);
    return ll_events_scalar(t->events, step, tag, value);
}

static void note_replicas(trainer *t)
{
    if (t->r->parallel.replicas == 1) return;
    ll_metrics_int(t->timing, "replica_bytes", t->sent - t->counted);
    t->counted = t->sent;
    if (!t->loose) return;
    ll_loose_count n = ll_loose_counted(t->loose);
    ll_metrics_int(t->timing, "exchanges", n.exchanges);
}

ll_err ll_trainer_record(trainer *t, const ll_train_step *s)
{
    if (!t->lead || (!ll_trainer_log_due(t, s->step) && !t->s->skipped)) return LL_OK;
    ll_metrics_begin(t->metrics, s->step);
    TRY(note(t, s->step, "train", "loss", s->loss));
    TRY(note(t, s->step, "train", "grad_norm", s->grad_norm));
    TRY(note(t, s->step, "train", "lr", s->lr));
    if (t->s->skipped) ll_metrics_int(t->metrics, "skipped", 1);
    const ll_after *after = t->s->after;
    bool wide = after ? after->told_wide : t->s->more && t->s->now == t->s->more;
    if (wide) ll_metrics_int(t->metrics, "wide", 1);
    if (t->loose && ll_loose_met(t->loose, s->step))
        ll_metrics_num(t->metrics, "distance", ll_loose_counted(t->loose).distance);
    if (s->saturated >= 0) {
        ll_metrics_int(t->metrics, "saturated", s->saturated);
        TRY(ll_events_scalar(t->events, s->step, "train/saturated", (double)s->saturated));
    }
    const char *names[LL_MAX_METRICS + 1];
    int n_metric = ll_run_metrics(t->g, names);
    for (int i = 0; i < n_metric; i++)
        TRY(note(t, s->step, "train", names[i], ll_session_result(t->s, names[i])));
    TRY(ll_metrics_end(t->metrics));
    ll_metrics_begin(t->timing, s->step);
    ll_metrics_num(t->timing, "step_ms", 1e3 * s->seconds);
    if (t->comm) ll_metrics_num(t->timing, "waited_ms", 1e3 * s->waited);
    ll_metrics_num(t->timing, "samples_per_s", s->samples_per_s);
    ll_trainer_count_wall(t);
    ll_goodput_note(&t->good, t->timing);
    if (s->dense_bytes) {
        ll_metrics_int(t->timing, "gradient_bytes", s->gradient_bytes);
        ll_metrics_int(t->timing, "gradient_bytes_f32", s->dense_bytes);
        TRY(ll_events_scalar(t->events, s->step, "speed/gradient_bytes",
                             (double)s->gradient_bytes));
    }
    note_replicas(t);
    TRY(ll_metrics_end(t->timing));
    return ll_events_scalar(t->events, s->step, "speed/samples_per_s", s->samples_per_s);
}

ll_err ll_trainer_note_score(trainer *t, int64_t done, const ll_score *score)
{
    if (!t->lead) return LL_OK;
    ll_metrics_begin(t->metrics, done);
    TRY(note(t, done, "val", "loss", score->loss));
    if (!isnan(score->accuracy)) TRY(note(t, done, "val", "accuracy", score->accuracy));
    for (int i = 0; i < score->n_metric; i++)
        TRY(note(t, done, "val", score->names[i], score->metrics[i]));
    return ll_metrics_end(t->metrics);
}
