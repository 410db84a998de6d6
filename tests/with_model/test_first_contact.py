"""What a user does first, with a real instruct model that MODEL names: a hub name, a folder or a GGUF file. Run by
`make test-real`; not a part of `make test`, which has no network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from helpers import Command
from milonga.runfolder.files import JsonLines
from test_notebook import CODE, SMALLER, run_cell

MODEL = os.environ.get("MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
SMALL = ("--lora", "--problems", "2", "--rollouts", "4", "--max-tokens", "128", "--set", "device=cpu")
UNMEASURED = ("--set", "eval.problems=2", "--set", "eval.samples=1", "--set", "eval.greedy=false")


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Problems of one's own: sums in words, which a small model solves sometimes."""
    rows = [
        {"question": f"Tom has {a} apples and buys {b} more. How many apples has he?", "answer": str(a + b)}
        for a, b in [(3 + i, 2 + (7 * i) % 9) for i in range(24)]
    ]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_probe_reads_what_the_model_writes(problems: Path, milonga: Command) -> None:
    done = milonga("probe", "grpo", "--data", problems, "--generator", MODEL, *SMALL, "--json")
    assert done.code in (0, 2), done.err
    found = json.loads(done.out)
    assert found["solver"]["readable"] > 0, "some answers of an instruct model can be read without any training"


@pytest.mark.parametrize("recipe", ["grpo", "tango"])
def test_a_turn_of_each_agent_learns_from_problems_of_ones_own(
    recipe: str, problems: Path, tmp_path: Path, milonga: Command
) -> None:
    out = tmp_path / recipe
    learning = ("--set", "options.warmup=1") if recipe == "tango" else ()
    begin = ("run", recipe, "--data", problems, "--generator", MODEL, "--turns", "1", "--out", out)
    done = milonga(*begin, *SMALL, *UNMEASURED, *learning, "--no-probe")
    assert done.code == 0, done.err
    rows = JsonLines(out / "metrics.jsonl").rows()
    assert {row["learner"] for row in rows[1:]} == ({"generator", "verifier"} if learning else {"generator"})
    assert all(0 <= row["signal"] <= 1 for row in rows[1:])
    assert milonga("show", out).code == 0


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, milonga: Command) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    settings, *rest = CODE[1:]
    run_cell(settings, names, milonga)
    more = SMALLER["MORE"] | {"probe": "off"}  # a cell before probes, by fewer samples
    names |= SMALLER | {"MODEL": MODEL, "MAX_TOKENS": 96, "RATE": 1e-4, "MORE": more}
    commands = [done for source in rest for done in run_cell(source, names, milonga)]
    assert all(done.code in (0, 2) for done in commands), [done.err for done in commands]
    assert all(solution.text for solution in names["solutions"])
