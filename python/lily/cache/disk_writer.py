"""The thread that writes a prefix cache's snapshots to its directory while no request needs it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from lily.cache.disk_tier import DiskTier
from lily.errors import CancelledError, LilyError
from lily.identity.fingerprint import WeightsIdentity

if TYPE_CHECKING:
    from lily.cache.snapshot_store import SnapshotStore

__all__ = ["DiskWriter"]

logger = logging.getLogger("lily")

_IDLE_SECONDS = 0.5  # seconds: a pause between requests long enough for writing
_MOST_SECONDS = 3.0  # seconds without a pause: what a killed process loses
_RETRY_SECONDS = 30.0  # after the disk failed
_CLOSING_SECONDS = 10.0  # seconds for writing when the model is closed
_CLOSING_HASH_SECONDS = 2.0  # seconds for hashing the weights then


class DiskWriter:
    """Writes what `SnapshotStore.unwritten` returns. Holds no strong reference to store or model."""

    def __init__(self, store: SnapshotStore, disk: DiskTier, identity: WeightsIdentity) -> None:
        self._store = weakref.ref(store, lambda _: self._end())
        self._disk = disk
        self._identity = identity
        self._changed = threading.Condition()
        self._first_change: float | None = None  # since when something has been waiting
        self._last_change = 0.0
        self._urgent = False
        self._closed_at: float | None = None
        self._busy = True
        self._failed = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="lily-cache-writer", daemon=True)
        # The interpreter would end the thread wherever it is, which inside the core would abort the process.
        atexit.register(self.close)
        self._thread.start()

    def notify(self, *, urgent: bool = False) -> None:
        """Request a write, soon or (urgent) at once."""
        now = time.monotonic()
        with self._changed:
            if self._first_change is None:
                self._first_change = now
            self._last_change = now
            self._urgent = self._urgent or urgent
            self._changed.notify_all()

    def postpone(self) -> None:
        """A request is running: writing waits for it, but not for long."""
        self._last_change = time.monotonic()

    def flush(self, seconds: float | None) -> bool:
        """Wait until everything is written; False on a timeout or if the directory failed."""
        if os.getpid() != self._process:
            return False  # a forked child: the thread is the parent's
        self.notify(urgent=True)
        with self._changed:
            done = self._changed.wait_for(lambda: self._failed or self._is_done(), seconds)
            return done and not self._failed

    def _is_done(self) -> bool:
        return not self._busy and self._first_change is None

    def close(self) -> None:
        """Write what is left, as far as there is time, and end the thread."""
        if os.getpid() != self._process:
            return
        self._end()
        self._thread.join()

    def _end(self) -> None:
        with self._changed:
            if self._closed_at is None:
                self._closed_at = time.monotonic()
            self._changed.notify_all()

    # -- the thread

    def _run(self) -> None:
        try:
            if self._open():
                while self._wait():
                    self._write()
                self._write()
        except CancelledError:
            logger.debug("the model was closed before its prefix cache was written")
        except Exception:  # no failure here may end the process or go unreported
            logger.exception("the prefix cache is no longer written")
        finally:
            atexit.unregister(self.close)
            with self._changed:
                self._busy, self._first_change, self._failed = False, None, True
                self._changed.notify_all()
            if (store := self._store()) is not None:
                store.stop_writing()

    def _open(self) -> bool:
        """Find the identity first; unless recorded, it takes as long as reading the weights."""
        try:
            self._identity.get(threads=max(1, (os.cpu_count() or 1) // 4), stopped=self._is_late(_CLOSING_HASH_SECONDS))
            self._disk.open()
        except CancelledError:
            raise
        except LilyError as error:
            logger.warning("the prefix cache's directory is not used: %s", error)
            return False
        self._disk.trim(self._check)
        return True

    def _wait(self) -> bool:
        """Wait until it is time to write; false at the end."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while self._closed_at is None:
                now, first = time.monotonic(), self._first_change
                due = None
                if first is not None:
                    due = 0.0 if self._urgent else min(self._last_change + _IDLE_SECONDS, first + _MOST_SECONDS) - now
                    if due <= 0:
                        break
                self._changed.wait(due)
            self._busy, self._urgent, self._first_change = True, False, None
            return self._closed_at is None

    def _write(self) -> None:
        while (store := self._store()) is not None:
            snapshot = store.unwritten()
            if snapshot is None:
                return
            try:
                written = self._disk.store(snapshot, self._check)
            except CancelledError:
                raise
            except LilyError as error:  # it is worth nothing, or the model is closed
                logger.warning("a snapshot of the prefix cache was not written: %s", error)
                store.discard(snapshot)
                continue
            self._failed = not written
            if not written:
                store.retry(snapshot)
                del store, snapshot
                self._rest()
                return

    def _rest(self) -> None:
        """After the disk failed."""
        with self._changed:
            self._first_change = self._last_change = time.monotonic()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed_at is not None, _RETRY_SECONDS)

    def _check(self) -> None:
        if self._is_late(_CLOSING_SECONDS)():
            raise CancelledError("the model is closed, and there was no time left to write")

    def _is_late(self, seconds: float) -> Callable[[], bool]:
        def late() -> bool:
            closed_at = self._closed_at
            return closed_at is not None and time.monotonic() > closed_at + seconds

        return late
