"""A snapshot: a session's sequence frozen at one position, to return to or branch from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from lily import _core
from lily.errors import ClosedError

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["Snapshot"]


class Snapshot:
    """The state of a session at one position. Made by `Session.snapshot`; it never changes.

    It shares memory with the session: keys and values are not copied, and recurrent states only once the session
    continues. `close` (or leaving the ``with`` block, or losing the last reference) frees what nobody else uses.
    """

    def __init__(self, model: Model, native: _core.Snapshot) -> None:
        self._model = model
        self._native: _core.Snapshot | None = native

    @property
    def model(self) -> Model:
        """The model that it belongs to; only that model's sessions can continue from the snapshot."""
        return self._model

    @property
    def position(self) -> int:
        """Number of tokens in the sequence."""
        return self.core.position

    @property
    def tokens(self) -> list[int]:
        """The token ids of the sequence."""
        native = self.core
        tokens: list[int] = native.tokens.tolist()
        return tokens if native.pending is None else [*tokens, native.pending]

    @property
    def bytes(self) -> int:
        """Bytes that it refers to, including those shared with sessions and other snapshots."""
        return self.core.bytes

    @property
    def own_bytes(self) -> int:
        """Bytes that only this snapshot holds now: what `close` frees."""
        return self.core.own_bytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def close(self) -> None:
        """Release the state. Closing twice is fine."""
        self._native = None

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        native = self._native
        if native is None:
            return "<lily.Snapshot closed>"
        return f"<lily.Snapshot position={native.position} bytes={native.bytes} own_bytes={native.own_bytes}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lily.Snapshot cannot be pickled: its state lives in this process; use session.save(path)")

    @property
    def core(self) -> _core.Snapshot:
        """The native snapshot, for Lily's own modules; ClosedError once this one is closed."""
        native = self._native
        if native is None:
            raise ClosedError("this snapshot is closed; take a new one with session.snapshot()")
        return native
