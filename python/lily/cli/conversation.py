"""A chat over several turns: messages in, pieces of the answer out, the session's ids kept if possible."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lily.cli.generation import prefill, timed_tokens
from lily.cli.statistics import Statistics

if TYPE_CHECKING:
    from lily.model import Model
    from lily.sampling import Sampling
    from lily.session import Session

__all__ = ["Conversation", "Piece"]


@dataclass(frozen=True)
class Piece:
    """A piece of an answer's text; `reasoning` tells whether it is from the thinking block."""

    text: str
    reasoning: bool


class Conversation:
    """The messages of one chat and the session that holds their ids.

    Each turn renders all messages with the model's template. Ids that continue the session's are appended to
    it; otherwise (templates drop the thinking of earlier turns) the session starts anew.
    """

    def __init__(
        self, model: Model, session: Session, *, system: str | None = None, template_options: dict[str, Any]
    ) -> None:
        self._model = model
        self._session = session
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, Any]] = list(self._first)
        self._template_options = template_options
        self._think_open = model.tokenizer.token_id("<think>")
        self._think_close = model.tokenizer.token_id("</think>")
        self.statistics = Statistics()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All turns so far."""
        return list(self._messages)

    def reset(self) -> None:
        """Forget all turns but the system message."""
        self._messages = list(self._first)
        self._session.reset()

    def ask(self, text: str, *, sampling: Sampling, max_tokens: int) -> Generator[Piece, None, None]:
        """Yield the answer as it is generated.

        Once the answer has begun, the turn is part of the conversation, even if the caller stops early.
        """
        question = {"role": "user", "content": text}
        ids = self._model.render_chat([*self._messages, question], **self._template_options)
        self.statistics = Statistics()
        prefill(self._session, ids, self.statistics)
        content: list[str] = []
        reasoning: list[str] = []
        try:
            for piece in self._pieces(ids, sampling, max_tokens):
                (reasoning if piece.reasoning else content).append(piece.text)
                yield piece
        finally:
            answer: dict[str, Any] = {"role": "assistant", "content": "".join(content)}
            if reasoning:
                answer["reasoning_content"] = "".join(reasoning)
            self._messages += [question, answer]

    def _pieces(self, ids: Sequence[int], sampling: Sampling, max_tokens: int) -> Iterator[Piece]:
        detokenizer = self._model.tokenizer.detokenizer()
        reasoning = self._thinking_is_open(ids)
        at_start = True  # of the content: the newlines after a thinking block belong to the template
        tokens = timed_tokens(
            self._session,
            self.statistics,
            max_tokens=max_tokens,
            sampling=sampling,
            stop_tokens=self._model.stop_tokens,
        )
        for token in tokens:
            closes = reasoning and token == self._think_close
            text = detokenizer.finish() if closes else detokenizer.feed(token)
            if at_start and not reasoning:
                text = text.lstrip("\n")
                at_start = not text
            if text:
                yield Piece(text, reasoning)
            if closes:
                reasoning = False
        rest = detokenizer.finish()
        if rest:
            yield Piece(rest, reasoning)

    def _thinking_is_open(self, ids: Sequence[int]) -> bool:
        # The opening tag is in the prompt, never in the answer.
        for token in reversed(ids):
            if token in (self._think_open, self._think_close):
                return token == self._think_open and self._think_close is not None
        return False
