"""The body of `milonga compare`: plan, run, show."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from milonga.cli.notices import print_line
from milonga.interrupts import get_exit_code
from milonga.runfolder.console import SafeConsole


def run_comparison(
    recipes: Sequence[str],
    *,
    out: Path | None,
    jobs: int | None,
    dry_run: bool,
    console: Console,
    settings: Sequence[Mapping[str, Any]],
    **asked: Any,
) -> dict[str, Any]:
    """Plan and run a comparison, and print its tables. Return what `--json` prints; with `dry_run` that is the plan."""
    from milonga import api
    from milonga.comparing.arms import plan_comparison
    from milonga.comparing.comparison import run_planned_comparison
    from milonga.comparing.tables import print_tables
    from milonga.config import to_toml

    comparison = plan_comparison(recipes, settings=settings, **asked)
    if dry_run:
        console.file.write(to_toml(comparison.record()))
        return {"comparison": comparison.record()}
    folder = out if out is not None else api.choose_run_folder("compare")
    try:
        result = run_planned_comparison(comparison, folder, jobs)
    except KeyboardInterrupt as error:
        print_line(f"stopped; the same command with --out {folder} goes on from there")
        sys.exit(get_exit_code(error))  # past the handler of all commands, whose advice is for single runs
    # A pipe or a file is as wide as it needs to be.
    print_tables(result, console if console.is_terminal else SafeConsole(width=140, stderr=console.stderr))
    return result
