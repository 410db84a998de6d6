"""Systems of judges and proposers on questions in words, with a model that writes prose: turns run, batches are made, weights
move, and no answer is needed. The model's tokens are whole phrases (phrases.py), so that what it writes can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import milonga
from milonga.runfolder.files import JsonLines
from phrases import phrase_model, write_questions

QUICK = {
    "batch": {"problems": 3, "rollouts": 4},
    "sampling": {"max_tokens": 10},
    "eval": {"problems": 2, "samples": 1, "greedy": False, "bench": 0, "every": 100},
    "probe": "off",
    "lr": 1e-3,
    "keep": {"checkpoint_every": 100, "rollouts_every": 1},
}
MAE = {"answers": 2, "judgements": 2, "probe_judgements": 2, "audit": 2, "gate": 0.1}
ASL = {"n_proposer": 1, "n_verifier": 1, "n_generator": 1, "attempts": 3, "self_checks": 1, "accept": 0.0, "audit": 2}
STE = {"iters": 1, "collect": 1, "train": 1, "rows": 16, "measured": 2}
RUNS: list[tuple[str, dict[str, Any], int, str]] = [
    ("self_rewarding", {"options": {"gradings": 2}}, 1, "generator"),
    ("self_rewarding", {"options": {"gradings": 2, "prompts": "proposed"}}, 1, "generator"),
    ("multi_agent_evolve", {"options": MAE}, 2, "generator"),
    ("asl", {"options": ASL}, 2, "generator"),
    ("self_taught_evaluators", {"options": STE}, 3, "judge"),
]
"""Recipe, settings, turns of its lead, and the policy that learns."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return phrase_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Questions without answers."""
    return write_questions(tmp_path_factory.mktemp("data") / "prompts.jsonl", answers=False)


def settle(recipe: str, model: str, path: str, more: dict[str, Any]) -> dict[str, Any]:
    lead = "judge" if recipe == "self_taught_evaluators" else "generator"
    task = {"name": "jsonl", "path": path, "open": True}
    return {"task": task, "policies": {lead: {"model": model}}, **QUICK, **more}


@pytest.mark.parametrize(("recipe", "more", "turns", "policy"), RUNS)
def test_questions_without_answers_are_enough(
    recipe: str, more: dict[str, Any], turns: int, policy: str, model: str, prompts: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    milonga.run(recipe, turns=turns, out=out, settings=settle(recipe, model, prompts, more), quiet=True)
    rows = JsonLines(out / "metrics.jsonl").rows()
    assert any(row.get(f"learn/{policy}/grad_norm", 0) > 0 for row in rows)
    start, end = (load_file(Path(folder) / "model.safetensors") for folder in (model, out / "models" / policy))
    assert any((end[name] != start[name]).any() for name in start)
    assert all(row.get("rollouts/generator/accuracy") is None for row in rows), "there is no truth"
