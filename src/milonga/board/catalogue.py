"""List the runs in a folder with the state of each.

Invariants: nothing in a folder can make the catalogue fail: a run that cannot be read is listed as broken; scanning a hundred
runs costs a few calls of `stat` each, and only changed files are read again; a name that a browser sends is looked up among
the runs that were found, never joined to a path.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from milonga.board.curves import read_last_rows, to_float
from milonga.errors import RunFolderError
from milonga.reading import ROWS, UNREADABLE, check_regular, explain_unreadable, read_last_lines, read_toml

State = Literal["running", "finished", "stopped", "failed", "broken"]
WATCHED = ("config.toml", "metrics.jsonl", "report.json", "error.txt", "lock")
FIGURES = {
    "accuracy": "eval/generator/accuracy",
    "sound": "eval/generator/sound_accuracy",
    "f1": "eval/verifier/f1",
    "gap": "eval/hacking_gap",
}
MOST_RUNS = 2000
FRESH = 60.0
"""Seconds after its last write for which a run counts as running, on systems that do not tell who holds a lock."""


@dataclass(frozen=True)
class Card:
    """Summary of one run, as the list of runs shows it."""

    name: str
    """Its path relative to the folder that is shown; used in links."""
    path: Path
    state: State
    note: str = ""
    """What is wrong with the run; empty if nothing is."""
    recipe: str = ""
    task: str = ""
    seed: int | None = None
    dialect: str = "plain"
    turn: int | None = None
    lead_turn: int | None = None
    turns: int | None = None
    """Turns of the lead agent that the config asks for."""
    figures: Mapping[str, float] = field(default_factory=dict)
    changed: float = 0.0
    begun: float = 0.0
    comparison: str = ""
    """The comparison it belongs to."""
    arm: str = ""


@dataclass(frozen=True)
class Comparison:
    """A folder of runs that are compared with each other, as `milonga compare` and `milonga claim` leave it."""

    name: str
    path: Path
    finished: bool


class Catalogue:
    """All runs below a folder; or the one run, or the one comparison, that the folder is."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunFolderError(f"'{root}' is no folder; name one that holds runs, a run, or a comparison")
        self.root = root.resolve()
        self.lock = threading.Lock()
        self.seen: dict[Path, tuple[Any, Card]] = {}
        self.cards: dict[str, Card] = {}
        self.comparisons: dict[str, Comparison] = {}

    def scan(self) -> list[Card]:
        """Scan all runs again. Running ones come first, then the newest; the order of running ones does not change."""
        with self.lock:
            held = _find_held_locks()
            found: list[Card] = []
            comparisons: dict[str, Comparison] = {}
            for place, path, comparison, arm in self._list_folders():
                name = _make_printable(place)
                if arm is None:
                    comparisons[name] = Comparison(name, path, (path / "compare.json").is_file())
                elif len(found) < MOST_RUNS:
                    found.append(self._load_card(name, path, _make_printable(comparison), arm, held))
            self.cards = {card.name: card for card in found}
            self.comparisons = comparisons
            self.seen = {path: self.seen[path] for path in (card.path for card in found)}
            return sorted(found, key=lambda card: (card.state != "running", -card.begun, card.name))

    def find_card(self, name: str) -> Card | None:
        """Return the current card of one run; None if there is no run of that name."""
        if name not in self.cards:
            self.scan()
        known = self.cards.get(name)
        if known is None:
            return None
        with self.lock:
            return self._load_card(name, known.path, known.comparison, known.arm, _find_held_locks())

    def find_comparison(self, name: str) -> tuple[Comparison, list[Card]] | None:
        cards = self.scan()
        found = self.comparisons.get(name)
        return None if found is None else (found, [card for card in cards if card.comparison == name])

    def _list_folders(self) -> Iterator[tuple[str, Path, str, str | None]]:
        """Yield (name, path, comparison, arm) for every run; for a comparison itself the arm is None."""
        if _is_run(self.root):
            yield self.root.name, self.root, "", ""
            return
        tops = [(self.root.name, self.root)] if is_comparison(self.root) else [(p.name, p) for p in _list_subfolders(self.root)]
        for name, path in tops:
            if is_comparison(path):
                yield name, path, "", None
                for arm in _list_subfolders(path):
                    for run in _list_subfolders(arm):
                        if run.name.startswith("seed-"):
                            yield f"{name}/{arm.name}/{run.name}", run, name, arm.name
            elif _is_run(path):
                yield name, path, "", ""

    def _load_card(self, name: str, path: Path, comparison: str, arm: str, held: set[int] | None) -> Card:
        stamp = tuple(_get_file_stamp(path / file) for file in WATCHED)
        changed = max((s[1] for s in stamp if s is not None), default=0) / 1e9
        lock = stamp[-1]
        at_work = lock is not None and (lock[2] in held if held is not None else time.time() - changed < FRESH)
        key = (name, stamp, at_work)
        known = self.seen.get(path)
        if known is None or known[0] != key:
            begun = stamp[0][1] / 1e9 if stamp[0] is not None else changed
            card = _read_card(name, path, at_work)
            card = replace(card, comparison=comparison, arm=arm, changed=changed, begun=begun)
            self.seen[path] = known = (key, card)
        return known[1]


def _list_subfolders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    """Whether a folder holds a config, or the files of a run that has just begun or failed to begin, of whatever kind."""
    return any(os.path.lexists(path / name) for name in ("config.toml", "metrics.jsonl", "error.txt", "lock"))


def _make_printable(name: str) -> str:
    """Make a name that a page can hold: what is not UTF-8 in the name of a folder is escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def is_comparison(path: Path) -> bool:
    return (path / "compare.toml").is_file()


def _get_file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _find_held_locks() -> set[int] | None:
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


def _read_card(name: str, path: Path, at_work: bool) -> Card:
    config, problem = read_settings(path / "config.toml")
    rows = list(read_last_rows(path / "metrics.jsonl"))
    odd, error = _find_odd_file(path), _read_last_line(path / "error.txt")
    finished = (path / "report.json").is_file()
    state: State = "stopped"
    if at_work:
        state, problem = "running", "" if rows else "measuring the start"
    elif odd:
        state, problem = "broken", odd
    elif finished:
        state = "finished"
    elif error:
        state, problem = "failed", error
    elif problem:
        state = "broken"
    elif not rows:
        problem = "no metrics yet"
    last = rows[0] if rows else {}
    if state == "stopped" and isinstance(last.get("stalled"), str):
        problem = last["stalled"]
    task, seed, turns, dialect = (config.get(key) for key in ("task", "seed", "turns", "dialect"))
    lead = last.get("lead_turn")
    return Card(
        name,
        path,
        state,
        problem,
        recipe=str(config.get("recipe", "")),
        task=str(task.get("name", "")) if isinstance(task, dict) else "",
        seed=seed if isinstance(seed, int) else None,
        dialect=dialect if isinstance(dialect, str) else "plain",
        turn=last.get("turn"),
        lead_turn=lead if isinstance(lead, int) else None,
        turns=turns if isinstance(turns, int) else None,
        figures={short: found for short, key in FIGURES.items() if (found := _find_newest_value(rows, key)) is not None},
    )


def read_settings(path: Path) -> tuple[dict[str, Any], str]:
    """Read the raw config, and what is wrong with it. It is not validated: runs of other versions are shown too."""
    try:
        return read_toml(path), ""
    except FileNotFoundError:
        return {}, "no config.toml"
    except UNREADABLE as error:
        return {}, f"its config.toml cannot be read: {explain_unreadable(error)}"


def _find_odd_file(path: Path) -> str:
    """Say which file of a run is none that could be read, whatever it holds; empty if there is none."""
    for name in WATCHED:
        try:
            check_regular(path / name, ROWS)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"its {name} cannot be read: {explain_unreadable(error)}"
    return ""


def _read_last_line(path: Path) -> str:
    """Read the last line of a traceback file; empty if there is none."""
    try:
        lines = [line for line in read_last_lines(path, 1 << 16) if line.strip()]
    except OSError:
        return ""
    return lines[-1].decode("utf-8", "replace").strip()[:500] if lines else ""


def _find_newest_value(rows: list[dict[str, Any]], key: str) -> float | None:
    for row in rows:
        value = row.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(found := to_float(value)):
            return found
    return None
