"""Two hosts on one machine: network namespaces that are joined by a virtual cable (veth pair)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# The addresses exist only inside the two namespaces.
ADDRESSES = ("10.0.0.1", "10.0.0.2")
INTERFACE = "eth0"


class NotPossibleError(Exception):
    """This machine cannot make network namespaces; the message says why."""


@dataclass(frozen=True)
class TwoHosts:
    """The names of the two namespaces."""

    names: tuple[str, str]

    def inside(self, host: int, command: list[str]) -> list[str]:
        """Return the command that runs ``command`` on one of the hosts."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def cut(self) -> None:
        """Cut the cable: nothing arrives any more, but no connection is closed."""
        _ip("-n", self.names[0], "link", "set", INTERFACE, "down")

    def join(self) -> None:
        """Restore the cable."""
        _ip("-n", self.names[0], "link", "set", INTERFACE, "up")


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make two hosts that reach only each other, and remove them at the end."""
    if shutil.which("ip") is None:
        raise NotPossibleError("the command ip is missing: apt-get install iproute2")
    if os.geteuid() != 0:
        raise NotPossibleError("network namespaces need root")
    names = (f"stochattn-{os.getpid()}-a", f"stochattn-{os.getpid()}-b")
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        far_end = ("peer", "name", INTERFACE, "netns", names[1])
        _ip("-n", names[0], "link", "add", INTERFACE, "type", "veth", *far_end)
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
        yield TwoHosts(names)
    finally:
        for name in names:  # the cable vanishes together with the namespaces
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _ip(*args: str) -> None:
    result = subprocess.run(["ip", *args], capture_output=True, text=True)
    if result.returncode != 0:
        raise NotPossibleError(f"ip {' '.join(args)}: {result.stderr.strip()}")
