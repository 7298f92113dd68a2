#!/bin/bash
# Every model under every strategy on up to 8 ranks, f32 and exact: a table; exit status 1 where one
# differs from serial training.
#
#     scripts/breadth.sh [PROGRAM] [OPTION...]       default: build/loopline; see loopline verify --help
program=${1:-build/loopline}
shift
exec "$program" verify --matrix "$@"
