#!/usr/bin/env bash
# Builds with a sanitizer and runs tests under it.
#   tools/sanitize.sh address,undefined [pytest arguments]    the suite, with a virtual environment of its own
#   tools/sanitize.sh thread [pytest arguments]
#   tools/sanitize.sh --cpp address,undefined                 the C++ tests alone: no Python module, no kernels of devices
#   tools/sanitize.sh --cpp thread [regular expression of tests]
set -euo pipefail
cd "$(dirname "$0")/.."
cpp=
[[ ${1:-} == --cpp ]] && cpp=1 && shift
kind=${1:?sanitizer: address,undefined or thread}
shift
case $kind in
  address*) runtime=$(g++ -print-file-name=libasan.so) ;;
  thread*) runtime=$(g++ -print-file-name=libtsan.so) ;;
  *) echo "unknown sanitizer: $kind" >&2; exit 2 ;;
esac
# The interpreter itself is not instrumented: its allocations at exit are not leaks of ours, and its own locks are
# invisible to ThreadSanitizer.
export ASAN_OPTIONS=detect_leaks=${cpp:-0}:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=ignore_noninstrumented_modules=1

if [[ $cpp ]]; then
  # Tools and headers of the virtual environment that is in use, as `pip install .` would have them.
  python=${PYTHON:-python3}
  build=build/sanitize-cpp-${kind%%,*}
  filter=${1:-.}
  tests=$(ls tests/cpp/test_*.cpp | xargs -n1 basename -s .cpp | grep -E "$filter")
  cmake -S . -B "$build" -G Ninja -Wno-dev -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -g1" -DLILY_SANITIZE="$kind" \
    -DLILY_SIM=OFF -DLILY_CUDA=OFF -DLILY_BUILD_TESTS=ON \
    -DPython_EXECUTABLE="$(command -v "$python")" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" >/dev/null
  # shellcheck disable=SC2086
  cmake --build "$build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" --target $tests
  exec ctest --test-dir "$build" --output-on-failure --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" -R "$filter"
fi

venv=build/sanitize-${kind%%,*}
python3 -m venv "$venv"
"$venv/bin/pip" install -q ".[test]" -Ccmake.define.LILY_SANITIZE="$kind" -Ccmake.build-type=RelWithDebInfo \
  -Cbuild-dir="$venv/build"
# The C++ library goes in with it: the runtime looks for its throw function when it starts.
LD_PRELOAD="$runtime $(g++ -print-file-name=libstdc++.so)" "$venv/bin/python" -m pytest -q -p no:cacheprovider "${@:-tests}"
