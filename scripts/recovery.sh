#!/usr/bin/env bash
# recovery.sh: what befalls runs on clusters, done to small ones on this machine, beside the same run
# that nothing befalls: the last checkpoint and the metrics must be the same, bit for bit.
#
#     recovery.sh kill|stop|disk|net|resize|saves|cost|all [RUN]...
#
#     kill     a random rank is killed every so often          RUN: lenet5-fashion, gpt-kjv (both)
#     stop     a random rank is stopped (SIGSTOP) every so often
#     disk     the run's folder is on a disk that is full for a while (root: a small tmpfs)
#     net      four hosts (netns.sh, root), of which one is unplugged, and comes back
#     resize   4 ranks become 3, and 4 again, by the list of hosts
#     saves    KILLS (1000) processes are killed while they write checkpoints
#     cost     what copies of the state and checkpoints beside the steps take, of a step's time
#
# SECONDS_EACH (20) between blows, BLOWS (5) of them; 30 for ten minutes. STEPS: of the runs, where the
# usual ones do not last; WORDS: more of them. LOOPLINE: the program (build/loopline). KEEP=1 leaves the
# folders.
set -u
cd "$(dirname "$0")/.." || exit 2
loopline=$(readlink -f "${LOOPLINE:-build/loopline}")
each=${SECONDS_EACH:-20} blows=${BLOWS:-5}
work=$(mktemp -d) failed=0 super=
trap 'clean' EXIT
trap 'exit 130' INT TERM

clean() {
    trap '' INT TERM
    [ -n "$super" ] && kill "$super" 2>/dev/null && wait "$super" 2>/dev/null
    mountpoint -q "$work/disk" && umount "$work/disk"
    [ -n "${NETNS_PREFIX:-}" ] && scripts/netns.sh down 4
    [ -n "${KEEP:-}" ] && echo "kept: $work" || rm -rf "$work"
}

settings() { # RUN [same]: words, and how many steps last long enough; same: other meshes have the same bits
    case $1 in
    gpt-kjv) words="-s train.eval_every=0 -s train.eval_samples=16" steps=${STEPS:-400} ;;
    *) words="-s train.epochs=0 -s train.eval_samples=64" steps=${STEPS:-1600} ;;
    esac
    case $1,${2:-} in
    gpt-kjv,) words="$words -s parallel.canonical=true" ;;
    *) words="$words --exact" ;;
    esac
    words="$words -s train.steps=$steps -s train.save_every=50 -s train.keep=1000 -s train.buddy=1"
    words="$words -s parallel.timeout=4 --plain --json ${WORDS:-}"
}

start() { # OUT WORD...: in the background; began: by the clock
    local out=$1
    shift
    began=$(date +%s.%N)
    "$loopline" train "$@" --out "$out" >"$out.json" 2>"$out.log" &
    super=$!
}

ended() { # OUT: waits
    wait "$super"
    local status=$?
    super=
    [ $status = 0 ] && return
    echo "FAILED: status $status"
    tail -n 5 "$1.log"
    failed=1
}

ranks() { for m in $(pgrep -P "${super:-0}"); do pgrep -P "$m"; done; }

same() { # WHOLE HURT STEPS
    local last
    last=checkpoints/$(printf 'step-%08d.safetensors' "$3")
    if cmp -s "$1/$last" "$2/$last" && cmp -s "$1/metrics.jsonl" "$2/metrics.jsonl"; then
        echo "  same: the last checkpoint and all metrics, bit for bit"
    else
        echo "  DIFFERENT from the run that nothing befell" && failed=1
    fi
}

tell() { # OUT: how long each start took from the blow (in times.txt), and the goodput
    awk '/"event":"began"/ && /"start":[1-9]/ {match($0, /"at":[0-9.]+/); print substr($0, RSTART + 5, RLENGTH - 5)}' \
        "$1/recovery.jsonl" >"$work/began.txt"
    awk 'NR == FNR {blow[NR] = $1; n = NR; next}
         {for (i = n; i > 0 && blow[i] > $1; i--); if (i) {d = $1 - blow[i]; sum += d; k++; if (d > most) most = d}}
         END {if (k) printf "  %d recoveries, from the blow to the state in place: %.2f s in the mean, %.2f s at most\n", k, sum / k, most}' \
        "$work/times.txt" "$work/began.txt"
    grep -h goodput "$1.log" | tail -n 1 | sed 's/^/  /'
}

whole() { # RUN: the run that nothing befalls, once for the same words
    [ "$(cat "$work/$1-whole.words" 2>/dev/null)" = "$words" ] && return
    rm -rf "$work/$1-whole"
    start "$work/$1-whole" "$1" -n 4 $words -s train.buddy=0
    ended "$work/$1-whole"
    echo "$words" >"$work/$1-whole.words"
}

blows() { # SIGNAL RUN
    settings "$2"
    echo "$2, $steps steps on 4 ranks, SIG$1 to a random rank every $each s, $blows times"
    whole "$2"
    : >"$work/times.txt"
    start "$work/$2-$1" "$2" -n 4 $words
    for _ in $(seq "$blows"); do
        sleep "$each"
        kill -0 "$super" 2>/dev/null || break
        local rank
        rank=$(ranks | shuf -n 1)
        [ -n "$rank" ] || continue
        kill "-$1" "$rank" && echo "$(date +%s.%N) $began" | awk '{print $1 - $2}' >>"$work/times.txt"
    done
    ended "$work/$2-$1"
    tell "$work/$2-$1"
    same "$work/$2-whole" "$work/$2-$1" "$steps"
}

disk() { # RUN
    settings "$1"
    echo "$1, $steps steps, the disk full from 5 s on, for $each s"
    [ "$(id -u)" = 0 ] || { echo "  skipped: root mounts a small disk" && return; }
    whole "$1"
    mkdir -p "$work/disk"
    mount -t tmpfs -o size=400m tmpfs "$work/disk" || { echo "  skipped: no tmpfs" && return; }
    start "$work/disk/run" "$1" -n 4 $words -s train.keep=2
    sleep 5
    dd if=/dev/zero of="$work/disk/fill" bs=64k 2>/dev/null
    sleep "$each"
    rm "$work/disk/fill"
    ended "$work/disk/run"
    grep -h "could not be written" "$work/disk/run.log" | sed 's/^/  /'
    same "$work/$1-whole" "$work/disk/run" "$steps"
    umount "$work/disk"
}

net() { # RUN
    settings "$1" same
    echo "$1, $steps steps on four hosts, one unplugged for $each s"
    NETNS_PREFIX=$(scripts/netns.sh up 4 none) || { echo "  skipped: no hosts" && return; }
    export NETNS_PREFIX LOOPLINE_MPIEXEC="$PWD/scripts/netns.sh mpiexec"
    seq -f '10.77.0.%g slots=1' 4 >"$work/hosts"
    whole "$1"
    start "$work/$1-net" "$1" -n 4 $words --hosts "$work/hosts"
    sleep 10
    ip -n "${NETNS_PREFIX}sw" link set port3 down
    echo "$(date +%s.%N) $began" | awk '{print $1 - $2}' >"$work/times.txt"
    sleep "$each"
    ip -n "${NETNS_PREFIX}sw" link set port3 up
    ended "$work/$1-net"
    tell "$work/$1-net"
    grep -ho '"text":"[0-9]* ranks[^"]*' "$work/$1-net/recovery.jsonl" | sed 's/"text":"/  /'
    same "$work/$1-whole" "$work/$1-net" "$steps"
    scripts/netns.sh down 4
    unset NETNS_PREFIX LOOPLINE_MPIEXEC
}

resize() { # RUN
    settings "$1" same
    echo "$1, $steps steps: 4 ranks, 3, and 4 again"
    whole "$1"
    echo localhost slots=4 >"$work/hosts"
    start "$work/$1-resize" "$1" -n 4 $words --hosts "$work/hosts"
    sleep 8
    echo localhost slots=3 >"$work/hosts"
    sleep 8
    echo localhost slots=4 >"$work/hosts"
    ended "$work/$1-resize"
    grep -ho '"text":"[0-9]* ranks[^"]*' "$work/$1-resize/recovery.jsonl" | sed 's/"text":"/  /'
    same "$work/$1-whole" "$work/$1-resize" "$steps"
}

# In one run: steps with a copy against their neighbours, whatever else the machine does; and those
# of a checkpoint against all others.
cost() { # RUN
    settings "$1"
    echo "$1: a copy of the state after every second step, a checkpoint beside every 50th"
    start "$work/$1-cost" "$1" -n 4 $words -s train.buddy=2 -s train.log_every=1
    ended "$work/$1-cost"
    awk '{split("", v); n = split($0, f, /[,:{}"]+/); for (i = 2; i < n; i += 2) v[f[i]] = f[i + 1]
          wall = v["wall_s"] - was; was = v["wall_s"]; copy = v["copying_s"] - copied; copied = v["copying_s"]
          if (NR < 10) next
          at = v["step"] - 1 # the line is written before the copy and the checkpoint of its step
          kind = at % 50 < 3 ? "save" : at % 2 ? "plain" : "copy"
          t[kind, ++k[kind]] = wall
          if (kind != "save" && last != "save" && last != "" && kind != last)
              t["more", ++k["more"]] = kind == "copy" ? wall - before : before - wall
          last = kind; before = wall}
         function median(kind,   i, j, x) {
             for (i = 2; i <= k[kind]; i++) { x = t[kind, i]; for (j = i - 1; j && t[kind, j] > x; j--) t[kind, j + 1] = t[kind, j]; t[kind, j + 1] = x }
             return t[kind, int((k[kind] + 1) / 2)] }
         function mean(kind,   i, s) { for (i = 1; i <= k[kind]; i++) s += t[kind, i]; return s / k[kind] }
         END {p = median("plain"); c = median("more"); s = median("save")
              printf "  a step %.2f ms, with a copy %.2f ms more (%+.1f %%)\n", 1e3 * p, 1e3 * c, 100 * c / p
              printf "  the three steps after a checkpoint began %.2f ms each: %+.2f %% of 50 steps\n", 1e3 * s, 100 * 3 * (s - p) / (50 * p)}' \
        "$work/$1-cost/timing.jsonl"
    grep -h goodput "$work/$1-cost.log" | sed 's/^/  /'
}

what=${1:-}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- lenet5-fashion gpt-kjv
case $what in
saves) KILLS=${KILLS:-1000} build/test_checkpoint || failed=1 ;;
kill) for run in "$@"; do blows KILL "$run"; done ;;
stop) for run in "$@"; do blows STOP "$run"; done ;;
disk | net | resize | cost) for run in "$@"; do $what "$run"; done ;;
all)
    for run in "$@"; do blows KILL "$run" && blows STOP "$run" && disk "$run" && net "$run" && resize "$run" && cost "$run"; done
    KILLS=${KILLS:-1000} build/test_checkpoint || failed=1
    ;;
*) sed -n '2,17p' "$0" && exit 2 ;;
esac
exit $failed
