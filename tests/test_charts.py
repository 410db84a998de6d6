"""Charts: well-formed whatever they are given, gaps where nothing was measured, ticks that people would choose."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.charts import (
    COLOURS,
    LARGEST,
    MOST_POINTS,
    Bars,
    Bin,
    Series,
    bar_chart,
    flow_chart,
    join_charts,
    line_chart,
    make_axis,
    make_standalone,
    matrix_chart,
    path_chart,
    reliability_chart,
    sparkline,
    thin_series,
    to_drawable,
)
from milonga.text import escape_invisible

SVG = "{http://www.w3.org/2000/svg}"
VALUES = st.none() | st.floats() | st.integers(-(10**6), 10**6)
POINTS = st.lists(st.tuples(VALUES, VALUES, VALUES, VALUES), max_size=12)
ANY_SERIES = st.builds(
    lambda name, points, ends: Series(name, *([point[k] for point in points] for k in range(4)), ends),
    st.text(max_size=40),
    POINTS,
    st.lists(VALUES, max_size=3),
)
CHARTS: dict[str, Callable[[str, list[Series]], str]] = {
    "lines": lambda text, series: line_chart(text, series, x_label=text, y_label=text),
    "logarithmic": lambda text, series: line_chart(text, series, log_x=True, log_y=True, zero=True, bands=text, ends=text),
    "bands": lambda text, series: line_chart(text, series, least=0.1, zero=True, bands=text, ends=text),
    "joined": lambda text, series: join_charts([line_chart(text, series), path_chart(text, series)]),
    "share": lambda text, series: line_chart(text, series, y_range=(0, 1)),
    "path": lambda text, series: path_chart(text, series, x_label=text),
    "bars": lambda text, series: bar_chart(text, ["a", text, "c"], [Bars(s.name, s.y, s.low, s.high) for s in series]),
    "flow": lambda text, series: flow_chart(text, {(text, s.name): (s.y or [None])[0] for s in series}),
    "matrix": lambda text, series: matrix_chart(
        text, [s.name for s in series], ["a", text, *"cdefghijkl"], [s.y for s in series], x_label=text, y_label=text
    ),
    "spark": lambda text, series: (
        "".join(
            sparkline(text, [(x, y) for x, y in zip(s.x, s.y, strict=True) if x is not None and y is not None])
            for s in series[:1]
        )
        or sparkline(text, [])
    ),
    "stack": lambda text, series: bar_chart(text, ["a", text], [Bars(s.name, s.y) for s in series], stacked=True),
}


def coordinates(svg: str) -> list[float]:
    """Every number that says where something is."""
    said = re.findall(r' (?:d|x|y|cx|cy|r|width|height|viewBox)="([^"]*)"', svg)
    return [float(text) for one in said for text in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?|nan|inf", one) if text != "100"]


@pytest.mark.parametrize("kind", list(CHARTS))
@settings(PROPERTY, max_examples=60)
@given(text=st.text(max_size=60), series=st.lists(ANY_SERIES, max_size=4))
def test_any_text_and_any_numbers_give_a_well_formed_chart(kind: str, text: str, series: list[Series]) -> None:
    svg = CHARTS[kind](text, series)
    root = ElementTree.fromstring(svg)
    ElementTree.fromstring(make_standalone(svg))
    words = {element.text for element in root.iter() if element.tag in (f"{SVG}text", f"{SVG}title")}
    assert all(word is None or word == escape_invisible(word) for word in words)
    assert all(math.isfinite(value) and abs(value) < 1e6 for value in coordinates(svg)), "all of it lies on the picture"
    assert svg == CHARTS[kind](text, series)


@settings(PROPERTY, max_examples=60)
@given(st.lists(st.builds(Bin, st.floats(), st.floats(), st.integers(0, 10**9)), max_size=12), st.text(max_size=20))
def test_a_reliability_diagram_is_well_formed(bins: list[Bin], name: str) -> None:
    svg = reliability_chart("calibration", [(name, bins)])
    assert 'class="ideal"' in svg
    ElementTree.fromstring(svg)


def test_hostile_text_stays_text() -> None:
    hostile = "<script>alert(1)</script>\"'&\x1b[2J\u202egnp.exe\x00"
    svg = line_chart(hostile, [Series(hostile, [0, 1], [0, 1])], x_label=hostile, y_label=hostile)
    root = ElementTree.fromstring(svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert "\u202e" not in svg and "\\u202e" in svg and "\x1b" not in svg


def test_what_was_not_measured_is_a_gap() -> None:
    svg = line_chart("gaps", [Series("a", [0, 1, 2, 3, 4, 5], [0.1, 0.2, None, math.nan, 0.3, 0.4])])
    way = re.search(r'<path class="line" d="(M[^"h]*)"', svg.partition("</text></g>")[2])
    assert way is not None and way[1].count("M") == 2
    assert len(re.findall("<circle", svg)) == 4 + 1, "the points, and one in the legend"
    logarithmic = line_chart("log", [Series("a", [0, 1, 2], [0.0, 1.0, 10.0])], log_y=True)
    assert len(re.findall("<circle", logarithmic)) == 2 + 1


def test_an_empty_chart_still_has_its_axes() -> None:
    for svg in (line_chart("none", []), line_chart("none", [Series("a", [], [])]), bar_chart("none", [], [])):
        assert "<text" in svg and "<circle" not in svg


def test_a_long_line_keeps_what_stands_out() -> None:
    y = [0.5 + 0.001 * (k % 7) for k in range(100_000)]
    y[41_234], y[77_777] = 0.99, 0.01
    series = thin_series(Series("a", list(range(len(y))), y))
    assert len(series.y) <= MOST_POINTS + 4 and {0.99, 0.01} <= set(series.y)
    assert series.x[0] == 0 and series.x[-1] == len(y) - 1
    assert len(line_chart("long", [Series("a", list(range(len(y))), y)])) < 20_000


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((0.0, 1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0, 45), ["0", "10", "20", "30", "40"]),
        ((0, 3), ["0", "1", "2", "3"]),
        ((0, 2_000_000), ["0", "0.5M", "1.0M", "1.5M", "2.0M"]),
        ((-0.35, -0.1), ["-0.35", "-0.30", "-0.25", "-0.20", "-0.15", "-0.10"]),
    ],
)
def test_ticks_are_those_that_people_would_choose(values: tuple[float, float], names: list[str]) -> None:
    assert list(make_axis(values).names) == names


@PROPERTY
@given(st.lists(st.floats(-LARGEST, LARGEST), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_an_axis_holds_its_values_and_few_ticks_that_differ(values: list[float], log: bool, outward: bool) -> None:
    axis = make_axis(values, log=log, outward=outward)
    drawn = [v for value in values if (v := to_drawable(value, log)) is not None]
    assert axis.low < axis.high and all(-1e-6 <= axis.to_fraction(v) <= 1 + 1e-6 for v in drawn)
    assert 1 <= len(axis.ticks) <= 16 and len(set(axis.names)) == len(axis.names)
    assert all(-1e-6 <= axis.to_fraction(tick) <= 1 + 1e-6 for tick in axis.ticks)


def test_series_differ_without_their_colour() -> None:
    """Neighbours have other points and other dashes, in the legend as on the line."""
    svg = line_chart("three", [Series(name, [0, 1, 2], [0.1, 0.2, 0.3]) for name in "abcde"])
    groups = list(ElementTree.fromstring(svg).iter(f"{SVG}g"))
    shapes = [{(e.tag.removeprefix(SVG), len(e.get("d", ""))) for e in g if e.get("class") == "dot"} for g in groups]
    kinds = [{tag for tag, _ in found} for found in shapes]
    assert kinds[:5] == kinds[5:] == [{"circle"}, {"rect"}, {"path"}, {"path"}, {"circle"}], "the legend shows what is drawn"
    assert {way.count("L") for way in re.findall(r'<path class="dot" d="([^"]*)"', svg)} == {2, 3}, "triangles and diamonds"
    style = make_standalone(svg)
    dashes = [re.search(rf"\.s{k} \.line{{stroke-dasharray:([\d. ]+)}}", style) for k in range(5)]
    assert [found is None for found in dashes] == [True, False, False, False, True]
    assert len({found[1] for found in dashes if found is not None}) == 3


def test_turns_are_whole() -> None:
    """A run of one turn has no turn 0.2; a share from 0 to 1 has."""
    ticks = re.findall(r'text-anchor="middle">([^<]*)<', line_chart("a", [Series("a", [0, 1], [0.5, 0.6])]))
    assert ticks == ["0", "1"]
    assert make_axis([0, 1], whole=True).names == ["0", "1"] and make_axis([7.0], whole=True).names == ["7"]
    assert make_axis([0, 1]).names[1] == "0.2" and make_axis([0.5, 1], whole=True).names[0] == "0.5"


def test_a_long_line_has_some_marks() -> None:
    svg = line_chart("long", [Series("a", list(range(1000)), [k % 17 for k in range(1000)])])
    assert 12 <= len(re.findall("<circle", svg)) <= 18


def test_a_band_far_wider_than_its_curve_leaves_something_to_see() -> None:
    """Bands widen the axis by the span of the curves, or by `least`; beyond they are cut off."""
    flat = [Series("a", [0, 1], [0.30, 0.31], [0.0, 0.0], [0.6, 0.6])]

    def read_ticks(svg: str) -> list[float]:
        return [float(tick) for tick in re.findall(r'text-anchor="end">([^<]*)<', svg)]

    assert read_ticks(line_chart("a", flat))[0] >= 0.28 and read_ticks(line_chart("a", flat))[-1] <= 0.325
    wide = read_ticks(line_chart("a", flat, least=0.1))
    assert wide[0] == pytest.approx(0.2) and wide[-1] >= 0.41


def test_a_band_that_would_fill_the_chart_is_not_drawn_and_the_chart_says_so() -> None:
    """As that of two seeds does: of two arms it was one grey block. In its place are the values whose mean the curve is."""
    wide = Series("a", [0, 1], [0.30, 0.31], [0.0, 0.0], [0.6, 0.6], [0.24, 0.38])
    other = Series("b", [0, 1], [0.30, 0.32], [0.0, 0.0], [0.7, 0.7], [0.28, 0.36])
    narrow = Series("c", [0, 1], [0.20, 0.40], [0.2, 0.35], [0.2, 0.45], [0.39, 0.41])
    said = {"bands": "interval over 2 seeds", "ends": "each seed"}

    def read(*series: Series, **how: Any) -> tuple[list[str], int, int]:
        """The lines below the axis, the number of bands, and that of single values."""
        svg = line_chart("f", series, x_label="turn", **(said | how))
        notes = read_notes(svg)
        assert all(note in read_label(svg) for note in notes), "who does not see the chart is told too"
        return notes, svg.count('class="band"'), svg.count('class="hollow"')

    points = "hollow points at the end: each seed"
    assert read(wide, other) == (["not drawn, as it would fill the chart: interval over 2 seeds", points], 0, 4)
    assert read(narrow) == (["bands: interval over 2 seeds"], 1, 0)
    both = ["bands: interval over 2 seeds", "not drawn, as it would fill the chart: a", points]
    assert read(narrow, Series("a", [0, 1], [0.3, 0.31], [-2, -2], [2, 2], [0.24, 0.38])) == (both, 1, 2)
    assert read(wide, y_range=(0, 1)) == (["bands: interval over 2 seeds"], 1, 0), "a given range is as wide as it has to be"
    assert read(Series("a", [0, 1], [0.3, 0.4], [0.3, 0.4], [0.3, 0.4], [0.4])) == ([], 1, 0), "one seed has no interval"
    svg = line_chart("f", [wide, other], **said)
    root = ElementTree.fromstring(svg)
    hollow = [e for e in root.iter() if e.get("class") == "hollow"]
    assert [e[0].text for e in hollow[:2]] == ["a: 0.24, one of 2", "a: 0.38, one of 2"]
    places = {e.get("cx") or float(e.get("x", "")) + float(e.get("width", "")) / 2 for e in hollow}
    assert len(places) == 2, "those of two curves stand side by side"
    assert all(30 < float(e.get("cy") or e.get("y", "")) < float(root.get("height", "")) - 50 for e in hollow), "seen whole"


def test_notes_do_not_make_a_chart_lower() -> None:
    def measure(**how: Any) -> tuple[float, float]:
        svg = line_chart("f", [Series("a", [0, 1], [0.2, 0.4], [0.2, 0.35], [0.2, 0.45])], x_label="turn", **how)
        grid = [float(top) for top in re.findall(r'class="grid" d="M[\d.]+ ([\d.]+)V', svg)]
        bottom = [float(end) for end in re.findall(r'class="grid" d="M[\d.]+ [\d.]+V([\d.]+)"', svg)]
        return bottom[0] - grid[0], float(ElementTree.fromstring(svg).get("height", ""))

    (plain, height), (noted, taller) = measure(), measure(bands="an interval")
    assert plain == noted and taller == height + 14


def test_zero_is_on_the_axis_where_the_sign_matters() -> None:
    for values in ([0.12, 0.14], [-0.12, -0.14]):
        svg = line_chart("gap", [Series("a", [0, 1], values)], zero=True)
        assert "0" in re.findall(r'text-anchor="end">([^<]*)<', svg)
        assert "0" not in re.findall(r'text-anchor="end">([^<]*)<', line_chart("gap", [Series("a", [0, 1], values)]))


def test_a_band_is_seen_to_cross_zero() -> None:
    """Whether it does is what it says of a difference: it is not cut off there."""
    svg = line_chart("gap", [Series("a", [0, 1], [-0.12, -0.14], [-0.24, -0.2], [0.02, -0.06])], least=0.1, zero=True)
    assert float(re.findall(r'text-anchor="end">([^<]*)<', svg)[-1]) > 0.02 and 'class="zero"' in svg


def read_notes(svg: str) -> list[str]:
    """The lines below the label of the horizontal axis."""
    texts = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.get("text-anchor") == "middle"]
    label = next(at for at, e in enumerate(texts) if e.text == "turn")
    return [e.text or "" for e in texts[label + 1 :] if not re.fullmatch(r"[\d.]+", e.text or "")]


def read_label(svg: str) -> str:
    return ElementTree.fromstring(svg).get("aria-label", "")


def read_places(svg: str, kind: str) -> list[tuple[float, float]]:
    """Where texts of a class are: (height, width of the text)."""
    found = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.get("class") == kind]
    return [(float(e.get("y", "")), len(e.text or "")) for e in found]


@pytest.mark.parametrize("count", [2, 5, 12])
def test_a_flow_fills_its_panel_and_its_labels_do_not_collide(count: int) -> None:
    """Many sources of tiny shares, all at one receiver: labels are apart, and within the picture; so are the boxes."""
    edges = {(f"source {k}", "generator"): 0.001 for k in range(count)} | {("answers", "verifier"): 1.0}
    edges[("source 0", "generator")] = 1 - 0.001 * (count - 1)
    svg = flow_chart("flow", edges)
    root = ElementTree.fromstring(svg)
    high = float(root.get("height", ""))
    assert high >= 260
    labels = sorted(height for height, _ in read_places(svg, "share"))
    assert len(labels) == count + 1 and all(b - a >= 14.9 for a, b in itertools.pairwise(labels))
    assert labels[0] > 28 and labels[-1] < high
    boxes = [(float(e.get("x", "")), float(e.get("y", "")), float(e.get("height", ""))) for e in root.iter(f"{SVG}rect")]
    for side in (min, max):
        left = side(x for x, _, _ in boxes)
        column = sorted((y, y + size) for x, y, size in boxes if x == left)
        assert column[0][0] == pytest.approx(28) and column[-1][1] == pytest.approx(high - 6), "from top to bottom"
        assert all(below[0] > above[1] for above, below in itertools.pairwise(column))


def test_a_stream_is_as_wide_as_its_share() -> None:
    svg = flow_chart("flow", {("a", "x"): 0.75, ("b", "x"): 0.25})
    ways = re.findall(r'class="stream" d="M([\d.]+) ([\d.]+)C[^L]*? ([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)C', svg)
    ends = [float(way[5]) - float(way[3]) for way in ways]
    assert ends[0] / ends[1] == pytest.approx(3, rel=0.05), "the width of a line is added to both"
    assert list(re.findall(r'class="share">([^<]*)<', svg)) == ["75.0%", "25.0%"]


def test_a_cell_is_darker_the_larger_its_value() -> None:
    svg = matrix_chart("m", ["g1", "g2"], ["v1", "v2"], [[0.2, 0.4], [None, 0.8]], x_label="verifier", y_label="generator")
    cells = list(ElementTree.fromstring(svg).iter(f"{SVG}rect"))
    assert [e.get("opacity") for e in cells] == ["0.08", "0.25", "0.00", "0.58"]
    assert [e[0].text for e in cells] == ["g1, v1: 0.2", "g1, v2: 0.4", "g2, v1: no value", "g2, v2: 0.8"]
    assert re.findall(r'class="share">([^<]*)<', svg) == ["0.200", "0.400", "–", "0.800"]


def test_a_curve_as_small_as_a_word_has_no_axes() -> None:
    svg = sparkline("accuracy", [(0, 0.1), (5, 0.3), (10, 0.2)])
    assert "<text" not in svg and 'aria-label="Curve: accuracy. accuracy from 0.1 to 0.2;"' in svg
    assert len(re.findall("<circle", svg)) == 1 and "<path" not in sparkline("one", [(0, 0.1)])


def test_colours_repeat_dashed() -> None:
    svg = line_chart("many", [Series(str(k), [0, 1], [k, k]) for k in range(COLOURS + 2)])
    assert 'class="s1 dashed"' in svg and 'class="s1"' in svg


def test_series_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        Series("a", [1, 2], [1])


def test_joined_charts_stand_side_by_side() -> None:
    parts = [line_chart('viewBox="9 9 9 9"', [], width=300, height=200), line_chart("b", [], width=200, height=260)]
    root = ElementTree.fromstring(join_charts(parts, gap=20))
    assert root.get("viewBox") == "0 0 520 260" and [part.get("x") for part in root] == ["0", "320"]
