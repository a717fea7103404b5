#!/usr/bin/env bash
# Counts the instructions of the NEON matrix kernels under qemu, by instruction set: what they have to do, not how fast.
#   bash tools/count_aarch64.sh [BUILD_DIR]
# Run tools/test_aarch64.sh before: its objects are used. Printed: instructions for 1,000 products of a 4- or 8-bit weight
# with an activation of 16 bits, two bytes: 62.5 8-bit matrix products or, with 4 bits, 125 dot products among them.
set -euo pipefail
cd "$(dirname "$0")/.."

build="${1:-build/aarch64}"
cc -O2 -fPIC -shared tools/count_aarch64/count.c -o "$build/count.so"
aarch64-linux-gnu-g++ -std=c++20 -O2 -Isrc/lily_core -static -pthread tests/count_matmul.cpp "$build"/{isa,cpu}_*.o \
  -o "$build/count_matmul"

# Prints the instructions of a run.
instructions() { qemu-aarch64 -plugin "$build/count.so" "$build/count_matmul" "$@"; }

printf '%-6s %6s %8s %8s\n' bits inputs neon i8mm
for bits in 4 8; do
  for inputs in 1 2 4 8 16 64; do
    printf '%-6s %6s' "$bits" "$inputs"
    for isa in neon i8mm; do
      once="$(instructions "$isa" "$bits" "$inputs" 1)"
      often="$(instructions "$isa" "$bits" "$inputs" 11)"
      awk -v count=$((often - once)) -v inputs="$inputs" 'BEGIN { printf " %8.0f", count / (10 * 64 * 2.048 * inputs) }'
    done
    printf '\n'
  done
done
