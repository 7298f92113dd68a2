#!/usr/bin/env bash
# layouts18.sh [--exact] [LOOPLINE]: one small GPT, one seed, 20 steps, trained under 18 layouts. A
# line for each: losses, and how far any step's loss is from one process's. Exit status 1 where that
# is more than 1e-5 of it; with --exact, where a bit of the loss, or of the checkpoint, differs.
set -euo pipefail
exact=false
[ "${1:-}" = --exact ] && exact=true && shift
loopline=$(realpath "${1:-$(dirname "$0")/../build/loopline}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
steps=20

cat >"$folder/run.yaml" <<EOF
model: {name: gpt, layers: 4, width: 32, heads: 4, seq: 32, vocab: 61}
data: {name: synthetic, samples: 500}
train: {batch: 16, micro_batch: 4, steps: $steps, optimizer: adamw, lr: 3e-3, clip: 1, eps: 1e-6, threads: 1, seed: 7, log_every: 1}
parallel: {exact: $exact}
EOF

# Name, ranks, settings.
layouts=(
    "serial|1|"
    "data=2|2|"
    "data=4|4|"
    "tensor=2|2|"
    "tensor=4|4|"
    "sequence=2|2|"
    "pipe=2|2|"
    "pipe=4|4|"
    "data=2,tensor=2|4|"
    "data=2,pipe=2|4|"
    "tensor=2,pipe=2|4|"
    "data=2,tensor=2,pipe=2|8|"
    "data=4|4|parallel.zero=1"
    "data=4|4|parallel.zero=2"
    "data=4|4|parallel.zero=3"
    "data=2,pipe=2|4|parallel.zero=3"
    "pipe=2|2|parallel.schedule=interleaved"
    "pipe=2|2|parallel.schedule=zb-h1"
)

losses() { # OUT: "step loss" of each step
    grep -o '"step":[ ]*[0-9]*\|"loss":[ ]*[-+.0-9a-z]*' "$1/metrics.jsonl" |
        awk -F: '/step/ { s = $2 } /loss/ { print s + 0, $2 + 0 == $2 ? $2 : "nan" }'
}

state() { # OUT: the sum of the last checkpoint's bytes
    sha256sum <"$(ls "$1"/checkpoints/step-*.safetensors | tail -1)" | cut -c1-12
}

train() { # OUT RANKS MESH SETTINGS
    local set=() word
    for word in $4; do set+=(-s "$word"); done
    [ "$3" = serial ] || set+=(-n "$2" --mesh "$3")
    "$loopline" train "$folder/run.yaml" -o "$1" --plain "${set[@]}" >"$1.log" 2>&1 || {
        cat "$1.log" >&2
        exit 1
    }
}

bad=0 n=0
printf '%-24s %-28s %11s %11s  %s\n' layout '' "step 1" "step $steps" "largest difference of a step's loss"
for line in "${layouts[@]}"; do
    IFS='|' read -r mesh ranks settings <<<"$line"
    out=$folder/$n
    n=$((n + 1))
    train "$out" "$ranks" "$mesh" "$settings"
    losses "$out" >"$out.losses"
    [ -n "${first:-}" ] || first=$out
    result=$(paste -d' ' "$first.losses" "$out.losses" | awk -v steps=$steps '
        { d = $4 - $2; d = (d < 0 ? -d : d) / $2; if (d > worst) worst = d; bad += $1 != $3 || d != d
          if (NR == 1) a = $4; b = $4; n++ }
        END { printf "%11.7f %11.7f  %.1e", a, b, n == steps && !bad ? worst : 1 }')
    verdict=$(awk -v d="${result##* }" -v e=$exact 'BEGIN { print d <= (e == "true" ? 0 : 1e-5) ? "" : "  WRONG" }')
    if $exact && [ "$(state "$out")" != "$(state "$first")" ]; then verdict="  WRONG: another checkpoint"; fi
    [ -z "$verdict" ] || bad=1
    printf '%-24s %-28s %s%s%s\n' "$mesh" "${settings//parallel./}" "$result" \
        "$($exact && echo "  checkpoint $(state "$out")" || true)" "$verdict"
done
[ $bad = 0 ] || echo "layouts18.sh: not all of them train what one process trains" >&2
exit $bad
