"""The pages of saved rollouts: a filtered list of problems, and the page of one problem."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nicegui import ui

from milonga.board.browse import FLAGS, PAGE, Cursor, Filters, Flag, Group, Listing
from milonga.board.catalogue import Card
from milonga.board.pages.board import Board
from milonga.board.pages.frame import EVERY, page_frame
from milonga.board.pages.parts import add_box, add_link, add_text, make_url
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


def parse_filters(turn: str, flags: Sequence[str], text: str) -> Filters:
    known: list[Flag] = [flag for flag in FLAGS if flag in flags]
    return Filters(int(turn) if turn.isdecimal() and len(turn) < 13 else None, frozenset(known), text[:200])


def parse_cursor(text: str) -> Cursor | None:
    turn, _, passed = text.partition(".")
    plain = turn.isdecimal() and passed.isdecimal() and len(text) < 26
    return Cursor(int(turn), int(passed)) if plain else None


def _make_query(filters: Filters, turn: str = "turn") -> dict[str, Any]:
    return {turn: filters.turn, "flag": sorted(filters.flags), "q": filters.text}


async def show_rollouts(board: Board, card: Card, filters: Filters, start: Cursor | None) -> None:
    rollouts = board.open_rollouts(card)
    turns = await asyncio.to_thread(rollouts.list_turns)
    found = await asyncio.to_thread(rollouts.list_problems, filters, start, PAGE, SEARCH_S)
    room = PAGE - len(found.groups)
    with page_frame(f"{card.name}: what the models wrote", make_url("run", card.name)):
        _show_filters(card, filters, turns)
        newer = add_box("links")
        groups = add_box("groups")
        with groups:
            for group in found.groups:
                _show_group(card, filters, group)
        ending = add_box("ending")
        with ending:
            _show_ending(card, filters, found, room)

    async def go_on() -> None:
        """Continue the search until the page is full; after that, only check for newer turns."""
        nonlocal found, room
        if found.after is not None and room > 0:
            found = await asyncio.to_thread(rollouts.list_problems, filters, found.after, room, SEARCH_S)
            room -= len(found.groups)
            with groups:
                for group in found.groups:
                    _show_group(card, filters, group)
            ending.clear()
            with ending:
                _show_ending(card, filters, found, room)
        if found.after is None or room == 0:
            timer.interval = EVERY
        now = await asyncio.to_thread(rollouts.list_turns)
        if start is None and now[:1] != turns[:1] and not newer.default_slot.children:
            with newer:
                add_link("Newer turns are there: show them", make_url("rollouts", card.name, **_make_query(filters)))

    timer = ui.timer(SEARCH_AGAIN_S, go_on, immediate=False)


def _show_filters(card: Card, filters: Filters, turns: Sequence[int]) -> None:
    with add_box("filters"):
        for flag, meaning in FLAGS.items():
            here = flag in filters.flags
            changed = filters.flags - {flag} if here else filters.flags | {flag}
            query = _make_query(Filters(filters.turn, frozenset(changed), filters.text))
            add_link(LABELS[flag], make_url("rollouts", card.name, **query), "chip on" if here else "chip", title=meaning)
        with add_box("search", "form", action=make_url("rollouts", card.name), method="get"):
            for flag in sorted(filters.flags):
                add_box("", "input", type="hidden", name="flag", value=flag)
            with add_box("", "select", name="turn", aria_label="turn", data_act="submit"):
                add_text("all turns", "", "option", value="")
                for turn in _select_turns(turns, filters.turn):
                    add_text(f"turn {turn}", "", "option", value=str(turn), selected=True if turn == filters.turn else None)
            add_box(
                "",
                "input",
                type="search",
                name="q",
                value=filters.text,
                placeholder="question or name  ( / )",
                aria_label="search",
            )
            add_text("Search", "button", "button", type="submit")


def _select_turns(turns: Sequence[int], chosen: int | None) -> list[int]:
    """Select at most 200 turns to choose from, evenly spaced, including the newest and the chosen one."""
    each = max(1, -(-len(turns) // 200))
    return sorted({*turns[::each], *((chosen,) if chosen is not None else ())}, reverse=True)


def _show_group(card: Card, filters: Filters, group: Group) -> None:
    to = make_url("problem", card.name, turn=group.turn, problem=group.problem, **_make_query(filters, "within"))
    with add_box("group", "a", href=to, data_item=f"{group.turn} {group.problem}"):
        add_text(f"turn {group.turn}", "turn")
        add_text(group.question[:400], "question")
        with add_box("badges"):
            if group.graded:
                solved = add_text(f"{group.solved}/{group.graded} solved", "solved")
                solved.style["--share"] = f"{group.solved / group.graded:.3f}"
            if group.checks:
                add_text(f"{group.checks} checks", "badge")
            for flag, count in (("fooled", group.fooled), ("invalid", group.invalid), ("contradiction", group.contradiction)):
                if count:
                    add_text(f"{SYMBOLS[flag]} {count} {flag}", f"badge {flag}")
        add_text(group.problem, "id")


def _show_ending(card: Card, filters: Filters, found: Listing, room: int) -> None:
    """Show what stands below a list that has room for `room` more problems: notes, and a link to the next page."""
    for text in found.broken:
        add_text(text, "note")
    if found.oldest is None:
        add_text("No rollouts of that: they are kept every few turns (--set keep.rollouts_every=1 for each).", "note")
    elif found.after is None:
        add_text("This is all that fits." if room else "", "note")
    elif room:
        add_text(f"searching, down to turn {found.oldest} so far", "note")
    if found.after is not None:
        add_link("More ( n )", make_url("rollouts", card.name, **_make_query(filters), after=found.after), "button", rel="next")


async def show_problem(board: Board, card: Card, turn: str, problem: str, filters: Filters, opened: str | None) -> None:
    up = make_url("rollouts", card.name, **_make_query(filters))
    rollouts = board.open_rollouts(card)
    at = int(turn) if turn.isdecimal() and len(turn) < 13 else -1
    try:
        found = await asyncio.to_thread(rollouts.load_transcript, at, problem)
        following = await asyncio.to_thread(rollouts.find_next_problem, filters, at, problem)
    except Exception as error:
        with page_frame("cannot be read", up):
            add_text(f"The rollouts of turn {at} cannot be read: {error}", "note")
        return
    with page_frame(f"{card.name}: turn {at}", up):
        if found is None:
            add_text(f"There is no problem '{problem}' in the rollouts of turn {at}.", "note")
            return
        show_transcript(found, opened)
        if following is not None:
            to = make_url(
                "problem", card.name, turn=following.turn, problem=following.problem, **_make_query(filters, "within")
            )
            add_link("Next problem ( n )", to, "button", rel="next")
