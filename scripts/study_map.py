"""The map of the study: what co-training gains over GRPO at equal FLOPs, and where it breaks even.

    python scripts/study_map.py runs/map            # writes docs/study/map.json and docs/study/map.svg, and prints the tables

What a pair is, and where it lies, stands in `study_pairs.py`. Gains are fitted by least squares, with an interaction:

    gain = b0 + b1 guessed + b2 skill + b3 guessed * skill,        skill = 2 AUROC - 1

Invariants: the runs of grpo with one seed and modulus are the same run but for their length, so seeds are resampled for all
verifiers of a modulus together, and a map is judged by moduli that it has not seen; nothing is said of places that were not
measured. An unfinished study reports its cells, without a map while they are too few to judge one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milonga.charts import Series, join_charts, line_chart, make_standalone, matrix_chart
from milonga.comparing.stats import average, t_interval
from milonga.runfolder.files import to_json, write_atomically
from study_pairs import (
    ARMS,
    CONTROL,
    Cell,
    Floats,
    LeftOut,
    Pair,
    Row,
    group_by_cell,
    list_planned,
    measure_room,
    read_pairs,
    select_testable,
    take,
)

OUT = Path(__file__).parents[1] / "docs" / "study"
ROUNDS = 2000
POINTS, HEIGHTS = 21, 201
"""Shares of guessed answers, and AUROCs at each of them, at which the surface is looked at."""
EDGES = (2.5, 97.5)
"""Percentiles of a band."""
LEVEL = 0.05
WIDE = 0.2
"""An undecided range of AUROC is wide above this."""
BROKE_THROUGH = 0.5
"""A run has broken through if it ends with a sound accuracy above this."""


def make_terms(guessed: Floats, auroc: Floats) -> Floats:
    """The terms of the surface: [points, 4]."""
    skill = 2 * auroc - 1
    return np.stack([np.ones_like(guessed), guessed, skill, guessed * skill], axis=1)


def fit_weighted(terms: Floats, gains: Floats, weights: Floats) -> Floats:
    """Fit the surface by weighted least squares: its four coefficients."""
    root = np.sqrt(weights)
    return np.asarray(np.linalg.lstsq(root[:, None] * terms, root * gains, rcond=None)[0])


def fit_surface(pairs: Sequence[Pair]) -> Floats:
    """Fit the surface to pairs, all alike."""
    return fit_weighted(make_terms(take(pairs, "guessed"), take(pairs, "auroc")), take(pairs, "gain"), np.ones(len(pairs)))


def draw_seeds(pairs: Sequence[Pair], rounds: int) -> Floats:
    """Draw the seeds of each modulus with replacement, for all its verifiers together: how often each pair is drawn,
    [rounds, pairs]."""
    rng, drawn = np.random.default_rng(0), np.zeros((rounds, len(pairs)))
    for mod in sorted({pair.cell[0] for pair in pairs}):
        seeds = sorted({pair.seed for pair in pairs if pair.cell[0] == mod})
        times = np.array([np.bincount(row, minlength=len(seeds)) for row in rng.integers(0, len(seeds), (rounds, len(seeds)))])
        for at, pair in enumerate(pairs):
            if pair.cell[0] == mod:
                drawn[:, at] = times[:, seeds.index(pair.seed)]
    return drawn


def widen(pairs: Sequence[Pair], key: str) -> Floats:
    """Move values away from the mean of their cell, by sqrt(n / (n - 1)) for n seeds of the modulus: resampled means vary less
    than means do, by as much."""
    seeds = {mod: len({pair.seed for pair in pairs if pair.cell[0] == mod}) for mod in {pair.cell[0] for pair in pairs}}
    means = {cell: float(take(own, key).mean()) for cell, own in group_by_cell(pairs).items()}
    factors = np.array([np.sqrt(seeds[pair.cell[0]] / max(seeds[pair.cell[0]] - 1, 1)) for pair in pairs])
    centres = np.array([means[pair.cell] for pair in pairs])
    return np.asarray(centres + factors * (take(pairs, key) - centres))


def resample_surfaces(pairs: Sequence[Pair], rounds: int = ROUNDS) -> Floats:
    """Fit the surface to resampled seeds of each modulus: [rounds, 4]."""
    terms, gains = make_terms(take(pairs, "guessed"), take(pairs, "auroc")), widen(pairs, "gain")
    return np.array([fit_weighted(terms, gains, times) for times in draw_seeds(pairs, rounds)])


def summarise_mean(pairs: Sequence[Pair], key: str, rounds: int) -> dict[str, Any] | None:
    """Summarise a difference over all pairs that have it: their number, its mean, and its band; None where there are none."""
    known = [pair for pair in pairs if getattr(pair, key) is not None]
    if not known:
        return None
    drawn, values = draw_seeds(known, rounds), widen(known, key)
    totals = drawn.sum(axis=1)
    low, high = np.percentile((drawn @ values)[totals > 0] / totals[totals > 0], EDGES)
    return {"pairs": len(known), "mean": float(take(known, key).mean()), "low": float(low), "high": float(high)}


def find_break_even(coefficients: Floats, guessed: Floats, reach: tuple[float, float] = (0.5, 1.0)) -> Floats:
    """Find the AUROC from which on co-training gains, for each share of guessed answers: the least within reach if it gains
    everywhere there. NaN where it does not gain with the best verifier within reach: there is no such AUROC."""
    b0, b1, b2, b3 = coefficients
    slope, level = b2 + b3 * guessed, b0 + b1 * guessed
    low, high = (2 * end - 1 for end in reach)
    with np.errstate(divide="ignore", invalid="ignore"):
        from_there = np.where(slope > 0, np.maximum(-level / slope, low), low)
    return np.asarray((np.where(level + slope * high > 0, from_there, np.nan) + 1) / 2)


def find_undecided(surfaces: Floats, guessed: Floats, reach: tuple[float, float]) -> tuple[Floats, Floats, Floats]:
    """Find, for each share of guessed answers, the AUROCs within reach at which the band of the gain holds zero: the least and
    the largest of them (NaN where there are none), and how much of the reach they take."""
    aurocs = np.linspace(*reach, HEIGHTS)
    step = aurocs[1] - aurocs[0]
    edges, widths = [], []
    for share in guessed:
        low, high = np.percentile(surfaces @ make_terms(np.full(HEIGHTS, share), aurocs).T, EDGES, axis=0)
        open_ = aurocs[(low <= 0) & (high >= 0)]
        edges.append(np.clip([open_[0] - step, open_[-1] + step], *reach) if len(open_) else (np.nan, np.nan))
        widths.append(len(open_) / HEIGHTS * (reach[1] - reach[0]))
    lows, highs = np.array(edges).T
    return lows, highs, np.array(widths)


@dataclass(frozen=True)
class Cells:
    """What is foretold: the mean gain of each cell, its modulus, the terms of its place, and the number of its pairs."""

    moduli: NDArray[np.int64]
    terms: Floats
    gains: Floats
    counts: Floats


def average_cells(pairs: Sequence[Pair]) -> Cells:
    groups = list(group_by_cell(pairs).values())
    places = (np.array([take(own, key).mean() for own in groups]) for key in ("guessed", "auroc"))
    gains, counts = np.array([take(own, "gain").mean() for own in groups]), np.array([float(len(own)) for own in groups])
    return Cells(np.array([own[0].cell[0] for own in groups]), make_terms(*places), gains, counts)


def foretell(cells: Cells, order: Sequence[int] | NDArray[np.int64] | None = None) -> tuple[float, float]:
    """Root mean square error of cells' mean gains, foretold by the surface of the other moduli; and by their mean alone.
    `order` says which cell's gain each place is given instead of its own."""
    order = np.arange(len(cells.gains)) if order is None else order
    gains, counts = cells.gains[order], cells.counts[order]
    errors = []
    for mod in np.unique(cells.moduli):
        own, others = cells.moduli == mod, cells.moduli != mod
        said = cells.terms[own] @ fit_weighted(cells.terms[others], gains[others], counts[others])
        flat = np.average(gains[others], weights=counts[others])
        errors += [(one - true, flat - true) for one, true in zip(said, gains[own], strict=True)]
    surface, mean = np.sqrt(np.mean(np.square(errors), axis=0))
    return float(surface), float(mean)


def permute(cells: Cells, rng: np.random.Generator) -> NDArray[np.int64]:
    """Permute the cells as they might have been found if places meant nothing: verifiers within each modulus, and whole moduli,
    which share their runs of GRPO, among those with as many cells."""
    order = np.arange(len(cells.gains))
    blocks = sorted((np.flatnonzero(cells.moduli == mod) for mod in np.unique(cells.moduli)), key=len)
    for _, group in groupby(blocks, key=len):
        members = list(group)
        for place, taken in zip(members, rng.permutation(len(members)), strict=True):
            order[place] = rng.permutation(members[taken])
    return order


def measure_foresight(pairs: Sequence[Pair], rounds: int = ROUNDS) -> dict[str, float]:
    """How well the map foretells moduli that it was not made from: its error, that of the mean of the others, and how often
    permuted cells give the surface as large a lead."""
    cells, rng = average_cells(pairs), np.random.default_rng(0)
    surface, mean = foretell(cells)
    chance = [foretell(cells, permute(cells, rng)) for _ in range(rounds)]
    as_large = sum(flat - one >= mean - surface - 1e-12 for one, flat in chance)
    return {"surface": surface, "mean": mean, "p": (1 + as_large) / (1 + rounds)}


def summarise_cell(cell: Cell, own: Sequence[Pair]) -> dict[str, Any]:
    """What was found in a cell: its place, its mean gains, the interval of the first, and how many runs broke through."""
    keys = ("guessed", "auroc", "answers", "tango", "grpo", "gain", "accuracy", "co_trained")
    known = {key: [value for pair in own if (value := getattr(pair, key)) is not None] for key in keys}
    broke = {f"broke_{arm}": float((take(own, arm) > BROKE_THROUGH).mean()) for arm in ARMS}
    mean = {key: average(values) for key, values in known.items()}
    return {"mod": cell[0], "verifier": cell[1], "seeds": len(own), **mean, **broke, "interval": t_interval(known["gain"])}


def can_be_judged(pairs: Sequence[Pair]) -> bool:
    """Whether a map can be judged by a modulus left out: four coefficients need two cells in each of three moduli."""
    moduli = [cell[0] for cell in group_by_cell(pairs)]
    return sum(moduli.count(mod) > 1 for mod in set(moduli)) >= 3


def build_map(pairs: Sequence[Pair], rounds: int = ROUNDS) -> dict[str, Any]:
    """Build the map: the cells, and where they are enough what was fitted to them."""
    measured = {
        "gain": summarise_mean(pairs, "gain", rounds),
        "co_trained": summarise_mean(pairs, "co_trained", rounds),
        "cells": [summarise_cell(cell, own) for cell, own in group_by_cell(pairs).items()],
        "pairs": [asdict(pair) for pair in pairs],
    }
    return measured | (fit_map(pairs, rounds) if can_be_judged(pairs) else {})


def fit_map(pairs: Sequence[Pair], rounds: int) -> dict[str, Any]:
    """Fit the surface, with the line of breaking even and what is undecided around it, within what was measured, and how far it
    can be trusted."""
    surfaces, foresight = resample_surfaces(pairs, rounds), measure_foresight(pairs, rounds)
    guessed = np.linspace(take(pairs, "guessed").min(), take(pairs, "guessed").max(), POINTS)
    reach = (float(take(pairs, "auroc").min()), float(take(pairs, "auroc").max()))
    low, high, width = find_undecided(surfaces, guessed, reach)
    line = {"guessed": guessed, "auroc": find_break_even(fit_surface(pairs), guessed, reach), "low": low, "high": high}
    return {
        "coefficients": fit_surface(pairs).tolist(),
        "resampled": np.percentile(surfaces, EDGES, axis=0).tolist(),
        "break_even": {key: values.tolist() for key, values in (line | {"undecided": width}).items()},
        "needs_more_seeds": bool((width > WIDE).mean() > 0.5),
        "foresight": foresight | {"holds": foresight["surface"] < foresight["mean"] and foresight["p"] <= LEVEL},
    }


def draw_map(found: Mapping[str, Any]) -> str:
    """Draw the cells, and if a map was fitted the line of breaking even with its band; where there is no line, a gap."""
    guessed = {cell["mod"]: cell["guessed"] for cell in found["cells"]}
    moduli = sorted(guessed, key=lambda mod: guessed[mod])
    judges = sorted({cell["verifier"] for cell in found["cells"]})
    gains = {(cell["verifier"], cell["mod"]): cell["gain"] for cell in found["cells"]}
    cells = matrix_chart(
        "sound accuracy: tango - grpo at equal FLOPs",
        judges,
        [f"{mod} ({guessed[mod]:.2f})" for mod in moduli],
        [[gains.get((judge, mod)) for mod in moduli] for judge in judges],
        x_label="modulus (share of right answers with a wrong step)",
    )
    if "break_even" not in found:
        return make_standalone(cells)
    line = found["break_even"]
    edge = line_chart(
        "from which AUROC of steps on co-training pays",
        [Series("break-even", line["guessed"], line["auroc"], line["low"], line["high"])],
        x_label="share of right answers with a wrong step, at the start",
        y_range=(0.5, 1.0),
    )
    return make_standalone(join_charts([cells, edge]))


def print_cells(cells: Sequence[Mapping[str, Any]]) -> None:
    print("| modulus | verifier | seeds | guessed | AUROC of steps, answers | sound above 0.5 | accuracy | sound accuracy |")
    print("|---" * 8 + "|")
    for cell in cells:
        answers = "–" if cell["answers"] is None else f"{cell['answers']:.2f}"
        interval = "" if cell["interval"] is None else " [{:+.3f}, {:+.3f}]".format(*cell["interval"])
        place = f"{cell['mod']} | {cell['verifier']} | {cell['seeds']} | {cell['guessed']:.2f} | {cell['auroc']:.2f}, {answers}"
        broke = " against ".join(f"{cell[f'broke_{arm}']:.0%}" for arm in ARMS)
        print(f"| {place} | {broke} | {cell['accuracy']:+.3f} | {cell['gain']:+.3f}{interval} |")


def print_map(found: Mapping[str, Any]) -> None:
    """Print the cells, those that are not on the map too, the differences, and how far the map can be trusted, if there is
    one."""
    print_cells(found["cells"])
    if found["others"]:
        print("\nmeasured, and not on the map:\n")
        print_cells(found["others"])
    for key, said in (("gain", "grpo"), ("co_trained", CONTROL)):
        if (mean := found[key]) is not None:
            print(f"\ntango - {said}: {mean['mean']:+.3f} [{mean['low']:+.3f}, {mean['high']:+.3f}], {mean['pairs']} pairs")
    if "foresight" not in found:
        return
    error = found["foresight"]
    said = f"error {error['surface']:.3f} by the map, {error['mean']:.3f} by the mean of the others, p = {error['p']:.3f}"
    print(f"\na modulus that was left out: {said}: the map {'holds' if error['holds'] else 'does not hold'}")
    if found["needs_more_seeds"]:
        print("the line is undecided over a wide range: the second five seeds are to be run")


def print_left_out(room: Mapping[int, Row], left: LeftOut) -> None:
    for mod, one in room.items():
        ends = ", ".join(f"{arm} {one[arm]:.3f}" for arm in ("oracle", "grpo"))
        print(f"room, modulus {mod}: {ends}: {'testable' if one['testable'] else 'not testable'}")
    print(f"\nleft out: {len(left) or 'nothing'}")
    for what, why in left.items():
        print(f"- {what}: {why}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the sweep")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    rows = [json.loads(line) for line in (args.folder / "runs.jsonl").read_text().splitlines()]
    room = measure_room(rows)
    every, missing = read_pairs(rows, list_planned(OUT / "map.toml"))
    pairs, untestable = select_testable(every, room)
    left = missing | untestable
    print_left_out(room, left)
    cells = group_by_cell(pairs)
    others = [summarise_cell(cell, own) for cell, own in group_by_cell(every).items() if cell not in cells]
    found = build_map(pairs) | {"others": others, "room": {str(mod): one for mod, one in room.items()}, "left_out": left}
    print_map(found)
    write_atomically(args.out / "map.json", to_json(found) + "\n")
    write_atomically(args.out / "map.svg", draw_map(found))
    if not can_be_judged(pairs):
        wanted = "to be judged by a modulus left out, a surface of four coefficients needs two cells in each of three moduli"
        sys.exit(f"no surface, line or foresight: {wanted}")


if __name__ == "__main__":
    main()
