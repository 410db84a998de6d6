"""The body of `milonga eval`: evaluate a run, and print the results as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from milonga.cli.views import print_metrics
from milonga.evals.suites import SUITES, Suite
from milonga.report.curves import TITLES
from milonga.runfolder.record import HEADLINE
from milonga.text import escape_invisible, format_number

Report = dict[str, Any]
FACTS = ("run", "recipe", "turn", "split")
"""What was evaluated, beside what was measured."""


def run_evaluation(
    folder: str, suite: str | None, plot: Path | None, console: Console, everything: bool, **options: Any
) -> Report:
    """Evaluate a run and print the results. Options that were not given are None, or empty lists if they may be repeated."""
    from milonga import api

    given = {key: value for key, value in options.items() if value not in (None, [])}
    report = api.evaluate(folder, suite, plot=plot, **given)
    if suite is None:
        _print_measured(report, console, everything)
    else:
        _print_finding(report, SUITES.get(suite), console)
    if plot is not None:
        console.print(f"chart: {escape(str(plot))}", soft_wrap=True)
    return report


def _print_measured(report: Report, console: Console, everything: bool) -> None:
    """Print what an evaluation measured: what has a name in words, unless all is asked for or nothing has one."""
    words = dict(TITLES) | {f"eval/{metric}": label for label, metric in HEADLINE}
    named = [key for key in report if f"eval/{key}" in words and report[key] is not None]
    if everything or not named:
        print_metrics(report, console)
        return
    table = Table("metric", "value", "")
    for key in (*FACTS, *named):
        table.add_row(escape(key), escape(format_number(report[key])), words.get(f"eval/{key}", ""))
    console.print(table)
    console.print(f"all {len(report) - len(FACTS)} metrics: --all, or --json", highlight=False)


def _print_finding(report: Report, suite: type[Suite], console: Console) -> None:
    """Print the overall results one per line, and the rows as a table, without its empty columns."""
    for key, value in report.items():
        if key not in ("options", "rows"):
            console.print(f"{escape_invisible(key)}: {_format_figure(value)}", markup=False, soft_wrap=True)
    rows = suite.select_rows(report["rows"])
    shown = [name for name in suite.select_columns(rows) if any(row.get(name) is not None for row in rows)]
    title = "in per cent" if suite.percent else None
    table = Table(title=title, title_justify="left")
    for name in shown:
        table.add_column(escape(_format_heading(name)), overflow="fold")
    for row in rows:
        table.add_row(*(escape(escape_invisible(_format_cell(row, name, suite.percent))) for name in shown))
    console.print(table)


def _format_heading(name: str) -> str:
    return name.replace("trivial/", "trivial ").replace("_", " ")


def _format_cell(row: Mapping[str, Any], name: str, percent: bool = False) -> str:
    """Format a value of a row, with its interval if it has one."""
    value, low, high = (
        f"{100 * v:.1f}" if percent and isinstance(v := row.get(name + end), float) else format_number(row.get(name + end))
        for end in ("", "_low", "_high")
    )
    return value if row.get(f"{name}_low") is None else f"{value} [{low}, {high}]"


def _format_figure(value: Any) -> str:
    """Format an overall result; a mapping as names with values."""
    if isinstance(value, Mapping):
        return ", ".join(f"{escape_invisible(str(key))} {format_number(inner)}" for key, inner in value.items())
    return escape_invisible(format_number(value))
