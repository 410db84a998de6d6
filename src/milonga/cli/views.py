"""Print summaries and listings."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from milonga.cli.show import list_next_steps, print_health, print_next_steps, print_text
from milonga.errors import ConfigError, suggest_name
from milonga.health import examine
from milonga.runfolder.record import HEADLINE, read_record
from milonga.text import escape_invisible, format_number

if TYPE_CHECKING:
    from milonga.systems.index import System


def print_summary(report: dict[str, Any], folder: Path, console: Console) -> None:
    """Print what a run came to, and what to do next. `folder` is where the run is now, which need not be where its report was
    written."""
    table = Table("", "before", "after", title=f"{report['recipe']}, {report['turns']} turns", title_justify="left")
    own = report["generator"]["reward"]
    if own != report["generator"]["accuracy"]:  # otherwise right and wrong answers are the reward
        table.add_row("generator reward (sampled)", format_number(own["start"]), format_number(own["end"]))
    for label, metric in HEADLINE:
        value: Any = report
        for key in metric.split("/"):
            value = value.get(key, {})  # not every recipe measures all
        if value.get("start") is not None or value.get("end") is not None:
            table.add_row(label, format_number(value["start"]), format_number(value["end"]))
    if table.row_count:
        console.print(table)
    else:
        print_text(console, f"{report['recipe']}, {report['turns']} turns; nothing was measured on held-out problems")
    record = read_record(folder)
    findings = examine(record)
    print_health(findings, console)
    print_text(console, f"run folder: {folder}  (models to keep: {folder}/models)")
    print_text(console, f"report: {folder}/report.html")
    print_next_steps([f"milonga show {shlex.quote(str(folder))}", *list_next_steps(record, findings)], console)


def complete_report(report: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Complete a run's report, which is the same on every machine, by what depends on this one: where the run is now, all that
    is wrong with its health, a slow grader too, and what to do next."""
    record = read_record(folder)
    findings = examine(record)
    here = {"run": str(folder), "health": [one.to_json() for one in findings], "next": list_next_steps(record, findings)}
    return report | here


def print_metrics(metrics: dict[str, Any], console: Console) -> None:
    table = Table("metric", "value")
    for key, value in metrics.items():
        table.add_row(escape(key), escape(format_number(value)))
    console.print(table)


def _list_system(system: System) -> dict[str, str]:
    """Make the row of one system in `milonga list recipes`."""
    from milonga.recipe import ALLOWED
    from milonga.systems.index import RECIPES

    recipe = RECIPES.get(system.name)
    return {
        "name": system.name,
        "what": system.line,
        "family": system.family,
        "rewards": recipe.granularity,
        "needs": recipe.truth,
        "bindings": ", ".join(binding for binding, permission in recipe.bindings.items() if permission == ALLOWED),
        "paper": system.paper or "our own",
    }


def list_registry(kind: str) -> list[dict[str, str]]:
    """List the rows of `milonga list KIND`."""
    from milonga.evals.suites import SUITES
    from milonga.objectives import PRESETS
    from milonga.roles import ROLES
    from milonga.systems.index import RECIPES, SYSTEMS
    from milonga.tasks import TASKS

    if kind == "recipes":
        rows = [_list_system(system) for system in SYSTEMS]
        return [*rows, dict.fromkeys(rows[0], "") | {"name": "file.py:Class", "what": "Your own"}]
    if kind == "tasks":
        rows = [
            {"name": n, "steps": "exact" if TASKS.get(n).knows_steps else "unknown", "what": first_sentence(TASKS.get(n))}
            for n in TASKS
        ]
        gym = {"name": "reasoning_gym:NAME", "steps": "unknown", "what": "Any procedural set of reasoning-gym."}
        own = {"name": "file.py:attribute", "steps": "as it says", "what": "Your own: a Task class or a function."}
        return [*rows, gym, own]
    if kind == "roles":
        for name in RECIPES:
            RECIPES.get(name)  # a system's own roles are registered with it
        return [{"name": n, "what": first_sentence(ROLES.get(n))} for n in ROLES]
    if kind == "objectives":
        fields = ("advantage", "ratio", "clip", "aggregate")
        return [{"name": n, **{f: str(getattr(PRESETS.get(n), f)) for f in fields}} for n in PRESETS]
    if kind == "suites":
        suites = [SUITES.get(name) for name in SUITES]
        return [{"name": s.name, "options": ", ".join(s.Options.model_fields), "what": first_sentence(s)} for s in suites]
    if kind in ("run", "runs"):
        raise ConfigError("runs are listed by 'milonga board FOLDER', in a browser; 'milonga show RUN' describes one")
    raise ConfigError(f"unknown kind '{kind}': {suggest_name(kind, ['recipes', 'tasks', 'roles', 'objectives', 'suites'])}")


def first_sentence(thing: Any) -> str:
    """The first sentence of what a class says of itself."""
    paragraph = " ".join((thing.__doc__ or "").strip().partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


def print_listing(kind: str, rows: list[dict[str, str]], console: Console, all_: bool = False) -> None:
    """Print names with what they are; with `all_` all that is known of each, in a paragraph."""
    told = [key for key in rows[0] if key not in ("name", "what")]
    if all_ and "what" in rows[0]:
        for row in rows:
            print_text(console, (row["name"], "bold"), f": {row['what']}")
            if more := "; ".join(f"{key}: {row[key]}" for key in told if row[key]):
                console.print(Padding(Text(escape_invisible(more)), (0, 0, 0, 2)))
        return
    shown = ["name", "what"] if "what" in rows[0] else list(rows[0])
    table = Table(title=kind, title_justify="left", box=None if "what" in shown else HEAVY_HEAD)
    table.add_column("name", no_wrap=True, min_width=max(len(row["name"]) for row in rows))
    for key in shown[1:]:
        table.add_column(key, overflow="fold")
    for row in rows:
        table.add_row(*(escape(row[key]) for key in shown))
    console.print(table)
    if len(shown) < len(rows[0]):
        print_text(console, f"{', '.join(told)}: --all")
