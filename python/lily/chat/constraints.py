"""Constraints on the tokens of an answer: grammars through llguidance, and tokens that must not come."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lily.errors import BackendError, InvalidArgumentError, MissingExtraError
from lily.text import Tokenizer

if TYPE_CHECKING:
    import llguidance

__all__ = ["GrammarCompiler", "GrammarConstraint", "forbid"]

Mask = npt.NDArray[np.uint32]

_CACHED_GRAMMARS = 64


def forbid(vocab_size: int, tokens: Iterable[int]) -> Mask:
    """A mask that allows all ids but `tokens`: uint32 [ceil(vocab_size / 32)]."""
    mask = np.full((vocab_size + 31) // 32, 0xFFFFFFFF, dtype=np.uint32)
    for token in tokens:
        mask[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << (token % 32)))
    return mask


class GrammarConstraint:
    """The state of one answer in its grammar. Made by `GrammarCompiler.start`."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._mask: Mask = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)

    def mask(self) -> Mask:
        """The ids allowed next, stop tokens included where the answer may end; valid until the next call."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._raise_on_error()
        return self._mask

    def accept(self, token: int) -> None:
        """Take a token that was chosen."""
        self._matcher.consume_token(token)
        self._raise_on_error()

    def _raise_on_error(self) -> None:
        if self._matcher.is_error():
            raise BackendError(f"the grammar cannot go on: {self._matcher.get_error()}")


class GrammarCompiler:
    """Compiles grammars for one tokenizer and keeps the latest ones; safe to use from any thread."""

    def __init__(self, tokenizer: Tokenizer, stop_tokens: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_tokens = sorted(stop_tokens)
        self._native: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, grammar: str) -> GrammarConstraint:
        """A constraint at the beginning of its answer.

        Parameters
        ----------
        grammar
            Lark text, or JSON text of several grammars; see `lily.chat.grammars`.

        Raises
        ------
        InvalidArgumentError
            The grammar or schema is not valid; the message says where.
        MissingExtraError
            llguidance is not installed.
        """
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is None:
                matcher = self._compiled[grammar] = self._compile(grammar)
                if len(self._compiled) > _CACHED_GRAMMARS:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return GrammarConstraint(matcher.deep_copy(), self._tokenizer.vocab_size)

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        try:
            import llguidance
        except ImportError as error:
            raise MissingExtraError(
                'response_format and tool_choice="required" need llguidance; install it with '
                "pip install 'lily-engine[structured]'"
            ) from error
        if self._native is None:
            self._native = llguidance.LLTokenizer(
                llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self._stop_tokens)),
                n_vocab=self._tokenizer.vocab_size,
                eos_token=self._stop_tokens,
            )
        matcher = llguidance.LLMatcher(self._native, grammar, log_level=0)
        if matcher.is_error():
            raise InvalidArgumentError(f"the grammar is not valid: {_reason(matcher.get_error())}")
        return matcher


def _reason(error: str) -> str:
    """llguidance's message without its listing of the grammar, most of which is not the caller's."""
    return re.split(r"\n *\d+ \| ", error)[0].strip()


class _Vocabulary:
    """What llguidance asks of a tokenizer. Added tokens are special: no text in an answer is written with them."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, stop_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = stop_tokens[0]
        self.special_token_ids = sorted(tokenizer.added_tokens.values())
        self.tokens = [_token_bytes(tokenizer, token) for token in range(tokenizer.vocab_size)]

    def __call__(self, text: Any) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        # Only for text that a grammar forces, which is never asked for. An encoder without special tokens would
        # take seconds to build.
        return self._tokenizer.encode(text)


def _token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    try:
        return tokenizer.token_bytes(token)
    except InvalidArgumentError:  # a gap in the vocabulary
        return b""
