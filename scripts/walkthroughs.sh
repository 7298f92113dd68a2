#!/usr/bin/env bash
# Follows CONTRIBUTING.md's walk-throughs in a copy of the project: puts the files of docs/add/* in
# their places, makes the edits that each names, builds, and lets the tests that walk the
# registries find what is new. Prints for each how many files it took, and fails where these are
# others than are said here: what is easy to add stays so.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files -co --exclude-standard | while read -r f; do if [ -f "$f" ]; then echo "$f"; fi; done
else
    find . -type f ! -path './build*' ! -path './runs/*/*'
fi | tar -c -T - | tar -x -C "$copy"

# Folders above those that the walks add to: the programs that are built here have nothing of them.
for folder in ccode cli data infer model onnx plan replicas run token train verify weights; do
    find "$copy/src/$folder" -name '*.c' ! -name main.c -delete
done

# edits: "in FILE after|replace TEXT", then the lines that go behind, or in place of, the first line
# with that text; an empty line ends them.
edit() { # WALK FILE HOW TEXT LINES
    local to=$copy/$2
    grep -qF -- "$4" "$to" || { echo "$1: $2 has no line with: $4" && return 1; }
    TEXT=$4 LINES_=$5 awk -v how="$3" '
        !done && index($0, ENVIRON["TEXT"]) {
            if (how == "after") print
            print ENVIRON["LINES_"]
            done = 1
            next
        }
        { print }' "$to" >"$to.new"
    mv "$to.new" "$to"
}
edits() { # WALK
    local file='' how='' text='' lines='' line
    while IFS= read -r line || [ -n "$line" ]; do
        if [[ $line =~ ^in\ ([^ ]+)\ (after|replace)\ (.*)$ ]]; then
            file=${BASH_REMATCH[1]} how=${BASH_REMATCH[2]} text=${BASH_REMATCH[3]} lines=''
        elif [ -z "$line" ]; then
            edit "$1" "$file" "$how" "$text" "$lines"
            file=''
        else
            lines+=${lines:+$'\n'}$line
        fi
    done <"docs/add/$1/edits"
    if [ -n "$file" ]; then edit "$1" "$file" "$how" "$text" "$lines"; fi
}

while read -r walk new edited lines; do
    list=docs/add/$walk/edits
    [ -e "$list" ] || list=/dev/null
    want="$walk: $new new files, $edited edited by $lines lines"
    is="$walk: $(find "docs/add/$walk/src" -type f | wc -l) new files, $(
        awk '/^in / { files += !seen[$2]++; next } NF { n++ }
             END { print files + 0 " edited by " n + 0 " lines" }' "$list"
    )"
    echo "$is"
    [ "$is" = "$want" ] || { echo "$want, says scripts/walkthroughs.sh" && exit 1; }
    cp -r "docs/add/$walk/src" "$copy/"
    if [ -e "docs/add/$walk/edits" ]; then edits "$walk"; fi
done <<EOF
op 3 1 1
elementwise 1 2 2
attribute 4 2 5
variant 1 1 6
fusion 2 0 0
collective 1 0 0
EOF

cd "$copy"
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
cmake -S . -B build "${generator[@]}" -DLL_CUDA=OFF -DLL_WERROR=OFF -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_C_FLAGS_DEBUG=-O0 >build.log
cmake --build build -j "$(nproc)" --target test_op test_elementwise test_fuse \
    test_verify test_mpi_collectives bench_algorithms >>build.log ||
    { tail -n 40 build.log && exit 1; }
found() { # WHAT PATTERN COMMAND...: the command passes, and its output has the pattern
    local what=$1 pattern=$2
    shift 2
    "$@" >out.log 2>&1 || { tail -n 20 out.log && echo "$what: failed" && exit 1; }
    grep -qE -- "$pattern" out.log || { tail -n 20 out.log && echo "$what: not found" && exit 1; }
    echo "$what: found and right"
}
for op in lse softsign softcap; do
    found "op $op" "OK \] $op\$" env ONLY=$op build/test_op
done
found "elementwise op softsign, all numbers" 'PASSED' build/test_elementwise
found "kernel variant lse_one" '^by one: ' env ONLY=lse build/test_op
found "fusion residual_rmsnorm" 'OK \] residual_rmsnorm' env ONLY=residual_rmsnorm build/test_fuse
found "kernel of residual_rmsnorm" 'OK \] residual_rmsnorm' env ONLY=residual_rmsnorm build/test_op
found "algorithm shout" 'shout' build/bench_algorithms
found "algorithm shout, proved" 'PASSED' env ONLY=shout build/test_verify
found "algorithm shout, run" '100% tests passed' ctest --test-dir build -R '^test_mpi_collectives_3$'
if command -v nvcc >/dev/null; then
    nvcc -std=c++17 -arch=sm_90 -Isrc -Iinclude -Ibuild/gen -c src/kern/cuda/softcap.cu -o softcap.o
    echo "kernel softcap.cu: compiles"
fi
