"""Paths as clients write them when a base URL has one part too many or too few; hints where no endpoint is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["KnownPaths", "hint_for", "known_form"]

_VERSION = "/v1"
#: First parts of the paths that peers serve without the version, too.
_UNVERSIONED = ("chat", "completions", "messages", "models", "responses")
_LONGEST = 300  # characters of a path that is looked at


class KnownPaths:
    """Gives the application below it each path in the form that its routes have, see `known_form`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http":
            scope = {**scope, "path": known_form(scope["path"])}
        await self._app(scope, receive, send)


def known_form(path: str) -> str:
    """A path without doubled slashes, a slash at the end or a doubled version; a version in front where one belongs."""
    if len(path) > _LONGEST:
        return path
    path = re.sub("//+", "/", path)
    if len(path) > 1:
        path = path.removesuffix("/")
    while path.startswith(f"{_VERSION}{_VERSION}/"):
        path = path.removeprefix(_VERSION)
    first = path.split("/", 2)[1] if path.startswith("/") else ""
    return f"{_VERSION}{path}" if first in _UNVERSIONED else path


def hint_for(path: str, known: Collection[str]) -> str:
    """A sentence that names the path that was probably meant, or where all of them are listed."""
    close = difflib.get_close_matches(known_form(path)[:_LONGEST], known, n=1, cutoff=0.75)
    return f"Did you mean {close[0]}?" if close else "GET /openapi.json lists the endpoints."
