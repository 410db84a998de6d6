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
from typing import Any

from milonga.errors import RunFolderError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (
    *(errno.EACCES, errno.EROFS, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
    errno.ENOENT,  # raised by some file systems, such as /proc, where nothing can be created
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


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically: readers see the old content or the new one, never a part."""
    with translate_disk_errors(path):
        draft = path.with_name(path.name + ".draft")
        draft.write_text(text, encoding="utf-8")
        sync_to_disk(draft)
        draft.replace(path)
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


class JsonLines:
    """A file of JSON lines, one object per line, each with a `turn`. It is appended to, and truncated when a run resumes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, *rows: dict[str, Any]) -> None:
        with translate_disk_errors(self.path), self.path.open("a") as file:
            file.writelines(to_json(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """Read the complete rows; a last line that was cut off by a kill is left out."""
        if not self.path.exists():
            return []
        out = []
        for line in self.path.read_text().splitlines():
            try:
                out.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return out

    def truncate_after(self, turn: int) -> None:
        """Remove all rows after a turn. A file that does not exist is not created."""
        if not self.path.exists():
            return
        kept = [row for row in self.rows() if row["turn"] <= turn]
        write_atomically(self.path, "".join(to_json(row) + "\n" for row in kept))


def free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
