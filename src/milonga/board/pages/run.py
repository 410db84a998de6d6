"""The page of one run: its state and its charts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from nicegui import ui

from milonga.board import charts
from milonga.board.catalogue import Card
from milonga.board.pages.board import Board
from milonga.board.pages.frame import chart, frame, look_again, redraw
from milonga.board.pages.parts import Words, box, link, url, words
from milonga.board.pages.runs import COLUMNS, cells

FILES = ("metrics.jsonl", "timing.jsonl")


async def show_run(board: Board, card: Card, metric: str) -> None:
    metrics, timing = await asyncio.to_thread(lambda: [board.shelf.curves(card.path / f) for f in FILES])
    known = metrics.keys()
    metric = metric or next((key for key in known if key.endswith("/entropy")), "")
    drawn: list[tuple[ui.echart, Callable[[], charts.Options]]] = []

    def add(title: str, draw: Callable[[], charts.Options], hint: str = "", tall: bool = False) -> None:
        drawn.append((chart(title, draw(), hint, tall), draw))

    with frame(card.name, url("comparison", card.comparison) if card.comparison else url("")):
        with box("facts"):
            facts = {column: fact(column) for column in COLUMNS[1:]}
        note = words(card.note, "note")
        with box("links"):
            link("What the models wrote", url("traces", card.name), "button", data_item="traces")
        with box("grid"):
            add(
                "Generator and verifier",
                lambda: charts.accuracies(metrics),
                "accuracy and F1 on held-out problems; thin: in training",
            )
            add("Hacking gap", lambda: charts.gap(metrics), "what the verifier calls right − what is right")
            add("Path of the pair", lambda: charts.path(metrics), "generator accuracy against verifier F1", True)
            add("Reward flow", lambda: charts.flow(metrics.flow()), "where credit came from, last turn of each policy", True)
            add("Where the time goes", lambda: charts.timeline(timing), "seconds of each turn")
            with box("panel"):
                choose_metric(card, metric, known)
                add("", lambda: charts.metric(metrics, metric))
        rubbish = words("", "note")

    seen: list[tuple[int, ...]] = []

    async def refresh() -> None:
        nonlocal seen
        now = await asyncio.to_thread(board.catalogue.card, card.name)
        if now is not None:
            show_facts(facts, now)
            note.change(now.note)
        await asyncio.to_thread(lambda: [curves.refresh() for curves in (metrics, timing)])
        stamps = [metrics.stamp, timing.stamp]
        if stamps != seen:
            seen = stamps
            for found, draw in drawn:
                redraw(found, draw())
            count = metrics.rubbish + timing.rubbish
            rubbish.change(
                f"lines of metrics.jsonl and timing.jsonl that are no rows, and are left out: {count}" if count else ""
            )

    await refresh()
    look_again(refresh)


def fact(name: str) -> Words:
    with box("fact"):
        words(name, "name")
        return words("", "value")


def show_facts(facts: Mapping[str, Words], card: Card) -> None:
    texts = cells(card)
    for name, found in facts.items():
        found.change(texts[name] or "–")
    facts["state"].classes(replace=f"value state {card.state}")


def choose_metric(card: Card, metric: str, known: Sequence[str]) -> None:
    with box("form title", "form", action=url("run", card.name), method="get"):
        words("Any metric", "", "h2")
        with box("", "select", name="metric", aria_label="metric"):
            words("choose", "", "option", value="", selected=None if metric else True)
            for key in known:
                words(key, "", "option", value=key, selected=True if key == metric else None)
        words("Show", "button", "button", type="submit")
