"""The pages of saved rollouts: a filtered list of problems, and the page of one problem."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nicegui import ui

from milonga.board.browse import FLAGS, PAGE, Cursor, Filters, Flag, Group, Listing
from milonga.board.catalogue import Card
from milonga.board.pages.board import Board
from milonga.board.pages.frame import EVERY, frame
from milonga.board.pages.parts import box, link, url, words
from milonga.board.pages.transcript import show_transcript

SEARCH_S = 1.0
"""Seconds that a list searches before it shows what it has found."""
SEARCH_AGAIN_S = 0.3
"""Seconds until the search continues."""
LABELS: dict[Flag, str] = {
    "fooled": "verifier fooled",
    "invalid": "invalid",
    "contradiction": "contradiction",
    "few": "solved by few",
}
SYMBOLS = {"fooled": "⚑", "invalid": "∅", "contradiction": "≠"}


def read_filters(turn: str, flags: Sequence[str], text: str) -> Filters:
    known: list[Flag] = [flag for flag in FLAGS if flag in flags]
    return Filters(int(turn) if turn.isdecimal() and len(turn) < 13 else None, frozenset(known), text[:200])


def read_cursor(text: str) -> Cursor | None:
    turn, _, passed = text.partition(".")
    plain = turn.isdecimal() and passed.isdecimal() and len(text) < 26
    return Cursor(int(turn), int(passed)) if plain else None


def query_of(filters: Filters, turn: str = "turn") -> dict[str, Any]:
    return {turn: filters.turn, "flag": sorted(filters.flags), "q": filters.text}


async def show_traces(board: Board, card: Card, filters: Filters, start: Cursor | None) -> None:
    traces = board.traces(card)
    turns = await asyncio.to_thread(traces.turns)
    found = await asyncio.to_thread(traces.page, filters, start, PAGE, SEARCH_S)
    room = PAGE - len(found.groups)
    with frame(f"{card.name}: what the models wrote", url("run", card.name)):
        show_filters(card, filters, turns)
        newer = box("links")
        groups = box("groups")
        with groups:
            for group in found.groups:
                show_group(card, filters, group)
        ending = box("ending")
        with ending:
            show_ending(card, filters, found, room)

    async def go_on() -> None:
        """Continue the search until the page is full; after that, only check for newer turns."""
        nonlocal found, room
        if found.after is not None and room > 0:
            found = await asyncio.to_thread(traces.page, filters, found.after, room, SEARCH_S)
            room -= len(found.groups)
            with groups:
                for group in found.groups:
                    show_group(card, filters, group)
            ending.clear()
            with ending:
                show_ending(card, filters, found, room)
        if found.after is None or room == 0:
            timer.interval = EVERY
        now = await asyncio.to_thread(traces.turns)
        if start is None and now[:1] != turns[:1] and not newer.default_slot.children:
            with newer:
                link("Newer turns are there: show them", url("traces", card.name, **query_of(filters)))

    timer = ui.timer(SEARCH_AGAIN_S, go_on, immediate=False)


def show_filters(card: Card, filters: Filters, turns: Sequence[int]) -> None:
    with box("filters"):
        for flag, meaning in FLAGS.items():
            here = flag in filters.flags
            changed = filters.flags - {flag} if here else filters.flags | {flag}
            query = query_of(Filters(filters.turn, frozenset(changed), filters.text))
            link(LABELS[flag], url("traces", card.name, **query), "chip on" if here else "chip", title=meaning)
        with box("search", "form", action=url("traces", card.name), method="get"):
            for flag in sorted(filters.flags):
                box("", "input", type="hidden", name="flag", value=flag)
            with box("", "select", name="turn", aria_label="turn", data_act="submit"):
                words("all turns", "", "option", value="")
                for turn in shown_turns(turns, filters.turn):
                    words(f"turn {turn}", "", "option", value=str(turn), selected=True if turn == filters.turn else None)
            box(
                "",
                "input",
                type="search",
                name="q",
                value=filters.text,
                placeholder="question or name  ( / )",
                aria_label="search",
            )
            words("Search", "button", "button", type="submit")


def shown_turns(turns: Sequence[int], chosen: int | None) -> list[int]:
    """Select at most 200 turns to choose from, evenly spaced, including the newest and the chosen one."""
    each = max(1, -(-len(turns) // 200))
    return sorted({*turns[::each], *((chosen,) if chosen is not None else ())}, reverse=True)


def show_group(card: Card, filters: Filters, group: Group) -> None:
    to = url("problem", card.name, turn=group.turn, problem=group.problem, **query_of(filters, "within"))
    with box("group", "a", href=to, data_item=f"{group.turn} {group.problem}"):
        words(f"turn {group.turn}", "turn")
        words(group.question[:400], "question")
        with box("badges"):
            if group.graded:
                solved = words(f"{group.solved}/{group.graded} solved", "solved")
                solved.style["--share"] = f"{group.solved / group.graded:.3f}"
            if group.checks:
                words(f"{group.checks} checks", "badge")
            for flag, count in (("fooled", group.fooled), ("invalid", group.invalid), ("contradiction", group.contradiction)):
                if count:
                    words(f"{SYMBOLS[flag]} {count} {flag}", f"badge {flag}")
        words(group.problem, "id")


def show_ending(card: Card, filters: Filters, found: Listing, room: int) -> None:
    """Show what stands below a list that has room for `room` more problems: notes, and a link to the next page."""
    for text in found.broken:
        words(text, "note")
    if found.oldest is None:
        words("No traces of that: they are kept every few turns (--set keep.traces_every=1 for each).", "note")
    elif found.after is None:
        words("This is all that fits." if room else "", "note")
    elif room:
        words(f"searching, down to turn {found.oldest} so far", "note")
    if found.after is not None:
        link("More ( n )", url("traces", card.name, **query_of(filters), after=found.after), "button", rel="next")


async def show_problem(board: Board, card: Card, turn: str, problem: str, filters: Filters, opened: str | None) -> None:
    up = url("traces", card.name, **query_of(filters))
    traces = board.traces(card)
    at = int(turn) if turn.isdecimal() and len(turn) < 13 else -1
    try:
        found = await asyncio.to_thread(traces.transcript, at, problem)
        following = await asyncio.to_thread(traces.following, filters, at, problem)
    except Exception as error:
        with frame("cannot be read", up):
            words(f"The traces of turn {at} cannot be read: {error}", "note")
        return
    with frame(f"{card.name}: turn {at}", up):
        if found is None:
            words(f"There is no problem '{problem}' in the traces of turn {at}.", "note")
            return
        show_transcript(found, opened)
        if following is not None:
            to = url("problem", card.name, turn=following.turn, problem=following.problem, **query_of(filters, "within"))
            link("Next problem ( n )", to, "button", rel="next")
