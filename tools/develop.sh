#!/usr/bin/env bash
# Sets a clone up for development: a virtual environment with all tools and an editable install whose C++ is rebuilt when
# Lily is imported. Afterwards `source .venv/bin/activate`, which the rebuild needs to find cmake.
#   bash tools/develop.sh [PYTHON]
# Needs a C++20 compiler, the headers of Python and doctest; on Debian and Ubuntu missing ones are installed with apt.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}

if command -v apt-get >/dev/null; then
  packages=()
  command -v g++ >/dev/null || packages+=(g++)
  "$python" -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv python3-dev)
  [[ -e /usr/include/doctest/doctest.h ]] || packages+=(doctest-dev)
  if ((${#packages[@]})); then
    as_root=(sudo)
    ((EUID)) || as_root=()
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" apt-get install -yq --no-install-recommends "${packages[@]}"
  fi
fi

[[ -d .venv ]] || "$python" -m venv .venv
export PATH="$PWD/.venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1
# shellcheck disable=SC2046
pip install -q scikit-build-core cmake ninja pre-commit codespell $(python tools/requirements.py dev)
launcher=()
command -v ccache >/dev/null && launcher=(-Ccmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
pip install -q --no-build-isolation --no-deps -e . -Ceditable.rebuild=true -Ceditable.verbose=false -Cbuild-dir=build/develop \
  -Ccmake.define.LILY_BUILD_TESTS=ON "${launcher[@]}"
[[ ! -d .git ]] || pre-commit install
printf 'Ready: source .venv/bin/activate, then pytest -q --quick (a minute) or pytest -q (everything).\n'
