"""The list of runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from nicegui.element import Element

from milonga.board.catalogue import Card, Comparison
from milonga.board.pages.board import Board
from milonga.board.pages.frame import page_frame, refresh_periodically
from milonga.board.pages.parts import Words, add_box, add_link, add_text, format_number, make_url
from milonga.runfolder.console import format_time

COLUMNS = ("run", "state", "recipe", "task", "seed", "turn", "accuracy", "sound", "F1", "gap", "changed")


def format_cells(card: Card) -> dict[str, str]:
    """Format the cells of a run in the list, keyed by column."""
    wanted = "" if card.turns is None else f"/{card.turns}"
    lead = "" if card.lead_turn is None else f" ({card.lead_turn}{wanted})"
    return {
        "run": card.name,
        "state": card.state,
        "recipe": card.recipe,
        "task": card.task,
        "seed": "" if card.seed is None else str(card.seed),
        "turn": "–" if card.turn is None else f"{card.turn}{lead}",
        "accuracy": format_number(card.figures.get("accuracy")),
        "sound": format_number(card.figures.get("sound")),
        "F1": format_number(card.figures.get("f1")),
        "gap": format_number(card.figures.get("gap"), signed=True),
        "changed": _format_age(card.changed),
    }


def _format_age(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    if not moment:
        return ""
    return f"{format_time(seconds)} ago" if seconds < 86400 else f"{seconds / 86400:.0f} days ago"


async def show_runs(board: Board) -> None:
    cards = await asyncio.to_thread(board.catalogue.scan)
    with page_frame(str(board.catalogue.root)):
        compared = add_box("links")
        form = add_box("form", "form", action="/side", method="get")
        with form:
            body = add_box("runs")
            add_text("Side by side", "button", "button", type="submit", title="the runs that are ticked")
    table = RunTable(body, compared)
    table.show(cards, board.catalogue.comparisons.values())

    async def refresh() -> None:
        found = await asyncio.to_thread(board.catalogue.scan)
        table.show(found, board.catalogue.comparisons.values())

    refresh_periodically(refresh)


class RunTable:
    """The table of runs. It is rebuilt when runs are added or reordered; otherwise its cells are updated in place."""

    def __init__(self, body: Element, compared: Element) -> None:
        self.body, self.compared = body, compared
        self.built: list[object] | None = None
        """What it was built from."""
        self.cells: list[dict[str, Words]] = []

    def show(self, cards: Sequence[Card], comparisons: Iterable[Comparison]) -> None:
        compared = list(comparisons)
        built = [*((card.name, card.state, card.note) for card in cards), *compared]
        if built != self.built:
            self.built = built
            self.build(cards, compared)
            return
        for row, card in zip(self.cells, cards, strict=True):
            for column, text in format_cells(card).items():
                row[column].change_text(text)

    def build(self, cards: Sequence[Card], comparisons: Sequence[Comparison]) -> None:
        self.compared.clear()
        with self.compared:
            for one in comparisons:
                add_link(
                    f"comparison {one.name}" + ("" if one.finished else " (not finished)"), make_url("comparison", one.name)
                )
        self.body.clear()
        self.cells = []
        with self.body:
            if not cards:
                add_text("No runs here yet: 'milonga run tango' makes one.", "note")
                return
            with add_box("row head"):
                add_text("")
                for column in COLUMNS:
                    add_text(column, column.lower())
            for card in cards:
                self.cells.append(self.add_row(card))

    def add_row(self, card: Card) -> dict[str, Words]:
        texts = format_cells(card)
        with add_box("row", data_item=card.name):
            add_box("", "input", type="checkbox", name="run", value=card.name, aria_label=f"compare {card.name}")
            found = {"run": add_link(texts["run"], make_url("run", card.name), "run")}
            for column in COLUMNS[1:]:
                state = f" {card.state}" if column == "state" else ""
                found[column] = add_text(texts[column], column.lower() + state, data_label=column)
            if card.note:
                add_text(card.note, "why")
        return found
