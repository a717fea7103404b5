"""Shows an answer in a notebook while it is generated."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lily.chat.events import collect
from lily.checks.arguments import as_stream
from lily.display import answer_markdown
from lily.errors import MissingExtraError

if TYPE_CHECKING:
    from lily.chat.events import Answer, Event

__all__ = ["show"]

_SECONDS_BETWEEN_UPDATES = 0.05


def show(events: Iterable[Event]) -> Answer:
    """Show an answer in a notebook while it is generated, updated in place, and return it.

    Interrupting the cell ends the turn. The text so far is part of the chat, which remains usable.

    Parameters
    ----------
    events : iterable of Event
        As ``chat.send("...")`` yields them.

    Raises
    ------
    MissingExtraError
        IPython is not installed.

    Examples
    --------
    >>> import lily, lily.notebook
    >>> chat = lily.Model.load("lily-tiny").chat()
    >>> answer = lily.notebook.show(chat.send("Hello!"))  # doctest: +SKIP
    """
    try:
        display: Any = importlib.import_module("IPython.display")  # has no annotations
    except ImportError as error:
        raise MissingExtraError("showing answers needs IPython, which every notebook has") from error
    handle = display.DisplayHandle()
    handle.display(display.Markdown(""))
    seen: list[Event] = []
    shown = 0.0
    try:
        for event in as_stream("events", events, "the events of a turn"):
            seen.append(event)
            if time.monotonic() - shown >= _SECONDS_BETWEEN_UPDATES:
                handle.update(display.Markdown(answer_markdown(collect(seen), thinking_is_open=True)))
                shown = time.monotonic()
    finally:
        with contextlib.suppress(AttributeError):
            events.close()  # type: ignore[attr-defined]
        handle.update(display.Markdown(answer_markdown(collect(seen))))
    return collect(seen)
