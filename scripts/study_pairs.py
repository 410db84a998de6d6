"""What the runs of the study say, before anything is fitted: pairs, their places, which moduli have room, and what is missing.

A pair is a run of tango and the run of grpo with the same seed, task and compute. Its gain is the difference of their last
sound accuracies. Its place is that of its cell before the first turn: the share of right answers that have a wrong step, over
all runs of the modulus, and the AUROC of the verifier's soft verdicts on steps, over the runs of the cell. That of its verdicts
on answers is no place: who judges every step rightly has one of 1 - guessed / 2.

Invariant: every pair that the study plans is returned, or named with the reason why not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milonga.comparing.stats import FEWEST_PAIRS, average
from milonga.comparing.study import read_studies

Floats = NDArray[np.float64]
ARMS, CONTROL = ("tango", "grpo"), "sequential"
SOUND, RIGHT = "eval/generator/sound_accuracy", "eval/generator/accuracy"
SKILL, ANSWERS = "eval/verifier/soft_step_auroc", "eval/verifier/soft_auroc"
ROOM, CEILING = 0.10, 0.85
"""What exact step rewards must gain over GRPO in sound accuracy, and where GRPO must not end above, for a modulus to tell
anything."""

Cell = tuple[int, str]
"""The modulus of a task, and the verifier's base."""
Row = Mapping[str, Any]
Runs = dict[tuple[Cell, int], dict[str, Row]]
"""Finished runs by cell and seed, then by recipe."""
LeftOut = dict[str, str]
"""What is not on the map: its name, and why."""


@dataclass(frozen=True)
class Place:
    """Where a cell lies before the first turn."""

    guessed: float
    auroc: float
    """Of the soft verdicts on steps."""
    answers: float | None
    """The AUROC of the soft verdicts on answers: reported, never fitted."""


@dataclass(frozen=True)
class Pair:
    """A run of tango and its run of grpo: where their cell lies, how they ended, and what co-training gained."""

    cell: Cell
    seed: int
    guessed: float
    auroc: float
    answers: float | None
    tango: float
    grpo: float
    """Sound accuracy at the end, as that of tango."""
    gain: float
    accuracy: float
    """The gain in accuracy, guesses included."""
    co_trained: float | None
    """The gain in sound accuracy over a verifier that was trained first and then frozen; None where that run is not there."""


def name_cell(cell: Cell, seed: int | None = None) -> str:
    return f"modulus {cell[0]}, {cell[1]}" + ("" if seed is None else f", seed {seed}")


def collect_runs(rows: Sequence[Row]) -> Runs:
    """Collect the finished runs of the map and of its control."""
    found: Runs = {}
    for row in rows:
        block, recipe = row["name"].split("/")[0], row["recipe"]
        if row["finished"] and (block, recipe) in [*(("map", arm) for arm in ARMS), (CONTROL, CONTROL)]:
            found.setdefault((find_cell(row["settings"]), row["seed"]), {})[recipe] = row
    return found


def find_cell(settings: Mapping[str, Any]) -> Cell:
    """Find the cell of a run. GRPO has no verifier: the arm that it is matched with names one."""
    own = settings["policies"].get("verifier", {}).get("model") or settings["match"]["flops"]
    return settings["task"]["mod"], own.rpartition("/")[2]


def find_places(runs: Runs) -> dict[Cell, Place]:
    """Find the place of every cell that has one: right answers at the start of some run of its modulus, whose steps have a
    truth, and a verifier of whose verdicts on steps some can be read."""
    first: dict[Cell, list[Row]] = {}
    for (cell, _), own in runs.items():
        first.setdefault(cell, []).extend(row["first"] for row in own.values())
    found = {}
    for cell, rows in first.items():
        modulus = [row for other, more in first.items() if other[0] == cell[0] for row in more if row.get(SOUND) is not None]
        right, sound = (sum(row.get(key) or 0.0 for row in modulus) for key in (RIGHT, SOUND))
        skill, answers = (average([row[key] for row in rows if row.get(key) is not None]) for key in (SKILL, ANSWERS))
        if right and skill is not None:
            found[cell] = Place(1 - sound / right, skill, answers)
    return found


def read_pairs(rows: Sequence[Row], planned: Sequence[tuple[Cell, int]] = ()) -> tuple[list[Pair], LeftOut]:
    """Pair the finished runs by seed, task and verifier. The second value names every pair, of the planned ones too, that
    cannot be made, with its reason."""
    runs = collect_runs(rows)
    places, pairs, left = find_places(runs), list[Pair](), LeftOut()
    for cell, seed in dict.fromkeys([*planned, *runs]):
        own = runs.get((cell, seed), {})
        if missing := [arm for arm in ARMS if arm not in own]:
            left[name_cell(cell, seed)] = f"{' and '.join(missing)} not finished"
        elif any(own[arm]["last"].get(SOUND) is None for arm in ARMS):
            left[name_cell(cell, seed)] = "the task does not know what is true of a step"
        elif cell not in places:
            left[name_cell(cell, seed)] = "no place: nothing is right, or no verdict on a step can be read, at the start"
        else:
            pairs.append(make_pair(cell, seed, places[cell], own))
    return pairs, left


def make_pair(cell: Cell, seed: int, place: Place, own: Mapping[str, Row]) -> Pair:
    ends = {recipe: row["last"] for recipe, row in own.items()}
    tango, grpo = (ends[arm][SOUND] for arm in ARMS)
    frozen = ends.get(CONTROL, {}).get(SOUND)
    return Pair(
        cell,
        seed,
        **asdict(place),
        tango=tango,
        grpo=grpo,
        gain=tango - grpo,
        accuracy=ends["tango"][RIGHT] - ends["grpo"][RIGHT],
        co_trained=None if frozen is None else tango - frozen,
    )


def measure_room(rows: Sequence[Row]) -> dict[int, dict[str, Any]]:
    """Measure for each modulus whether there is room: mean sound accuracy at the end with exact step rewards, and of GRPO. A
    modulus that lacks either is not measured."""
    ends: dict[int, dict[str, list[float]]] = {}
    for row in rows:
        if row["finished"] and row["name"].startswith("room/") and row["last"].get(SOUND) is not None:
            ends.setdefault(row["settings"]["task"]["mod"], {}).setdefault(row["recipe"], []).append(row["last"][SOUND])
    found = {}
    for mod, own in sorted(ends.items()):
        oracle, grpo = (average(own.get(arm, [])) for arm in ("oracle", "grpo"))
        if oracle is not None and grpo is not None:
            found[mod] = {"oracle": oracle, "grpo": grpo, "testable": oracle - grpo >= ROOM and grpo <= CEILING}
    return found


def select_testable(pairs: Sequence[Pair], room: Mapping[int, Row]) -> tuple[list[Pair], LeftOut]:
    """Select the pairs of moduli with room, in cells of enough pairs; the second value names the others."""
    left: LeftOut = {}
    kept = []
    for cell, own in group_by_cell(pairs).items():
        if cell[0] not in room or not room[cell[0]]["testable"]:
            left[f"modulus {cell[0]}"] = "not testable" if cell[0] in room else "its room was not measured"
        elif len(own) < FEWEST_PAIRS:
            left[name_cell(cell)] = f"{len(own)} of at least {FEWEST_PAIRS} pairs"
        else:
            kept += own
    return kept, left


def group_by_cell(pairs: Sequence[Pair]) -> dict[Cell, list[Pair]]:
    found: dict[Cell, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.cell, []).append(pair)
    return found


def take(pairs: Sequence[Pair], key: str) -> Floats:
    return np.array([getattr(pair, key) for pair in pairs], dtype=float)


def list_planned(study: Path) -> list[tuple[Cell, int]]:
    """List the cells and seeds that a study plans."""
    arms = [arm for arm in read_studies([study], {"BASES": "bases"}) if (arm.block, arm.arm.recipe) == ("map", "tango")]
    return [(find_cell(arm.identity), seed) for arm in arms for seed in arm.seeds]
