"""Warnings about what a request asked for and did not get, in a header and in the body or at the end of the stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from starlette.responses import Response

__all__ = ["HEADER", "Warnings"]

HEADER = "x-lily-warnings"
_MOST = 32  # warnings of a request
_MOST_CHARACTERS = 300  # of a warning
_MOST_IN_HEADER = 2000


class Warnings:
    """The warnings of one request, each once."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        """Add a sentence; only the first ones of very many are kept."""
        if len(self._texts) < _MOST:
            self._texts.setdefault(text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}...")

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def put_into(self, response: Response) -> Response:
        """Add the header, if there are warnings."""
        if self._texts:
            text = "; ".join(self._texts).encode("ascii", "replace").decode()
            text = "".join(one if one.isprintable() else "?" for one in text)
            response.headers[HEADER] = text[:_MOST_IN_HEADER].strip() or "see the field warnings"
        return response

    def body(self, dones: Iterable[object] = ()) -> dict[str, Any]:
        """The field `warnings` of a body, if there are any.

        `dones` are the ends of the turns, which may have warnings of their own.
        """
        texts = dict(self._texts)
        for done in dones:
            texts.update(dict.fromkeys(map(str, getattr(done, "warnings", ()))))
        return {"warnings": list(texts)} if texts else {}
