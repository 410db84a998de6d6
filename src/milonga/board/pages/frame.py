"""The frame of every page, and charts that can be redrawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import ui
from nicegui.element import Element

from milonga.board import charts
from milonga.board.pages.parts import box, link, url, words

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
def frame(title: str, up: str | None = None) -> Iterator[Element]:
    ui.page_title(f"{title} · Milonga")
    ui.add_head_html('<link rel="stylesheet" href="/board/board.css"><script src="/board/board.js"></script>')
    with box("top", "header"):
        link("Milonga", url(""), "brand")
        if up is not None:
            link("↑", up, "up", rel="up", title="one level up (Escape)")
        words(title, "where", "h1")
        words("◐", "tool", "button", data_act="theme", title="light or dark (t)", type="button")
        words("?", "tool", "button", data_act="help", title="keys (?)", type="button")
    with box("main", "main") as main:
        yield main
    with box("help", "dialog", id="help"):
        words("Keys", "", "h2")
        with box("keys", "dl"):
            for key, what in KEYS:
                words(key, "", "dt")
                words(what, "", "dd")


def missing(text: str) -> None:
    with frame("not found", url("")):
        words(text, "note")
        link("all runs", url(""))


def look_again(refresh: Callable[[], Any]) -> None:
    """Call `refresh` every few seconds while the page is open."""
    ui.timer(EVERY, refresh, immediate=False)


def chart(title: str, options: charts.Options, hint: str = "", tall: bool = False) -> ui.echart:
    with box("panel"):
        with box("title"):
            words(title, "", "h2")
            words(hint, "hint")
        found = ui.echart(options, renderer="svg").classes("chart tall" if tall else "chart")
        words("nothing measured yet", "nothing")
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
