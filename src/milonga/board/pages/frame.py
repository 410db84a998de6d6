"""The frame of every page, and charts that can be redrawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import ui
from nicegui.element import Element

from milonga.board import charts
from milonga.board.pages.parts import add_box, add_link, add_text, make_url

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
def page_frame(title: str, up: str | None = None) -> Iterator[Element]:
    ui.page_title(f"{title} · Milonga")
    ui.add_head_html('<link rel="stylesheet" href="/board/board.css"><script src="/board/board.js"></script>')
    with add_box("top", "header"):
        add_link("Milonga", make_url(""), "brand")
        if up is not None:
            add_link("↑", up, "up", rel="up", title="one level up (Escape)")
        add_text(title, "where", "h1")
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
    with page_frame("not found", make_url("")):
        add_text(text, "note")
        add_link("all runs", make_url(""))


def refresh_periodically(refresh: Callable[[], Any]) -> None:
    """Call `refresh` every few seconds while the page is open."""
    ui.timer(EVERY, refresh, immediate=False)


def add_chart(title: str, options: charts.Options, hint: str = "", tall: bool = False) -> ui.echart:
    with add_box("panel"):
        with add_box("title"):
            add_text(title, "", "h2")
            add_text(hint, "hint")
        found = ui.echart(options, renderer="svg").classes("chart tall" if tall else "chart")
        add_text("nothing measured yet", "nothing")
    mark_empty(found)
    return found


def mark_empty(found: ui.echart) -> None:
    found.classes(add="empty") if not found.options["series"] else found.classes(remove="empty")


def redraw(found: ui.echart, options: charts.Options) -> None:
    if found.options != options:
        found.options.clear()
        found.options.update(options)
        mark_empty(found)
        found.update()
