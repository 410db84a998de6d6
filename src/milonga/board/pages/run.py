"""The page of one run: its state, its health, what it was made with, and its charts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from milonga.board.catalogue import Card
from milonga.board.curves import RECENT, read_tail
from milonga.board.pages.board import Board
from milonga.board.pages.frame import Chart, page_frame, redraw, refresh_periodically
from milonga.board.pages.parts import Words, add_box, add_link, add_text, make_url, show_table
from milonga.board.pages.runs import format_cells
from milonga.charts import matrix_chart
from milonga.errors import RunFolderError
from milonga.health import Finding
from milonga.probing import Probe
from milonga.reading import SETTINGS, UNREADABLE, explain_unreadable, read_text
from milonga.report.blocks import Figure
from milonga.report.curves import (
    PANELS,
    build_chosen_figure,
    build_flow_figure,
    build_pair_figure,
    build_panel_figure,
    build_time_figure,
)
from milonga.report.words import is_setting
from milonga.runfolder.matrix import FIGURES, Matrix, read_matrix
from milonga.runfolder.matrix import Figure as Pair

FILES = ("metrics.jsonl", "timing.jsonl")
FACTS = ("state", "recipe", "task", "seed", "turn", "accuracy", "sound", "F1", "gap", "changed")
T = TypeVar("T")


@dataclass(frozen=True)
class About:
    """What a run was made with, as its folder says it. Nothing of it changes while the run goes on."""

    commands: Sequence[str]
    config: str
    probe: Probe | str | None
    matrix: Matrix | str | None


def read_about(card: Card) -> About:
    commands = dict.fromkeys(str(row["command"]) for row in read_tail(card.path / "machine.jsonl") if row.get("command"))
    try:
        config = read_text(card.path / "config.toml", SETTINGS)
    except UNREADABLE as error:
        config = f"config.toml cannot be read: {explain_unreadable(error)}"
    return About(list(commands), config, read_or_explain(Probe.read, card), read_or_explain(read_matrix, card))


def read_or_explain(read: Callable[[Path], T | None], card: Card) -> T | str | None:
    """Read what was measured of a run besides; a message if it cannot be read, None if it was not measured."""
    try:
        return read(card.path)
    except RunFolderError as error:
        return str(error)


async def show_run(board: Board, card: Card, metric: str) -> None:
    metrics, timing = await asyncio.to_thread(lambda: [board.shelf.get_curves(card.path / f) for f in FILES])
    about = await asyncio.to_thread(read_about, card)
    known = metrics.keys()
    metric = metric or next((key for key in known if key.endswith("/entropy")), "")
    with page_frame(card.name, make_url("comparison", card.comparison) if card.comparison else make_url("")):
        with add_box("facts"):
            facts = {column: _add_fact(column) for column in FACTS}
        note, health = add_text(card.note, "note"), add_box("findings")
        _show_links(card, about)
        _show_origin(card, about)
        with add_box("grid"):
            drawn = [Chart(partial(build_panel_figure, metrics, panel)) for panel in PANELS]
            drawn.append(Chart(lambda: build_pair_figure([metrics], [card.name])))
            drawn.append(Chart(lambda: build_flow_figure(metrics.compute_flow())))
            drawn.append(Chart(lambda: build_time_figure(metrics.recent_rows(RECENT, "learner"), timing.recent_rows(RECENT))))
            drawn += _add_matrix(about.matrix)
            with add_box("panel"):
                _show_metric_form(card, metric, known)
                drawn.append(Chart(lambda: build_chosen_figure(metrics, metric)))
            if about.probe is not None:
                with add_box("panel probe"):  # last, since it never changes
                    show_probe(about.probe)
        nothing, rubbish = add_text("", "note"), add_text("", "note")

    seen: list[tuple[int, ...]] = []
    told: Sequence[Finding] | None = None

    async def refresh() -> None:
        nonlocal seen, told
        now = await asyncio.to_thread(board.catalogue.find_card, card.name)
        if now is not None:
            _show_facts(facts, now)
            note.change_text(now.note)
            if now.findings != told:
                told = now.findings
                health.clear()
                with health:
                    show_findings(told)
        await asyncio.to_thread(lambda: [curves.refresh() for curves in (metrics, timing)])
        stamps = [metrics.stamp, timing.stamp]
        if stamps != seen:
            seen = stamps
            await redraw(drawn)
            nothing.change_text("" if metrics.turns else "Nothing measured yet.")
            count = metrics.rubbish + timing.rubbish
            rubbish.change_text(
                f"lines of metrics.jsonl and timing.jsonl that are no rows, and are left out: {count}" if count else ""
            )

    await refresh()
    refresh_periodically(refresh)


def _show_links(card: Card, about: About) -> None:
    with add_box("links"):
        add_link("What the models wrote", make_url("rollouts", card.name), "button", data_item="rollouts")
        add_link("Report", make_url("report", card.name), "button", data_item="report", title="the whole run as one page")
        if about.probe is not None:
            add_link("Probe", make_url("probe", card.name), "button", data_item="probe", title="what was found before the run")
        if card.comparison:
            add_link(f"All of {card.comparison}", make_url("comparison", card.comparison), "button", data_item="comparison")


def _show_origin(card: Card, about: About) -> None:
    """Show the command, the models and the config of a run."""
    if card.models:
        add_text(f"models: {', '.join(card.models)}", "note models")
    for command in about.commands:
        add_text(command, "command", "pre")
    with add_box("config", "details"):
        add_text("config.toml", "", "summary")
        add_text(about.config, "command", "pre")


def show_findings(findings: Sequence[Finding]) -> None:
    """Show what is wrong with a run, each with the setting that helps."""
    for one in findings:
        with add_box("finding"):
            add_text(("✗ " if one.severe else "! ") + one.badge, "badge severe" if one.severe else "badge warning")
            add_text(one.text, "words")
            if one.help:
                add_text(one.help, "help-text code" if is_setting(one.help) else "help-text")


def _add_matrix(matrix: Matrix | str | None) -> list[Chart]:
    """Add a chart for each figure of verifiers on generators of other turns, if that was measured."""
    if isinstance(matrix, str):
        with add_box("panel"):
            add_text(matrix, "note")
    if not isinstance(matrix, Matrix):
        return []
    return [Chart(partial(build_matrix_figure, matrix, name)) for name in FIGURES]


def build_matrix_figure(matrix: Matrix, name: Pair) -> Figure:
    """Build the picture of one figure: a row for each generator and a column for each verifier, by their turns."""
    cells = {(cell.generator, cell.verifier): cell for cell in matrix.rows}
    turns = [str(turn) for turn in matrix.turns]
    values = [[getattr(cells[wrote, judged], name) for judged in matrix.turns] for wrote in matrix.turns]
    title = f"{FIGURES[name][0].upper()}{FIGURES[name][1:]} of verifiers on generators of other turns"
    x_label = f"verifier of turn; {matrix.problems} {matrix.split} problems × {matrix.samples}"
    svg = matrix_chart(title, turns, turns, values, x_label=x_label, y_label="generator of turn")
    return Figure(svg, title, [])


async def show_probe_page(board: Board, card: Card) -> None:
    """The page of a probe: figures, advice with the settings to change, and outputs that could not be read."""
    probed = await asyncio.to_thread(read_or_explain, Probe.read, card)
    with page_frame(f"{card.name}: the probe", make_url("run", card.name)):
        if probed is None:
            add_text("No probe was made before this run: --probe makes one, 'milonga probe' makes one alone.", "note")
            return
        with add_box("panel probe"):
            show_probe(probed)
        if isinstance(probed, Probe):
            _show_examples(probed)


def _show_examples(probed: Probe) -> None:
    if probed.examples:
        add_text("Outputs that could not be read", "", "h2")
    for one in probed.examples:
        with add_box("panel example", data_item=f"{one.agent} {one.why}"):
            add_text(one.agent, "name")
            add_text(f"∅ {one.why}", "badge invalid")
            add_text(one.text, "text", "pre")


def show_probe(probed: Probe | str) -> None:
    if isinstance(probed, str):
        add_text(probed, "note")
        return
    head = [f"{probed.problems} train problems × {probed.rollouts}", *(figures.agent for figures in probed.agents)]
    with add_box("scroll"):
        show_table("The probe before the run", head, probed.list_rows())
    for one in probed.advice:
        add_text(("✗ " if one.blocking else "") + str(one), "note severe" if one.blocking else "note")
    add_text(probed.describe_cost(), "note")


def _add_fact(name: str) -> Words:
    with add_box("fact"):
        add_text(name, "name")
        return add_text("", "value")


def _show_facts(facts: Mapping[str, Words], card: Card) -> None:
    texts = format_cells(card)
    for name, found in facts.items():
        found.change_text(texts[name] or "–")
    facts["state"].classes(replace=f"value state {card.state}")


def _show_metric_form(card: Card, metric: str, known: Sequence[str]) -> None:
    with add_box("form title", "form", action=make_url("run", card.name), method="get"):
        add_text("Any metric", "", "h2")
        with add_box("", "select", name="metric", aria_label="metric"):
            add_text("choose", "", "option", value="", selected=None if metric else True)
            for key in known:
                add_text(key, "", "option", value=key, selected=True if key == metric else None)
        add_text("Show", "button", "button", type="submit")
