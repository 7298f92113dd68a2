#!/usr/bin/env bash
# scripts/tutorial.sh PREFIX: follows docs/tutorial.md in a folder of its own, with the Loopline
# that is installed under PREFIX. Fails with the first line that fails.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(cd "$1" && pwd)
pc=$(dirname "$(find "$prefix" -name loopline.pc)")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp docs/tutorial/* "$work"
sed -n 's/^    \$ //p' docs/tutorial.md >"$work/lines"
cd "$work"
export PKG_CONFIG_PATH=$pc LD_LIBRARY_PATH=${pc%/pkgconfig} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
while read -r line; do
    echo "\$ $line"
    bash -c "$line" </dev/null || { echo "FAILED: $line" >&2 && exit 1; }
done <lines
right=$(./unet eval one --json | sed -n 's/.*"pixels_right": *\([0-9.]*\).*/\1/p')
echo "pixels right: $right"
awk -v right="$right" 'BEGIN { exit !(right > 0.88) }' # a guess of ground alone is 0.84
