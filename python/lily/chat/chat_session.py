"""The session of a chat: advanced to each prompt with as little computation as possible."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lily.chat.events import Done, Timings, Usage
from lily.chat.prompt_encoder import EncodedPrompt
from lily.chat.turn_prompt import PrefillCancelledError
from lily.errors import CancelledError, ClosedError
from lily.session import Progress, Session

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["ChatSession"]


class ChatSession:
    """Holds the session of the latest turn, which continues if the next prompt extends it.

    Attributes
    ----------
    current : Session, optional
        None before the first turn.
    """

    def __init__(self, model: Model, seed: int, is_cancelled: Callable[[], bool]) -> None:
        self.current: Session | None = None
        self._model = model
        self._seed = seed
        self._is_cancelled = is_cancelled

    def bring(self, encoded: EncodedPrompt, progress: Progress | None) -> tuple[Session, int, float]:
        """A session that holds exactly the prompt, with logits.

        Returns
        -------
        (Session, int, float)
            The session, how many of its tokens were reused, and the seconds that it took.

        Raises
        ------
        PrefillCancelledError
            The turn was cancelled meanwhile.
        """
        began = time.perf_counter()
        try:
            session, cached = self._bring(encoded, progress)
        except CancelledError:
            timings = Timings(prefill_seconds=time.perf_counter() - began)
            raise PrefillCancelledError(Done("cancelled", Usage(len(encoded.ids)), timings)) from None
        return session, cached, time.perf_counter() - began

    def keep(self, session: Session) -> None:
        """Store a session's state in the prefix cache and close it; if the model is closed, only close it."""
        with contextlib.suppress(ClosedError):
            if session.position:
                self._model.cache.insert(session)
            session.close()

    def close(self) -> None:
        """Store the latest state in the prefix cache."""
        session, self.current = self.current, None
        if session is not None:
            self.keep(session)

    def _bring(self, encoded: EncodedPrompt, progress: Progress | None) -> tuple[Session, int]:
        ids = encoded.ids
        session = self.current
        held = [] if session is None else session.tokens
        if session is not None and 0 < len(held) < len(ids) and ids[: len(held)] == held:
            self._extend(session, encoded, len(held), progress)
            return session, len(held)
        self.close()
        observe = self._observer(progress)
        self.current = self._model.cached_session(ids, snapshot_at=encoded.positions, progress=observe, seed=self._seed)
        return self.current, self.current.cached_tokens

    def _extend(self, session: Session, encoded: EncodedPrompt, held: int, progress: Progress | None) -> None:
        total = len(encoded.ids)
        if progress is not None:
            progress(held, total)
        borders = [position for position in encoded.positions if held < position < total]
        begin = held
        for end in [*borders, total]:
            session.prefill(encoded.ids[begin:end], progress=self._observer(progress, begin, total))
            if end < total:
                self._model.cache.insert(session)
            begin = end

    def _observer(self, progress: Progress | None, begin: int = 0, total: int | None = None) -> Progress:
        def observe(done: int, of: int) -> None:
            if self._is_cancelled():
                raise CancelledError("the turn was cancelled while its prompt was computed")
            if progress is not None:
                progress(begin + done, of if total is None else total)

        return observe
