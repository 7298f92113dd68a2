#!/usr/bin/env bash
# Installs what is missing: `scripts/setup.sh` for building and the demo, `scripts/setup.sh --check`
# for the tests too. Looks for the things themselves, not for packages, so that anything already
# there (from /usr/local, say) counts; on Debian and Ubuntu the rest comes from apt, elsewhere the
# packages are named. Says nothing when nothing is missing.
set -euo pipefail

missing=()
need() { # need PACKAGE TEST...: the package, where the test fails
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
has_lib() { pkg-config --exists "$1"; }
# A file of clang's own: its sanitizer and fuzzer libraries, its OpenMP.
clang_has() {
    local dir
    dir=$(clang -print-resource-dir) && compgen -G "$dir/$1"
}

need gcc command -v gcc
need libc6-dev test -e /usr/include/stdio.h
need cmake command -v cmake
command -v make >/dev/null || need ninja-build command -v ninja
need pkg-config command -v pkg-config
need libhwloc-dev has_lib hwloc
need libjansson-dev has_lib jansson
need libyaml-dev has_lib yaml-0.1
need libpcre2-dev has_lib libpcre2-8
need zlib1g-dev has_lib zlib
need libjpeg-dev has_lib libjpeg
need libpng-dev has_lib libpng
need libprotobuf-c-dev has_lib libprotobuf-c
need protobuf-c-compiler command -v protoc-c
has_mpi() { command -v mpicc && command -v mpiexec; } # whichever: Open MPI, MPICH
if ! has_mpi >/dev/null; then missing+=(libopenmpi-dev openmpi-bin); fi
need dataset-fashion-mnist test -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz
need bible-kjv-text test -e /usr/lib/bible.data
if [ "${1:-}" = --check ]; then
    need g++ command -v g++
    need libcmocka-dev has_lib cmocka
    need libhdf5-dev has_lib hdf5 # loaded where a file asks for it
    need clang command -v clang
    need libopenmpi-dev command -v mpicc.openmpi
    need openmpi-bin command -v mpiexec.openmpi
    need mpich command -v mpiexec.mpich
    need libmpich-dev command -v mpicc.mpich
    need clang-format command -v clang-format
    need libomp-dev clang_has include/omp.h
    need libclang-rt-dev clang_has 'lib/*/libclang_rt.fuzzer*.a'
fi
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "setup: these are missing; please install them (names as in Debian): ${missing[*]}" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup: please run as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "setup: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >>"$log" 2>&1; }
if ! { apt update && apt install --no-install-recommends "${missing[@]}"; }; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get could not install ${missing[*]}" >&2
    exit 1
fi
