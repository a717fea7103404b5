"""Runs the application with uvicorn until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from lily import _core
from lily.checks.arguments import check_text, one_of
from lily.checks.whole_numbers import whole_number
from lily.errors import InvalidArgumentError
from lily.server.app import create_app
from lily.server.options import ServerOptions, checked_options
from lily.server.protocol import BoundedProtocol, ConnectionLimits

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["LOOPBACK", "end_process", "run_server", "serve", "uvicorn_options"]

logger = logging.getLogger("lily.server")

LOOPBACK = ("127.0.0.1", "localhost", "::1")  # hosts at which only this machine can connect
_OTHER_FILES = 128  # file descriptors reserved for everything but connections
_BACKLOG = 64  # connections accepted at once
_EVERYWHERE = ("", "0.0.0.0", "::")
_LONGEST_PATH = 200  # characters of a path in the log


def serve(
    model: Model,
    options: ServerOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    log_level: str = "info",
) -> None:
    """Serve a model until SIGINT or SIGTERM, then return. A second signal ends running requests at once.

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
    check_text("host", host)
    port = whole_number("port", port, 0, 65535, InvalidArgumentError)
    one_of("log_level", log_level, tuple(uvicorn.config.LOG_LEVELS))
    run_server(model, checked_options(options), host=host, port=port, log_level=log_level)


def run_server(
    model: Model,
    options: ServerOptions,
    *,
    host: str,
    port: int,
    log_level: str = "info",
    last_resort: Callable[[], None] | None = None,
) -> bool:
    """Like `serve`. Returns whether the engine's thread has ended; otherwise the model cannot be closed.

    `last_resort` is called, from another thread, if the event loop does not end in time after a signal.
    """
    if options.any_model is None:
        options = dataclasses.replace(options, any_model=host in LOOPBACK)
    named = () if host in _EVERYWHERE else (host,)
    options = dataclasses.replace(options, allowed_hosts=(*options.allowed_hosts, *named))
    app = create_app(model, options)
    last_step = options.last_step_seconds
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level=log_level,
        timeout_graceful_shutdown=options.shutdown_seconds - last_step,  # type: ignore[arg-type]
        **uvicorn_options(options),
    )
    server = _Server(config, options.shutdown_seconds, last_resort)
    _core.report_mapping_faults()  # names a file that is truncated under the model; a handler of the host's stays
    with _sigterm_returns(), _short_access_log():
        try:
            server.run()
        except KeyboardInterrupt:
            pass  # uvicorn raises the signal again
        finally:
            server.stop_watching()
            service = app.state.service
            service.close(0.0 if server.force_exit else last_step)
    if not server.started:
        sys.exit(1)  # uvicorn has said why
    return not service.engine.stuck


def uvicorn_options(options: ServerOptions) -> dict[str, Any]:
    """Arguments for `uvicorn.Config`, besides the application, that enforce the limits on connections."""
    options = checked_options(options)
    limits = ConnectionLimits(options, min(options.max_connections, _possible_connections()))
    return {
        "http": functools.partial(BoundedProtocol, limits=limits),
        "ws": "none",
        "proxy_headers": False,
        "server_header": False,
        "backlog": _BACKLOG,
        "timeout_keep_alive": options.idle_seconds,
    }


def end_process(code: int) -> None:
    """End the process without waiting for any thread; output is flushed if possible."""

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        logging.shutdown()

    flushing = threading.Thread(target=flush, daemon=True)
    flushing.start()
    flushing.join(1.0)
    os._exit(code)


class _Server(uvicorn.Server):
    """uvicorn's server, which ends in time."""

    def __init__(self, config: uvicorn.Config, seconds: float, last_resort: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._done = threading.Event()
        self._watching: threading.Thread | None = None
        self._seconds = seconds
        self._last_resort = last_resort
        self._event_loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._event_loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all requests and close all connections."""
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn would end the application by an exception
            await self.lifespan.shutdown()
        await asyncio.sleep(0)  # the requests that were cancelled say so
        for connection in list(self.server_state.connections):
            transport: Any = connection.transport
            if transport.get_write_buffer_size():
                transport.abort()  # nobody reads it
            else:
                transport.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; at the second signal at once."""
        again = self.should_exit
        super().handle_exit(sig, frame)
        if again:
            self.force_exit = True
            if self._event_loop is not None:
                self._event_loop.call_soon_threadsafe(self._drop)
        elif self._last_resort is not None:
            self._watching = threading.Thread(target=self._watch, name="lily-last-resort", daemon=True)
            self._watching.start()

    def stop_watching(self) -> None:
        """The event loop has ended."""
        self._done.set()
        if self._watching is not None:
            self._watching.join()

    def _drop(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _watch(self) -> None:
        if not self._done.wait(self._seconds + 1.0) and self._last_resort is not None:
            self._last_resort()


def _possible_connections() -> int:
    try:
        import resource
    except ImportError:  # not a POSIX system
        return 1 << 16
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else max(16, soft - _OTHER_FILES)


class _ShortPaths(logging.Filter):
    """Bounds what a client can write to the access log, and omits queries, in which some clients send keys."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args
        if isinstance(arguments, tuple) and len(arguments) == 5:
            path = str(arguments[2]).partition("?")[0]
            short = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."
            record.args = (*arguments[:2], short, *arguments[3:])
        return True


@contextlib.contextmanager
def _short_access_log() -> Iterator[None]:
    access, short = logging.getLogger("uvicorn.access"), _ShortPaths()
    access.addFilter(short)
    try:
        yield
    finally:
        access.removeFilter(short)


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
