/* train_view.h: what is shown of a run while it trains, and of how it ended. */
#pragma once
#include "train/progress.h"
#include "train/recovery.h"
#include "train/trainer.h"

typedef struct ll_train_view {
    const ll_comm *c;
    bool plain; /* lines in place of a bar */
    ll_progress *p;
    double peak; /* GFLOP/s of a matrix product here, or those that a device's maker states; 0: not
                    known */
    size_t bytes;
    const char *unit;
    bool tokens, device, first; /* first: no step is done yet */
    bool held_up;               /* the product was, by other processes, whenever it was timed */
} ll_train_view;

ll_train_events ll_train_view_watch(ll_train_view *v);
/* job: that this is a start of; NULL: it is started once. */
void ll_train_view_end(const ll_run *r, const ll_train_report *t, const ll_start *job);
ll_err ll_train_view_json(const ll_run *r, const ll_train_report *t, const ll_start *job);
