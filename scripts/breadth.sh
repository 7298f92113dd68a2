#!/bin/bash
# Every model under every strategy, on 1, 2, 3, 4 and 6 ranks: loopline verify, on random batches and
# sizes that ranks do not divide. A line each; exit status 1 where one fails. Meshes that cannot be
# (an image's height in gpt) are refused, which is said and counted apart.
#
#     scripts/breadth.sh [PROGRAM] [MODEL...]       default: build/loopline, all models
#     STEPS=5 SECONDS_EACH=300 scripts/breadth.sh build/loopline gpt mlp
#     EXACT=1 scripts/breadth.sh                    with exact sums: no bit may differ
set -u
program=${1:-build/loopline}
shift
models=${*:-mlp lenet5 gpt resnet18 googlenet alexnet}
steps=${STEPS:-5}
each=${SECONDS_EACH:-300}

# Batches of 13: no number of ranks divides it.
sizes() {
    case $1 in
    mlp) echo "-b 13 -s model.image=9 -s model.width=37" ;;
    lenet5) echo "-b 13" ;;
    gpt) echo "-b 7 -s model.layers=2 -s model.width=24 -s model.heads=6 -s model.seq=13 -s model.vocab=53" ;;
    resnet18) echo "-b 13 -s model.width=8 -s model.image=13 -s model.channels=3 -s model.classes=7" ;;
    googlenet) echo "-b 7 -s model.image=49 -s model.classes=7" ;;
    alexnet) echo "-b 6 -s model.image=223 -s model.classes=7" ;;
    esac
}

meshes() {
    cat <<'END'
none 0
data=2 0
data=2 1
data=2 2
data=2 3
tensor=2 0
height=2 0
width=2 0
channel=2 0
filter=2 0
sequence=2 0
sequence=3 0
data=3 0
data=3 1
data=3 2
data=3 3
tensor=3 0
height=3 0
width=3 0
channel=3 0
filter=3 0
data=4 0
data=4 1
data=4 2
data=4 3
tensor=4 0
data=2,tensor=2 0
data=2,tensor=2 1
tensor=2,sequence=2 0
sequence=4 0
data=2,sequence=2 0
height=2,width=2 0
channel=2,filter=2 0
rows=2,cols=2 0
data=6 0
data=6 3
tensor=6 0
data=2,tensor=3 0
data=2,tensor=3 1
tensor=2,sequence=3 0
data=2,sequence=3 0
height=3,width=2 0
data=2,height=3,width=1 0
channel=2,filter=3 0
rows=3,cols=2 0
rows=2,cols=1,depth=3 0
data=2,height=2,width=2 0
rows=2,cols=2,depth=2 0
END
}

out=$(mktemp) err=$(mktemp)
trap 'rm -f "$out" "$err"' EXIT
good=0 bad=0 refused=0
for model in $models; do
    while read -r mesh zero; do
        words="--steps $steps --zero $zero --json"
        [ -n "${EXACT:-}" ] && words="$words --exact"
        [ "$mesh" != none ] && words="$words --mesh $mesh"
        began=$(date +%s)
        # shellcheck disable=SC2046,SC2086
        timeout "$each" "$program" verify "$model" $(sizes "$model") $words >"$out" 2>"$err" </dev/null
        status=$?
        took=$(($(date +%s) - began))
        field() { sed -n "s/^  \"$1\": \(.*[^,]\),*$/\1/p" "$out"; }
        verdict=ok
        if [ $status -ne 0 ]; then
            verdict=FAILED
            [ $status -eq 124 ] && echo "not over after $each s" >"$err"
            grep -q 'layout not possible' "$err" && verdict=refused
        fi
        case $verdict in
        ok) good=$((good + 1)) ;;
        refused) refused=$((refused + 1)) ;;
        *) bad=$((bad + 1)) ;;
        esac
        printf '%-9s %-24s zero %s  %-8s' "$model" "$mesh" "$zero" $verdict
        if [ $verdict = ok ]; then
            printf ' %-14s unjudged %-6s f64 %-14s %3d s\n' "$(field max_rel_diff)" "$(field unjudged_in_f32)" \
                "$(field f64_rel_diff)" $took
        else
            head -c 400 "$err" | tr '\n' ' '
            echo
        fi
    done < <(meshes)
done
echo "$good pass, $bad fail, $refused are refused"
[ $bad -eq 0 ]
