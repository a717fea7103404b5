"""Arguments of the library's functions, of wrong types and values: a result or one of Lily's errors, never another."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import lily
from fuzz.mutations import ODD_VALUES
from fuzz.target import Attempt, Target
from lily import Model, Sampling, Session
from lily.errors import LilyError
from lily.server import ServerOptions
from lily_tiny import CHECKPOINT

__all__ = ["TARGETS"]

_LOAD = sorted(inspect.signature(Model.load).parameters.keys() - {"source", "progress"})
_SAMPLING = sorted(inspect.signature(Sampling).parameters)
_GENERATION = sorted(inspect.signature(Session.generation).parameters.keys() - {"self"})
_CHAT = sorted(inspect.signature(Model.chat).parameters.keys() - {"self"})
_SERVER = sorted(inspect.signature(ServerOptions).parameters)


def _calls(model: Model, folder: Path) -> dict[str, Callable[[str, Any], object]]:
    def load(name: str, value: Any) -> None:
        if name == "prefix_cache_dir" and isinstance(value, str) and value:
            value = str(folder / value.strip("/.\0")) + value[-1:].replace("x", "")
        Model.load(CHECKPOINT, **{"threads": 1, "prefix_cache_bytes": 1 << 20, name: value}).close()

    def generate(name: str, value: Any) -> None:
        with model.prefill([1, 2]) as session:
            list(session.generation(**{"max_tokens": 2, name: value}))

    def chat(name: str, value: Any) -> None:
        with contextlib.closing(model.chat(**{"thinking": False, "max_tokens": 2, name: value})) as talk:
            talk.ask("Hi")

    def session(name: str, value: Any) -> None:
        with model.prefill([1, 2]) as one:
            getattr(one, name)(value)

    return {
        "load": load,
        "sampling": lambda name, value: list(model.prefill([1]).generate(2, sampling=Sampling(**{name: value}))),
        "generation": generate,
        "chat": chat,
        "session": session,
        "model": lambda name, value: getattr(model, name)(value),
        "new session": lambda name, value: model.session(seed=value).close(),
        "server": lambda name, value: ServerOptions(**{name: value}),
        "encode": lambda _, value: model.tokenizer.encode(value),
        "decode": lambda _, value: model.tokenizer.decode(value),
        "cache": lambda _, value: model.cached_session(value).close(),
    }


@contextlib.contextmanager
def _prepare(folder: Path) -> Iterator[Attempt]:
    with Model.load(CHECKPOINT, threads=1, max_context=1024) as model:
        calls = _calls(model, folder)

        def attempt(value: list[Any]) -> str:
            call, name, argument = value
            try:
                calls[call](name, argument)
            except LilyError as error:
                assert len(str(error)) < 2000
                str(error).encode()
                return "refused"
            return "taken"

        yield attempt
        assert len(list(model.prefill([1, 2]).generate(3, sampling=lily.Sampling.greedy(), stop_tokens=()))) == 3


_more = ["x" * 300_000, b"ab", {1: 2}, ["a"]]
_odd = st.sampled_from([*ODD_VALUES, *_more])
_places = [
    *(("load", name) for name in _LOAD),
    *(("sampling", name) for name in _SAMPLING),
    *(("generation", name) for name in _GENERATION),
    *(("chat", name) for name in _CHAT),
    *(("session", name) for name in ("prefill", "decode", "score", "restore")),
    *(("model", name) for name in ("prefill", "render_chat", "load_session")),
    *(("server", name) for name in _SERVER),
    *((name, "") for name in ("encode", "decode", "cache", "new session")),
]
_inputs = st.builds(lambda place, value: [*place, value], st.sampled_from(_places), _odd)
TARGETS = [Target("arguments", _inputs, _prepare, 400, frozenset({"refused", "taken"}))]
