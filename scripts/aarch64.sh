#!/usr/bin/env bash
# aarch64.sh: builds for aarch64 on another Debian and runs tests there as qemu has it: for who changes kernels
# and has no such machine. The packages of the other architecture are unpacked in a folder; nothing is timed.
#
#     scripts/aarch64.sh                       test_gemm, test_conv2d, test_op and a few more; half an hour
#     scripts/aarch64.sh test_norm ...         these
#     CPU=neoverse-n1 scripts/aarch64.sh ...   of qemu's (default max: with bf16, i8mm and SVE)
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
for tool in debootstrap qemu-aarch64 aarch64-linux-gnu-gcc cmake ninja; do
    command -v $tool >/dev/null || {
        echo "aarch64.sh: $tool is missing: apt-get install debootstrap qemu-user gcc-aarch64-linux-gnu cmake ninja-build" >&2
        exit 2
    }
done
tests=("${@:-test_gemm}")
[ $# -gt 0 ] || tests=(test_gemm test_conv2d test_norm test_packed test_attention test_op)
build=$PWD/build-aarch64 root=$PWD/build-aarch64/root
lib=$root/usr/lib/aarch64-linux-gnu
if [ ! -e "$build/unpacked" ]; then
    mkdir -p "$build"
    debootstrap --foreign --arch=arm64 --variant=minbase \
        --include=libopenmpi-dev,libhwloc-dev,libjansson-dev,libyaml-dev,zlib1g-dev,libcmocka-dev,libopenblas-pthread-dev,libgomp1 \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" >"$build/debootstrap.log" ||
        { tail -n 3 "$build/debootstrap.log" >&2 && exit 1; }
    for p in "$root"/var/cache/apt/archives/*.deb; do dpkg -x "$p" "$root"; done
    for f in so so.0; do ln -sf openblas-pthread/libopenblas.$f "$lib/libopenblas.$f"; done
    touch "$build/unpacked"
fi
cat >"$build/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_SYSROOT $root)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_C_FLAGS_INIT -march=armv8.2-a+fp16+dotprod)
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,$lib:$lib/openblas-pthread:$lib/openmpi/lib)
set(MPI_C_HEADER_DIR $lib/openmpi/include)
set(MPI_C_INCLUDE_DIRS $lib/openmpi/include)
set(MPI_C_LIB_NAMES mpi)
set(MPI_mpi_LIBRARY $lib/openmpi/lib/libmpi.so)
END
export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$lib/pkgconfig:$lib/openblas-pthread/pkgconfig
cmake -S . -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$build/toolchain.cmake" -DMPI_C_COMPILER=aarch64-linux-gnu-gcc \
    -DLL_CUDA=OFF -DLL_NATIVE=OFF -DCMAKE_BUILD_TYPE=Release >"$build/cmake.log" || { tail -n 5 "$build/cmake.log" && exit 1; }
ninja -C "$build" loopline "${tests[@]}"
failed=0
for t in "${tests[@]}"; do
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} qemu-aarch64 -cpu "${CPU:-max}" -L "$root" \
        -E LD_LIBRARY_PATH="$lib/openblas-pthread:$lib/openmpi/lib" "$build/$t" >"$build/$t.log" 2>&1 && state=ok || state=FAILED
    echo "$t: $state, $(grep -c '\[       OK' "$build/$t.log") passed"
    [ $state = ok ] || { grep -A 3 -E 'ERROR|FAILED' "$build/$t.log" | tail -n 20; failed=1; }
done
exit $failed
