"""The soak of random kills, in its tiny mode; and that it would notice."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import soak_kills
from soak_kills import RUNS, TINY, Tally, compare, kill_until


def test_runs_that_are_killed_end_in_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUNS, "grpo", RUNS["grpo"] | {"turns": 2})
    assert soak_kills.main(["--count", "2", "--only", "grpo", "--out", str(tmp_path / "soak" / "kills.json")]) == 0
    result = json.loads((tmp_path / "soak" / "kills.json").read_text())
    assert result["kills"] >= 2 and result["runs_ended"] >= 1 and result["failures"] == []
    assert sum(result["recipes"]["grpo"]["turns"].values()) == result["kills"]


def test_a_file_that_differs_or_is_missing_is_found(tmp_path: Path) -> None:
    for name, rows in (("one", "a"), ("other", "b")):
        (tmp_path / name / "rollouts").mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").write_text(rows)
        (tmp_path / name / "timing.jsonl").write_text(rows)
        (tmp_path / name / "rollouts" / f"{name}.parquet").write_text("same")
    assert compare(tmp_path / "one", tmp_path / "other") == ["metrics.jsonl", "rollouts/one.parquet", "rollouts/other.parquet"]
    assert compare(tmp_path / "one", tmp_path / "one") == []


def test_a_run_that_does_not_end_well_is_a_failure(tmp_path: Path) -> None:
    tally = Tally(seconds=600.0)
    kill_until(tally, tmp_path / "run", tmp_path, TINY | {"recipe": "none"}, 1, random.Random(0))
    assert tally.failures == ["a run ended with 1 after 0 kills"]


def test_there_are_ten_recipes() -> None:
    assert len({run.get("recipe", name) for name, run in RUNS.items()}) == 10
