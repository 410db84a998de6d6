"""Print and write the results of a comparison: tables for the terminal, compare.md, compare.json, compare.png.

Arms and errors are the user's text: they are never read as markup. matplotlib is optional, imported only to draw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from milonga.errors import format_install_hint
from milonga.report.markdown import escape_markdown, render_table
from milonga.report.sheets import AXIS_NAMES, build_sheets, list_remarks, shorten_arm_names
from milonga.runfolder.files import to_json, translate_disk_errors, write_atomically

Result = Mapping[str, Any]
DRAWN = ("eval/generator/accuracy", "eval/generator/sound_accuracy")
NO_PLOT = f"no plot: it needs matplotlib: {format_install_hint('plot')}"


def print_tables(result: Result, console: Console) -> None:
    for sheet in build_sheets(result):
        table = Table(title=Text(sheet.title), title_justify="left")
        for column, name in enumerate(sheet.head):
            table.add_column(Text(name), justify="right" if column else "left", overflow="fold")
        for row in sheet.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
    for text in list_remarks(result):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"results: {result['out']}/compare.json and compare.md", markup=False, highlight=False, soft_wrap=True)
    drawn = f"plot: {result['out']}/{result['plot']}" if result["plot"] else NO_PLOT
    console.print(f"report: {result['out']}/report.html", markup=False, highlight=False, soft_wrap=True)
    console.print(drawn, markup=False, highlight=False, soft_wrap=True)


def to_markdown(result: Result) -> str:
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    task = ", ".join(f"{key}={value}" if key != "name" else str(value) for key, value in result["task"].items())
    parts = [f"# {escape_markdown(', '.join(result['arms']))}\n\nTask: {escape_markdown(task)}. Seeds: {seeds}.\n"]
    parts += [f"## {escape_markdown(sheet.title)}\n\n{render_table(sheet)}\n" for sheet in build_sheets(result)]
    parts += [f"- {escape_markdown(text)}\n" for text in list_remarks(result)]
    if result["plot"]:
        parts.append(f"![curves]({result['plot']})\n")
    return "\n".join(parts)


def write_results(result: dict[str, Any], out: Path) -> None:
    """Write compare.png if it can be drawn, compare.md and compare.json."""
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
    short = shorten_arm_names(list(result["arms"]))
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
    with translate_disk_errors(path):
        figure.savefig(path, dpi=120)
    return True
