"""Charts of matrices: a cell for each number, the darker the larger."""

from __future__ import annotations

from collections.abc import Sequence

from milonga.charts.axes import to_drawable
from milonga.charts.svg import (
    WIDTH,
    Value,
    coord,
    estimate_width,
    fit_text,
    format_value,
    render_svg,
    render_text,
    render_tooltip,
)


def matrix_chart(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[Value]],
    *,
    x_label: str = "",
    y_label: str = "",
    width: float = WIDTH,
) -> str:
    """Draw a matrix of shares: each cell with its number, the darker the larger between the least and the largest of them. A
    value that is missing is an empty cell."""
    known = [v for line in values for value in line if (v := to_drawable(value)) is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    left = 10 + min(max((estimate_width(name) for name in rows), default=0.0), width * 0.3)
    top = 26 + (18 if y_label else 0)
    each, high_each = (width - left - 2) / max(len(columns), 1), 30.0
    bottom = top + high_each * len(rows)
    body = [render_text(2, 14, fit_text(title, width * 0.92), kind="name", full=title)]
    body += [render_text(2, top - 6, y_label)] if y_label else []
    for row, (name, line) in enumerate(zip(rows, values, strict=True)):
        middle = top + (row + 0.5) * high_each
        body.append(render_text(left - 6, middle + 4, fit_text(name, left - 10), "end", full=name))
        for column, value in enumerate(line):
            place = (left + column * each, top + row * high_each, each, high_each)
            tip = f"{name}, {columns[column]}: {format_value(value)}"
            body.append(_render_cell(place, to_drawable(value), (low, high), tip))
    for column, name in enumerate(columns):
        centre = left + (column + 0.5) * each
        body.append(render_text(centre, bottom + 15, fit_text(name, each - 4), "middle", full=name))
    if x_label:
        body.append(render_text((left + width) / 2, bottom + 31, x_label, "middle"))
    said = [f"{name}: " + ", ".join(map(format_value, line[:12])) for name, line in zip(rows[:12], values, strict=False)]
    return render_svg("Matrix", title, said, width, bottom + (36 if x_label else 22), "".join(body))


def _render_cell(place: tuple[float, float, float, float], value: Value, reach: tuple[float, float], said: str) -> str:
    left, top, width, height = place
    share = 0.0 if value is None else (value - reach[0]) / (reach[1] - reach[0]) if reach[1] > reach[0] else 0.5
    box = f'x="{coord(left + 1)}" y="{coord(top + 1)}" width="{coord(max(width - 2, 1))}" height="{coord(height - 2)}"'
    look = f'opacity="{0.0 if value is None else 0.08 + 0.5 * share:.2f}"'
    text = "–" if value is None else f"{value:.3f}" if abs(value) < 1e3 else f"{value:.3g}"
    cell = f'<rect class="cell" {box} rx="3" {look}>{render_tooltip(said)}</rect>'
    return cell + render_text(left + width / 2, top + height / 2 + 4, fit_text(text, width), "middle", "share")
