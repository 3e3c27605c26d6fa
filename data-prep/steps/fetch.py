"""Download files over unreliable networks: with timeouts, retries, resumption and checksums.

A download is written to ``NAME.part`` and renamed to ``NAME`` only when it is complete and its
checksum is right. A file under its final name is therefore always complete.
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
    """A file at its official URL, with the checksum of its content.

    The checksum is a SHA-256, or an MD5 if only an MD5 is published; its length distinguishes the
    two. The checksum is empty if none is published. In this case the download is complete when it
    has the length that the server announced, and the manifest records the SHA-256 of the file.
    """

    url: str
    checksum: str = ""
    saved_as: str = ""  # for URLs that do not end in a file name

    @property
    def name(self) -> str:
        return self.saved_as or self.url.rstrip("/").rsplit("/", 1)[-1]

    def matches(self, path: Path) -> bool:
        """Return whether a file has the published checksum; True if none is published."""
        return not self.checksum or digest_of(path, self.algorithm) == self.checksum

    @property
    def algorithm(self) -> str:
        return {64: "sha256", 32: "md5"}[len(self.checksum)]


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a server and how often to try again."""

    timeout: float = 30.0  # seconds without any data
    attempts: int = 6  # consecutive attempts without any new data
    pause: float = 2.0  # seconds before the second attempt; doubles with every further attempt


class IncompleteDownloadError(Exception):
    """One attempt ended early; the data that arrived is kept."""


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return digest_of(path, "sha256")


def digest_of(path: Path, algorithm: str) -> str:
    """Return a checksum of a file in hexadecimal."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(
    remote: Remote,
    folder: Path,
    policy: RetryPolicy | None = None,
    log: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> Path:
    """Download ``remote`` into ``folder`` unless it is there already, and return its path.

    A download that an earlier call left incomplete is resumed.
    """
    policy = policy or RetryPolicy()
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / remote.name, folder / f"{remote.name}.part"
    if path.exists():
        if remote.matches(path):
            return path
        raise PrepError(f"{path} exists, but its checksum is wrong: move it away or delete it")
    for attempt in (1, 2):
        _download(remote, part, policy, log)
        if remote.matches(part):
            if not remote.checksum:
                log(f"{remote.name}: no checksum is published; its SHA-256 is {sha256_of(part)}")
            part.replace(path)
            return path
        found = digest_of(part, remote.algorithm)
        # A resumed file may mix two versions of the original, so download it again from the start.
        part.unlink()
        if attempt == 1:
            log(f"{remote.name}: wrong checksum, downloading it again from the start")
    raise PrepError(
        f"{remote.url}: wrong checksum, expected {remote.checksum[:12]}…, found {found[:12]}…"
    )


def _download(remote: Remote, part: Path, policy: RetryPolicy, log: Callable[[str], None]) -> None:
    failures = 0
    while True:
        size_before = part.stat().st_size if part.exists() else 0
        try:
            return _attempt(remote, part, policy.timeout)
        except IncompleteDownloadError as error:
            grown = part.exists() and part.stat().st_size > size_before
            failures = 1 if grown else failures + 1
            if failures >= policy.attempts:
                raise PrepError(
                    f"{remote.url}: gave up after {failures} attempts ({error}); "
                    f"{part} keeps what arrived, run again to continue"
                ) from None
            pause = policy.pause * 2 ** (failures - 1)
            log(f"{remote.name}: {error}, trying again in {pause:.0f} s")
            time.sleep(pause)


def _attempt(remote: Remote, part: Path, timeout: float) -> None:
    """Connect once: append to ``part`` if the server can resume, else start from the beginning."""
    size = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(remote.url)
    if size:
        request.add_header("Range", f"bytes={size}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            resumed = response.status == 206 and _starts_at(response, size)
            _receive(response, part, size if resumed else 0, remote.name)
    except urllib.error.HTTPError as error:
        if error.code == 416 and size:
            # The server has no further bytes. The checksum will show whether the file is right.
            return
        if error.code in (408, 425, 429) or error.code >= 500:
            raise IncompleteDownloadError(f"the server answered {error.code}") from None
        raise PrepError(f"{remote.url}: the server answered {error.code} {error.reason}") from None
    except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise IncompleteDownloadError(str(error) or type(error).__name__) from None
    except urllib.error.URLError as error:
        raise IncompleteDownloadError(str(error.reason)) from None


def _starts_at(response: http.client.HTTPResponse, offset: int) -> bool:
    return (response.getheader("Content-Range") or "").startswith(f"bytes {offset}-")


def _receive(response: http.client.HTTPResponse, part: Path, offset: int, name: str) -> None:
    announced = response.getheader("Content-Length")
    total = None if announced is None else offset + int(announced)
    bar = tqdm(
        total=total, initial=offset, unit="B", unit_scale=True, desc=name, leave=False, disable=None
    )
    with bar, part.open("ab" if offset else "wb") as file:
        while chunk := response.read1(CHUNK):
            try:
                file.write(chunk)
                file.flush()
            except OSError as error:
                raise PrepError(f"{part}: {error.strerror or error}") from None
            bar.update(len(chunk))
    size = part.stat().st_size
    if total is not None and size < total:
        raise IncompleteDownloadError(f"the connection was lost at {size} of {total} bytes")
