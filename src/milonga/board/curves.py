"""Follow the metrics and timing files of a run as they grow.

Invariants: every row is read once: only the bytes since the last read are read; a file that was truncated or replaced is read
again from its start; invalid rows (no JSON, half a line, a turn that goes backwards) are skipped and counted. Numbers are
stored in columns of machine floats, so that a long run takes megabytes, not hundreds.
"""

from __future__ import annotations

import json
import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from milonga.reading import LARGEST, ROWS, open_regular, parse_json, read_last_lines
from milonga.runfolder.files import is_row
from milonga.runfolder.flow import PREFIX, SIGNAL, Flow, compute_credit
from milonga.runfolder.record import to_number

MOST_KEYS = 2000
LONGEST_LINE = 1 << 20
MOST_BYTES = 1 << 24
"""Most bytes of metrics that are searched for a small picture of a curve."""
RECENT = 1000
"""Number of last turns that are searched for the reward flow."""
Points = list[tuple[float, float]]


class Curves:
    """One file of JSON lines as columns over turns. Safe to read from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self.turns = array("q")
        self.learners: list[str | None] = []
        self.columns: dict[str, array[float]] = {}
        self.rubbish = 0
        self.offset, self.file, self.half = 0, (0, 0), b""

    def refresh(self) -> bool:
        """Read what was appended since the last call; return whether anything was."""
        with self.lock:
            try:
                stat = self.path.stat()
                if (stat.st_dev, stat.st_ino) != self.file or stat.st_size < self.offset:
                    self._reset()
                    self.file = (stat.st_dev, stat.st_ino)
                if stat.st_size == self.offset:
                    return False
                with open_regular(self.path, ROWS) as file:
                    file.seek(self.offset)
                    while block := file.read(1 << 22):
                        self._parse_block(block)
            except OSError:
                return False
            return True

    def _parse_block(self, block: bytes) -> None:
        self.offset += len(block)
        *lines, self.half = (self.half + block).split(b"\n")
        if len(self.half) > LONGEST_LINE:
            self.half = b"\0"  # never a row, however it goes on
        for line in lines:
            row = _parse_row(line)
            if row is None or (self.turns and row["turn"] <= self.turns[-1]):
                self.rubbish += 1
            else:
                self._append_row(row)

    def _append_row(self, row: dict[str, Any]) -> None:
        before = len(self.turns)
        self.turns.append(row["turn"])
        learner = row.get("learner")
        self.learners.append(learner if isinstance(learner, str) else None)
        for key, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and key != "turn":
                if key not in self.columns and len(self.columns) < MOST_KEYS:
                    self.columns[key] = array("d", [math.nan]) * before
                if key in self.columns:
                    self.columns[key].append(to_float(value))
        for column in self.columns.values():
            if len(column) == before:
                column.append(math.nan)

    @property
    def stamp(self) -> tuple[int, ...]:
        """A value that changes whenever something was read. Several pages share the same curves, each with its own stamp."""
        return (*self.file, self.offset)

    def points(self, key: str, axis: str | None = None) -> Points:
        """Return (turn, value) for every turn with a finite value; with an axis, (value of the axis, value)."""
        with self.lock:
            column = self.columns.get(key, ())
            places = self.turns if axis is None else self.columns.get(axis, ())
            pairs = [(float(x), y) for x, y in zip(places, column, strict=False)]
        return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]

    def get_curve(self, metric: str) -> tuple[list[float], list[float]]:
        points = self.points(metric)
        return [x for x, _ in points], [y for _, y in points]

    def metrics(self, prefix: str) -> list[str]:
        return [key for key in self.keys() if key.startswith(prefix)]

    def keys(self) -> list[str]:
        with self.lock:
            return sorted(self.columns)

    def recent_rows(self, count: int, prefix: str | tuple[str, ...] = "") -> list[dict[str, Any]]:
        """Return the last `count` rows, each with the numbers whose names start with `prefix`, or with one of several."""
        with self.lock:
            first = max(0, len(self.turns) - count)
            named = {key: column for key, column in self.columns.items() if key.startswith(prefix)}
            return [
                {"turn": self.turns[at], "learner": self.learners[at]}
                | {key: column[at] for key, column in named.items() if math.isfinite(column[at])}
                for at in range(first, len(self.turns))
            ]

    def compute_flow(self) -> Flow:
        """The reward flow of the run, as `show` and the report have it."""
        return compute_credit(self.recent_rows(len(self.turns), (PREFIX, SIGNAL)))


class Shelf:
    """A cache of the curves of the runs that were viewed last."""

    def __init__(self, most: int = 256) -> None:
        self.most, self.lock = most, threading.Lock()
        self.kept: OrderedDict[Path, Curves] = OrderedDict()

    def get_curves(self, path: Path) -> Curves:
        with self.lock:
            found = self.kept.setdefault(path, Curves(path))
            self.kept.move_to_end(path)
            while len(self.kept) > self.most:
                self.kept.popitem(last=False)
        found.refresh()
        return found


def to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # JSON knows no largest integer
        return math.nan


def _parse_row(line: bytes) -> dict[str, Any] | None:
    """Parse one JSON line with a valid `turn`; None for anything else."""
    try:
        row = parse_json(line, finite=False, largest=None)
    except ValueError:
        return None
    return row if is_row(row) else None


def read_tail(path: Path) -> list[dict[str, Any]]:
    """Read the rows at the end of a file, in their order, with numbers that have a float."""
    return [make_floats(row) for row in reversed(list(read_last_rows(path)))]


def make_floats(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose numbers can be calculated with: JSON knows no largest integer."""
    return {
        key: to_float(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST else value
        for key, value in row.items()
    }


def read_first_row(path: Path) -> dict[str, Any] | None:
    try:
        with open_regular(path, ROWS) as file:
            row = _parse_row(file.readline(LONGEST_LINE))
    except OSError:
        return None
    return None if row is None else make_floats(row)


def read_small_curve(path: Path, metrics: Sequence[str]) -> Points:
    """Read the curve of the first of these metrics that a run has, for a small picture. Only lines that name the metric are
    parsed; a file of more than `MOST_BYTES` gives no curve."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return []
        with open_regular(path, MOST_BYTES) as file:
            lines = file.read(MOST_BYTES).split(b"\n")
    except OSError:
        return []
    for metric in metrics:
        name = json.dumps(metric).encode()
        rows = [make_floats(row) for line in lines if name in line and (row := _parse_row(line)) is not None]
        points = [(float(row["turn"]), value) for row in rows if (value := to_number(row.get(metric))) is not None]
        if points:
            return points
    return []


def read_last_rows(path: Path, most: int = 1 << 18) -> Iterator[dict[str, Any]]:
    """Yield the rows at the end of a file, newest first. Only the last `most` bytes are read."""
    try:
        lines = read_last_lines(path, most)
    except OSError:
        return
    for line in reversed(lines):
        row = _parse_row(line)
        if row is not None:
            yield row
