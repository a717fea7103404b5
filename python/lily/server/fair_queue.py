"""A queue in which clients take turns; the entries of each keep their order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Entries by client. It has no lock; threads that share it need one."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, deque[T]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return (entry for entries in self._entries.values() for entry in entries)

    def push(self, client: str, entry: T) -> None:
        """Add an entry behind the client's others."""
        self._entries.setdefault(client, deque()).append(entry)
        self._length += 1

    def pop(self) -> T:
        """Take the first entry of the client whose turn it is. The queue must not be empty."""
        client, entries = next(iter(self._entries.items()))
        entry = entries.popleft()
        self._length -= 1
        if entries:
            self._entries.move_to_end(client)
        else:
            del self._entries[client]
        return entry

    def remove(self, client: str, entry: T) -> bool:
        """Take an entry out; False if it is not there."""
        entries = self._entries.get(client)
        if entries is None or entry not in entries:
            return False
        entries.remove(entry)
        self._length -= 1
        if not entries:
            del self._entries[client]
        return True
