"""The pages: a list of runs, a run, its probe and its report, runs side by side, a list of problems, the transcript of one.

Invariants: a page is determined by its address, so that a link shows the same to everyone; files are read in threads, so that
a slow disk does not block other pages; a live page refreshes every few seconds and sends only what changed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import Query, Response
from nicegui import app, ui

from milonga import charts
from milonga.board.catalogue import Card
from milonga.board.pages.board import Board
from milonga.board.pages.frame import show_not_found
from milonga.board.pages.rollouts import parse_cursor, parse_filters, show_problem, show_rollouts
from milonga.board.pages.run import show_probe_page, show_run
from milonga.board.pages.runs import show_runs
from milonga.board.pages.sides import show_sides
from milonga.errors import UserError
from milonga.report import build_report
from milonga.report.html import to_html
from milonga.text import escape_invisible

__all__ = ["Board", "install"]

STATIC = Path(__file__).parent.parent / "static"
CHART_STYLE = f'{charts.STYLE}[data-theme="light"] .chart{{{charts.LIGHT}}}\n[data-theme="dark"] .chart{{{charts.DARK}}}\n'
"""Charts follow the scheme that the reader chose on the page, not the one of the system."""


def install(board: Board) -> None:
    """Register all pages. There can be only one board per process: NiceGUI's application is global."""
    app.add_static_files("/board", STATIC)

    @app.get("/charts.css")
    def chart_style() -> Response:
        return Response(CHART_STYLE, media_type="text/css")

    @ui.page("/", response_timeout=30)
    async def runs(sort: str = "", open: str = "") -> None:
        await show_runs(board, sort, open)

    @ui.page("/run/{name:path}", response_timeout=30)
    async def run(name: str, metric: str = "") -> None:
        if card := await require_card(board, name):
            await show_run(board, card, metric)

    @ui.page("/probe/{name:path}", response_timeout=30)
    async def probe(name: str) -> None:
        if card := await require_card(board, name):
            await show_probe_page(board, card)

    @app.get("/report/{name:path}")
    async def report(name: str) -> Response:
        return await asyncio.to_thread(render_report, board, name)

    @ui.page("/side", response_timeout=30)
    async def side(run: Annotated[list[str] | None, Query()] = None) -> None:
        cards = await asyncio.to_thread(board.catalogue.scan)
        await show_sides(board, "side by side", [card for card in cards if card.name in (run or ())], None)

    @ui.page("/comparison/{name:path}", response_timeout=30)
    async def comparison(name: str) -> None:
        found = await asyncio.to_thread(board.catalogue.find_comparison, name)
        if found is None:
            show_not_found(f"no comparison '{name}' in {board.catalogue.root}")
        else:
            await show_sides(board, name, found[1], found[0])

    @ui.page("/rollouts/{name:path}", response_timeout=30)
    async def rollouts(
        name: str, turn: str = "", flag: Annotated[list[str] | None, Query()] = None, q: str = "", after: str = ""
    ) -> None:
        if card := await require_card(board, name):
            await show_rollouts(board, card, parse_filters(turn, flag or [], q), parse_cursor(after))

    @ui.page("/problem/{name:path}", response_timeout=30)
    async def problem(
        name: str,
        turn: str = "",
        problem: str = "",
        flag: Annotated[list[str] | None, Query()] = None,
        q: str = "",
        within: str = "",
        open: str | None = None,
    ) -> None:
        if card := await require_card(board, name):
            await show_problem(board, card, turn, problem, parse_filters(within, flag or [], q), open)


def render_report(board: Board, name: str) -> Response:
    """Write the report of a run or a comparison as it is now.

    The page is made here. A report.html that lies in the folder is never served: whoever wrote the folder could have put a
    program into it, which would then run with the rights of this page.
    """
    card, found = board.catalogue.find_card(name), board.catalogue.find_comparison(name)
    path = card.path if card is not None else found[0].path if found is not None else None
    if path is None:
        return Response(f"no run '{escape_invisible(name)}'", 404, media_type="text/plain")
    try:
        return Response(to_html(build_report([path])), media_type="text/html")
    except UserError as error:
        return Response(f"no report: {escape_invisible(str(error))}", 404, media_type="text/plain")


async def require_card(board: Board, name: str) -> Card | None:
    card = await asyncio.to_thread(board.catalogue.find_card, name)
    if card is None:
        show_not_found(f"no run '{name}' in {board.catalogue.root}")
    return card
