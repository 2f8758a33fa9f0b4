"""Long work that the page asks for (floor 6): one thing at a time, with progress, and cancelled when asked.

The explorer runs no model. Whoever starts it may hand in a `Measurer`, which does; without one, or for a recording of
another model, the page is told why nothing can be measured. A question that was asked before has the same job.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from wherefrom.errors import InputError, WherefromError
from wherefrom.recording import Recording
from wherefrom.views.web.faults import tell_fault
from wherefrom.views.web.wire import Message

State: TypeAlias = Literal["waiting", "running", "done", "cancelled", "failed"]
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all); what it raises ends the work."""
OVER: tuple[State, ...] = ("done", "cancelled", "failed")
MOST_WAITING = 16
STEP = 0.02
"""Seconds between two looks whether all has ended."""
JUDGED_AFTER, JUDGED_FROM = 1.0, 4
"""Seconds of a kind of work from which is judged how long the rest of it will take, and how many steps it has then: two
or three, such as an estimate's passes forwards and backwards, are of different lengths."""
MOST_KEPT = 64
"""Jobs that are remembered, with what they found."""


@dataclass(frozen=True)
class Wish:
    """What is to be measured: the sources of a destination.

    Attributes:
        destination: the position that reads.
        layer: the heads of this one alone; None: of all.
        head: this one alone, of each layer; None: all.
        kind: "self" or "cross".
        part: whose attention it is.
        target: the token whose probability it is about; None: the likeliest.
    """

    destination: int
    layer: int | None
    head: int | None
    kind: str
    part: str
    target: str | None


class Measurer(Protocol):
    """What runs a model for the page."""

    def refusal(self, recording: Recording, wish: Wish) -> WherefromError | None:
        """Return why nothing of a recording's part can be measured; None where it can. It may take a while."""

    def measure(self, recording: Recording, wish: Wish, progress: Progress) -> Message:
        """Return what was found; see `wherefrom.views.web.measured`."""


class _CancelledError(Exception):
    """Ends the work of a job from within its progress."""


@dataclass(eq=False)
class Job:
    """A piece of work and how far it is.

    Attributes:
        key: its name, which nobody guesses.
        question: what tells it from others: what tells its recording from others, and the wish.
        recording: that it is about; let go when it is over, since jobs are remembered for longer than files are open.
        since: when what is being done began, by the clock of `time.monotonic`.
        begun: how many steps of it were done then.
    """

    key: str
    question: tuple[Hashable, Wish]
    recording: Recording | None
    state: State = "waiting"
    what: str = ""
    done: int = 0
    total: int = 0
    error: str | None = None
    found: Message | None = None
    since: float = 0.0
    begun: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)

    def told(self) -> Message:
        """Return how far it is, and how many seconds what is being done takes yet, if its steps go on as they did."""
        facts = {name: getattr(self, name) for name in ("state", "what", "done", "total", "error")}
        return Message({**facts, "job": self.key, "left": self._left()})

    def at(self, what: str, done: int, total: int) -> None:
        """Note how far it is."""
        if what != self.what:
            self.since, self.begun = time.monotonic(), done
        self.what, self.done, self.total = what, done, total

    def _left(self) -> float | None:
        """Return the seconds that are left of what is being done; None before there is anything to judge by."""
        taken, done, left = time.monotonic() - self.since, self.done - self.begun, self.total - self.done
        if self.state != "running" or done <= 0 or left <= 0 or taken < JUDGED_AFTER or self.total < JUDGED_FROM:
            return None
        return taken / done * left


class Jobs:
    """Jobs in their turn, one at a time.

    Args:
        measurer: does the work; None: nothing can be measured.
    """

    def __init__(self, measurer: Measurer | None) -> None:
        self._measurer = measurer
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._worker: threading.Thread | None = None

    def refusal(self, recording: Recording, wish: Wish) -> WherefromError | None:
        """Return why nothing of a recording's part can be measured; None where it can. It may take a while."""
        if self._measurer is not None:
            return self._measurer.refusal(recording, wish)
        way_out = "Start the explorer by the command `wherefrom explore`."
        return InputError("measuring", expected="a model that runs", given="a page without one", way_out=way_out)

    def start(self, identity: Hashable, recording: Recording, wish: Wish) -> Job:
        """Return the job of a question: the one that there is, or a new one.

        Args:
            identity: what tells the recording from others.
            recording: that is asked about.
            wish: what is to be measured.

        Raises:
            WherefromError: nothing can be measured, or too much is waiting.
        """
        refusal = self.refusal(recording, wish)
        if refusal is not None:
            raise refusal
        with self._lock:
            known = self._known((identity, wish), ("waiting", "running", "done"))
            if known is not None:
                return known
            if len(self._waiting) >= MOST_WAITING:
                way_out = "Wait for one of them, or cancel it."
                raise InputError(
                    "what is measured", expected=f"at most {MOST_WAITING} waiting", given="one more", way_out=way_out
                )
            job = Job(secrets.token_urlsafe(12), (identity, wish), recording)
            self._waiting.append(job)
            self._more.notify()
            self._jobs[job.key] = job
            self._forget()
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="measuring", daemon=True)
                self._worker.start()
            return job

    def job(self, key: str) -> Job:
        """Return a job.

        Raises:
            InputError: there is none, or it was long ago.
        """
        with self._lock:
            if key in self._jobs:
                return self._jobs[key]
        raise InputError("the work", expected="some of this server", given="none of it", way_out="Measure it again.")

    def cancel(self, key: str) -> Job:
        """Cancel a job, and return it: it ends at its next word of progress. One that is over stays as it is.

        Raises:
            InputError: there is none.
        """
        job = self.job(key)
        with self._lock:
            job.cancelled.set()
            if job.state == "waiting":
                job.state, job.recording = "cancelled", None
                self._waiting.remove(job)
        return job

    def last(self, identity: Hashable, wish: Wish) -> Job | None:
        """Return the last job of a question: with what was found, under way, or failed; None where it was cancelled."""
        with self._lock:
            return self._known((identity, wish), ("waiting", "running", "done", "failed"))

    @property
    def running(self) -> Job | None:
        """The one that is being done; None: there is none."""
        with self._lock:
            return next((job for job in self._jobs.values() if job.state == "running"), None)

    def close(self, patience: float) -> None:
        """Cancel whatever waits or runs, and wait so many seconds at most until it has ended."""
        for job in list(self._jobs.values()):
            self.cancel(job.key)
        end = time.monotonic() + patience
        while time.monotonic() < end and any(job.state == "running" for job in list(self._jobs.values())):
            time.sleep(STEP)

    def _known(self, question: tuple[Hashable, Wish], states: tuple[State, ...]) -> Job | None:
        last = next((job for job in reversed(self._jobs.values()) if job.question == question), None)
        if last is None or last.state not in states:
            return None
        return last if last.state == "done" or not last.cancelled.is_set() else None

    def _forget(self) -> None:
        """Drop the oldest that are over, where there are too many."""
        for key in [key for key, job in self._jobs.items() if job.state in OVER]:
            if len(self._jobs) <= MOST_KEPT:
                return
            del self._jobs[key]

    def _work(self) -> None:
        while True:
            with self._more:
                while not self._waiting:
                    self._more.wait()
                job = self._waiting.popleft()
                job.state = "running"
            self._do(job)

    def _do(self, job: Job) -> None:
        assert self._measurer is not None
        assert job.recording is not None

        def progress(what: str, done: int, total: int) -> None:
            if job.cancelled.is_set():
                raise _CancelledError
            job.at(what, done, total)

        state: State = "failed"
        try:
            found = self._measurer.measure(job.recording, job.question[1], progress)
        except _CancelledError:
            state = "cancelled"
        except WherefromError as error:
            job.error = str(error)
        except Exception:
            job.error = tell_fault()
        else:
            job.found, state = found, "done"
        with self._lock:
            job.state, job.recording = state, None
