"""Runs the application with uvicorn until it is told to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn

from lily.server.app import create_app
from lily.server.options import ServerOptions

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["LOOPBACK", "serve"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")  # hosts at which only this machine can connect
_SHUTDOWN_SECONDS = 10


def serve(
    model: Model,
    options: ServerOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    log_level: str = "info",
) -> None:
    """Serve a model until SIGINT or SIGTERM, then return; requests in work get ten seconds to end.

    Parameters
    ----------
    model
        The model.
    options
        See `ServerOptions`.
    host, port
        Where to listen; by default only this machine can connect.
    log_level
        Of uvicorn's own messages.
    """
    options = options or ServerOptions()
    if options.any_model is None:
        options = dataclasses.replace(options, any_model=host in LOOPBACK)
    app = create_app(model, options)
    with _sigterm_returns():
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_level=log_level,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            server_header=False,
        )


@contextlib.contextmanager
def _sigterm_returns() -> Iterator[None]:
    """uvicorn raises the signal again after its shutdown, which would end the process before the model is closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
