"""What a comparison shows and leaves behind: tables for the terminal, compare.md, compare.json, compare.png.

Arms and errors are text of the user's: they are never read as markup. matplotlib is optional, imported only to draw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from milonga.run.files import disk_errors, to_json, write_atomically
from milonga.text import amount, number

Result = Mapping[str, Any]
DRAWN = ("eval/generator/accuracy", "eval/generator/sound_accuracy")
AXIS_NAMES = {"lead_turn": "turns of the generator", "compute/tokens": "tokens", "compute/flops": "FLOPs"}
NO_PLOT = "no plot: it needs matplotlib: pip install 'milonga[plot]'"


@dataclass(frozen=True)
class Sheet:
    """A table before it is dressed for a terminal or a page."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def sheets(result: Result) -> list[Sheet]:
    metrics = dict.fromkeys(metric for arm in result["arms"].values() for metric in arm["metrics"])
    order = [result["metric"], *(metric for metric in metrics if metric != result["metric"])]
    return [costs(result), *(outcomes(result, metric) for metric in order)]


def costs(result: Result) -> Sheet:
    """What each arm used, so that nothing it got on top goes unnoticed."""
    target = number(result["target"])
    head = ("arm", "seeds", "lead turns", "all turns", "tokens", "FLOPs", f"lead turns to reach {target}")
    rows = [
        (
            name + (" (reference)" if name == result["reference"] and result["match"] != "turns" else ""),
            str(len(arm["runs"])),
            *(amount(arm[cost]) for cost in ("lead_turns", "turns", "tokens", "flops")),
            "not reached" if arm["turns_to_reach"] is None else amount(arm["turns_to_reach"]),
        )
        for name, arm in result["arms"].items()
    ]
    return Sheet(f"What each arm used (mean over seeds; {result['match']} matched)", head, rows)


def outcomes(result: Result, metric: str) -> Sheet:
    found = {difference["arm"]: difference for difference in result["differences"] if difference["metric"] == metric}
    areas = {d["arm"]: d for d in result["differences"] if d["metric"] == f"area of {metric}"}
    rows = [
        (
            name,
            *measured(arm["metrics"][metric]),
            area_judged(areas.get(name)),
            *(judged(found[name]) if name in found else empty(name, result)),
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
    return Sheet(f"{metric} on {result['split']}, 95 % intervals over seeds", head, rows)


def measured(values: Mapping[str, Any]) -> tuple[str, str]:
    half = "" if values["interval"] is None else f" ± {(values['interval'][1] - values['interval'][0]) / 2:.3f}"
    return number(values["final"]) + half, number(values["area"])


def judged(difference: Mapping[str, Any]) -> tuple[str, ...]:
    """With the smallest effect that could have been seen beside every "undecided"."""
    said = difference["verdict"]
    seen = number(difference["smallest_effect"]) if said == "undecided" else ""
    mean = f"{difference['mean']:+.3f} {interval(difference['interval'])}".strip()
    return mean, interval(difference["problems"]) or "—", chance(difference["p_holm"]), said, seen


def area_judged(difference: Mapping[str, Any] | None) -> str:
    if difference is None:
        return ""
    said = "" if difference["verdict"] == "undecided" else f" {difference['verdict']}"
    return f"{difference['mean']:+.3f} {interval(difference['interval'])}".strip() + said


def empty(name: str, result: Result) -> tuple[str, ...]:
    return ("baseline" if name == result["baseline"] else "—", "", "", "", "")


def chance(value: float | None) -> str:
    return "<0.001" if value is not None and value < 0.001 else number(value)


def interval(value: Sequence[float] | None) -> str:
    return "" if value is None else f"[{value[0]:+.3f}, {value[1]:+.3f}]"


def remarks(result: Result) -> list[str]:
    """What must be said beside the tables."""
    runs = [f"failed: {run['arm']} seed {run['seed']}: {run['error']}" for run in result["failed"]]
    return [*runs, *result["notes"]]


def print_report(result: Result, console: Console) -> None:
    for sheet in sheets(result):
        table = Table(title=Text(sheet.title), title_justify="left")
        for column, name in enumerate(sheet.head):
            table.add_column(Text(name), justify="right" if column else "left", overflow="fold")
        for row in sheet.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
    for text in remarks(result):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"results: {result['out']}/compare.json and compare.md", markup=False, highlight=False, soft_wrap=True)
    drawn = f"plot: {result['out']}/{result['plot']}" if result["plot"] else NO_PLOT
    console.print(drawn, markup=False, highlight=False, soft_wrap=True)


def to_markdown(result: Result) -> str:
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    task = ", ".join(f"{key}={value}" if key != "name" else str(value) for key, value in result["task"].items())
    parts = [f"# {plain(', '.join(result['arms']))}\n\nTask: {plain(task)}. Seeds: {seeds}.\n"]
    for sheet in sheets(result):
        lines = [sheet.head, ["---"] * len(sheet.head), *sheet.rows]
        table = "\n".join(
            "| " + " | ".join(plain(cell) if row is not lines[1] else cell for cell in row) + " |" for row in lines
        )
        parts.append(f"## {plain(sheet.title)}\n\n{table}\n")
    parts += [f"- {plain(text)}\n" for text in remarks(result)]
    if result["plot"]:
        parts.append(f"![curves]({result['plot']})\n")
    return "\n".join(parts)


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    line = " ".join(text.split())
    return "".join("\\" + c if c in "\\|*_`<>[]#" else c for c in line)


def write_report(result: dict[str, Any], out: Path) -> None:
    """compare.png where it can be drawn, compare.md and compare.json."""
    result["plot"] = "compare.png" if draw(result, out / "compare.png") else None
    write_atomically(out / "compare.md", to_markdown(result))
    write_atomically(out / "compare.json", json.dumps(json.loads(to_json(result)), indent=1) + "\n")


def draw(result: Result, path: Path) -> bool:
    """The mean curves of all arms, each with the band of its t interval; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
    except ImportError:
        return False
    chosen = result["metric"]
    others = [m for m in DRAWN if m != chosen and any(m in arm["metrics"] for arm in result["arms"].values())]
    shown = [chosen, *others]
    figure = Figure(figsize=(5.5 * len(shown), 4.4), layout="constrained")
    short = short_names(list(result["arms"]))
    for place, metric in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), place + 1)
        for at, arm in enumerate(result["arms"].values()):
            if metric not in arm["metrics"]:
                continue
            curve = arm["metrics"][metric]["curve"]
            axes.plot(curve["x"], curve["mean"], f"C{at}o-", markersize=3)
            low, high = (np.array(curve[side]) for side in ("low", "high"))
            # A share lies between 0 and 1, however few seeds its interval comes from.
            edges = np.clip((low, high), 0, 1) if metric in DRAWN else (low, high)
            axes.fill_between(curve["x"], *edges, color=f"C{at}", alpha=0.2)
        axes.set_title(f"{metric} ({result['split']})")
        axes.set_xlabel(AXIS_NAMES[result["axis"]])
        axes.grid(alpha=0.3)
    lines = [Line2D([], [], color=f"C{at}", label=short[name].replace("$", r"\$")) for at, name in enumerate(short)]
    figure.legend(handles=lines, loc="outside lower left", ncols=max(1, min(len(lines), 80 // max(map(len, short.values())))))
    with disk_errors(path):
        figure.savefig(path, dpi=120)
    return True


def short_names(arms: Sequence[str]) -> dict[str, str]:
    """What tells each arm from the others: settings that all arms of its recipe share say nothing."""
    settings = {arm: (arm.partition(":")[0], arm.partition(":")[2].split(",")) for arm in arms}
    out = {}
    for arm, (recipe, own) in settings.items():
        kin = [theirs for other, (theirs_of, theirs) in settings.items() if theirs_of == recipe and other != arm]
        telling = [s for s in own if s and not (kin and all(s in theirs for theirs in kin))]
        out[arm] = f"{recipe}: {', '.join(s.removeprefix('options.') for s in telling)}" if telling else recipe
    return out
