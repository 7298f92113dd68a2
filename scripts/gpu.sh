#!/usr/bin/env bash
# gpu.sh: everything about GPUs, on a machine that has one: builds with CUDA, holds every op's kernel
# against the reference, trains beside the CPU, verifies 2 and 4 ranks, times steps beside PyTorch
# (where python3 has it), and ends with one table. Exit status 1 where something failed.
#
#     scripts/gpu.sh                          all of it: a quarter of an hour or more; what is not
#                                             timed runs side by side, PyTorch's compiler too
#     scripts/gpu.sh --only ops,losses        parts: ops, losses, curve, verify, nccl, mpi, bench
#     scripts/gpu.sh --only bench --models lenet5,gpt2-124m     some of lenet5, gpt2-124m, gpt2-355m,
#                                             gpt2-1558m, gpt2-1558m-fp8, gpt2-8k-64, gpt2-8k-128 (sequences of
#                                             8192, heads so wide), llama-135m, resnet50, resnet18, googlenet, alexnet
#     --build DIR      default build-gpu          --no-build   DIR is built already
#     --no-peers       PyTorch is not timed       PYTHON=...   a Python that has torch
#     --kjv FILE       curve: the Bible's bible.data (Debian's bible-kjv-text), if not in /usr/lib
#     --out DIR        keeps what was measured: the steps' JSON with times by kernel class, losses
set -u
export LC_ALL=C
cd "$(dirname "$0")/.."
only=ops,losses,curve,verify,nccl,mpi,bench
models=lenet5,gpt2-124m,gpt2-355m,gpt2-1558m,gpt2-1558m-fp8,gpt2-8k-64,gpt2-8k-128,llama-135m,resnet50,resnet18,googlenet,alexnet
build=build-gpu make=1 peers=1 out= kjv=/usr/lib/bible.data python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
    case $1 in
    --only) only=$2 && shift ;;
    --models) models=$2 && shift ;;
    --build) build=$2 && shift ;;
    --no-build) make=0 ;;
    --kjv) kjv=$2 && shift ;;
    --out) out=$2 && shift ;;
    --no-peers) peers=0 ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) echo "gpu.sh: $1 is not known; see gpu.sh --help" >&2 && exit 2 ;;
    esac
    shift
done
for part in ${only//,/ }; do
    case $part in ops | losses | curve | verify | nccl | mpi | bench) ;;
    *) echo "gpu.sh: part $part is not known: ops, losses, curve, verify, nccl, mpi, bench" >&2 && exit 2 ;;
    esac
done
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "gpu.sh: skipped: this machine has no NVIDIA GPU"
    exit 0
fi
wants() { [[ ,$only, == *,$1,* ]]; }
since=$SECONDS
if [ -n "$out" ]; then
    mkdir -p "$out" && work=$(cd "$out" && pwd) || exit 2
    rm -f "$work"/table-*
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
log=$work/log table=$work/table-build
row() { # part, what, result; ok, below (an aim), skipped or FAIL
    printf '%-8s %-34s %-46s %s\n' "$1" "$2" "$3" "$4" | tee -a "$table"
}
side=()
beside() { # a part, its function: runs it beside others, with a log and a table of its own
    wants $1 || return 0
    (log=$work/log-$1 table=$work/table-$1 && $2) &
    side+=($!)
}
number() { sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p" | head -n 1; }

# ---- build ----
targets="loopline"
gpu_tests="test_op_gpu test_product_gpu test_attention_gpu test_chain_gpu"
wants ops && targets="$targets $gpu_tests test_gpu"
wants nccl && targets="$targets stand_in_nccl"
if [ $make = 1 ]; then
    cmake -S . -B "$build" -DLL_CUDA=ON -DCMAKE_BUILD_TYPE=Release >"$log" 2>&1 &&
        cmake --build "$build" -j "$(nproc)" --target $targets >>"$log" 2>&1 ||
        { tail -n 30 "$log"; echo "gpu.sh: the build failed"; exit 1; }
fi
program=$build/loopline
nvidia-smi -L

# ---- every op's kernel; programs ----
ops() { # test programs
    local t state
    for t in ${*:-$gpu_tests}; do
        case $t in
        test_op_gpu) seq 0 3 | xargs -P 4 -I {} sh -c "SHARE={}/4 $build/$t >$log-{} 2>&1" ;;
        *) "$build/$t" >"$log-0" 2>&1 ;;
        esac
        state=$?
        cat "$log"-[0-3] >"$log" && rm -f "$log"-[0-3]
        case $state in 0) state=ok ;; 77) state=skipped ;; *) state=FAIL && grep -A 3 -E 'ERROR|FAILED' "$log" | tail -n 20 ;; esac
        row ops $t "$(grep -c '\[       OK' "$log") tests passed, $(grep -c '^\[  FAILED.*] [a-z]' "$log") failed, $(grep -c '\[  SKIPPED' "$log") skipped" $state
    done
}

# ---- losses of 50 steps, side by side ----
# The largest relative difference from the first kind's, of all steps, may be so much.
limit_of() { case $1 in *-f32) echo 2e-3 ;; *-bf16) echo 1e-2 ;; *-fp8*) echo 2e-2 ;; esac }
series() { # of a run's folder: "step loss" lines
    sed -n 's/.*"step":\([0-9]*\),"loss":\([-0-9.e+]*\).*/\1 \2/p' "$1/metrics.jsonl"
}
alike() { # name, kinds (machine-precision); the run file is $work/NAME.yaml
    local name=$1 first=$2 kind
    shift
    for kind in "$@"; do
        "$program" train "$work/$name.yaml" --plain --overwrite --set train.machine=${kind%-*} \
            --set train.precision=${kind#*-} --out "$work/$name-$kind" >"$log" 2>&1 ||
            { tail -n 5 "$log"; row losses "$name $kind" "training failed" FAIL; return; }
        series "$work/$name-$kind" >"$work/$name-$kind.txt"
    done
    printf '%s\n%6s %12s' "$name" step "$first"
    for kind in "${@:2}"; do printf ' %12s %9s' "$kind" differs; done
    printf '\n'
    paste -d ' ' $(for kind in "$@"; do echo "$work/$name-$kind.txt"; done) | awk '
        function d(a, b) { return a == 0 ? 0 : (a > b ? a - b : b - a) / (a > 0 ? a : -a) }
        $1 == 1 || $1 % 10 == 0 {
            printf "%6d %12.6f", $1, $2
            for (i = 4; i <= NF; i += 2) printf " %12.6f %9.1e", $i, d($2, $i)
            printf "\n" }'
    for kind in "${@:2}"; do
        local limit=$(limit_of "$kind") worst
        worst=$(paste -d ' ' "$work/$name-$first.txt" "$work/$name-$kind.txt" | awk '
            $1 != $3 { w = 9 }
            { d = ($4 - $2) / $2; if (d < 0) d = -d; if (d > w || d != d) w = d }
            END { printf "%.2e", NR == 50 ? w : 9 }')
        row losses "$name ${kind/-/ }" "differs from ${first/-/ } by at most $worst (limit $limit)" \
            "$(awk -v w="$worst" -v l="$limit" 'BEGIN { print w <= l ? "ok" : "FAIL" }')"
    done
}
losses() {
    local common="steps: 50, log_every: 1, eval_samples: 64, lr: 3e-4, optimizer: adamw"
    cat >"$work/lenet5.yaml" <<END
model: {name: lenet5}
data: {name: synthetic}
train: {batch: 64, $common}
END
    cat >"$work/gpt.yaml" <<END
model: {name: gpt, layers: 3, width: 128, heads: 2, seq: 192, vocab: 256}
data: {name: synthetic}
train: {batch: 8, clip: 1, $common}
END
    sed 's/seq: 192/seq: 64/' "$work/gpt.yaml" >"$work/gpt-8bit.yaml"
    sed 's/^model.*/model: {name: llama, layers: 2, width: 256, heads: 4, kv_heads: 2, hidden: 384, seq: 192, vocab: 256}/' \
        "$work/gpt.yaml" >"$work/llama.yaml"
    sed 's/heads: 4, kv_heads: 2/heads: 2, kv_heads: 1/' "$work/llama.yaml" >"$work/llama-128.yaml"
    alike lenet5 cpu-f32 cuda-f32 cuda-bf16
    alike gpt cpu-f32 cuda-f32 cuda-bf16
    alike gpt-8bit cuda-bf16 cuda-fp8 cuda-fp8block
    alike llama cpu-f32 cuda-f32 cuda-bf16
    alike llama-128 cpu-f32 cuda-bf16
}

# ---- fp8's loss curve beside bf16's: a GPT of 25 million parameters on the Bible ----
# Held against each other are means of 20 steps; the last and the largest difference are told.
curve() {
    [ -e "$kjv" ] || { row curve "gpt-kjv fp8" "no $kjv" skipped; return; }
    local kind size="--set model.layers=8 --set model.width=512 --set model.heads=8 --set train.batch=32"
    for kind in bf16 fp8; do
        "$program" train gpt-kjv --plain --overwrite --set data.path="$kjv" $size --set train.machine=cuda \
            --set train.precision=$kind --set train.steps=500 --set train.log_every=1 --set train.eval_every=0 \
            --set train.save_every=0 --out "$work/kjv-$kind" >"$log" 2>&1 ||
            { tail -n 5 "$log"; row curve "gpt-kjv $kind" "training failed" FAIL; return; }
        series "$work/kjv-$kind" >"$work/kjv-$kind.txt"
    done
    paste -d ' ' "$work/kjv-bf16.txt" "$work/kjv-fp8.txt" | awk '
        { a[NR] = $2; b[NR] = $4; p += $2; q += $4 }
        NR > 20 { p -= a[NR - 20]; q -= b[NR - 20] }
        NR >= 20 { last = (q - p) / p; d = last < 0 ? -last : last; if (d > w || d != d) w = d }
        NR % 100 == 0 { printf "%6d %12.6f %12.6f %9.1e\n", NR, p / 20, q / 20, last }
        END { printf "%.2e %.2e\n", NR == 500 ? w : 9, last }' >"$work/curve"
    printf 'gpt-kjv, means of 20 steps\n%6s %12s %12s %9s\n' step bf16 fp8 differs
    sed '$d' "$work/curve"
    read -r worst last <<<"$(tail -n 1 "$work/curve")"
    row curve "gpt-kjv fp8, 500 steps" "differs from bf16 by at most $worst, at last $last" \
        "$(awk -v w="$worst" 'BEGIN { print w <= 2e-2 ? "ok" : "FAIL" }')"
}
# ---- ranks that share the GPU ----
verify() {
    local model mesh settings state
    local small="--set train.batch=8 --set model.layers=2 --set model.width=48 --set model.heads=4 --set model.seq=32 --set model.vocab=97"
    local more="--set train.batch=16 --set model.layers=4 --set model.width=192 --set model.heads=4 --set model.seq=128 --set model.vocab=97"
    while read -r model mesh settings; do
        if "$program" verify "$model" --random --set train.machine=cuda --mesh "$mesh" --steps 2 $settings >"$log" 2>&1 </dev/null
        then state=ok; else state=FAIL && tail -n 5 "$log"; fi
        row verify "$model $mesh" "$(sed -n 's/^worst relative difference: //p' "$log")" $state
    done <<END
lenet5 data=2 --set train.batch=16
gpt tensor=2 $small
gpt data=2,tensor=2 $small
lenet5 height=4 --set train.batch=16
llama data=2,tensor=2 $small --set model.heads=4 --set model.kv_heads=2 --set model.hidden=64
gpt data=2 $small --set model.width=64 --set train.lora=4 --set train.base=nf4
gpt data=2 $more --set train.memory=70MiB --set train.offload=host
gpt pipe=2 $more --set train.micro_batch=4 --set train.memory=56MiB --set train.offload=host
END
}

# ---- ranks that share the GPU, and talk as those with one each do, by a stand-in for NCCL ----
# Where this build has none (no nccl.h), the part is skipped.
stand_in=$(readlink -f "$build/stand_in/libnccl.so.2" || true)
# Ranks that wait for each other are told after 60 s (verify: ten times that setting).
by_nccl() { LD_PRELOAD=$stand_in "$program" "$@" --set train.machine=cuda --set parallel.transport=nccl >"$log" 2>&1 </dev/null; }
nccl() {
    [ -e "$stand_in" ] || { row nccl "ranks by NCCL's calls" "built without NCCL" skipped; return; }
    local model mesh settings state
    local small="--set train.batch=12 --set model.layers=2 --set model.width=48 --set model.heads=4 --set model.seq=32 --set model.vocab=97"
    while read -r model mesh settings; do
        if by_nccl verify "$model" --random --mesh "$mesh" --steps 2 --set parallel.timeout=6 $settings
        then state=ok; else state=FAIL && tail -n 5 "$log"; fi
        row nccl "$model $mesh ${settings#$small}" "$(sed -n 's/^worst relative difference: //p' "$log")" $state
    done <<END
lenet5 data=2 --set train.batch=16
lenet5 data=3 --set train.batch=16
lenet5 height=4 --set train.batch=16
gpt tensor=2 $small
gpt data=2,tensor=2 $small
gpt data=2,sequence=2 $small
gpt data=3 $small --zero 3
gpt data=2 $small --exact
gpt data=2 $small --set parallel.compress=factors
gpt pipe=2 $small --set train.micro_batch=3
gpt pipe=3 $small --set train.micro_batch=2 --set parallel.schedule=zb-h2
gpt pipe=2,data=2 $small --set train.micro_batch=4 --set parallel.schedule=zb-h1
gpt pipe=2 $small --set model.layers=4 --set train.micro_batch=3 --set parallel.schedule=zb-v
gpt pipe=2 $small --set model.layers=4 --set train.micro_batch=3 --set parallel.schedule=interleaved
gpt pipe=3 $small --set model.layers=6 --set train.micro_batch=2 --set parallel.schedule=breadth-first
gpt pipe=4 $small --set model.layers=8 --set train.micro_batch=3 --set parallel.schedule=interleaved
gpt pipe=4 $small --set model.layers=8 --set train.micro_batch=2 --set parallel.schedule=zb-v
gpt pipe=3 $small --set model.layers=6 --set train.micro_batch=2 --set parallel.schedule=dualpipe-v
gpt pipe=2,tensor=2 $small --set train.micro_batch=3
gpt pipe=2,data=2 $small --set model.layers=4 --set train.micro_batch=3 --set parallel.schedule=interleaved
gpt pipe=2,tensor=2 $small --set model.layers=4 --set train.micro_batch=3 --set parallel.schedule=zb-v
gpt pipe=3,tensor=2 $small --set model.layers=6 --set train.micro_batch=2 --set parallel.schedule=breadth-first
lenet5 pipe=2 --set train.batch=16 --set train.micro_batch=4 --set parallel.schedule=gpipe
resnet18 data=2,filter=2 --set train.batch=6 --set model.image=16 --set model.classes=10
END
    cat >"$work/nccl.yaml" <<END
model: {name: lenet5}
data: {name: synthetic}
train: {batch: 16, steps: 200}
parallel: {mesh: data=2, timeout: 5}
END
    # A rank that hangs, a call that fails, a failure that NCCL tells of later: named, soon, by all.
    for blow in "stall 1 9" "error 1 9" "async 1 9" "stall 1 9 pipe=2" "error 1 9 pipe=2" "async 1 9 pipe=2"; do
        since=$SECONDS mesh=data=2
        [ "${blow% pipe=2}" = "$blow" ] || mesh=pipe=2
        LOOPLINE_STAND_IN="$blow" by_nccl train "$work/nccl.yaml" -n 2 --plain --overwrite --restarts 0 --out "$work/nccl-run" \
            --mesh $mesh --set train.micro_batch=4
        rc=$? took=$((SECONDS - since)) state=ok
        why=$(grep -o -m 1 -E 'ranks? [0-9]+.*(all_reduce|send|recv|NCCL).*' "$log" | cut -c 1-90)
        [ $rc != 0 ] && [ $rc != 124 ] && [ -n "$why" ] && [ $took -lt 40 ] || { state=FAIL && tail -n 5 "$log"; }
        row nccl "$blow" "status $rc after $took s: $why" $state
    done
}

# ---- ranks that share the GPU, by an MPI library that takes its memory ----
mpi() {
    local model mesh settings state
    local small="--set train.batch=12 --set model.layers=2 --set model.width=48 --set model.heads=4 --set model.seq=32 --set model.vocab=97"
    while read -r model mesh settings; do
        state=ok
        "$program" verify "$model" --random --mesh "$mesh" --steps 2 --set train.machine=cuda --set parallel.transport=mpi \
            $settings >"$log" 2>&1 </dev/null || state=FAIL
        grep -q 'needs an MPI library' "$log" && { row mpi "ranks by MPI" "this MPI does not take GPUs' memory" skipped; return; }
        [ $state = ok ] || tail -n 5 "$log"
        row mpi "$model $mesh ${settings#$small}" "$(sed -n 's/^worst relative difference: //p' "$log")" $state
    done <<END
lenet5 data=3 --set train.batch=16
lenet5 height=4 --set train.batch=16
gpt data=2,tensor=2 $small
gpt data=2,sequence=2 $small
gpt data=3 $small --zero 3
gpt data=2 $small --exact
gpt data=2 $small --set parallel.canonical=true
gpt pipe=2 $small --set model.layers=4 --set train.micro_batch=3 --set parallel.schedule=zb-v
gpt pipe=2,tensor=2 $small --set train.micro_batch=3
resnet18 data=2,filter=2 --set train.batch=6 --set model.image=16 --set model.classes=10
END
}

# ---- PyTorch's compiler fills its cache while nothing is timed ----
has_torch=0
[ $peers = 1 ] && wants bench && "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && has_torch=1
[ $peers = 1 ] && wants bench && [ $has_torch = 0 ] && echo "gpu.sh: $python has no torch with CUDA: no peers"
peer_of() { # a model's peer: a program of bench/ and its words
    case $1 in
    lenet5) echo torch_lenet_gpu.py ;;
    llama-135m) echo "torch_llama_gpu.py --batch 8" ;;
    gpt2-124m) echo "torch_gpt2_gpu.py 124m --batch 64" ;;
    gpt2-8k-*) echo "torch_gpt2_gpu.py 124m --batch 8 --seq 8192 --heads $((768 / ${1#gpt2-8k-}))" ;;
    gpt2-*) m=${1#gpt2-} && echo "torch_gpt2_gpu.py ${m%-fp8} --batch 16" ;;
    *) echo "torch_image_gpu.py $1 --batch 256" ;;
    esac
}
compile_peers() { # two at once: more would not all have room on the GPU
    [ $has_torch = 1 ] || return 0
    local m
    for m in ${models//,/ }; do peer_of $m; done | grep -v lenet | sort -u |
        xargs -P 2 -I {} sh -c "exec $python bench/{} --seconds 0" >"$log" 2>&1
}

beside ops ops
beside losses losses
beside curve curve
beside verify verify
beside nccl nccl
beside mpi mpi
beside bench compile_peers
[ ${#side[@]} = 0 ] || wait "${side[@]}"
wants ops && log=$work/log-ops table=$work/table-ops && ops test_gpu # alone: it asks how much memory is free

# ---- speed ----
timed() { # model, what is said of it, unit, key of the peer, least ratio, our words...
    local name="$1 $2" unit=$3 key=$4 bar=$5 peer=$(peer_of $1) theirs="" state=ok
    shift 5
    "$program" bench step "$@" --machine cuda --set train.deterministic=false --json >"$work/ours.json" 2>"$log" </dev/null ||
        { tail -n 5 "$log"; row bench "$name" "failed" FAIL; return; }
    [ -z "$out" ] || cp "$work/ours.json" "$work/${name// /-}.json"
    local ms=$(number step_ms <"$work/ours.json") mfu=$(number mfu <"$work/ours.json")
    local rate=$(number "$unit"_per_s <"$work/ours.json") cool=$(number cool_ms <"$work/ours.json") their_cool=""
    local memory=$(number used_bytes <"$work/ours.json") start=$(number first_step_s <"$work/ours.json")
    if [ $has_torch = 1 ]; then # some of ours are held against the same
        [ -e "$work/$peer" ] || "$python" bench/$peer --json >"$work/$peer" 2>"$log"
        theirs=$(number "$key" <"$work/$peer") their_cool=$(number cool_ms <"$work/$peer")
        [ -n "$theirs" ] || tail -n 3 "$log"
    fi
    row bench "$name" "$(awk -v ms="$ms" -v r="$rate" -v u="$unit" -v mfu="${mfu:-0}" -v m="$memory" -v t="${theirs:-0}" -v s="$start" \
        -v cool="${cool:-0}" -v theirs="${their_cool:-0}" 'BEGIN {
        printf "%.3f ms, %.0f %s/s", ms, r, u
        if (mfu > 0.02) printf ", MFU %.1f%%", 100 * mfu
        printf ", %.1f GiB, first step %.1f s", m / 2^30, s
        if (t > 0) printf "; torch %.0f: %.2fx", t, r / t
        if (theirs > 0) printf " (cool %.1f ms, %.1f: %.2fx)", cool, theirs, theirs / cool }')" $state
    [ -n "$theirs" ] && awk -v r="$rate" -v t="$theirs" -v b=$bar 'BEGIN { exit r / t >= b }' &&
        row bench "$name" "the aim is ${bar}x torch" below
    return 0
}
if wants bench; then
    gpt2="gpt2-124m --set model.vocab=50304"
    large="-b 16 --set train.micro_batch=16 --set model.layers=48 --set model.width=1600 --set model.heads=25"
    medium="-b 16 --set train.micro_batch=16 --set model.layers=24 --set model.width=1024 --set model.heads=16"
    table=$work/table-bench
    for m in ${models//,/ }; do
        case $m in
        lenet5) timed $m "f32 batch 64" samples images_per_s 2 lenet5 -b 64 \
            --set train.optimizer=adamw --set train.lr=2e-3 --set train.weight_decay=0.01 ;;
        gpt2-124m) timed $m "bf16 batch 64" tokens tokens_per_s 1.35 $gpt2 --precision bf16 -b 64 --set train.micro_batch=64 ;;
        gpt2-355m) timed $m "bf16 batch 16" tokens tokens_per_s 1.3 $gpt2 --precision bf16 $medium ;;
        gpt2-1558m) timed $m "bf16 batch 16" tokens tokens_per_s 1.25 $gpt2 --precision bf16 $large ;;
        gpt2-1558m-fp8) timed $m "batch 16, torch bf16" tokens tokens_per_s 1.75 $gpt2 --precision fp8 $large ;;
        llama-135m) timed $m "bf16 batch 8" tokens tokens_per_s 1.2 llama --precision bf16 -b 8 --set train.micro_batch=8 ;;
        gpt2-8k-64 | gpt2-8k-128) timed $m "bf16 batch 8" tokens tokens_per_s $([ $m = gpt2-8k-64 ] && echo 1.3 || echo 1.35) \
            $gpt2 --precision bf16 -b 8 --set train.micro_batch=8 --set model.seq=8192 --set model.heads=$((768 / ${m#gpt2-8k-})) ;;
        resnet50 | resnet18 | googlenet | alexnet) timed $m "bf16 batch 256" samples images_per_s \
            $([ $m = resnet50 ] && echo 1.35 || echo 1.4) $m --precision bf16 -b 256 \
            --set train.optimizer=momentum --set train.lr=0.1 --set train.weight_decay=1e-4 ;;
        *) row bench "$m" "no such model" FAIL ;;
        esac
    done
fi

printf '\n%-8s %-34s %-46s\n' part what result
for part in ${only//,/ }; do cat "$work/table-$part" 2>/dev/null; done
count() { cat "$work"/table-* 2>/dev/null | grep -c "$1\$"; }
echo "$(count ' ok') ok, $(count ' below') below their aim, $(count ' skipped') skipped, $(count ' FAIL') failed, in $((SECONDS - since)) s"
[ "$(count ' FAIL')" = 0 ]
