"""The whole model on a backend against the CPU backend, on the same tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lily.checkpoint import Checkpoint
from lily.errors import TokenizerError
from lily.model import Model

__all__ = ["Agreement", "Limits", "compare_backends"]

Report = Callable[[str], None]

TEXT = (
    "The tide had gone out further than anyone in the village could remember. Where the boats used to lie there was "
    "only wet sand, and on the sand the children had found a door. It was made of oak, it had an iron handle, and it "
    "stood upright, as if a house had once been built around it and then carried off stone by stone. Nobody wanted to "
    "be the first to open it. An old man said that the sea takes what it likes and gives back what it does not need."
)
STEPS = 24
SCORED = 160


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits for the figures of `Agreement`.

    A backend rounds activations to bfloat16 between kernels, which moves a logit by about a hundredth and can change
    experts near a tie. Wrong kernels are off by orders of magnitude more.
    """

    log_probability: float = 0.1
    divergence: float = 0.05
    top1: float = 0.85


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How two backends differ over the same tokens.

    `log_probability`: mean difference of the scored tokens' log-probabilities, in nats, of the prompt's path.
    `scored_top1`: share of the scored positions with the same best token. `divergence`: mean Kullback-Leibler
    divergence of single steps, in nats. `step_top1`: share of the steps with the same best token.
    """

    reference: str
    log_probability: float
    scored_top1: float
    divergence: float
    step_top1: float
    positions: int
    steps: int
    limits: Limits = dataclasses.field(default_factory=Limits)

    @property
    def passed(self) -> bool:
        """Whether all figures are within their limits; NaN is not."""
        return (
            self.log_probability <= self.limits.log_probability
            and self.divergence <= self.limits.divergence
            and self.scored_top1 >= self.limits.top1
            and self.step_top1 >= self.limits.top1
        )

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return {**dataclasses.asdict(self), "passed": self.passed}


@dataclasses.dataclass(frozen=True)
class _Run:
    log_probabilities: npt.NDArray[np.float32]  # [positions]
    best: npt.NDArray[np.int32]  # [positions]
    logits: npt.NDArray[np.float32]  # [steps, vocab_size]


def compare_backends(checkpoint: Checkpoint, backend: str, report: Report) -> Agreement:
    """Runs the CPU backend (with portable kernels if it is the one checked), then the backend, on the same tokens."""
    reference = "cpu" if backend != "cpu" else "cpu, portable kernels"
    with Model.load(
        checkpoint.directory,
        backend="cpu",
        max_context=_context(checkpoint),
        cpu_isa="portable" if backend == "cpu" else None,
        prefix_cache_bytes=0,
    ) as model:
        ids = _ids(model)
        expected = _run(model, ids)
    report(f"end to end: the reference ({reference}) is done")
    with Model.load(
        checkpoint.directory, backend=backend, max_context=_context(checkpoint), prefix_cache_bytes=0
    ) as model:
        actual = _run(model, ids)
    report(f"end to end: {backend} is done")
    return Agreement(
        reference=reference,
        log_probability=float(np.mean(np.abs(actual.log_probabilities - expected.log_probabilities))),
        scored_top1=float(np.mean(actual.best == expected.best)),
        divergence=float(np.mean(_divergence(expected.logits, actual.logits))),
        step_top1=float(np.mean(actual.logits.argmax(1) == expected.logits.argmax(1))),
        positions=len(expected.best),
        steps=len(expected.logits),
    )


def _context(checkpoint: Checkpoint) -> int:
    return min(SCORED + STEPS + 8, checkpoint.config.max_position_embeddings)


def _ids(model: Model) -> list[int]:
    """A text if there is a tokenizer, otherwise random tokens."""
    count = min(SCORED + STEPS, model.max_context)
    try:
        ids = list(model.tokenizer.encode(TEXT))
    except TokenizerError:
        ids = np.random.default_rng(3).integers(0, model.sampled_vocab_size, count).tolist()
    while len(ids) < count:
        ids += ids
    return ids[:count]


def _run(model: Model, ids: list[int]) -> _Run:
    prompt, steps = ids[:-STEPS], ids[-STEPS:]
    with model.session() as session:
        scores, best = session.score(prompt, return_argmax=True)
    with model.session() as session:
        logits = [session.prefill(prompt).copy()]
        logits += [session.decode(token).copy() for token in steps[:-1]]
    return _Run(np.asarray(scores), np.asarray(best), np.stack(logits))


def _divergence(expected: npt.NDArray[np.float32], actual: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Kullback-Leibler divergence of each row's distributions."""
    p, q = _log_softmax(expected), _log_softmax(actual)
    return np.asarray((np.exp(p) * (p - q)).sum(1))


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    values = logits.astype(np.float64)
    values -= values.max(1, keepdims=True)
    return np.asarray(values - np.log(np.exp(values).sum(1, keepdims=True)))
