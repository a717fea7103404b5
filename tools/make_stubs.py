"""Writes the type stubs of the native module, python/lily/_core/*.pyi, from the built module.

python tools/make_stubs.py            # rewrite them; lily must be installed or on PYTHONPATH
python tools/make_stubs.py --check    # exit 1 when the stored ones differ
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

STORED = Path(__file__).resolve().parent.parent / "python" / "lily" / "_core"


def generate(directory: Path) -> dict[str, str]:
    """Stub texts by file name, freshly generated into `directory`."""
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-r", "-m", "lily._core", "-O", str(directory)]
    subprocess.run(command, check=True)
    return {path.name: path.read_text() for path in sorted((directory / "_core").glob("*.pyi"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare with the stored stubs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        fresh = generate(Path(directory))
    stored = {path.name: path.read_text() for path in sorted(STORED.glob("*.pyi"))}
    if fresh == stored:
        return 0
    if arguments.check:
        print("the stubs differ from the module: run python tools/make_stubs.py", file=sys.stderr)
        return 1
    STORED.mkdir(exist_ok=True)
    for name in stored.keys() - fresh.keys():
        (STORED / name).unlink()
    for name, text in fresh.items():
        (STORED / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
