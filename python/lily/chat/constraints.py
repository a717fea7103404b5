"""Constraints on the tokens of an answer: grammars, through llguidance, and forbidden tokens."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lily.chat.compilation import Compilation
from lily.chat.grammar_cache import GrammarCache
from lily.chat.grammar_library import compile_limits, load_library, reason_of
from lily.errors import CancelledError, InvalidArgumentError
from lily.text import Tokenizer

if TYPE_CHECKING:
    import llguidance

__all__ = ["CompiledGrammar", "GrammarCompiler", "GrammarConstraint", "forbid"]

logger = logging.getLogger("lily")

Mask = npt.NDArray[np.uint32]

_POLL_SECONDS = 0.05
_QUICK_STEP = 0.002  # seconds
# Measured over many kinds of grammars; the sum exceeds what nearly all of them took.
_BYTES_PER_SECOND = 200_000_000
_BYTES_PER_CHARACTER = 300
_MAX_TEXT = 4_000_000  # characters
_MAX_WARNINGS = 5
_MAX_LOGGED = 300  # characters


def forbid(vocab_size: int, tokens: Iterable[int]) -> Mask:
    """A mask that allows all ids but `tokens`: uint32 [ceil(vocab_size / 32)]."""
    mask = np.full((vocab_size + 31) // 32, 0xFFFFFFFF, dtype=np.uint32)
    for token in tokens:
        mask[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << (token % 32)))
    return mask


class CompiledGrammar:
    """A grammar whose tables its constraints share."""

    def __init__(
        self, matcher: llguidance.LLMatcher, vocab_size: int, characters: int, dropped: tuple[str, ...]
    ) -> None:
        self.dropped = dropped
        self.spoiled = False  #: whether an answer exceeded the compiler's bounds, from which it never recovers
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._bytes = characters * _BYTES_PER_CHARACTER

    def start(self, field: str = "") -> GrammarConstraint:
        """A constraint at the beginning of its answer; errors name the request's field with the grammar."""
        return GrammarConstraint(self, self._matcher.deep_copy(), self._vocab_size, field)

    @property
    def estimated_bytes(self) -> int:
        """Estimated memory of the tables, on the high side.

        The library does not report it. It grows with the text, and with the time spent building tables, at first and
        while answers are written.
        """
        return self._bytes

    def note_work(self, seconds: float) -> None:
        """Count the processor's time of a step; quick steps build nothing."""
        if seconds > _QUICK_STEP:
            self._bytes += int((seconds - _QUICK_STEP) * _BYTES_PER_SECOND)

    def spoil(self) -> None:
        """Stop using the tables for later answers."""
        self.spoiled = True


class GrammarConstraint:
    """The state of one answer in its grammar. Made by `CompiledGrammar.start`."""

    def __init__(
        self, grammar: CompiledGrammar, matcher: llguidance.LLMatcher, vocab_size: int, field: str = ""
    ) -> None:
        self._grammar = grammar
        self._field = field
        self._matcher = matcher
        self._mask: Mask = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
        self._accepted = 0

    @property
    def dropped(self) -> tuple[str, ...]:
        """Requirements that the grammar does not enforce, see `lily.chat.grammars.Grammar`."""
        return self._grammar.dropped

    def mask(self) -> Mask:
        """The ids allowed next, including stop tokens where the answer may end; valid until the next call.

        Raises
        ------
        InvalidArgumentError
            The grammar allows nothing here, or the next step exceeds the compiler's bounds.
        """
        began = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._grammar.note_work(time.thread_time() - began)
        self._raise_on_error()
        if not self._mask.any():
            self._fail("no token fits")
        return self._mask

    def take_beginning(self, tokens: Sequence[int]) -> bool:
        """Take these tokens if an answer may begin with them, and return whether it may; otherwise change nothing."""
        fits: bool = self._matcher.validate_tokens(list(tokens)) == len(tokens)
        for token in tokens if fits else ():
            self.accept(token)
        return fits

    def accept(self, token: int) -> None:
        """Take a token that was chosen; errors as for `mask`."""
        self._matcher.consume_token(token)
        self._accepted += 1
        self._raise_on_error()

    def _raise_on_error(self) -> None:
        if self._matcher.is_error():
            self._fail(reason_of(self._matcher.get_error()))

    def _fail(self, reason: str) -> None:
        self._grammar.spoil()
        field = f"{self._field}: " if self._field else ""
        if not self._accepted:
            raise InvalidArgumentError(f"{field}the grammar is not valid: no text matches it ({reason})")
        message = f"{field}the grammar cannot continue after {self._accepted} tokens: {reason}; make it simpler"
        logger.warning("%s", message)
        raise InvalidArgumentError(message)


class GrammarCompiler:
    """Compiles grammars for one tokenizer and keeps the latest ones; safe to use from any thread.

    One grammar is compiled at a time, in a separate thread: the library's stack grows with the grammar, and callers can
    stop waiting.
    """

    def __init__(self, tokenizer: Tokenizer, stop_tokens: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_tokens = sorted(stop_tokens)
        self._native: llguidance.LLTokenizer | None = None
        self._cache = GrammarCache()
        self._lock = threading.Lock()

    @property
    def cached_bytes(self) -> int:
        """Estimated memory of the grammars that are kept."""
        return self._cache.total_bytes

    def start(self, grammar: str) -> GrammarConstraint:
        """A constraint at the beginning of its answer; as `compile`."""
        return self.compile(grammar).start()

    def compile(self, grammar: str, is_cancelled: Callable[[], bool] | None = None) -> CompiledGrammar:
        """A grammar that constraints can be started from.

        Parameters
        ----------
        grammar
            Lark text, or JSON text of several grammars; see `lily.chat.grammars`.
        is_cancelled
            Asked while the compiler works.

        Raises
        ------
        InvalidArgumentError
            The grammar or schema is not valid, too large, or matches no text; the message says where.
        MissingExtraError
            llguidance is not installed.
        CancelledError
            `is_cancelled` returned true.
        """
        key = _key(grammar)
        while (compiled := self._cache.get(key)) is None:
            if not self._lock.acquire(timeout=_POLL_SECONDS):
                _raise_if(is_cancelled)
                continue
            compilation = self._compilation(grammar)
            while not compilation.wait(_POLL_SECONDS):
                _raise_if(is_cancelled)
            return compilation.result()
        return compiled

    def _compilation(self, grammar: str) -> Compilation[CompiledGrammar]:
        """Compile in another thread, which releases the lock; it continues even if nobody waits any more."""

        def compile_and_keep() -> CompiledGrammar:
            try:
                compiled = self._cache.get(_key(grammar))
                if compiled is None:
                    compiled = self._compile(grammar)
                    self._cache.put(_key(grammar), compiled)
                return compiled
            finally:
                self._lock.release()

        try:
            return Compilation(compile_and_keep)
        except BaseException:  # no thread
            self._lock.release()
            raise

    def _compile(self, grammar: str) -> CompiledGrammar:
        try:
            return self._compiled(grammar)
        except InvalidArgumentError as error:
            simpler = getattr(grammar, "simpler", None)
            reduced = None if simpler is None else simpler(str(error), lambda part: not self._problem(part))
            if reduced is None:
                raise
            try:
                return self._compiled(reduced)
            except InvalidArgumentError:
                raise error from None

    def _compiled(self, grammar: str) -> CompiledGrammar:
        began = time.thread_time()
        if len(grammar) > _MAX_TEXT:
            raise InvalidArgumentError(
                f"the grammar is too large: {len(grammar)} characters; at most {_MAX_TEXT} are allowed"
            )
        matcher = self._matcher(grammar)
        if matcher.is_error():
            raise InvalidArgumentError(f"the grammar is not valid: {reason_of(matcher.get_error())}")
        dropped = [*getattr(grammar, "dropped", ()), *map(reason_of, matcher.get_grammar_warnings()[:_MAX_WARNINGS])]
        if dropped:
            logger.warning("the grammar does not enforce: %s", ", ".join(dropped)[:_MAX_LOGGED])
        compiled = CompiledGrammar(matcher, self._tokenizer.vocab_size, len(grammar), tuple(dropped))
        compiled.note_work(time.thread_time() - began)
        for _ in range(2):  # an answer can begin, and the tables made for that leave room for more
            compiled.start().mask()
        return compiled

    def _problem(self, part: str) -> str:
        matcher = self._matcher(part)
        return str(matcher.get_error()) if matcher.is_error() else ""

    def _matcher(self, grammar: str) -> llguidance.LLMatcher:
        library = load_library()
        if self._native is None:
            self._native = library.LLTokenizer(
                library.TokenizerWrapper(_Vocabulary(self._tokenizer, self._stop_tokens)),
                n_vocab=self._tokenizer.vocab_size,
                eos_token=self._stop_tokens,
            )
        try:
            text = str(grammar)
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidArgumentError("the grammar is not valid: it contains a lone surrogate") from error
        matcher: llguidance.LLMatcher = library.LLMatcher(self._native, text, log_level=0, limits=compile_limits())
        return matcher


def _key(grammar: str) -> str:
    return "\0".join([str(grammar), *getattr(grammar, "dropped", ())])


def _raise_if(is_cancelled: Callable[[], bool] | None) -> None:
    if is_cancelled is not None and is_cancelled():
        raise CancelledError("cancelled while a grammar was compiled")


class _Vocabulary:
    """The tokenizer interface of llguidance. Added tokens are special: no text in an answer uses them."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, stop_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = stop_tokens[0]
        self.special_token_ids = sorted(tokenizer.added_tokens.values())
        self.tokens = [_token_bytes(tokenizer, token) for token in range(tokenizer.vocab_size)]

    def __call__(self, text: Any) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        # Used only for text that a grammar forces, which is never requested. Building an encoder without special tokens
        # would take seconds.
        return self._tokenizer.encode(text)


def _token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    try:
        return tokenizer.token_bytes(token)
    except InvalidArgumentError:  # a gap in the vocabulary
        return b""
