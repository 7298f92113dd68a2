/* Machine cuda from the command line: where there is a GPU, losses are the cpu's, and the same
 * where values are laid aside, validated and resumed; where there is none, or CUDA is not built,
 * the program says so and what to use instead. */
#include "cli/program.h"

#include <math.h>

static const char small[] = "model: {name: lenet5}\n"
                            "data: {name: synthetic, samples: 200}\n"
                            "train: {batch: 12, micro_batch: 6, steps: 9, eval_every: 4, clip: 1,\n"
                            "  log_every: 1, threads: 1}\n";

static void losses_are_the_cpus(void **state)
{
    write_text(tmpdir_path(state, "a.yaml"), small);
    outcome there = program_run(*state, NULL, "train a.yaml --machine cuda --out x");
    int status = there.status;
    if (status && !strstr(there.err, "use machine cpu")) fail_msg("no remedy in '%s'", there.err);
    outcome_free(&there);
    if (status) return;
    double loss[2][2];
    for (int k = 0; k < 2; k++) {
        outcome o = succeeds(*state, k ? "train a.yaml --json --out g --machine cuda"
                                       : "train a.yaml --json --out c --machine cpu");
        json_t *j = json_of(o.out);
        loss[k][0] = json_num(j, "train_loss");
        loss[k][1] = json_num(j, "val_loss");
        json_decref(j);
        outcome_free(&o);
    }
    for (int i = 0; i < 2; i++)
        if (fabs(loss[0][i] - loss[1][i]) > 1e-4 * loss[0][i])
            fail_msg("loss %d is %.7f on the cpu, %.7f on the GPU", i, loss[0][i], loss[1][i]);
}

/* Trains to step 9, the last ones resumed; returns the loss of validation. */
static double train_in_two(char *folder, const char *name, const char *settings, double *aside)
{
    char line[512];
    double loss = 0;
    for (int k = 0; k < 2; k++) {
        snprintf(line, sizeof line, "train b.yaml --json --machine cuda --out %s %s %s", name,
                 settings, k ? "--resume" : "-s train.steps=5");
        json_t *j = prints_json(folder, line);
        loss = json_num(j, "val_loss");
        *aside = json_num(j, "aside_bytes");
        json_decref(j);
    }
    return loss;
}

static void aside_is_the_same(void **state)
{
    char text[sizeof small + 64], settings[128];
    double aside[2], loss[2];
    snprintf(text, sizeof text, "model: {name: resnet18, image: 16, channels: 1}\n%s",
             strchr(small, '\n') + 1);
    write_text(tmpdir_path(state, "b.yaml"), text);
    outcome o = program_run(*state, NULL, "bench step b.yaml --json --machine cuda --seconds 0.1");
    bool none = o.status;
    outcome_free(&o);
    if (none) skip(); /* the test above says why */
    json_t *j = prints_json(*state, "inspect b.yaml --json -s train.machine=cuda");
    double scratch = json_num(j, "scratch_bytes"), rest = json_num(j, "peak_bytes") - scratch;
    json_decref(j);
    loss[0] = train_in_two(*state, "plain", "", &aside[0]);
    snprintf(settings, sizeof settings, "-s train.offload=host -s train.memory=%.0fB",
             scratch + 0.85 * rest);
    loss[1] = train_in_two(*state, "aside", settings, &aside[1]);
    print_message("%.0f bytes aside, losses %.9f %.9f\n", aside[1], loss[0], loss[1]);
    assert_true(aside[0] == 0 && aside[1] > 0);
    assert_true(loss[0] == loss[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(losses_are_the_cpus, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(aside_is_the_same, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests_name("cli_machine", tests, NULL, NULL);
}
