"""Who works on a run: its process holds a lock on the file `lock` of the folder."""

from __future__ import annotations

from pathlib import Path


def find_held_locks() -> set[int] | None:
    """Return the inodes that some process holds a write lock on; None if the system does not tell.

    Trying the lock would tell too, but a run that begins at that moment would be refused. Devices are not compared: some file
    systems show another device here than to `stat`.
    """
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    found = set()
    for line in lines:
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[3] == "WRITE":
            found.add(int(words[5].rpartition(":")[2]))
    return found


def is_at_work(folder: Path) -> bool:
    """Whether some process works on the run or the comparison in a folder; False where the system does not tell."""
    try:
        inode = (folder / "lock").stat().st_ino
    except OSError:
        return False
    return inode in (find_held_locks() or ())
