/* Machine cuda from the command line: where there is a GPU, losses are the cpu's; where there is
 * none, or CUDA is not built, the program says so and what to use instead. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(losses_are_the_cpus, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests_name("cli_machine", tests, NULL, NULL);
}
