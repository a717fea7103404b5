"""How a server behaves: names, limits, keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lily.errors import InvalidArgumentError

__all__ = ["ServerOptions"]


@dataclass(frozen=True)
class ServerOptions:
    """Options of `create_app`.

    Attributes
    ----------
    names : tuple of str
        What clients may call the model; the first is listed first. Empty: the checkpoint directory's name.
    api_keys : tuple of str
        Keys of which a request must bring one; empty: no key is needed.
    cors_origins : tuple of str
        Origins of web pages that may call the server; requests from any other page are refused.
    max_queue : int
        Most requests that wait; the next one gets 429.
    max_request_bytes : int
        Most bytes of a request's body; a longer one gets 413.
    keep_alive_seconds : float
        A stream that has nothing to say sends a comment that often.
    thinking : bool
        Whether chat completions and responses think where the request says nothing about it.
    strict : bool
        Refuse what is otherwise ignored with a warning or converted: fields that the API does not have, tools that run
        elsewhere, system messages within a conversation, parts of messages that the model cannot read.
    any_model : bool, optional
        Answer whatever model a request names; else other names get 404. None: as `serve` decides, which allows it where
        only this machine can connect.
    allow_desktop : bool
        Allow the origins of desktop shells (``app://``, ``tauri://``, ``vscode-webview://``, ``file://`` and so on).
    """

    names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_queue: int = 128
    max_request_bytes: int = 32 << 20
    keep_alive_seconds: float = 5.0
    thinking: bool = True
    strict: bool = False
    any_model: bool | None = None
    allow_desktop: bool = False

    @property
    def later_system(self) -> Literal["refuse", "convert"]:
        """What becomes of system messages within a conversation: a 400, or a user message."""
        return "refuse" if self.strict else "convert"

    def __post_init__(self) -> None:
        if any(not key for key in self.api_keys):
            raise InvalidArgumentError("an API key must not be empty")
        if self.max_queue < 1 or self.max_request_bytes < 1 or self.keep_alive_seconds <= 0:
            raise InvalidArgumentError("max_queue, max_request_bytes and keep_alive_seconds must be above 0")
