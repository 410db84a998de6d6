"""The basic elements of all pages: boxes, text, links, and text coloured by advantage.

Invariant: text is never HTML. There is no way here to pass HTML: names, questions and completions are set as the text of an
element, or as the value of an attribute whose name we chose, with control characters escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from milonga.text import escape_invisible

E = TypeVar("E", bound=Element)
LONGEST = 20_000
"""Most characters of one text that a page shows."""
TINY = 0.05
"""Largest advantage of a page below which all of them are tiny, and shown relative to each other."""
SEGMENTS = 600
"""Most segments of equal colour in a strip."""


class Words(TextElement):
    """An element with text in it."""

    def __init__(self, text: object, tag: str) -> None:
        super().__init__(tag=tag, text=clip_text(str(text)))

    def change_text(self, text: str) -> None:
        """Replace the text; nothing is sent to the browser if it is the same."""
        if self.text != clip_text(text):
            self.set_text(clip_text(text))


def clip_text(text: str, longest: int = LONGEST) -> str:
    left = len(text) - longest
    return (
        escape_invisible(text, lines=True)
        if left <= 0
        else f"{escape_invisible(text[:longest], lines=True)} … {left:,} more characters"
    )


def add_box(classes: str = "", tag: str = "div", **attributes: Any) -> Element:
    return _set_attributes(ui.element(tag), classes, attributes)


def add_text(text: object, classes: str = "", tag: str = "span", **attributes: Any) -> Words:
    return _set_attributes(Words(text, tag), classes, attributes)


def add_link(text: object, to: str, classes: str = "", **attributes: Any) -> Words:
    return add_text(text, classes, "a", href=to, **attributes)


def _set_attributes(element: E, classes: str, attributes: Mapping[str, Any]) -> E:
    """Set classes and attributes of an element. `data_item` becomes the attribute data-item; None leaves one out."""
    if classes:
        element.classes(classes)
    for name, value in attributes.items():
        if value is not None:
            element.props[name.replace("_", "-")] = escape_invisible(value, lines=True) if name == "title" else value
    return element


def show_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    add_text(title, "", "h2")
    with add_box("table", "table"):
        with add_box("", "thead"), add_box("", "tr"):
            for name in head:
                add_text(name, "", "th")
        with add_box("", "tbody"):
            for row in rows:
                with add_box("", "tr"):
                    for cell in row:
                        add_text(cell, "", "td")


def make_url(page: str, name: str = "", **query: object) -> str:
    """Make the address of a page. Empty query values are left out; a list repeats its key."""
    pairs: list[tuple[str, object]] = []
    for key, value in query.items():
        values: Iterable[object] = value if isinstance(value, list | tuple | set | frozenset) else [value]
        pairs += [(key, one) for one in values if one not in (None, "")]
    path = f"/{page}" + (f"/{quote(name)}" if name else "")
    return path + (f"?{urlencode(pairs)}" if pairs else "")


def format_advantage(value: float, scale: float) -> str:
    """Format an advantage with as many digits as the largest on the page needs, so that small ones do not all read 0.00."""
    if value == 0:
        return "0"
    return f"{value:+.2f}" if scale >= TINY else f"{value:+.1e}"


def format_number(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "–"
    return f"{value:+.3f}" if signed else f"{value:.3f}"


def get_verdict_mark(right: bool | None) -> tuple[str, str]:
    """Return symbol and CSS class of a verdict. The symbol differs too, so that colour alone never carries the meaning."""
    return {True: ("✓", "right"), False: ("✗", "wrong"), None: ("·", "unknown")}[right]


def show_token_advantages(text: str, classes: str, advantages: tuple[float, ...], ends: tuple[int, ...], scale: float) -> None:
    """Show a text with its tokens underlined in the colour of their advantages; plain if all advantages are equal.

    advantages: one per token; ends: the end of each token in the text, aligned with advantages.
    """
    pieces = split_by_advantage(text, advantages, ends)
    if not 1 < len(pieces) <= SEGMENTS or len(text) > LONGEST:
        add_text(text, classes)
        return
    with add_box(classes, "span"):
        for piece, value in pieces:
            add_text(piece, "token").style["--heat"] = _get_advantage_colour(value, scale)


def split_by_advantage(text: str, advantages: tuple[float, ...], ends: tuple[int, ...]) -> list[tuple[str, float]]:
    """Split a text into (piece, advantage) with equal advantages joined; empty if the tokens do not cover the text."""
    if len(ends) != len(advantages) or not ends or ends[-1] < len(text) or list(ends) != sorted(ends):
        return []
    out: list[tuple[str, float]] = []
    begin = 0
    for value, end in zip(advantages, ends, strict=True):
        if out and out[-1][1] == value:
            out[-1] = (out[-1][0] + text[begin:end], value)
        elif end > begin:
            out.append((text[begin:end], value))
        begin = end
    return out


def show_advantage_strip(advantages: tuple[float, ...], scale: float, title: str = "") -> None:
    """Show per-token advantages as a colour strip: orange is negative, grey zero, blue positive."""
    if not advantages:
        return
    low, high = min(advantages), max(advantages)
    mean = sum(advantages) / len(advantages)
    digits = ".3f" if scale >= TINY else ".2e"
    span = "" if low == high else f" ({low:+{digits}} to {high:+{digits}})"
    told = f"{title}{len(advantages)} tokens, advantage {mean:+{digits}}{span}"
    element = add_box("strip", title=told, role="img", aria_label=told)
    element.style["background"] = f"linear-gradient(to right, {', '.join(_make_gradient_stops(advantages, scale))})"


def _make_gradient_stops(advantages: tuple[float, ...], scale: float) -> list[str]:
    """Hard stops of a CSS gradient, one per segment of equal value. Long rollouts keep the largest |advantage| per bin."""
    each = -(-len(advantages) // SEGMENTS)
    values = [max(advantages[at : at + each], key=abs) for at in range(0, len(advantages), each)]
    out, begin = [], 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[begin]:
            out.append(
                f"{_get_advantage_colour(values[begin], scale)} {100 * begin / len(values):.2f}% {100 * at / len(values):.2f}%"
            )
            begin = at
    return out


def _get_advantage_colour(value: float, scale: float) -> str:
    strength = min(1.0, abs(value) / scale) ** 0.5 if scale > 0 else 0.0  # small ones stay visible
    tone = "213,94,0" if value < 0 else "0,114,178"
    return f"rgba({tone},{0.08 + 0.92 * strength:.2f})" if strength else "rgba(128,136,146,0.18)"
