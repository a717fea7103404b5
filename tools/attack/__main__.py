"""Runs attacks on Lily and prints a line of figures for each; the exit status is 1 if a promise is broken.

python -m tools.attack                          # all of them, at their own size
python -m tools.attack chaos --count 200        # one, with 200 attempts
python -m tools.attack checkpoints --first 4711 --count 1    # what seed 4711 did, once more
"""

from __future__ import annotations

import argparse
import sys
import time

from .figures import header
from .limits import Limits
from .registry import ATTACKS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.attack",
        description=(__doc__ or "").splitlines()[0],
        epilog="\n".join(f"{name:12} {attack.count:6}  {attack.summary}" for name, attack in ATTACKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="all by default")
    parser.add_argument("--count", type=int, help="attempts; each attack has a number of its own")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no new attempt after that time")
    parser.add_argument("--first", type=int, default=0, help="seed of the first attempt")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(ATTACKS)
    if unknown:
        parser.error(f"no such attack: {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    broken = False
    print(header(), flush=True)
    for name in arguments.names or ATTACKS:
        attack = ATTACKS[name]
        limits = Limits(arguments.count or attack.count, arguments.seconds, arguments.first)
        figures = attack.run(limits)
        figures.seconds = time.monotonic() - limits.started
        print(figures.line(), *figures.details(), sep="\n", flush=True)
        broken |= bool(figures.faults)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
