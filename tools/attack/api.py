"""Hostile values for every parameter of every public function: one of Lily's errors, and the session as it was."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoints import TINY
from .figures import MIB, Figures
from .hostile_values import HostileError, hostile_value
from .isolated import attempt_all, outcome_of
from .limits import Limits
from .public_calls import Objects, public_calls

__all__ = ["attack"]

SECONDS_EACH, BYTES_EACH = 60, 1536 * MIB
MOST_ITEMS = 30  # of what a call yields


def attack(limits: Limits) -> Figures:
    """Call with one or two arguments replaced."""
    return attempt_all("api", _prepare, _attempt, limits, seconds_each=SECONDS_EACH, bytes_each=BYTES_EACH)


def _prepare(folder: Path) -> tuple[Any, Path, list[Any], Any]:
    import lily

    os.environ |= {"HF_HUB_OFFLINE": "1", "HOME": str(folder / "home"), "LILY_CACHE_DIR": str(folder / "hashes")}
    (folder / "home").mkdir(exist_ok=True)
    (folder / "here").mkdir(exist_ok=True)
    os.chdir(folder / "here")  # where relative paths lead
    model = lily.Model.load("lily-tiny", threads=1, max_context=64)
    objects = Objects(model, TINY, folder)
    expected = model.prefill([1, 2, 3, 4, 5]).logits
    return model, folder, public_calls(objects), expected


def _attempt(context: tuple[Any, Path, list[Any], Any], rng: random.Random, seed: int) -> tuple[str, str]:
    model, folder, calls, expected = context
    call = rng.choice(calls)
    objects = Objects(model, TINY, folder)
    arguments = call.good(objects)
    what = call.name
    for name in rng.sample(call.parameters, min(len(call.parameters), rng.choice((1, 1, 2)))):
        number, arguments[name] = hostile_value(rng)
        what += f", {name}: value {number}"
    proper = (HostileError, OSError, *((TypeError,) if call.name == "python_tool.call" else ()))  # as it says
    outcome = outcome_of(lambda: _consume(call.function(objects)(**arguments)), *proper)
    for path in (folder / "here").iterdir():  # "a", for one, is a proper path
        if path.name == "~":
            outcome = "raw: a folder or file named ~ was made"
        path.unlink() if path.is_file() else path.rmdir()
    if outcome == "refused" and call.name.split(".")[0] == "session" and objects.session.tokens != objects.before:
        outcome = "raw: the session has changed although the call was refused"
    objects.close()
    with model.prefill([1, 2, 3, 4]) as session:
        if not np.array_equal(session.decode(5), expected):
            outcome = "raw: the model computes something else afterwards"
    return outcome, what


def _consume(value: Any) -> None:
    """Take some of what is yielded, and look at the result."""
    if isinstance(value, Iterator):
        for item in itertools.islice(value, MOST_ITEMS):
            repr(item)
    if type(value).__module__.startswith("lily"):
        with contextlib.suppress(RecursionError):  # of what the caller put into it
            repr(value)
    close = getattr(value, "close", None)
    if callable(close) and type(value).__name__ in ("Session", "Chat", "Model", "Snapshot"):
        close()
