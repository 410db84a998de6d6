"""Something to steal, and who descends from us: what an attack is watched with."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGINS = "milonga-canary"
VARIABLE = "MILONGA_CANARY_KEY"


@dataclass
class Bait:
    """Secrets of this process, and proof that nobody touched them."""

    file: Path
    listener: socket.socket
    secret: str

    def words(self) -> dict[str, Any]:
        """For the attack: where things are, not what they say."""
        return {
            "begins": BEGINS,
            "file": str(self.file),
            "port": self.listener.getsockname()[1],
            "parent": os.getpid(),
            "home": os.path.expanduser("~"),
            "packages": str(Path(__file__).parents[2]),
        }

    def is_untouched(self) -> bool:
        try:
            self.listener.accept()
        except BlockingIOError:
            return self.file.read_text() == self.secret
        return False


@contextlib.contextmanager
def laid(folder: Path) -> Iterator[Bait]:
    """A secret in a file, in the environment, in an open descriptor that children inherit, and in memory; and a port."""
    secret = f"{BEGINS}-{secrets.token_hex(8)}"
    file = folder / "secret"
    file.write_text(secret)
    with open(file) as handle, socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(handle.fileno(), True)
        listener.setblocking(False)
        os.environ[VARIABLE] = secret
        try:
            yield Bait(file, listener, secret)
        finally:
            del os.environ[VARIABLE]


def children(parent: int) -> set[int]:
    """All that descend from a process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    found: set[int] = {parent}
    while more := {pid for pid, above in parents.items() if above in found} - found:
        found |= more
    return found - {parent}


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is over and not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def watched(every_s: float = 0.02) -> Iterator[set[int]]:
    """The numbers of all our descendants seen meanwhile."""
    seen: set[int] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            seen.update(children(os.getpid()))

    before = children(os.getpid())
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        seen -= before
