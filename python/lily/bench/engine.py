"""LilyEngine: single timed runs of a loaded model."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lily.bench.errors import BenchError
from lily.sampling import Sampling

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["LilyEngine", "random_ids"]


def random_ids(count: int, vocab_size: int) -> npt.NDArray[np.int32]:
    """The `count` token ids of a prompt of that length, the same in every run."""
    return np.random.default_rng(count).integers(0, vocab_size, count, dtype=np.int32)


class LilyEngine:
    """Times prompts and decoding, and checks that equal work gives equal tokens."""

    def __init__(self, model: Model, vocab_size: int) -> None:
        self._model = model
        self._session = model.session(seed=0)
        self._vocab_size = vocab_size
        self._digests: dict[str, str] = {}

    def close(self) -> None:
        """Close the model, so that its files' pages can leave memory; `reopen` before the next run."""
        self._model.close()

    def reopen(self, model: Model) -> None:
        """Load the same model again."""
        self._model = model
        self._session = model.session(seed=0)

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256, shortened, of the ids that each measurement produced."""
        return dict(self._digests)

    def prefill(self, length: int) -> float:
        """Seconds to compute a prompt of `length` tokens up to its last logits."""
        ids = random_ids(length, self._vocab_size)
        self._session.reset()
        start = time.perf_counter()
        logits = self._session.prefill(ids)
        seconds = time.perf_counter() - start
        self._record(f"prefill {length}", [int(logits.argmax())])
        return seconds

    def decode(self, context: int, tokens: int) -> float:
        """Seconds for `tokens` steps of greedy decoding after a prompt of `context` tokens, which is not timed."""
        self._session.reset()
        self._session.prefill(random_ids(context, self._vocab_size))
        return self.continue_after(context, tokens)

    def continue_after(self, context: int, tokens: int) -> float:
        """The same directly after `prefill(context)`, continuing its prompt."""
        start = time.perf_counter()
        # The first of these tokens comes from the logits of the prompt, each of the others takes a step.
        produced = list(self._session.generate(tokens + 1, sampling=Sampling.greedy(), stop_tokens=()))
        seconds = time.perf_counter() - start
        self._record(f"decode {context}", produced)
        return seconds

    def warm_up(self, length: int, tokens: int) -> None:
        """An unmeasured prompt and a few steps."""
        self._session.reset()
        self._session.prefill(random_ids(length, self._vocab_size))
        list(self._session.generate(tokens, sampling=Sampling.greedy(), stop_tokens=()))

    def _record(self, name: str, produced: list[int]) -> None:
        digest = hashlib.sha256(np.asarray(produced, dtype=np.int32).tobytes()).hexdigest()[:16]
        if self._digests.setdefault(name, digest) != digest:
            raise BenchError(f"{name}: two runs produced different tokens; please report this as a bug")
