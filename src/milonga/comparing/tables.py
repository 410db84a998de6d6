"""Print and write the results of a comparison: tables for the terminal, compare.md, compare.json, compare.svg.

Arms and errors are the user's text: they are never read as markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from milonga.charts import join_charts, make_standalone
from milonga.report.comparisons import build_metric_figure
from milonga.report.markdown import escape_markdown, render_table
from milonga.report.sheets import AXIS_NAMES, build_sheets, list_remarks, shorten_arm_names
from milonga.runfolder.files import to_json, write_atomically

Result = Mapping[str, Any]
DRAWN = ("eval/generator/accuracy", "eval/generator/sound_accuracy")
"""Metrics that the plot shows beside the one that was chosen."""


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
    files = f"{result['out']}/compare.json, compare.md, compare.svg and report.html"
    console.print(f"results: {files}", markup=False, highlight=False, soft_wrap=True)


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
