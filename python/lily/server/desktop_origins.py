"""Which origins belong to desktop shells and not to web pages."""

from __future__ import annotations

import re

__all__ = ["DESKTOP_ORIGINS", "is_desktop_origin"]

#: Web pages have the schemes http and https, browser extensions schemes that end in "extension". Shells have their own
#: schemes; file:// is "null" to the server, and Tauri has its own host name on Windows.
DESKTOP_ORIGINS = r"null|https?://tauri\.localhost|(?!https?:|[a-z-]*extension:)[a-z][a-z0-9+.-]*://.*"


def is_desktop_origin(origin: str) -> bool:
    """Whether a desktop shell sends this origin; sandboxed frames of web pages send "null" as well."""
    return re.fullmatch(DESKTOP_ORIGINS, origin) is not None
