"""The table of a sweep, as Markdown: what was measured at the start and at the end of each arm, as means over its seeds.

python scripts/study_table.py runs/pieces                      # the folder of the sweep
python scripts/study_table.py runs/pieces verifier/f1 verifier/positive_rate

Means are over the seeds in which both were measured; beside each end: in how many of these the metric rose. An arm that has no
finished run is left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

METRICS = (
    "generator/accuracy",
    "generator/sound_accuracy",
    "verifier/soft_auroc",
    "verifier/start_soft_auroc",
    "verifier/balanced_accuracy",
    "verifier/start_balanced_accuracy",
    "verifier/positive_rate",
    "verifier/f1",
    "hacking_gap",
)


def group_by_arm(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group the finished runs by what they are but for the seed, whatever block they stand in; the first one's name is the
    arm's."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["finished"]:
            found.setdefault(run["hash"], []).append(run)
    return {own[0]["name"].rpartition("/")[0]: own for own in found.values()}


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def format_change(runs: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Format the start and the end of one metric, of the seeds that have both: start → end (in how many of them it rose)."""
    read = [(run["first"].get(f"eval/{metric}"), run["last"].get(f"eval/{metric}")) for run in runs]
    pairs = [(start, end) for start, end in read if start is not None and end is not None]
    start, end = mean([start for start, _ in pairs]), mean([end for _, end in pairs])
    if start is None or end is None:
        return "–"
    return f"{start:.2f} → {end:.2f} ({sum(b > a for a, b in pairs)}/{len(pairs)})"


def write_table(runs: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> Iterator[str]:
    """Write the table: a line for each arm."""
    yield f"| arm | seeds | {' | '.join(metrics)} | tokens |"
    yield "|---" * (len(metrics) + 3) + "|"
    for arm, own in group_by_arm(runs).items():
        tokens = mean([run["last"].get("compute/tokens") for run in own]) or 0.0
        cells = [arm, str(len(own)), *(format_change(own, metric) for metric in metrics), f"{tokens / 1e6:.2f}M"]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the sweep")
    parser.add_argument("metrics", nargs="*", help="names of metrics, without eval/", default=METRICS)
    args = parser.parse_args()
    runs = [json.loads(line) for line in (args.folder / "runs.jsonl").read_text().splitlines()]
    print(*write_table(runs, args.metrics or METRICS), sep="\n")


if __name__ == "__main__":
    main()
