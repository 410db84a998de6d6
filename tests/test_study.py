"""The study: its files can be read and planned, and the map is fitted as its protocol says, checked on gains that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import study_map
from milonga.comparing.study import read_studies
from study_map import build_map, find_break_even, find_cell, fit_surface, measure_foresight, read_pairs

ROOT = Path(__file__).parents[1]
STUDIES = sorted(path for path in (ROOT / "docs").glob("**/*.toml") if "$DATA" not in path.read_text())
"""Those of embedded models: the others need data that is not part of the repository."""
ARMS = [arm for arm in read_studies([ROOT / "docs" / "study" / "map.toml"], {"BASES": "bases"}) if arm.block == "map"]
CELLS = [(mod, judge) for mod in (5, 20, 100) for judge in ("judge00", "judge30", "judge50")]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_study_of_embedded_models_is_planned_as_it_stands(path: Path) -> None:
    arms = read_studies([path], {"BASES": "bases"})
    assert arms and all(arm.seeds for arm in arms)


def make_rows(gain: Any, seeds: int = 3) -> list[dict[str, Any]]:
    """Lines of a sweep's table: tango gains so much over grpo, which ends at 0.3."""
    rows = []
    for place, (mod, judge) in enumerate(CELLS):
        guessed, auroc = 1 - 0.1 * (place // 3 + 1), 0.6 + 0.1 * (place % 3)
        for seed in range(seeds):
            ends = {"tango": 0.3 + gain(guessed, auroc, seed), "grpo": 0.3}
            for recipe, end in ends.items():
                first = {study_map.RIGHT: 0.2, study_map.SOUND: 0.2 * (1 - guessed), study_map.SKILL: auroc}
                (arm,) = (arm for arm in ARMS if (arm.arm.recipe, find_cell(arm.identity)) == (recipe, (mod, judge)))
                name = f"map/{arm.arm.folder}/seed-{seed}"
                row = {"name": name, "recipe": recipe, "seed": seed, "settings": arm.identity, "finished": True}
                rows.append(row | {"first": first, "last": {study_map.SOUND: end}})
    return rows


def test_the_cells_of_a_study_have_both_arms() -> None:
    cells = {recipe: {find_cell(arm.identity) for arm in ARMS if arm.arm.recipe == recipe} for recipe in study_map.ARMS}
    assert cells["tango"] == cells["grpo"] and len(cells["tango"]) == 20 and set(CELLS) <= cells["tango"]


def test_pairs_are_made_by_cell_and_seed() -> None:
    rows = make_rows(lambda guessed, auroc, seed: 0.1 * seed)
    assert len(read_pairs(rows)) == 27 and {round(pair.gain, 9) for pair in read_pairs(rows)} == {0.0, 0.1, 0.2}
    rows[1]["finished"] = False  # then its tango has no partner
    rows[2]["first"][study_map.SKILL] = None  # nothing readable: it has no place
    left = read_pairs(rows)
    assert len(left) == 25 and {pair.seed for pair in left if pair.cell == left[0].cell} == {2}


def test_a_surface_is_found_again() -> None:
    """gain = -0.2 + 0.1 guessed + 0.3 skill + 0.4 guessed skill: exactly, for there is no noise."""

    def gain(guessed: float, auroc: float, seed: int) -> float:
        skill = 2 * auroc - 1
        return -0.2 + 0.1 * guessed + 0.3 * skill + 0.4 * guessed * skill

    pairs = read_pairs(make_rows(gain))
    assert fit_surface(pairs) == pytest.approx([-0.2, 0.1, 0.3, 0.4], abs=1e-9)
    surface, mean = measure_foresight(pairs)
    assert surface == pytest.approx(0.0, abs=1e-9) and mean > 0.03
    # Without guessing: 0.3 skill = 0.2; where all is guessed: 0.7 skill = 0.1.
    assert find_break_even(fit_surface(pairs), np.array([0.0, 1.0])) == pytest.approx([(2 / 3 + 1) / 2, (1 / 7 + 1) / 2])


def test_where_it_always_or_never_pays() -> None:
    guessed = np.array([0.0, 1.0])
    assert find_break_even(np.array([0.1, 0.0, 0.0, 0.0]), guessed) == pytest.approx([0.5, 0.5])
    assert (find_break_even(np.array([-0.1, 0.0, 0.0, 0.0]), guessed) > 1 - 1e-12).all()


def test_the_band_of_the_line_holds_it_and_grows_with_the_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    widths = []
    for noise in (0.01, 0.1):
        rows = make_rows(lambda guessed, auroc, seed, noise=noise: 0.5 * (2 * auroc - 1) - 0.2 + noise * rng.normal(), seeds=5)
        line = build_map(read_pairs(rows), rounds=200)["break_even"]
        low, at, high = (np.array(line[key])[2:9] for key in ("low", "auroc", "high"))
        assert (low <= at + 1e-9).all() and (at <= high + 1e-9).all()
        widths.append(float((high - low).mean()))
    assert widths[0] < widths[1]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study_map.main([str(tmp_path), "--out", str(tmp_path)])
    assert "a cell that was left out: error" in capsys.readouterr().out
    found = json.loads((tmp_path / "map.json").read_text())
    assert len(found["cells"]) == 9 and len(found["pairs"]) == 45 and (tmp_path / "map.svg").read_text().startswith("<svg")
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:10]))
    with pytest.raises(SystemExit):
        study_map.main([str(tmp_path), "--out", str(tmp_path)])
