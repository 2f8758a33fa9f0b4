"""The server as a process: where it listens, what a second one does, and how it ends."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
from starlette.testclient import TestClient

from by_hand import MASKS, random_call, recording_of
from wherefrom import InputError, save_recording
from wherefrom.views.web.serve import explorer_at, open_place
from wherefrom.views.web.shelf import Shelf

PATIENCE = 120
"""Seconds after which what has not ended never will, on a machine that does other things."""
RUN = """
import sys
from pathlib import Path
from wherefrom.views.web.serve import open_place, serve
from wherefrom.views.web.shelf import Shelf
place = open_place(port=int(sys.argv[2]))
serve(Shelf([Path(sys.argv[1])]), place, ready=lambda: print(place.address, place.instead_of, flush=True))
print("ended", flush=True)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = recording_of(random_call(MASKS["causal"]), letters="abcabca")
    return save_recording(made, tmp_path_factory.mktemp("served") / "hand.wherefrom")


SLOW = """
import sys, threading, time
import wherefrom
from wherefrom.cli import main
from wherefrom.views.web import app

def slow(*asked, **how):
    time.sleep(1000)

if sys.argv.pop() == 'answer':
    app.contents.units = lambda *asked: (print('begun', flush=True), slow())
else:
    wherefrom.load = slow  # begun before the address is printed
threads = threading._shutdown
threading._shutdown = lambda: (time.sleep(1000), threads())  # as a pool of threads at work would have it
main()
"""


@contextmanager
def served(file: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Yield a server's process, its address, and the port it had wanted instead."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(file), str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address, instead = process.stdout.readline().split()
        yield process, address, instead
    finally:
        process.kill()
        process.communicate()


def suppressed(do: Callable[[str], object], address: str) -> None:
    with suppress(OSError):
        do(address)


def ask(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        found: bytes = answer.read()
    return found


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_and_ends_in_order(file: Path, end: signal.Signals) -> None:
    with served(file, 0) as (process, address, instead):
        assert instead == "None"
        assert [run["key"] for run in json.loads(ask(f"{address}api/runs"))["runs"]] == ["hand"]
        process.send_signal(end)
        out, err = process.communicate(timeout=PATIENCE)
        assert err == ""
        if end == signal.SIGINT:
            assert (out, process.returncode) == ("ended\n", 0)
        with pytest.raises(urllib.error.URLError):
            ask(f"{address}api/runs")


@pytest.mark.parametrize("slow", ["answer", "load"])
def test_ctrl_c_waits_for_nothing(file: Path, slow: str) -> None:
    command = [sys.executable, "-c", SLOW, "explore", str(file), "--port", "0", "--no-browser", slow]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[4]
            if slow == "answer":
                question = f"{address}api/units?run=hand&text=0&by=word"
                Thread(target=lambda: suppressed(ask, question), daemon=True).start()
                assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
            assert (process.returncode, err) == (0, "")
        finally:
            process.kill()


ARENAS = """
import ctypes, sys, threading
from wherefrom.views.web import serve
if sys.argv[1] == "shared":
    serve.share_memory()
libc = ctypes.CDLL(None)
together = threading.Barrier(4)

def allocate():
    together.wait()
    held = [bytearray(1000) for _ in range(100)]
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas are glibc's")
def test_threads_that_answer_share_their_memory() -> None:
    heaps = {}
    for how in ("shared", "apart"):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("MALLOC_ARENA_MAX", None)
        command = [sys.executable, "-c", ARENAS, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment)
        heaps[how] = done.stdout.count("<heap nr=")
    assert heaps["shared"] == 1
    assert heaps["apart"] > 1


def test_a_second_one_takes_another_port_and_says_so(file: Path) -> None:
    with served(file, 0) as (_, first, _):
        port = int(first.split(":")[2].rstrip("/"))
        with served(file, port) as (_, second, instead):
            assert instead == str(port)
            assert second != first
            assert ask(f"{second}api/runs") == ask(f"{first}api/runs")


def test_it_listens_on_this_machine_alone() -> None:
    place = open_place(port=0)
    try:
        assert place.socket.getsockname()[0] == "127.0.0.1"
        assert place.token is None
        assert place.address == f"http://127.0.0.1:{place.port}/"
        # the port is held, and not shared
        other = socket.socket()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", place.port))
        other.close()
    finally:
        place.socket.close()


def test_beyond_it_there_is_a_token() -> None:
    one, other = (open_place("0.0.0.0", 0) for _ in range(2))
    try:
        assert one.token is not None
        assert len(one.token) >= 32
        assert one.token != other.token
        assert one.address.endswith(f"/?token={one.token}")
    finally:
        one.socket.close()
        other.socket.close()


@pytest.mark.parametrize(
    ("host", "printed", "is_own"),
    [
        ("127.0.0.2", "127.0.0.2", True),
        ("127.1", "127.0.0.1", True),
        ("LocalHost", "localhost", True),
        ("0:0:0:0:0:0:0:1", "[::1]", True),
        ("0.0.0.0", "127.0.0.1", False),
        ("0", "127.0.0.1", False),
        ("::", "[::1]", False),
        (socket.gethostname().upper(), socket.gethostname().lower(), socket.gethostname() == "localhost"),
    ],
)
def test_what_is_printed_is_answered(file: Path, host: str, printed: str, is_own: bool) -> None:
    try:
        family, *_, own = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as tried:
            tried.bind(own)
    except OSError:
        pytest.skip("this machine has no such address")
    place = open_place(host, 0)
    try:
        assert place.address.startswith(f"http://{printed}:{place.port}/")
        assert (place.token is None) == is_own
        assert (place.address_elsewhere is None) == (host not in ("0.0.0.0", "0", "::"))
        for address in filter(None, (place.address, place.address_elsewhere)):
            with TestClient(explorer_at(place, Shelf([file])), base_url=address) as page:
                assert page.get(address).status_code == 200
                assert page.get("/api/runs", headers={"origin": address.partition("/?")[0].rstrip("/")}).is_success
        number = place.socket.getsockname()[0]
        with socket.create_connection((printed.strip("[]") if number in ("0.0.0.0", "::") else number, place.port)):
            pass
    finally:
        place.socket.close()


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        (f"{'x' * 64}.example", 0, "the address: expected one of this machine, got xxx.*no name of a machine"),
        ("a..b", 0, "the address: expected one of this machine, got a..b"),
        ("\udcff", 0, "the address: expected one of this machine, got .udcff"),
        ("", 0, "the address: expected one of this machine"),
        ("203.0.113.9", 0, "the address: expected one of this machine, got 203.0.113.9"),
        ("no.such.name.invalid", 0, "the address: expected one of this machine"),
        ("127.0.0.1", 70000, "the port: expected 0 to 65,535, got 70000"),
        ("127.0.0.1", -1, "the port: expected"),
    ],
)
def test_a_place_that_cannot_be_is_refused(host: str, port: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_place(host, port)


def test_the_command_opens_what_it_is_given_and_ends_on_ctrl_c(file: Path) -> None:
    command = [sys.executable, "-m", "wherefrom", "explore", str(file), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("The explorer is at http://127.0.0.1:")
        assert said.endswith("/ (Ctrl-C ends it)\n")
        address = said.split()[4]
        assert [run["key"] for run in json.loads(ask(f"{address}api/runs"))["runs"]] == ["hand"]
        assert b"<script" in ask(address)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert (out, err, process.returncode) == ("", "", 0)
    finally:
        process.kill()
        process.communicate()


def test_with_nothing_named_there_is_the_lesson_and_how_to_name_something(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wherefrom", "explore", "--port", "0", "--no-browser", "--host", "0.0.0.0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[4]
        elsewhere = process.stdout.readline()
        assert elsewhere.startswith("On other machines it is at http://")
        assert elsewhere.strip().partition("/?token=")[2] == address.partition("/?token=")[2] != ""
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        for named in (address, elsewhere.split()[-1]):
            with opener.open(named, timeout=PATIENCE) as page:
                assert b"<script" in page.read()
            with opener.open(f"{named.partition('?')[0]}api/runs", timeout=PATIENCE) as found:
                assert json.loads(found.read())["runs"] == []
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        assert err == (
            "Nothing is named: the page has the lesson alone. Name a recording, a --folder of them, or a --text.\n"
        )
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["."],
            "a folder without a recording.json. Name a recording in it, or show every recording below it: --folder .",
        ),
        (["it's"], """below it: --folder 'it'"'"'s'."""),
        (["nowhere.wherefrom"], "expected a folder with a recording, got nothing there"),
        (["--folder", "nowhere"], "the folder: expected one that is there, got nowhere"),
        (["--text", "a", "--file", "b"], "the prompt: expected one source"),
        (["--text", " "], "the prompt: expected some text"),
        (["--folder", ".", "--port", "99999"], "the port: expected 0 to 65,535, got 99999"),
    ],
)
def test_the_command_refuses_in_a_sentence(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "it's").mkdir()
    command = [sys.executable, "-m", "wherefrom", "explore", *arguments, "--no-browser"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_text_is_recorded_with_every_prediction_and_shown() -> None:
    command = [sys.executable, "-m", "wherefrom", "explore", "--text", "The capital of Italy is", "--port", "0"]
    process = subprocess.Popen([*command, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[4]
        facts = json.loads(ask(f"{address}api/run?run=text"))
        assert facts["predictions"] == facts["texts"][0]["tokens"] == 5
        moved = ask(f"{address}api/row?run=text&call=0&head=all&destination=3&lens=moved")
        assert b"|a W_O v|" in moved  # what no other way of recording into memory keeps
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
        assert (out, process.returncode) == ("", 0)
    finally:
        process.kill()
        process.communicate()
