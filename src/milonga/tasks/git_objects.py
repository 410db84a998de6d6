"""Git folders read as objects: the files of the last commit, and earlier versions of them.

A git folder may be somebody else's. Invariants:
- Git works in a folder of our own, which has nothing but a configuration of ours; of the folder that is read it sees the
  objects alone. So no setting, filter, hook, attribute, replaced object or remote of that folder has any effect.
- Nothing is checked out. Symbolic links and submodules are left out, names that could lead out of a folder are refused.
- What is read is bounded: in files, in bytes and in time.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from milonga.errors import DataError
from milonga.sandbox.folders import make_folder

PATIENCE = 60
"""Seconds that one call of git may take."""
MOST_FILES = 20_000
"""Files of a commit."""
LISTING = 8 << 20
"""Bytes of the list of them."""
MOST_OBJECTS = 1_000_000
"""Files in which objects are stored."""
LARGEST_FILE, MOST_BYTES = 4 << 20, 64 << 20
"""Of one file, and of all that are read together. A larger file that is no Python is left out."""
LINE = 8192
"""Bytes for the name of a file with what git says of it."""
NAMES = 64 << 20
"""Bytes of the list of packed names."""
IDENTITY = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
FILE_MODES = ("100644", "100755", "100664")
CONFIG = "[core]\n\trepositoryformatversion = {version}\n\tbare = true\n\tcommitGraph = false\n\tmultiPackIndex = false\n{more}"
HASHES = "[extensions]\n\tobjectFormat = sha256\n"


@dataclass(frozen=True)
class Entry:
    """A file of a commit: where its content is, and how long that is."""

    path: str
    identity: str
    size: int


class GitObjects:
    """The objects of a git folder, read from a folder of our own. Made by `open_git`."""

    def __init__(self, folder: Path, own: Path, head: str) -> None:
        self.folder, self.head = folder, head
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_DIR": str(own),
            "GIT_OBJECT_DIRECTORY": str((folder / ".git" / "objects").resolve()),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_TERMINAL_PROMPT": "0",
            "HOME": str(own),
            "LC_ALL": "C",
        }

    def list_files(self) -> list[Entry]:
        """List the files of the last commit, in the order of their names."""
        said = self._run_git(LISTING, "ls-tree", "-r", "-l", "-z", "--full-tree", self.head)
        lines = said.split(b"\0")[:-1]
        if len(lines) > MOST_FILES:
            self._refuse(f"has more than {MOST_FILES:,} files")
        entries = [self._parse_entry(line) for line in lines]
        files = [entry for entry in entries if entry is not None]
        check_names(self.folder, [entry.path for entry in files])
        return files

    def read_files(self, files: Sequence[Entry]) -> Iterator[tuple[str, bytes]]:
        """Read the contents of files, in their order."""
        total = sum(entry.size for entry in files)
        if total > MOST_BYTES:
            self._refuse(f"has more than {MOST_BYTES >> 20} MB of files")
        asked = "".join(f"{entry.identity}\n" for entry in files).encode()
        said = self._run_git(total + len(files) * LINE, "cat-file", "--batch", stdin=asked)
        at = 0
        for entry in files:
            start = said.find(b"\n", at) + 1
            if not start or said[at : start - 1].split()[1:] != [b"blob", b"%d" % entry.size]:
                self._refuse(f"lacks the content of {entry.path}: fetch all of it")
            at = start + entry.size + 1
            yield entry.path, said[start : at - 1]

    def list_versions(self, path: str, most: int) -> list[bytes]:
        """List earlier contents of a file of the last commit, the newest first. A version that is too large is left out."""
        said = self._run_git(LINE * (most + 1), "rev-list", f"--max-count={most + 1}", self.head, "--", f":(top,literal){path}")
        found = []
        for commit in said.decode().split()[1:]:
            listed = self._run_git(LISTING, "ls-tree", "-l", "-z", "--full-tree", commit, "--", f":(literal){path}")
            entries = [self._parse_entry(line) for line in listed.split(b"\0")[:-1]]
            files = [entry for entry in entries if entry is not None and entry.path == path and entry.size <= LARGEST_FILE]
            found += [content for _, content in self.read_files(files)]
        return found

    def _parse_entry(self, line: bytes) -> Entry | None:
        """Parse a line of `ls-tree`; None for what is no ordinary file."""
        about, _, name = line.partition(b"\t")
        mode, kind, identity, size = about.decode().split()
        if kind != "blob" or mode not in FILE_MODES:
            return None
        if not size.isdecimal():
            self._refuse("lacks the content of some files: fetch all of it")
        try:
            return Entry(name.decode(), identity, int(size))
        except UnicodeDecodeError:
            self._refuse(f"has a file whose name is not UTF-8: {name[:100]!r}")

    def _run_git(self, most: int, *words: str, stdin: bytes = b"") -> bytes:
        """Run git on the objects and return what it says: at most so many bytes, within the time that it is given."""
        start = time.monotonic()
        with tempfile.TemporaryFile() as asked:
            asked.write(stdin)
            asked.seek(0)
            command = ["git", "--no-replace-objects", "--no-pager", *words]
            try:
                process = subprocess.Popen(
                    command, stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environment, cwd="/"
                )
            except FileNotFoundError:
                raise DataError("git is not installed: repositories are read by it") from None
        said, complaint = _read_bounded(process, most)
        if time.monotonic() - start > PATIENCE:
            raise DataError(f"{self.folder}: git {words[0]} took more than {PATIENCE} s; is it too large, or on a slow disk?")
        if len(said) > most:
            self._refuse("has more files, or longer names, than can be read")
        if process.returncode:
            lines = complaint.decode(errors="replace").strip().splitlines()
            self._refuse(f"cannot be read by git: {ascii(lines[-1])[1:-1] if lines else 'it says no more'}")
        return said

    def _refuse(self, reason: str) -> NoReturn:
        raise DataError(f"the repository {self.folder} {reason}")


def _read_bounded(process: subprocess.Popen[bytes], most: int) -> tuple[bytes, bytes]:
    """Read what a process says, and its last complaint. It is ended when it says more, or takes longer than it may."""
    assert process.stdout and process.stderr
    alarm = threading.Timer(PATIENCE, process.kill)
    complaint: list[bytes] = []
    # It would wait for ever for somebody to read its complaints.
    listener = threading.Thread(
        target=lambda errors: complaint.extend(iter(lambda: errors.read1(LINE), b"")), args=(process.stderr,)
    )
    alarm.start()
    listener.start()
    try:
        said = process.stdout.read(most + 1)
        if len(said) > most:
            process.kill()
        process.wait()
    finally:
        alarm.cancel()
        listener.join()
        process.stdout.close()
        process.stderr.close()
    return said, b"".join(complaint[-2:])


@contextmanager
def open_git(folder: Path) -> Iterator[GitObjects]:
    """Open the objects of a git folder."""
    inner = folder / ".git"
    if inner.is_symlink() or not inner.is_dir():
        raise DataError(f"{folder} is no git folder of its own (a worktree or a submodule?): name the one that it belongs to")
    _check_objects(folder, inner / "objects")
    head = _find_head(folder, inner)
    with make_folder() as name:
        own, is_long = Path(name), len(head) > 40
        (own / "config").write_text(CONFIG.format(version=int(is_long), more=HASHES if is_long else ""))
        (own / "HEAD").write_text(f"{head}\n")
        (own / "refs").mkdir()
        boundary = (_read_text(inner / "shallow", NAMES) or "").split()  # where a shallow clone ends
        (own / "shallow").write_text("".join(f"{commit}\n" for commit in boundary if IDENTITY.fullmatch(commit)))
        yield GitObjects(folder, own, head)


def _check_objects(folder: Path, objects: Path) -> None:
    """Check that what is stored there is files and folders alone, not too many, and that no more is looked for elsewhere."""
    if os.path.lexists(objects / "info" / "alternates"):
        raise DataError(
            f"the repository {folder} borrows objects from another one (info/alternates): clone it without --shared"
        )
    waiting, count = [str(objects)], 0
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                inside = list(found)
        except OSError as error:
            raise DataError(f"{folder} is no git folder with a commit: {error.strerror}") from None
        count += len(inside)
        waiting += [each.path for each in inside if each.is_dir(follow_symlinks=False)]
        strange = [
            each for each in inside if not each.is_dir(follow_symlinks=False) and not each.is_file(follow_symlinks=False)
        ]
        if strange or objects.is_symlink() or count > MOST_OBJECTS:
            what = f"more than {MOST_OBJECTS:,} files" if count > MOST_OBJECTS else "something that is no file"
            raise DataError(f"the repository {folder} has {what} among its objects: clone it, and name the clone")


def _find_head(folder: Path, inner: Path) -> str:
    """Find the identity of the last commit: that of HEAD, or of the branch that it names."""
    said = (_read_text(inner / "HEAD", LINE) or "").strip()
    name = said.removeprefix("ref:").strip()
    if name != said and re.fullmatch(r"refs/[^\s\\]+", name) and ".." not in name:
        said = (_read_text(inner / name, LINE) or "").strip()
        packed = "" if said else _read_text(inner / "packed-refs", NAMES) or ""
        said = next((line.partition(" ")[0] for line in packed.splitlines() if line.partition(" ")[2] == name), said)
    if IDENTITY.fullmatch(said) is None:
        raise DataError(f"{folder} is no git folder with a commit: its HEAD names none")
    return said


def _read_text(path: Path, most: int) -> str | None:
    """Read a small text file; None if there is none, it is too long, or it is no ordinary file."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(opened, "rb") as file:
        about = os.fstat(opened)
        return file.read().decode(errors="replace") if stat.S_ISREG(about.st_mode) and about.st_size <= most else None


def check_names(folder: Path, paths: Sequence[str]) -> None:
    """Check that paths lie within a folder, wherever they are written: `DataError` for the first that might not."""
    known = set(paths)
    for path in paths:
        parts = path.split("/")
        folders = {"/".join(parts[:end]) for end in range(1, len(parts))}
        if any(_is_strange(part) for part in parts) or len(path) > LINE // 4 or folders & known:
            raise DataError(f"the repository {folder} has a file with a name that cannot be used: {path[:100]!a}")
    if len(known) < len(paths):
        raise DataError(f"the repository {folder} has two files of the same name")


def _is_strange(part: str) -> bool:
    """Whether a part of a path is empty, leads elsewhere, is git's own on any system, or cannot be shown."""
    plain = "".join(letter for letter in part if letter.isprintable()).casefold().rstrip(". ")
    hidden = plain in ("", ".git") or plain.startswith("git~")
    return hidden or not part.isprintable() or "\\" in part or ":" in part or len(part.encode()) > 255
