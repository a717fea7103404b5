"""Rounds: alternating runs of Lily and its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lily.bench.engine import LilyEngine
from lily.bench.memory import major_faults, resident_memory
from lily.bench.page_cache import bring_in
from lily.bench.peer import Peer, PeerProcess
from lily.bench.samples import Samples

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["Plan", "Rounds"]

# Tokens of the warm-up prompt: enough for nearly every expert and, on a GPU, every kernel of a long prompt.
_WARM_UP = 128
_WARM_UP_GPU = 2048
_WARM_UP_STEPS = 4


@dataclass(frozen=True)
class Plan:
    """What every round measures."""

    prompt: tuple[int, ...]  # lengths
    context: tuple[int, ...]  # tokens before decoding
    decode: int  # tokens of one decoding run
    threads: int
    backend: str
    peer_python: str = ""
    peer_seconds: float = 60.0

    @property
    def lengths(self) -> list[int]:
        """All lengths, ascending."""
        return sorted({*self.prompt, *self.context})

    @property
    def tokens(self) -> dict[str, int]:
        """The number of tokens that a measurement times, by its name."""
        prompt = {f"prefill {n}": n for n in self.prompt}
        return prompt | {f"decode {n}": self.decode for n in self.context}

    @property
    def warm_up(self) -> int:
        """Tokens of the first, untimed prompt."""
        return _WARM_UP if self.backend in ("cpu", "sim") else min(_WARM_UP_GPU, self.lengths[-1])

    @property
    def shares_memory(self) -> bool:
        """Whether weights stay in the files' pages in memory, where two models may not fit side by side."""
        return self.backend != "cuda"


class Rounds:
    """The samples of Lily and its peers.

    If engines share memory, a peer runs in a new process each round, after its files have replaced Lily's in memory;
    Lily's model is closed meanwhile, because mapped pages stay in memory. Otherwise all stay loaded until all rounds
    are done.
    """

    def __init__(
        self,
        engine: LilyEngine,
        plan: Plan,
        files: Sequence[Path],
        peers: Sequence[Peer],
        report: Callable[[str], None],
        load: Callable[[], Model],
    ) -> None:
        self._engine = engine
        self._load = load
        self._engine_closed = False
        self.memory: dict[str, int] = {}  # after Lily's runs
        self._plan = plan
        self._files = files
        self._peers = peers
        self._report = report
        self._open: dict[str, PeerProcess] = {}
        self._versions: dict[str, str] = {}
        self._stack = ExitStack()
        names = list(plan.tokens)
        self.lily = {name: Samples() for name in names}
        self.peers = {peer.label(mode): {name: Samples() for name in names} for peer in peers for mode in peer.modes}

    def __enter__(self) -> Rounds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, count: int) -> None:
        """`count` rounds."""
        for index in range(count):
            where = f"round {index + 1} of {count}: "
            self._report(where + "lily")
            self._lily_round(warms_up=index == 0 or self._plan.shares_memory)
            self._report(_last_rates(self.lily))
            for peer in self._peers:
                for mode in peer.modes:
                    self._report(where + peer.label(mode))
                    self._peer_round(peer, mode)
                    self._report(_last_rates(self.peers[peer.label(mode)]))

    def peer_figures(self) -> list[dict[str, Any]]:
        """Every peer's figures by mode; measurements that were left out are missing."""
        return [
            {
                "name": peer.name,
                "version": self._versions[peer.name],
                "model": str(peer.model),
                "modes": {mode: _figures(self.peers[peer.label(mode)]) for mode in peer.modes},
            }
            for peer in self._peers
        ]

    def ratios(self) -> dict[str, float]:
        """Lily's median over the best median of any peer."""
        ratios = {}
        for name, samples in self.lily.items():
            best = max((figures[name].median for figures in self.peers.values() if figures[name].rates), default=None)
            if best is not None:
                ratios[name] = round(samples.median / best, 3)
        return ratios

    def _lily_round(self, warms_up: bool) -> None:
        plan = self._plan
        takes_turns = bool(self._peers) and plan.shares_memory
        if takes_turns:
            bring_in(self._files, instead_of=[file for peer in self._peers for file in peer.files])
        if self._engine_closed:
            self._engine.reopen(self._load())
        if warms_up:
            self._engine.warm_up(plan.warm_up, _WARM_UP_STEPS)
        for length in plan.lengths:
            before = major_faults()
            prefill = self._engine.prefill(length)
            between = major_faults()
            if length in plan.prompt:
                self.lily[f"prefill {length}"].add(length, prefill, between - before)
            if length in plan.context:
                seconds = self._engine.continue_after(length, plan.decode)
                self.lily[f"decode {length}"].add(plan.decode, seconds, major_faults() - between)
        self.memory = resident_memory()
        if takes_turns:
            self._engine.close()
            self._engine_closed = True

    def _peer_round(self, peer: Peer, mode: str) -> None:
        plan, label = self._plan, peer.label(mode)
        job = {
            "prompt": plan.prompt,
            "context": plan.context,
            "decode": plan.decode,
            "prompt_seconds": plan.peer_seconds,
        }
        if plan.shares_memory:
            bring_in(peer.files, instead_of=self._files)
            with self._process(peer, mode) as process:
                answer = process.run(job)
        else:
            if label not in self._open:
                self._open[label] = self._stack.enter_context(self._process(peer, mode))
            answer = self._open[label].run(job)
        for name, tokens in plan.tokens.items():
            if name in answer.seconds:
                self.peers[label][name].add(tokens, answer.seconds[name], answer.major_faults.get(name, 0))

    def _process(self, peer: Peer, mode: str) -> PeerProcess:
        plan = self._plan
        job = {
            "threads": plan.threads,
            "longest": max(plan.lengths[-1], plan.warm_up) + plan.decode,
            "warm_up": plan.warm_up,
        }
        process = PeerProcess(plan.peer_python, peer, mode, job)
        self._versions[peer.name] = process.version
        return process


def _figures(samples: dict[str, Samples]) -> dict[str, dict[str, float | int]]:
    return {name: of_name.to_dict() for name, of_name in samples.items() if of_name.rates}


def _last_rates(figures: dict[str, Samples]) -> str:
    rates = (f"{name}: {samples.rates[-1]:.1f}" for name, samples in figures.items() if samples.rates)
    return ", ".join(rates) + " tok/s"
