"""The explorer's server (floor 6): on this machine's own address unless it is told otherwise, until Ctrl-C ends it."""

from __future__ import annotations

import ctypes
import ipaddress
import logging
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvicorn

from wherefrom.errors import InputError
from wherefrom.readable import readable
from wherefrom.views.web import HOST, PORT
from wherefrom.views.web.app import explorer
from wherefrom.views.web.guard import LOOPBACK, MOST_QUERY, Guard, one_spelling
from wherefrom.views.web.jobs import Jobs, Measurer
from wherefrom.views.web.shelf import Shelf

TRIED = 20
"""Ports from the first one on that are tried before any that is free is taken."""
TOKEN_BYTES = 24
ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that are nobody's, far from here."""
PATIENCE = 2
"""Seconds that answers under way have when the server ends."""
ARENAS = -8
"""What glibc's mallopt calls the most arenas there may be, M_ARENA_MAX."""


@dataclass(frozen=True)
class Opened:
    """A place to be asked at.

    Attributes:
        socket: that listens.
        host: its address or name, as it stands in a page's address: for a browser on this machine.
        token: which everybody has to know beyond this machine; None on it.
        instead_of: the port that was wanted and taken; None where the wanted one is had.
        elsewhere: its address or name for other machines, where it listens at all addresses of this one; else None.
        names: all that it may be called by.
    """

    socket: socket.socket
    host: str
    token: str | None
    instead_of: int | None
    elsewhere: str | None
    names: tuple[str, ...]

    @property
    def port(self) -> int:
        """Its port."""
        number: int = self.socket.getsockname()[1]
        return number

    @property
    def address(self) -> str:
        """What is typed into a browser."""
        return self._address(self.host)

    @property
    def address_elsewhere(self) -> str | None:
        """What is typed into a browser on another machine, where that is something else."""
        return None if self.elsewhere is None else self._address(self.elsewhere)

    def _address(self, host: str) -> str:
        token = "" if self.token is None else f"?token={self.token}"
        return f"http://{host}:{self.port}/{token}"


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
    try:
        family, (number, *scope) = _looked_up(host)
        bound = _bound(family, number, scope, port)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "no name of a machine"
        raise InputError(
            "the address",
            expected="one of this machine",
            given=f"{readable(host)[:80] or 'nothing'} ({why})",
            way_out=f"Leave it out: then it is this machine's own, {HOST}.",
            host=host,
        ) from error
    own, spelled = ipaddress.ip_address(number), one_spelling(host)
    is_own = own.is_loopback and (_is_number(host) or spelled == "localhost")
    token = None if is_own else secrets.token_urlsafe(TOKEN_BYTES)
    instead = port if port and bound.getsockname()[1] != port else None
    if own.is_unspecified:
        here = "[::1]" if own.version == 6 else HOST
        names = tuple(dict.fromkeys((*LOOPBACK, *map(one_spelling, (socket.gethostname(), socket.getfqdn())))))
        return Opened(bound, here, token, instead, _seen_from_elsewhere(family), names)
    spelled = one_spelling(number) if _is_number(host) else spelled
    return Opened(bound, spelled, token, instead, None, tuple({*LOOPBACK, spelled, one_spelling(number)}))


def _looked_up(host: str) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return the address of a host, as a number: that of a family, and for IPv6 what belongs to it."""
    family, _, _, _, (number, _, *scope) = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return family, (number, *scope)


def _is_number(host: str) -> bool:
    """Whether a host is an address, in whatever spelling: "127.1" is one."""
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False
    return True


def _seen_from_elsewhere(family: socket.AddressFamily) -> str:
    """Return what other machines call this one: the address that it has towards them, or else its name."""
    with socket.socket(family, socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect((ELSEWHERE[family], 9))  # no byte is sent: it only says by which of its addresses it would be
        return one_spelling(asked.getsockname()[0])
    return one_spelling(socket.gethostname())


def _bound(family: socket.AddressFamily, number: str, scope: Sequence[Any], port: int) -> socket.socket:
    """Return a socket that listens at the first port that is free, which no other process of this machine shares."""
    wanted = [port, *range(port + 1, min(port + TRIED, 2**16)), 0] if port else [0]
    for one in wanted:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port of a server that ended is free at once
            made.bind((number, one, *scope))
            made.listen(128)
        except OSError as error:
            made.close()
            last = error
        else:
            return made
    raise last


def explorer_at(place: Opened, shelf: Shelf, jobs: Jobs | None = None) -> Guard:
    """Return the explorer that is asked at a place: see `wherefrom.views.web.app.explorer`."""
    anywhere = place.elsewhere is not None
    return explorer(shelf, port=place.port, names=place.names, token=place.token, anywhere=anywhere, jobs=jobs)


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
    share_memory()
    jobs = Jobs(measurer)
    config = uvicorn.Config(
        explorer_at(place, shelf, jobs),
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=PATIENCE,
        limit_concurrency=128,
        h11_max_incomplete_event_size=2 * MOST_QUERY,
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


def share_memory() -> None:
    """Have all threads share one arena of the C library, where it is glibc; elsewhere nothing is to be done.

    Otherwise each thread that computes answers has one (mallopt(3), M_ARENA_MAX), and what is freed in it is of no use
    to the others: an explorer that was asked for long held twice the memory, and ever more of it.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library has no such function
            ctypes.CDLL(None).mallopt(ARENAS, 1)


class _Server(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._ready = ready

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; that answers are given up then is no fault, and nothing is said of it."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self._ready is not None and self.started:
            self._ready()
