"""What a request must be before a page sees it: a read, of a known host, with the token."""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import URL, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Names of this machine alone, which no foreign page can give its own server.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_READS = ("GET", "HEAD")
_COOKIE = "tuner-token"
#: An address in brackets or a name, and a port.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::\d+)?")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


class Guard:
    """Refuses requests that are no reads, name another host or lack the token.

    A page of another site may make a browser send requests here, under a name that it resolves to
    this address: the Host header tells. A token in the query becomes a cookie that such a page
    cannot use.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], token: str | None) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._refuse(Request(scope)) or self._app
        await answer(scope, receive, send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
        if _host_of(request) not in self._hosts:
            text = "this host name is not served; `tuner serve --allow-host NAME` adds one"
            return PlainTextResponse(text, HTTPStatus.MISDIRECTED_REQUEST)
        if request.method not in _READS:
            text = "these pages can only be read"
            return PlainTextResponse(text, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"})
        if self._token is None:
            return None
        if self._is_token(request.query_params.get("token")):
            answer = RedirectResponse(_without_token(request.url), HTTPStatus.SEE_OTHER)
            answer.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given):
            return None
        if self._is_token(request.cookies.get(_COOKIE)):
            return None
        text = "the token is missing or wrong; open the address that `tuner serve` has printed"
        headers = {"WWW-Authenticate": "Bearer"}
        return PlainTextResponse(text, HTTPStatus.UNAUTHORIZED, headers)

    def _is_token(self, given: str | None) -> bool:
        known = self._token or ""
        return given is not None and hmac.compare_digest(given.encode(), known.encode())


def _host_of(request: Request) -> str:
    """The name in the Host header, without its port; empty for what is no name."""
    found = _HOST.fullmatch(request.headers.get("Host", ""))
    return (found[1] or found[2]).lower().rstrip(".") if found else ""


def _without_token(url: URL) -> str:
    left = [(name, text) for name, text in parse_qsl(url.query, True) if name != "token"]
    # A path that begins with two slashes would be another host.
    path = "/" + url.path.lstrip("/")
    return f"{path}?{urlencode(left)}" if left else path
