"""Downloads from a local server that disconnects, stalls, fails or sends wrong data."""

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
from steps.fetch import Remote, RetryPolicy, fetch

CONTENT = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = RetryPolicy(timeout=0.5, attempts=3, pause=0.01)


class Server(ThreadingHTTPServer):
    """Answers each request with the next behaviour of a list; after its end, answers correctly."""

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
        requested_range = self.headers.get("Range")
        self.server.ranges.append(requested_range)
        behaviour = self.server.behaviours.pop(0) if self.server.behaviours else "correct"
        if behaviour.isdigit():
            self.send_error(int(behaviour))
            return
        content = self.server.content
        if behaviour == "wrong data":
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = int(requested_range[6:-1]) if requested_range and behaviour != "no ranges" else 0
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
        if behaviour in ("disconnect", "stall"):
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
        (["disconnect"], 1),
        (["disconnect", "disconnect", "disconnect", "disconnect", "disconnect"], 5),
        (["stall"], 1),
        (["503", "429"], 0),
        (["disconnect", "no ranges"], 1),
        (["no length"], 0),
        (["wrong data"], 0),
    ],
    ids=lambda value: ",".join(value) or "correct" if isinstance(value, list) else "",
)
def test_the_file_is_downloaded_despite_failures(
    behaviours: list[str], resumed: int, server: Server, tmp_path: Path
) -> None:
    server.behaviours = list(behaviours)
    path = fetch(server.remote, tmp_path, QUICK, log=lambda text: None)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.tgz"]
    assert sum(requested is not None for requested in server.ranges) == resumed
    requests = len(server.ranges)
    assert fetch(server.remote, tmp_path, QUICK) == path
    assert len(server.ranges) == requests  # the second call made no request


def test_a_later_call_resumes_the_download(server: Server, tmp_path: Path) -> None:
    server.behaviours = ["disconnect", "500", "500", "500"]
    messages: list[str] = []
    with pytest.raises(PrepError, match=r"gave up after 3 attempts .* run again to continue"):
        fetch(server.remote, tmp_path, RetryPolicy(0.5, attempts=3, pause=0.01), messages.append)
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.tgz.part"]
    assert "was lost at 150000 of 300000 bytes" in messages[0]
    fetch(server.remote, tmp_path, QUICK)
    assert server.ranges[-1] == "bytes=150000-"
    assert (tmp_path / "corpus.tgz").read_bytes() == CONTENT


def test_a_complete_part_file_is_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.tgz.part").write_bytes(CONTENT)
    assert fetch(server.remote, tmp_path, QUICK).read_bytes() == CONTENT


def test_a_part_file_of_an_older_version_is_downloaded_again(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "corpus.tgz.part").write_bytes(b"old" * 10)
    assert fetch(server.remote, tmp_path, QUICK, lambda text: None).read_bytes() == CONTENT


def test_a_wrong_checksum_raises_an_error(server: Server, tmp_path: Path) -> None:
    server.behaviours = ["wrong data", "wrong data"]
    with pytest.raises(PrepError, match=f"wrong checksum, expected {SHA256[:12]}"):
        fetch(server.remote, tmp_path, QUICK, lambda text: None)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_with_a_wrong_checksum_is_not_overwritten(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "corpus.tgz").write_bytes(b"mine")
    with pytest.raises(PrepError, match="its checksum is wrong"):
        fetch(server.remote, tmp_path, QUICK)
    assert (tmp_path / "corpus.tgz").read_bytes() == b"mine"
    assert server.ranges == []


def test_a_404_is_not_retried(server: Server, tmp_path: Path) -> None:
    server.behaviours = ["404", "404"]
    with pytest.raises(PrepError, match="answered 404"):
        fetch(server.remote, tmp_path, QUICK)
    assert len(server.ranges) == 1


def test_an_unreachable_server_raises_an_error(tmp_path: Path) -> None:
    stopped = Server()
    stopped.server_close()
    with pytest.raises(PrepError, match="gave up after 3 attempts"):
        fetch(stopped.remote, tmp_path, QUICK, lambda text: None)
