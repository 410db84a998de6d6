"""The body of `milonga show`, and what `milonga run` says at its end: headline, health, curves that matter, what to do next.

Invariant: what models wrote is printed as it was written, but for characters that a terminal would act upon.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from milonga.cli.words import COUNTED, title_metric
from milonga.health import Finding, examine
from milonga.report.verdicts import describe_run
from milonga.runfolder.console import ENDLESS, make_text, render_finding
from milonga.runfolder.flow import compute_credit
from milonga.runfolder.locks import is_at_work
from milonga.runfolder.matrix import FIGURES, read_matrix
from milonga.runfolder.record import Record, read_record
from milonga.runfolder.transcripts import Transcript, read_transcripts
from milonga.systems.index import CLAIMS, RECIPES
from milonga.text import escape_invisible, format_number

BLOCKS = " ▁▂▃▄▅▆▇█"
WIDTH = 16
"""Most points of a sparkline; of a longer curve each is the mean of as many values."""
MOST_CURVES = 3
MATTERS = (
    *("eval/generator/accuracy", "eval/verifier/f1", "eval/hacking_gap", "eval/verifier/balanced_accuracy"),
    *("rollouts/generator/accuracy", "learn/generator/entropy"),
)
"""Metrics that matter for most recipes, the first ones most."""
PAID = ("eval/generator/reward", "rollouts/generator/reward")
"""Those that matter more where reward functions of the user's own pay."""
NEVER = ("/reward", *(f"/{what}" for what in COUNTED))
"""How the metrics end that are shown only where they are asked for."""
SET = "--set "
MOST_REASONS = 5
KINDS = ("eval/", "rollouts/", "learn/", "credit/")


def print_text(console: Console, *parts: str | tuple[str, str], wrap: bool = False) -> None:
    """Print text that may be anybody's in one paragraph: no part of it is markup, and control characters are escaped. A part
    may come with a style. Sentences may be wrapped to a terminal's width; what is copied, or was written by a model, is not."""
    console.print(make_text(*parts), soft_wrap=not (wrap and console.is_terminal))


def draw_sparkline(values: Sequence[float]) -> str:
    """Draw a whole curve as a sparkline, one line of text."""
    points = [float(part.mean()) for part in np.array_split(np.asarray(values), min(WIDTH, len(values)))]
    low, high = min(points), max(points)
    span = (high - low) or 1.0
    return "".join(BLOCKS[1 + round((v - low) / span * (len(BLOCKS) - 2))] for v in points)


def choose_curves(record: Record) -> list[str]:
    """Choose the curves to show: of those that matter, what has a curve before what has one value."""
    known = record.curves
    found = [metric for metric in list_candidates(record) if metric in known]
    return sorted(found, key=lambda metric: len(known[metric][1]) < 2)[:MOST_CURVES]


def list_candidates(record: Record) -> list[str]:
    """List the metrics that matter for a recipe: accuracy, what its claim is about, what it measures itself, what matters for
    most, and what else was measured but for counts."""
    wanted = [*(PAID if record.config.rewards else ()), MATTERS[0]]
    if (name := record.config.recipe) in CLAIMS:
        wanted.append(CLAIMS.get(name).metric)
    if name in RECIPES:  # one of the user's own is not loaded to look at a run
        own: Any = RECIPES.get(name).measures  # a property where they follow from the options
        wanted += [f"eval/{metric}" for metric in own] if isinstance(own, tuple) else []
    wanted += MATTERS[1:]
    wanted += [metric for metric in record.metrics("eval/") if not metric.endswith(NEVER)]
    return list(dict.fromkeys(wanted))


def list_next_steps(record: Record, findings: Sequence[Finding]) -> list[str]:
    """List commands that make sense now. They carry this run's own task and models, by its config."""
    run, config = shlex.quote(str(record.folder)), shlex.quote(str(record.folder / "config.toml"))
    recipe = shlex.quote(record.config.recipe)
    advised = dict.fromkeys(one.help.removeprefix(SET) for one in findings if one.help.startswith(SET))
    solves = bool(record.get_curve(MATTERS[0])[0])
    out = []
    if record.summary is None and not is_at_work(record.folder):  # or it would be refused
        out.append(f"milonga resume {run}" + (" --force" if record.last.get("stalled") else ""))
    if findings and solves:
        out.append(f"milonga probe {recipe} --config {config}")
    if advised:
        out.append(f"milonga run {recipe} --config {config} {' '.join(f'{SET}{shlex.quote(one)}' for one in advised)}")
    if record.summary is not None:
        if not any(one.severe for one in findings):
            out.append(f"milonga eval {run} --split test")
        if solves and not any(one.severe for one in findings) and _is_comparable(record.config.recipe):
            out.append(f"milonga compare {recipe} {'tango' if recipe == 'grpo' else 'grpo'} --config {config} --seeds 5")
    return out


def _is_comparable(recipe: str) -> bool:
    """Whether a recipe can be compared with plain GRPO by the config of its run: its generator learns by a policy gradient."""
    return recipe in RECIPES and "generator" not in RECIPES.get(recipe).learns


def collect_overview(record: Record, metrics: Sequence[str]) -> dict[str, Any]:
    """What `show` says of a run, as data."""
    findings = examine(record)
    curves = {metric: record.get_curve(metric)[1] for metric in metrics}
    return {
        "run": str(record.folder),
        "recipe": record.config.recipe,
        "task": str(record.config.task["name"]),
        "models": {name: section.model for name, section in record.config.policies.items()},
        "verdict": describe_run(record),
        "turn": record.last["turn"],
        "finished": record.summary is not None,
        "health": [one.to_json() for one in findings],
        "metrics": {metric: {"start": values[0], "now": values[-1]} for metric, values in curves.items()},
        "credit": {f"{source}>{policy}": share for (source, policy), share in compute_credit(record.rows).items()},
        "next": list_next_steps(record, findings),
    }


def show_run(folder: Path, transcripts: int, console: Console, all_: bool = False) -> dict[str, Any]:
    """Print a run; return what `--json` prints."""
    record = read_record(folder)
    findings, chosen = examine(record), choose_curves(record)
    _print_headline(record, console)
    print_health(findings, console)
    every = sorted(record.metrics(*KINDS))
    _print_curves(record, every if all_ else chosen, console, all_)
    for (source, policy), share in compute_credit(record.rows).items():
        print_text(console, f"  {policy} had {share:.0%} of its credit from {source}")
    if not all_ and (rest := len(every) - len(chosen)) > 0:
        print_text(console, f"  {rest} more metrics: --all")
    _print_matrix(folder, console)
    if transcripts > 0:
        _print_transcripts(found := read_transcripts(folder, record.config), transcripts, console)
        if not found and record.last["turn"]:
            print_text(console, f"  no transcripts were kept: {SET}keep.rollouts_every=1 keeps those of every turn")
    print_next_steps(list_next_steps(record, findings), console)
    return collect_overview(record, every if all_ else chosen)


def _print_matrix(folder: Path, console: Console) -> None:
    """Print verifiers and generators of all checkpoints against each other, if they were measured."""
    found = read_matrix(folder)
    if found is None:
        return
    for figure, title in FIGURES.items():
        table = Table(*found.list_head(), title=title, title_justify="left")
        for row in found.list_rows(figure, intervals=False):
            table.add_row(*row)
        console.print(table)


def _print_headline(record: Record, console: Console) -> None:
    """Print which run it is, and what it came to."""
    config, last = record.config, record.last
    turns = "" if config.budget else f" of {config.turns}"
    state = (
        f"finished after {last['turn']} turns"
        if record.summary is not None
        else f"at lead turn {last.get('lead_turn', 0)}{turns}{', running' if is_at_work(record.folder) else ''}"
    )
    print_text(console, (f"{config.recipe} on {config.task['name']}", "bold"), f", seed {config.seed}, {state}")
    models = dict.fromkeys(section.model for section in config.policies.values())
    by = ", ".join(f"{' and '.join(n for n, s in config.policies.items() if s.model == model)}: {model}" for model in models)
    print_text(console, by)
    print_text(console, describe_run(record), wrap=True)


def print_health(findings: Sequence[Finding], console: Console) -> None:
    """Print what is wrong, a paragraph each; or that nothing is."""
    if not findings:
        print_text(console, "health: ", ("nothing found wrong", "green"))
    for one in findings:
        console.print(render_finding(one), soft_wrap=not console.is_terminal)


def print_next_steps(steps: Sequence[str], console: Console) -> None:
    if steps:
        print_text(console, "what to try next:")
    for step in steps:
        print_text(console, f"  {step}")


def _print_curves(record: Record, metrics: Sequence[str], console: Console, by_name: bool) -> None:
    """Print metrics with a sparkline each. One that was measured once has no curve, and is shown all the same. Names alone are
    broken where a terminal is too narrow; in a file nothing is."""
    if not metrics:
        return
    name = Column("metric", overflow="fold")
    table = Table(
        name, *(Column(title, no_wrap=True, justify="right") for title in ("start", "now")), Column("curve", no_wrap=True)
    )
    for metric in metrics:
        values = record.get_curve(metric)[1]
        label = escape_invisible(metric if by_name else title_metric(metric))
        curve = draw_sparkline(values) if len(values) > 1 else ""
        table.add_row(Text(label), format_number(values[0]), format_number(values[-1]), curve)
    if not console.is_terminal:
        table.width = Measurement.get(console, console.options.update(width=ENDLESS), table).maximum
    console.print(table, crop=False)


def _print_transcripts(transcripts: Sequence[Transcript], count: int, console: Console) -> None:
    """Print the last saved solutions with the verdict and, if known, the true label beside each step; and of what could not be
    read, the reason."""
    for one in transcripts[-count:]:
        console.rule(Text(escape_invisible(one.id)), align="left")
        print_text(console, one.question)
        for step in () if one.invalid else one.steps:
            said = {None: (" ", ""), True: ("✓", "green"), False: ("✗", "red")}[step.verdict]
            true = {None: "", True: "right", False: "wrong"}[step.truth]
            print_text(console, f"  {step.text:<40} ", said, (f" {true}", "dim"))
        answer = "no answer" if one.answer is None else f"answer {one.answer}"
        grade = {True: "right", False: "wrong", None: "could not be graded"}[one.correct]
        final = {True: "right", False: "wrong", None: "nothing readable"}[one.says_right]
        more = (f"; verifier says {final}" if one.checked else "") + (f"; {one.cut}" if one.cut else "")
        print_text(console, f"  {answer}: {grade}{more}")
        if one.invalid:
            print_text(console, (f"  cannot be read: {one.invalid}; as it was written:", "dim"))
            print_text(console, one.text)
        if one.check_invalid:
            print_text(console, (f"  the verification cannot be read: {one.check_invalid}; as it was written:", "dim"))
            print_text(console, one.check_text)
    _print_reasons("solutions", len(transcripts), [one.invalid for one in transcripts if one.invalid], console)
    checks = sum(one.agreeing[1] for one in transcripts)
    _print_reasons("verifications", checks, [reason for one in transcripts for reason in one.unread], console)


def _print_reasons(what: str, count: int, reasons: Sequence[str], console: Console) -> None:
    """Print why some of these outputs cannot be read, the most frequent reasons first."""
    for reason, number in Counter(reasons).most_common(MOST_REASONS):
        print_text(console, f"{number} of {count} {what} cannot be read: {reason}")
