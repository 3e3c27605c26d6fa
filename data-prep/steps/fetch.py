"""Download a file so that it survives bad networks: resumed, timed out, retried, checked.

A download grows in ``NAME.part`` and gets its name only when it is complete and its checksum is
right, so a file that is there is a file that is good.
"""

from __future__ import annotations

import hashlib
import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from steps.errors import PrepError

CHUNK = 1 << 16


@dataclass(frozen=True)
class Remote:
    """A file at an official address, with the checksum of its content.

    The checksum is a SHA-256 or, where only that is published, an MD5; the two tell themselves
    apart by length. It is empty where none was ever published: the download is then complete by
    its announced length, and the manifest keeps the SHA-256 of what came.
    """

    url: str
    checksum: str = ""
    saved_as: str = ""  # for addresses that do not end in a file's name

    @property
    def name(self) -> str:
        return self.saved_as or self.url.rstrip("/").rsplit("/", 1)[-1]

    def accepts(self, path: Path) -> bool:
        return not self.checksum or digest_of(path, self.kind) == self.checksum

    @property
    def kind(self) -> str:
        return {64: "sha256", 32: "md5"}[len(self.checksum)]


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, and how often to come back to it."""

    timeout: float = 30.0  # seconds without a byte
    attempts: int = 6  # in a row that bring nothing new
    pause: float = 2.0  # seconds before the second attempt; doubles


class UnfinishedError(Exception):
    """This attempt ended early; what arrived is kept."""


def sha256_of(path: Path) -> str:
    return digest_of(path, "sha256")


def digest_of(path: Path, kind: str) -> str:
    digest = hashlib.new(kind)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(
    remote: Remote,
    folder: Path,
    patience: Patience | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> Path:
    """Bring ``remote`` into ``folder`` unless it is there; continue what an earlier call began."""
    patience = patience or Patience()
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / remote.name, folder / f"{remote.name}.part"
    if path.exists():
        if remote.accepts(path):
            return path
        raise PrepError(f"{path} is there, but its checksum is wrong: move it away or delete it")
    for whole in (1, 2):
        _download(remote, part, patience, say)
        if remote.accepts(part):
            if not remote.checksum:
                say(f"{remote.name}: no checksum is published, SHA-256 {sha256_of(part)}")
            part.replace(path)
            return path
        found = digest_of(part, remote.kind)
        # A resumed file may be two versions in one: once more, from its first byte.
        part.unlink()
        if whole == 1:
            say(f"{remote.name}: wrong checksum, downloading it once more from the start")
    raise PrepError(
        f"{remote.url}: wrong checksum, expected {remote.checksum[:12]}…, found {found[:12]}…"
    )


def _download(remote: Remote, part: Path, patience: Patience, say: Callable[[str], None]) -> None:
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            return _attempt(remote, part, patience.timeout)
        except UnfinishedError as error:
            grown = part.exists() and part.stat().st_size > before
            failures = 1 if grown else failures + 1
            if failures >= patience.attempts:
                raise PrepError(
                    f"{remote.url}: gave up after {failures} attempts ({error}); "
                    f"what arrived is kept in {part}, call again to continue"
                ) from None
            pause = patience.pause * 2 ** (failures - 1)
            say(f"{remote.name}: {error}, trying again in {pause:.0f} s")
            time.sleep(pause)


def _attempt(remote: Remote, part: Path, timeout: float) -> None:
    """One connection: append to ``part`` where the server can continue, else start over."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(remote.url)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            continued = answer.status == 206 and _starts_at(answer, have)
            _receive(answer, part, have if continued else 0, remote.name)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            return  # nothing behind what we have: complete, the checksum decides
        if error.code in (408, 425, 429) or error.code >= 500:
            raise UnfinishedError(f"the server answered {error.code}") from None
        raise PrepError(f"{remote.url}: the server answered {error.code} {error.reason}") from None
    except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise UnfinishedError(str(error) or type(error).__name__) from None
    except urllib.error.URLError as error:
        raise UnfinishedError(str(error.reason)) from None


def _starts_at(answer: http.client.HTTPResponse, offset: int) -> bool:
    return (answer.getheader("Content-Range") or "").startswith(f"bytes {offset}-")


def _receive(answer: http.client.HTTPResponse, part: Path, offset: int, name: str) -> None:
    announced = answer.getheader("Content-Length")
    total = None if announced is None else offset + int(announced)
    bar = tqdm(
        total=total, initial=offset, unit="B", unit_scale=True, desc=name, leave=False, disable=None
    )
    with bar, part.open("ab" if offset else "wb") as file:
        while chunk := answer.read1(CHUNK):
            try:
                file.write(chunk)
                file.flush()
            except OSError as error:
                raise PrepError(f"{part}: {error.strerror or error}") from None
            bar.update(len(chunk))
    size = part.stat().st_size
    if total is not None and size < total:
        raise UnfinishedError(f"the connection broke off at {size} of {total} bytes")
