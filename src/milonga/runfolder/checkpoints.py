"""Save and load checkpoints: all policies and the run's state in one folder, complete or absent.

Invariant: a checkpoint counts only with its marker, which is written last and lists every file with size and checksum. A folder
without a marker, or one that does not match it, is skipped; the newest intact one is used. What the marker and the state hold
is checked before anything is made of it: somebody else may have written them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from milonga.checksum import checksum
from milonga.errors import RunFolderError
from milonga.reading import SETTINGS, UNREADABLE, check_shape, explain_unreadable, read_json
from milonga.reading import STATE as LARGEST_STATE
from milonga.runfolder.files import replace_folder, sync_to_disk, write_atomically

MARKER = "complete.json"
STATE = "run.json"
Count = Annotated[int, Field(ge=0, lt=1 << 60)]
Turns = Annotated[int, Field(ge=0, lt=10**7)]
"""Numbers of turns and phases, which are counted one by one: more than any run has."""


@dataclass(frozen=True)
class Seal:
    """Size and checksum of a file."""

    bytes: Count
    crc32: Count


@dataclass(frozen=True)
class Marker:
    """What the marker of a checkpoint holds. One without files seals nothing: it marks no checkpoint."""

    files: Annotated[dict[str, Seal], Field(min_length=1)]


@dataclass(frozen=True)
class State:
    """The state of a run: its place in the schedule, its places in the problems, what the recipe keeps; and the config and the
    files that it is bound to, which older versions did not save."""

    place: dict[str, Turns]
    problems: dict[str, Count] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] | None = None
    files: dict[str, dict[str, Count]] | None = None


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
        with replace_folder(final) as draft:
            save_engine(draft)
            (draft / STATE).write_text(json.dumps(state, indent=1))
            files = {path.name: _seal_file(path) for path in sorted(draft.iterdir())}
            write_atomically(draft / MARKER, json.dumps({"turn": turn, "files": files}, indent=1))
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
        return sum(file.lstat().st_size for path in self._list_folders() for file in path.iterdir())

    def _list_folders(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("turn-*") if p.is_dir() and (p / MARKER).exists())

    def has_any(self) -> bool:
        """Whether there is a checkpoint, intact or not: to know that all of its files would have to be read."""
        return bool(self._list_folders())

    def find_newest(self) -> tuple[Path, dict[str, Any]] | None:
        """Find the newest intact checkpoint and load its state; None if there is none."""
        for path in reversed(self._list_folders()):
            if not find_damage(path):
                return path, read_state(path)
        return None

    def list_intact(self) -> dict[int, Path]:
        """List the intact checkpoints by their turns, oldest first."""
        return {read_state(path)["place"]["turn"]: path for path in self._list_folders() if not find_damage(path)}

    def list_damaged(self) -> list[str]:
        """List the damaged checkpoints with what is wrong with each."""
        return [f"{path.name}: {what}" for path in self._list_folders() if (what := find_damage(path))]


def _seal_file(path: Path) -> dict[str, int]:
    sync_to_disk(path)
    return {"bytes": path.stat().st_size, "crc32": checksum(path)}


def find_damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if it is intact."""
    try:
        files = check_shape(Marker, read_json(path / MARKER, SETTINGS)).files
    except UNREADABLE as error:
        return f"its marker cannot be read: {explain_unreadable(error)}"
    if STATE not in files:
        return f"its marker does not list {STATE}"
    for name, seal in files.items():
        try:
            what = "lies elsewhere" if Path(name).name != name else _find_file_damage(path / name, seal)
        except UNREADABLE as error:
            what = f"cannot be read: {explain_unreadable(error)}"
        if what is not None:
            return f"{name} {what}"
    try:
        read_state(path)
    except UNREADABLE as error:
        return f"{STATE} is not the state of a run: {explain_unreadable(error)}"
    return None


def _find_file_damage(file: Path, seal: Seal) -> str | None:
    if not file.exists():
        return "is missing"
    size = file.stat().st_size
    if size != seal.bytes:
        return f"has {size} bytes instead of {seal.bytes}"
    return None if checksum(file) == seal.crc32 else "does not match its checksum"


def read_state(path: Path) -> dict[str, Any]:
    """Read the state in a checkpoint. What a recipe keeps may hold numbers that are not finite."""
    found: dict[str, Any] = read_json(path / STATE, LARGEST_STATE, finite=False)
    turn = check_shape(State, found).place.get("turn", -1)
    if path.name != f"turn-{turn:06d}":
        raise ValueError(f"it is of turn {turn}, and lies in {path.name}")
    return found


def check_free_space(folder: Path, needed: int, free: int) -> None:
    if needed > free:
        raise RunFolderError(
            f"'{folder}' has {free / 2**20:,.0f} MiB free, the checkpoints of this run need {needed / 2**20:,.0f} MiB; "
            "free some space, or keep fewer with --set keep.checkpoints=1"
        )
