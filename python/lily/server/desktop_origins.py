"""Which origins are those of desktop shells and not of web pages."""

from __future__ import annotations

import re

__all__ = ["DESKTOP_ORIGINS", "is_desktop_origin"]

#: Pages of the web have the schemes http and https, those of browser extensions others that end in "extension". Shells
#: have schemes of their own; file:// is "null" to the server, and Tauri has a host name of its own on Windows.
DESKTOP_ORIGINS = r"null|https?://tauri\.localhost|(?!https?:|[a-z-]*extension:)[a-z][a-z0-9+.-]*://.*"


def is_desktop_origin(origin: str) -> bool:
    """Whether a desktop shell sends this origin; sandboxed frames of web pages send "null" as well."""
    return re.fullmatch(DESKTOP_ORIGINS, origin) is not None
