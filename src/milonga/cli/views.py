"""Print summaries, listings, curves and transcripts. Model output is always escaped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from milonga.errors import ConfigError, suggest_name
from milonga.runfolder.record import HEADLINE, read_record
from milonga.text import escape_invisible, format_number

if TYPE_CHECKING:
    from milonga.systems.index import System

BLOCKS = " ▁▂▃▄▅▆▇█"


def print_summary(report: dict[str, Any], console: Console) -> None:
    table = Table("", "before", "after", title=f"{report['recipe']}, {report['turns']} turns", title_justify="left")
    own = report["generator"]["reward"]
    if own != report["generator"]["accuracy"]:  # otherwise right and wrong answers are the reward
        table.add_row("generator reward (sampled)", format_number(own["start"]), format_number(own["end"]))
    for label, metric in HEADLINE:
        value: Any = report
        for key in metric.split("/"):
            value = value[key]
        if value["start"] is not None or value["end"] is not None:
            table.add_row(label, format_number(value["start"]), format_number(value["end"]))
    console.print(table)
    run = escape(report["run"])
    console.print(f"run folder: {run}  (models to keep: {run}/models)", soft_wrap=True)
    console.print(f"report: {run}/report.html", soft_wrap=True)
    console.print("what to try next:")
    console.print(f"  milonga show {run}", soft_wrap=True)
    console.print(f"  milonga eval {run} --split test", soft_wrap=True)
    console.print("  milonga compare tango grpo frozen --seeds 5")


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
        return [*rows, {"name": "file.py:Class", "family": "your own"} | dict.fromkeys(list(rows[0])[2:], "")]
    if kind == "tasks":
        rows = [
            {"name": n, "steps": "exact" if TASKS.get(n).knows_steps else "unknown", "what": first_line(TASKS.get(n))}
            for n in TASKS
        ]
        gym = {"name": "reasoning_gym:NAME", "steps": "unknown", "what": "Any procedural set of reasoning-gym."}
        own = {"name": "file.py:attribute", "steps": "as it says", "what": "Your own: a Task class or a function."}
        return [*rows, gym, own]
    if kind == "roles":
        for name in RECIPES:
            RECIPES.get(name)  # a system's own roles are registered with it
        return [{"name": n, "what": first_line(ROLES.get(n))} for n in ROLES]
    if kind == "objectives":
        fields = ("advantage", "ratio", "clip", "aggregate")
        return [{"name": n, **{f: str(getattr(PRESETS.get(n), f)) for f in fields}} for n in PRESETS]
    if kind == "suites":
        suites = [SUITES.get(name) for name in SUITES]
        return [{"name": s.name, "options": ", ".join(s.Options.model_fields), "what": first_line(s)} for s in suites]
    raise ConfigError(f"unknown kind '{kind}': {suggest_name(kind, ['recipes', 'tasks', 'roles', 'objectives', 'suites'])}")


def first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def escape_for_terminal(text: str) -> str:
    """Escape untrusted text for the terminal: no markup, and no control characters."""
    return escape(escape_invisible(text, lines=True))


def print_listing(kind: str, rows: list[dict[str, str]], console: Console) -> None:
    table = Table(title=kind, title_justify="left")
    for at, key in enumerate(rows[0]):
        table.add_column(key, no_wrap=at == 0, min_width=max(len(row[key]) for row in rows) if at == 0 else None)
    for row in rows:
        table.add_row(*(escape(value) for value in row.values()))
    console.print(table)


def _draw_sparkline(values: list[float]) -> str:
    """Draw a curve as a sparkline, one line of text."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BLOCKS[1 + round((v - low) / span * (len(BLOCKS) - 2))] for v in values)


def show_run(folder: Path, transcripts: int, console: Console) -> None:
    from milonga.runfolder.flow import compute_reward_flow

    record = read_record(folder)
    config = record.config
    console.print(f"[bold]{escape(config.recipe)}[/bold] on {escape(str(config.task['name']))}, turn {record.last['turn']}")
    table = Table(Column("metric", no_wrap=True, overflow="fold"), "start", "now", Column("curve", no_wrap=True))
    for key in sorted(record.metrics("eval/", "rollouts/", "learn/", "credit/")):
        values = record.get_curve(key)[1]
        if len(values) > 1:
            table.add_row(escape(key), format_number(values[0]), format_number(values[-1]), _draw_sparkline(values[-16:]))
    console.print(table)
    for (source, policy), share in compute_reward_flow(record.rows).items():
        console.print(f"  {escape(policy)} had {share:.0%} of its credit from {escape(source)}", highlight=False)
    _show_matrix(folder, console)
    _show_transcripts(folder, transcripts, console)


def _show_matrix(folder: Path, console: Console) -> None:
    """Print verifiers and generators of all checkpoints against each other, if they were measured."""
    from milonga.runfolder.matrix import FIGURES, read_matrix

    found = read_matrix(folder)
    if found is None:
        return
    for figure, title in FIGURES.items():
        table = Table(*found.list_head(), title=title, title_justify="left")
        for row in found.list_rows(figure, intervals=False):
            table.add_row(*row)
        console.print(table)


def _show_transcripts(folder: Path, count: int, console: Console) -> None:
    """Print the last saved solutions with the verdict and, if known, the true label beside each step."""
    from milonga.runfolder.folder import read_config
    from milonga.runfolder.transcripts import read_transcripts

    if count <= 0:
        return
    for one in read_transcripts(folder, read_config(folder))[-count:]:
        console.rule(escape_for_terminal(one.id), align="left")
        console.print(escape_for_terminal(one.question))
        for step in one.steps:
            said = {None: "", True: "[green]✓[/green]", False: "[red]✗[/red]"}[step.verdict]
            true = {None: "", True: "right", False: "wrong"}[step.truth]
            console.print(f"  {escape_for_terminal(step.text):<40} {said:<3} [dim]{true}[/dim]", highlight=False)
        answer = "no answer" if one.answer is None else f"answer {escape_for_terminal(one.answer)}"
        grade = {True: "right", False: "wrong", None: "could not be graded"}[one.correct]
        final = {True: "right", False: "wrong", None: "nothing readable"}[one.says_right]
        console.print(f"  {answer}: {grade}" + (f"; verifier says {final}" if one.checked else ""), highlight=False)
        if one.invalid:
            console.print(f"  [dim]as it was written:[/dim] {escape_for_terminal(one.text)}", highlight=False)
