"""The sessions and snapshots of a model that are open, and how they are closed together."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import TYPE_CHECKING

from lily.errors import BusyError, ClosedError

if TYPE_CHECKING:
    from lily.session import Session
    from lily.session.snapshot import Snapshot

__all__ = ["OpenObjects"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02  # seconds between checks of calls that are about to end


class OpenObjects:
    """Keeps no object alive. Thread-safe: an object is either closed by `close_all` or refused by `add_session`."""

    def __init__(self) -> None:
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self._lock = threading.RLock()  # a signal handler may enter again
        self._closing = False

    def add_session(self, session: Session) -> Session:
        """Register a new session.

        Raises
        ------
        ClosedError
            The model is closed, or about to be; so is the session then.
        """
        with self._lock:
            if not self._closing:
                self.sessions.add(session)
                return session
        session.close()
        raise _closed()

    def add_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Register a new snapshot; errors as for `add_session`."""
        with self._lock:
            if not self._closing:
                self.snapshots.add(snapshot)
                return snapshot
        snapshot.close()
        raise _closed()

    def refuse_own_call(self) -> None:
        """Raise BusyError if this thread is inside a call of one of the sessions: that could never end."""
        with self._lock:
            sessions = list(self.sessions)
        if any(session.core.is_called_here for session in sessions):
            raise BusyError(
                "the model cannot be closed from within one of its own calls, such as a progress callback; cancel the "
                "call, and close the model when it has returned"
            )

    def close_all(self, deadline: float) -> None:
        """Refuse new objects and calls, cancel running calls, and close each object when its call has ended.

        Parameters
        ----------
        deadline : float
            Of `time.monotonic`.

        Raises
        ------
        BusyError
            A call has not ended by then. Everything not in use is closed; a further call continues.
        """
        with self._lock:
            self._closing = True
            sessions, snapshots = list(self.sessions), list(self.snapshots)
        for session in sessions:
            session.core.begin_close()
        pause = _FIRST_PAUSE
        while sessions := [session for session in sessions if not _close(session)]:
            if time.monotonic() >= deadline:
                raise BusyError(
                    f"the model is not closed yet: {len(sessions)} of its calls were cancelled but have not ended; "
                    "call close() again, or look for a callback that does not return"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        for snapshot in snapshots:
            snapshot.close()


def _close(session: Session) -> bool:
    with contextlib.suppress(BusyError):
        session.close()
    return session.core.closed


def _closed() -> ClosedError:
    return ClosedError("this model is closed; load it again with lily.Model.load()")
