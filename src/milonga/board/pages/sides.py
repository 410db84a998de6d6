"""The page of runs side by side, with the verdicts of a finished comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from milonga.board import charts
from milonga.board.catalogue import Card, Comparison
from milonga.board.pages.board import Board
from milonga.board.pages.frame import chart, frame, look_again, redraw
from milonga.board.pages.parts import box, link, number, url, words
from milonga.board.sides import Arm, Judged, judged, side_by_side
from milonga.comparing.results import ALWAYS
from milonga.comparing.tables import DRAWN

HINT = "mean and 95 % t interval over seeds"


async def show_sides(board: Board, title: str, cards: Sequence[Card], comparison: Comparison | None) -> None:
    with frame(title, url("")):
        if not cards:
            words("Tick some runs in the list of runs, and come again." if comparison is None else "No runs yet.", "note")
        with box("links"):
            for card in cards:
                link(card.name, url("run", card.name), f"small {card.state}", data_item=card.name, title=card.state)
        with box("grid"):
            drawn = {metric: chart(metric, arm_bands([], metric), HINT) for metric in ALWAYS}
        table, verdicts = box("scroll"), box()
    known: list[Arm] = []
    told: Judged | str | None = None

    async def refresh() -> None:
        nonlocal known, told
        arms = await asyncio.to_thread(lambda: side_by_side(runs_now(board, cards, comparison), board.shelf))
        if arms_differ(arms, known):
            known = arms
            for metric, found in drawn.items():
                redraw(found, arm_bands(arms, metric))
            table.clear()
            with table:
                show_arms(arms)
        if comparison is not None and told is None:
            told = await asyncio.to_thread(judged, comparison.path)
            if told is not None:
                with verdicts:
                    show_judged(told)

    await refresh()
    look_again(refresh)


def runs_now(board: Board, cards: Sequence[Card], comparison: Comparison | None) -> Sequence[Card]:
    """List the requested runs; for a comparison, the runs that exist by now."""
    found = None if comparison is None else board.catalogue.comparison(comparison.name)
    return cards if found is None else sorted(found[1], key=lambda card: card.name)


def arms_differ(arms: Sequence[Arm], known: Sequence[Arm]) -> bool:
    return [(arm.name, arm.metrics) for arm in arms] != [(arm.name, arm.metrics) for arm in known]


def arm_bands(arms: Sequence[Arm], metric: str) -> charts.Options:
    curves = [(arm.name, arm.metrics[metric]["curve"] if metric in arm.metrics else None) for arm in arms]
    return charts.bands(curves, metric in (*DRAWN, "eval/verifier/f1"))


def show_arms(arms: Sequence[Arm]) -> None:
    rows = [[arm.name, str(len(arm.runs)), *(final_of(arm, metric) for metric in ALWAYS)] for arm in arms]
    show_table("Where they stand, with 95 % intervals over seeds", ["arm", "runs", *ALWAYS], rows)


def final_of(arm: Arm, metric: str) -> str:
    found = arm.metrics.get(metric)
    if found is None:
        return "–"
    interval = found["interval"]
    return number(found["final"]) + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval is not None else "")


def show_judged(verdicts: Judged | str) -> None:
    """Show the verdicts of a finished comparison, or why they cannot be read."""
    if isinstance(verdicts, str):
        words(verdicts, "note")
        return
    for sheet in verdicts.sheets:
        with box("scroll"):
            show_table(sheet.title, sheet.head, sheet.rows)
    for text in verdicts.remarks:
        words(text, "note")


def show_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    words(title, "", "h2")
    with box("table", "table"):
        with box("", "thead"), box("", "tr"):
            for name in head:
                words(name, "", "th")
        with box("", "tbody"):
            for row in rows:
                with box("", "tr"):
                    for cell in row:
                        words(cell, "", "td")
