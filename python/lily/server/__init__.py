"""An HTTP server with the OpenAI and Anthropic APIs over one model; needs the extra ``server``."""

from __future__ import annotations

from lily.checks.extras import require_extra

require_extra("server", "starlette", "uvicorn", "prometheus_client")

# ruff: noqa: E402 -- what follows needs those packages
from lily.server.app import create_app
from lily.server.options import ServerOptions
from lily.server.run import serve, uvicorn_options

__all__ = ["ServerOptions", "create_app", "serve", "uvicorn_options"]
