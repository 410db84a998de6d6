"""Curves of one or more runs, side by side, as one SVG file: the pictures of the README and the docs.

python scripts/plot_runs.py docs/images/demo.svg runs/tango-… --metrics eval/generator/accuracy eval/verifier/f1
python scripts/plot_runs.py docs/images/tango-easy.svg --compared docs/results/tango/easy.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from milonga.charts import Series, join_charts, line_chart, make_standalone
from milonga.comparing.tables import draw
from milonga.report.curves import TITLES
from milonga.runfolder.record import read_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="*", help="run folders, each as DIR or NAME=DIR; runs of one name share a curve")
    parser.add_argument("--metrics", nargs="+", default=[])
    parser.add_argument("--compared", type=Path, help="instead of runs: a compare.json")
    args = parser.parse_args()
    if args.compared is not None:
        args.out.write_text(draw(json.loads(args.compared.read_text())))
        return
    named = [(name or Path(folder).name, Path(folder)) for name, _, folder in (text.rpartition("=") for text in args.runs)]
    records = [(name, read_record(folder)) for name, folder in named]
    panels = []
    for metric in args.metrics:
        curves: dict[str, list[Mapping[float, float]]] = {}
        for name, record in records:
            curves.setdefault(name, []).append(dict(zip(*record.get_curve(metric), strict=True)))
        series = [make_series(name, found) for name, found in curves.items()]
        panels.append(line_chart(TITLES.get(metric, metric), series, x_label="turn", width=360))
    args.out.write_text(make_standalone(join_charts(panels)))


def make_series(name: str, curves: Sequence[Mapping[float, float]]) -> Series:
    """The mean over seeds where all were measured, with a band from the lowest to the highest."""
    turns = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    values = [[curve[turn] for curve in curves] for turn in turns]
    edges = ([min(v) for v in values], [max(v) for v in values]) if len(curves) > 1 else ((), ())
    return Series(name, turns, [sum(v) / len(v) for v in values], *edges)


if __name__ == "__main__":
    main()
