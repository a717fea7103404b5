"""Prints what Lily and some of its extras need, without Lily itself: to install all tools before anything is built.

pip install $(python tools/requirements.py dev)
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pip has it
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parent.parent
OWN = re.compile(r"lily-engine\[([\w,]+)\]")  # an extra that consists of others


def main() -> None:
    """Print one requirement a line, without spaces, as a shell's word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*")
    for requirement in requirements(parser.parse_args().extras):
        print(requirement)


def requirements(extras: list[str]) -> list[str]:
    """The requirements of the package and of these extras, each once; markers that are not met here are left to pip."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = dict.fromkeys(project["dependencies"])
    waiting, seen = list(extras), set()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in project["optional-dependencies"][extra]:
            own = OWN.fullmatch(requirement)
            if own is None:
                found[requirement] = None
            else:
                waiting += own[1].split(",")
    return [re.sub(r"\s", "", one) for one in found]


if __name__ == "__main__":
    main()
