"""Temporary folders for processes that we start; gone when they are, and at the next start if we were killed meanwhile.

Invariants:
- A folder is locked as long as its process may need it. One that is not locked has lost its owner, who was killed: it can be
  removed. One that is locked, or that belongs to another user, is never touched.
- Whatever a program left in its folder can be removed, and removing it raises nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator

PREFIX = "milonga-scratch-"
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)  # the latter two are not everywhere


@contextlib.contextmanager
def make_folder() -> Iterator[str]:
    """Make an empty folder, and remove it with all that is in it."""
    folder, lock = _make_locked_folder()
    try:
        yield folder
    finally:
        remove_tree(folder)
        if lock is not None:
            os.close(lock)


def _make_locked_folder() -> tuple[str, int | None]:
    """Make a folder and lock it; another one, if somebody took it for abandoned in the moment before."""
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        try:
            lock = _lock_folder(folder)
        except (BlockingIOError, FileNotFoundError):
            continue
        if os.path.isdir(folder):
            return folder, lock
        if lock is not None:
            os.close(lock)


def _lock_folder(path: str) -> int | None:
    """Lock a folder until the descriptor is closed; `BlockingIOError` if it is locked. None where folders have no locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    descriptor = os.open(path, FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # as on some network file systems
        os.close(descriptor)
        return None
    return descriptor


def remove_abandoned_folders() -> None:
    """Remove the folders of processes of this user that are no more."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry.path)


def _remove_if_abandoned(path: str) -> None:
    if sys.platform == "win32" or os.lstat(path).st_uid != os.getuid():
        return
    lock = _lock_folder(path)
    if lock is not None:
        remove_tree(path)
        os.close(lock)


def remove_tree(root: str) -> None:
    """Remove a folder of any depth and with any permissions; what cannot be removed stays.

    The way down and up again goes by one open folder at a time: no path grows long, and nothing recurses.
    """
    if sys.platform == "win32":
        shutil.rmtree(root, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        here = os.open(root, FOLDER)
        try:
            names: list[str] = []
            waiting = [_remove_files(here)]  # folders that are still there, at each depth
            while waiting:
                if waiting[-1]:
                    names.append(waiting[-1].pop())
                    os.chmod(names[-1], stat.S_IRWXU, dir_fd=here)
                    here = _move(here, names[-1])
                    waiting.append(_remove_files(here))
                    continue
                waiting.pop()
                if names:
                    here = _move(here, "..")
                    os.rmdir(names.pop(), dir_fd=here)
        finally:
            os.close(here)
        os.rmdir(root)


def _move(here: int, name: str) -> int:
    """Open a folder next to an open one, and close that."""
    there = os.open(name, FOLDER, dir_fd=here)
    os.close(here)
    return there


def _remove_files(folder: int) -> list[str]:
    """Remove all files of an open folder; return the names of its folders."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in found if is_folder]
