"""Keeps responses and their items in memory for later requests that continue them; drops the oldest first.

A deleted response can no longer be read, but responses that continue it keep its items as their history.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lily.server.errors import ApiError
from lily.server.json_text import dump_json

__all__ = ["ResponseStore", "StoredResponse"]

_MOST_RESPONSES = 4096
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class StoredResponse:
    """A response, the items of its request, and who may see them."""

    body: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    owner: str
    size: int  # bytes, about
    before: Sequence[Mapping[str, Any]] | None = None  # the conversation before it, if that is no longer stored

    @property
    def previous(self) -> str | None:
        """The response that this one continues."""
        given = self.body.get("previous_response_id")
        return given if isinstance(given, str) and given else None


class ResponseStore:
    """Responses by id; any thread may call it.

    Parameters
    ----------
    most_responses, most_bytes
        Limits. A single response longer than `most_bytes` is not kept.
    """

    def __init__(self, most_responses: int = _MOST_RESPONSES, most_bytes: int = _MOST_BYTES) -> None:
        self._most_responses = most_responses
        self._most_bytes = most_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._followers: Counter[str] = Counter()  # number of stored responses that continue one, by its id
        self._deleted: set[str] = set()  # responses kept only for those that continue them
        self._places: dict[str, tuple[str, Mapping[str, Any]]] = {}  # items by id, with the response that they are in
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> tuple[int, int]:
        """Responses, and their bytes."""
        return len(self._responses), self._bytes

    def put(
        self,
        body: Mapping[str, Any],
        items: Sequence[Mapping[str, Any]],
        owner: str,
        items_size: int | None = None,
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Store a response.

        Parameters
        ----------
        body, items, owner
            The response, the items of its request, and who may see them.
        items_size
            Size of the items in bytes, if it is known already.
        before
            The conversation before the request. It is stored too if the previous response has been removed since.
        """
        size = len(dump_json(list(items))) if items_size is None else items_size
        stored = StoredResponse(copy.deepcopy(dict(body)), list(items), owner, len(dump_json(body)) + size)
        name = str(body["id"])
        with self._lock:
            self._remove(name)
            if stored.previous is not None and stored.previous not in self._responses:
                stored = replace(stored, before=list(before), size=stored.size + len(dump_json(list(before))))
            if stored.size > self._most_bytes:
                return
            self._responses[name] = stored
            self._bytes += stored.size
            if stored.previous is not None and stored.before is None:
                self._followers[stored.previous] += 1
            for item in [*stored.items, *stored.body["output"]]:
                if isinstance(item.get("id"), str) and item.get("type") != "item_reference":
                    self._places[item["id"]] = (name, item)
            while len(self._responses) > self._most_responses or self._bytes > self._most_bytes:
                self._remove(next(iter(self._responses)))

    def get(self, name: str, owner: str) -> StoredResponse:
        """The response; ApiError 404 if it is not stored."""
        stored = None if name in self._deleted else self._find(name, owner)
        if stored is None:
            raise ApiError(404, f"Response with id '{name[:80]}' not found.", param="response_id", code="not_found")
        return stored

    def remove(self, name: str, owner: str) -> None:
        """Delete a response, as soon as none continues it; ApiError 404 if it is not stored."""
        self.get(name, owner)
        with self._lock:
            self._forget_places(name)
            if self._followers[name]:
                self._deleted.add(name)
            else:
                self._remove(name)

    def conversation(self, name: str, owner: str) -> list[Mapping[str, Any]]:
        """All items up to the end of a response, including those of earlier ones; ApiError if one of them is gone."""
        chain: list[StoredResponse] = []
        at: str | None = name
        seen: set[str] = set()
        while at is not None and at not in seen:
            seen.add(at)
            stored = None if at == name and at in self._deleted else self._find(at, owner)
            if stored is None:
                raise ApiError(
                    400,
                    f"Previous response with id '{at[:80]}' not found. This server keeps responses in memory, the "
                    "latest ones only; send the earlier items in input.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            chain.append(stored)
            at = stored.previous if stored.before is None else None
        whole = list(chain[-1].before or ())
        return whole + [item for stored in reversed(chain) for item in [*stored.items, *stored.body["output"]]]

    def item(self, name: str, owner: str) -> Mapping[str, Any] | None:
        """An item of a stored response."""
        with self._lock:
            place = self._places.get(name)
            if place is None or self._responses[place[0]].owner != owner:
                return None
            return place[1]

    def _find(self, name: str, owner: str) -> StoredResponse | None:
        with self._lock:
            stored = self._responses.get(name)
            if stored is None or stored.owner != owner:
                return None
            self._responses.move_to_end(name)
            return stored

    def _remove(self, name: str | None) -> None:
        """Drop a response, and earlier ones that were kept only for it."""
        while name is not None:
            self._forget_places(name)
            self._deleted.discard(name)
            stored = self._responses.pop(name, None)
            if stored is None:
                return
            self._bytes -= stored.size
            name = stored.previous
            if name is None or stored.before is not None:
                return
            self._followers[name] -= 1
            if self._followers[name] <= 0:
                del self._followers[name]
            if name in self._followers or name not in self._deleted:
                return

    def _forget_places(self, name: str) -> None:
        stored = self._responses.get(name)
        for item in [] if stored is None else [*stored.items, *stored.body["output"]]:
            if self._places.get(str(item.get("id")), ("", {}))[0] == name:
                del self._places[str(item["id"])]
