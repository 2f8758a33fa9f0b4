"""Who is let in (floor 6): the page that this server gave out, on this machine, and nobody else.

A page of another site can make a browser ask a server on this machine (and, by a name that it turns into this machine's
address, read the answer). So a request is answered only if it names this server itself as its host, and if no other
site is its origin. Where the server listens at all addresses, any address will do as its host: only a name can be
turned into another machine. Beyond this machine's own address a token is asked for as well, once: it is then a cookie.

The policy that goes out with every answer lets the page load scripts, styles and data from here alone, run none that
stands in a text, and be framed by nobody.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qs

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BODY = 64 * 1024
"""Bytes of a request's body."""
TOO_LONG = (413, f"Expected at most {MOST_BODY:,} bytes.")
MOST_QUERY = 32 * 1024
"""Bytes of an address: of the longest name and the longest text at once, each byte of which it writes as three."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
COOKIE = "wherefrom-token-{port}"
"""Its name: all servers of a host, at whatever port, are sent the cookies of each other."""
NAMED = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(?::(\d{1,5}))?")
"""A host as it stands in a request: its name or address, and its port."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


@dataclass(frozen=True)
class Guard:
    """Lets requests through to an application, or answers them itself with a sentence.

    Args:
        app: what is guarded.
        port: that the server listens on.
        names: hosts that it may be called by, each as `one_spelling` writes it.
        token: asked for where it is not None.
        anywhere: whether it may be called by any address as well; then there is a token.
    """

    app: App
    port: int
    names: tuple[str, ...] = LOOPBACK
    token: str | None = None
    anywhere: bool = False

    def __post_init__(self) -> None:
        """Refuse to be open to everybody."""
        assert self.token is not None or not self.anywhere, "who is called by any address asks for a token"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers_of(scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _say(send, *refusal)
            return
        if self.token is not None and not self._knows_token(headers):
            await self._ask_for_token(scope, send)
            return

        exchange = _Exchange(receive, send)
        await self.app(scope, exchange.receive, exchange.send)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str] | None:
        """Return the status and the sentence of a request that is not answered."""
        host = headers.get(b"host", "").lower()
        if not self._is_called(host):
            port = "" if self.port == 80 else f":{self.port}"
            own = [f"{name}{port}" for name in sorted(self.names)] + ["any address of this machine"] * self.anywhere
            return 421, f"This server answers to {', '.join(own)} alone."
        if headers.get(b"origin", f"http://{host}").lower() != f"http://{host}":
            return 403, "Pages of other sites are not answered."
        if headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "Pages of other sites are not answered."
        if len(scope.get("query_string", b"")) > MOST_QUERY:
            return 414, f"Expected an address of at most {MOST_QUERY:,} bytes."
        size = headers.get(b"content-length", "0")
        if not size.isdigit() or int(size) > MOST_BODY:
            return TOO_LONG
        return None

    def _is_called(self, host: str) -> bool:
        """Whether a host, as a request has it, is this server."""
        found = NAMED.fullmatch(host)
        if found is None or int(found[2] or 80) != self.port:
            return False
        return one_spelling(found[1]) in self.names or (self.anywhere and address_of(found[1]) is not None)

    def _knows_token(self, headers: dict[bytes, str]) -> bool:
        """Whether the token is among the cookies, whatever other servers of this host have made of theirs."""
        given = (cookie.strip().partition("=") for cookie in headers.get(b"cookie", "").split(";"))
        return any(name == self._cookie and self._is_token(value) for name, _, value in given)

    @property
    def _cookie(self) -> str:
        return COOKIE.format(port=self.port)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), str(self.token).encode())

    async def _ask_for_token(self, scope: Scope, send: Send) -> None:
        """Take the token from the address into a cookie, and the address back to what it is without; or refuse."""
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if scope["path"] != "/" or not self._is_token(given):
            await _say(send, 401, "Expected the address with its token, as it was printed when the server started.")
            return
        cookie = f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": [*headers, *HEADERS]})
        await send({"type": "http.response.body", "body": b""})


def _headers_of(scope: Scope) -> dict[bytes, str]:
    """Return the headers of a request; of one that stands there twice both, so that neither goes unseen."""
    found: dict[bytes, str] = {}
    for given, value in scope["headers"]:
        name, between = given.lower(), "; " if given.lower() == b"cookie" else ", "
        found[name] = value.decode("latin-1") if name not in found else found[name] + between + value.decode("latin-1")
    return found


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is, in brackets or not; None for a name."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def one_spelling(host: str) -> str:
    """Return a host in one spelling: "[::1]" for "0:0:0:0:0:0:0:1", "vm" for "VM" and for "vm." with its root."""
    address = address_of(host)
    if address is None:
        return host.lower().removesuffix(".")
    return f"[{address.compressed}]" if address.version == 6 else address.compressed


class _Exchange:
    """One request and its answer: with the policy, and with a body no longer than it may be.

    A longer one is answered here. To the application, whoever asked is gone then, and what it answers goes nowhere.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._left = MOST_BODY
        self._begun = self._over = False

    async def receive(self) -> MutableMapping[str, Any]:
        """Return what comes next of the request."""
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left >= 0:
            return message
        if not self._begun:
            self._begun = self._over = True
            await _say(self._send, *TOO_LONG)
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Pass on a part of the answer."""
        if self._over:
            return
        if message["type"] == "http.response.start":
            self._begun = True
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await self._send(message)


async def _say(send: Send, status: int, sentence: str) -> None:
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *HEADERS]})
    await send({"type": "http.response.body", "body": body})
