"""The list of runs: one row for each, and one for each comparison or sweep, which opens to its runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from nicegui.element import Element

from milonga.board.catalogue import Card, Comparison
from milonga.board.pages.board import Board
from milonga.board.pages.frame import Chart, page_frame, redraw, refresh_periodically
from milonga.board.pages.parts import Words, add_box, add_link, add_text, format_number, make_url
from milonga.charts import sparkline
from milonga.health import Finding
from milonga.report.blocks import Figure
from milonga.runfolder.console import format_time

COLUMNS = ("run", "task", "model", "state", "turn", "accuracy", "sound", "F1", "gap", "health", "changed")
NAMES = ("run", "task", "model", "state")
"""Columns of words."""
MOST_BADGES = 3
Key = Callable[["Entry"], tuple[bool, float | str]]
"""What entries are sorted by: whether it is missing, and its value."""


@dataclass(frozen=True)
class Entry:
    """A row of the list: a run, or a comparison or sweep with its runs."""

    name: str
    cards: Sequence[Card]
    group: Comparison | None = None

    @property
    def state(self) -> str:
        states = {card.state for card in self.cards}
        if self.group is not None and self.group.running:
            return "running"
        waited_for = self.group is not None and self.group.kind == "comparison" and not self.group.finished
        if self.group is None or (len(states) == 1 and not (waited_for and states == {"finished"})):
            return next(iter(states), "stopped")
        return next((state for state in ("running", "failed", "broken") if state in states), "stopped")


def format_cells(card: Card) -> dict[str, str]:
    """Format the cells of a run in the list, keyed by column."""
    wanted = "" if card.turns is None else f"/{card.turns}"
    lead = "" if card.lead_turn is None else f" ({card.lead_turn}{wanted})"
    left = "" if card.left is None else f", {format_time(card.left)} left"
    return {
        "run": card.name.removeprefix(f"{card.comparison}/") if card.comparison else card.name,
        "state": card.state,
        "recipe": card.recipe,
        "task": card.task,
        "model": card.model,
        "seed": "" if card.seed is None else str(card.seed),
        "turn": "–" if card.turn is None else f"{card.turn}{lead}{left}",
        "accuracy": format_number(card.figures.get("accuracy")),
        "sound": format_number(card.figures.get("sound")),
        "F1": format_number(card.figures.get("f1")),
        "gap": format_number(card.figures.get("gap"), signed=True),
        "changed": _format_age(card.changed),
    }


def format_group(entry: Entry) -> dict[str, str]:
    """Format the cells of a comparison or a sweep: what its runs have in common, and where they are."""
    assert entry.group is not None
    cards = entry.cards
    counts = {state: sum(card.state == state for card in cards) for state in dict.fromkeys(card.state for card in cards)}
    missing = {"to come": count} if (count := entry.group.planned - len(cards)) > 0 else {}
    accuracies = [card.figures["accuracy"] for card in cards if "accuracy" in card.figures]
    ends = dict.fromkeys(f"{value:.3f}" for value in (min(accuracies), max(accuracies))) if accuracies else ["–"]
    return {
        "run": entry.name,
        "state": entry.state,
        "task": _format_shared([card.task for card in cards], "tasks"),
        "model": _format_shared([card.model for card in cards], "models"),
        "turn": ", ".join(f"{count} {state}" for state, count in (counts | missing).items()) or "–",
        "accuracy": " – ".join(ends),
        "sound": "",
        "F1": "",
        "gap": "",
        "changed": _format_age(max((card.changed for card in cards), default=0.0)),
    }


def describe_group(entry: Entry) -> str:
    """Describe a comparison or a sweep: how many arms and runs it has."""
    assert entry.group is not None
    arms, runs = len({card.arm for card in entry.cards}), len(entry.cards)
    kind = entry.group.kind
    ready = " (not finished)" if kind == "comparison" and not entry.group.finished else ""
    return f"{kind}{ready}: {arms} arm{'s' * (arms != 1)}, {runs} run{'s' * (runs != 1)}"


def _format_shared(texts: Sequence[str], plural: str) -> str:
    different = list(dict.fromkeys(text for text in texts if text))
    return different[0] if len(different) == 1 else f"{len(different)} {plural}" if different else ""


def _format_age(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    if not moment:
        return ""
    return f"{format_time(seconds)} ago" if seconds < 86400 else f"{seconds / 86400:.0f} days ago"


def make_entries(cards: Sequence[Card], comparisons: Iterable[Comparison]) -> list[Entry]:
    """Make the rows of the list: each comparison and sweep where the first of its runs would be."""
    groups = {one.name: one for one in comparisons}
    members: dict[str, list[Card]] = {name: [] for name in groups}
    for card in cards:
        if card.comparison:
            members[card.comparison].append(card)
    out: dict[str, Entry] = {}
    for card in cards:
        name = card.comparison or card.name
        if card.comparison:
            inner = sorted(members[name], key=lambda one: (one.arm, one.seed or 0, one.name))
            out.setdefault(f"group {name}", Entry(name, inner, groups[name]))
        else:
            out[name] = Entry(name, [card])
    empty = [Entry(name, [], groups[name]) for name in groups if not members[name]]
    return [*out.values(), *empty]


def _by_text(pick: Callable[[Card], str]) -> Key:
    def find(entry: Entry) -> tuple[bool, float | str]:
        text = min((pick(card).lower() for card in entry.cards), default="")
        return not text, text

    return find


def _by_number(pick: Callable[[Card], float | None]) -> Key:
    """By the largest of the runs of an entry."""

    def find(entry: Entry) -> tuple[bool, float | str]:
        values = [value for card in entry.cards if (value := pick(card)) is not None]
        return not values, max(values, default=0.0)

    return find


SORTED_BY: dict[str, Key] = {
    "run": lambda entry: (False, entry.name.lower()),
    "task": _by_text(lambda card: card.task),
    "model": _by_text(lambda card: card.model),
    "state": lambda entry: (False, entry.state),
    "turn": _by_number(lambda card: card.done),
    "accuracy": _by_number(lambda card: card.figures.get("accuracy")),
    "sound": _by_number(lambda card: card.figures.get("sound")),
    "F1": _by_number(lambda card: card.figures.get("f1")),
    "gap": _by_number(lambda card: card.figures.get("gap")),
    "health": _by_number(lambda card: sum(1 + one.severe for one in card.findings)),
    "changed": _by_number(lambda card: card.changed or None),
}


def sort_entries(entries: Sequence[Entry], by: str) -> list[Entry]:
    """Sort the rows of the list by a column, by its name with a minus downwards; what has no value comes last. Without a column
    the order stays: what runs first, then the newest."""
    key = SORTED_BY.get(by.removeprefix("-"))
    if key is None:
        return list(entries)
    known = [entry for entry in entries if not key(entry)[0]]
    ranked = sorted(known, key=lambda entry: key(entry)[1], reverse=by.startswith("-"))
    return [*ranked, *(entry for entry in entries if key(entry)[0])]


def choose_order(column: str, by: str) -> str:
    """Choose what a click on a column sorts by: names upwards and numbers downwards first, then the other way round."""
    if by.removeprefix("-") == column:
        return column if by.startswith("-") else f"-{column}"
    return column if column in NAMES else f"-{column}"


async def show_runs(board: Board, by: str, opened: str) -> None:
    cards = await asyncio.to_thread(board.catalogue.scan)
    with page_frame(board.catalogue.root.name, full=str(board.catalogue.root)):
        form = add_box("form", "form", action="/side", method="get")
        with form:
            body = add_box("runs")
            add_text("Side by side", "button", "button", type="submit", title="the runs that are ticked")
    table = RunTable(body, by, frozenset(opened.split(",")))
    await table.show(make_entries(cards, board.catalogue.comparisons.values()))

    async def refresh() -> None:
        found = await asyncio.to_thread(board.catalogue.scan)
        await table.show(make_entries(found, board.catalogue.comparisons.values()))

    refresh_periodically(refresh)


@dataclass
class Row:
    """The parts of a row that change while a page lives."""

    cells: dict[str, Words]
    badges: Element
    spark: Chart | None = None
    findings: list[tuple[str, bool, str]] = field(default_factory=list)


class RunTable:
    """The table of runs. It is rebuilt when runs are added or reordered; otherwise its cells are updated in place."""

    def __init__(self, body: Element, by: str, opened: frozenset[str]) -> None:
        self.body, self.by, self.opened = body, by, opened
        self.built: list[object] | None = None
        """What it was built from."""
        self.rows: dict[str, Row] = {}
        self.cards: dict[str, Card] = {}

    async def show(self, entries: Sequence[Entry]) -> None:
        entries = sort_entries(entries, self.by)
        self.cards = {card.name: card for entry in entries for card in entry.cards}
        built: list[object] = [(entry.name, entry.group, entry.state) for entry in entries]
        built += [(card.name, card.state, card.note) for card in self.cards.values()]
        if built != self.built:
            self.built = built
            self.build(entries)
        for entry in entries:
            if entry.group is not None:
                findings = [one for card in entry.cards for one in card.findings]
                self.change(f"group {entry.name}", format_group(entry), findings, find_mean_done(entry))
            for card in entry.cards:
                self.change(card.name, format_cells(card), card.findings, card.done)
        await redraw([row.spark for row in self.rows.values() if row.spark is not None])

    def change(self, name: str, texts: dict[str, str], findings: Sequence[Finding], done: float | None) -> None:
        row = self.rows[name]
        for column, cell in row.cells.items():
            cell.change_text(texts[column])
        share = f"{done or 0.0:.3f}"
        if row.cells["turn"].style.get("--share") != share:
            row.cells["turn"].style["--share"] = share
            row.cells["turn"].update()
        told = _count_badges(findings)
        if told != row.findings:
            row.findings = told
            row.badges.clear()
            with row.badges:
                show_badges(told)

    def build(self, entries: Sequence[Entry]) -> None:
        self.body.clear()
        self.rows = {}
        with self.body:
            if not entries:
                add_text("No runs here yet: 'milonga run tango' makes one.", "note")
                return
            self.add_head()
            for entry in entries:
                if entry.group is None:
                    self.rows[entry.name] = self.add_run(entry.cards[0])
                else:
                    self.add_group(entry, entry.group)

    def add_head(self) -> None:
        """Add the names of the columns; a click on one sorts by it, and on the same again the other way round."""
        with add_box("row head"):
            add_text("")
            for column in COLUMNS:
                order, shown = choose_order(column, self.by), {"": "", "ascending": " ▴", "descending": " ▾"}
                here = "" if self.by.removeprefix("-") != column else "descending" if self.by.startswith("-") else "ascending"
                url = make_url("", sort=order)
                add_link(column + shown[here], url, column.lower(), title=f"sort by {column}", aria_sort=here or None)

    def add_group(self, entry: Entry, group: Comparison) -> None:
        """Add the row of a comparison or sweep, which opens to its runs."""
        key = entry.name
        with add_box("set", "details", data_key=key, data_item=f"set {key}", open=True if key in self.opened else None):
            with add_box("row", "summary"):
                add_text("▸", "fold")
                with add_box("run"):
                    link = add_link(entry.name, make_url("comparison", entry.name), "name")
                    add_text(describe_group(entry), "what")
                self.rows[f"group {key}"] = self.add_cells(format_group(entry), entry.state, {"run": link}, None)
            for card in entry.cards:
                self.rows[card.name] = self.add_run(card)

    def add_run(self, card: Card) -> Row:
        texts = format_cells(card)
        with add_box("row", data_item=card.name):
            add_box("", "input", type="checkbox", name="run", value=card.name, aria_label=f"compare {card.name}")
            with add_box("run"):
                link = add_link(texts["run"], make_url("run", card.name), "name")
                add_text(", ".join(filter(None, (card.recipe, texts["seed"] and f"seed {texts['seed']}"))), "what")
            row = self.add_cells(texts, card.state, {"run": link}, card)
            if card.note:
                add_text(card.note, "why")
        return row

    def add_cells(self, texts: dict[str, str], state: str, cells: dict[str, Words], card: Card | None) -> Row:
        """Add the cells of a row behind its name."""
        for column in ("task", "model"):
            full = ", ".join(card.models) if card is not None and column == "model" else texts[column]
            cells[column] = add_text(texts[column], column, data_label=column, title=full or None)
        cells["state"] = add_text(texts["state"], f"state {state}", data_label="state")
        cells["turn"] = add_text(texts["turn"], "turn", data_label="turn")
        spark = None
        with add_box("accuracy"):
            if card is not None:
                spark = Chart(partial(self.draw_spark, card.name), "spark")
            cells["accuracy"] = add_text(texts["accuracy"], "number", data_label="accuracy")
        for column in ("sound", "F1", "gap"):
            cells[column] = add_text(texts[column], column.lower(), data_label=column)
        badges = add_box("health")
        cells["changed"] = add_text(texts["changed"], "changed", data_label="changed")
        return Row(cells, badges, spark)

    def draw_spark(self, name: str) -> Figure | None:
        card = self.cards.get(name)
        return None if card is None or len(card.curve) < 2 else Figure(sparkline("over its turns", card.curve), "", [])


def find_mean_done(entry: Entry) -> float | None:
    """Over all runs of a comparison or sweep, those that its plan asks for and that have not begun included."""
    shares = [1.0 if card.state == "finished" else card.done or 0.0 for card in entry.cards]
    planned = 0 if entry.group is None else entry.group.planned
    return sum(shares) / max(len(shares), planned) if shares else None


def _count_badges(findings: Sequence[Finding]) -> list[tuple[str, bool, str]]:
    """Count findings by badge: (word, severe, what is found and what helps)."""
    out = []
    for badge in dict.fromkeys(one.badge for one in findings):
        alike = [one for one in findings if one.badge == badge]
        count = f" ×{len(alike)}" if len(alike) > 1 else ""
        out.append((f"{badge}{count}", any(one.severe for one in alike), "\n".join(dict.fromkeys(map(str, alike)))))
    return out


def show_badges(told: Sequence[tuple[str, bool, str]]) -> None:
    for text, severe, why in told[:MOST_BADGES]:
        add_text(("✗ " if severe else "! ") + text, "badge severe" if severe else "badge warning", title=why)
    if len(told) > MOST_BADGES:
        more = told[MOST_BADGES:]
        add_text(f"+{len(more)}", "badge", title="\n".join(why for _, _, why in more))
