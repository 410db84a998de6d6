"""What a checkpoint seals of the other files of its run, and what of them is lost when a run resumes.

Invariants: what the rest of a run depends on (`NEEDED`) is as the checkpoint saw it, or the loss is found before anything is
changed; a file that is rewritten because of damage stays beside, as NAME.damaged-1; only what is made again is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from milonga.checksum import checksum
from milonga.errors import RunFolderError
from milonga.reading import ROWS, UNREADABLE, explain_unreadable, parse_json, read_lines
from milonga.runfolder.files import is_row, sync_to_disk, to_json, translate_disk_errors, write_atomically

METRICS, TIMING, PREFERENCES, MACHINE = "metrics.jsonl", "timing.jsonl", "preferences.jsonl", "machine.jsonl"
NEEDED = (METRICS, PREFERENCES, "pass_rates.json", "data.jsonl")
"""Files that the rest of a run depends on: they are sealed by size and checksum. The first two grow."""
LOST = "lost"
"""Key of a metrics row that stands for one that was lost."""
Seal = Mapping[str, int]
Seals = Mapping[str, Seal]


@dataclass(frozen=True)
class Loss:
    """What is missing or damaged in a file, up to the turn of the checkpoint. Only what is `needed` stops a run."""

    file: str
    what: str
    needed: bool

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


@dataclass(frozen=True)
class Rows:
    """The rows of a file up to a turn."""

    kept: list[dict[str, Any]]
    unread: int
    """Lines that are no rows, wherever they are."""
    broken: bool
    """Whether such a line comes before one of the rows. After them, it is a row that was being written."""


def seal_files(folder: Path) -> dict[str, dict[str, int]]:
    """Seal what the rest of the run depends on, and the sizes of its rollouts, which are too large to read again each time."""
    needed = [folder / name for name in NEEDED if (folder / name).exists()]
    seals = {path.name: {"bytes": path.stat().st_size, "crc32": checksum(path)} for path in needed}
    rollouts = sorted(folder.glob("rollouts/turn-*.parquet"))
    return seals | {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size} for path in rollouts}


def find_losses(folder: Path, turn: int, seals: Seals | None) -> list[Loss]:
    """Find what is missing or damaged of a run up to the turn of its checkpoint. Without seals, as in checkpoints of older
    versions, only what can be seen in the files themselves."""
    known = seals or {}
    found = {
        METRICS: _find_lost_turns(folder / METRICS, turn, known.get(METRICS)),
        PREFERENCES: _find_broken_rows(folder / PREFERENCES, turn, known.get(PREFERENCES)),
        **{name: _find_change(folder / name, known[name]) for name in NEEDED[2:] if name in known},
        TIMING: _find_lost_turns(folder / TIMING, turn, None),
        MACHINE: _find_broken_rows(folder / MACHINE, None, None),
        "rollouts": _find_lost_rollouts(folder, known),
    }
    return [Loss(file, what, file in NEEDED) for file, what in found.items() if what is not None]


def _find_lost_turns(path: Path, turn: int, seal: Seal | None) -> str | None:
    """Say which turns are missing in a file with one row a turn."""
    if seal is not None and _begins_as_sealed(path, seal):
        return None
    rows = read_rows(path, turn)
    turns = [row["turn"] for row in rows.kept]
    if gaps := find_gaps(turns, turn):
        return f"turn{'s' * (len(gaps) > 1 or gaps[0][0] < gaps[0][1])} {format_spans(gaps)} missing or damaged"
    if seal is not None or rows.broken or turns != list(range(turn + 1)):
        return f"changed since the checkpoint, somewhere in turns 0 to {turn}"
    return None


def _find_broken_rows(path: Path, turn: int | None, seal: Seal | None) -> str | None:
    """Say what is wrong with a file that has any number of rows a turn: only its seal tells how many. A last line that was
    being written is nothing lost."""
    if seal is None:
        return "lines that cannot be read" if read_rows(path, turn).broken else None
    if not path.exists():
        return "missing"
    return None if _begins_as_sealed(path, seal) else f"damaged or changed, somewhere in turns 0 to {turn}"


def _find_change(path: Path, seal: Seal) -> str | None:
    """Say what is wrong with a file that never grows."""
    if not path.exists():
        return "missing"
    whole = path.stat().st_size == seal.get("bytes") and _begins_as_sealed(path, seal)
    return None if whole else "changed since the checkpoint"


def _find_lost_rollouts(folder: Path, seals: Seals) -> str | None:
    names = [name for name in seals if name.startswith("rollouts/")]
    lost = [name for name in names if not (folder / name).exists() or (folder / name).stat().st_size != seals[name]["bytes"]]
    return f"{', '.join(Path(name).name for name in lost)} missing or damaged" if lost else None


def _begins_as_sealed(path: Path, seal: Seal) -> bool:
    try:
        return path.stat().st_size >= seal["bytes"] and checksum(path, seal["bytes"]) == seal["crc32"]
    except UNREADABLE:
        return False


def read_rows(path: Path, turn: int | None) -> Rows:
    """Read all rows up to a turn, also those that follow lines which cannot be read; None for all turns."""
    kept, unread, broken = list[dict[str, Any]](), 0, False
    try:
        for row in (_parse_row(line) for line in read_lines(path, ROWS) if line.strip()):
            if row is None:
                unread += 1
            elif turn is None or row["turn"] <= turn:
                kept.append(row)
                broken = unread > 0
    except FileNotFoundError:
        pass
    except UNREADABLE as error:
        raise RunFolderError(f"'{path}' cannot be read: {explain_unreadable(error)}") from None
    return Rows(kept, unread, broken)


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if is_row(row) else None


def mend_rows(path: Path, turn: int | None) -> None:
    """Rewrite a damaged file with the rows up to a turn that can be read; None for all turns. In metrics every lost turn gets a
    row saying so."""
    keep_aside(path)
    kept = read_rows(path, turn).kept
    if path.name == METRICS and turn is not None:
        lost = {each: {"turn": each, "learner": None, LOST: True} for each in range(turn + 1)}
        kept = list((lost | {row["turn"]: row for row in reversed(kept)}).values())
    write_atomically(path, "".join(to_json(row) + "\n" for row in kept))


def keep_aside(path: Path) -> None:
    """Copy a file that is about to be rewritten to a name beside it that is free."""
    if path.exists():
        names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        with translate_disk_errors(aside):
            shutil.copy2(path, aside)
            sync_to_disk(aside)


def list_lost_turns(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """List the turns whose metrics were lost, and the loss accepted."""
    return [row["turn"] for row in rows if row.get(LOST)]


def find_gaps(turns: Iterable[int], last: int) -> list[tuple[int, int]]:
    """Find the spans from 0 to `last` that turns leave out. A foreign folder may name any last turn: nothing grows with it."""
    known = sorted({-1, *turns, last + 1})
    return [(before + 1, after - 1) for before, after in pairwise(known) if after - before > 1]


def format_turns(turns: Iterable[int]) -> str:
    """Format turns as `0, 3 to 9`."""
    known = set(turns)
    starts, ends = (sorted(turn for turn in known if turn + step not in known) for step in (-1, 1))
    return format_spans(list(zip(starts, ends, strict=True)))


def format_spans(spans: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in spans)
