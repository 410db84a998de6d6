"""Write files atomically, so that a run killed at any moment leaves nothing half-written."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from milonga.errors import RunFolderError
from milonga.reading import ROWS, UNREADABLE, explain_unreadable, parse_json, read_lines

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (
    *(errno.EACCES, errno.EROFS, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ENAMETOOLONG),
    errno.ENOENT,  # raised by some file systems, such as /proc, where nothing can be created
    *(errno.ELOOP, errno.ENXIO),  # a link or a pipe, which somebody else may have put in the place of a file of a run
)


@contextmanager
def translate_disk_errors(what: Path) -> Iterator[None]:
    """Raise a full disk, or a folder that cannot be written, as a `RunFolderError` for the user, not as a traceback."""
    try:
        yield
    except Exception as error:
        code = _find_errno(error)
        if code in FULL:
            raise RunFolderError(
                f"the disk is full: '{what}' could not be written ({os.strerror(code)}); "
                "free some space and try again; a run goes on with 'milonga resume'"
            ) from None
        if code in REFUSED:
            raise RunFolderError(f"'{what}' cannot be written: {os.strerror(code)}") from None
        raise


def _find_errno(error: Exception) -> int:
    """Return the system's error number; 0 if there is none. Safetensors has it only in its message."""
    if isinstance(error, OSError):
        return error.errno or 0
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else 0


def sync_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_ours(path: Path, mode: Literal["a", "w"]) -> IO[str]:
    """Open a file of a run folder for writing, or create it. No link is followed, and no pipe is waited for."""

    def open_file(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    return open(path, mode, encoding="utf-8", opener=open_file)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically: readers see the old content or the new one, never a part."""
    with translate_disk_errors(path):
        draft = path.with_name(path.name + ".draft")
        draft.unlink(missing_ok=True)  # left by a kill; or a link that somebody else put there
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
        sync_to_disk(draft)
        draft.replace(path)
        sync_to_disk(path.parent)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Write a folder whole: what the block writes into the draft takes the place of `path` at its end, with nothing of the old.

    A killed writer leaves the draft alone, which the next one removes: libraries keep temporary files of their own beside what
    they write, and a kill would leave those among the files of the folder.
    """
    draft = path.with_name(path.name + ".draft")
    with translate_disk_errors(path):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            yield draft
        except BaseException:
            # Half-written files must not fill the disk further.
            shutil.rmtree(draft, ignore_errors=True)
            raise
        shutil.rmtree(path, ignore_errors=True)
        draft.rename(path)
        sync_to_disk(path.parent)


def to_json(row: dict[str, Any]) -> str:
    """Format a row as one line of strict JSON: NaN and infinity become null."""
    return json.dumps({key: _to_plain(value) for key, value in row.items()})


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_row(value: Any) -> bool:
    """Whether parsed JSON is a row of a run: an object with a `turn`, which counts from 0."""
    turn = value.get("turn") if isinstance(value, dict) else None
    return isinstance(turn, int) and not isinstance(turn, bool) and 0 <= turn < 1 << 60


class JsonLines:
    """A file of JSON lines, one object per line, each with a `turn`. It is appended to, and truncated when a run resumes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, *rows: dict[str, Any]) -> None:
        with translate_disk_errors(self.path), open_ours(self.path, "a") as file:
            file.writelines(to_json(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """Read the complete rows; a last line that was cut off by a kill is left out. What is no row is an error."""
        out: list[dict[str, Any]] = []
        try:
            for line in read_lines(self.path, ROWS):
                try:
                    row = parse_json(line)
                except ValueError:
                    break
                if not is_row(row):
                    raise ValueError(f"line {len(out) + 1}: not a row of a run: it has no turn")
                out.append(row)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except UNREADABLE as error:
            raise RunFolderError(f"'{self.path}' cannot be read: {explain_unreadable(error)}") from None
        return out

    def truncate_after(self, turn: int | None) -> None:
        """Remove all rows after a turn, and a last line that was cut off by a kill; None: that line alone, since what would be
        appended to it could not be read. A file that does not exist is not created."""
        if not self.path.exists():
            return
        kept = [row for row in self.rows() if turn is None or row["turn"] <= turn]
        write_atomically(self.path, "".join(to_json(row) + "\n" for row in kept))


def free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
