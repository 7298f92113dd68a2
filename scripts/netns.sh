#!/usr/bin/env bash
# netns.sh: several hosts on one machine. Each is a network namespace with an address of its own; a
# bridge in one more namespace is the switch; every link is shaped to a rate in both directions.
#
#     netns.sh run N PROGRAM [ARGUMENT]...   makes N hosts, runs PROGRAM on them through mpiexec, one
#                                            rank a host, takes the hosts down; PROGRAM's status
#     netns.sh up N [RATE]                   makes them to stay; prints the prefix of their names
#     netns.sh down N                        takes them down (NETNS_PREFIX: what up printed)
#     netns.sh mpiexec ARGUMENT...           mpiexec on the first host of an `up` (NETNS_PREFIX), with what
#                                            it must be told of the others: for LOOPLINE_MPIEXEC
#     netns.sh HOST COMMAND...               in mpiexec's hands only: stands in for ssh
#
# NETNS_PREFIX   names namespaces PREFIXh1, ..., PREFIXsw; run uses the hosts of an `up` where it is
#                set. Without it the names carry this process's id, so that users of one machine
#                do not meet; nothing but these names is ever touched.
# NETNS_RATE     of each link for run and up: 100mbit, 1gbit (the default), 2.5gbit; none: unshaped
# NETNS_MPIEXEC  Open MPI's or MPICH's (mpiexec)
#
# Status 77: this cannot be done here, and why (root, ip, tc, unshare, or what the kernel lacks).
set -u

me=$(readlink -f "$0")
net=10.77.0 # every bridge is alone in its namespace: addresses of two runs do not meet
made=()     # namespaces that this process made, and takes down: no others
child=

cannot() {
    echo "netns.sh: $1" >&2
    exit 77
}
wrong() {
    echo "netns.sh: $1" >&2
    exit 2
}

check_tools() {
    [ "$(id -u)" = 0 ] || cannot "network namespaces need root, this is user $(id -un)"
    local tool
    for tool in ip tc; do
        command -v $tool >/dev/null || cannot "$tool is not installed (Debian: iproute2)"
    done
    command -v unshare >/dev/null || cannot "unshare is not installed (Debian: util-linux)"
}

check_count() {
    case ${1:-} in
    '' | *[!0-9]*) wrong "the number of hosts is '${1:-}', want 1 to 250" ;;
    esac
    [ "$1" -ge 1 ] && [ "$1" -le 250 ] || wrong "the number of hosts is $1, want 1 to 250"
}

# Bytes that a link may send at once: what half a millisecond lets through, so that the kernel's
# timer can keep the rate up.
burst_of() {
    awk -v rate="$1" 'BEGIN {
        if (rate !~ /^[0-9]+(\.[0-9]+)?[kmg]?bit$/) exit 1
        unit = rate; sub(/^[0-9.]+/, "", unit)
        bits = rate * (unit == "gbit" ? 1e9 : unit == "mbit" ? 1e6 : unit == "kbit" ? 1e3 : 1)
        if (bits < 1e5) exit 1
        bytes = bits / 16000
        printf "%d", bytes < 16384 ? 16384 : bytes
    }' || wrong "rate '$1': want a number and kbit, mbit or gbit, 100kbit at least, or none"
}

shape() { # NAMESPACE DEVICE: what leaves by it
    [ "$rate" = none ] && return
    tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" burst "$burst" latency 20ms 2>"$errors" ||
        cannot "tc cannot shape a link to $rate: $(head -n 1 "$errors")"
}

make() { # NAME: fails where somebody has one of that name
    [ ! -e "/run/netns/$1" ] || cannot "there is a network namespace $1 already"
    made+=("$1") # before it is: a signal may come between
    ip netns add "$1" 2>"$errors" && return
    unset 'made[-1]'
    cannot "no network namespace: $(head -n 1 "$errors")"
}

link_host() { # I
    local host=${prefix}h$1 switch=${prefix}sw
    make "$host"
    ip -n "$switch" link add "port$1" type veth peer name eth0 netns "$host" 2>"$errors" ||
        cannot "no pair of virtual links: $(head -n 1 "$errors")"
    ip -n "$host" link set lo up
    ip -n "$host" addr add "$net.$1/24" dev eth0
    ip -n "$host" link set eth0 up
    ip -n "$switch" link set "port$1" master switch up
    shape "$host" eth0
    shape "$switch" "port$1"
}

up() { # N
    errors=$(mktemp)
    burst=
    [ "$rate" = none ] || burst=$(burst_of "$rate") || exit 2
    make "${prefix}sw"
    ip -n "${prefix}sw" link add switch type bridge 2>"$errors" ||
        cannot "no bridge: $(head -n 1 "$errors")"
    ip -n "${prefix}sw" link set switch up
    local i
    for i in $(seq "$1"); do link_host "$i"; done
}

# Ends what still runs on the hosts, and removes them.
down() { # NAME...
    local name pid
    for name in "$@"; do
        [ -e "/run/netns/$name" ] || continue
        for pid in $(ip netns pids "$name" 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
        ip netns del "$name" 2>/dev/null
    done
}

finish() {
    trap - EXIT
    trap '' INT TERM HUP
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null
        wait "$child" 2>/dev/null
    fi
    down "${made[@]}"
    rm -f "${errors:-}"
}

# On host I, under the host's own name: launchers tell nodes apart by it.
on_host() { # I COMMAND...
    local i=$1
    shift
    exec ip netns exec "${prefix}h$i" unshare --uts sh -c 'hostname "$0"; exec "$@"' "host$i" "$@"
}

# mpiexec's options. Open MPI: by default it lets a pair of ranks send one way at a time over TCP;
# limits above all messages cure that. More ranks than cores: whoever waits must yield.
launcher() { # N
    local mpiexec=${NETNS_MPIEXEC:-mpiexec} limit=33554432 i
    set -- "$1" $mpiexec
    command -v "$2" >/dev/null || cannot "$2 is not installed"
    launch=("${@:2}")
    case $("${launch[@]}" --version 2>&1 | head -n 3) in
    *"Open MPI"* | *OpenRTE*)
        [ "$1" = 0 ] || launch+=(--host "$(seq -s , -f "$net.%g:1" "$1")" -n "$1" --map-by node)
        launch+=(--bind-to none)
        launch+=(--mca plm rsh --mca plm_rsh_agent "$me" --mca plm_rsh_no_tree_spawn 1)
        launch+=(--mca oob_tcp_if_include "$net.0/24" --mca btl_tcp_if_include "$net.0/24")
        launch+=(--mca pml ob1 --mca btl tcp,self --mca mpi_yield_when_idle 1)
        launch+=(--mca orte_execute_quiet 1 --mca osc ^ucx)
        for i in eager_limit rndv_eager_limit max_send_size; do
            launch+=(--mca "btl_tcp_$i" "$limit")
        done
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        ;;
    *HYDRA* | *MPICH*)
        [ "$1" = 0 ] || launch+=(-hosts "$(seq -s , -f "$net.%g" "$1")" -ppn 1 -n "$1")
        launch+=(-launcher ssh -launcher-exec "$me" -iface eth0 -localhost "$net.1")
        export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0
        ;;
    *) cannot "${launch[0]} is neither Open MPI's nor MPICH's mpiexec" ;;
    esac
}

run() { # N PROGRAM...
    local n=$1 status
    shift
    launcher "$n"
    [ -n "${NETNS_PREFIX:-}" ] || up "$n"
    export NETNS_AGENT=$prefix
    # In the background: a signal must reach this shell while it waits.
    (on_host 1 "${launch[@]}" "$@") </dev/null &
    child=$!
    wait "$child"
    status=$?
    child=
    return $status
}

prefix=${NETNS_PREFIX:-ll$$}
rate=${NETNS_RATE:-1gbit}
case ${1:-} in
run)
    check_count "${2:-}"
    [ $# -ge 3 ] || wrong "run N PROGRAM"
    check_tools
    trap finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    run "${@:2}"
    ;;
up)
    check_count "${2:-}"
    rate=${3:-$rate}
    check_tools
    trap finish EXIT
    trap 'exit 130' INT TERM HUP
    up "$2"
    made=()
    echo "$prefix"
    ;;
down)
    check_count "${2:-}"
    [ -n "${NETNS_PREFIX:-}" ] || wrong "down wants NETNS_PREFIX, which up printed"
    check_tools
    down $(seq -f "${prefix}h%g" "$2") "${prefix}sw"
    ;;
mpiexec)
    [ -n "${NETNS_PREFIX:-}" ] || wrong "mpiexec wants NETNS_PREFIX, which up printed"
    launcher 0
    export NETNS_AGENT=$prefix
    on_host 1 "${launch[@]}" "${@:2}"
    ;;
*)
    [ -n "${NETNS_AGENT:-}" ] || wrong "run N PROGRAM..., up N [RATE] or down N"
    prefix=$NETNS_AGENT
    while [ "${1#-}" != "$1" ]; do shift; done # options that ssh would have
    host=${1##*.}
    shift
    on_host "$host" sh -c "$*"
    ;;
esac
