"""The two loops in examples/: they learn on the embedded model, and the page that explains them quotes what they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from milonga.engine import Decoding, Request
from milonga.engine.local import LocalEngine
from milonga.roles import StepSolver
from milonga.tasks import make_task

ROOT = Path(__file__).parents[1]
LOOPS = ("grpo_loop", "tango_loop")
FEW = ["--turns", "8", "--problems", "8", "--lr", "2e-4", "--seed", "0"]
HELD_OUT = 128
"""Problems before and after training, one sample each: a standard error of an accuracy is 0.044 at most."""


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def grade_samples(engine: LocalEngine, tag: str) -> np.ndarray:
    """Whether what the generator samples for held-out problems is right, at its start (`ref`) or now (`live`)."""
    task, solver = make_task({"name": "chain"}), StepSolver("terse")
    problems = task.draw_problems("dev", 0, HELD_OUT)
    prompts = engine.encode_all("generator", [solver.prompt(problem) for problem in problems])
    requests = [Request(prompt, key) for key, prompt in enumerate(prompts)]
    done = engine.sample("generator", requests, Decoding(task.max_tokens), tag)
    parsed = [solver.parse(one.text).value for one in done]
    return np.array([task.grade(p, v.answer, v.steps).correct for p, v in zip(problems, parsed, strict=True)], dtype=float)


def assert_improved(engine: LocalEngine) -> None:
    """The same problems before and after: the mean difference is more than three of its standard errors."""
    difference = grade_samples(engine, "live") - grade_samples(engine, "ref")
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    assert difference.mean() > 3 * error > 0, f"{difference.mean():.3f} with standard error {error:.3f}"


def has_moved(engine: LocalEngine, policy: str) -> bool:
    chosen = engine.policy(policy)
    return any(not torch.equal(now, start) for now, start in zip(chosen.parameters, chosen.get_tag("ref"), strict=True))


@pytest.mark.slow
def test_grpo_learns(capsys: pytest.CaptureFixture[str]) -> None:
    loop = load_example("grpo_loop")
    engine, accuracies = loop.train(loop.parse_arguments(FEW))
    lines = capsys.readouterr().out.splitlines()
    assert [re.match(r"turn +(\d+)  accuracy ([\d.]+)", line).groups() for line in lines] == [  # type: ignore[union-attr]
        (str(turn), f"{accuracy:.3f}") for turn, accuracy in enumerate(accuracies, start=1)
    ]
    assert engine.version("generator") == 8
    assert_improved(engine)


@pytest.mark.slow
def test_tango_trains_both() -> None:
    loop = load_example("tango_loop")
    engine, rows = loop.train(loop.parse_arguments([*FEW, "--warmup", "1"]))
    assert [row["learner"][0] for row in rows] == list("vgggvggg")
    assert {policy: engine.version(policy) for policy in engine.policies} == {"generator": 6, "verifier": 2}
    assert has_moved(engine, "verifier")
    assert_improved(engine)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers() -> None:
    loop = load_example("tango_loop")
    short = ["--turns", "1", "--warmup", "0", "--problems", "4", "--rollouts", "4"]
    runs = [loop.train(loop.parse_arguments([*short, "--seed", seed])) for seed in ("3", "3", "4")]
    assert runs[0][1] == runs[1][1]
    weights = [[p.detach().clone() for p in engine.policy("generator").parameters] for engine, _ in runs]
    same = [all(torch.equal(a, b) for a, b in zip(weights[0], other, strict=True)) for other in weights[1:]]
    assert same == [True, False]


@pytest.mark.parametrize("name", LOOPS)
def test_other_models_and_problems_of_a_file(name: str, tmp_path: Path) -> None:
    """As a command, with a model that is named by its folder (so in tags) and problems in a file."""
    pytest.importorskip("math_verify", reason="grades answers of the task jsonl")
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(f'{{"question": "What is {n} + 1?", "answer": "{n + 1}"}}\n' for n in range(60)))
    model = ROOT / "src" / "milonga" / "embedded" / "base"
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--turns", "1", "--problems", "1", "--rollouts", "2"]
    command += ["--task", "jsonl", "--path", str(problems), "--model", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("turn   1") and "accuracy 0.000" in done.stdout


def test_the_page_quotes_the_files() -> None:
    """Every piece of code on the page stands in one of the loops, letter by letter."""
    sources = [(ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8") for name in LOOPS]
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    pieces = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(pieces) >= 8
    for piece in pieces:
        assert any(piece in source for source in sources), f"not in the examples any more:\n{piece}"
