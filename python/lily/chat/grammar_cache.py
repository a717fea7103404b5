"""Keeps compiled grammars as long as their memory allows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lily.chat.constraints import CompiledGrammar

__all__ = ["GrammarCache"]

BUDGET_BYTES = 256_000_000
_ENTRY_BYTES = 4096  # at least, however small


class GrammarCache:
    """The most recently used grammars, by their text, up to a budget of estimated bytes.

    Grammars grow while answers are written, so their bytes are counted each time. A grammar that alone exceeds the
    budget, or is spoiled, is not kept.
    """

    def __init__(self, budget: int = BUDGET_BYTES) -> None:
        self._budget = budget
        self._grammars: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._grammars)

    @property
    def total_bytes(self) -> int:
        """Estimated bytes of what is kept."""
        with self._lock:
            self._trim()
            return self._total()

    def get(self, text: str) -> CompiledGrammar | None:
        """The grammar of a text, if it is kept."""
        with self._lock:
            self._trim()
            grammar = self._grammars.get(text)
            if grammar is not None:
                self._grammars.move_to_end(text)
            return grammar

    def put(self, text: str, grammar: CompiledGrammar) -> None:
        """Keep a grammar, and drop the least recently used ones until it fits."""
        with self._lock:
            self._grammars[text] = grammar
            self._grammars.move_to_end(text)
            self._trim()

    def _trim(self) -> None:
        for text, grammar in list(self._grammars.items()):
            if grammar.spoiled or _bytes_of(text, grammar) > self._budget:
                del self._grammars[text]
        while self._total() > self._budget:
            self._grammars.popitem(last=False)

    def _total(self) -> int:
        return sum(_bytes_of(text, grammar) for text, grammar in self._grammars.items())


def _bytes_of(text: str, grammar: CompiledGrammar) -> int:
    return _ENTRY_BYTES + 4 * len(text) + grammar.estimated_bytes
