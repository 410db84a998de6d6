"""Views as options of ECharts.

Invariants: names that come from files are values here, never keys (the page runs keys that begin with a colon); tooltips are
drawn, not written as HTML; colours can be told apart by the colour-blind and lie between light and dark, so that one chart
does for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from milonga.board.curves import Curves
from milonga.runfolder.flow import OUTSIDE, Flow

Options = dict[str, Any]
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, ROSE, GREY = (
    "#2f7fc1", "#d9770b", "#159a75", "#a866c4", "#4fb0dd", "#b89a10", "#d4607f", "#7d858f",
)  # fmt: skip
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, ROSE, GREY)
WORK = {
    "sample": BLUE, "verify": ORANGE, "score": PURPLE, "learn": GREEN, "publish": YELLOW, "idle": "#b9bec5", "eval": SKY,
}  # fmt: skip
FONT = "system-ui, DejaVu Sans, sans-serif"
FAINT = "rgba(128,136,146,0.22)"
BARS = 200
"""Turns that a timeline shows."""
MOST_POINTS = 1500
"""Points of a line: more than a screen has, and few enough to be sent again with every turn."""


def base(x: str, y: str = "", **more: Any) -> Options:
    axis = {
        "nameTextStyle": {"color": GREY, "fontSize": 11},
        "axisLabel": {"color": GREY, "fontSize": 11},
        "axisLine": {"lineStyle": {"color": FAINT}},
        "axisTick": {"show": False},
        "splitLine": {"lineStyle": {"color": FAINT}},
    }
    return {
        "animation": False,
        "textStyle": {"fontFamily": FONT},
        "grid": {"left": 44, "right": 16, "top": 34, "bottom": 38},
        "legend": {"top": 0, "left": 0, "type": "scroll", "textStyle": {"color": GREY, "fontSize": 11}, "itemWidth": 16},
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True, "textStyle": {"fontSize": 11}},
        "xAxis": {"type": "value", "name": x, "nameLocation": "middle", "nameGap": 22, "min": "dataMin", "max": "dataMax"}
        | axis,
        "yAxis": {"type": "value", "name": y, "scale": True} | axis,
        "series": [],
    } | more


def thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Evenly, with the last one, which is the newest, among them."""
    each = -(-len(points) // MOST_POINTS)
    return points if each <= 1 else [*points[:-1:each], points[-1]]


def line(name: str, points: Sequence[tuple[float, float]], colour: str, style: str = "solid") -> Options:
    """`style`: solid, dashed, or faint for what is measured every turn and is noisy."""
    return {
        "name": name,
        "type": "line",
        "data": [list(point) for point in thinned(points)],
        "color": colour,
        "showSymbol": style != "faint" and len(points) < 60,
        "symbolSize": 5,
        "lineStyle": {
            "width": 1 if style == "faint" else 2,
            "type": "dashed" if style == "dashed" else "solid",
            "opacity": 0.45 if style == "faint" else 1,
        },
    }


def lines(curves: Curves, wanted: Sequence[tuple[str, str, str, str]], **axis: Any) -> Options:
    """(name, metric, colour, style) over turns; what was never measured is left out."""
    options = base("turn")
    options["yAxis"] |= axis
    found = [(name, curves.points(key), colour, style) for name, key, colour, style in wanted]
    options["series"] = [line(*one) for one in found if one[1]]
    options["legend"]["data"] = [{"name": name} for name, points, _, style in found if points and style != "faint"]
    return options


def accuracies(curves: Curves) -> Options:
    wanted = (
        ("generator", "eval/generator/accuracy", BLUE, "solid"),
        ("generator, sound", "eval/generator/sound_accuracy", BLUE, "dashed"),
        ("generator in training", "rollouts/generator/accuracy", BLUE, "faint"),
        ("verifier F1", "eval/verifier/f1", ORANGE, "solid"),
        ("verifier, balanced", "eval/verifier/balanced_accuracy", ORANGE, "dashed"),
        ("verifier in training", "rollouts/verifier/balanced_accuracy", ORANGE, "faint"),
    )
    return lines(curves, wanted, min=0, max=1)


def gap(curves: Curves) -> Options:
    wanted = (
        ("hacking gap", "eval/hacking_gap", PURPLE, "solid"),
        ("gap of steps", "eval/step_hacking_gap", PURPLE, "dashed"),
    )
    options = lines(curves, wanted, scale=False)
    for one in options["series"][:1]:
        zero = {"yAxis": 0, "lineStyle": {"color": GREY, "type": "solid", "width": 1}, "label": {"show": False}}
        one["markLine"] = {"symbol": "none", "silent": True, "data": [zero]}
    return options


def metric(curves: Curves, key: str) -> Options:
    return lines(curves, ((key, key, GREEN, "solid"),))


def path(curves: Curves) -> Options:
    """Where the pair has been: generator accuracy to the right, verifier F1 upwards, one point an evaluation."""
    f1 = dict(curves.points("eval/verifier/f1"))
    points = [(x, f1[turn], turn) for turn, x in curves.points("eval/generator/accuracy") if turn in f1]
    options = base("generator accuracy", "verifier F1", legend={"show": False})
    options["xAxis"] |= {"min": 0, "max": 1}
    options["yAxis"] |= {"min": 0, "max": 1, "scale": False}
    options["tooltip"]["trigger"] = "item"
    last = len(points) - 1
    data = [
        {
            "name": f"turn {turn:.0f}",
            "value": [x, y],
            "symbolSize": 11 if at == last else 8 if at == 0 else 5,
            "itemStyle": {"color": GREY if at == 0 else GREEN},
            "label": {
                "show": at in (0, last),
                "formatter": "start" if at == 0 else "now",
                "position": "left" if x > 0.85 else "right",
                "color": GREY,
                "fontSize": 11,
            },
        }
        for at, (x, y, turn) in enumerate(points)
    ]
    options["series"] = (
        [{"type": "line", "data": data, "color": GREEN, "lineStyle": {"width": 1.5, "opacity": 0.6}}] if data else []
    )
    return options


def timeline(timing: Curves) -> Options:
    """Where the seconds of each of the last turns went."""
    rows = timing.recent_rows(BARS)
    options = base("turn")
    options["xAxis"] |= {"type": "category", "data": [row["turn"] for row in rows], "min": None, "max": None}
    options["yAxis"]["scale"] = False
    options["series"] = [
        {
            "name": work,
            "type": "bar",
            "stack": "turn",
            "color": colour,
            "barCategoryGap": "20%",
            "data": [round(row.get(f"{work}_s", 0.0), 3) for row in rows],
        }
        for work, colour in WORK.items()
        if any(row.get(f"{work}_s") for row in rows)
    ]
    return options


def flow(flow: Flow) -> Options:
    """Who has its credit from whom: sources from outside on the left, policies on the right; wider means more."""
    policies = dict.fromkeys(policy for _, policy in flow)
    sources = [name for name in dict.fromkeys(source for source, _ in flow) if name not in policies]
    lead = [name for name in policies if any(edge[1] == name and edge[0] in policies for edge in flow)]
    middle = [name for name in policies if name not in lead]
    columns = [column for column in (sources, middle, lead) if column]
    nodes = [
        {
            "name": name,
            "value": [at, (place + 1) / (len(column) + 1) + (0.25 if at == 1 and len(columns) == 3 else 0)],
            "symbol": "circle" if name in OUTSIDE else "roundRect",
            "symbolSize": 30,
            "itemStyle": {"color": BLUE if name in policies else GREY},
        }
        for at, column in enumerate(columns)
        for place, name in enumerate(column)
    ]
    links = [
        {
            "source": source,
            "target": policy,
            "lineStyle": {"width": 1 + 5 * min(1.0, max(0.0, share)), "color": ORANGE, "opacity": 0.75, "curveness": 0.1},
            "label": {"show": True, "formatter": percent(share), "color": GREY, "fontSize": 11},
        }
        for (source, policy), share in flow.items()
    ]
    series = {
        "type": "graph",
        "coordinateSystem": "cartesian2d",
        "data": nodes,
        "links": links,
        "edgeSymbol": ["none", "arrow"],
        "edgeSymbolSize": 14,
        "label": {"show": True, "color": GREY, "fontSize": 12, "fontWeight": 600, "formatter": "{b}", "position": "bottom"},
        "silent": True,
    }
    hidden = {"type": "value", "show": False, "min": 0}
    return {
        "animation": False,
        "textStyle": {"fontFamily": FONT},
        "grid": {"left": 56, "right": 56, "top": 16, "bottom": 16},
        "xAxis": hidden | {"max": max(1, len(columns) - 1)},
        "yAxis": hidden | {"max": 1},
        "series": [series] if flow else [],
    }


def percent(share: float) -> str:
    """With a decimal where it is near nothing or near all of it, but neither."""
    return f"{share:.0%}" if share in (0, 1) or 0.1 <= share <= 0.9 else f"{share:.1%}"


def bands(arms: Sequence[tuple[str, Mapping[str, Sequence[float]] | None]], bounded: bool) -> Options:
    """Mean curves over lead turns, each with the band of its interval. An arm without a curve keeps its colour all the same."""
    options = base("turns of the lead agent")
    if bounded:
        options["yAxis"] |= {"min": 0, "max": 1}
    for at, (name, curve) in enumerate(arms):
        if curve is None:
            continue
        colour = SERIES[at % len(SERIES)]
        mean = list(zip(curve["x"], curve["mean"], strict=True))
        options["series"].append(line(name, mean, colour))
        if any(low < high for low, high in zip(curve["low"], curve["high"], strict=True)):
            options["series"] += band(f"band {at}", curve, colour, bounded)
    options["legend"]["data"] = [{"name": name} for name, curve in arms if curve is not None]
    return options


def band(stack: str, curve: Mapping[str, Sequence[float]], colour: str, bounded: bool) -> list[Options]:
    """An invisible line at the lower edge and, stacked on it, a filled one. Shares stay between 0 and 1."""
    low = [max(0.0, v) if bounded else v for v in curve["low"]]
    high = [min(1.0, v) if bounded else v for v in curve["high"]]
    quiet = {"type": "line", "stack": stack, "stackStrategy": "all", "showSymbol": False, "silent": True,
             "lineStyle": {"opacity": 0}, "tooltip": {"show": False}}  # fmt: skip
    width = [b - a for a, b in zip(low, high, strict=True)]
    return [
        quiet | {"data": [list(point) for point in zip(curve["x"], low, strict=True)]},
        quiet
        | {"data": [list(p) for p in zip(curve["x"], width, strict=True)], "areaStyle": {"color": colour, "opacity": 0.18}},
    ]
