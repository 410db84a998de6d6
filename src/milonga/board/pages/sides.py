"""The page of runs side by side, with the verdicts of a finished comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from milonga.board.catalogue import Card, Comparison
from milonga.board.pages.board import Board
from milonga.board.pages.frame import Chart, page_frame, redraw, refresh_periodically
from milonga.board.pages.parts import add_box, add_link, add_text, make_url, show_table
from milonga.board.pages.run import show_findings
from milonga.board.sides import Arm, Judged, choose_metrics, collect_findings, read_arm_names, read_verdicts, summarise_arms
from milonga.health import Finding
from milonga.report.comparisons import build_metric_figure
from milonga.report.curves import get_title
from milonga.report.sheets import AXIS_NAMES, format_measured

AXIS = AXIS_NAMES["lead_turn"]
MOST_FINDINGS = 6
"""Most findings that stand above the charts unfolded."""


async def show_sides(board: Board, title: str, cards: Sequence[Card], comparison: Comparison | None) -> None:
    known: list[Arm] = []
    told: Judged | str | None = None
    metrics = choose_metrics(comparison)

    def add_chart(metric: str) -> Chart:
        return Chart(lambda: build_metric_figure(metric, {arm.name: arm.metrics for arm in known}, AXIS))

    with page_frame(title, make_url("")):
        if not cards:
            add_text("Tick some runs in the list of runs, and come again." if comparison is None else "No runs yet.", "note")
        verdict = add_text("", "verdict", "p")
        health = add_box()
        with add_box("links"):
            if comparison is not None and comparison.finished:
                add_link("Report", make_url("report", comparison.name), "button", data_item="report")
        with add_box("grid"):
            drawn = [add_chart(metric) for metric in metrics]
        table, verdicts = add_box("scroll"), add_box()
        _show_run_links(cards, comparison)

    wrong: Sequence[Finding] = ()

    async def refresh() -> None:
        nonlocal known, told, wrong
        arms = await asyncio.to_thread(_summarise_now, board, cards, comparison, metrics)
        if _arms_differ(arms, known):
            known = arms
            await redraw(drawn)
            table.clear()
            with table:
                _show_arms(arms, metrics)
        if comparison is not None and comparison.kind == "comparison" and told is None:
            told = await asyncio.to_thread(read_verdicts, comparison.path)
            if told is not None:
                verdict.change_text(told.verdict if isinstance(told, Judged) else "")
                with verdicts:
                    _show_verdicts(told)
        kept = told.findings if isinstance(told, Judged) else None
        found = collect_findings(arms) if kept is None else kept
        if list(found) != list(wrong):
            wrong = found
            health.clear()
            with health:
                _show_health(found)

    await refresh()
    refresh_periodically(refresh)


def _show_run_links(cards: Sequence[Card], comparison: Comparison | None) -> None:
    with add_box("links"):
        for card in cards if comparison is None else sorted(cards, key=lambda card: card.name):
            add_link(card.name, make_url("run", card.name), f"small {card.state}", data_item=card.name, title=card.state)


def _summarise_now(board: Board, cards: Sequence[Card], comparison: Comparison | None, metrics: Sequence[str]) -> list[Arm]:
    names = None if comparison is None else read_arm_names(comparison)
    return summarise_arms(_list_current_runs(board, cards, comparison), board.shelf, metrics, names)


def _list_current_runs(board: Board, cards: Sequence[Card], comparison: Comparison | None) -> Sequence[Card]:
    """List the requested runs as they are now; for a comparison, the runs that exist by now."""
    if comparison is None:
        now = {card.name: card for card in board.catalogue.scan()}
        return [now[card.name] for card in cards if card.name in now]
    found = board.catalogue.find_comparison(comparison.name)
    return cards if found is None else sorted(found[1], key=lambda card: card.name)


def _arms_differ(arms: Sequence[Arm], known: Sequence[Arm]) -> bool:
    return [(arm.name, arm.metrics) for arm in arms] != [(arm.name, arm.metrics) for arm in known]


def _show_arms(arms: Sequence[Arm], metrics: Sequence[str]) -> None:
    rows = [[arm.name, str(len(arm.runs)), *(format_final(arm, metric) for metric in metrics)] for arm in arms]
    head = ["arm", "runs", *map(get_title, metrics)]
    show_table("Where they stand, with 95 % intervals over seeds", head, rows)


def format_final(arm: Arm, metric: str) -> str:
    found = arm.metrics.get(metric)
    return "–" if found is None else format_measured(metric, found)


def _show_verdicts(verdicts: Judged | str) -> None:
    """Show the verdicts of a finished comparison, or why they cannot be read."""
    if isinstance(verdicts, str):
        add_text(verdicts, "note")
        return
    for sheet in verdicts.sheets:
        with add_box("scroll"):
            show_table(sheet.title, sheet.head, sheet.rows)
    for text in verdicts.notes:
        add_text(text, "note")


def _show_health(found: Sequence[Finding]) -> None:
    """Show what is wrong with the arms as the page of a run does; of much, such as in a large sweep, what is less is folded."""
    with add_box("findings"):
        show_findings(found[:MOST_FINDINGS])
        if len(found) > MOST_FINDINGS:
            with add_box("config", "details"):
                add_text(f"{len(found) - MOST_FINDINGS} more", "", "summary")
                show_findings(found[MOST_FINDINGS:])
