"""Charts of what flows from senders to receivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from milonga.charts.axes import to_drawable
from milonga.charts.svg import (
    HEIGHT,
    WIDTH,
    Value,
    coord,
    coords,
    fit_text,
    render_svg,
    render_text,
    render_tooltip,
    series_class,
)


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
        tip = render_tooltip(f"{edge[1]} had {share:.1%} from {edge[0]}")
        way = _render_stream(box, width - box, ends[0][edge], ends[1][edge])
        edges.append(f'<g class="{series_class(names[0].index(edge[0]))}"><path class="stream" d="{way}">{tip}</path></g>')
    order = sorted(known, key=lambda edge: sum(ends[1][edge]))
    middles = _spread([sum(ends[1][edge]) / 2 for edge in order], 15.0, top + 8, height - 14)
    labels = [
        render_text(width - box - 8, middle + 4, f"{known[edge]:.1%}" if abs(known[edge]) < 1e6 else "", "end", "share")
        for edge, middle in zip(order, middles, strict=True)
    ]
    boxes = [_render_node(side * (width - box), reach, name, box) for side in (0, 1) for name, reach in sides[side].items()]
    said = [f"{receiver} had {share:.0%} from {sender}" for (sender, receiver), share in known.items()]
    head = render_text(2, 14, fit_text(title, width), kind="name", full=title)
    return render_svg("Flow", title, said, width, height, head + "".join(edges) + "".join(labels) + "".join(boxes))


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
    upper = f"M{coords(left, begin[0])}C{coords(bend, begin[0])} {coords(bend, end[0])} {coords(right, end[0])}"
    lower = f"L{coords(right, end[1])}C{coords(bend, end[1])} {coords(bend, begin[1])} {coords(left, begin[1])}Z"
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


def _render_node(left: float, reach: Reach, name: str, width: float) -> str:
    """Render a box of a flow chart with its name."""
    top, bottom = reach
    rect = (
        f'<rect class="node" x="{coord(left + 1)}" y="{coord(top)}" width="{coord(width - 2)}" '
        f'height="{coord(bottom - top)}" rx="5"/>'
    )
    return rect + render_text(left + width / 2, (top + bottom) / 2 + 4, fit_text(name, width - 12), "middle", full=name)
