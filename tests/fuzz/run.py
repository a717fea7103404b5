"""Runs one target for a number of inputs or minutes, and all targets one after the other, each in a process."""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed

from fuzz.bounds import TookTooLong, bounded, limit_process
from fuzz.target import Attempt, Target, decode_input, encode_input
from fuzz.targets import TARGETS

__all__ = ["FOUND", "ROOT", "TARGETS", "main"]

ROOT = Path(__file__).resolve().parents[2]
FOUND = Path(__file__).resolve().parent / "found"  # inputs that once failed, by target
_PROCESS_MEGABYTES = 4096
_ROUND = 500  # inputs between looks at the clock


class Runner:
    """Tries inputs within their bounds, and keeps the one that failed."""

    def __init__(self, target: Target, attempt: Attempt, save: Path) -> None:
        self.outcomes: Counter[str] = Counter()
        self._target = target
        self._attempt = attempt
        self._save = save
        self._running = save / f"{target.name}.{os.getpid()}.running"
        self._failing: str | None = None

    def try_one(self, value: Any) -> None:
        """Try an input. A process that dies leaves it in the .running file."""
        text = encode_input(value)
        self._running.write_text(text)
        try:
            with bounded(self._target.seconds, self._target.megabytes):
                outcome = self._attempt(value)
        except BaseException:
            self._failing = text
            raise
        self.outcomes[outcome] += 1

    def finish(self) -> Path | None:
        """Where the last input that failed is kept; hypothesis tries the smallest last."""
        self._running.unlink(missing_ok=True)
        if self._failing is None:
            return None
        name = f"{self._target.name}-{hashlib.sha256(self._failing.encode()).hexdigest()[:10]}.json"
        (self._save / name).write_text(self._failing)
        return self._save / name


def _round(runner: Runner, target: Target, examples: int, seed: int) -> None:
    @with_seed(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(target.inputs)
    def try_all(value: Any) -> None:
        runner.try_one(value)

    try_all()


def _run(target: Target, arguments: argparse.Namespace) -> int:
    arguments.save.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lily-fuzz-") as folder, target.prepare(Path(folder)) as attempt:
        runner = Runner(target, attempt, arguments.save)
        limit_process(_PROCESS_MEGABYTES)
        seed = arguments.seed
        end = time.monotonic() + 60 * (arguments.minutes or 0)
        try:
            for file in arguments.replay:
                runner.try_one(decode_input(file.read_text()))
            while not arguments.replay:
                _round(runner, target, arguments.examples or (_ROUND if arguments.minutes else target.examples), seed)
                if time.monotonic() >= end:
                    break
                seed = random.SystemRandom().getrandbits(32)
        except BaseException as error:
            kept = runner.finish()
            traceback.print_exc()
            print(f"\n{target.name} (seed {seed}): the input that failed is in {kept}; try it again with\n"
                  f"  python -m tests.fuzz --replay {kept} -- {target.name}", file=sys.stderr)  # fmt: skip
            if isinstance(error, TookTooLong):  # a thread may never end
                sys.stderr.flush()
                os._exit(1)
            return 1
        runner.finish()
    print(f"{target.name}: {sum(runner.outcomes.values())} inputs: {dict(sorted(runner.outcomes.items()))}")
    missing = set() if arguments.replay else target.expected - set(runner.outcomes)
    if missing:
        print(f"{target.name}: nothing was {', '.join(sorted(missing))}: the inputs miss the point", file=sys.stderr)
    return 1 if missing else 0


def _run_each(names: list[str], arguments: argparse.Namespace) -> int:
    """Each target in a process of its own, so that a crash of one ends no other."""
    command = [sys.executable, "-m", "tests.fuzz", "--seed", str(arguments.seed), "--save", str(arguments.save)]
    if arguments.minutes is not None:
        command += ["--minutes", str(arguments.minutes / len(names))]
    if arguments.examples is not None:
        command += ["--examples", str(arguments.examples)]
    failed = [name for name in names if subprocess.run([*command, name], cwd=ROOT, check=False).returncode]
    if failed:
        print(f"failed: {', '.join(failed)}; inputs are kept in {arguments.save}", file=sys.stderr)
    return 1 if failed else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="target", help=f"all if none is named: {', '.join(TARGETS)}")
    parser.add_argument("--minutes", type=float, help="for all targets together; by default a run of seconds")
    parser.add_argument("--examples", type=int, help="inputs of each target, instead of its own number")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; later ones are random")
    parser.add_argument("--save", type=Path, default=ROOT / "build" / "fuzz", help="folder for inputs that fail")
    parser.add_argument("--replay", type=Path, nargs="*", default=[], help="try kept inputs instead of new ones")
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(TARGETS)
    if unknown or (arguments.replay and len(arguments.targets) != 1):
        parser.error(f"no such target: {', '.join(unknown)}" if unknown else "--replay needs the name of one target")
    faulthandler.enable()
    names = arguments.targets or list(TARGETS)
    return _run(TARGETS[names[0]], arguments) if len(names) == 1 else _run_each(names, arguments)
