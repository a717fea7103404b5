"""Access control: hosts, web pages and keys; refuses requests before any endpoint sees them."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from lily.server.desktop_origins import is_desktop_origin
from lily.server.errors import ApiError
from lily.server.options import ServerOptions
from lily.server.refusal import refuse
from lily.server.unread_body import UnreadBody

__all__ = ["Gate", "check_key", "client_of"]

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Gate:
    """The outermost application: refuses requests for other servers' names, or from other sites' web pages."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        if scope["type"] == "http":
            body = UnreadBody(scope, receive, send)
            receive, send = body.receive, body.send
            try:
                self._check(scope)
            except ApiError as error:
                await refuse(error, scope, receive, send)
                return
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ApiError(
                400, "a request must not have both a Content-Length and a Transfer-Encoding", code="invalid_http"
            )
        self._check_host(headers, scope)
        self._check_origin(headers)

    def _check_host(self, headers: Headers, scope: Scope) -> None:
        """A page whose name was made to point at this machine (DNS rebinding) still sends its own name."""
        given = headers.get("host", "").strip()
        if not given or _has_key(headers, self._options):
            return  # browsers always send it
        host = _without_port(given)
        server = scope.get("server")
        local = "" if server is None else str(server[0]).lower()
        if host in _LOCAL_NAMES or host == local or any(_matches(host, one) for one in self._options.allowed_hosts):
            return
        if _is_address(host) and _is_address(local) and not _is_loopback(local):
            return  # an address: no name was looked up
        message = f"this server is not called {given[:100]!r}; allow the name with --allowed-host (allowed_hosts)"
        raise ApiError(403, message, code="host_not_allowed")

    def _check_origin(self, headers: Headers) -> None:
        """Web pages of other sites are refused unless they were allowed."""
        allowed = self._options.cors_origins
        origin = headers.get("origin")
        cross_site = headers.get("sec-fetch-site", "").strip().lower() == "cross-site"
        if (origin is None and not cross_site) or origin in allowed or "*" in allowed:
            return
        if origin is None or not is_desktop_origin(origin):
            message = "requests from web pages of this origin are not allowed (option --cors-origin)"
            raise ApiError(403, message, code="origin_not_allowed")
        if not self._options.allow_desktop:
            shown = origin[:100].encode("ascii", "replace").decode()
            message = f"requests of desktop applications ({shown}) are not allowed (option --allow-desktop)"
            raise ApiError(403, message, code="origin_not_allowed")


def check_key(request: Request, options: ServerOptions) -> None:
    """ApiError unless the request brings one of the keys."""
    if options.api_keys and not _has_key(request.headers, options):
        raise ApiError(401, "Incorrect or missing API key.", code="invalid_api_key")


def client_of(request: Request, options: ServerOptions) -> str:
    """The client's identity for taking turns: its key if there are keys, else its address."""
    key = _given_key(request.headers) if options.api_keys else ""
    return key or ("" if request.client is None else request.client.host)


def _has_key(headers: Headers, options: ServerOptions) -> bool:
    """Whether a request brings one of the keys; the comparisons take the same time for any key."""
    given = hashlib.sha256(_given_key(headers).encode("latin-1", "replace")).digest()
    matches = [hmac.compare_digest(given, hashlib.sha256(key.encode()).digest()) for key in options.api_keys]
    return any(matches)


def _given_key(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _without_port(host: str) -> str:
    """The name or address of a Host header, in lower case; of IPv6 without brackets."""
    host = host.lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _matches(host: str, allowed: str) -> bool:
    allowed = _without_port(allowed)
    return allowed in ("*", host) or (allowed.startswith("*.") and host.endswith(allowed[1:]))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback
