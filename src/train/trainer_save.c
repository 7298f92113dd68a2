/* trainer_save.c: what a run keeps of its state, on disk and in memory, and goes back to. */
#include "train/trainer_int.h"

#include "base/file.h"

#include <unistd.h>

/* What came of a checkpoint that was under way. One that cannot be written does not end the run:
 * the one before is still there, and the next may fare better. */
ll_err ll_trainer_saved(trainer *t, ll_err rc)
{
    if (rc == LL_E_IO) {
        t->report->unsaved++;
        LL_TELL(t, "a checkpoint could not be saved, the run continues without: %s",
                ll_error_message());
        return LL_OK;
    }
    if (rc != LL_OK || !ll_saver_idle(t->saver) || t->saved || ll_saver_step(t->saver) < 0)
        return rc;
    t->saved = true;
    return t->lead && !t->goes_on ? ll_events_alone(t->events) : LL_OK;
}

/* Begins one; last: and waits until it is written. */
ll_err ll_trainer_save(trainer *t, int64_t done, bool last)
{
    ll_trainer_doing(t, "a checkpoint");
    double began = ll_trainer_awake();
    if (t->comm) ll_comm_slow(t->comm, true);
    ll_err rc = ll_trainer_saved(t, ll_saver_finish(t->saver));
    t->report->save_waits += ll_trainer_awake() - began;
    if (rc == LL_OK && t->loose) rc = ll_loose_average(t->loose);
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_st_pair meta[LL_TRAINER_META + 1];
    char norm[17];
    int n = ll_trainer_meta(t, a, meta);
    if (t->r->train.spike > 0) meta[n++] = (ll_st_pair){"norm", ll_trainer_norm(t, norm)};
    ll_checkpoint c = {
        .step = done, .x = {.meta = meta, .n_meta = n, .comm = t->comm}, .is_first = !t->saved};
    if (rc == LL_OK) rc = ll_saver_save(t->saver, &c, (int)t->r->train.keep);
    if (rc == LL_OK && last) rc = ll_saver_finish(t->saver);
    if (t->comm) ll_comm_slow(t->comm, false);
    if (!last || rc == LL_OK) rc = ll_trainer_saved(t, rc);
    t->good.lost[LL_LOSS_SAVING] += ll_trainer_awake() - began;
    TRY(rc);
    return t->lead ? ll_events_flush(t->events) : LL_OK;
}

ll_err ll_trainer_save_last(trainer *t, int64_t done)
{
    enum { TRIES = 60 };
    for (int i = 0;; i++) {
        ll_err rc = ll_trainer_save(t, done, true);
        if (rc != LL_E_IO || !ll_is_full() || i == TRIES) return rc;
        if (i == 0)
            LL_TELL(t, "the disk is full: retrying for a minute to write the last checkpoint");
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    }
}

void ll_trainer_save_amid(trainer *t, int64_t done, const char *what_failed)
{
    LL_KEEP_ERROR;
    bool saved = ll_trainer_save_last(t, done) == LL_OK;
    LL_TELL(t, "step %ld, %s, is%s%s", done, what_failed,
            saved ? " saved" : " not saved: ", saved ? "" : ll_error_message());
}

/* A second name for the checkpoint, that outlives the first. */
ll_err ll_trainer_keep_best(const trainer *t, int64_t done)
{
    if (!t->lead) return LL_OK;
    const char *from = ll_checkpoint_path(t->arena, t->r->out, done);
    const char *to = ll_trainer_file(t, "checkpoints/best.safetensors");
    const char *temporary = ll_arena_printf(t->arena, "%s.new", to);
    unlink(temporary);
    CHECK(link(from, temporary) == 0 && rename(temporary, to) == 0, LL_E_IO,
          "%s cannot be linked to %s: %m", to, from);
    return LL_OK;
}

ll_err ll_trainer_copy(trainer *t, int64_t done)
{
    double began = ll_trainer_awake();
    ll_trainer_doing(t, "a copy of the state");
    char norm[17];
    if (t->loose) TRY(ll_ranks_agree(t->comm, LL_OK)); /* replicas may be steps apart */
    if (t->loose) TRY(ll_loose_land(t->loose));
    TRY(ll_buddy_copy(t->buddy, done, ll_trainer_norm(t, norm)));
    t->good.lost[LL_LOSS_COPYING] += ll_trainer_awake() - began;
    return LL_OK;
}

/* The parameters of the newest checkpoint, for the data that comes next. */
ll_err ll_trainer_roll_back(trainer *t, int64_t done)
{
    LL_OWN(ll_st_file) f = NULL;
    const char *damaged;
    int64_t step;
    TRY(ll_trainer_saved(t, ll_saver_finish(t->saver)));
    /* Not one that a stop made: a run that was stopped goes on as if it had not been. */
    int64_t every = t->r->train.save_every ? t->r->train.save_every : t->epoch_steps;
    TRY(ll_checkpoint_open_whole(t->comm, t->r->out, every, t->arena, &damaged, &f));
    if (damaged) ll_trainer_tell(t, damaged);
    if (!f) {
        LL_TELL(t,
                "step %ld: its gradient is too large (train.spike), and there is no "
                "checkpoint of a multiple of %ld steps to return to: its update is "
                "skipped, no more",
                done, every);
        return LL_OK;
    }
    TRY(ll_checkpoint_int(f, "step", &step));
    TRY(ll_ranks_agree(t->comm, ll_trainer_take(t, f)));
    t->report->rolled_back++;
    LL_TELL(t,
            "step %ld: its gradient is too large (train.spike): returning to the "
            "parameters of step %ld",
            done, step);
    return LL_OK;
}
