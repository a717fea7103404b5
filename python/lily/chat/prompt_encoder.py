"""Encodes rendered prompts so that the model's answers keep the ids with which they were generated."""

from __future__ import annotations

import hashlib
import itertools
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lily.errors import ContextOverflowError, InvalidArgumentError
from lily.text import TextGuard, Tokenizer

__all__ = ["EncodedPrompt", "PromptEncoder"]

_BYTES = 4  # of a token, about
_REMEMBERED_IDS = 1 << 22  # at most, over all turns: 16 MiB


@dataclass(frozen=True)
class EncodedPrompt:
    """The ids of a prompt, and the number of ids before each requested offset."""

    ids: list[int]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class _Turn:
    prompt_length: int  # characters
    ids: array[int]  # of the answer and the end of its turn


class PromptEncoder:
    """The encoder of one model; conversations share it, from any thread.

    Several sequences of ids may spell the same text, and an answer that is parsed and rendered again may differ from
    the generated one in white space or a missing tag. So a generated turn is stored under the conversation's text up to
    its end. A later prompt that begins with exactly that text gets the stored ids, so what the model computed for them
    can be reused.
    """

    def __init__(self, tokenizer: Tokenizer, guard: TextGuard | None = None) -> None:
        self._tokenizer = tokenizer
        self.guard = TextGuard(tokenizer) if guard is None else guard  #: renders the prompts
        self._turns: OrderedDict[bytes, _Turn] = OrderedDict()
        self._size = 0
        self._ends: set[str] = set()  # texts that end a turn
        self._lock = threading.Lock()

    def remember(self, prompt: str, conversation: str, turn_end: str, ids: Sequence[int]) -> None:
        """Keep the ids of a generated turn.

        Parameters
        ----------
        prompt
            The text that the answer was generated for.
        conversation
            The rendered text including the answer, up to the end of the turn. If it does not begin with `prompt`,
            nothing is kept.
        turn_end
            The last characters of `conversation`, which end every turn.
        ids
            Of the answer as it was generated.
        """
        if not turn_end or not conversation.endswith(turn_end) or not conversation.startswith(prompt):
            return
        turn = _Turn(len(prompt), array("i", [*ids, *self._tokenizer.encode(turn_end)]))
        key = hashlib.blake2b(conversation.encode(), digest_size=16).digest()
        with self._lock:
            self._ends.add(turn_end)
            replaced = self._turns.pop(key, None)
            self._size += len(turn.ids) - (0 if replaced is None else len(replaced.ids))
            self._turns[key] = turn
            while self._size > _REMEMBERED_IDS and len(self._turns) > 1:
                _, oldest = self._turns.popitem(last=False)
                self._size -= len(oldest.ids)

    def encode(self, text: str, offsets: Iterable[int] = (), most: int | None = None) -> EncodedPrompt:
        """Return the ids of a prompt that the guard has rendered.

        Parameters
        ----------
        text
            The prompt.
        offsets
            Character offsets whose positions among the ids are wanted. Only offsets right before a special token, such
            as the beginning of a turn, do not affect the ids.
        most
            Size of the context: a prompt that is certain to be longer is refused without encoding all of it.

        Raises
        ------
        ContextOverflowError
            The prompt is far longer than `most`.
        InvalidArgumentError
            The text contains a lone surrogate, which cannot be encoded.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"the conversation contains a lone surrogate, {text[error.start]!r}") from None
        if most is not None:
            self.check_length(text, most)
        wanted = sorted({offset for offset in offsets if 0 < offset < len(text)})
        ids: list[int] = []
        positions: list[int] = []
        at = 0
        for end, turn in self._known_turns(text):
            if turn.prompt_length < at:
                continue
            self._append(ids, positions, text, at, turn.prompt_length, wanted)
            ids += turn.ids
            if end in wanted:
                positions.append(len(ids))
            at = end
        self._append(ids, positions, text, at, len(text), wanted)
        return EncodedPrompt(ids, tuple(positions))

    def check_length(self, text: str, most: int) -> None:
        """Raise ContextOverflowError if a guarded text has more than `most` ids, or nearly as many.

        The beginning of a long text suffices: encoding megabytes would take half a minute, and several times their size
        in memory.
        """
        size = len(text.encode("utf-8", "replace"))
        limit = most + most // 16 + 64  # a few tokens at the end of a beginning may differ from those of the text
        part = _BYTES * most
        while part < size:
            if self.guard.count(text[: len(text) * part // size], limit) > limit:
                raise ContextOverflowError(
                    f"the prompt has {len(text)} characters, more than {most} tokens, the maximum context "
                    "(max_context of Model.load)"
                )
            part *= 2

    def _append(
        self, ids: list[int], positions: list[int], text: str, start: int, end: int, wanted: Sequence[int]
    ) -> None:
        inner = [offset for offset in wanted if start < offset < end]
        for left, right in itertools.pairwise([start, *inner, end]):
            ids += self.guard.encode(text[left:right])
            if right in inner:
                positions.append(len(ids))

    def _known_turns(self, text: str) -> list[tuple[int, _Turn]]:
        """Where remembered turns end in `text`, in order."""
        with self._lock:
            ends = tuple(self._ends)
        borders: set[int] = set()
        for end in ends:
            at = text.find(end)
            while at >= 0:
                borders.add(at + len(end))
                at = text.find(end, at + len(end))
        digest = hashlib.blake2b(digest_size=16)
        found: list[tuple[int, _Turn]] = []
        start = 0
        for border in sorted(borders):
            digest.update(text[start:border].encode())
            start = border
            key = digest.copy().digest()
            with self._lock:
                turn = self._turns.get(key)
                if turn is not None:
                    self._turns.move_to_end(key)
                    found.append((border, turn))
        return found
