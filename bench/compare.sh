#!/usr/bin/env bash
# compare.sh: training steps of Loopline beside PyTorch's, on this machine, in one run.
# usage: bench/compare.sh [THREADS]     PYTHON=python3 with torch installed, e.g.
#   python3 -m venv .venv && .venv/bin/pip install torch && PYTHON=.venv/bin/python bench/compare.sh
# Each model is timed in turn, twice: PyTorch with oneDNN, without it, Loopline; the table has the best of each.
# BF16=1 adds a row in bf16 for the GPT.
set -euo pipefail
cd "$(dirname "$0")/.."
threads=${1:-$(nproc)}
python=${PYTHON:-python3}
"$python" -c 'import torch' 2>/dev/null || { echo "compare.sh: $python has no torch: set PYTHON" >&2; exit 1; }
ours() { # model, precision, arguments
    local name=$1 precision=$2
    shift 2
    build/loopline bench step "$name" --threads "$threads" --precision "$precision" --seconds 3 --json "$@" |
        sed -n 's/.*"step_ms": *\([0-9.]*\).*/\1/p'
}
least() { sort -g | head -n 1; }
row() { # name, samples in a step, unit, steps, precision, arguments of ours
    local name=$1 n=$2 unit=$3 steps=$4 precision=$5 t=() o=()
    shift 5
    for _ in 1 2; do
        for d in 0 1; do
            t+=("$("$python" bench/torch_step.py "$name" --threads "$threads" --steps "$steps" --onednn $d --precision "$precision")")
        done
        o+=("$(ours "$name" "$precision" "$@")")
    done
    awk -v name="$name $precision" -v n="$n" -v unit="$unit" -v t="$(printf '%s\n' "${t[@]}" | least)" \
        -v o="$(printf '%s\n' "${o[@]}" | least)" \
        'BEGIN { printf "%-14s %10.1f ms %10.0f %s/s %10.1f ms %10.0f %s/s %8.2fx\n", name, t, 1e3*n/t, unit, o, 1e3*n/o, unit, t/o }'
}
gpt=(--set model.layers=4 --set model.width=256 --set model.heads=4 --set model.seq=256 --set model.vocab=256 --batch 8)
printf '%d threads; %s\n%-14s %31s %33s\n' "$threads" "$("$python" -c 'import torch; print("PyTorch", torch.__version__)')" "" "PyTorch" "Loopline"
row lenet5 64 img 100 f32 --batch 64
row gpt 2048 tok 4 f32 "${gpt[@]}"
row resnet18 32 img 3 f32 --set model.image=32 --set model.classes=10 --batch 32
if [ -n "${BF16:-}" ]; then row gpt 2048 tok 4 bf16 "${gpt[@]}"; fi
