"""Charts of curves: lines with bands, paths in a plane, reliability diagrams, and curves as small as a word."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from milonga.charts.axes import Axis, make_axis, to_drawable
from milonga.charts.frame import Frame
from milonga.charts.svg import (
    HEIGHT,
    WIDTH,
    Value,
    coord,
    coords,
    format_point,
    format_value,
    render_dot,
    render_svg,
    series_class,
)

MOST_POINTS = 240
"""Most points of a line; a longer one keeps the minimum and maximum of every bin."""
MOST_MARKS = 60
"""Most points of a line that each have a mark; of a longer one some do."""
FEW_MARKS = 16
FAR = 10_000.0
"""Pixels outside of the frame at which the edge of a band is clamped."""
FULL = 0.8
"""Share of a chart's height, on average over its points, from which on a band is not drawn: it would be a block of colour in
which nothing is seen, and less of two."""
BESIDE = 9.0
"""Pixels from the end of a curve to the single values that stand for its band, and from those to the next curve's."""


@dataclass(frozen=True)
class Series:
    """A curve by its points, in order; `low` and `high` are the edges of its band."""

    name: str
    x: Sequence[Value]
    y: Sequence[Value]
    low: Sequence[Value] = ()
    high: Sequence[Value] = ()
    ends: Sequence[Value] = ()
    """The values whose mean the last point is, drawn where the band is too wide."""

    def __post_init__(self) -> None:
        lengths = {len(self.x), len(self.y)} | {len(edge) for edge in (self.low, self.high) if edge}
        if len(lengths) > 1 or bool(self.low) != bool(self.high):
            raise ValueError(f"series '{self.name}': x, y, low and high must have one length; they have {sorted(lengths)}")


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
    zero: bool = False,
    bands: str = "",
    ends: str = "",
    width: float = WIDTH,
    height: float = HEIGHT,
) -> str:
    """Draw curves over a common axis. `y_range` is widened if a curve leaves it. Without one the axis goes as far as the curves
    go, and their bands at most as far again, or `least`, on both sides; bands are cut off at the frame, and one that would fill
    it is not drawn. `zero`: the axis has zero. `bands`, `ends`: what bands, and the points in the place of one, are called."""
    drawn = [thin_series(one, log_x, log_y) for one in series]
    heights = [*(v for one in drawn for v in one.y), *([0.0] if zero and not log_y else [])]
    x = make_axis((v for one in drawn for v in one.x), log_x, x_label, whole=True)
    heights += _find_band_reach(drawn, heights, least) if y_range is None else y_range
    y = make_axis(heights, log_y, y_label, outward=True)
    full = [y_range is None and _fills_chart(one, y) for one in drawn]
    shown = [v for one, wide in zip(drawn, full, strict=True) if wide for v in one.ends]
    if shown:
        y = make_axis([*heights, *shown], log_y, y_label, outward=True)
    notes = _describe_bands(drawn, full, bands, ends)
    frame = Frame(title, [_get_legend_name(one) for one in drawn], x, y, width, height, notes)
    body = []
    for k, (one, wide) in enumerate(zip(drawn, full, strict=True)):
        spread = _render_ends(frame, one, k, sum(full[:k])) if wide else _render_band(frame, one)
        body.append(f'<g class="{series_class(k)}">{spread}{_render_line(frame, one)}{_render_dots(frame, one, k)}</g>')
    return frame.render("Line chart", [*describe_series(series), *notes], "".join(body))


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
                render_dot(
                    left, top, 5 if last else 4 if first else 2.5, shape, f"{one.name}: {format_point(px, py)}{when}", k, fade
                )
            )
        line = _render_line(frame, one).replace('class="line"', 'class="line thin"')
        body.append(f'<g class="{series_class(k)}">{line}{"".join(dots)}</g>')
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
    body = [f'<path class="ideal" d="M{coords(*a)}L{coords(*b)}"/>']
    for k, (name, bins) in enumerate(curves):
        line = Series(name, [one.said for one in bins], [one.true for one in bins])
        dots = []
        for one, (_, _, place) in zip(bins, frame.points_to_pixels(line.x, line.y), strict=True):
            if place is not None:
                radius = 2 + 6 * math.sqrt(max(one.count, 0) / most)
                dots.append(
                    render_dot(*place, radius, "dot", f"{name}: {format_point(one.said, one.true)}, {one.count} cases", k)
                )
        body.append(f'<g class="{series_class(k)}">{_render_line(frame, line)}{"".join(dots)}</g>')
    said = [f"{name}, {sum(one.count for one in bins)} cases in {len(bins)} bins" for name, bins in curves]
    return frame.render("Reliability diagram", said, "".join(body))


def sparkline(title: str, points: Sequence[tuple[float, float]], *, width: float = 84.0, height: float = 22.0) -> str:
    """Draw a curve as small as a word: without axes, its last point marked."""
    one = thin_series(Series(title, [x for x, _ in points], [y for _, y in points]))
    x, y = make_axis(one.x), make_axis(one.y)
    places = [
        None if a is None or b is None else (3 + x.to_fraction(a) * (width - 7), height - 4 - y.to_fraction(b) * (height - 8))
        for a, b in zip(one.x, one.y, strict=True)
    ]
    known = [place for place in places if place is not None]
    way = "".join("M" + "L".join(coords(*point) for point in part) for part in _split_at_gaps(places) if len(part) > 1)
    line = f'<path class="line" d="{way}"/>' if way else ""
    end = render_dot(*known[-1], 2.4, "dot", "") if known else ""
    return render_svg("Curve", title, describe_series([one]), width, height, f'<g class="s0">{line}{end}</g>')


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

    ends = [to_drawable(v, log_y) for v in one.ends]
    return Series(one.name, pick(x), pick(y), pick(low), pick(high), ends)


def _select_extremes(y: Sequence[float | None], start: int, end: int) -> set[int]:
    known = [(v, at) for at in range(start, end) if (v := y[at]) is not None]
    gaps = [at for at in range(start, end) if y[at] is None][:1]
    return {start, end - 1, *gaps, *((min(known)[1], max(known)[1]) if known else ())}


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
    way = "".join("M" + "L".join(coords(*point) for point in part) for part in parts if len(part) > 1)
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
            out.append(render_dot(*place, 2.6, "dot", f"{one.name}: {format_point(x, y)}", k))
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


def _list_edges(one: Series) -> list[tuple[float, float]]:
    """List the edges of a band where both are known."""
    return [(low, high) for low, high in zip(one.low, one.high, strict=True) if low is not None and high is not None]


def _fills_chart(one: Series, y: Axis) -> bool:
    covered = [min(y.to_fraction(high), 1.0) - max(y.to_fraction(low), 0.0) for low, high in _list_edges(one)]
    return bool(covered) and sum(covered) / len(covered) >= FULL


def _describe_bands(drawn: Sequence[Series], full: Sequence[bool], bands: str, ends: str) -> list[str]:
    """Say below a chart what its bands are, which are not drawn, and what is drawn in their place. Bands without width are
    none."""
    wide = [one for one, is_full in zip(drawn, full, strict=True) if is_full]
    seen = [one for one in drawn if one not in wide and any(high > low for low, high in _list_edges(one))]
    out = [f"bands: {bands}"] if bands and seen else []
    if wide:
        what = ", ".join(one.name for one in wide) if seen else bands or "bands"
        out.append(f"not drawn, as it would fill the chart: {what}")
    if ends and any(one.ends for one in wide):
        out.append(f"hollow points at the end: {ends}")
    return out


def _render_ends(frame: Frame, one: Series, k: int, place: int) -> str:
    """Render a hollow point for each value whose mean the last point of series `k` is: no bar, which would be taken for an
    interval. Those of the next series, at the next `place`, stand beside."""
    out = []
    for value in one.ends if one.x else ():
        found = frame.to_pixels(one.x[-1], value)
        if found is not None:
            tip = f"{one.name}: {format_value(value)}, one of {len(one.ends)}"
            out.append(render_dot(found[0] - BESIDE * (place + 1), found[1], 3.0, "hollow", tip, k))
    return "".join(out)


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
            shapes.append("M" + "L".join(coords(*point) for point in near) + "Z")
            part = []
    if not shapes:
        return ""
    place = f'x="{coord(frame.left)}" y="{coord(frame.top)}"'
    size = f'width="{coord(frame.right - frame.left)}" height="{coord(frame.bottom - frame.top)}"'
    return f'<svg {place} {size} overflow="hidden"><path class="band" d="{"".join(shapes)}"/></svg>'


def describe_series(series: Sequence[Series]) -> list[str]:
    """Describe each curve for screen readers."""
    out = []
    for one in series:
        known = [v for v in one.y if v is not None and math.isfinite(v)]
        out.append(
            f"{one.name} from {format_value(known[0])} to {format_value(known[-1])}" if known else f"{one.name} has no value"
        )
    return out
