"""A model with a chat template and a file of problems, as a user brings them: run, probe, resume, in prose.

The model is random (a tiny Llama with a tokenizer and a template of its own), so that nothing it writes can be read: what is
held here is that everything runs, says so, and stops; what real models write is held by test_prose.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import milonga
from engine_helpers import chat_folder
from helpers import Command
from milonga.resolve import resolve
from milonga.runfolder.files import JsonLines

pytest.importorskip("math_verify", reason="answers are graded by math-verify, which is not installed")
TINY = ("--problems", "2", "--rollouts", "2", "--max-tokens", "8", "--turns", "1")
SETS = ("--set", "eval.problems=2", "--set", "eval.samples=1", "--set", "eval.bench=0")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return chat_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "problems.jsonl"
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_one_model_and_a_file_are_enough(model: str, problems: str) -> None:
    plan = resolve(
        [{"recipe": "tango", "task": {"name": "jsonl", "path": problems}, "policies": {"generator": {"model": model}}}]
    )
    assert plan.config.dialect == "plain"
    assert {section.model for section in plan.policies.values()} == {model}
    prompt = "".join(part.text for part in plan.roles["generator"].render_prompt(plan.task.problem("train", 0), None))
    assert prompt.endswith("Please reason step by step, and put your final answer within \\boxed{}.")


def test_a_model_that_cannot_be_read_is_refused_before_anything_is_written(
    milonga: Command, model: str, problems: str, tmp_path: Path
) -> None:
    done = milonga("probe", "grpo", "--data", problems, "--generator", model, "--problems", "2", "--rollouts", "2",
                   "--max-tokens", "8", "--json")  # fmt: skip
    assert done.code == 2 and any(advice["blocking"] for advice in done.json["advice"])
    out = tmp_path / "run"
    refused = milonga("run", "grpo", "--data", problems, "--generator", model, *TINY, *SETS, "--out", str(out))
    assert refused.code == 2 and "nothing can be learned" in refused.err and "--force" in refused.err
    assert not (out / "config.toml").exists()


@pytest.mark.parametrize("recipe", ["grpo", "tango"])
def test_with_force_it_runs_and_says_that_nothing_was_learned(
    milonga: Command, model: str, problems: str, tmp_path: Path, recipe: str
) -> None:
    out = tmp_path / recipe
    more = () if recipe == "grpo" else ("--set", "options.warmup=1", "--set", "bootstrap=1")
    done = milonga("run", recipe, "--data", problems, "--generator", model, *TINY, *SETS, *more, "--force", "--out", str(out))
    assert done.code == 0, done.err
    rows = JsonLines(out / "metrics.jsonl").rows()
    assert rows[-1]["lead_turn"] == 1 and rows[-1]["rollouts/generator/invalid_rate"] == 1.0
    assert (out / "probe.json").exists()


def test_a_prompt_of_the_users_own_reaches_the_model(model: str, problems: str, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("Say it in a box: {{ problem }}")
    seen = []

    def ask(problem: str, **more: object) -> str:
        seen.append((problem, sorted(more)))
        return f"Q: {problem}"

    layers = {"recipe": "grpo", "task": {"name": "jsonl", "path": problems}}
    section = {"model": model, "prompt": str(template)}
    plan = resolve([layers, {"policies": {"generator": section}}])
    problem = plan.task.problem("train", 0)
    asked = plan.roles["generator"].render_prompt(problem, None)
    assert [(part.text, part.foreign) for part in asked] == [("Say it in a box: ", False), (problem.text, True)]
    quick = {"problems": 2, "rollouts": 2, "max_tokens": 4, "turns": 1, "quiet": True}
    settings = {"probe": "off", "eval.problems": 2, "eval.samples": 1, "eval.greedy": False}
    milonga.run("grpo", model=model, data=problems, prompt=ask, out=tmp_path / "run", settings=settings, **quick)
    assert seen and all(text.startswith("What is") and more == ["count", "example", "program"] for text, more in seen)
