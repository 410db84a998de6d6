"""SVG elements of charts: texts, tooltips, points, colours that follow the reader's light or dark scheme, and files.

Invariant: any text gives well-formed XML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from milonga.text import clip_text, escape_invisible

Value = float | None
COLOURS = 7
"""Number of colours in the palette (Okabe and Ito's, safe for red-green colour blindness). More repeat it, dash-dotted."""
DASHES = ("", "7 3.5", "2 2.5", "9 3 2 3")
"""Dashes of the first series, the second, …; the same again after the last. The shapes of points differ likewise: a series can
be told from its neighbours without its colour."""
CHARACTER = 6.1
"""Mean width of a character at the size of the labels, in pixels."""
WIDTH, HEIGHT = 520.0, 260.0
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


def join_charts(charts: Sequence[str], gap: float = 24.0) -> str:
    """Join charts to one, side by side. Their descriptions for screen readers stay with the parts."""
    out, left, tallest = [], 0.0, 0.0
    for svg in charts:
        _, _, width, height = map(float, svg.partition('viewBox="')[2].partition('"')[0].split())
        out.append(svg.replace('class="chart"', f'class="part" x="{coord(left)}"', 1))
        left, tallest = left + width + gap, max(tallest, height)
    size = (coord(max(left - gap, 0.0)), coord(tallest))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {size[0]} {size[1]}"'
    return f'{head} width="{size[0]}" height="{size[1]}">{"".join(out)}</svg>'


def make_standalone(svg: str) -> str:
    """Make a chart a standalone file: with its style sheet and a background."""
    head, _, rest = svg.partition(">")
    return f'{head}><style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>{rest}\n'


def render_svg(kind: str, title: str, said: Sequence[str], width: float, height: float, body: str) -> str:
    """Render the SVG element around a chart, with its description for screen readers."""
    label = _escape_attribute(clip_text(f"{kind}: {title}." + "".join(f" {text};" for text in said), 600))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{label}" '
        f'viewBox="0 0 {coord(width)} {coord(height)}" width="{coord(width)}" height="{coord(height)}">{body}</svg>'
    )


def _escape_attribute(text: str) -> str:
    return escape(escape_invisible(text), quote=True)


def render_tooltip(text: str) -> str:
    return f"<title>{_escape_attribute(clip_text(text, 200))}</title>"


def render_text(left: float, top: float, text: str, anchor: str = "start", kind: str = "", full: str = "") -> str:
    """Render a label; if it was shortened, `full` is its tooltip."""
    tip = render_tooltip(full) if full and full != text else ""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    look = f' class="{kind}"' if kind else ""
    return f'<text x="{coord(left)}" y="{coord(top)}"{side}{look}>{_escape_attribute(text)}{tip}</text>'


def render_dot(left: float, top: float, radius: float, kind: str, tip: str, k: int = 0, more: str = "") -> str:
    """Render a point of series `k`: a circle, a square, a triangle or a diamond of about the same area."""
    label = render_tooltip(tip) if tip else ""
    shape = k % len(DASHES)
    if shape == 0:
        place = f'cx="{coord(left)}" cy="{coord(top)}" r="{coord(radius)}"'
        return f'<circle class="{kind}" {place}{more}>{label}</circle>'
    if shape == 1:
        half = 0.9 * radius
        place = f'x="{coord(left - half)}" y="{coord(top - half)}" width="{coord(2 * half)}" height="{coord(2 * half)}"'
        return f'<rect class="{kind}" {place}{more}>{label}</rect>'
    corners = ((0, -1.4), (1.3, 0.9), (-1.3, 0.9)) if shape == 2 else ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0))
    way = "L".join(coords(left + radius * x, top + radius * y) for x, y in corners)
    return f'<path class="{kind}" d="M{way}Z"{more}>{label}</path>'


def estimate_width(text: str) -> float:
    """Estimate the width of a label in pixels: East Asian characters are twice as wide."""
    return sum(CHARACTER * (2 if ord(c) > 0x2E7F else 1) for c in escape_invisible(text))


def fit_text(text: str, width: float) -> str:
    """Shorten a text to fit into `width` pixels."""
    plain = clip_text(escape_invisible(text), int(width))  # no letter is narrower than a pixel
    keep = len(plain)
    while keep > 1 and estimate_width(clip_text(plain, keep)) > width:
        keep -= 1
    return clip_text(plain, keep)


def series_class(k: int) -> str:
    return f"s{k % COLOURS}" + (" dashed" if k // COLOURS % 2 else "")


def format_value(value: Value) -> str:
    return "no value" if value is None or not math.isfinite(value) else f"{value:.4g}"


def format_point(x: Value, y: Value) -> str:
    return f"{format_value(y)} at {format_value(x)}"


def coord(value: float) -> str:
    """Format a coordinate with two decimals, which is finer than any screen."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def coords(x: float, y: float) -> str:
    return f"{coord(x)} {coord(y)}"
