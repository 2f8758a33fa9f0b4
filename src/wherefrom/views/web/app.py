"""The explorer's addresses (floor 6): what the page asks, answered in threads, so that nothing waits for a large map.

Recordings are only read. An answer that was given before comes from memory; a broken recording, or a question that
means nothing, is answered with its sentence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from wherefrom.errors import InputError, WherefromError
from wherefrom.questions.maps import HeadMap
from wherefrom.recording import Recording
from wherefrom.views.web import contents, told
from wherefrom.views.web.asked import Asked
from wherefrom.views.web.faults import tell_fault
from wherefrom.views.web.guard import LOOPBACK, Guard
from wherefrom.views.web.jobs import Job, Jobs, Wish
from wherefrom.views.web.kept import Kept
from wherefrom.views.web.shelf import Shelf, listed
from wherefrom.views.web.wire import Message

STATIC = Path(__file__).parent / "static"
GONE = 499
"""The status of an answer that nobody waits for."""
AT_ONCE = 4
"""Questions that are computed at once; the others wait their turn."""
MOST_MAPS = 16
"""Heads whose maps are held: of a long text a map holds the blocks of every coarse level."""
Teller = Callable[[Recording, Asked], Message]
"""What answers a question about a recording."""


class Explorer:
    """Answers the page's questions about the recordings on a shelf.

    Args:
        shelf: which recordings there are.
        jobs: what is measured; without them nothing can be.
        among_others: whether a page may come to it that another server sent: it is told then which recordings in memory
            are this one's.
    """

    def __init__(self, shelf: Shelf, jobs: Jobs | None = None, *, among_others: bool = False) -> None:
        self._shelf = shelf
        self._among_others = among_others
        self._jobs = Jobs(None) if jobs is None else jobs
        self._in_memory: WeakKeyDictionary[Recording, str] = WeakKeyDictionary()
        self._answers: Kept[tuple[str, bytes]] = Kept()
        self._maps: Kept[HeadMap] = Kept(MOST_MAPS)
        self._turns: dict[bool, CapacityLimiter] = {}
        self._tellers: dict[str, Teller] = {
            "run": self._about,
            "tokens": lambda own, asked: contents.tokens(
                own, asked.number("text", 0), asked.number("start"), asked.number("count")
            ),
            "find": lambda own, asked: contents.find(own, asked.number("text", 0), asked.text("query")),
            "units": lambda own, asked: contents.units(own, asked.number("text", 0), asked.text("by")),
            "heads": lambda own, asked: told.heads(own, asked.number("call")),
            "row": lambda own, asked: told.row(
                own, _chosen(own, asked), asked.number("destination"), asked.text("lens")
            ),
            "column": lambda own, asked: told.column(
                own, _chosen(own, asked), asked.number("source"), asked.text("lens")
            ),
            "tile": self._tile,
            "pair": lambda own, asked: told.pair(own, *map(asked.number, ("call", "head", "destination", "source"))),
            "numbers": lambda own, asked: told.numbers(
                own, *map(asked.number, ("call", "head", "destination")), top=asked.number("sources", 8)
            ),
        }

    def routes(self) -> list[Route]:
        """Return the addresses of the interface."""
        return [
            Route("/api/runs", self._runs),
            Route("/api/measured", self._measured),
            Route("/api/jobs", self._start, methods=["POST"]),
            Route("/api/job", self._job),
            Route("/api/job", self._cancel, methods=["DELETE"]),
            *(Route(f"/api/{name}", partial(self._told, name, teller)) for name, teller in self._tellers.items()),
        ]

    def answer(self, name: str, own: Recording, asked: Asked) -> tuple[str, bytes]:
        """Return the answer to a question about a recording: its media type and its bytes."""
        return self._tellers[name](own, asked).packed()

    async def _runs(self, request: Request) -> Response:
        return await self._answered(request, lambda: listed(self._shelf).packed())

    async def _told(self, name: str, teller: Teller, request: Request) -> Response:
        asked = Asked(dict(request.query_params))

        def answer() -> tuple[str, bytes]:
            own = self._recording(asked)
            key = name, self._identity(own), tuple(sorted(asked.given.items()))
            return self._answers.get(key, lambda: teller(own, asked).packed(), lambda packed: len(packed[1]))

        return await self._answered(request, answer)

    async def _measured(self, request: Request) -> Response:
        asked = Asked(dict(request.query_params))

        def answer() -> tuple[str, bytes]:
            own = self._recording(asked)
            wish = _wish(own, asked)
            job = self._jobs.last(self._identity(own), wish)
            if job is not None and job.found is not None:
                return job.found.packed()
            refusal = None if job is not None else self._jobs.refusal(own, wish)
            why = None if refusal is None else str(refusal)
            going = None if job is None else self._going(job).facts
            facts = {"measured": False, "possible": why is None, "why": why, "job": going}
            return Message({**facts, "busy": self._busy(job, self._identity(own))}).packed()

        return await self._answered(request, answer, of_model=True)

    def _busy(self, wanted: Job | None, own: Hashable) -> dict[str, Any] | None:
        """Return what else is being measured: its job, position, and whether it is of the recording `own` tells."""
        running = self._jobs.running
        if running is None or running is wanted:
            return None
        identity, wish = running.question
        return {"job": running.key, "destination": wish.destination, "here": identity == own}

    async def _start(self, request: Request) -> Response:
        body = await request.body()

        def answer() -> tuple[str, bytes]:
            asked = Asked.of_body(body)
            own = self._recording(asked)
            return self._going(self._jobs.start(self._identity(own), own, _wish(own, asked))).packed()

        return await self._answered(request, answer, of_model=True)

    async def _job(self, request: Request) -> Response:
        asked = Asked(dict(request.query_params))
        return await self._answered(request, lambda: self._going(self._jobs.job(asked.text("job"))).packed())

    def _going(self, job: Job) -> Message:
        """Return how far a job is, and what it waits for."""
        busy = self._busy(job, job.question[0]) if job.state == "waiting" else None
        return Message({**job.told().facts, "busy": busy})

    async def _cancel(self, request: Request) -> Response:
        asked = Asked(dict(request.query_params))
        return await self._answered(request, lambda: self._going(self._jobs.cancel(asked.text("job"))).packed())

    async def _answered(
        self, request: Request, answer: Callable[[], tuple[str, bytes]], *, of_model: bool = False
    ) -> Response:
        """Compute an answer in a thread; what cannot be answered says why.

        What nobody waits for any more when its turn comes is not computed: a page that is panned asks for much that
        it soon does without. What waits for the model to be loaded keeps nothing else waiting.
        """
        try:
            async with self._turns.setdefault(of_model, CapacityLimiter(AT_ONCE)):
                if await request.is_disconnected():
                    return Response(status_code=GONE)
                kind, body = await _in_thread(answer)
        except InputError as error:
            return _refusal(400, str(error))
        except WherefromError as error:
            return _refusal(422, str(error))
        except Exception:
            return _refusal(500, tell_fault())
        return Response(body, media_type=kind, headers={"cache-control": "no-store"})

    def _recording(self, asked: Asked) -> Recording:
        """Return the recording that is asked about: the very one that the page shows, where it says which.

        Raises:
            InputError: there is none, or another was written in its place since.
        """
        own = self._shelf.recording(asked.run)
        version = self._version(own)
        if asked.given.get("version", version) != version:
            raise InputError(
                "the recording",
                expected="what this page shows",
                given="one that was written since",
                way_out="Load the page again.",
            )
        return own

    def _about(self, own: Recording, asked: Asked) -> Message:
        version = self._version(own)
        return Message({**contents.about(asked.run, own).facts, **({} if version is None else {"version": version})})

    def _version(self, own: Recording) -> str | None:
        """Return what tells a recording from what is written in its place, or stands in another server's memory."""
        return self._identity(own) if self._among_others else self._shelf.version(own)

    def _identity(self, own: Recording) -> str:
        """Return what tells a recording from every other, also from what is written in its place later."""
        return self._shelf.version(own) or self._in_memory.setdefault(own, f"in memory {token_urlsafe(9)}")

    def _tile(self, own: Recording, asked: Asked) -> Message:
        index, head = asked.number("call"), asked.number("head")
        call = told.call_of(own, index)
        map_ = self._maps.get((self._identity(own), index, head), lambda: HeadMap(call, head), lambda _: 1)
        return told.tile(map_, *map(asked.number, ("level", "row", "column")), of=asked.text("of"))


def _chosen(own: Recording, asked: Asked) -> told.Chosen:
    call, head = asked.number_or_all("call"), asked.number_or_all("head")
    return told.Chosen.of(own, call, head, asked.number("like", 0))


def _wish(own: Recording, asked: Asked) -> Wish:
    """Return what is to be measured; the positions, heads and token are checked where it is."""
    index, head = asked.number_or_all("call"), asked.number_or_all("head")
    call = told.call_of(own, asked.number("like", 0) if index is None else index)
    target = asked.text("target") if "target" in asked.given else None
    layer = None if index is None else call.layer
    return Wish(asked.number("destination"), layer, head, call.kind, call.part, target)


async def _in_thread(answer: Callable[[], tuple[str, bytes]]) -> tuple[str, bytes]:
    """Compute an answer in a thread of its own, which keeps neither the loop nor the end of the process waiting."""
    done: Future[tuple[str, bytes]] = Future()

    def compute() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(answer())
        except BaseException as error:  # raised where the answer is waited for
            done.set_exception(error)

    Thread(target=compute, name="answering", daemon=True).start()
    return await asyncio.wrap_future(done)


def _refusal(status: int, sentence: str) -> Response:
    body = json.dumps({"error": sentence}, ensure_ascii=False).encode(errors="replace")
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


async def _gone(request: Request, error: Exception) -> Response:
    """Answer whoever went away in the middle of asking: with nothing, and without a word where it was started."""
    return Response(status_code=GONE)


def explorer(
    shelf: Shelf,
    *,
    port: int,
    names: tuple[str, ...] = LOOPBACK,
    token: str | None = None,
    anywhere: bool = False,
    jobs: Jobs | None = None,
) -> Guard:
    """Return the explorer as an ASGI application.

    Args:
        shelf: the recordings that it shows.
        port: that it will be asked at.
        names: hosts that it may be called by; this machine alone unless given.
        token: asked for where it is not None.
        anywhere: whether it may be called by any address as well.
        jobs: what is measured; without them nothing can be.
    """
    files = {path.relative_to(STATIC).as_posix(): path for path in sorted(STATIC.rglob("*")) if path.is_file()}

    async def page(request: Request) -> Response:
        path = files.get(request.path_params.get("path") or "index.html")  # looked up: no path is made of an address
        if path is None:
            return _refusal(404, "There is no such page.")
        lasting = "max-age=31536000, immutable" if path.parent.name == "assets" else "no-cache"
        return FileResponse(path, headers={"cache-control": lasting})

    routes = [*Explorer(shelf, jobs, among_others=True).routes(), Route("/", page), Route("/{path:path}", page)]
    app: Any = Starlette(routes=routes, exception_handlers={ClientDisconnect: _gone})
    return Guard(app, port, names, token, anywhere)
