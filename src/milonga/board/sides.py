"""Group runs into arms for a comparison: runs that differ only in their seed are one arm, with mean and t interval over seeds.

The statistics are those of `milonga compare`; the verdicts of a finished comparison are shown unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milonga.board.catalogue import Card, Comparison, read_settings
from milonga.board.curves import Curves, Shelf
from milonga.comparing.arms import make_folder_name
from milonga.comparing.results import ALWAYS, Outcome, summarise_metric
from milonga.health import Finding
from milonga.reading import RESULT, UNREADABLE, explain_unreadable, read_object
from milonga.report.blocks import Sheet
from milonga.report.sheets import build_sheets, list_findings, list_notes, shorten_arm_names, tell_whose
from milonga.report.verdicts import describe_comparison

APART = ("seed", "budget")
"""Settings in which runs of one arm may differ."""


@dataclass(frozen=True)
class Arm:
    name: str
    runs: tuple[Card, ...]
    metrics: Mapping[str, Mapping[str, Any]]
    """metric -> `seeds`, `start`, `final`, `interval`, `values` and `curve` (`x`, `mean`, `low`, `high`) over lead turns."""


@dataclass(frozen=True)
class Judged:
    """The verdict, the tables and the notes of a finished comparison, and what is wrong with its runs."""

    verdict: str
    sheets: tuple[Sheet, ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] | None
    """None for results of earlier versions, which do not say."""


def read_arm_names(comparison: Comparison) -> dict[str, str]:
    """Read the arms of a comparison in the order of its plan, which is that of its report and its plots: folder -> short name.
    Of a sweep, or where there is no plan that can be read, there are none."""
    arms = read_settings(comparison.path / "compare.toml")[0].get("arms") if comparison.kind == "comparison" else None
    names = list(arms) if isinstance(arms, dict) else []
    return {make_folder_name(name): short for name, short in shorten_arm_names(names).items()}


def choose_metrics(comparison: Comparison | None) -> list[str]:
    """Choose what is drawn: the metric that a comparison is about, before those that are always shown."""
    planned = read_settings(comparison.path / "compare.toml")[0].get("metric") if comparison is not None else None
    return list(dict.fromkeys([*([planned] if isinstance(planned, str) else []), *ALWAYS]))


def summarise_arms(
    cards: Sequence[Card], shelf: Shelf, metrics: Sequence[str] = ALWAYS, names: Mapping[str, str] | None = None
) -> list[Arm]:
    """Summarise runs by arm. `names` are the arms of a comparison in order, each with the name that is shown: an arm's place
    decides its colour. One that has no runs yet keeps its place."""
    grouped = _group_by_arm(cards)
    if names:
        order = [*names, *(name for name in grouped if name not in names)]
        grouped = {names.get(name, name): grouped.get(name, []) for name in order}
    found = []
    for name, runs in grouped.items():
        outcomes = {at: _make_outcome(shelf.get_curves(run.path / "metrics.jsonl"), metrics) for at, run in enumerate(runs)}
        measured = {
            metric: numbers for metric in metrics if (numbers := summarise_metric(outcomes, metric, "lead_turn")) is not None
        }
        found.append(Arm(name, tuple(runs), measured))
    return found


def collect_findings(arms: Sequence[Arm]) -> list[Finding]:
    """Collect what is wrong with the runs of each arm as a finished comparison lists it, what is severe first: each finding
    once, with the number of runs that have it."""
    out = []
    for arm in arms:
        found: dict[tuple[str, str], list[tuple[Finding, int | None]]] = {}
        for card in sorted(arm.runs, key=lambda card: (card.seed or 0, card.name)):
            for one in card.findings:
                found.setdefault((one.badge, one.subject), []).append((one, card.seed))
        out += [tell_whose(alike[0][0], arm.name, [seed for _, seed in alike], len(arm.runs)) for alike in found.values()]
    return sorted(out, key=lambda one: not one.severe)


def _group_by_arm(cards: Sequence[Card]) -> dict[str, list[Card]]:
    """Group runs by arm, keyed by a unique name.

    The name is that of the comparison's arm, that of the run if it is alone, or recipe and task; equal names are numbered.
    """
    kinds: dict[tuple[str, str, str], list[Card]] = {}
    for card in cards:
        settings = "" if card.arm else json.dumps(_read_arm_settings(card.path), sort_keys=True, default=str)
        kinds.setdefault((card.comparison, card.arm, settings), []).append(card)
    out: dict[str, list[Card]] = {}
    for (_, arm, _), runs in kinds.items():
        name = arm or (runs[0].name if len(runs) == 1 else f"{runs[0].recipe} on {runs[0].task}")
        alike = sum(other.partition(" #")[0] == name for other in out)
        out[f"{name} #{alike + 1}" if alike else name] = runs
    return out


def _read_arm_settings(path: Path) -> dict[str, Any]:
    return {key: value for key, value in read_settings(path / "config.toml")[0].items() if key not in APART}


def _make_outcome(curves: Curves, metrics: Sequence[str]) -> Outcome:
    """The measurements of a run so far, as `compare` reads them. Row 0, the start, has no lead turn: it counts as 0."""
    rows: dict[float, dict[str, Any]] = {}
    lead = dict(curves.points("lead_turn"))
    for metric in metrics:
        for turn, value in curves.points(metric):
            rows.setdefault(turn, {"lead_turn": lead.get(turn, 0.0)})[metric] = value
    return Outcome([rows[turn] for turn in sorted(rows)], {}, {})


def read_verdicts(path: Path) -> Judged | str | None:
    """Read the verdicts of a finished comparison; None if it is not finished, a message if its file cannot be read."""
    file = path / "compare.json"
    try:
        result = read_object(file, RESULT)
        findings = tuple(list_findings(result)) if "health" in result else None
        return Judged(describe_comparison(result), tuple(build_sheets(result)), tuple(list_notes(result)), findings)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        return f"compare.json cannot be read: {explain_unreadable(error)}"
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return f"compare.json cannot be read: {type(error).__name__} {error}"[:300]
