/* inspect_conv.h: loopline inspect --conv: how convolutions would be made. */
#pragma once
#include "program/program.h"

/* Measures what the graph's convolutions can be made by (exec/choose.h), and prints what train.conv
 * fast takes under the options' limit, and what other limits cost. */
ll_err ll_inspect_conv(const ll_graph *g, const ll_lower_opts *opts);
