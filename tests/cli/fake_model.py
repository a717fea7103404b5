"""A model for the command-line tests: a real tokenizer, but answers from a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from lily.text import Tokenizer, read_stop_tokens


@dataclass(frozen=True)
class FakeSampling:
    temperature: float = 0.6
    top_k: int = 20
    top_p: float = 0.95
    min_p: float = 0.0
    seed: int | None = None


class Interrupt:
    """Stands in a script for Ctrl-C."""


class FakeSession:
    """Yields the script's next answer on each generation; records what it was asked."""

    def __init__(self, model: FakeModel, seed: int | None) -> None:
        self.model = model
        self.seed = seed
        self.tokens: list[int] = []
        self.prefills: list[list[int]] = []
        self.resets = 0
        self.samplings: list[FakeSampling] = []
        self.scored: list[list[int]] = []

    @property
    def position(self) -> int:
        return len(self.tokens)

    def prefill(self, ids, progress=None):
        self.prefills.append(list(ids))
        for at in range(0, len(ids), 64):
            self.tokens += ids[at : at + 64]
            if progress is not None:
                progress(min(at + 64, len(ids)), len(ids))

    def generate(self, max_tokens=None, *, sampling, stop_tokens) -> Iterator[int]:
        self.samplings.append(sampling)
        answer = self.model.answers.pop(0)
        for at, token in enumerate(answer):
            if isinstance(token, Interrupt):
                raise KeyboardInterrupt
            if isinstance(token, Exception):
                raise token
            if at == max_tokens or token in stop_tokens:
                return
            self.tokens.append(token)
            yield token

    def score(self, ids) -> np.ndarray:
        self.scored.append(list(ids))
        return (-np.asarray(ids[1:], dtype=np.float32) / 1000).astype(np.float32)

    def reset(self) -> None:
        self.resets += 1
        self.tokens = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class FakeModel:
    """`script`: for each generation a text, or a list of texts, `Interrupt` marks and exceptions."""

    def __init__(self, directory, script: Iterable = ()) -> None:
        self.tokenizer = Tokenizer.from_directory(directory)
        self.stop_tokens = read_stop_tokens(directory, vocab_size=4096, tokenizer=self.tokenizer)
        self.default_sampling = FakeSampling()
        self.max_context = 4096
        self.answers = [self._ids(answer) for answer in script]
        self.sessions: list[FakeSession] = []
        self.loaded_with: dict = {}

    def _ids(self, answer) -> list:
        parts = [answer] if isinstance(answer, str) else answer
        ids: list = []
        for part in parts:
            ids += self.tokenizer.encode(part) if isinstance(part, str) else [part]
        return ids

    def session(self, *, seed=None) -> FakeSession:
        self.sessions.append(FakeSession(self, seed))
        return self.sessions[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
