"""Load a run folder into a `Record`, which `show`, reports and plots use. A run in progress can be loaded too.

Invariant: a folder that cannot be read, or holds something else, is a `RunFolderError` of one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from milonga.config import Config
from milonga.errors import ConfigError, RunFolderError
from milonga.reading import RESULT, UNREADABLE, check_shape, explain_unreadable, read_object
from milonga.runfolder.files import JsonLines
from milonga.runfolder.folder import read_config

Row = Mapping[str, Any]
T = TypeVar("T")
HEADLINE = (
    ("generator accuracy (sampled)", "generator/accuracy"),
    ("generator accuracy, answer and every step right", "generator/sound_accuracy"),
    ("verifier F1 on first errors (sampled)", "verifier/f1"),
    ("verifier balanced accuracy", "verifier/balanced_accuracy"),
    ("verifier AUROC of soft verdicts", "verifier/soft_auroc"),
    ("verifier balanced accuracy, first solutions", "verifier/start_balanced_accuracy"),
    ("verifier AUROC, first solutions", "verifier/start_soft_auroc"),
    ("hacking gap (verifier's score - true accuracy)", "hacking_gap"),
)
"""The headline metrics of a run: (label, metric name below `eval/`)."""


@dataclass(frozen=True)
class Change:
    """The first and the last value of a metric."""

    start: float | None
    end: float | None


@dataclass(frozen=True)
class Costs:
    """What `report.json` says of the cost of a run; compute is None where it is unknown."""

    turns: int
    lead_turns: int
    compute: dict[str, float | None]


@dataclass(frozen=True)
class Summary(Costs):
    """What `report.json` says of a run."""

    recipe: str
    run: str
    generator: dict[str, Change]
    verifier: dict[str, Change]
    hacking_gap: Change


@dataclass(frozen=True)
class Record:
    folder: Path
    config: Config
    rows: Sequence[Row]
    timing: Sequence[Row]
    machine: Sequence[Row]
    """One row per process that worked on the run; empty in folders of older versions, which did not record it."""
    summary: Mapping[str, Any] | None
    """What `run` returned; None while the run is not finished."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def last(self) -> Row:
        return self.rows[-1]

    @cached_property
    def curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """metric -> (turns in which it is a number, its values). Built in one pass: runs may have thousands of turns."""
        out: dict[str, tuple[list[int], list[float]]] = {}
        for row in self.rows:
            for key, raw in row.items():
                if (value := to_number(raw)) is not None:
                    turns, values = out.setdefault(key, ([], []))
                    turns.append(row["turn"])
                    values.append(value)
        return out

    def get_curve(self, metric: str) -> tuple[list[int], list[float]]:
        return self.curves.get(metric, ([], []))

    def metrics(self, *prefixes: str) -> list[str]:
        """List the metrics with one of these prefixes that are a number in some turn, in order of appearance."""
        return [name for name in self.curves if name.startswith(prefixes)]


def to_number(value: Any) -> float | None:
    """A finite number as a float; None for anything else, such as an integer that no float is as large as."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON knows no largest integer
        return None


def read_record(folder: Path) -> Record:
    """Load everything of a run but its rollouts and weights."""
    try:
        config = read_config(folder)
    except ConfigError as error:
        raise RunFolderError(f"the config of run '{folder}' cannot be read: {error}") from None
    rows = JsonLines(folder / "metrics.jsonl").rows()
    if not rows:
        raise RunFolderError(f"'{folder}' holds no metrics yet")
    timing, machine = (JsonLines(folder / name).rows() for name in ("timing.jsonl", "machine.jsonl"))
    return Record(folder, config, rows, timing, machine, read_json(folder / "report.json"))


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object from a file; None if there is no such file."""
    return read_shape(path, dict[str, Any])


def read_shape(path: Path, kind: type[T]) -> T | None:
    """Read a JSON object of a certain shape from a file; None if there is no such file."""
    try:
        return check_shape(kind, read_object(path, RESULT))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UNREADABLE as error:
        raise RunFolderError(f"'{path}' cannot be read: {explain_unreadable(error)}") from None
