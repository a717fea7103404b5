#!/usr/bin/env bash
# Builds the native module with a sanitizer into a virtual environment of its own and runs the suite under it.
#   tools/sanitize.sh address,undefined [pytest arguments]
#   tools/sanitize.sh thread [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?sanitizer: address,undefined or thread}
shift
venv=build/sanitize-${kind%%,*}
python3 -m venv "$venv"
"$venv/bin/pip" install -q ".[test]" -Ccmake.define.LILY_SANITIZE="$kind" -Ccmake.build-type=RelWithDebInfo \
  -Cbuild-dir="$venv/build"
case $kind in
  address*) runtime=$(g++ -print-file-name=libasan.so) ;;
  thread*) runtime=$(g++ -print-file-name=libtsan.so) ;;
  *) echo "unknown sanitizer: $kind" >&2; exit 2 ;;
esac
# The interpreter itself is not instrumented: its allocations at exit are not leaks of ours, and its own locks are
# invisible to ThreadSanitizer.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=ignore_noninstrumented_modules=1
# The C++ library goes in with it: the runtime looks for its throw function when it starts.
LD_PRELOAD="$runtime $(g++ -print-file-name=libstdc++.so)" "$venv/bin/python" -m pytest -q -p no:cacheprovider "${@:-tests}"
