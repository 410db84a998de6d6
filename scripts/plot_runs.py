"""Curves of one or more runs, side by side: the pictures of the README and the docs.

python scripts/plot_runs.py docs/images/demo.png runs/tango-… --metrics eval/generator/accuracy eval/verifier/f1
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from milonga.report.curves import TITLES
from milonga.runfolder.record import read_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", help="run folders, each as DIR or NAME=DIR; runs of one name share a colour")
    parser.add_argument("--metrics", nargs="+", required=True)
    args = parser.parse_args()
    figure, panels = plt.subplots(1, len(args.metrics), figsize=(3.6 * len(args.metrics), 2.8), squeeze=False)
    runs = [(name or Path(folder).name, Path(folder)) for name, _, folder in (text.rpartition("=") for text in args.runs)]
    names = list(dict.fromkeys(name for name, _ in runs))
    for panel, metric in zip(panels[0], args.metrics, strict=True):
        for i, (name, folder) in enumerate(runs):
            turns, values = read_record(folder).get_curve(metric)
            label = name if name not in [before for before, _ in runs[:i]] else None
            panel.plot(turns, values, f"C{names.index(name)}o-", markersize=3, linewidth=1, label=label)
        panel.set_title(TITLES.get(metric, metric), fontsize=9)
        panel.set_xlabel("turn", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
    if len(names) > 1:
        panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=130)


if __name__ == "__main__":
    main()
