"""Draw charts as SVG: lines with bands, paths in a plane, bars, reliability diagrams, flows. For pages, reports and files.

Invariants: the same numbers give the same bytes; any text gives well-formed XML; a value that is None, not finite, or not
positive on a logarithmic axis is a gap, never a zero. Colours come from `STYLE`, which follows the reader's light or dark
scheme: a page holds it once, and `make_standalone` puts it into a chart that is to be a file of its own. Nothing in a chart
needs a script; the value of a point is its tooltip.
"""

from milonga.charts.axes import LARGEST, make_axis, to_drawable
from milonga.charts.bars import Bars, bar_chart
from milonga.charts.curves import MOST_POINTS, Bin, Series, line_chart, path_chart, reliability_chart, sparkline, thin_series
from milonga.charts.flows import flow_chart
from milonga.charts.matrices import matrix_chart
from milonga.charts.svg import COLOURS, DARK, HEIGHT, LIGHT, STYLE, join_charts, make_standalone

__all__ = [
    "COLOURS",
    "DARK",
    "HEIGHT",
    "LARGEST",
    "LIGHT",
    "MOST_POINTS",
    "STYLE",
    "Bars",
    "Bin",
    "Series",
    "bar_chart",
    "flow_chart",
    "join_charts",
    "line_chart",
    "make_axis",
    "make_standalone",
    "matrix_chart",
    "path_chart",
    "reliability_chart",
    "sparkline",
    "thin_series",
    "to_drawable",
]
