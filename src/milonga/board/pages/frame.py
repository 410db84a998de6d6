"""The frame of every page, and charts that can be redrawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nicegui import ui
from nicegui.element import Element

from milonga.board.pages.parts import add_box, add_link, add_text, make_url
from milonga.report.blocks import Figure
from milonga.text import escape_invisible

EVERY = 2.0
"""Seconds between two refreshes of a live page."""
KEYS = (
    ("j  k", "next, previous"),
    ("Enter", "open, or fold and unfold"),
    ("Escape", "one level up"),
    ("/", "search"),
    ("n", "next page, or next problem"),
    ("o", "fold or unfold all"),
    ("t", "light or dark"),
    ("?", "these keys"),
)


@contextmanager
def page_frame(title: str, up: str | None = None, full: str | None = None) -> Iterator[Element]:
    """Show the frame of a page around what is added to it; `full` is the longer form of its title."""
    ui.page_title(f"{escape_invisible(title)} · Milonga")
    ui.add_head_html('<link rel="stylesheet" href="/board/board.css"><script src="/board/board.js"></script>')
    with add_box("top", "header"):
        add_link("Milonga", make_url(""), "brand")
        if up is not None:
            add_link("↑", up, "up", rel="up", title="one level up (Escape)")
        add_text(title, "where", "h1", title=full)
        add_text("◐", "tool", "button", data_act="theme", title="light or dark (t)", type="button")
        add_text("?", "tool", "button", data_act="help", title="keys (?)", type="button")
    with add_box("main", "main") as main:
        yield main
    with add_box("help", "dialog", id="help"):
        add_text("Keys", "", "h2")
        with add_box("keys", "dl"):
            for key, what in KEYS:
                add_text(key, "", "dt")
                add_text(what, "", "dd")


def show_not_found(text: str) -> None:
    """Show that there is nothing at this address; programs are told by the status."""
    ui.status_code(404)
    with page_frame("not found", make_url("")):
        add_text(text, "note")
        add_link("all runs", make_url(""))


def refresh_periodically(refresh: Callable[[], Any]) -> None:
    """Call `refresh` every few seconds while the page is open."""
    ui.timer(EVERY, refresh, immediate=False)


class Chart:
    """A chart that can be redrawn. Without a figure its panel is not shown.

    The only place where markup reaches a page: it comes from `milonga.charts`, which escapes all text, and the browser
    sanitises it once more.
    """

    def __init__(self, draw: Callable[[], Figure | None], classes: str = "panel") -> None:
        self.draw = draw
        with add_box(classes):
            self.element = ui.html("", sanitize=True).classes("figure")


async def redraw(charts: Sequence[Chart]) -> None:
    """Draw charts anew, in a thread: a long run has many points. Nothing is sent to the browser for one that is the same."""
    figures = await asyncio.to_thread(lambda: [chart.draw() for chart in charts])
    for chart, figure in zip(charts, figures, strict=True):
        svg = "" if figure is None else figure.svg
        if svg != chart.element.content:
            chart.element.set_content(svg)
