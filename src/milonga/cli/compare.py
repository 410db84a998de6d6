"""The body of `milonga compare`: plan, run, show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from milonga.cli.stopped import say_how_to_go_on
from milonga.runfolder.console import SafeConsole

if TYPE_CHECKING:
    from milonga.comparing.arms import Comparison


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
        said = _describe_plan(comparison)
        console.file.write(to_toml(comparison.record()) + "".join(f"# {line}\n" for line in said))
        return {"comparison": comparison.record(), "plan": said}
    folder = out if out is not None else api.choose_run_folder("compare")
    with say_how_to_go_on(*([] if out is not None else ["--out", str(folder)])):
        result = run_planned_comparison(comparison, folder, jobs)
    # A pipe or a file is as wide as it needs to be.
    print_tables(result, console if console.is_terminal else SafeConsole(width=200, stderr=console.stderr))
    return result


def _describe_plan(comparison: Comparison) -> list[str]:
    """Say what would be run and for how long, after the config of everything."""
    arms, seeds = [arm.name for arm in comparison.arms], ", ".join(map(str, comparison.seeds))
    lines = [
        f"{len(arms) * len(comparison.seeds)} runs: {', '.join(arms)}; seeds {seeds}",
        f"differences to {comparison.baseline} in {comparison.metric}, {comparison.match} matched",
    ]
    for arm in comparison.arms:
        if comparison.match == "turns" or arm is comparison.reference:
            long = arm.plan.describe_turns() or f"{arm.turns} turns"
        else:
            long = f"until it has used the {comparison.match} of {comparison.reference.name} with its seed"
        lines.append(f"{arm.name}: {long}")
    return lines
