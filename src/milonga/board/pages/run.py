"""The page of one run: its state and its charts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from milonga.board.catalogue import Card
from milonga.board.curves import RECENT
from milonga.board.pages.board import Board
from milonga.board.pages.frame import Chart, page_frame, redraw, refresh_periodically
from milonga.board.pages.parts import Words, add_box, add_link, add_text, make_url, show_table
from milonga.board.pages.runs import COLUMNS, format_cells
from milonga.errors import RunFolderError
from milonga.probing import Probe
from milonga.report.curves import (
    PANELS,
    build_chosen_figure,
    build_flow_figure,
    build_pair_figure,
    build_panel_figure,
    build_time_figure,
)

FILES = ("metrics.jsonl", "timing.jsonl")


async def show_run(board: Board, card: Card, metric: str) -> None:
    metrics, timing = await asyncio.to_thread(lambda: [board.shelf.get_curves(card.path / f) for f in FILES])
    probed = await asyncio.to_thread(_read_probe, card)
    known = metrics.keys()
    metric = metric or next((key for key in known if key.endswith("/entropy")), "")
    with page_frame(card.name, make_url("comparison", card.comparison) if card.comparison else make_url("")):
        with add_box("facts"):
            facts = {column: _add_fact(column) for column in COLUMNS[1:]}
        note = add_text(card.note, "note")
        with add_box("links"):
            add_link("What the models wrote", make_url("rollouts", card.name), "button", data_item="rollouts")
        with add_box("grid"):
            drawn = [Chart(partial(build_panel_figure, metrics, panel)) for panel in PANELS]
            drawn.append(Chart(lambda: build_pair_figure([metrics], [card.name])))
            drawn.append(Chart(lambda: build_flow_figure(metrics.compute_flow())))
            drawn.append(Chart(lambda: build_time_figure(metrics.recent_rows(RECENT, "learner"), timing.recent_rows(RECENT))))
            with add_box("panel"):
                _show_metric_form(card, metric, known)
                drawn.append(Chart(lambda: build_chosen_figure(metrics, metric)))
            if probed is not None:
                with add_box("panel probe"):  # last, since it never changes
                    _show_probe(probed)
        nothing, rubbish = add_text("", "note"), add_text("", "note")

    seen: list[tuple[int, ...]] = []

    async def refresh() -> None:
        nonlocal seen
        now = await asyncio.to_thread(board.catalogue.find_card, card.name)
        if now is not None:
            _show_facts(facts, now)
            note.change_text(now.note)
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


def _read_probe(card: Card) -> Probe | str | None:
    """Read what was found before the run; a message if it cannot be read, None if there was no probe."""
    try:
        return Probe.read(card.path)
    except RunFolderError as error:
        return str(error)


def _show_probe(probed: Probe | str) -> None:
    if isinstance(probed, str):
        add_text(probed, "note")
        return
    head = [f"{probed.problems} train problems × {probed.rollouts}", *(figures.agent for figures in probed.agents)]
    with add_box("scroll"):
        show_table("The probe before the run", head, probed.list_rows())
    for text in (*map(str, probed.advice), probed.describe_cost()):
        add_text(text, "note")


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
