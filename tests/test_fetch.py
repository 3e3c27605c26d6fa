"""Downloads against a server of our own that breaks off, stalls, fails and lies."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from steps.errors import PrepError
from steps.fetch import Patience, Remote, fetch

CONTENT = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = Patience(timeout=0.5, attempts=3, pause=0.01)


class Server(ThreadingHTTPServer):
    """Answers each request with the next behaviour of its list, then behaves well."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours: list[str] = []
        self.ranges: list[str | None] = []
        self.content = CONTENT

    @property
    def remote(self) -> Remote:
        return Remote(f"http://127.0.0.1:{self.server_port}/corpus.tgz", SHA256)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        behaviour = self.server.behaviours.pop(0) if self.server.behaviours else "good"
        if behaviour.isdigit():
            self.send_error(int(behaviour))
            return
        content = self.server.content
        if behaviour == "lie":
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = int(asked[6:-1]) if asked and behaviour != "no ranges" else 0
        if start >= len(content):
            self.send_error(416)
            return
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if behaviour != "no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if behaviour in ("break", "stall"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if behaviour == "stall":
                time.sleep(2)
            self.close_connection = True
            return
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()


@pytest.mark.parametrize(
    ("behaviours", "resumed"),
    [
        ([], 0),
        (["break"], 1),
        (["break", "break", "break", "break", "break"], 5),
        (["stall"], 1),
        (["503", "429"], 0),
        (["break", "no ranges"], 1),
        (["no length"], 0),
        (["lie"], 0),
    ],
    ids=lambda value: ",".join(value) or "good" if isinstance(value, list) else "",
)
def test_the_file_arrives(
    behaviours: list[str], resumed: int, server: Server, tmp_path: Path
) -> None:
    server.behaviours = list(behaviours)
    path = fetch(server.remote, tmp_path, QUICK, say=lambda text: None)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.tgz"]
    assert sum(asked is not None for asked in server.ranges) == resumed
    asked = len(server.ranges)
    assert fetch(server.remote, tmp_path, QUICK) == path  # a second call asks nobody
    assert len(server.ranges) == asked


def test_a_later_call_continues(server: Server, tmp_path: Path) -> None:
    server.behaviours = ["break", "500", "500", "500"]
    said: list[str] = []
    with pytest.raises(PrepError, match=r"gave up after 3 attempts .* call again to continue"):
        fetch(server.remote, tmp_path, Patience(0.5, attempts=3, pause=0.01), said.append)
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.tgz.part"]
    assert "broke off at 150000 of 300000 bytes" in said[0]
    fetch(server.remote, tmp_path, QUICK)
    assert server.ranges[-1] == "bytes=150000-"
    assert (tmp_path / "corpus.tgz").read_bytes() == CONTENT


def test_a_complete_part_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.tgz.part").write_bytes(CONTENT)
    assert fetch(server.remote, tmp_path, QUICK).read_bytes() == CONTENT


def test_a_part_of_an_older_version_is_downloaded_afresh(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.tgz.part").write_bytes(b"old" * 10)
    assert fetch(server.remote, tmp_path, QUICK, lambda text: None).read_bytes() == CONTENT


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    server.behaviours = ["lie", "lie"]
    with pytest.raises(PrepError, match=f"wrong checksum, expected {SHA256[:12]}"):
        fetch(server.remote, tmp_path, QUICK, lambda text: None)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_but_wrong_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.tgz").write_bytes(b"mine")
    with pytest.raises(PrepError, match="its checksum is wrong"):
        fetch(server.remote, tmp_path, QUICK)
    assert (tmp_path / "corpus.tgz").read_bytes() == b"mine"
    assert server.ranges == []


def test_refusals_are_final(server: Server, tmp_path: Path) -> None:
    server.behaviours = ["404", "404"]
    with pytest.raises(PrepError, match="answered 404"):
        fetch(server.remote, tmp_path, QUICK)
    assert len(server.ranges) == 1


def test_nobody_there(tmp_path: Path) -> None:
    gone = Server()
    gone.server_close()
    with pytest.raises(PrepError, match="gave up after 3 attempts"):
        fetch(gone.remote, tmp_path, QUICK, lambda text: None)
