"""How a server behaves: names, limits, keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lily.errors import InvalidArgumentError
from lily.quoting import quoted

__all__ = ["ServerOptions"]

_POSITIVE = (
    "max_queue",
    "max_request_bytes",
    "max_pending_bytes",
    "max_connections",
    "head_seconds",
    "body_seconds",
    "idle_seconds",
    "write_seconds",
    "shutdown_seconds",
    "keep_alive_seconds",
)
_TEXTS = ("names", "api_keys", "cors_origins", "allowed_hosts")


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
    allowed_hosts : tuple of str
        Names, besides localhost and the address, by which clients may call the server; ``*.name`` stands for all that
        end so, ``*`` for all. A request with a key may use any.
    max_queue : int
        Most requests that wait; the next one gets 429.
    max_request_bytes : int
        Most bytes of a request's body; a longer one gets 413.
    max_pending_bytes : int
        Most bytes, about, that the bodies of all requests in progress take in memory; the next one gets 503.
    max_connections : int
        Most open connections; the oldest idle one makes room for another. Only for `serve`.
    head_seconds : float
        Most time for the head of a request to come, and for a new connection to send one. Only for `serve`.
    body_seconds : float
        Most time without a part of a request's body, and for all of it but a second more for each 64 KiB.
    idle_seconds : float
        A connection without a request is closed after that. Only for `serve`.
    write_seconds : float
        A client that takes nothing of its answer is given up after that. Only for `serve`.
    shutdown_seconds : float
        The server ends within that time when it is told to stop; until shortly before, requests in work may end.
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
    allowed_hosts: tuple[str, ...] = ()
    max_queue: int = 128
    max_request_bytes: int = 32 << 20
    max_pending_bytes: int = 256 << 20
    max_connections: int = 256
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 30.0
    write_seconds: float = 30.0
    shutdown_seconds: float = 10.0
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
        for name in _POSITIVE:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise InvalidArgumentError(f"{name} must be a number above 0, not {quoted(value)}")
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(one, str) and one for one in value):
                raise InvalidArgumentError(f"{name} must be a tuple of strings that are not empty")

    @property
    def last_step_seconds(self) -> float:
        """The last part of `shutdown_seconds`, in which a request that was cut off may end the step that it is in."""
        return min(2.0, self.shutdown_seconds / 4)


def checked_options(options: ServerOptions | None) -> ServerOptions:
    """The options, or the defaults for None; InvalidArgumentError for anything else."""
    if options is not None and not isinstance(options, ServerOptions):
        raise InvalidArgumentError(f"options must be lily.server.ServerOptions, not a {type(options).__name__}")
    return options or ServerOptions()
