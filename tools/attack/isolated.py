"""Attempts in a process of their own: a crash or a hang ends that process and is counted, and the next one goes on."""

from __future__ import annotations

import faulthandler
import gc
import logging
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .figures import MIB, Figures
from .limits import Limits
from .memory import peak_bytes, reset_peak, rss_bytes

__all__ = ["attempt_all", "outcome_of"]

# prepare(folder) -> context; attempt(context, random numbers, seed) -> (outcome, what was tried)
Prepare = Callable[[Path], Any]
Attempt = Callable[[Any, random.Random, int], tuple[str, str]]
START_SECONDS = 120
BUSY = 5  # times as long by the clock as the process computes, on a machine that does other things as well


def attempt_all(
    name: str, prepare: Prepare, attempt: Attempt, limits: Limits, *, seconds_each: float, bytes_each: int
) -> Figures:
    """Run `attempt` for each seed, in a folder that is removed at the end.

    Each may compute so many seconds and take so much more memory than before it.
    """
    figures = Figures(name)
    with tempfile.TemporaryDirectory(prefix="lily-attack-") as folder:
        _attempt_in(Path(folder), figures, prepare, attempt, limits, seconds_each, bytes_each)
    return figures


def _attempt_in(
    folder: Path,
    figures: Figures,
    prepare: Prepare,
    attempt: Attempt,
    limits: Limits,
    seconds_each: float,
    bytes_each: int,
) -> None:
    child: tuple[Any, Connection] | None = None
    for seed in limits.seeds():
        if limits.is_over:
            break
        if child is None:
            child = _start(prepare, attempt, folder)
        process, pipe = child
        pipe.send(seed)
        ended = _answer(pipe, seconds_each * BUSY)
        if ended is None:
            hung = process.is_alive() and not _ends_soon(process)
            process.kill()
            process.join()
            figures.count("hang" if hung else f"crash: exit code {process.exitcode}", f"seed {seed}")
            child = None
            continue
        outcome, what, seconds, (before, peak, after) = ended
        figures.count(outcome if seconds <= seconds_each else f"hang: {seconds:.0f} s", f"seed {seed}, {what}")
        figures.saw(before, peak, after)
        if peak - before > bytes_each:
            figures.broken(f"seed {seed}, {what}: took {(peak - before) / MIB:.0f} MiB")
    if child is not None:
        child[0].kill()
        child[0].join()


def outcome_of(call: Callable[[], object], *proper: type[BaseException]) -> str:
    """How a call ended: fine, refused with one of Lily's errors (or of `proper`), or with a raw error."""
    from lily import LilyError

    try:
        call()
    except (LilyError, *proper):
        return "refused"
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"raw: {type(error).__name__}: {str(error)[:160]} ({Path(place.filename).name}:{place.lineno})"
    return "fine"


def _start(prepare: Prepare, attempt: Attempt, folder: Path) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, prepare, attempt, folder), daemon=True)
    process.start()
    theirs.close()
    if _answer(ours, START_SECONDS) != "ready":
        process.kill()
        raise RuntimeError("the process of the attempts did not start")
    return process, ours


def _answer(pipe: Connection, seconds: float) -> Any:
    try:
        return pipe.recv() if pipe.poll(seconds) else None
    except (EOFError, ConnectionError):
        return None


def _ends_soon(process: Any) -> bool:
    process.join(2)
    return not process.is_alive()


def _work(pipe: Connection, prepare: Prepare, attempt: Attempt, folder: Path) -> None:
    """What the process does."""
    faulthandler.enable()
    sys.stdout = Path("/dev/null").open("w")  # noqa: SIM115 -- `lily.notebook.show` writes there
    logging.getLogger("lily").addHandler(logging.NullHandler())  # it warns of each damaged file
    context = prepare(folder)
    pipe.send("ready")
    while True:
        seed = pipe.recv()
        gc.collect()
        reset_peak()
        before = rss_bytes()
        started = time.process_time()
        outcome, what = attempt(context, random.Random(seed), seed)
        pipe.send((outcome, what, time.process_time() - started, (before, peak_bytes(), rss_bytes())))
