/* run_needs.c: settings that something else must ask for: what nothing would read is refused. */
#include "base/text.h"
#include "pass/target.h"
#include "run/run_int.h"

/* key is read where `of` is one of these words; or, without words, where `of` is set at all. */
static const struct {
    const char *key, *of, *words;
} needs[] = {
    {"data.samples", "data.name", "synthetic"},
    {"data.val_path", "data.format", NULL},
    {"data.fields", "data.format", "csv npy npz safetensors hdf5 netcdf"},
    {"data.field", "data.format", "jsonl"},
    {"data.token_bytes", "data.format", "tokens"},
    {"train.momentum", "train.optimizer", "momentum nesterov lars larc muon"},
    {"train.beta1", "train.optimizer", "adam adamw lamb muon schedule-free-adamw"},
    {"train.beta2", "train.optimizer", "rmsprop adam adamw lamb muon schedule-free-adamw"},
    {"train.eps", "train.optimizer", "adagrad rmsprop adam adamw lamb muon schedule-free-adamw"},
    {"train.trust", "train.optimizer", "lars larc"},
    {"train.min_lr", "train.schedule", "cosine linear"},
    {"train.step_size", "train.schedule", "step"},
    {"train.step_gamma", "train.schedule", "step"},
    {"train.milestones", "train.schedule", "step"},
    {"train.base_batch", "train.scale_rule", "linear sqrt"},
    {"train.no_decay", "train.weight_decay", NULL},
    {"train.init_map", "train.init", NULL},
    {"train.init_skip", "train.init", NULL},
    {"train.lora_on", "train.lora", NULL},
    {"train.base", "train.lora", NULL},
    {"train.prune_steps", "train.prune", NULL},
    {"train.teacher_weight", "train.teacher", NULL},
    {"train.temperature", "train.teacher", NULL},
    {"train.teacher_hidden", "train.teacher", NULL},
    {"train.hidden_weight", "train.teacher_hidden", NULL},
    {"train.offload", "train.memory", NULL},
    {"train.spike_action", "train.spike", NULL},
    {"train.patience", "train.best", NULL},
    {"parallel.save", "parallel.replicas", NULL},
    {"parallel.replica_lr", "parallel.replicas", NULL},
};

/* "lars or larc", "adam, adamw or lamb" */
static const char *listed(ll_arena *a, const char *words)
{
    ll_buf b = {.arena = a};
    for (const char *w = words; *w; w++) {
        const char *after = strchr(w, ' ');
        if (*w != ' ')
            ll_buf_add(&b, w, 1);
        else
            ll_buf_puts(&b, after && strchr(after + 1, ' ') ? ", " : " or ");
    }
    return b.text;
}

/* Is needs[i].key set, and nothing reads it? */
static bool is_idle(const ll_run *r, const ll_run *usual, size_t i, ll_arena *a)
{
    const char *key = needs[i].key, *of = needs[i].of, *it = ll_run_value(r, of, a);
    if (!strcmp(ll_run_value(r, key, a), ll_run_value(usual, key, a))) return false;
    if (needs[i].words) return !ll_lists(needs[i].words, ' ', it, strlen(it));
    return !strcmp(it, ll_run_value(usual, of, a));
}

ll_err ll_run_check_needs(const ll_run *r)
{
    LL_OWN(ll_run) usual = ll_run_new("");
    LL_OWN(ll_arena) a = ll_arena_new();
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        const char *key = needs[i].key, *of = needs[i].of, *words = needs[i].words;
        if (!is_idle(r, usual, i, a)) continue;
        const char *none = ll_run_value(usual, key, a);
        LL_WANT(r, key, words,
                "%s needs %s, which is not set; otherwise nothing reads it (default: %s=%s)", key,
                of, key, none);
        LL_WANT(r, key, !words, "%s applies only to %s %s, not %s (default: %s=%s)", key, of,
                listed(a, words), ll_run_value(r, of, a), key, none);
    }
    const ll_run_train *t = &r->train;
    LL_WANT(r, "parallel.transport",
            !strcmp(r->parallel.transport, "auto") || ll_target_find(t->machine)->device,
            "parallel.transport applies only to train.machine %s, not %s", ll_target_device()->name,
            t->machine);
    bool hidden = *t->teacher_hidden && t->hidden_weight > 0;
    LL_WANT(r, "train.teacher", !*t->teacher || t->teacher_weight > 0 || hidden,
            "train.teacher has no effect: train.teacher_weight is 0, and train.teacher_hidden %s",
            *t->teacher_hidden ? "has train.hidden_weight=0" : "is empty");
    LL_WANT(r, "train.temperature",
            !*t->teacher || t->teacher_weight > 0 ||
                !strcmp(ll_run_value(r, "train.temperature", a),
                        ll_run_value(usual, "train.temperature", a)),
            "train.temperature applies only to logits, which are not read with "
            "train.teacher_weight=0: leave it out");
    LL_WANT(r, "train.hidden_weight", !*t->teacher_hidden || hidden,
            "train.teacher_hidden has no effect with train.hidden_weight=0: leave it out");
    return LL_OK;
}

/* What a run file says of another optimizer than the one asked for is of no use, and no mistake. */
ll_err ll_run_drop_idle(ll_run *r, const char *replaced)
{
    LL_OWN(ll_run) usual = ll_run_new("");
    LL_OWN(ll_arena) a = ll_arena_new();
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        const char *key = needs[i].key;
        if (strcmp(needs[i].of, replaced) || !is_idle(r, usual, i, a)) continue;
        if (!strncmp(ll_run_origin(r, key), "--set", 5)) continue;
        ll_setting s = {.key = key, .value = ll_run_value(usual, key, a), .origin = "default"};
        TRY(ll_run_assign(r, &s));
    }
    return LL_OK;
}
