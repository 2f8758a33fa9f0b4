"""What the page has measured: the evidence at a position against its parts; jobs, their progress and their end."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import wherefrom
from by_hand import MASKS, random_call, recording_of
from kinds import small_model
from test_explorer import HOST, PORT, arrays
from wherefrom import InputError, Scope
from wherefrom.cli.measuring import ModelMeasurer
from wherefrom.evidence import at as at_module
from wherefrom.evidence.at import evidence_at
from wherefrom.evidence.goal import TokenGoal
from wherefrom.evidence.gradients import price
from wherefrom.evidence.running import runner_of
from wherefrom.evidence.versions import Destination
from wherefrom.recording import Recording
from wherefrom.views.web import jobs as jobs_module
from wherefrom.views.web.app import explorer
from wherefrom.views.web.jobs import Jobs, Progress, Wish
from wherefrom.views.web.shelf import Shelf
from wherefrom.views.web.wire import Message

TEXT = "the cat sat on the mat and the cat sat"
PATIENCE = 60


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model("llama")


@pytest.fixture(scope="module")
def recording(model: Any) -> Recording:
    return wherefrom.record(model, TEXT, predictions="all")


# -- the evidence at a position


@pytest.mark.parametrize("scope", [None, Scope((1,)), Scope((1,), (0,))])
def test_the_evidence_is_the_knock_outs_and_the_prices_of_the_same_heads(
    model: Any, recording: Recording, scope: Scope | None
) -> None:
    place = len(recording) - 2
    found = evidence_at(model, recording, place, target=5, scope=scope, carried_sources=1, carriers=2)
    apart = wherefrom.knock_out(Destination(model, recording, place), wherefrom.Target(5), scope=scope)
    assert np.allclose(found.nats[: place + 1], apart.nats, atol=1e-6)
    assert np.isnan(found.nats[place + 1 :]).all()
    priced = price(runner_of(model), TokenGoal(recording.tokens.ids[: place + 1], wherefrom.Target(5)))
    own = Scope() if scope is None else scope
    expected = priced.sources(rows=[place], layers=own.layers, heads=own.heads)
    assert found.prices is not None
    assert found.why_not_priced is None
    assert np.allclose(found.prices[: place + 1], expected, atol=1e-9)
    assert np.isnan(found.prices[place + 1 :]).all()
    assert found.aim.target.id == 5
    assert 0 < found.noise < 1e-3
    assert found.position == place


def test_each_stage_is_told_from_its_beginning(model: Any, recording: Recording) -> None:
    told: list[tuple[str, int, int]] = []
    evidence_at(model, recording, carried_sources=2, progress=lambda *at: told.append(at))
    stages = ["cutting each source", "one pass forward, one back", "cutting each head alone"]
    assert list(dict.fromkeys(what for what, _, _ in told)) == stages
    for stage, steps in zip(stages, (len(recording), 2, 2), strict=True):
        own = [(done, total) for what, done, total in told if what == stage]
        assert own[0] == (0, steps)
        assert own[-1] == (steps, steps)


def test_in_one_head_the_price_is_near_what_is_measured(model: Any, recording: Recording) -> None:
    found = evidence_at(model, recording, scope=Scope((1,), (0,)), carried_sources=0)
    assert found.prices is not None
    assert np.corrcoef(found.prices, found.nats)[0, 1] > 0.9
    assert found.carried == ()


def test_what_cannot_be_priced_says_why(model: Any, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_module, "MOST_PRICED", 4)
    found = evidence_at(model, recording)
    assert found.prices is None
    assert found.why_not_priced is not None
    assert "4 tokens at most" in found.why_not_priced
    assert np.isfinite(found.nats).all()
    beside = small_model("marian")
    crossed = evidence_at(beside, wherefrom.record(beside, TEXT, written="the"), scope=Scope(kind="cross"))
    assert crossed.prices is None
    assert len(crossed.nats) == len(crossed.recording.source)


def test_evidence_of_another_model_or_of_no_source_is_refused(model: Any, recording: Recording) -> None:
    other = small_model("llama", seed=9)
    with pytest.raises(InputError, match="model"):
        evidence_at(other, recording)
    with pytest.raises(InputError, match="reads only itself"):
        evidence_at(model, recording, 0)
    with pytest.raises(InputError, match="carriers"):
        evidence_at(model, recording, carriers=-1)


# -- asked for by the page


@pytest.fixture
def page(model: Any, recording: Recording) -> Iterator[TestClient]:
    with TestClient(
        explorer(Shelf([("run", recording)]), port=PORT, jobs=Jobs(ModelMeasurer(lambda: model))),
        base_url=f"http://{HOST}",
    ) as made:
        yield made


def over(page: TestClient, key: str) -> dict[str, Any]:
    """A job's facts once it is over."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        facts: dict[str, Any] = page.get("/api/job", params={"job": key}).json()
        if facts["state"] in ("done", "failed", "cancelled"):
            return facts
        time.sleep(0.01)
    raise AssertionError("the job did not end")


@pytest.mark.parametrize(("call", "head"), [("all", "all"), (1, "all"), (1, 0)])
def test_what_is_measured_is_what_python_measures(
    page: TestClient, model: Any, recording: Recording, call: Any, head: Any
) -> None:
    place = len(recording) - 1
    wish = {"run": "run", "destination": place, "call": call, "head": head, "like": 0}
    assert page.get("/api/measured", params=wish).json() == {
        **{"measured": False, "possible": True},
        **{"why": None, "job": None, "busy": None},
    }
    job = page.post("/api/jobs", json={**wish, "target": None}).json()
    facts = over(page, job["job"])
    assert (facts["state"], facts["error"]) == ("done", None)
    assert page.post("/api/jobs", json=wish).json()["job"] == job["job"]  # the same question, the same job
    told, found = arrays(page.get("/api/measured", params=wish))
    scope = Scope(None if call == "all" else (1,), None if head == "all" else (0,))
    expected = evidence_at(model, recording, place, scope=scope)
    assert np.allclose(found["knockout"], expected.nats, atol=1e-5)
    assert np.allclose(found["attribution"], expected.prices, atol=1e-5)
    assert told["target"]["label"] == expected.aim.label
    assert told["target"]["nats"] == pytest.approx(expected.knockouts.before, abs=1e-5)
    assert [one["source"] for one in told["carried"]] == [one.source for one in expected.carried]
    against = [one.opposing and (one.opposing.layer, one.opposing.head) for one in expected.carried]
    opposing = [one["opposing"] for one in told["carried"]]
    assert [one and (one["layer"], one["head"]) for one in opposing] == against
    assert any(against) or head != "all"
    assert (
        told["scope"]
        == f"{'all heads' if head == 'all' else 'head 0'} of {'all layers' if call == 'all' else 'layer 1'}"
    )
    other = {**wish, "target": "the"}
    assert page.get("/api/measured", params=other).json()["measured"] is False  # of another token nothing was


def test_what_cannot_be_measured_is_a_sentence(page: TestClient, recording: Recording) -> None:
    wish = {"run": "run", "destination": len(recording) - 1, "call": "all", "head": "all", "like": 0}
    job = page.post("/api/jobs", json={**wish, "target": "no such token"}).json()
    facts = over(page, job["job"])
    assert facts["state"] == "failed"
    assert "exactly one token" in facts["error"]
    job = page.post("/api/jobs", json={**wish, "destination": 0}).json()
    assert "reads only itself" in over(page, job["job"])["error"]
    for body, said in (
        (b"not json", "an object of JSON"),
        (b"[1]", "an object of JSON"),
        (b"[" * 50_000, "an object of JSON"),
        (b'{"run": "\\ud800"}', "whole characters"),
        (b'{"run": ["run"]}', "a text or a whole number"),
        (b'{"run": "run"}', '"call"'),
    ):
        answer = page.post("/api/jobs", content=body)
        assert answer.status_code == 400
        assert said in answer.json()["error"]
    assert page.get("/api/job", params={"job": "none"}).status_code == 400
    assert page.request("DELETE", "/api/job", params={"job": "none"}).status_code == 400
    assert page.post("/api/jobs", json=wish, headers={"origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("target", "said"),
    [("é", 'the token "é": expected exactly one token of this model, got 2'), ("x" * 201, "got 201 characters")],
)
def test_a_target_that_is_no_token_is_refused_with_what_the_page_can_do(
    model: Any, recording: Recording, target: str, said: str
) -> None:
    measurer = ModelMeasurer(lambda: model)
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        measurer.measure(recording, Wish(3, None, None, "self", "decoder", target), lambda *_: None)
    assert refused.value.way_out.startswith("Ask for another token, or leave it empty for the likeliest")


def test_without_the_recordings_model_the_page_is_told_why(model: Any, recording: Recording) -> None:
    def fails() -> Any:
        raise InputError("the model", expected="a folder", given="none", way_out="Name one.")

    hand = recording_of(random_call(MASKS["causal"]), letters="abcdefg")
    shelf = Shelf([("run", recording), ("hand", hand)])
    for measurer, run, said in (
        (None, "run", "a page without one"),
        (ModelMeasurer(fails), "run", "expected a folder, got none"),
        (ModelMeasurer(lambda: model), "hand", "the model that made the recording"),
    ):
        with TestClient(explorer(shelf, port=PORT, jobs=Jobs(measurer)), base_url=f"http://{HOST}") as page:
            wish = {"run": run, "destination": 3, "call": "all", "head": "all", "like": 0}
            facts = page.get("/api/measured", params=wish).json()
            assert facts["possible"] is False
            assert said in facts["why"]
            answer = page.post("/api/jobs", json=wish)
            assert answer.status_code >= 400
            assert said in answer.json()["error"]


def test_what_waits_for_the_model_keeps_nothing_else_waiting(model: Any, recording: Recording) -> None:
    loaded, asked = threading.Event(), {"run": "run", "destination": 3, "call": "all", "head": "all", "like": 0}

    def slow() -> Any:
        assert loaded.wait(PATIENCE)
        return model

    app = explorer(Shelf([("run", recording)]), port=PORT, jobs=Jobs(ModelMeasurer(slow)))
    with TestClient(app, base_url=f"http://{HOST}") as page, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(page.get, "/api/measured", params=asked) for _ in range(6)]
        assert pool.submit(page.get, "/api/runs").result(PATIENCE / 2).status_code == 200
        assert not any(answer.done() for answer in waiting)
        loaded.set()
        assert all(answer.result(PATIENCE).json()["possible"] for answer in waiting)


def test_a_model_that_does_not_load_is_told_as_often_as_one_asks(recording: Recording) -> None:
    error = OSError("no such disk")

    def fails() -> Any:
        raise error

    measurer = ModelMeasurer(fails)
    for _ in range(3):
        assert "OSError: no such disk" in str(measurer.refusal(recording, wish()))
    frames = 0
    trace = error.__traceback__
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    assert frames <= 3  # what is held does not grow with the questions


def test_what_never_can_be_measured_is_told_before_anybody_measures(model: Any) -> None:
    measurer = ModelMeasurer(lambda: model)
    some = wherefrom.record(model, TEXT, layers=[0])
    assert "expected every layer and head" in str(measurer.refusal(some, wish()))
    translating = small_model("marian")
    both = wherefrom.record(translating, TEXT, written="the")
    measurer = ModelMeasurer(lambda: translating)
    assert measurer.refusal(both, wish()) is None
    reading = replace(wish(), part="encoder")
    assert "expected the part that predicts, the decoder, got the encoder" in str(measurer.refusal(both, reading))


# -- jobs


class Slow:
    """A measurer whose steps are let through one by one."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)
        self.asked: list[Wish] = []

    def refusal(self, recording: Recording, wish: Wish) -> None:
        return None

    def measure(self, recording: Recording, wish: Wish, progress: Progress) -> Message:
        self.asked.append(wish)
        if wish.destination == 99:
            raise ZeroDivisionError
        for step in range(3):
            progress("counting", step, 3)
            self.steps.acquire(timeout=PATIENCE)
        return Message({"sum": wish.destination})


def wish(destination: int = 1) -> Wish:
    return Wish(destination, None, None, "self", "decoder", None)


def until(true: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_one_job_runs_at_a_time_and_tells_how_far_it_is(recording: Recording) -> None:
    slow = Slow()
    jobs = Jobs(slow)
    first, second = jobs.start(0, recording, wish(1)), jobs.start(0, recording, wish(2))
    assert jobs.start(0, recording, wish(1)) is first
    assert jobs.start(1, recording, wish(1)) is not first  # another recording
    until(lambda: first.state == "running" and first.what == "counting")
    slow.steps.release()
    until(lambda: first.done == 1)
    assert (first.total, second.state) == (3, "waiting")
    assert jobs.last(0, wish(1)) is first
    assert jobs.last(1, wish(1)).found is None
    for _ in range(20):
        slow.steps.release()
    until(lambda: second.state == "done")
    assert jobs.last(0, wish(2)).found.facts == {"sum": 2}
    assert jobs.last(1, wish(2)) is None


def test_how_long_the_rest_takes_is_judged_by_what_was_done(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(jobs_module.time, "monotonic", lambda: clock[0])
    job = jobs_module.Job("key", (0, wish()), recording, "running")
    job.at("cutting each source", 0, 50)
    clock[0] += 4
    assert job.told().facts["left"] is None  # nothing was done yet
    job.at("cutting each source", 10, 50)
    assert job.told().facts["left"] == pytest.approx(16)
    job.at("cutting each head alone", 2, 4)  # the next kind of work is judged by itself, from where it began
    clock[0] += 0.5
    job.at("cutting each head alone", 3, 4)
    assert job.told().facts["left"] is None  # half a second says little
    clock[0] += 2.5
    assert job.told().facts["left"] == pytest.approx(3)
    job.at("cutting each head alone", 4, 4)
    assert job.told().facts["left"] is None  # nothing is left of it
    job.at("reading forwards and backwards", 0, 2)
    clock[0] += 9
    job.at("reading forwards and backwards", 1, 2)
    assert job.told().facts["left"] is None  # the way back takes another time than the way there
    job.at("cutting each head alone", 3, 4)
    job.state = "done"
    assert job.told().facts["left"] is None


def test_work_under_way_is_told_to_whoever_asks_what_was_found(recording: Recording) -> None:
    slow = Slow()
    with TestClient(
        explorer(Shelf([("run", recording), ("other", replace(recording))]), port=PORT, jobs=Jobs(slow)),
        base_url=f"http://{HOST}",
    ) as asked:
        place = {"run": "run", "destination": 1, "call": "all", "head": "all", "like": 0}
        job = asked.post("/api/jobs", json={**place, "target": None}).json()["job"]
        until(lambda: asked.get("/api/job", params={"job": job}).json()["what"] == "counting")
        found = asked.get("/api/measured", params=place).json()
        assert (found["measured"], found["possible"], found["job"]["job"]) == (False, True, job)
        assert (found["job"]["state"], found["job"]["total"], found["busy"]) == ("running", 3, None)
        elsewhere = asked.get("/api/measured", params={**place, "destination": 2}).json()
        assert elsewhere["job"] is None
        assert elsewhere["busy"] == {"job": job, "destination": 1, "here": True}
        beside = asked.get("/api/measured", params={**place, "run": "other"}).json()
        assert beside["busy"] == {"job": job, "destination": 1, "here": False}
        for _ in range(3):
            slow.steps.release()
        over(asked, job)
        assert asked.get("/api/measured", params=place).json() == {"sum": 1}
        failed = asked.post("/api/jobs", json={**place, "destination": 99, "target": None}).json()["job"]
        error = over(asked, failed)["error"]
        assert asked.get("/api/measured", params={**place, "destination": 99}).json()["job"]["error"] == error


def test_a_cancelled_job_ends_and_can_be_asked_for_again(recording: Recording) -> None:
    slow = Slow()
    jobs = Jobs(slow)
    first, second = jobs.start(0, recording, wish(1)), jobs.start(0, recording, wish(2))
    until(lambda: first.state == "running")
    assert jobs.cancel(second.key).state == "cancelled"
    jobs.cancel(first.key)
    assert jobs.last(0, wish(1)) is None
    again = jobs.start(0, recording, wish(1))
    assert again is not first
    slow.steps.release()
    until(lambda: first.state == "cancelled")
    for _ in range(5):
        slow.steps.release()
    until(lambda: again.state == "done")
    assert [asked.destination for asked in slow.asked] == [1, 1]  # the second never ran
    jobs.cancel(again.key)
    assert again.state == "done"


def test_a_fault_of_ours_is_a_sentence_and_the_next_job_runs(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Slow()
    jobs = Jobs(slow)
    bad = jobs.start(0, recording, wish(99))
    until(lambda: bad.state == "failed")
    assert bad.error is not None
    assert "ZeroDivisionError" not in bad.error
    assert "ZeroDivisionError" in capsys.readouterr().err
    for _ in range(3):
        slow.steps.release()
    good = jobs.start(0, recording, wish(1))
    until(lambda: good.state == "done")


def test_a_fault_that_nobody_can_read_ends_its_job_all_the_same(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        bad = Jobs(Slow()).start(0, recording, wish(99))
        until(lambda job=bad: job.state == "failed")
        assert bad.error is not None


def test_a_job_that_is_over_holds_no_recording(recording: Recording) -> None:
    slow = Slow()
    jobs = Jobs(slow)
    first, second, third = (jobs.start(0, recording, wish(number)) for number in (1, 2, 99))
    jobs.cancel(second.key)
    assert second.recording is None
    assert third.recording is recording
    for _ in range(3):
        slow.steps.release()
    until(lambda: third.state == "failed")
    assert [job.recording for job in (first, second, third)] == [None] * 3


def test_jobs_are_bounded(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_KEPT", 3)
    slow = Slow()
    jobs = Jobs(slow)
    first = jobs.start(0, recording, wish(0))
    until(lambda: first.state == "running")
    for number in range(1, jobs_module.MOST_WAITING + 1):
        jobs.start(0, recording, wish(number))
    with pytest.raises(InputError, match="waiting"):
        jobs.start(0, recording, wish(50))
    waiting = [job for job in list(jobs._jobs.values()) if job.state == "waiting"]
    jobs.cancel(waiting[0].key)
    again = jobs.start(0, recording, wish(51))  # what was cancelled leaves its place at once
    assert again.state == "waiting"
    jobs.close(0)
    assert again.state == "cancelled"
    slow.steps.release()
    until(lambda: first.state == "cancelled")
    for number in range(60, 66):
        for _ in range(3):
            slow.steps.release()
        job = jobs.start(0, recording, wish(number))
        until(lambda job=job: job.state == "done")
    with pytest.raises(InputError, match="Measure it again"):
        jobs.job(first.key)
    assert jobs.last(0, wish(65)).found is not None
