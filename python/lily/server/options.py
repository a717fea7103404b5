"""How a server behaves: names, limits, keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lily.checks.quoting import quoted
from lily.errors import InvalidArgumentError

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
        Names by which clients may call the model, in the order listed. Empty: the checkpoint directory's name.
    api_keys : tuple of str
        Accepted keys, one of which each request must have; empty: no key is needed.
    cors_origins : tuple of str
        Origins of web pages that may call the server; requests from any other page are refused.
    allowed_hosts : tuple of str
        Names, besides localhost and the address, by which clients may call the server; ``*.name`` allows a whole
        domain, ``*`` everything. A request with a key may use any name.
    max_queue : int
        Maximum number of waiting requests; the next one gets 429.
    max_request_bytes : int
        Maximum bytes of a request's body; a longer one gets 413.
    max_pending_bytes : int
        Approximate maximum bytes of memory for all requests in progress; the next one gets 503.
    max_connections : int
        Maximum open connections; the oldest idle one is closed for a new one. Only for `serve`.
    head_seconds : float
        Maximum time until the head of a request has arrived, counted from the connection for the first one. Only for
        `serve`.
    body_seconds : float
        Maximum time between two parts of a request's body; the whole body may take as long, plus a second for each 64
        KiB.
    idle_seconds : float
        A connection without a request is closed after this time. Only for `serve`.
    write_seconds : float
        A client that reads nothing of its answer for this time is disconnected. Only for `serve`.
    shutdown_seconds : float
        The server exits within this time when told to stop. Running requests have nearly as long to end.
    keep_alive_seconds : float
        An idle stream sends a comment this often.
    thinking : bool
        Whether chat completions and responses think if the request does not say.
    strict : bool
        Refuse what is otherwise ignored with a warning or converted: fields that the API does not have, tools that run
        elsewhere, system messages within a conversation, parts of messages that the model cannot read.
    any_model : bool, optional
        Accept any model name in a request; otherwise other names get 404. None: `serve` decides, and allows it if only
        this machine can connect.
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
        """What happens to system messages within a conversation: a 400, or they become user messages."""
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
        """The last part of `shutdown_seconds`, for requests that were cut off to end their current step."""
        return min(2.0, self.shutdown_seconds / 4)


def checked_options(options: ServerOptions | None) -> ServerOptions:
    """The options, or the defaults for None; InvalidArgumentError for anything else."""
    if options is not None and not isinstance(options, ServerOptions):
        raise InvalidArgumentError(f"options must be lily.server.ServerOptions, not a {type(options).__name__}")
    return options or ServerOptions()
