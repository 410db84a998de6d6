"""Build the tables of a comparison, before they are rendered for a terminal or a page. Pure functions of compare.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from milonga.health import Badge, Finding
from milonga.report.blocks import Sheet
from milonga.report.curves import clip_to_range, get_title
from milonga.text import format_amount, format_number

Result = Mapping[str, Any]
AXIS_NAMES = {"lead_turn": "turns of the lead agent", "compute/tokens": "tokens", "compute/flops": "FLOPs"}


def build_sheets(result: Result) -> list[Sheet]:
    metrics = dict.fromkeys(metric for arm in result["arms"].values() for metric in arm["metrics"])
    order = [result["metric"], *(metric for metric in metrics if metric != result["metric"])]
    return [_build_cost_sheet(result), *(build_outcome_sheet(result, metric) for metric in order)]


def _build_cost_sheet(result: Result) -> Sheet:
    """Build the table of turns, tokens and FLOPs that each arm used, so that extra compute does not go unnoticed."""
    target = format_number(result["target"])
    head = ("arm", "seeds", "lead turns", "all turns", "tokens", "FLOPs", f"lead turns to reach {target}")
    rows = [
        (
            name + (" (reference)" if name == result["reference"] and result["match"] != "turns" else ""),
            str(len(arm["runs"])),
            *(format_amount(arm[cost]) for cost in ("lead_turns", "turns", "tokens", "flops")),
            "not reached" if arm["turns_to_reach"] is None else format_amount(arm["turns_to_reach"]),
        )
        for name, arm in result["arms"].items()
    ]
    return Sheet(f"What each arm used (mean over seeds; {result['match']} matched)", head, rows)


def build_outcome_sheet(result: Result, metric: str) -> Sheet:
    found = {difference["arm"]: difference for difference in result["differences"] if difference["metric"] == metric}
    areas = {d["arm"]: d for d in result["differences"] if d["metric"] == f"area of {metric}"}
    rows = [
        (
            name,
            format_measured(metric, arm["metrics"][metric]),
            format_number(arm["metrics"][metric]["area"]),
            _format_area_difference(areas.get(name)),
            *(_format_difference(found[name]) if name in found else _format_no_difference(name, result)),
        )
        for name, arm in result["arms"].items()
        if metric in arm["metrics"]
    ]
    head = (
        "arm",
        "final",
        "area",
        "its difference",
        f"difference to {result['baseline']}",
        "over problems",
        "p (Holm)",
        "verdict",
        "could see",
    )
    words = get_title(metric)
    name = metric if words == metric else f"{words} ({metric})"
    return Sheet(f"{name} on {result['split']}, 95 % intervals over seeds", head, rows)


def format_measured(metric: str, values: Mapping[str, Any]) -> str:
    """Format the mean of a metric with its interval, as far as that lies within what the metric can be."""
    if values["interval"] is None:
        return format_number(values["final"])
    low, high = (clip_to_range(metric, bound) for bound in values["interval"])
    return f"{format_number(values['final'])} [{low:.3f}, {high:.3f}]"


def _format_difference(difference: Mapping[str, Any]) -> tuple[str, ...]:
    """Format a paired difference. An "undecided" one is shown with the smallest effect that could have been detected."""
    said = difference["verdict"]
    seen = format_number(difference["smallest_effect"]) if said == "undecided" else ""
    mean = f"{difference['mean']:+.3f} {format_interval(difference['interval'])}".strip()
    return mean, format_interval(difference["problems"]) or "—", _format_p_value(difference["p_holm"]), said, seen


def _format_area_difference(difference: Mapping[str, Any] | None) -> str:
    if difference is None:
        return ""
    said = "" if difference["verdict"] == "undecided" else f" {difference['verdict']}"
    return f"{difference['mean']:+.3f} {format_interval(difference['interval'])}".strip() + said


def _format_no_difference(name: str, result: Result) -> tuple[str, ...]:
    return ("baseline" if name == result["baseline"] else "—", "", "", "", "")


def _format_p_value(value: float | None) -> str:
    return "<0.001" if value is not None and value < 0.001 else format_number(value)


def format_interval(value: Sequence[float] | None) -> str:
    return "" if value is None else f"[{value[0]:+.3f}, {value[1]:+.3f}]"


def list_remarks(result: Result) -> list[str]:
    """List the failed runs and the notes of a comparison, and what is wrong with its runs."""
    return [*list_notes(result), *(f"{one.badge}: {one}" for one in list_findings(result))]


def list_notes(result: Result) -> list[str]:
    """List the failed runs and the notes of a comparison."""
    return [*(f"failed: {run['arm']} seed {run['seed']}: {run['error']}" for run in result["failed"]), *result["notes"]]


def list_findings(result: Result) -> list[Finding]:
    """List what is wrong with the runs of a comparison, what is severe first. Results of earlier versions have none."""
    short = shorten_arm_names(list(result["arms"]))
    found = []
    for one in result.get("health", ()):
        badge = cast(Badge, str(one["badge"]))  # of another version's it may be another, and is shown all the same
        finding = Finding(badge, str(one["text"]), str(one["help"]), severe=bool(one.get("severe")))
        found.append(tell_whose(finding, short.get(one["arm"], one["arm"]), one["seeds"], one["runs"]))
    return sorted(found, key=lambda one: not one.severe)


def tell_whose(one: Finding, arm: str, seeds: Sequence[object], runs: int) -> Finding:
    """A finding that says whose it is: an arm's, in the words of the first of the seeds that have it."""
    whose = f"{len(seeds)} of {runs} runs" if runs > 1 else "its run"
    return replace(one, text=f"{arm}, {whose}; in seed {seeds[0]} {one.text}")


def shorten_arm_names(arms: Sequence[str]) -> dict[str, str]:
    """Shorten arm names: drop the settings that all arms of the same recipe share."""
    settings = {arm: (arm.partition(":")[0], arm.partition(":")[2].split(",")) for arm in arms}
    out = {}
    for arm, (recipe, own) in settings.items():
        kin = [theirs for other, (theirs_of, theirs) in settings.items() if theirs_of == recipe and other != arm]
        telling = [s for s in own if s and not (kin and all(s in theirs for theirs in kin))]
        out[arm] = f"{recipe}: {', '.join(s.removeprefix('options.') for s in telling)}" if telling else recipe
    return out
