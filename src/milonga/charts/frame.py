"""The frame of a chart: title, legend, axes, grid, and the mapping from numbers to pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from milonga.charts.axes import Axis, Rows, to_drawable
from milonga.charts.svg import Value, coord, estimate_width, fit_text, render_dot, render_svg, render_text, series_class

SAMPLE = 26.0
"""Width of the piece of a line in the legend."""


@dataclass
class Frame:
    """Title, legend, axes and grid of a chart, and the mapping from numbers to pixels."""

    title: str
    names: Sequence[str | None]
    """Names of the series; None for an empty one: it keeps its colour, but the legend leaves it out."""
    x: Axis
    y: Axis | Rows
    width: float
    height: float
    """Of the chart without its notes."""
    notes: Sequence[str] = ()
    """Lines of text below the horizontal axis."""
    fixed: bool = False
    """Whether `height` is that of the plot area, not of the whole chart."""
    left: float = field(init=False)
    top: float = field(init=False)
    right: float = field(init=False)
    bottom: float = field(init=False)

    def __post_init__(self) -> None:
        longest = max((estimate_width(name) for name in self.y.names), default=0.0)
        self.left = 10 + min(longest, self.width * 0.42)
        last = estimate_width(self.x.names[-1]) / 2 if self.x.names else 0.0
        self.right = self.width - max(10.0, last + 4) - (34 if isinstance(self.y, Rows) else 0)
        self.entries = _layout_legend(self.names, self.width)
        self.top = 26 + 17 * (self.entries[-1][2] + 1 if self.entries else 0) + (20 if self.y.label else 2)
        below = 22 + (14 if self.x.label else 0) + 14 * len(self.notes)
        self.height += self.top + below if self.fixed else 14 * len(self.notes)
        self.bottom = max(self.height - below, self.top + 20)
        self.height = self.bottom + below

    def to_pixel_x(self, x: float | None) -> float | None:
        value = to_drawable(x, self.x.log)
        return None if value is None else self.left + self.x.to_fraction(value) * (self.right - self.left)

    def to_pixels(self, x: Value, y: Value) -> tuple[float, float] | None:
        """Map a point to pixels; None for a gap."""
        assert isinstance(self.y, Axis)
        left, value = self.to_pixel_x(x), to_drawable(y, self.y.log)
        return (
            None
            if left is None or value is None
            else (left, self.bottom - self.y.to_fraction(value) * (self.bottom - self.top))
        )

    def points_to_pixels(self, x: Sequence[Value], y: Sequence[Value]) -> list[tuple[Value, Value, tuple[float, float] | None]]:
        return [(a, b, self.to_pixels(a, b)) for a, b in zip(x, y, strict=True)]

    def render(self, kind: str, said: Sequence[str], body: str) -> str:
        return render_svg(kind, self.title, said, self.width, self.height, self._render_labels() + self._render_grid() + body)

    def _render_labels(self) -> str:
        out = [render_text(2, 14, fit_text(self.title, self.width * 0.92), kind="name", full=self.title)]
        for k, left, row, name in self.entries:
            top = 32 + 17 * row
            sample = self._render_sample(k, left, top - 4)
            label = render_text(left + SAMPLE + 5, top, name, full=self.names[k] or "")
            out.append(f'<g class="{series_class(k)}">{sample}{label}</g>')
        if self.y.label:
            out.append(render_text(2, self.top - 11, self.y.label))
        middle = (self.left + self.right) / 2
        if self.x.label:
            out.append(render_text(middle, self.bottom + 31, self.x.label, "middle"))
        for k, note in enumerate(self.notes):
            below = self.height - 5 - 14 * (len(self.notes) - 1 - k)
            out.append(render_text(middle, below, fit_text(note, 2 * (self.width - middle) - 10), "middle", full=note))
        return "".join(out)

    def _render_sample(self, k: int, left: float, middle: float) -> str:
        """Render what stands before a name in the legend: a piece of the line with its point; of bars their colour."""
        if isinstance(self.y, Rows):
            return f'<rect class="bar" x="{coord(left + SAMPLE - 12)}" y="{coord(middle - 5)}" width="12" height="10" rx="1"/>'
        line = f'<path class="line" d="M{coord(left)} {coord(middle)}h{coord(SAMPLE)}"/>'
        return line + render_dot(left + SAMPLE / 2, middle, 2.8, "dot", "", k)

    def _render_grid(self) -> str:
        out = []
        for tick, name in zip(self.x.ticks, self.x.names, strict=True):
            left = self.to_pixel_x(tick)
            assert left is not None
            out.append(f'<path class="grid" d="M{coord(left)} {coord(self.top)}V{coord(self.bottom)}"/>')
            out.append(render_text(left, self.bottom + 15, name, "middle"))
        if isinstance(self.y, Rows):
            each = (self.bottom - self.top) / max(len(self.y.names), 1)
            for k, name in enumerate(self.y.names):
                short = fit_text(name, self.left - 10)
                out.append(render_text(self.left - 6, self.top + (k + 0.5) * each + 4, short, "end", full=name))
            return "".join(out)
        for tick, name in zip(self.y.ticks, self.y.names, strict=True):
            top = self.bottom - self.y.to_fraction(tick) * (self.bottom - self.top)
            kind = "zero" if tick == 0 and self.y.low < 0 else "grid"
            out.append(f'<path class="{kind}" d="M{coord(self.left)} {coord(top)}H{coord(self.right)}"/>')
            out.append(render_text(self.left - 6, top + 4, name, "end"))
        return "".join(out)


def _layout_legend(names: Sequence[str | None], width: float) -> list[tuple[int, float, int, str]]:
    """Lay out the legend: (series index, left edge, row, name cut to fit) for each entry."""
    out: list[tuple[int, float, int, str]] = []
    left, row = 2.0, 0
    for k, name in enumerate(names):
        if name is None:
            continue
        short = fit_text(name, min(240.0, width - 30))
        needed = SAMPLE + 5 + estimate_width(short) + 16
        if out and left + needed > width:
            left, row = 2.0, row + 1
        out.append((k, left, row, short))
        left += needed
    return out
