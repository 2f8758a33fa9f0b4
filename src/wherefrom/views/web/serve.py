"""The explorer's server (floor 6): on this machine's own address unless it is told otherwise, until Ctrl-C ends it."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from wherefrom.errors import InputError
from wherefrom.views.web import HOST, PORT
from wherefrom.views.web.app import explorer
from wherefrom.views.web.guard import LOOPBACK
from wherefrom.views.web.jobs import Jobs, Measurer
from wherefrom.views.web.shelf import Shelf

TRIED = 20
"""Ports from the first one on that are tried before any that is free is taken."""
TOKEN_BYTES = 24
PATIENCE = 2
"""Seconds that answers under way have when the server ends."""


@dataclass(frozen=True)
class Opened:
    """A place to be asked at.

    Attributes:
        socket: that listens.
        host: its address, as it stands in a page's address.
        token: which everybody has to know beyond this machine; None on it.
        instead_of: the port that was wanted and taken; None where the wanted one is had.
    """

    socket: socket.socket
    host: str
    token: str | None
    instead_of: int | None

    @property
    def port(self) -> int:
        """Its port."""
        number: int = self.socket.getsockname()[1]
        return number

    @property
    def address(self) -> str:
        """What is typed into a browser."""
        token = "" if self.token is None else f"?token={self.token}"
        return f"http://{self.host}:{self.port}/{token}"


def open_place(host: str = HOST, port: int = PORT) -> Opened:
    """Return a place to be asked at: the port, or the next one that is free.

    Args:
        host: an address of this machine, or a name of one. Beyond "localhost" and its addresses a token is made.
        port: from 1; 0 takes any that is free.

    Raises:
        InputError: no such address, no port, or none is free.
    """
    if not 0 <= port < 2**16:
        raise InputError("the port", expected="0 to 65,535", given=str(port), way_out="Leave it out.", port=port)
    own = _is_own(host)
    wanted = [port, *range(port + 1, min(port + TRIED, 2**16)), 0] if port else [0]
    for number in wanted:
        try:
            found = _bound(host, number)
        except OSError as error:
            last = error
            continue
        token = None if own else secrets.token_urlsafe(TOKEN_BYTES)
        instead = port if port and found.getsockname()[1] != port else None
        return Opened(found, f"[{host}]" if ":" in host else host, token, instead)
    raise InputError(
        "the address",
        expected="one of this machine",
        given=f"{host} ({last.strerror or last})",
        way_out="Leave it out: then it is this machine's own, 127.0.0.1.",
        host=host,
    )


def _is_own(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens, one that no other process of this machine shares."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port of a server that ended is free at once
        made.bind(address)
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


def serve(
    shelf: Shelf, place: Opened, *, measurer: Measurer | None = None, ready: Callable[[], None] | None = None
) -> None:
    """Answer until Ctrl-C, or until the process is asked to end.

    Args:
        shelf: the recordings that are shown.
        place: from `open_place`; it is closed at the end.
        measurer: runs their model; None: nothing can be measured.
        ready: called once when pages can be asked for.
    """
    jobs = Jobs(measurer)
    names = LOOPBACK if place.token is None else (*LOOPBACK, place.host)
    config = uvicorn.Config(
        explorer(shelf, port=place.port, names=names, token=place.token, jobs=jobs),
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=PATIENCE,
        limit_concurrency=128,
        h11_max_incomplete_event_size=32 * 1024,
        lifespan="off",
    )
    server = _Server(config, ready)
    try:
        server.run(sockets=[place.socket])
    except KeyboardInterrupt:  # raised again by the server after it ended in order
        pass
    finally:
        place.socket.close()
        jobs.close(PATIENCE)


class _Server(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self._ready is not None and self.started:
            self._ready()
