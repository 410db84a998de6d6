"""The chapter of a report about a comparison, or a claim tested by one: tables with paired intervals, curves with bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from milonga.charts import Series, line_chart
from milonga.config import read_toml, to_toml
from milonga.errors import RunFolderError, UserError
from milonga.report.blocks import Block, Chapter, Code, Figure, Figures, Findings, Folded, Points, Section, Sheet, Text, Verdict
from milonga.report.curves import (
    F1,
    GENERATOR,
    LEAST_REACH,
    TITLES,
    clip_to_range,
    describe_series,
    draw_pair_chart,
    get_title,
    is_difference,
)
from milonga.report.sheets import (
    AXIS_NAMES,
    Result,
    build_sheets,
    format_interval,
    list_findings,
    list_notes,
    shorten_arm_names,
)
from milonga.report.verdicts import describe_comparison
from milonga.runfolder.files import JsonLines
from milonga.runfolder.record import read_json
from milonga.text import format_amount, format_number

NOWHERE: Mapping[str, Any] = {"x": [], "mean": [], "low": [], "high": []}
"""The empty curve of an arm that lacks a metric, so that the arm keeps its colour in all charts."""
WARM_UP = "; at 0: the start, and after the warm-up"
PLAN, RESULT, CLAIM = "compare.toml", "compare.json", "claim.json"


def is_comparison(folder: Path) -> bool:
    return (folder / PLAN).exists() or (folder / RESULT).exists()


def build_comparison_chapter(folder: Path) -> Chapter:
    result = read_json(folder / RESULT)
    if result is None:
        raise RunFolderError(
            f"'{folder}' holds a comparison without results; the command that started it, with --out {folder}, goes on with it"
        )
    try:
        return _build_chapter(folder, result, read_json(folder / CLAIM))
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RunFolderError(f"'{folder / RESULT}' is not what 'milonga compare' writes ({what})") from None


def _build_chapter(folder: Path, result: Result, claim: Mapping[str, Any] | None) -> Chapter:
    names = list(result["arms"])
    task = ", ".join(f"{k}={v}" if k != "name" else str(v) for k, v in result["task"].items())
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    fair = f"{result['match']} matched, measured on {result['split']}"
    lead = f"{len(names)} arms on {task}, seeds {seeds}, {fair}. Folder: {folder}"
    costs, *outcomes = build_sheets(result)
    said, wrong = list_notes(result), list_findings(result)
    sections = [
        *([_build_claim_section(claim)] if claim is not None else []),
        Section("In short", [Verdict(describe_comparison(result)), *([Findings(wrong)] if wrong else [])]),
        Section("Curves", [Figures(_build_figures(result))]),
        Section("Outcomes", [Text(EXPLAINED.format(baseline=result["baseline"])), *outcomes]),
        Section("What each arm used", [costs, _build_runs_sheet(result), *([Points(said)] if said else [])]),
        Section("How to reproduce it", build_reproduction(folder, result)),
    ]
    title = f"claim of {claim['claim']}" if claim is not None else " against ".join(shorten_arm_names(names).values())
    return Chapter(f"{title}: {folder.resolve().name}", lead, sections)


EXPLAINED = (
    "Differences to {baseline} are paired by seed, with 95 % t intervals; “over problems” resamples the held-out problems; p "
    "is corrected after Holm over the table; “could see” is the smallest effect that so few seeds could have shown."
)


def _build_claim_section(claim: Mapping[str, Any]) -> Section:
    difference = "no difference could be taken"
    if claim["difference"] is not None:
        bounds = format_interval(claim["interval"])
        difference = f"difference {claim['difference']:+.3f} {bounds} in {claim['metric']}, {claim['better']} is better"
    points = [
        f"It says: {claim['says']}",
        f"Verdict: {claim['verdict']}; {difference}.",
        *(f"Cannot be tested so: {said}." for said in claim.get("unmet", ())),
        *_describe_reached(claim),
    ]
    if claim.get("conditions") == "not checked":
        points.append("No pilot has shown that it can be tested.")
    if claim["difference"] is not None:
        seen = f"{format_number(claim['smallest_effect'])} could have been seen"
        points.append(f"An effect matters from {format_number(claim['matters'])} on; {seen}.")
    return Section("The claim", [Points(points)])


def _describe_reached(claim: Mapping[str, Any]) -> list[str]:
    """Say in which share of the seeds the arms broke through, where that is what was tested."""
    reached = claim.get("reached")
    if reached is None:
        return []
    first, second = (format_number(share) for share in reached["shares"])
    said = f"{first} and {second} of the seeds ended on the better side of {reached['threshold']:g}"
    return [f"{said}, which is what was tested: p = {claim['p']:.3f}."]


def _build_figures(result: Result) -> list[Figure]:
    """Build one figure per metric (mean curve and band of every arm), and the path chart of accuracy against F1."""
    short = shorten_arm_names(list(result["arms"]))
    metrics = dict.fromkeys([result["metric"], *(m for arm in result["arms"].values() for m in arm["metrics"])])
    arms = {short[name]: arm["metrics"] for name, arm in result["arms"].items()}
    figures = [build_metric_figure(metric, arms, AXIS_NAMES[result["axis"]]) for metric in metrics]
    return [one for one in (*figures, build_pair_figure(result, short)) if one is not None]


def build_metric_figure(metric: str, arms: Mapping[str, Mapping[str, Any]], axis: str) -> Figure | None:
    """Build the mean curves of all arms with their bands, as far as the curves go: bands are clipped to what can be, and cut
    off where they are far wider than the curves; where one would fill the chart, as that of two seeds does, the seeds' own ends
    are drawn. `arms`: name -> metric -> measurements with a `curve`. An arm's colour, dash and points follow from its place
    among the arms: board, report and plots pass them in one order.
    """
    found = {name: metrics.get(metric, {"curve": NOWHERE}) for name, metrics in arms.items()}
    series = [_make_mean_series(name, metric, one["curve"], one.get("values", ())) for name, one in found.items()]
    if not any(one.x for one in series):
        return None
    title, known = get_title(metric), metric in TITLES
    svg = line_chart(
        title,
        series,
        x_label=axis + (WARM_UP if any(len(one.x) > 1 and one.x[0] == one.x[1] for one in series) else ""),
        least=LEAST_REACH if known else 0.0,
        zero=known and is_difference(metric),
        bands=f"95 % t interval over {_count_seeds(series)}seeds",
        ends="each seed",
    )
    return Figure(svg, title, [describe_series(one) for one in series if one.x])


def _make_mean_series(name: str, metric: str, curve: Mapping[str, Any], ends: Sequence[float]) -> Series:
    low, high = ([clip_to_range(metric, value) for value in curve[side]] for side in ("low", "high"))
    return Series(name, curve["x"], curve["mean"], low, high, ends)


def _count_seeds(series: Sequence[Series]) -> str:
    """Say over how many seeds the intervals are; nothing where that is not known."""
    counts = [len(one.ends) for one in series if len(one.ends) > 1]
    if not counts:
        return ""
    return f"{max(counts)} " if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} "


def build_pair_figure(result: Result, short: Mapping[str, str]) -> Figure | None:
    series = []
    for name, arm in result["arms"].items():
        found = [arm["metrics"].get(metric) for metric in (GENERATOR, F1)]
        x, y = (NOWHERE if one is None else one["curve"] for one in found)
        series.append(Series(short[name], x["mean"], y["mean"]) if x["x"] == y["x"] else Series(short[name], [], []))
    if not any(one.x for one in series):
        return None
    title = "The ways of the pairs, means over seeds"
    return Figure(draw_pair_chart(title, series), title, [describe_series(one) for one in series if one.x])


def _build_runs_sheet(result: Result) -> Sheet:
    """Build the table of all runs, with the folder that holds each run's own report."""
    metric = result["metric"]
    rows = []
    for arm in result["arms"].values():
        finals = {}
        if metric in arm["metrics"]:
            found = arm["metrics"][metric]
            finals = dict(zip(found["seeds"], found["values"], strict=True))
        for run in arm["runs"]:
            costs = (str(run["turns"]), format_amount(run["tokens"]), format_amount(run["flops"]))
            rows.append((f"{arm['folder']}/seed-{run['seed']}", format_number(finals.get(run["seed"])), *costs))
    return Sheet("The runs", ("run", get_title(metric), "turns", "tokens", "FLOPs"), rows)


def build_reproduction(folder: Path, result: Result) -> list[Block]:
    commands = list(
        dict.fromkeys(str(row["command"]) for row in JsonLines(folder / "machine.jsonl").rows() if row.get("command"))
    )
    blocks: list[Block] = [Text("As it was typed:"), Code("\n".join(commands))] if commands else []
    blocks.append(Text("The runs lie in OUT/ARM/seed-S; each has the config that gives it again, and a report of its own."))
    try:
        return [*blocks, Folded(PLAN, Code(to_toml(read_toml(folder / PLAN))))]
    except UserError:
        return blocks
