"""The study: its files can be read and planned, and the map is fitted as its protocol says, checked on gains that are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import base_study
import study_dose
import study_map
import study_pairs as pairs
from milonga.comparing.study import StudyArm, order_runs, read_studies
from milonga.comparing.sweep import name_run
from study_map import build_map, find_break_even, fit_surface, measure_foresight, resample_surfaces, summarise_mean
from study_pairs import Pair, find_cell, list_planned, measure_room, read_pairs, select_testable

ROOT = Path(__file__).parents[1]
STUDIES = sorted(path for path in (ROOT / "docs").glob("**/*.toml") if "$DATA" not in path.read_text())
"""Those of embedded models: the others need data that is not part of the repository."""
PLANNED = read_studies([ROOT / "docs" / "study" / "map.toml"], {"BASES": "bases"})
ARMS = [arm for arm in PLANNED if arm.block == "map"]
CELLS = [(mod, judge) for mod in (20, 25, 100) for judge in ("judge00", "judge30", "judge50")]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_study_of_embedded_models_is_planned_as_it_stands(path: Path) -> None:
    arms = read_studies([path], {"BASES": "bases"})
    assert arms and all(arm.seeds for arm in arms)


PLACE = {20: 0.9, 25: 0.8, 100: 0.7}
TOLD = {"judge00": 0.8, "judge30": 0.7, "judge50": 0.6}
ROUNDS = 200


def make_row(recipe: str, cell: tuple[int, str], seed: int, end: float, block: str = "map") -> dict[str, Any]:
    """A line of a sweep's table: a finished run that began at the place of its cell and ended with this sound accuracy."""
    arm = next(arm for arm in PLANNED if (arm.block, arm.arm.recipe, find_place(arm)) == (block, recipe, cell))
    guessed, auroc = PLACE.get(cell[0], 0.5), TOLD.get(cell[1], 0.5)
    first = {pairs.RIGHT: 0.2, pairs.SOUND: 0.2 * (1 - guessed), pairs.SKILL: auroc, pairs.ANSWERS: 1 - guessed / 2}
    row = {"name": f"{block}/{arm.arm.folder}/seed-{seed}", "recipe": recipe, "seed": seed, "settings": arm.identity}
    return row | {"finished": True, "first": first, "last": {pairs.SOUND: end, pairs.RIGHT: end + 0.1}}


def find_place(arm: StudyArm) -> tuple[int, str]:
    """The cell of an arm; those that measure the room have no verifier to name."""
    return (arm.identity["task"]["mod"], "judge00") if arm.block == "room" else find_cell(arm.identity)


def make_rows(gain: Any, seeds: int = 3) -> list[dict[str, Any]]:
    """Lines of a sweep's table: tango gains so much over grpo, which ends at 0.3."""
    rows = []
    for cell in CELLS:
        for seed in range(seeds):
            ends = {"tango": 0.3 + gain(PLACE[cell[0]], TOLD[cell[1]], seed), "grpo": 0.3}
            rows += [make_row(recipe, cell, seed, end) for recipe, end in ends.items()]
    return rows


def make_room(oracle: float = 0.8, grpo: float = 0.3) -> list[dict[str, Any]]:
    """Lines of the runs that say whether there is room."""
    ends = {"oracle": oracle, "grpo": grpo}
    return [make_row(recipe, (mod, "judge00"), 0, end, "room") for mod in PLACE for recipe, end in ends.items()]


def fit_noise(seed: int, effect: float = 0.0) -> list[Pair]:
    """Pairs of a study of the size planned: breaking through or not is chance, and the four verifiers of a modulus and seed
    share their run of GRPO."""
    rng = np.random.default_rng(seed)
    found = []
    for mod, guessed in zip((5, 20, 25, 97, 100), (0.7, 0.6, 0.4, 0.15, 0.3), strict=True):
        for number in range(5):
            grpo = 0.3 + rng.normal(0, 0.205)
            for judge, auroc in TOLD.items():
                tango = 0.3 + effect * guessed * (2 * auroc - 1) + rng.normal(0, 0.205)
                ends = {"tango": tango, "grpo": grpo, "gain": tango - grpo, "accuracy": 0.0, "co_trained": None}
                found.append(Pair((mod, judge), number, guessed, auroc, None, **ends))
    return found


def test_the_cells_of_a_study_have_both_arms() -> None:
    cells = {recipe: {find_cell(arm.identity) for arm in ARMS if arm.arm.recipe == recipe} for recipe in pairs.ARMS}
    assert cells["tango"] == cells["grpo"] and len(cells["tango"]) == 20 and set(CELLS) <= cells["tango"]
    assert cells["tango"] == {(mod, judge) for mod in base_study.MODULI for judge in base_study.JUDGES}
    planned = list_planned(ROOT / "docs" / "study" / "map.toml")
    assert len(planned) == 100 and {cell for cell, _ in planned} == cells["tango"] and min(seed for _, seed in planned) == 100


def test_room_and_dose_are_measured_first_and_with_seeds_that_are_never_reported() -> None:
    """The control has as many turns of generator and verifier as tango; every verifier's steps weigh alike throughout."""
    blocks = list(dict.fromkeys(arm.block for arm in PLANNED))
    assert blocks == ["room", "map", "sequential"]
    assert {arm.arm.recipe for arm in PLANNED if arm.block == "room"} == {"oracle", "grpo"}
    pilot = read_studies([ROOT / "docs" / "study" / "pilot.toml"], {"BASES": "bases"})
    assert all(seed < 100 for arm in [*PLANNED, *pilot] for seed in arm.seeds if arm.block in ("room", "alpha"))
    assert {arm.arm.plan.config.options.get("alpha_schedule", "constant") for arm in [*PLANNED, *pilot]} == {"constant"}
    turns = {arm.arm.recipe: arm.arm.plan.schedule.count_turns_until("generator", 28) for arm in PLANNED}
    assert turns["tango"] == turns["sequential"] == 41


def test_pairs_are_made_by_cell_and_seed() -> None:
    rows = make_rows(lambda guessed, auroc, seed: 0.1 * seed)
    found, left = read_pairs(rows)
    assert len(found) == 27 and {round(pair.gain, 9) for pair in found} == {0.0, 0.1, 0.2} and left == {}
    rows[1]["finished"] = False  # then its tango has no partner
    rows[2]["first"][pairs.SKILL] = None  # nothing readable in this run: the cell has its place from the others
    found, left = read_pairs(rows)
    assert len(found) == 26 and {pair.seed for pair in found if pair.cell == found[0].cell} == {1, 2}
    assert left == {"modulus 20, judge00, seed 0": "grpo not finished"}


def test_a_place_is_that_of_the_modulus_and_of_the_cell_not_of_a_run() -> None:
    """One run of modulus 20 solved nothing at the start; of another right answers none are guessed; AUROCs differ."""
    rows = [make_row(arm, (20, judge), seed, 0.3) for judge in TOLD for seed in range(2) for arm in pairs.ARMS]
    rows[0]["first"] |= {pairs.RIGHT: 0.0, pairs.SOUND: 0.0, pairs.SKILL: 0.9}
    rows[4]["first"] |= {pairs.RIGHT: 0.2, pairs.SOUND: 0.2}
    found, left = read_pairs(rows)
    assert left == {} and len(found) == 6
    # Twelve runs: eleven have 0.2 right, of which 0.02 are sound in ten, and all in one.
    assert {round(pair.guessed, 9) for pair in found} == {round(1 - (10 * 0.02 + 0.2) / (11 * 0.2), 9)}
    assert found[0].auroc == found[1].auroc == pytest.approx((0.9 + 3 * 0.8) / 4) and found[2].auroc == pytest.approx(0.7)
    assert found[0].answers == pytest.approx(0.55), "reported beside it"


def test_what_has_no_place_is_named() -> None:
    rows = make_rows(lambda guessed, auroc, seed: 0.0)
    for row in rows:
        cell = find_cell(row["settings"])
        if cell[0] == 20:
            row["first"] |= {pairs.RIGHT: 0.0, pairs.SOUND: 0.0}
        if cell == (25, "judge00"):
            row["first"][pairs.SKILL] = None
        if cell == (100, "judge00"):  # a task that knows nothing of steps
            row["first"][pairs.SOUND] = row["last"][pairs.SOUND] = None
    found, left = read_pairs(rows, [((5, "judge70"), 100)])
    assert len(found) == 12 and len(left) == 16
    assert left["modulus 5, judge70, seed 100"] == "tango and grpo not finished"
    assert left["modulus 20, judge50, seed 2"].startswith("no place: nothing is right")
    assert left["modulus 25, judge00, seed 0"] == left["modulus 20, judge50, seed 2"]
    assert left["modulus 100, judge00, seed 1"] == "the task does not know what is true of a step"


def test_only_moduli_with_room_and_cells_of_three_pairs_are_on_the_map() -> None:
    room = make_room()
    room[1]["last"][pairs.SOUND] = 0.75  # of modulus 20: exact step rewards gain too little
    room[3]["last"][pairs.SOUND] = 0.5
    found, _ = read_pairs(make_rows(lambda guessed, auroc, seed: 0.0) + room)
    assert len(found) == 27, "runs of the room are no pairs"
    said = measure_room(room)
    assert {mod: one["testable"] for mod, one in said.items()} == {20: False, 25: True, 100: True}
    kept, left = select_testable(found[:-1], said)
    assert len(kept) == 15 and left == {"modulus 20": "not testable", "modulus 100, judge50": "2 of at least 3 pairs"}
    assert select_testable(found, measure_room(make_room(oracle=0.99, grpo=0.87)))[0] == [], "nothing is left to be gained"
    kept, left = select_testable(found, measure_room(room[2:]))
    assert len(kept) == 18 and left == {"modulus 20": "its room was not measured"}
    assert select_testable(found, measure_room(room[1:]))[1] == left, "GRPO alone says nothing of the room"


def test_a_surface_is_found_again() -> None:
    """gain = -0.2 + 0.1 guessed + 0.3 skill + 0.4 guessed skill: exactly, for there is no noise."""

    def gain(guessed: float, auroc: float, seed: int) -> float:
        skill = 2 * auroc - 1
        return -0.2 + 0.1 * guessed + 0.3 * skill + 0.4 * guessed * skill

    found, _ = read_pairs(make_rows(gain))
    assert fit_surface(found) == pytest.approx([-0.2, 0.1, 0.3, 0.4], abs=1e-9)
    error = measure_foresight(found, ROUNDS)
    assert error["surface"] == pytest.approx(0.0, abs=1e-9) and error["mean"] > 0.03 and error["p"] < 0.05
    # Without guessing: 0.3 skill = 0.2; where all is guessed: 0.7 skill = 0.1.
    assert find_break_even(fit_surface(found), np.array([0.0, 1.0])) == pytest.approx([(2 / 3 + 1) / 2, (1 / 7 + 1) / 2])


def test_where_it_always_or_never_pays() -> None:
    guessed = np.array([0.0, 1.0])
    assert find_break_even(np.array([0.1, 0.0, 0.0, 0.0]), guessed) == pytest.approx([0.5, 0.5])
    assert np.isnan(find_break_even(np.array([-0.1, 0.0, 0.0, 0.0]), guessed)).all()
    assert np.isnan(find_break_even(np.array([0.1, 0.0, -0.3, 0.0]), guessed)).all(), "it gains the less, the more is known"
    # skill = 0.5, which is an AUROC of 0.75: above what was measured, or below all of it.
    line = np.array([-0.1, 0.0, 0.2, 0.0])
    assert np.isnan(find_break_even(line, guessed, (0.55, 0.7))).all()
    assert find_break_even(line, guessed, (0.8, 0.9)) == pytest.approx([0.8, 0.8])


def test_the_band_of_the_line_holds_it_and_grows_with_the_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    widths = []
    for noise in (0.01, 0.1):
        rows = make_rows(lambda guessed, auroc, seed, noise=noise: 0.5 * (2 * auroc - 1) - 0.2 + noise * rng.normal(), seeds=5)
        line = build_map(read_pairs(rows)[0], rounds=ROUNDS)["break_even"]
        low, at, high = (np.array(line[key])[2:9] for key in ("low", "auroc", "high"))
        assert (low <= at + 1e-9).all() and (at <= high + 1e-9).all()
        assert (line["guessed"][0], line["guessed"][-1]) == pytest.approx((0.7, 0.9)), "drawn where it was measured"
        widths.append(float((high - low).mean()))
    assert widths[0] < widths[1]
    rows += make_room()
    rows += [make_row(arm, (97, "judge70"), 100, 0.3) for arm in pairs.ARMS]  # a cell of one pair, of a modulus without room
    rows += [make_row("sequential", cell, seed, 0.25, "sequential") for cell in CELLS for seed in range(2)]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study_map.main([str(tmp_path), "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "a modulus that was left out: error" in said and "tango - sequential: " in said and "18 pairs" in said
    assert "left out: 100" in said and "- modulus 97: its room was not measured" in said
    assert "- modulus 5, judge70, seed 104: tango and grpo not finished" in said
    assert "not on the map" in said and "| 97 | judge70 | 1 | 0.50 |" in said
    assert "room, modulus 25: oracle 0.800, grpo 0.300: testable" in said
    found = json.loads((tmp_path / "map.json").read_text())
    assert len(found["cells"]) == 9 and len(found["pairs"]) == 45 and (tmp_path / "map.svg").read_text().startswith("<svg")
    assert found["cells"][0]["accuracy"] == pytest.approx(found["cells"][0]["gain"]) and found["cells"][0]["broke_grpo"] == 0.0
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:10]))
    with pytest.raises(SystemExit):
        study_map.main([str(tmp_path), "--out", str(tmp_path)])


def test_an_unfinished_study_reports_its_cells_without_a_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four cells of five pairs in two moduli cannot be judged by a modulus left out, but they were measured."""
    rows = make_room()
    for cell in [(mod, judge) for mod in (20, 25) for judge in ("judge00", "judge30")]:
        for seed in range(100, 105):
            rows += [make_row(arm, cell, seed, end) for arm, end in (("tango", 0.6), ("grpo", 0.3))]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SystemExit) as end:
        study_map.main([str(tmp_path), "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "left out: 80" in said and said.count("| 100% against 0% | +0.300 | +0.300 [+0.300, +0.300] |") == 4
    assert "tango - grpo: +0.300 [+0.300, +0.300], 20 pairs" in said and "a modulus that was left out" not in said
    assert str(end.value).startswith("no surface, line or foresight: ") and "\n" not in str(end.value)
    found = json.loads((tmp_path / "map.json").read_text())
    assert [(cell["mod"], cell["verifier"], cell["seeds"]) for cell in found["cells"]] == [
        (mod, judge, 5) for mod in (20, 25) for judge in ("judge00", "judge30")
    ]
    assert len(found["pairs"]) == 20 and len(found["left_out"]) == 80
    assert found.keys().isdisjoint({"coefficients", "break_even", "foresight"})
    drawn = (tmp_path / "map.svg").read_text()
    assert "sound accuracy: tango - grpo" in drawn and "from which AUROC" not in drawn


def test_a_map_without_a_line_is_drawn_with_a_gap() -> None:
    rng = np.random.default_rng(0)
    found = build_map(read_pairs(make_rows(lambda guessed, auroc, seed: -0.2 + 0.01 * rng.normal()))[0], rounds=50)
    assert np.isnan(found["break_even"]["auroc"]).all() and not found["needs_more_seeds"]
    assert "NaN" not in study_map.draw_map(found) and "nan" not in study_map.draw_map(found)


def test_more_seeds_are_asked_for_where_the_line_is_undecided_over_half_of_its_length() -> None:
    """Noise alone: all that was measured is undecided, whether that is a range of 0.15 or of 0.3."""

    def ask(best: float) -> bool:
        found = [replace(pair, auroc=best if pair.auroc == max(TOLD.values()) else pair.auroc) for pair in fit_noise(0)]
        said: bool = build_map(found, rounds=50)["needs_more_seeds"]
        return said

    assert not ask(0.75) and ask(0.9)


def test_bands_hold_what_is_true_as_often_as_runs_that_share_their_control_allow() -> None:
    """Without a gain: were pairs taken to be independent, the band of the mean would hold zero in 75 of these studies, and
    without widening in 90."""
    held = 0
    for seed in range(100):
        found = summarise_mean(fit_noise(seed), "gain", ROUNDS)
        assert found is not None
        held += found["low"] <= 0 <= found["high"]
    assert held >= 92


def test_resampled_seeds_are_those_of_a_modulus_with_all_its_verifiers() -> None:
    drawn = study_map.draw_seeds(fit_noise(0), 20)
    by_run = {(pair.cell[0], pair.seed): drawn[:, at] for at, pair in enumerate(fit_noise(0))}
    assert all((drawn[:, at] == by_run[pair.cell[0], pair.seed]).all() for at, pair in enumerate(fit_noise(0)))
    assert (drawn.sum(axis=1) == 75).all() and resample_surfaces(fit_noise(0), 3).shape == (3, 4)


def test_a_map_of_nothing_seldom_holds_and_a_map_of_something_often() -> None:
    def count(effect: float) -> int:
        return sum(build_map_foresight(seed, effect) for seed in range(30))

    def build_map_foresight(seed: int, effect: float) -> bool:
        error = measure_foresight(fit_noise(seed, effect), 99)
        return error["p"] <= study_map.LEVEL and error["surface"] < error["mean"]

    assert count(0.0) <= 4 and count(2.0) >= 15


def write_pilot(out: Path, shares: dict[float, tuple[float, ...]], left_out: str = "") -> None:
    """Write the folder of a pilot whose runs are all finished but one, with these shares of step credit at each alpha."""
    (pilot,) = (path for path in STUDIES if path.name == "pilot.toml")
    rows = []
    for arm, run in order_runs(read_studies([pilot], {"BASES": "bases"}), out):
        name, alpha = name_run(run, out), arm.identity["options"]["alpha"]
        turns = [{"turn": k, study_dose.SHARE: value} for k, value in enumerate(shares[alpha], 1)]
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "metrics.jsonl").write_text(
            "".join(json.dumps(turn) + "\n" for turn in [{"turn": 0}, *turns, {"turn": 3}])
        )
        rows.append({"name": name, "finished": name != left_out, "settings": arm.identity})
    (out / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


SHARES = {0.3: (0.1, 0.2), 0.5: (0.2, 0.34), 0.7: (0.4, 0.5), 0.9: (0.6, 0.6)}


def test_the_dose_is_chosen_by_the_share_of_step_credit_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pilot(tmp_path, SHARES)
    study_dose.main([str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "alpha 0.7: 0.450 of the credit from steps",
        "alpha 0.9: 0.600 of the credit from steps",
        "the study takes alpha 0.5",
    ]
    assert study_dose.choose_alpha({0.3: 0.01, 0.9: 0.2}) == 0.9
    (tmp_path / "runs.jsonl").write_text("")
    with pytest.raises(SystemExit):
        study_dose.main([str(tmp_path)])


def test_no_dose_is_chosen_from_a_part_of_the_pilot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither while one of its runs is at work or has not begun, nor where a run says nothing."""

    def refuse() -> str:
        with pytest.raises(SystemExit):
            study_dose.main([str(tmp_path)])
        out, err = capsys.readouterr()
        assert out == ""
        return err.splitlines()[-1]

    last = "alpha/tango,-options.alpha=0.3/seed-1"
    write_pilot(tmp_path, SHARES, left_out=last)
    assert refuse().endswith(f"1 of 8 runs of the pilot are not finished: {last}")
    rows = (tmp_path / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(row for row in rows if "alpha=0.7" in row or "alpha=0.9" in row))
    assert "4 of 8 runs of the pilot are not finished: alpha/tango,-options.alpha=0.3/seed-0, " in refuse()
    write_pilot(tmp_path, SHARES | {0.3: ()})
    assert refuse().endswith("no turn has a share of step credit with alpha 0.3")
