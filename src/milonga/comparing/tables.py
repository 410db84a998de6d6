"""Print and write the results of a comparison: tables for the terminal, compare.md, compare.json, compare.svg.

Arms and errors are the user's text: they are never read as markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from milonga.charts import join_charts, make_standalone
from milonga.report.comparisons import build_metric_figure
from milonga.report.markdown import escape_markdown, render_table
from milonga.report.sheets import AXIS_NAMES, build_sheets, list_remarks, shorten_arm_names
from milonga.report.verdicts import describe_comparison
from milonga.runfolder.files import to_json, write_atomically

Result = Mapping[str, Any]
DRAWN = ("eval/generator/accuracy", "eval/generator/sound_accuracy")
"""Metrics that the plot shows beside the one that was chosen."""
WIDE = 160
"""Columns of a terminal from which on all columns of a table are printed."""
DETAILS = ("area", "its difference", "over problems", "could see")
"""Columns that a narrower one leaves to the files."""


def print_tables(result: Result, console: Console) -> None:
    """Print the verdict, the tables and the remarks. A narrow terminal gets the columns that matter most."""
    console.print(describe_comparison(result), markup=False, highlight=False)
    cut = console.width < WIDE
    for sheet in build_sheets(shorten_arms(result)):
        chosen = [at for at, name in enumerate(sheet.head) if not (cut and name in DETAILS)]
        table = Table(title=Text(sheet.title), title_justify="left", box=None if cut else HEAVY_HEAD)
        for at in chosen:
            # Only names of arms may be broken: half a number is another number.
            words = [row[at] for row in sheet.rows] + sheet.head[at].split()
            least = max(map(len, words)) if at else None
            table.add_column(Text(sheet.head[at]), justify="right" if at else "left", overflow="fold", min_width=least)
        for row in sheet.rows:
            table.add_row(*(Text(row[at]) for at in chosen))
        console.print(table)
    for text in list_remarks(result):
        console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    files = f"{result['out']}/compare.json, compare.md, compare.svg and report.html"
    more = f"results ({', '.join(DETAILS)} too)" if cut else "results"
    console.print(f"{more}: {files}", markup=False, highlight=False, soft_wrap=True)


def shorten_arms(result: Result) -> dict[str, Any]:
    """A result whose arms have their short names; where nothing shorter tells them apart these are the same."""
    short = shorten_arm_names(list(result["arms"]))
    return {
        **result,
        "arms": {short[name]: arm for name, arm in result["arms"].items()},
        "differences": [one | {"arm": short.get(one["arm"], one["arm"])} for one in result["differences"]],
        **{key: short[result[key]] for key in ("reference", "baseline")},
    }


def to_markdown(result: Result) -> str:
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    task = ", ".join(f"{key}={value}" if key != "name" else str(value) for key, value in result["task"].items())
    parts = [f"# {escape_markdown(', '.join(result['arms']))}\n\nTask: {escape_markdown(task)}. Seeds: {seeds}.\n"]
    parts += [f"## {escape_markdown(sheet.title)}\n\n{render_table(sheet)}\n" for sheet in build_sheets(result)]
    parts += [f"- {escape_markdown(text)}\n" for text in list_remarks(result)]
    parts.append("![curves](compare.svg)\n")
    return "\n".join(parts)


def write_results(result: Result, out: Path) -> None:
    write_atomically(out / "compare.svg", draw(result))
    write_atomically(out / "compare.md", to_markdown(result))
    write_atomically(out / "compare.json", json.dumps(json.loads(to_json(dict(result))), indent=1) + "\n")


def draw(result: Result) -> str:
    """The mean curves of all arms, each with the band of its t interval, as an SVG file."""
    short = shorten_arm_names(list(result["arms"]))
    arms = {short[name]: arm["metrics"] for name, arm in result["arms"].items()}
    axis = f"{AXIS_NAMES[result['axis']]} ({result['split']})"
    figures = [build_metric_figure(metric, arms, axis) for metric in dict.fromkeys([result["metric"], *DRAWN])]
    return make_standalone(join_charts([one.svg for one in figures if one is not None]))
