"""The notebook in examples/: its cells are run in their order, with a tiny random model in the place of the real one."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from engine_helpers import chat_folder
from helpers import Command, Done
from milonga.engine.local import LocalEngine
from milonga.runfolder.files import JsonLines

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_run.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
SMALLER = {
    "ROWS": 40,
    "PROBLEMS": 2,
    "ROLLOUTS": 4,
    "TURNS": 2,
    "MAX_TOKENS": 12,
    "RATE": 1e-2,
    "MORE": {"eval.problems": 2, "eval.samples": 1, "eval.greedy": False, "keep.rollouts_every": 1, "threads": 1},
    "FORCE": True,  # of a random model nothing can be read, and the probe says so
}
"""What the test sets beside the model, after the cell of the settings."""


def run_cell(source: str, names: dict[str, Any], milonga: Command) -> list[Done]:
    """Run a cell as a notebook does: a line that begins with `!` is a command, in which {NAME} is the value of NAME."""
    done = []
    python = [line for line in source.splitlines() if not line.startswith("!")]
    exec(compile("\n".join(python), "cell", "exec"), names)
    for line in source.splitlines():
        if line.startswith("!"):
            program, *words = shlex.split(re.sub(r"\{(\w+)\}", lambda found: str(names[found[1]]), line[1:]))
            assert program == "milonga"
            done.append(milonga(*words))
    return done


def test_it_is_a_notebook_without_outputs() -> None:
    whole = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS if cell["cell_type"] == "code")
    assert CODE[0].startswith("%pip install") and all("%" not in line[:1] for code in CODE[1:] for line in code.splitlines())


def test_its_cells_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, milonga: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("math_verify", "peft"):
        pytest.importorskip(name, reason="one of the extras math and lora is not installed")
    model = chat_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    settings, *rest = CODE[1:]
    run_cell(settings, names, milonga)
    assert set(SMALLER) <= set(names), "the settings are where the test looks for them"
    names |= SMALLER | {"MODEL": model}
    commands = [done for source in rest[:-1] for done in run_cell(source, names, milonga)]
    probe, show = commands
    assert probe.code == 2 and "can be read" in probe.out, probe.err
    assert show.code == 0 and "grpo" in show.out, show.err
    rows = JsonLines(tmp_path / "runs" / "first" / "metrics.jsonl").rows()
    assert [row["signal"] > 0 for row in rows[1:]] == [True, True], "its reward tells solutions of a random model apart"

    capsys.readouterr()
    run_cell(rest[-1], names, milonga)
    trained = names["trained"]
    assert trained.turn == SMALLER["TURNS"] and isinstance(trained.engine, LocalEngine)
    adapter = trained.engine.policy("generator").parameters
    assert all(bool(part.any()) for part in adapter), "half of an adapter is zero before it is trained"
    assert [solution.problem.text for solution in names["solutions"]] == names["questions"]
    out = capsys.readouterr().out
    assert all(solution.text.strip() in out for solution in names["solutions"]) and out.count("answer:") == 2
