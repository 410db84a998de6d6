"""Print and write the results of a comparison: tables for the terminal, compare.md, compare.json, compare.svg.

Arms and errors are the user's text: they are never read as markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from milonga.charts import join_charts, make_standalone
from milonga.comparing.results import examine_machines
from milonga.report.blocks import Sheet
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
LONG_WORD = 12
"""Letters of a word in a head that is never broken; longer ones are parts of an arm's name."""
FEW = 8
"""Least columns for the names of arms."""
ENDLESS = 10_000
"""Columns in which any table has all its columns on one line."""


def print_tables(result: Result, console: Console) -> None:
    """Print the verdict, the tables and the remarks, also on what hangs on the machine. A narrow terminal gets the columns that
    matter most."""
    piped = not console.is_terminal
    console.print(describe_comparison(result), markup=False, highlight=False, soft_wrap=piped)
    cut = console.width < WIDE
    for sheet in build_sheets(shorten_arms(result)):
        chosen = [at for at, name in enumerate(sheet.head) if not (cut and name in DETAILS)]
        console.print(_lay_out(sheet, chosen, cut, console), crop=False)
    for text in list_remarks({**result, "health": [*result.get("health", ()), *examine_machines(result)]}):
        console.print(text, markup=False, highlight=False, soft_wrap=piped)
    files = f"{result['out']}/compare.json, compare.md, compare.svg and report.html"
    more = f"results ({', '.join(DETAILS)} too)" if cut else "results"
    console.print(f"{more}: {files}", markup=False, highlight=False, soft_wrap=True)


def _lay_out(sheet: Sheet, chosen: Sequence[int], plain: bool, console: Console) -> Table:
    """Lay out some columns of a table. Only names of arms may be broken: half a number is another number. Where all columns do
    not fit on one line each, their heads are broken between words, and names get the room that is left, or a little beyond the
    edge."""
    table = Table(title=Text(sheet.title), title_justify="left", box=None if plain else HEAVY_HEAD)
    for at in chosen:
        table.add_column(Text(sheet.head[at]), justify="right" if at else "left", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(row[at]) for at in chosen))
    if Measurement.get(console, console.options.update(width=ENDLESS), table).maximum > console.width:
        arms, *others = table.columns
        for column, at in zip(others, chosen[1:], strict=True):
            words = [word for word in sheet.head[at].split() if len(word) <= LONG_WORD]
            column.width = max(map(len, [*words, *(row[at] for row in sheet.rows)]))
        borders = 2 * len(chosen) + (0 if plain else len(chosen) + 1)
        taken = borders + sum(column.width or 0 for column in others)
        arms.max_width = max(FEW, console.width - taken)
        if taken + FEW > console.width:  # lines run over the edge, for what would be cut is a number
            table.width = taken + FEW
    return table


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
