"""lily serve: an HTTP server with the OpenAI and Anthropic APIs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from lily.cli import loading, options
from lily.cli.command import command
from lily.errors import InvalidArgumentError

__all__ = ["serve"]

_STUCK = 1  # the exit code
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@command("""\
  lily serve                                          the small bundled model on http://127.0.0.1:8080
  lily serve ./Qwen3.6-35B-A3B-4bit --context 65536
  LILY_API_KEY=secret lily serve --host 0.0.0.0       for other machines
""")
def serve(
    model: options.Model = options.DEFAULT_MODEL,
    model_option: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="The same as MODEL.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8080,
    name: Annotated[list[str] | None, typer.Option(help="Model name for clients; may be repeated.")] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help="Key that clients must send; may be repeated (or LILY_API_KEY).")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin whose web pages are allowed; may be repeated.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Allowed name of this server besides localhost and --host; may be repeated."),
    ] = None,
    max_queue: Annotated[int, typer.Option(min=1, help="Maximum waiting requests.")] = 128,
    max_connections: Annotated[int, typer.Option(min=1, help="Maximum open connections.")] = 256,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="Maximum size of a request, in MiB.")] = 32,
    max_pending_mb: Annotated[
        float, typer.Option(min=0.001, help="Maximum memory of all requests together, in MiB.")
    ] = 256,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0.1, help="Maximum seconds until the server has stopped.")
    ] = 10,
    thinking: Annotated[bool, typer.Option("--thinking/--no-thinking", help="Think by default.")] = True,
    cache_gb: Annotated[
        float | None, typer.Option(min=0, help="Memory of the prefix cache, in GB; 0: none. [a tenth, at most 2 GiB]")
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Directory that keeps prompts across restarts; its files hold their tokens.")
    ] = None,
    threads: options.Threads = None,
    context: options.Context = None,
    backend: options.Backend = "auto",
    debug: options.Debug = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what would otherwise be ignored or converted with a warning.")
    ] = False,
    any_model: Annotated[
        bool | None,
        typer.Option(
            "--any-model/--no-any-model",
            help="Accept any model name. [on, if only this machine can connect]",
        ),
    ] = None,
    allow_desktop: Annotated[
        bool, typer.Option("--allow-desktop", help="Allow desktop applications (app://, tauri://, file:// and so on).")
    ] = False,
) -> None:
    """Serve a model over HTTP, with the OpenAI and Anthropic APIs."""
    del debug  # the guard around this function reads it
    from lily.server import ServerOptions
    from lily.server.run import end_process, run_server

    keys = tuple(api_key or ()) or tuple(filter(None, [os.environ.get("LILY_API_KEY")]))
    if host not in _LOOPBACK and not keys:
        raise InvalidArgumentError(f"{host} can be reached from other machines: set a key with --api-key first")
    server_options = ServerOptions(
        names=tuple(name or ()),
        api_keys=keys,
        cors_origins=tuple(cors_origin or ()),
        allowed_hosts=tuple(allowed_host or ()),
        max_queue=max_queue,
        max_connections=max_connections,
        max_request_bytes=int(max_body_mb * 2**20),
        max_pending_bytes=int(max_pending_mb * 2**20),
        shutdown_seconds=shutdown_timeout,
        thinking=thinking,
        strict=strict,
        any_model=any_model,
        allow_desktop=allow_desktop,
    )
    with loading.load_model(
        model_option or model,
        backend=backend,
        max_context=context,
        threads=threads,
        prefix_cache_bytes=None if cache_gb is None else int(cache_gb * 1e9),
        prefix_cache_dir=cache_dir,
    ) as loaded:
        if not run_server(loaded, server_options, host=host, port=port, last_resort=lambda: end_process(_STUCK)):
            end_process(_STUCK)  # the model is in use, so it cannot be closed
