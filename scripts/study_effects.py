"""The effects of two or more settings that a study has switched on and off together, as Markdown: for each block, setting and
metric the mean effect over the seeds with its 95 % t interval.

python scripts/study_effects.py runs/factorial                      # the folder of the sweep
python scripts/study_effects.py runs/factorial verifier/f1

The effect of a setting in one seed is the mean of the differences between its high and its low value, one for each
combination of the others: every run counts for every setting. A seed of which a run is missing is left out, and said.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from milonga.comparing.stats import average, t_interval
from milonga.config import flatten_keys

METRICS = (
    "verifier/start_balanced_accuracy",
    "verifier/start_soft_auroc",
    "verifier/f1",
    "verifier/balanced_accuracy",
    "verifier/soft_auroc",
    "generator/accuracy",
    "generator/sound_accuracy",
    "hacking_gap",
)
Levels = tuple[Any, ...]
"""The values of the settings that were varied, in one run."""


def find_varied(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Find the settings that have exactly two values among the runs of a block."""
    flat = [flatten_keys(run["settings"]) for run in runs]
    keys = sorted({key for one in flat for key in one})
    return [key for key in keys if len({repr(one.get(key)) for one in flat}) == 2]


def gather_ends(runs: Sequence[Mapping[str, Any]], varied: Sequence[str], metric: str) -> dict[int, dict[Levels, float]]:
    """Gather the last value of a metric: for each seed, of each combination of levels that has it."""
    found: dict[int, dict[Levels, float]] = {}
    for run in runs:
        value = run["last"].get(f"eval/{metric}")
        if run["finished"] and value is not None:
            flat = flatten_keys(run["settings"])
            found.setdefault(run["seed"], {})[tuple(flat.get(key) for key in varied)] = value
    return found


def compute_effects(ends: Mapping[int, Mapping[Levels, float]], place: int, count: int) -> dict[int, float]:
    """Compute the effect of the setting at this place among `count` varied ones, in each seed that has all combinations."""
    effects = {}
    for seed, own in sorted(ends.items()):
        if len(own) == 2**count:
            low, high = sorted({levels[place] for levels in own})
            sides = [average([value for levels, value in own.items() if levels[place] == side]) or 0.0 for side in (high, low)]
            effects[seed] = sides[0] - sides[1]
    return effects


def format_effect(effects: Sequence[float]) -> str:
    """Format a mean with its interval; bold where that leaves out zero."""
    centre, interval = average(effects), t_interval(effects)
    if centre is None or interval is None:
        return "–" if centre is None else f"{centre:+.3f}"
    said = f"{centre:+.3f} [{interval[0]:+.3f}, {interval[1]:+.3f}]"
    return f"**{said}**" if interval[0] > 0 or interval[1] < 0 else said


def write_table(runs: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> Iterator[str]:
    """Write the table: a line for each block and metric, with the mean where all settings are low and the effect of each."""
    blocks: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        blocks.setdefault(run["name"].partition("/")[0], []).append(run)
    varied = find_varied(next(iter(blocks.values())))
    yield f"| block | metric | seeds | all low | {' | '.join(f'`{key}`' for key in varied)} |"
    yield "|---" * (len(varied) + 4) + "|"
    for block, own in blocks.items():
        for metric in metrics:
            ends = gather_ends(own, varied, metric)
            effects = [compute_effects(ends, place, len(varied)) for place in range(len(varied))]
            whole = [ends[seed] for seed in effects[0]]
            low = average([values[min(values)] for values in whole])
            cells = [block, f"`{metric}`", str(len(whole)), "–" if low is None else f"{low:.3f}"]
            yield f"| {' | '.join([*cells, *(format_effect(list(one.values())) for one in effects)])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the sweep")
    parser.add_argument("metrics", nargs="*", help="names of metrics, without eval/", default=METRICS)
    args = parser.parse_args()
    runs = [json.loads(line) for line in (args.folder / "runs.jsonl").read_text().splitlines()]
    print(*write_table(runs, args.metrics or METRICS), sep="\n")


if __name__ == "__main__":
    main()
