"""Analyse the run folders of a comparison into one plain mapping: finals, areas, curves, costs, differences and verdicts.

Invariants: differences are paired by seed and taken against the baseline; Holm's correction is over every difference in
the result; a missing run leaves a gap, never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from milonga.comparing import stats
from milonga.comparing.arms import Arm, Comparison
from milonga.comparing.pool import Run
from milonga.errors import ConfigError, RunFolderError, UserError, suggest_name
from milonga.health import HANGS_ON_MACHINE, Finding, examine, find_health
from milonga.runfolder.files import JsonLines
from milonga.runfolder.record import Costs, read_record, read_shape, to_number

ALWAYS = ("eval/generator/accuracy", "eval/generator/sound_accuracy", "eval/verifier/f1", "eval/hacking_gap")
AXES = {"turns": "lead_turn", "tokens": "compute/tokens", "flops": "compute/flops"}
"""The x axis of curves and areas is what was matched: with matched compute a warm-up is on the axis too."""
COSTS = ("turns", "lead_turns", "tokens", "flops")


@dataclass(frozen=True)
class Outcome:
    """The results of a finished run."""

    rows: list[dict[str, Any]]
    """The metrics rows that hold an evaluation."""
    costs: Mapping[str, float | None]
    problems: Mapping[str, Mapping[str, float | None]]
    """problem -> metric -> mean over its solutions; empty for older runs, which did not save it."""

    def points(self, metric: str, axis: str = "lead_turn") -> list[tuple[float, float]]:
        return [
            (to_number(row.get(axis)) or 0.0, value) for row in self.rows if (value := to_number(row.get(metric))) is not None
        ]

    def final(self, metric: str) -> float | None:
        points = self.points(metric)
        return points[-1][1] if points else None


Outcomes = Mapping[str, Mapping[int, Outcome]]
"""arm -> seed -> outcome; missing runs are left out."""


@dataclass(frozen=True)
class Final:
    """What `final.json` holds: per problem, the means of its metrics."""

    problems: dict[str, dict[str, float | None]]


def read_outcome(folder: Path) -> Outcome | None:
    report = read_shape(folder / "report.json", Costs)
    if report is None:
        return None
    rows = [row for row in JsonLines(folder / "metrics.jsonl").rows() if any(key.startswith("eval/") for key in row)]
    final = read_shape(folder / "final.json", Final)
    costs = {"turns": report.turns, "lead_turns": report.lead_turns}
    used = {what: report.compute.get(what) for what in ("tokens", "flops")}
    return Outcome(rows, costs | used, {} if final is None else final.problems)


def analyse(comparison: Comparison, out: Path, failed: Mapping[Run, str], notes: Sequence[str]) -> dict[str, Any]:
    """Analyse all finished runs; return what `compare.json` holds."""
    outcomes = {
        arm.name: {
            seed: found for seed in comparison.seeds if (found := read_outcome(out / arm.folder / f"seed-{seed}")) is not None
        }
        for arm in comparison.arms
    }
    if not any(outcomes.values()):
        run, error = next(iter(failed.items()))
        raise UserError(f"every run failed; the first, {run}: {error}")
    metrics = _select_metrics(comparison.metric, outcomes)
    target = stats.average(_collect_finals(outcomes[comparison.baseline], comparison.metric))
    config = comparison.reference.plan.config
    return {
        "task": config.task,
        "split": config.eval.split,
        "turns": config.turns,
        "match": comparison.match,
        "metric": comparison.metric,
        "reference": comparison.reference.name,
        "baseline": comparison.baseline,
        "seeds": list(comparison.seeds),
        "out": str(out),
        "target": target,
        "axis": AXES[comparison.match],
        "arms": {arm.name: _describe_arm(arm, outcomes[arm.name], metrics, comparison, target) for arm in comparison.arms},
        "differences": _compare_to_baseline(outcomes, metrics, comparison.baseline, AXES[comparison.match]),
        "health": [found for arm in comparison.arms for found in examine_arm(arm, comparison.seeds, out)],
        "failed": [{"arm": run.arm, "seed": run.seed, "error": error} for run, error in failed.items()],
        "notes": [*notes, *_list_gaps(comparison, outcomes, metrics)],
    }


def examine_arm(arm: Arm, seeds: Sequence[int], out: Path) -> list[dict[str, Any]]:
    """Find what is wrong with the runs of an arm. What hangs on the machine is left out, so that a result depends on nothing
    but its runs."""
    known = {seed: JsonLines(out / arm.folder / f"seed-{seed}" / "metrics.jsonl").rows() for seed in seeds}
    return _group_findings(arm.name, {seed: find_health(rows, arm.config(seed)) for seed, rows in known.items() if rows})


def examine_machines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Find what hangs on the machine in the runs of a comparison: it is told beside the result, and is no part of it."""
    found = []
    for name, arm in result["arms"].items():
        folders = {seed: Path(result["out"]) / arm["folder"] / f"seed-{seed}" for seed in result["seeds"]}
        runs = {seed: examine_machine(folder) for seed, folder in folders.items() if (folder / "metrics.jsonl").exists()}
        found += _group_findings(name, runs)
    return found


def examine_machine(folder: Path) -> list[Finding]:
    """Find what hangs on the machine in a run; nothing where its folder cannot be read."""
    try:
        return [one for one in examine(read_record(folder)) if one.badge in HANGS_ON_MACHINE]
    except RunFolderError:
        return []


def _group_findings(arm: str, runs: Mapping[int, Sequence[Finding]]) -> list[dict[str, Any]]:
    """Make data of the findings in an arm's runs: each once, with the seeds that have it, and in the words of the first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for seed, findings in runs.items():
        for one in findings:
            said = {"arm": arm, **one.to_json(), "seeds": []}
            found.setdefault((one.badge, one.subject), said)["seeds"].append(seed)
    return [each | {"runs": len(runs)} for each in found.values()]


def _select_metrics(chosen: str, outcomes: Outcomes) -> list[str]:
    """Select the chosen metric and those that are always shown, if any arm has them."""
    known = {
        key
        for runs in outcomes.values()
        for outcome in runs.values()
        for row in outcome.rows
        for key, value in row.items()
        if key.startswith("eval/") and to_number(value) is not None
    }
    if chosen not in known:
        raise ConfigError(f"no run has the metric '{chosen}': {suggest_name(chosen, known)} (the runs are kept: name another)")
    return [chosen, *(metric for metric in ALWAYS if metric in known and metric != chosen)]


def _list_gaps(comparison: Comparison, outcomes: Outcomes, metrics: Sequence[str]) -> list[str]:
    """List notes about what is missing: metrics of the baseline, seeds of an arm, intervals."""
    notes = []
    missing = [metric for metric in metrics if not _collect_finals(outcomes[comparison.baseline], metric)]
    if missing:
        lacks = f"the baseline '{comparison.baseline}' has no {', '.join(missing)}"
        notes.append(f"{lacks}: differences in that need another --baseline")
    for name, runs in outcomes.items():
        absent = [str(seed) for seed in comparison.seeds if seed not in runs]
        if absent:
            notes.append(f"{name} has no result for seed {', '.join(absent)}: its means are over the other seeds")
    if len(comparison.seeds) < 2:
        notes.append("one seed allows no interval and no verdict: use --seeds 5")
    return notes


def _collect_finals(runs: Mapping[int, Outcome], metric: str) -> list[float]:
    return [value for outcome in runs.values() if (value := outcome.final(metric)) is not None]


def _describe_arm(
    arm: Arm, runs: Mapping[int, Outcome], metrics: Sequence[str], comparison: Comparison, target: float | None
) -> dict[str, Any]:
    axis = AXES[comparison.match]
    curves = [outcome.points(comparison.metric) for outcome in runs.values()]
    measured = {metric: summarise_metric(runs, metric, axis) for metric in metrics}
    return {
        "recipe": arm.recipe,
        "folder": arm.folder,
        "runs": [{"seed": seed, **outcome.costs} for seed, outcome in runs.items()],
        **{cost: _mean_cost(runs, cost) for cost in COSTS},
        "turns_to_reach": None if target is None else stats.find_first_reach(curves, target),
        "metrics": {metric: found for metric, found in measured.items() if found is not None},
    }


def _mean_cost(runs: Mapping[int, Outcome], cost: str) -> float | None:
    """Mean cost over the seeds; None if it is unknown for one of them, such as FLOPs behind an endpoint."""
    costs = [outcome.costs[cost] for outcome in runs.values()]
    known = [value for value in costs if value is not None]
    return stats.average(known) if len(known) == len(costs) else None


def summarise_metric(runs: Mapping[int, Outcome], metric: str, axis: str) -> dict[str, Any] | None:
    """Summarise one metric of one arm over its seeds; None if no seed has it."""
    curves = {seed: points for seed, outcome in runs.items() if (points := outcome.points(metric, axis))}
    if not curves:
        return None
    ends = [points[-1][1] for points in curves.values()]
    areas = [found for points in curves.values() if (found := stats.mean_area(points)) is not None]
    return {
        "seeds": list(curves),
        "start": stats.average([points[0][1] for points in curves.values()]),
        "final": stats.average(ends),
        "interval": stats.t_interval(ends),
        "values": ends,
        "area": stats.average(areas),
        "areas": areas,
        "curve": _compute_band(list(curves.values())),
    }


def _compute_band(curves: Sequence[stats.Points]) -> dict[str, list[float]]:
    """Compute the mean curve with its t interval at every point; for a single seed the band has width zero. Where the axis
    stands still at first, in a warm-up, it has its first place twice: at the start, and after the warm-up."""
    places, heights = stats.align_curves(curves)
    if any(len(points) > 1 and points[0][0] == points[1][0] for points in curves):
        starts = [points[0][1] for points in curves]
        places, heights = np.append(places[:1], places), np.column_stack([starts, heights])
    centre = heights.mean(axis=0)
    halves = np.array([stats.half_width(list(column)) or 0.0 for column in heights.T])
    columns = {"x": places, "mean": centre, "low": centre - halves, "high": centre + halves}
    return {name: [float(v) for v in column] for name, column in columns.items()}


def _compare_to_baseline(outcomes: Outcomes, metrics: Sequence[str], baseline: str, axis: str) -> list[dict[str, Any]]:
    """Compare every arm with the baseline in every metric that both have: finals and areas, under one Holm correction."""
    others = [(metric, arm, runs) for metric in metrics for arm, runs in outcomes.items() if arm != baseline]
    base = outcomes[baseline]
    finals_and_areas = [
        difference
        for metric, arm, runs in others
        for difference in (_compare_finals(arm, metric, runs, base), _compare_areas(arm, metric, runs, base, axis))
    ]
    found = [difference for difference in finals_and_areas if difference is not None]
    tested = [difference for difference in found if difference["p"] is not None]
    for difference, adjusted in zip(tested, stats.holm([d["p"] for d in tested]), strict=True):
        difference["p_holm"] = adjusted
        pairs, problems = len(difference["values"]), difference["problems"]
        difference["verdict"] = stats.decide_verdict(difference["mean"], adjusted, pairs, problems)
        if difference["p"] < 1 - stats.LEVEL:
            difference["guard"] = stats.find_guard(adjusted, pairs, problems)
    return found


def _compare_areas(
    arm: str, metric: str, runs: Mapping[int, Outcome], baseline: Mapping[int, Outcome], axis: str
) -> dict[str, Any] | None:
    """Paired difference of the areas under the curves, which measure the whole of training; None without pairs."""
    pairs = {}
    for seed in runs:
        if seed in baseline:
            mine, theirs = (stats.mean_area(found[seed].points(metric, axis)) for found in (runs, baseline))
            if mine is not None and theirs is not None:
                pairs[seed] = mine - theirs
    return _make_difference(arm, f"area of {metric}", pairs, None) if pairs else None


def _compare_finals(
    arm: str, metric: str, runs: Mapping[int, Outcome], baseline: Mapping[int, Outcome]
) -> dict[str, Any] | None:
    """Paired difference of the final values; None without pairs. Its verdict is set after Holm's correction."""
    pairs = {
        seed: mine - theirs
        for seed, outcome in runs.items()
        if seed in baseline
        and (mine := outcome.final(metric)) is not None
        and (theirs := baseline[seed].final(metric)) is not None
    }
    if not pairs:
        return None
    per_problem = _build_problem_table(metric, [runs[seed] for seed in pairs], [baseline[seed] for seed in pairs])
    return _make_difference(arm, metric, pairs, stats.problem_interval(per_problem))


def _make_difference(arm: str, metric: str, pairs: Mapping[int, float], problems: tuple[float, float] | None) -> dict[str, Any]:
    values = list(pairs.values())
    return {
        "arm": arm,
        "metric": metric,
        "seeds": list(pairs),
        "values": values,
        "mean": stats.average(values),
        "interval": stats.t_interval(values),
        "problems": problems,
        "p": stats.t_test(values),
        "p_holm": None,
        "verdict": "undecided",
        "guard": None,
        "smallest_effect": stats.smallest_effect(values),
    }


def _build_problem_table(metric: str, mine: Sequence[Outcome], theirs: Sequence[Outcome]) -> stats.Floats:
    """Array [seeds, problems]: the difference on each problem that all of these runs were evaluated on; NaN if ungraded."""
    name = metric.removeprefix("eval/generator/")
    shared = sorted(set.intersection(*(set(outcome.problems) for outcome in (*mine, *theirs))))

    def column(outcome: Outcome) -> list[float]:
        values = [outcome.problems[problem].get(name) for problem in shared]
        return [float("nan") if value is None else float(value) for value in values]

    return np.array([np.subtract(column(a), column(b)) for a, b in zip(mine, theirs, strict=True)], dtype=float)
