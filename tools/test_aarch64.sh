#!/usr/bin/env bash
# Cross-compiles the kernel tests for aarch64 and runs them under qemu: the NEON kernels without an ARM machine. The
# matrix kernels also run on processors that lack instructions, which must be found out and done without.
#   bash tools/test_aarch64.sh [BUILD_DIR]
# Missing tools (g++-aarch64-linux-gnu, qemu-user, doctest-dev) are installed with apt. The tests' own grids are used; each
# test is stopped, and fails, after LILY_QEMU_TIMEOUT seconds (200 by default). LILY_QEMU_PROCESSORS names some of the
# processors that the matrix kernels run on.
set -euo pipefail
cd "$(dirname "$0")/.."

build="${1:-build/aarch64}"
jobs="${CMAKE_BUILD_PARALLEL_LEVEL:-2}"
seconds="${LILY_QEMU_TIMEOUT:-200}"
compiler=aarch64-linux-gnu-g++

if ! command -v "$compiler" >/dev/null || ! command -v qemu-aarch64 >/dev/null ||
  [[ ! -e /usr/include/doctest/doctest.h ]]; then
  apt-get update -q
  apt-get install -yq --no-install-recommends g++-aarch64-linux-gnu qemu-user doctest-dev
fi

mkdir -p "$build"
warnings=(-Wall -Wextra -Wshadow -Werror)
flags=(-std=c++20 -O2 -pthread -ffp-contract=off -Isrc/lily_core -Itests "${warnings[@]}")

# Prints the flags of one source: the units of an instruction set get its own, as in CMakeLists.txt.
isa_flags() {
  local isa
  isa="$(basename "${1%_*}")"
  case "$1" in
    */isa/*) echo -O3 "$(sed -n "s/^ *lily_add_isa($isa \(.*\))\$/\1/p" CMakeLists.txt)" ;;
  esac
}

compile() {
  local source="$1" object="$2"
  # shellcheck disable=SC2046
  "$compiler" "${flags[@]}" $(isa_flags "$source") -c "$source" -o "$object"
}

# What the kernels need; nothing of the engine, whose other backends are no part of these tests.
sources=(src/lily_core/cpu/dispatch.cpp src/lily_core/cpu/amx_permission.cpp src/lily_core/cpu/activations.cpp
  src/lily_core/cpu/aligned_buffer.cpp)
for unit in src/lily_core/cpu/isa/{i8mm,neon,portable}_*.cpp; do
  [[ -e "$unit" ]] && sources+=("$unit")
done

# Prints the object of a source.
object_of() { echo "$build/$(basename "$(dirname "$1")")_$(basename "$1" .cpp).o"; }

tests=(tests/cpp/test_isa_selection.cpp tests/cpp/test_matmul*.cpp tests/cpp/test_*_kernels.cpp)
main=tests/cpp/main.cpp
objects=()
pending=()
for source in "${sources[@]}" "$main" "${tests[@]}"; do
  compile "$source" "$(object_of "$source")" &
  pending+=($!)
  if ((${#pending[@]} >= jobs)); then
    wait "${pending[0]}"
    pending=("${pending[@]:1}")
  fi
done
for process in ${pending[@]+"${pending[@]}"}; do wait "$process"; done
for source in "${sources[@]}"; do objects+=("$(object_of "$source")"); done

for test in "${tests[@]}"; do
  name="$(basename "$test" .cpp)"
  "$compiler" -static -pthread "$(object_of "$test")" "$(object_of "$main")" "${objects[@]}" -o "$build/$name"
  [[ "$name" == *_kernels ]] || continue
  printf '== %s on aarch64\n' "$name"
  timeout --foreground "$seconds" qemu-aarch64 "$build/$name"
done

# Runs the tests of the matrix kernels on a processor that has the instruction sets named.
test_matmul() {
  local test name
  for test in "${tests[@]}"; do
    name="$(basename "$test" .cpp)"
    [[ "$name" == *_kernels ]] && continue
    printf '== %s on %s\n' "$name" "$1"
    LILY_TEST_ISAS="${*:2}" timeout --foreground "$seconds" qemu-aarch64 -cpu "$1" "$build/$name"
  done
}
for processor in ${LILY_QEMU_PROCESSORS:-max neoverse-n1 cortex-a72}; do
  case $processor in
    max) test_matmul max i8mm neon portable ;;
    neoverse-n1) test_matmul neoverse-n1 neon portable ;;
    cortex-a72) test_matmul cortex-a72 portable ;;
  esac
done
