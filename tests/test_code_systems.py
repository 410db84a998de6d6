"""CURE, Absolute Zero and Tango for code on Python functions of a file, with a chat model: prompts, readers, sandbox, learning.

The model is random: what it samples is what is trained on, but what it says is put into its mouth, as an instruct model would
write it. All else is real.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import milonga
from engine_helpers import chat_folder
from milonga.context import Context
from milonga.runfolder.files import JsonLines
from milonga.types import Problem, Rollout, Rollouts
from sandbox_helpers import opened

RIGHT = "We add.\n\n```python\ndef add(n, m):\n    '} would close a box'\n    return n + m\n```"
WRONG = "<think>Is it a product?</think>\nIt multiplies.\n\n```python\ndef add(n, m):\n    return n * m\n```"
SAID: dict[str, Sequence[str]] = {
    "generator": [RIGHT, WRONG, "I do not know."],
    "verifier": ["Step 1: It adds. CORRECT\nStep 2: It runs. CORRECT\nFinal verdict: CORRECT", "Final verdict: INCORRECT"],
    "tester": [
        "1 + 2 = 3\n\n```python\nassert add(1, 2) == 3\n```",
        "```python\nassert add(2, 2) == 4\n```",
        "Input: 1, 1\nOutput: 7",
        "Call it.",
    ],
    "proposer": [
        "```python\ndef f(s):\n    return s[::-1]\n```\n\n```input\n'<ab>'\n```",
        "<think>Sums.</think>\n```python\ndef f(a):\n    return sum(a)\n\nprint(f([1, 2]))\n```",
        "```python\nimport random\ndef f(a):\n    return random.random()\n```\n```input\n1\n```",
        "No idea.",
    ],
    "induction_proposer": [
        "```input\n[1, 2]\n[3]\n[]\n[1, 1]\n[4, 0]\n[5]\n```",
        "```input\n'a'\n'bc'\n'<'\n''\n'xyz'\n```",
        "None.",
    ],
    "deducer": ["```output\n'>ba<'\n```", "**Output:** 3", "Unknown."],
    "abducer": ["```input\n[1, 2]\n```", "Input: '<ab>'", "Unknown."],
    "inducer": ["```python\ndef f(a):\n    return sum(a)\n```", "```python\ndef f(s):\n    return s[::-1]\n```", "Unknown."],
}
"""What each agent says, in turn."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return chat_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Functions in the form of MBPP, one of whose tests is no call with literals."""
    opened("isolated").close()  # or skipped
    path = tmp_path_factory.mktemp("data") / "mbpp.jsonl"
    tests = ["assert add(1, 2) == 3", "assert add(0, 5) == 5", "assert sorted([add(2, 2)]) == [4]"]
    rows = [
        {"task_id": id, "text": f"Add ({id}).", "code": "def add(n, m):\n    return n + m", "test_list": tests} for id in IDS
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


IDS = (*range(11, 15), *range(511, 515), *range(601, 609))


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an agent samples says the next of its texts, parsed and graded as any other text."""
    own, turns = Context.ask, count()

    def ask(self: Context, agent: str, inputs: Sequence[Problem] | Rollouts, n: int = 1, *more: Any, **named: Any) -> Rollouts:
        rollouts = own(self, agent, inputs, n, *more, **named)
        texts = SAID.get(agent, SAID["proposer"])
        targets: list[Problem | Rollout] = [
            rollout.targets[0] if rollout.targets else replace(rollout.problem, id=rollout.id) for rollout in rollouts
        ]
        written = self.write(agent, targets, [texts[next(turns) % len(texts)] for _ in rollouts])
        for rollout, given in zip(rollouts, written, strict=True):
            rollout.text, rollout.parsed, rollout.grade, rollout.steps = given.text, given.parsed, given.grade, ()
        return rollouts

    monkeypatch.setattr(Context, "ask", ask)


def run(recipe: str, model: str, functions: str, folder: Path, options: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Run one turn; return its metrics, and whether the weights of the generator moved."""
    settings = {
        "task": {"name": "code", "dialect": "python", "path": functions},
        "eval": {"problems": 2, "samples": 1, "greedy": False, "bench": 0, "checks": 1},
        "probe": "off",
        "options": dict(options),
    }
    quick = {"problems": 3, "rollouts": 4, "max_tokens": 4, "turns": 1, "quiet": True}
    milonga.run(recipe, model=model, out=folder, settings=settings, **quick)
    (trained,) = (folder / "models" / "generator").rglob("model.safetensors")
    (start,) = Path(model).rglob("model.safetensors")
    return JsonLines(folder / "metrics.jsonl").rows()[-1], trained.read_bytes() != start.read_bytes()


def test_cure_pays_programs_and_tests_by_running_them(model: str, functions: str, tmp_path: Path) -> None:
    row, moved = run("cure", model, functions, tmp_path / "run", {"tests": 4, "measured": 2})
    assert moved and row["learn/generator/steps"] == 2 and row["learn/generator/grad_norm"] > 0
    assert row["credit/generator/mu"] > 0 and row["rollouts/tester/invalid_rate"] == pytest.approx(0.25, abs=0.1)
    assert row["eval/tester/validity"] == pytest.approx(0.5, abs=0.26) and row["eval/tester/readable"] == pytest.approx(
        0.75, abs=0.13
    )


def test_absolute_zero_proposes_and_solves_in_prose(model: str, functions: str, tmp_path: Path) -> None:
    row, moved = run("absolute_zero", model, functions, tmp_path / "run", {"measured": 2, "seeds": 1, "seed_rounds": 1})
    assert moved and row["learn/generator/grad_norm"] > 0
    assert row["credit/generator/deduction_valid"] == pytest.approx(0.5, abs=0.25), "random and unreadable ones are not"
    assert row["eval/buffer/programs"] == 3, "the identity and two that were proposed"
    assert row["rollouts/deducer/invalid_rate"] == pytest.approx(1 / 3, abs=0.2)


def test_tango_code_and_its_control_read_the_same_programs(model: str, functions: str, tmp_path: Path) -> None:
    for recipe, options in (("tango_code", {"warmup": 0, "reward": "share"}), ("grpo", {})):
        row, moved = run(recipe, model, functions, tmp_path / recipe, options)
        assert moved and row["rollouts/generator/accuracy"] == pytest.approx(1 / 3, abs=0.15)
