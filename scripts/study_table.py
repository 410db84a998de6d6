"""The table of a sweep, as Markdown: what was measured at the start and at the end of each arm, as means over its seeds.

python scripts/study_table.py runs/pieces                      # the folder of the sweep
python scripts/study_table.py runs/pieces verifier/f1 verifier/positive_rate
python scripts/study_table.py runs/factorial --effects

Means are over the seeds in which both were measured; beside each end: in how many of these the metric rose. An arm that has no
finished run is left out.

With --effects, of settings that a study has switched on and off together: the mean effect of each at the end, in each block,
with its 95 % t interval over the seeds. In one seed it is the mean of the differences between its high and its low value, one
for each combination of the others, so that every run counts for every setting. A seed of which a run is missing is left out.
Refused where the runs of a seed differ in anything besides: what that does would be taken for an effect of what was switched.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from milonga.comparing.stats import t_interval
from milonga.config import flatten_keys
from milonga.errors import UserError

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
Levels = tuple[int, ...]
"""Of the settings that were varied, in one run: the place of each one's value among those of its block, 0 for the low one."""


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


def list_values(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """List the different values of each setting among the runs of a block; None where a run does not have it."""
    flat = [flatten_keys(run["settings"]) for run in runs]
    found: dict[str, list[Any]] = {key: [] for key in sorted({key for one in flat for key in one})}
    for key, values in found.items():
        for one in flat:
            if one.get(key) not in values:  # values may be lists, which no set can hold
                values.append(one.get(key))
    return found


def sort_values(key: str, values: Sequence[Any]) -> list[Any]:
    """Sort the values of a setting from low to high; refuse those of which none is the lower."""
    try:
        return sorted(values)
    except TypeError:
        said = " and ".join("unset" if value is None else repr(value) for value in values)
        raise UserError(f"{key} has no low and high value: it is {said}") from None


def group_by_levels(runs: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> dict[int, dict[Levels, Mapping[str, Any]]]:
    """Group the finished runs of a block by seed, and in each by their levels; refuse runs of a seed that differ otherwise."""
    values = list_values(runs)
    scales = {key: sort_values(key, values.get(key, [None])) for key in varied}
    found: dict[int, dict[Levels, Mapping[str, Any]]] = {}
    for run in runs:
        if run["finished"]:
            own = found.setdefault(run["seed"], {})
            first, flat = next(iter(own.values()), run), flatten_keys(run["settings"])
            before = flatten_keys(first["settings"])
            if others := [key for key in values if key not in varied and flat.get(key) != before.get(key)]:
                alike = f"{first['name']} and {run['name']} have the same seed"
                raise UserError(f"{alike} and differ in {' and '.join(others)}, not only in {' and '.join(varied)}")
            levels = tuple(scale.index(flat.get(key)) for key, scale in scales.items())
            if levels in own:
                raise UserError(f"{own[levels]['name']} and {run['name']} have the same seed and settings")
            own[levels] = run
    return found


def gather_ends(runs: Mapping[int, Mapping[Levels, Mapping[str, Any]]], metric: str) -> dict[int, dict[Levels, float]]:
    """Gather the last value of a metric: for each seed, of each combination of levels that has it."""
    last = {seed: {levels: run["last"] or {} for levels, run in own.items()} for seed, own in runs.items()}
    key = f"eval/{metric}"
    return {seed: {levels: row[key] for levels, row in own.items() if row.get(key) is not None} for seed, own in last.items()}


def compute_effects(ends: Mapping[int, Mapping[Levels, float]], place: int, count: int) -> dict[int, float]:
    """Compute the effect of the setting at this place among `count` varied ones, in each seed that has all combinations."""
    effects, whole = {}, set(product((0, 1), repeat=count))
    for seed, own in sorted(ends.items()):
        if set(own) == whole:
            sides = [mean([value for levels, value in own.items() if levels[place] == side]) or 0.0 for side in (1, 0)]
            effects[seed] = sides[0] - sides[1]
    return effects


def format_effect(effects: Sequence[float]) -> str:
    """Format a mean with its interval; bold where that leaves out zero."""
    centre, interval = mean(effects), t_interval(effects)
    if centre is None or interval is None:
        return "–" if centre is None else f"{centre:+.3f}"
    said = f"{centre:+.3f} [{interval[0]:+.3f}, {interval[1]:+.3f}]"
    return f"**{said}**" if interval[0] > 0 or interval[1] < 0 else said


def write_effects(runs: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> Iterator[str]:
    """Write the table: a line for each block and metric, with the mean where all settings are low and the effect of each."""
    blocks: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        blocks.setdefault(run["name"].partition("/")[0], []).append(run)
    if not blocks:
        raise UserError("no run has begun")
    first = next(iter(blocks))
    varied = [key for key, values in list_values(blocks[first]).items() if len(values) == 2]
    if not varied:
        raise UserError(f"no setting has two values among the runs of block {first}")
    yield f"| block | metric | seeds | all low | {' | '.join(f'`{key}`' for key in varied)} |"
    yield "|---" * (len(varied) + 4) + "|"
    for block, own in blocks.items():
        grouped = group_by_levels(own, varied)
        for metric in metrics:
            ends = gather_ends(grouped, metric)
            effects = [compute_effects(ends, place, len(varied)) for place in range(len(varied))]
            whole = [ends[seed] for seed in effects[0]]
            low = mean([values[min(values)] for values in whole])
            cells = [block, f"`{metric}`", str(len(whole)), "–" if low is None else f"{low:.3f}"]
            yield f"| {' | '.join([*cells, *(format_effect(list(one.values())) for one in effects)])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the sweep")
    parser.add_argument("metrics", nargs="*", help="names of metrics, without eval/", default=METRICS)
    parser.add_argument("--effects", action="store_true", help="of settings that were switched together")
    args = parser.parse_intermixed_args()
    runs = [json.loads(line) for line in (args.folder / "runs.jsonl").read_text().splitlines()]
    write = write_effects if args.effects else write_table
    try:
        print(*write(runs, args.metrics or METRICS), sep="\n")
    except UserError as error:
        parser.error(f"{args.folder}: {error}")


if __name__ == "__main__":
    main()
