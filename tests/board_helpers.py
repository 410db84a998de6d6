"""Small run folders and rollouts for the tests of the board."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers import make_rollout
from milonga.types import Grade, Parsed, Rollout, Solution, Verification

CONFIG = 'recipe = "tango"\nseed = {seed}\nturns = 5\ndialect = "terse"\n[task]\nname = "chain"\n'


def write_run(path: Path, rows: Sequence[Mapping[str, Any]] = (), seed: int = 0) -> Path:
    path.mkdir(parents=True)
    (path / "config.toml").write_text(CONFIG.format(seed=seed))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(turn: int, accuracy: float, **more: Any) -> dict[str, Any]:
    return {"turn": turn, "lead_turn": turn, "learner": "generator", "eval/generator/accuracy": accuracy, **more}


def solved(id: str, problem: str, correct: bool | None, truth: tuple[bool, ...] = (True, False)) -> Rollout:
    """A solution of two steps, `ab` and `cd`, and an answer."""
    rollout = make_rollout(2, 6, [2, 4], problem, correct, id=id)
    parsed = Parsed(Solution(("a", "c"), (2, 4), "e"), 1.0)
    return replace(rollout, text="a\nc\n#e", parsed=parsed, grade=Grade(correct, truth))


def checked(
    id: str, solution: Rollout, steps: tuple[bool, ...] | None, final: bool | None, invalid: str | None = None
) -> Rollout:
    value = Verification(steps, final, (2, 4) if steps else ())
    text = "x+\ny-\n=+" if steps is None else "".join("+\n" if right else "-\n" for right in steps) + ("=+" if final else "=-")
    check = Rollout.from_text(id, "verifier", solution.problem, text, Parsed(value, 1.0, invalid))
    return replace(check, targets=(solution,))
