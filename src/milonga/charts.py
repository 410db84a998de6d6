"""Draw charts as SVG: lines with bands, paths in a plane, bars, reliability diagrams, flows. For pages, reports and files.

Invariants: the same numbers give the same bytes; any text gives well-formed XML; a value that is None, not finite, or not
positive on a logarithmic axis is a gap, never a zero. Colours come from `STYLE`, which follows the reader's light or dark
scheme: a page holds it once, and `make_standalone` puts it into a chart that is to be a file of its own. Nothing in a chart
needs a script; the value of a point is its tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from milonga.text import UNITS, clip_text, escape_invisible, format_amount

Value = float | None
COLOURS = 7
"""Number of colours in the palette (Okabe and Ito's, safe for red-green colour blindness). More repeat it, dash-dotted."""
DASHES = ("", "7 3.5", "2 2.5", "9 3 2 3")
"""Dashes of the first series, the second, …; the same again after the last. The shapes of points differ likewise: a series can
be told from its neighbours without its colour."""
MOST_POINTS = 240
"""Most points of a line; a longer one keeps the minimum and maximum of every bin."""
MOST_MARKS = 60
"""Most points of a line that each have a mark; of a longer one some do."""
FEW_MARKS = 16
LARGEST, SMALLEST = 1e300, 1e-300
"""Larger and smaller numbers are clamped to these, so that no difference of two overflows."""
CHARACTER = 6.1
"""Mean width of a character at the size of the labels, in pixels."""
FAR = 10_000.0
"""Pixels outside of the frame at which the edge of a band is clamped."""
WIDTH, HEIGHT = 520.0, 260.0
SAMPLE = 26.0
"""Width of the piece of a line in the legend."""

_LIGHT_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8579a", "#b87f00", "#3d9bd6", "#59636e")
_DARK_COLOURS = ("#4ea8e0", "#f08a45", "#2fc49b", "#e39ac8", "#f0b23c", "#93d0f5", "#aab4bf")
LIGHT = "--ink:#1f2328;--soft:#59636e;--grid:#dfe3e8;--paper:#ffffff"
DARK = "--ink:#e6edf3;--soft:#9aa4af;--grid:#30363d;--paper:#0d1117"
LIGHT += "".join(f";--c{k}:{colour}" for k, colour in enumerate(_LIGHT_COLOURS))
DARK += "".join(f";--c{k}:{colour}" for k, colour in enumerate(_DARK_COLOURS))
"""The colours of both schemes, for pages on which the reader chooses one."""
STYLE = (
    f".chart{{{LIGHT};max-width:100%;height:auto;display:block}}\n"
    f"@media screen and (prefers-color-scheme:dark){{.chart{{{DARK}}}}}\n"
    ".chart text{font:11px system-ui,-apple-system,'Segoe UI',sans-serif;fill:var(--soft)}\n"
    ".chart .name{font-size:12.5px;font-weight:600;fill:var(--ink)}\n"
    ".chart .grid{stroke:var(--grid);stroke-width:1;shape-rendering:crispEdges}\n"
    ".chart .zero{stroke:var(--soft);stroke-width:1;shape-rendering:crispEdges}\n"
    ".chart .ideal{stroke:var(--soft);stroke-dasharray:4 4;fill:none}\n"
    ".chart .line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}\n"
    ".chart .thin{stroke-width:1;opacity:.55}\n"
    ".chart .band{fill:var(--c);fill-opacity:.12;stroke:var(--c);stroke-opacity:.5;stroke-width:.8}\n"
    ".chart .dot,.chart .bar{fill:var(--c)}\n"
    ".chart .hollow{fill:var(--paper);stroke:var(--c);stroke-width:1.8}\n"
    ".chart .whisker{stroke:var(--ink);stroke-width:1;opacity:.75}\n"
    ".chart .stream{fill:var(--c);opacity:.42}\n"
    ".chart .share{font-weight:600;fill:var(--ink)}\n"
    ".chart .cell{fill:var(--c0)}\n"
    ".chart .node{fill:var(--paper);stroke:var(--soft)}\n"
    ".chart .paper{fill:var(--paper)}\n"
)
STYLE += "".join(f".chart .s{k}{{--c:var(--c{k})}}\n" for k in range(COLOURS))
STYLE += "".join(f".chart .s{k} .line{{stroke-dasharray:{DASHES[k % 4]}}}\n" for k in range(COLOURS) if DASHES[k % 4])
STYLE += ".chart .dashed .line{stroke-dasharray:14 3 2 3 2 3}\n"


@dataclass(frozen=True)
class Series:
    """A curve by its points, in order; `low` and `high` are the edges of its band."""

    name: str
    x: Sequence[Value]
    y: Sequence[Value]
    low: Sequence[Value] = ()
    high: Sequence[Value] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.x), len(self.y)} | {len(edge) for edge in (self.low, self.high) if edge}
        if len(lengths) > 1 or bool(self.low) != bool(self.high):
            raise ValueError(f"series '{self.name}': x, y, low and high must have one length; they have {sorted(lengths)}")


@dataclass(frozen=True)
class Bars:
    """A series of bars, one in every category."""

    name: str
    values: Sequence[Value]
    low: Sequence[Value] = ()
    high: Sequence[Value] = ()


@dataclass(frozen=True)
class Bin:
    """A bin of a reliability diagram: mean predicted probability (`said`), observed frequency (`true`), number of cases."""

    said: float
    true: float
    count: int


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "",
    y_label: str = "",
    log_x: bool = False,
    log_y: bool = False,
    y_range: tuple[float, float] | None = None,
    least: float = 0.0,
    width: float = WIDTH,
    height: float = HEIGHT,
) -> str:
    """Draw curves over a common axis. `y_range` is widened if a curve leaves it. Without one the axis goes as far as the curves
    go, and their bands at most as far again, or `least`, on both sides; bands are cut off at the frame."""
    drawn = [thin_series(one, log_x, log_y) for one in series]
    heights = [v for one in drawn for v in one.y]
    x = make_axis((v for one in drawn for v in one.x), log_x, x_label, whole=True)
    reach = _find_band_reach(drawn, heights, least) if y_range is None else y_range
    y = make_axis([*heights, *reach], log_y, y_label, outward=True)
    frame = Frame(title, [_get_legend_name(one) for one in drawn], x, y, width, height)
    body = []
    for k, one in enumerate(drawn):
        inner = _render_band(frame, one) + _render_line(frame, one) + _render_dots(frame, one, k)
        body.append(f'<g class="{_series_class(k)}">{inner}</g>')
    return frame.render("Line chart", describe_series(series), "".join(body))


def path_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "",
    y_label: str = "",
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    width: float = WIDTH,
    height: float = 320.0,
) -> str:
    """Draw paths in a plane: a hollow point at the start, points that grow darker with time, a large one at the end."""
    drawn = [thin_series(one) for one in series]
    x = make_axis([*(v for one in drawn for v in one.x), *(x_range or ())], label=x_label, outward=True)
    y = make_axis([*(v for one in drawn for v in one.y), *(y_range or ())], label=y_label, outward=True)
    frame = Frame(title, [_get_legend_name(one) for one in drawn], x, y, width, height)
    body = []
    for k, one in enumerate(drawn):
        points = [(*place, px, py) for px, py, place in frame.points_to_pixels(one.x, one.y) if place is not None]
        dots = []
        for at, (left, top, px, py) in enumerate(points):
            first, last = at == 0, at == len(points) - 1
            shape = "hollow" if first else "dot"
            fade = "" if first or last else f' opacity="{0.25 + 0.6 * at / len(points):.2f}"'
            when = ", start" if first else ", end" if last else f", point {at + 1} of {len(points)}"
            dots.append(
                _render_dot(
                    left, top, 5 if last else 4 if first else 2.5, shape, f"{one.name}: {_format_point(px, py)}{when}", k, fade
                )
            )
        line = _render_line(frame, one).replace('class="line"', 'class="line thin"')
        body.append(f'<g class="{_series_class(k)}">{line}{"".join(dots)}</g>')
    return frame.render("Path", describe_series(series), "".join(body))


def reliability_chart(
    title: str,
    curves: Sequence[tuple[str, Sequence[Bin]]],
    *,
    x_label: str = "said",
    y_label: str = "true",
    width: float = 360.0,
    height: float = 340.0,
) -> str:
    """Draw a reliability diagram: observed frequency against predicted probability. Perfect calibration is the dashed line;
    the area of a point is its number of cases."""
    unit = make_axis((0.0, 1.0), label=x_label)
    frame = Frame(title, [name for name, _ in curves], unit, make_axis((0.0, 1.0), label=y_label), width, height)
    most = max((b.count for _, bins in curves for b in bins), default=1) or 1
    a, b = frame.to_pixels(0.0, 0.0), frame.to_pixels(1.0, 1.0)
    assert a is not None and b is not None
    body = [f'<path class="ideal" d="M{_coords(*a)}L{_coords(*b)}"/>']
    for k, (name, bins) in enumerate(curves):
        line = Series(name, [one.said for one in bins], [one.true for one in bins])
        dots = []
        for one, (_, _, place) in zip(bins, frame.points_to_pixels(line.x, line.y), strict=True):
            if place is not None:
                radius = 2 + 6 * math.sqrt(max(one.count, 0) / most)
                dots.append(
                    _render_dot(*place, radius, "dot", f"{name}: {_format_point(one.said, one.true)}, {one.count} cases", k)
                )
        body.append(f'<g class="{_series_class(k)}">{_render_line(frame, line)}{"".join(dots)}</g>')
    said = [f"{name}, {sum(one.count for one in bins)} cases in {len(bins)} bins" for name, bins in curves]
    return frame.render("Reliability diagram", said, "".join(body))


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
        body.append(f'<path class="zero" d="M{_coord(zero)} {_coord(frame.top)}V{_coord(frame.bottom)}"/>')
    said = [f"{one.name}: " + ", ".join(_format_value(v) for v in one.values[:12]) for one in bars]
    return frame.render("Bar chart", [", ".join(categories[:12]), *said], "".join(body))


def flow_chart(title: str, shares: Mapping[tuple[str, str], Value], *, width: float = WIDTH, height: float = HEIGHT) -> str:
    """Draw shares that flow from senders (left) to receivers (right); a stream is as wide as its share. The chart is as high as
    other charts, and higher where the names need it."""
    known = {edge: share for edge, value in shares.items() if (share := to_drawable(value)) is not None}
    names = [list(dict.fromkeys(edge[side] for edge in known)) for side in (0, 1)]
    top, box = 28.0, min(150.0, width * 0.29)
    height = max(height, top + 40 * max(*map(len, names), 1), top + 18 * len(known))
    sides = [_stack_nodes(known, side, names[side], (top, height - 6)) for side in (0, 1)]
    scale = min(_find_spare(len(one), (top, height - 6)) for one in names) / (sum(map(_weigh, known.values())) or 1.0)
    ends = [_stack_streams(known, side, sides, scale) for side in (0, 1)]
    edges = []
    for edge, share in known.items():
        tip = _render_tooltip(f"{edge[1]} had {share:.1%} from {edge[0]}")
        way = _render_stream(box, width - box, ends[0][edge], ends[1][edge])
        edges.append(f'<g class="{_series_class(names[0].index(edge[0]))}"><path class="stream" d="{way}">{tip}</path></g>')
    order = sorted(known, key=lambda edge: sum(ends[1][edge]))
    middles = _spread([sum(ends[1][edge]) / 2 for edge in order], 15.0, top + 8, height - 14)
    labels = [
        _render_text(width - box - 8, middle + 4, f"{known[edge]:.1%}" if abs(known[edge]) < 1e6 else "", "end", "share")
        for edge, middle in zip(order, middles, strict=True)
    ]
    boxes = [_render_node(side * (width - box), reach, name, box) for side in (0, 1) for name, reach in sides[side].items()]
    said = [f"{receiver} had {share:.0%} from {sender}" for (sender, receiver), share in known.items()]
    head = _render_text(2, 14, _fit_text(title, width), kind="name", full=title)
    return _render_svg("Flow", title, said, width, height, head + "".join(edges) + "".join(labels) + "".join(boxes))


Reach = tuple[float, float]
"""Top and bottom of something, in pixels."""
BOX, GAP = 24.0, 12.0
"""Least height of a box of a flow chart, and the distance of two."""


def _weigh(share: float) -> float:
    return min(max(share, 0.0), 1e6)


def _find_spare(boxes: int, reach: Reach) -> float:
    """Pixels of the height that are left for what flows, beside the least heights of the boxes of one side."""
    return reach[1] - reach[0] - boxes * BOX - max(boxes - 1, 0) * GAP


def _stack_nodes(known: Mapping[tuple[str, str], float], side: int, names: Sequence[str], reach: Reach) -> dict[str, Reach]:
    """Divide the height among the boxes of one side: each has room for its name, and more for what flows through it."""
    sums = {name: sum(_weigh(share) for edge, share in known.items() if edge[side] == name) for name in names}
    total = sum(sums.values())
    out, at = {}, reach[0]
    for name in names:
        size = BOX + _find_spare(len(names), reach) * (sums[name] / total if total else 1 / len(names))
        out[name] = (at, at + size)
        at += size + GAP
    return out


def _stack_streams(
    known: Mapping[tuple[str, str], float], side: int, sides: Sequence[Mapping[str, Reach]], scale: float
) -> dict[tuple[str, str], Reach]:
    """Place the streams at the boxes of one side, in the order of their other ends, so that they cross little. One without a
    share is still a line."""
    out = {}
    for name, (top, bottom) in sides[side].items():
        streams = sorted((edge for edge in known if edge[side] == name), key=lambda edge: sides[1 - side][edge[1 - side]])
        sizes = [min(1.5, BOX / len(streams)) + scale * _weigh(known[edge]) for edge in streams]
        at = (top + bottom - sum(sizes)) / 2
        for edge, size in zip(streams, sizes, strict=True):
            out[edge] = (at, at + size)
            at += size
    return out


def _render_stream(left: float, right: float, begin: Reach, end: Reach) -> str:
    bend = (left + right) / 2
    upper = f"M{_coords(left, begin[0])}C{_coords(bend, begin[0])} {_coords(bend, end[0])} {_coords(right, end[0])}"
    lower = f"L{_coords(right, end[1])}C{_coords(bend, end[1])} {_coords(bend, begin[1])} {_coords(left, begin[1])}Z"
    return upper + lower


def _spread(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Move ascending places apart, until neighbours are `least` apart, within `low` and `high` as far as there is room."""
    out: list[float] = []
    for place in places:
        out.append(max(place, low if not out else out[-1] + least))
    limit = high
    for at in range(len(out) - 1, -1, -1):
        out[at] = min(out[at], limit)
        limit = out[at] - least
    return out


def sparkline(title: str, points: Sequence[tuple[float, float]], *, width: float = 84.0, height: float = 22.0) -> str:
    """Draw a curve as small as a word: without axes, its last point marked."""
    one = thin_series(Series(title, [x for x, _ in points], [y for _, y in points]))
    x, y = make_axis(one.x), make_axis(one.y)
    places = [
        None if a is None or b is None else (3 + x.to_fraction(a) * (width - 7), height - 4 - y.to_fraction(b) * (height - 8))
        for a, b in zip(one.x, one.y, strict=True)
    ]
    known = [place for place in places if place is not None]
    way = "".join("M" + "L".join(_coords(*point) for point in part) for part in _split_at_gaps(places) if len(part) > 1)
    line = f'<path class="line" d="{way}"/>' if way else ""
    end = _render_dot(*known[-1], 2.4, "dot", "") if known else ""
    return _render_svg("Curve", title, describe_series([one]), width, height, f'<g class="s0">{line}{end}</g>')


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
    left = 10 + min(max((_estimate_width(name) for name in rows), default=0.0), width * 0.3)
    top = 26 + (18 if y_label else 0)
    each, high_each = (width - left - 2) / max(len(columns), 1), 30.0
    bottom = top + high_each * len(rows)
    body = [_render_text(2, 14, _fit_text(title, width * 0.92), kind="name", full=title)]
    body += [_render_text(2, top - 6, y_label)] if y_label else []
    for row, (name, line) in enumerate(zip(rows, values, strict=True)):
        middle = top + (row + 0.5) * high_each
        body.append(_render_text(left - 6, middle + 4, _fit_text(name, left - 10), "end", full=name))
        for column, value in enumerate(line):
            place = (left + column * each, top + row * high_each, each, high_each)
            tip = f"{name}, {columns[column]}: {_format_value(value)}"
            body.append(_render_cell(place, to_drawable(value), (low, high), tip))
    for column, name in enumerate(columns):
        centre = left + (column + 0.5) * each
        body.append(_render_text(centre, bottom + 15, _fit_text(name, each - 4), "middle", full=name))
    if x_label:
        body.append(_render_text((left + width) / 2, bottom + 31, x_label, "middle"))
    said = [f"{name}: " + ", ".join(map(_format_value, line[:12])) for name, line in zip(rows[:12], values, strict=False)]
    return _render_svg("Matrix", title, said, width, bottom + (36 if x_label else 22), "".join(body))


def _render_cell(place: tuple[float, float, float, float], value: Value, reach: tuple[float, float], said: str) -> str:
    left, top, width, height = place
    share = 0.0 if value is None else (value - reach[0]) / (reach[1] - reach[0]) if reach[1] > reach[0] else 0.5
    box = f'x="{_coord(left + 1)}" y="{_coord(top + 1)}" width="{_coord(max(width - 2, 1))}" height="{_coord(height - 2)}"'
    look = f'opacity="{0.0 if value is None else 0.08 + 0.5 * share:.2f}"'
    text = "–" if value is None else f"{value:.3f}" if abs(value) < 1e3 else f"{value:.3g}"
    cell = f'<rect class="cell" {box} rx="3" {look}>{_render_tooltip(said)}</rect>'
    return cell + _render_text(left + width / 2, top + height / 2 + 4, _fit_text(text, width), "middle", "share")


def join_charts(charts: Sequence[str], gap: float = 24.0) -> str:
    """Join charts to one, side by side. Their descriptions for screen readers stay with the parts."""
    out, left, tallest = [], 0.0, 0.0
    for svg in charts:
        _, _, width, height = map(float, svg.partition('viewBox="')[2].partition('"')[0].split())
        out.append(svg.replace('class="chart"', f'class="part" x="{_coord(left)}"', 1))
        left, tallest = left + width + gap, max(tallest, height)
    size = (_coord(max(left - gap, 0.0)), _coord(tallest))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {size[0]} {size[1]}"'
    return f'{head} width="{size[0]}" height="{size[1]}">{"".join(out)}</svg>'


def make_standalone(svg: str) -> str:
    """Make a chart a standalone file: with its style sheet and a background."""
    head, _, rest = svg.partition(">")
    return f'{head}><style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>{rest}\n'


# --- numbers ---------------------------------------------------------------------------------------------------------------


def to_drawable(value: Value, log: bool = False) -> float | None:
    """Clamp a number to what can be drawn; None for a gap."""
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    size = min(abs(float(value)), LARGEST)
    if log:
        return max(size, SMALLEST)
    return 0.0 if size < SMALLEST else math.copysign(size, value)


def thin_series(one: Series, log_x: bool = False, log_y: bool = False) -> Series:
    """Thin a series to about MOST_POINTS points: each bin keeps its ends, minimum, maximum and one gap, if it has any."""
    x, y = [to_drawable(v, log_x) for v in one.x], [to_drawable(v, log_y) for v in one.y]
    low, high = [to_drawable(v, log_y) for v in one.low], [to_drawable(v, log_y) for v in one.high]
    kept = list(range(len(x)))
    if len(x) > MOST_POINTS:
        size = math.ceil(len(x) / (MOST_POINTS // 4))
        kept = sorted({at for start in range(0, len(x), size) for at in _select_extremes(y, start, min(start + size, len(x)))})

    def pick(values: list[float | None]) -> list[float | None]:
        return [values[at] for at in kept] if values else []

    return Series(one.name, pick(x), pick(y), pick(low), pick(high))


def _select_extremes(y: Sequence[float | None], start: int, end: int) -> set[int]:
    known = [(v, at) for at in range(start, end) if (v := y[at]) is not None]
    gaps = [at for at in range(start, end) if y[at] is None][:1]
    return {start, end - 1, *gaps, *((min(known)[1], max(known)[1]) if known else ())}


@dataclass(frozen=True)
class Axis:
    """A range of numbers with its ticks; `low < high`."""

    low: float
    high: float
    ticks: Sequence[float]
    names: Sequence[str]
    label: str = ""
    log: bool = False

    def to_fraction(self, value: float) -> float:
        """Position of a number on the axis, from 0 at `low` to 1 at `high`."""
        if self.log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Rows:
    """Categories from top to bottom, in place of a vertical axis."""

    names: Sequence[str]
    label: str = ""


def make_axis(values: Iterable[Value], log: bool = False, label: str = "", outward: bool = False, whole: bool = False) -> Axis:
    """Make an axis that contains all values. `outward` extends it to begin and end at a tick; with `whole` the ticks of whole
    numbers are whole, however few there are."""
    known = [v for value in values if (v := to_drawable(value, log)) is not None]
    if log:
        return _make_log_axis(known, label)
    low, high = min(known, default=0.0), max(known, default=1.0)
    size = max(abs(low), abs(high))
    counts = bool(known) and all(v == round(v) for v in known) and (whole or high - low > 1)  # 0 and 1 may be a share's ends
    if high - low <= size * 1e-9:  # one value, or too near for floating point to tell ticks apart
        around = 0.5 if counts and size < 1e6 else size * 0.1 or 1.0
        low, high = low - around, high + around
    step = max(_nice_step(high - low, 5, (1.0, 2.0, 5.0)), 1.0) if counts else _nice_step(high - low, 5)
    if outward:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    ticks = [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return Axis(low, high, ticks, _format_ticks(ticks, step), label)


def _nice_step(span: float, target: int, nice: Sequence[float] = (1.0, 2.0, 2.5, 5.0)) -> float:
    """Round a step to a nice number times a power of ten, so that `span` has about `target` steps."""
    raw = span / target
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in nice if m * power >= raw * (1 - 1e-9)), 10.0 * power)


def _format_ticks(ticks: Sequence[float], step: float) -> list[str]:
    """Format all ticks alike: the same unit, and as many decimals as the step needs."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    unit, name = next(((size, name) for size, name in UNITS if 1e4 <= largest < 1e21 and largest >= size), (1.0, ""))
    whole = (places for places in range(7) if math.isclose(scaled := step / unit * 10**places, round(scaled), rel_tol=1e-6))
    decimals = next(whole, None)
    if decimals is None or largest >= 1e21:
        digits = max(1, math.ceil(math.log10(largest / step)) + 1) if largest else 1
        return [f"{tick:.{min(digits, 12)}g}" for tick in ticks]
    return ["0" if tick == 0 else f"{tick / unit:.{decimals}f}{name}" for tick in ticks]


def _make_log_axis(known: Sequence[float], label: str) -> Axis:
    low, high = min(known, default=1.0), max(known, default=10.0)
    if high / low < 1.5:
        low, high = low / 1.5, high * 1.5
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 6))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [m * 10.0**e for e in range(first, last + 1, every) for m in factors if low * 0.999 <= m * 10.0**e <= high * 1.001]
    ticks = ticks or [low, high]
    return Axis(min(low, ticks[0]), max(high, ticks[-1]), ticks, [_format_log_tick(tick) for tick in ticks], label, log=True)


def _format_log_tick(tick: float) -> str:
    return format_amount(tick) if 1e-3 <= tick < 1e21 else f"{tick:.3g}"


# --- drawing ---------------------------------------------------------------------------------------------------------------


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
    fixed: bool = False
    """Whether `height` is that of the plot area, not of the whole chart."""
    left: float = field(init=False)
    top: float = field(init=False)
    right: float = field(init=False)
    bottom: float = field(init=False)

    def __post_init__(self) -> None:
        longest = max((_estimate_width(name) for name in self.y.names), default=0.0)
        self.left = 10 + min(longest, self.width * 0.42)
        last = _estimate_width(self.x.names[-1]) / 2 if self.x.names else 0.0
        self.right = self.width - max(10.0, last + 4) - (34 if isinstance(self.y, Rows) else 0)
        self.entries = _layout_legend(self.names, self.width)
        self.top = 26 + 17 * (self.entries[-1][2] + 1 if self.entries else 0) + (20 if self.y.label else 2)
        below = 22 + (14 if self.x.label else 0)
        if self.fixed:
            self.height += self.top + below
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
        return _render_svg(kind, self.title, said, self.width, self.height, self._render_labels() + self._render_grid() + body)

    def _render_labels(self) -> str:
        out = [_render_text(2, 14, _fit_text(self.title, self.width * 0.92), kind="name", full=self.title)]
        for k, left, row, name in self.entries:
            top = 32 + 17 * row
            sample = self._render_sample(k, left, top - 4)
            label = _render_text(left + SAMPLE + 5, top, name, full=self.names[k] or "")
            out.append(f'<g class="{_series_class(k)}">{sample}{label}</g>')
        if self.y.label:
            out.append(_render_text(2, self.top - 11, self.y.label))
        if self.x.label:
            out.append(_render_text((self.left + self.right) / 2, self.height - 5, self.x.label, "middle"))
        return "".join(out)

    def _render_sample(self, k: int, left: float, middle: float) -> str:
        """Render what stands before a name in the legend: a piece of the line with its point; of bars their colour."""
        if isinstance(self.y, Rows):
            return (
                f'<rect class="bar" x="{_coord(left + SAMPLE - 12)}" y="{_coord(middle - 5)}" width="12" height="10" rx="1"/>'
            )
        line = f'<path class="line" d="M{_coord(left)} {_coord(middle)}h{_coord(SAMPLE)}"/>'
        return line + _render_dot(left + SAMPLE / 2, middle, 2.8, "dot", "", k)

    def _render_grid(self) -> str:
        out = []
        for tick, name in zip(self.x.ticks, self.x.names, strict=True):
            left = self.to_pixel_x(tick)
            assert left is not None
            out.append(f'<path class="grid" d="M{_coord(left)} {_coord(self.top)}V{_coord(self.bottom)}"/>')
            out.append(_render_text(left, self.bottom + 15, name, "middle"))
        if isinstance(self.y, Rows):
            each = (self.bottom - self.top) / max(len(self.y.names), 1)
            for k, name in enumerate(self.y.names):
                short = _fit_text(name, self.left - 10)
                out.append(_render_text(self.left - 6, self.top + (k + 0.5) * each + 4, short, "end", full=name))
            return "".join(out)
        for tick, name in zip(self.y.ticks, self.y.names, strict=True):
            top = self.bottom - self.y.to_fraction(tick) * (self.bottom - self.top)
            kind = "zero" if tick == 0 and self.y.low < 0 else "grid"
            out.append(f'<path class="{kind}" d="M{_coord(self.left)} {_coord(top)}H{_coord(self.right)}"/>')
            out.append(_render_text(self.left - 6, top + 4, name, "end"))
        return "".join(out)


def _render_svg(kind: str, title: str, said: Sequence[str], width: float, height: float, body: str) -> str:
    """Render the SVG element around a chart, with its description for screen readers."""
    label = _escape_attribute(clip_text(f"{kind}: {title}." + "".join(f" {text};" for text in said), 600))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{label}" '
        f'viewBox="0 0 {_coord(width)} {_coord(height)}" width="{_coord(width)}" height="{_coord(height)}">{body}</svg>'
    )


def _render_node(left: float, reach: Reach, name: str, width: float) -> str:
    """Render a box of a flow chart with its name."""
    top, bottom = reach
    rect = (
        f'<rect class="node" x="{_coord(left + 1)}" y="{_coord(top)}" width="{_coord(width - 2)}" '
        f'height="{_coord(bottom - top)}" rx="5"/>'
    )
    return rect + _render_text(left + width / 2, (top + bottom) / 2 + 4, _fit_text(name, width - 12), "middle", full=name)


def _layout_legend(names: Sequence[str | None], width: float) -> list[tuple[int, float, int, str]]:
    """Lay out the legend: (series index, left edge, row, name cut to fit) for each entry."""
    out: list[tuple[int, float, int, str]] = []
    left, row = 2.0, 0
    for k, name in enumerate(names):
        if name is None:
            continue
        short = _fit_text(name, min(240.0, width - 30))
        needed = SAMPLE + 5 + _estimate_width(short) + 16
        if out and left + needed > width:
            left, row = 2.0, row + 1
        out.append((k, left, row, short))
        left += needed
    return out


def _get_legend_name(one: Series) -> str | None:
    return one.name if any(v is not None for v in one.y) else None


def _split_at_gaps(places: Iterable[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    """Split a line at its gaps."""
    out: list[list[tuple[float, float]]] = [[]]
    for place in places:
        if place is None:
            out.append([])
        else:
            out[-1].append(place)
    return [segment for segment in out if segment]


def _render_line(frame: Frame, one: Series) -> str:
    parts = _split_at_gaps(place for _, _, place in frame.points_to_pixels(one.x, one.y))
    way = "".join("M" + "L".join(_coords(*point) for point in part) for part in parts if len(part) > 1)
    return f'<path class="line" d="{way}"/>' if way else ""


def _render_dots(frame: Frame, one: Series, k: int) -> str:
    """Render a dot at each point of series `k`; of many points at some, and at isolated ones, which no line would show."""
    places = frame.points_to_pixels(one.x, one.y)
    count = sum(place is not None for _, _, place in places)
    every = 1 if count <= MOST_MARKS else math.ceil(count / FEW_MARKS)
    out = []
    for at, (x, y, place) in enumerate(places):
        around = [p for _, _, p in places[max(at - 1, 0) : at + 2]]
        alone = sum(p is not None for p in around) == 1
        if place is not None and (at % every == 0 or alone):
            out.append(_render_dot(*place, 2.6, "dot", f"{one.name}: {_format_point(x, y)}", k))
    return "".join(out)


def _find_band_reach(drawn: Sequence[Series], heights: Sequence[Value], least: float) -> list[float]:
    """How far bands may widen the axis: at most by the span of the curves, or the band of two seeds would flatten them; by
    `least` in any case, or a band that is far wider than the span would be all that is seen."""
    edges = [edge for one in drawn for edge in (*one.low, *one.high) if edge is not None]
    known = [v for v in heights if v is not None] or edges
    if not edges:
        return []
    low, high = min(known), max(known)
    span = max(high - low, least) or abs(high) or 1.0
    return [max(min(edges), low - span), min(max(edges), high + span)]


def _render_band(frame: Frame, one: Series) -> str:
    """Render a band, cut off at the frame. A nested viewport clips it: unlike a clip path it needs no unique id."""
    if not one.low:
        return ""
    assert isinstance(frame.y, Axis)
    edges = [
        None if a is None or b is None else (a, b)
        for (_, _, a), (_, _, b) in zip(
            frame.points_to_pixels(one.x, one.low), frame.points_to_pixels(one.x, one.high), strict=True
        )
    ]
    shapes, part = [], []
    for edge in [*edges, None]:
        if edge is not None:
            part.append(edge)
        elif part:
            around = [low for low, _ in part] + [high for _, high in reversed(part)]
            near = [(x - frame.left, min(max(y - frame.top, -FAR), FAR)) for x, y in around]
            shapes.append("M" + "L".join(_coords(*point) for point in near) + "Z")
            part = []
    if not shapes:
        return ""
    place = f'x="{_coord(frame.left)}" y="{_coord(frame.top)}"'
    size = f'width="{_coord(frame.right - frame.left)}" height="{_coord(frame.bottom - frame.top)}"'
    return f'<svg {place} {size} overflow="hidden"><path class="band" d="{"".join(shapes)}"/></svg>'


def _render_bar(
    frame: Frame, k: int, one: Bars, row: int, reach: tuple[float, float], top: float, thick: float, alone: bool
) -> str:
    a, b = frame.to_pixel_x(reach[0]), frame.to_pixel_x(reach[1])
    assert a is not None and b is not None and isinstance(frame.y, Rows)
    value = reach[1] - reach[0]
    left, right = min(a, b), max(a, b)
    tip = _render_tooltip(f"{frame.y.names[row]}, {one.name}: {_format_value(value)}")
    place = f'x="{_coord(left)}" y="{_coord(top)}" width="{_coord(right - left)}" height="{_coord(thick)}"'
    out = f'<rect class="bar" {place} rx="1">{tip}</rect>'
    edges = [frame.to_pixel_x(edge[row]) if row < len(edge) else None for edge in (one.low, one.high)]
    inside = [min(max(edge, frame.left), frame.right) for edge in edges if edge is not None]
    if len(inside) == 2:
        out += f'<path class="whisker" d="M{_coord(inside[0])} {_coord(top + thick / 2)}H{_coord(inside[1])}"/>'
        right = max(right, *inside)
    if alone:
        out += _render_text(right + 4, top + thick / 2 + 4, _format_value(value))
    return f'<g class="{_series_class(k)}">{out}</g>'


def _list_bar_ends(categories: Sequence[str], bars: Sequence[Bars], stacked: bool) -> list[float]:
    """List the values that the axis must contain. Whiskers may be cut off: with two seeds they can be huge."""
    out: list[float] = []
    for row in range(len(categories)):
        values = [v for one in bars if row < len(one.values) and (v := to_drawable(one.values[row])) is not None]
        signs = ([v for v in values if v >= 0], [v for v in values if v < 0])
        out += [sum(part) for part in signs] if stacked else values
    return out


# --- text ------------------------------------------------------------------------------------------------------------------


def _escape_attribute(text: str) -> str:
    return escape(escape_invisible(text), quote=True)


def _render_tooltip(text: str) -> str:
    return f"<title>{_escape_attribute(clip_text(text, 200))}</title>"


def _render_text(left: float, top: float, text: str, anchor: str = "start", kind: str = "", full: str = "") -> str:
    """Render a label; if it was shortened, `full` is its tooltip."""
    tip = _render_tooltip(full) if full and full != text else ""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    look = f' class="{kind}"' if kind else ""
    return f'<text x="{_coord(left)}" y="{_coord(top)}"{side}{look}>{_escape_attribute(text)}{tip}</text>'


def _render_dot(left: float, top: float, radius: float, kind: str, tip: str, k: int = 0, more: str = "") -> str:
    """Render a point of series `k`: a circle, a square, a triangle or a diamond of about the same area."""
    label = _render_tooltip(tip) if tip else ""
    shape = k % len(DASHES)
    if shape == 0:
        place = f'cx="{_coord(left)}" cy="{_coord(top)}" r="{_coord(radius)}"'
        return f'<circle class="{kind}" {place}{more}>{label}</circle>'
    if shape == 1:
        half = 0.9 * radius
        place = f'x="{_coord(left - half)}" y="{_coord(top - half)}" width="{_coord(2 * half)}" height="{_coord(2 * half)}"'
        return f'<rect class="{kind}" {place}{more}>{label}</rect>'
    corners = ((0, -1.4), (1.3, 0.9), (-1.3, 0.9)) if shape == 2 else ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0))
    way = "L".join(_coords(left + radius * x, top + radius * y) for x, y in corners)
    return f'<path class="{kind}" d="M{way}Z"{more}>{label}</path>'


def _estimate_width(text: str) -> float:
    """Estimate the width of a label in pixels: East Asian characters are twice as wide."""
    return sum(CHARACTER * (2 if ord(c) > 0x2E7F else 1) for c in escape_invisible(text))


def _fit_text(text: str, width: float) -> str:
    """Shorten a text to fit into `width` pixels."""
    plain = clip_text(escape_invisible(text), int(width))  # no letter is narrower than a pixel
    keep = len(plain)
    while keep > 1 and _estimate_width(clip_text(plain, keep)) > width:
        keep -= 1
    return clip_text(plain, keep)


def _series_class(k: int) -> str:
    return f"s{k % COLOURS}" + (" dashed" if k // COLOURS % 2 else "")


def _format_value(value: Value) -> str:
    return "no value" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _format_point(x: Value, y: Value) -> str:
    return f"{_format_value(y)} at {_format_value(x)}"


def describe_series(series: Sequence[Series]) -> list[str]:
    """Describe each curve for screen readers."""
    out = []
    for one in series:
        known = [v for v in one.y if v is not None and math.isfinite(v)]
        out.append(
            f"{one.name} from {_format_value(known[0])} to {_format_value(known[-1])}" if known else f"{one.name} has no value"
        )
    return out


def _coord(value: float) -> str:
    """Format a coordinate with two decimals, which is finer than any screen."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _coords(x: float, y: float) -> str:
    return f"{_coord(x)} {_coord(y)}"
