"""Charts of bars, side by side or stacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milonga.charts.axes import Rows, make_axis, to_drawable
from milonga.charts.frame import Frame
from milonga.charts.svg import WIDTH, Value, coord, format_value, render_text, render_tooltip, series_class


@dataclass(frozen=True)
class Bars:
    """A series of bars, one in every category."""

    name: str
    values: Sequence[Value]
    low: Sequence[Value] = ()
    high: Sequence[Value] = ()


def bar_chart(
    title: str,
    categories: Sequence[str],
    bars: Sequence[Bars],
    *,
    x_label: str = "",
    stacked: bool = False,
    value_range: tuple[float, float] | None = None,
    width: float = WIDTH,
    thick: float | None = None,
) -> str:
    """Draw horizontal bars, so that names of any length fit; side by side within a category, or stacked."""
    thin, gap = (16.0, 7.0) if stacked or len(bars) == 1 else (11.0, 9.0)
    thick = thin if thick is None else thick
    each = thick * (1 if stacked else max(len(bars), 1)) + gap
    x = make_axis([0.0, *_list_bar_ends(categories, bars, stacked), *(value_range or ())], label=x_label, outward=True)
    names = [one.name for one in bars] if len(bars) > 1 or stacked else []
    frame = Frame(title, names, x, Rows(categories), width, each * len(categories), fixed=True)
    body = []
    for row in range(len(categories)):
        ends = [0.0, 0.0]  # ends of the stack below and above zero
        for k, one in enumerate(bars):
            value = to_drawable(one.values[row] if row < len(one.values) else None)
            if value is None:
                continue
            start = ends[value >= 0] if stacked else 0.0
            ends[value >= 0] = start + value
            top = frame.top + row * each + gap / 2 + (0 if stacked else k * thick)
            body.append(
                _render_bar(frame, k, one, row, (start, start + value), top, thick if stacked else thick - 1, len(bars) == 1)
            )
    zero = frame.to_pixel_x(0.0)
    if zero is not None and x.low < 0:
        body.append(f'<path class="zero" d="M{coord(zero)} {coord(frame.top)}V{coord(frame.bottom)}"/>')
    said = [f"{one.name}: " + ", ".join(format_value(v) for v in one.values[:12]) for one in bars]
    return frame.render("Bar chart", [", ".join(categories[:12]), *said], "".join(body))


def _render_bar(
    frame: Frame, k: int, one: Bars, row: int, reach: tuple[float, float], top: float, thick: float, alone: bool
) -> str:
    a, b = frame.to_pixel_x(reach[0]), frame.to_pixel_x(reach[1])
    assert a is not None and b is not None and isinstance(frame.y, Rows)
    value = reach[1] - reach[0]
    left, right = min(a, b), max(a, b)
    tip = render_tooltip(f"{frame.y.names[row]}, {one.name}: {format_value(value)}")
    place = f'x="{coord(left)}" y="{coord(top)}" width="{coord(right - left)}" height="{coord(thick)}"'
    out = f'<rect class="bar" {place} rx="1">{tip}</rect>'
    edges = [frame.to_pixel_x(edge[row]) if row < len(edge) else None for edge in (one.low, one.high)]
    inside = [min(max(edge, frame.left), frame.right) for edge in edges if edge is not None]
    if len(inside) == 2:
        out += f'<path class="whisker" d="M{coord(inside[0])} {coord(top + thick / 2)}H{coord(inside[1])}"/>'
        right = max(right, *inside)
    if alone:
        out += render_text(right + 4, top + thick / 2 + 4, format_value(value))
    return f'<g class="{series_class(k)}">{out}</g>'


def _list_bar_ends(categories: Sequence[str], bars: Sequence[Bars], stacked: bool) -> list[float]:
    """List the values that the axis must contain. Whiskers may be cut off: with two seeds they can be huge."""
    out: list[float] = []
    for row in range(len(categories)):
        values = [v for one in bars if row < len(one.values) and (v := to_drawable(one.values[row])) is not None]
        signs = ([v for v in values if v >= 0], [v for v in values if v < 0])
        out += [sum(part) for part in signs] if stacked else values
    return out
