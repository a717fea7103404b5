"""An error as a response, in the shape of the called API."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from lily.server.errors import ApiError, anthropic_body, openai_body
from lily.server.json_text import JsonResponse

__all__ = ["error_response", "refuse"]


def error_response(error: ApiError, *, anthropic: bool = False) -> JsonResponse:
    """An error as a response."""
    body = anthropic_body(error) if anthropic else openai_body(error)
    return JsonResponse(body, status_code=error.status, headers=error.headers)


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that has no endpoint with an error."""
    anthropic = str(scope.get("path", "")).startswith("/v1/messages")
    await error_response(error, anthropic=anthropic)(scope, receive, send)
