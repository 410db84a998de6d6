"""Save and load checkpoints: all policies and the run's state in one folder, complete or absent.

Invariant: a checkpoint counts only with its marker, which is written last and lists every file with size and checksum. A folder
without a marker, or one that does not match it, is skipped; the newest intact one is used.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milonga.checksum import checksum
from milonga.errors import RunFolderError
from milonga.runfolder.files import sync_to_disk, translate_disk_errors, write_atomically

MARKER = "complete.json"
STATE = "run.json"


class Checkpoints:
    """The `checkpoints` folder of a run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def path(self, turn: int) -> Path:
        return self.folder / f"turn-{turn:06d}"

    def save(self, turn: int, state: dict[str, Any], save_engine: Callable[[Path], None]) -> Path:
        """Write everything into a draft folder, then the marker, then rename it to its final name."""
        final = self.path(turn)
        draft = final.with_name(final.name + ".draft")
        with translate_disk_errors(final):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            try:
                save_engine(draft)
                (draft / STATE).write_text(json.dumps(state, indent=1))
                files = {path.name: _seal_file(path) for path in sorted(draft.iterdir())}
                write_atomically(draft / MARKER, json.dumps({"turn": turn, "files": files}, indent=1))
            except BaseException:
                # Half-written files must not fill the disk further.
                shutil.rmtree(draft, ignore_errors=True)
                raise
            shutil.rmtree(final, ignore_errors=True)
            draft.rename(final)
            sync_to_disk(self.folder)
        self._remove_old()
        return final

    def _remove_old(self) -> None:
        """Remove old checkpoints, each under another name: killed in between, none is left that looks like a damaged one."""
        for path in self._list_folders()[: -self.keep]:
            path.rename(path.with_name(path.name + ".draft"))
        for draft in self.folder.glob("*.draft"):
            shutil.rmtree(draft, ignore_errors=True)

    def remove_after(self, turn: int) -> None:
        """Remove checkpoints newer than a turn. They are damaged, or they would have been resumed from."""
        for path in self.folder.glob("turn-*"):
            if path.name > self.path(turn).name:
                shutil.rmtree(path, ignore_errors=True)
        self._remove_old()

    def size(self) -> int:
        """Total size of all checkpoints in bytes."""
        return sum(file.stat().st_size for path in self._list_folders() for file in path.iterdir())

    def _list_folders(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("turn-*") if p.is_dir() and (p / MARKER).exists())

    def find_newest(self) -> tuple[Path, dict[str, Any]] | None:
        """Find the newest intact checkpoint and load its state; None if there is none."""
        for path in reversed(self._list_folders()):
            if not find_damage(path):
                return path, json.loads((path / STATE).read_text())
        return None

    def list_damaged(self) -> list[str]:
        """List the damaged checkpoints with what is wrong with each."""
        return [f"{path.name}: {what}" for path in self._list_folders() if (what := find_damage(path))]


def _seal_file(path: Path) -> dict[str, int]:
    sync_to_disk(path)
    return {"bytes": path.stat().st_size, "crc32": checksum(path)}


def find_damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if it is intact."""
    try:
        files = json.loads((path / MARKER).read_text())["files"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError):
        return "its marker cannot be read"
    for name, seal in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != seal["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {seal['bytes']}"
        if checksum(file) != seal["crc32"]:
            return f"{name} does not match its checksum"
    return None


def check_free_space(folder: Path, needed: int, free: int) -> None:
    if needed > free:
        raise RunFolderError(
            f"'{folder}' has {free / 2**20:,.0f} MiB free, the checkpoints of this run need {needed / 2**20:,.0f} MiB; "
            "free some space, or keep fewer with --set keep.checkpoints=1"
        )
