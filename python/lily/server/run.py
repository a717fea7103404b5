"""Runs the application with uvicorn until it is told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

from lily.server.app import create_app
from lily.server.options import ServerOptions

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["serve"]

_SHUTDOWN_SECONDS = 10


def serve(
    model: Model,
    options: ServerOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    log_level: str = "info",
) -> None:
    """Serve a model until SIGINT or SIGTERM; requests in work get ten seconds to end.

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
    app = create_app(model, options)
    uvicorn.run(
        app, host=host, port=port, log_level=log_level, timeout_graceful_shutdown=_SHUTDOWN_SECONDS, server_header=False
    )
