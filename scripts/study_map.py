"""The map of the study: what co-training gains over GRPO at equal FLOPs, and where it breaks even.

    python scripts/study_map.py runs/map            # writes docs/study/map.json and docs/study/map.svg, and prints the table

A pair is a run of tango and the run of grpo with the same seed, task and compute. Its gain is the difference of their last
sound accuracies; its place is what was measured before the first turn: the share of right answers that have a wrong step, and
the AUROC of the verifier's soft verdicts. The gain is fitted by least squares, with an interaction:

    gain = b0 + b1 guessed + b2 skill + b3 guessed * skill,        skill = 2 AUROC - 1

Bands are percentiles over resampled seeds, within each cell. How well the map foretells a cell that it was not made from is
said by leaving each cell out in turn, beside what the mean of the others would have said.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milonga.charts import Series, join_charts, line_chart, make_standalone, matrix_chart
from milonga.comparing.stats import average, t_interval
from milonga.runfolder.files import to_json, write_atomically

Floats = NDArray[np.float64]
OUT = Path(__file__).parents[1] / "docs" / "study"
ARMS = ("tango", "grpo")
SOUND, RIGHT, SKILL = "eval/generator/sound_accuracy", "eval/generator/accuracy", "eval/verifier/soft_auroc"
ROUNDS = 2000
GUESSED = np.linspace(0.0, 1.0, 21)
"""Where the line of breaking even is drawn."""
EDGES = (2.5, 97.5)
"""Percentiles of a band."""


Cell = tuple[int, str]
"""The modulus of a task, and the verifier's base."""


@dataclass(frozen=True)
class Pair:
    """A run of tango and its run of grpo: where it lies, and what co-training gained."""

    cell: Cell
    seed: int
    guessed: float
    auroc: float
    gain: float


def read_pairs(rows: Sequence[Mapping[str, Any]]) -> list[Pair]:
    """Pair the finished runs by seed, task and verifier. One whose generator solved nothing at the start, or of whose verifier
    nothing could be read, has no place and is left out."""
    found: dict[tuple[Cell, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["finished"] and row["name"].startswith("map/") and row["recipe"] in ARMS:
            found.setdefault((find_cell(row["settings"]), row["seed"]), {})[row["recipe"]] = row
    pairs = []
    for (cell, seed), runs in found.items():
        if len(runs) < len(ARMS):
            continue
        tango, grpo = (runs[arm] for arm in ARMS)
        right, auroc = tango["first"].get(RIGHT), tango["first"].get(SKILL)
        if right and auroc is not None:
            guessed = 1 - tango["first"][SOUND] / right
            pairs.append(Pair(cell, seed, guessed, auroc, tango["last"][SOUND] - grpo["last"][SOUND]))
    return pairs


def find_cell(settings: Mapping[str, Any]) -> Cell:
    """Find the cell of a run. GRPO has no verifier: the arm that it is matched with names one."""
    own = settings["policies"].get("verifier", {}).get("model") or settings["match"]["flops"]
    return settings["task"]["mod"], own.rpartition("/")[2]


def make_terms(guessed: Floats, auroc: Floats) -> Floats:
    """The terms of the surface: [points, 4]."""
    skill = 2 * auroc - 1
    return np.stack([np.ones_like(guessed), guessed, skill, guessed * skill], axis=1)


def fit_surface(pairs: Sequence[Pair]) -> Floats:
    """Fit the surface by least squares: its four coefficients."""
    guessed, auroc, gain = (np.array([getattr(pair, key) for pair in pairs]) for key in ("guessed", "auroc", "gain"))
    return np.asarray(np.linalg.lstsq(make_terms(guessed, auroc), gain, rcond=None)[0])


def resample_surfaces(pairs: Sequence[Pair], rounds: int = ROUNDS) -> Floats:
    """Fit the surface to resampled seeds of each cell: [rounds, 4]."""
    rng = np.random.default_rng(0)
    cells = group_by_cell(pairs)
    return np.array(
        [fit_surface([own[k] for own in cells.values() for k in rng.integers(0, len(own), len(own))]) for _ in range(rounds)]
    )


def group_by_cell(pairs: Sequence[Pair]) -> dict[Cell, list[Pair]]:
    found: dict[Cell, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.cell, []).append(pair)
    return found


def find_break_even(coefficients: Floats, guessed: Floats) -> Floats:
    """Find the AUROC from which on co-training gains, for each share of guessed answers: between 0.5, where it gains with a
    verifier that knows nothing, and 1; above 1 it never gains."""
    b0, b1, b2, b3 = coefficients
    slope, level = b2 + b3 * guessed, b0 + b1 * guessed
    with np.errstate(divide="ignore", invalid="ignore"):
        skill = np.where(slope > 0, -level / slope, np.where(level > 0, 0.0, np.inf))
    return np.asarray((np.clip(skill, 0.0, 1.0 + 1e-9) + 1) / 2)


def measure_foresight(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Root mean square error of cells' mean gains, each foretold by the surface of the other cells; and by their mean alone."""
    cells = group_by_cell(pairs)
    errors = []
    for name, own in cells.items():
        others = [pair for pair in pairs if pair.cell != name]
        place = (np.array([np.mean([getattr(pair, key) for pair in own])]) for key in ("guessed", "auroc"))
        said = float((make_terms(*place) @ fit_surface(others))[0])
        true = float(np.mean([pair.gain for pair in own]))
        errors.append((said - true, float(np.mean([pair.gain for pair in others])) - true))
    surface, mean = np.sqrt(np.mean(np.square(errors), axis=0))
    return float(surface), float(mean)


def summarise_cell(cell: Cell, own: Sequence[Pair]) -> dict[str, Any]:
    """What was found in a cell: its place, its mean gain, and the interval of it."""
    mean = {key: average([getattr(pair, key) for pair in own]) for key in ("guessed", "auroc", "gain")}
    return {"mod": cell[0], "verifier": cell[1], "seeds": len(own), **mean, "interval": t_interval([pair.gain for pair in own])}


def build_map(pairs: Sequence[Pair], rounds: int = ROUNDS) -> dict[str, Any]:
    """Build the map: cells, surface, the line of breaking even with its band, and how far it can be trusted."""
    surfaces = resample_surfaces(pairs, rounds)
    low, high = np.percentile([find_break_even(one, GUESSED) for one in surfaces], EDGES, axis=0)
    surface, mean = measure_foresight(pairs)
    return {
        "cells": [summarise_cell(cell, own) for cell, own in group_by_cell(pairs).items()],
        "coefficients": fit_surface(pairs).tolist(),
        "resampled": np.percentile(surfaces, EDGES, axis=0).tolist(),
        "break_even": {
            "guessed": GUESSED.tolist(),
            "auroc": find_break_even(fit_surface(pairs), GUESSED).tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
        },
        "foresight": {"surface": surface, "mean": mean},
        "pairs": [asdict(pair) for pair in pairs],
    }


def draw_map(found: Mapping[str, Any]) -> str:
    """Draw the cells, and the line of breaking even with its band."""
    moduli = sorted({cell["mod"] for cell in found["cells"]})
    judges = sorted({cell["verifier"] for cell in found["cells"]})
    gains = {(cell["verifier"], cell["mod"]): cell["gain"] for cell in found["cells"]}
    cells = matrix_chart(
        "sound accuracy: tango - grpo at equal FLOPs",
        judges,
        [str(mod) for mod in moduli],
        [[gains.get((judge, mod)) for mod in moduli] for judge in judges],
        x_label="modulus: the smaller, the easier to guess",
    )
    line = found["break_even"]
    edge = line_chart(
        "from which AUROC on co-training pays",
        [Series("break-even", line["guessed"], line["auroc"], line["low"], line["high"])],
        x_label="share of right answers with a wrong step, at the start",
        y_range=(0.5, 1.0),
    )
    return make_standalone(join_charts([cells, edge]))


def print_cells(found: Mapping[str, Any]) -> None:
    print("| modulus | verifier | seeds | guessed | AUROC | gain in sound accuracy |\n|---|---|---|---|---|---|")
    for cell in found["cells"]:
        interval = "" if cell["interval"] is None else " [{:+.3f}, {:+.3f}]".format(*cell["interval"])
        place = f"{cell['mod']} | {cell['verifier']} | {cell['seeds']} | {cell['guessed']:.2f} | {cell['auroc']:.2f}"
        print(f"| {place} | {cell['gain']:+.3f}{interval} |")
    error = found["foresight"]
    print(f"\na cell that was left out: error {error['surface']:.3f} by the map, {error['mean']:.3f} by the mean of the others")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the sweep")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    pairs = read_pairs([json.loads(line) for line in (args.folder / "runs.jsonl").read_text().splitlines()])
    if len(group_by_cell(pairs)) < 5:
        parser.error("a surface of four coefficients needs pairs in five cells at least")
    found = build_map(pairs)
    print_cells(found)
    write_atomically(args.out / "map.json", to_json(found) + "\n")
    write_atomically(args.out / "map.svg", draw_map(found))


if __name__ == "__main__":
    main()
