/* cmd_bench.c: loopline bench: what can be measured. */
#include "cli/bench.h"

static const ll_command *const subs[] = {&ll_bench_step_command, &ll_bench_comm_command,
                                         &ll_bench_scale_command, &ll_bench_consistency_command,
                                         NULL};

const ll_command ll_command_bench = {
    "bench", "benchmark training steps, collectives, scaling and replicas", .subs = subs};
