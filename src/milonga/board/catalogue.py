"""List the runs in a folder with the state of each, and the comparisons and sweeps that they belong to.

Invariants: nothing in a folder can make the catalogue fail: a run that cannot be read is listed as broken; scanning a hundred
runs costs a few calls of `stat` each, and only changed files are read again; a name that a browser sends is looked up among
the runs that were found, never joined to a path.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from milonga.board.curves import Points, make_floats, read_first_row, read_last_rows, read_small_curve, read_tail, to_float
from milonga.errors import RunFolderError
from milonga.health import Finding, find_health
from milonga.reading import ROWS, UNREADABLE, check_regular, explain_unreadable, read_last_lines, read_toml
from milonga.runfolder.locks import find_held_locks
from milonga.runfolder.record import Row, to_number

State = Literal["running", "finished", "stopped", "failed", "broken"]
Kind = Literal["comparison", "sweep"]
WATCHED = ("config.toml", "metrics.jsonl", "timing.jsonl", "report.json", "error.txt", "lock")
FIGURES = {
    "accuracy": "eval/generator/accuracy",
    "sound": "eval/generator/sound_accuracy",
    "f1": "eval/verifier/f1",
    "gap": "eval/hacking_gap",
}
DRAWN = ("eval/generator/accuracy", "eval/verifier/f1", "eval/verifier/balanced_accuracy")
"""The first of these that a run has is the curve that the list shows."""
MOST_RUNS = 2000
PACE = 20
"""Turns of the lead agent from which the time left is estimated: its last ones."""
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
    models: tuple[str, ...] = ()
    """The models that its policies begin with, each once."""
    done: float | None = None
    """Share of its turns, or of its budget, that is done; None if it is not known."""
    left: float | None = None
    """Seconds that a running run will still take, at the pace of its last turns; None if that cannot be told."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with its health."""
    curve: Points = field(default_factory=list)
    """A small picture of what it learned: (turn, value)."""
    figures: Mapping[str, float] = field(default_factory=dict)
    changed: float = 0.0
    begun: float = 0.0
    comparison: str = ""
    """The comparison or sweep it belongs to."""
    arm: str = ""

    @property
    def model(self) -> str:
        """Its models in short: of a path only the last part."""
        return " + ".join(dict.fromkeys(model.rstrip("/").rpartition("/")[2] or model for model in self.models))


@dataclass(frozen=True)
class Comparison:
    """A folder of runs that belong together, as `milonga compare`, `milonga claim` and `milonga sweep` leave it."""

    name: str
    path: Path
    finished: bool
    """Whether its results are there; a sweep has none but its runs."""
    kind: Kind = "comparison"
    running: bool = False
    """Whether a process works on it, be it between two of its runs."""
    planned: int = 0
    """Runs that the plan of a comparison asks for; 0 if it is not known."""


class Catalogue:
    """All runs below a folder; or the one run, or the one comparison, that the folder is."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunFolderError(f"'{root}' is no folder; name one that holds runs, a run, or a comparison")
        self.root = root.resolve()
        self.lock = threading.Lock()
        self.seen: dict[Path, tuple[Any, Card]] = {}
        self.plans: dict[Path, tuple[Any, int]] = {}
        self.cards: dict[str, Card] = {}
        self.comparisons: dict[str, Comparison] = {}

    def scan(self) -> list[Card]:
        """Scan all runs again. Running ones come first, then the newest; the order of running ones does not change."""
        with self.lock:
            held = find_held_locks()
            found: list[Card] = []
            comparisons: dict[str, Comparison] = {}
            for place, path, comparison, arm in self._list_folders():
                name = _make_printable(place)
                if arm is None:
                    comparisons[name] = self._load_comparison(name, path, held)
                elif len(found) < MOST_RUNS:
                    found.append(self._load_card(name, path, _make_printable(comparison), arm, held))
            self.cards = {card.name: card for card in found}
            self.comparisons = comparisons
            self.seen = {path: self.seen[path] for path in (card.path for card in found)}
            self.plans = {path: self.plans[path] for path in (one.path for one in comparisons.values()) if path in self.plans}
            return sorted(found, key=lambda card: (card.state != "running", -card.begun, card.name))

    def find_card(self, name: str) -> Card | None:
        """Return the current card of one run; None if there is no run of that name."""
        if name not in self.cards:
            self.scan()
        known = self.cards.get(name)
        if known is None:
            return None
        with self.lock:
            return self._load_card(name, known.path, known.comparison, known.arm, find_held_locks())

    def find_comparison(self, name: str) -> tuple[Comparison, list[Card]] | None:
        cards = self.scan()
        found = self.comparisons.get(name)
        return None if found is None else (found, [card for card in cards if card.comparison == name])

    def _list_folders(self) -> Iterator[tuple[str, Path, str, str | None]]:
        """Yield (name, path, comparison, arm) for every run; for a comparison itself the arm is None."""
        if _is_run(self.root):
            yield self.root.name, self.root, "", ""
            return
        tops = [(self.root.name, self.root)] if find_kind(self.root) else [(p.name, p) for p in _list_subfolders(self.root)]
        for name, path in tops:
            if kind := find_kind(path):
                yield name, path, "", None
                blocks = [path] if kind == "comparison" else _list_subfolders(path)
                for arm in (arm for block in blocks for arm in _list_subfolders(block)):
                    place = arm.relative_to(path).as_posix()
                    for run in _list_subfolders(arm):
                        if run.name.startswith("seed-"):
                            yield f"{name}/{place}/{run.name}", run, name, place
            elif _is_run(path):
                yield name, path, "", ""

    def _load_comparison(self, name: str, path: Path, held: set[int] | None) -> Comparison:
        lock, stamp = (_get_file_stamp(path / file) for file in ("lock", "compare.toml"))
        running = lock is not None and lock[2] in (held or ())
        if stamp is None:
            return Comparison(name, path, False, find_kind(path) or "comparison", running)
        if path not in self.plans or self.plans[path][0] != stamp:
            self.plans[path] = (stamp, _count_planned_runs(path / "compare.toml"))
        return Comparison(name, path, (path / "compare.json").is_file(), "comparison", running, self.plans[path][1])

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


def find_kind(path: Path) -> Kind | None:
    """Find what a folder of runs was made by; None if it is none."""
    if (path / "compare.toml").is_file():
        return "comparison"
    return "sweep" if (path / "sweep.json").is_file() else None


def _get_file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


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
    recent, timing = [make_floats(row) for row in reversed(rows)], read_tail(path / "timing.jsonl")
    done = _measure_done(last, config)
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
        models=_list_models(config),
        done=done,
        left=_estimate_left(recent, timing, config) if state == "running" else None,
        findings=tuple(_find_health(path, recent, config, timing)),
        curve=read_small_curve(path / "metrics.jsonl", DRAWN),
        figures={short: found for short, key in FIGURES.items() if (found := _find_newest_value(rows, key)) is not None},
    )


def _list_models(config: Mapping[str, Any]) -> tuple[str, ...]:
    policies = config.get("policies")
    sections = policies.values() if isinstance(policies, dict) else ()
    return tuple(dict.fromkeys(str(one["model"]) for one in sections if isinstance(one, dict) and "model" in one))


def _measure_done(row: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
    """Measure the share of a run that is done by a row: of its budget, if it has one, else of the lead agent's turns."""
    budget = config.get("budget")
    pairs = [(row.get(f"compute/{what}"), asked) for what, asked in budget.items()] if isinstance(budget, dict) else []
    shares = [_divide(used, asked) for used, asked in pairs or [(row.get("lead_turn"), config.get("turns"))]]
    known = [share for share in shares if share is not None]
    return min(1.0, max(known)) if known else None


def _divide(part: Any, whole: Any) -> float | None:
    over, under = (to_number(to_float(one)) if isinstance(one, int | float) else None for one in (part, whole))
    return None if over is None or under is None or under <= 0 else max(0.0, over / under)


def _estimate_left(rows: Sequence[Row], timing: Sequence[Row], config: Mapping[str, Any]) -> float | None:
    """Estimate the seconds left from how far the last turns of the lead agent brought the run, and how long they took. Turns
    before the first of these, such as a warm-up, do not count; nor does one whose time is not written yet."""
    timed = max((row["turn"] for row in timing), default=-1)
    shares = [(row["turn"], share) for row in rows if (share := _measure_done(row, config)) is not None]
    ends = {share: turn for turn, share in shares if turn <= timed}
    known = [*ends.items()][-PACE - 1 :]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    (begun, first), (done, last) = known[0], known[-1]
    spent = [to_number(row.get(key)) or 0.0 for row in timing if first < row["turn"] <= last for key in ("turn_s", "eval_s")]
    return sum(spent) / (done - begun) * (1.0 - shares[-1][1]) if spent else None


def _find_health(path: Path, rows: Sequence[Row], config: Mapping[str, Any], timing: Sequence[Row]) -> list[Finding]:
    """Find what is wrong with a run by its first and its last rows."""
    first = read_first_row(path / "metrics.jsonl") if rows else None
    rows = [first, *rows] if first is not None and first["turn"] < rows[0]["turn"] else rows
    machine = read_tail(path / "machine.jsonl")
    return find_health(rows, config, timing, machine[-1] if machine else None)


def read_settings(path: Path) -> tuple[dict[str, Any], str]:
    """Read the raw config, and what is wrong with it. It is not validated: runs of other versions are shown too."""
    try:
        return read_toml(path), ""
    except FileNotFoundError:
        return {}, "no config.toml"
    except UNREADABLE as error:
        return {}, f"its config.toml cannot be read: {explain_unreadable(error)}"


def _count_planned_runs(plan: Path) -> int:
    """Count the runs that the plan of a comparison asks for: its arms times its seeds; 0 if it does not say."""
    settings, _ = read_settings(plan)
    arms, seeds = settings.get("arms"), settings.get("seeds")
    return len(arms) * len(seeds) if isinstance(arms, dict) and isinstance(seeds, list) else 0


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
