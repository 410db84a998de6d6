"""Solutions whose steps are code: what is read of a text, what is run, and rStar-Math's trees of such steps on a file of
problems."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_helpers import chat_folder
from helpers import PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.context import Context
from milonga.errors import ConfigError
from milonga.patterns.imitation import make_imitation_batch
from milonga.resolve import Plan, resolve
from milonga.roles import ProgramSolver
from milonga.systems.rstar_math.recipe import RstarMath
from milonga.systems.rstar_math.search import Search, SearchOptions, expand_nodes, make_roots, select_end
from milonga.systems.rstar_math.trees import Node
from milonga.tasks import Task, make_task
from milonga.tasks.code_python import PythonRunner, read_script, split_paragraphs
from milonga.types import Parsed, Problem, Rollout, Rollouts

pytest.importorskip("math_verify", reason="answers are graded by math-verify, which is not installed")

CLIPS = """```python
# Step 1: Compute the number of clips sold in April
fruits_sold_april = 48

# Step 2: Calculate the number of clips sold in May
fruits_sold_may = fruits_sold_april // 2

# Step 3: Calculate the total number of clips sold
total_fruits_sold = fruits_sold_april + fruits_sold_may

# Print the final answer
print(total_fruits_sold)  # Should print the total number of clips sold in April and May
```
This Python program calculates the total number of clips sold by Natalie in April and May and prints it."""
BABYSITTING = """Here's the Python code with step-by-step comments to solve the problem:

```python
# Step 1: Calculate earnings
# 50 minutes is equal to 30/60 = 0.5 hours
earnings_per_hour = 12
hours_worked = 50/60
earnings = earnings_per_hour * hours_worked

# Step 2: Print the final answer
print(earnings)
```

This program first calculates the earnings for babysitting by multiplying the hourly wage by the number of hours worked."""
SHELL = """```python
#!/bin/bash

# Determine the number of clips each friend sold from April
fruits_sold_first_quarter = 48

# Print the total number of clips sold
printf "Total number of clips sold in April and May: %d\\n", total_clips_sold
```
"""
"""What Qwen2.5-Coder-0.5B-Instruct wrote for GSM8K, the last two shortened."""


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "problems.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"What is {n} + 2?", "answer": "4"}) for n in range(40)))
    return str(path)


@pytest.fixture(scope="module")
def task(problems: str) -> Task:
    return make_task({"name": "jsonl", "path": problems})


@pytest.fixture(scope="module")
def runner() -> PythonRunner:
    return PythonRunner(allow_weak=True)


def rollout(solver: ProgramSolver, text: str, answer: str = "72", id: str = "t", **more: Any) -> Rollout:
    return Rollout.from_text(id, "generator", Problem("p", "?", answer, more), text, solver.parse(text))


def settle(solver: ProgramSolver, task: Task, text: str, answer: str = "72") -> Parsed:
    return solver.settle(task, [rollout(solver, text, answer)])[0]


# What is read.


def test_a_script_is_the_python_of_all_fences() -> None:
    text = "First:\n```python\nx = 1\n```\nIt prints\n```text\nnothing\n```\n  ```\n  y = 2\n  ```\nand\n```py\nprint("
    assert read_script(text).source == "x = 1\ny = 2\nprint(" and not read_script(text).is_closed
    assert read_script(text + "x)\n```").is_closed and read_script("no code").source == ""


def test_paragraphs_are_cut_in_code_too_and_behind_a_closing_fence() -> None:
    spans = split_paragraphs(CLIPS)
    assert [CLIPS[a:b].split("\n")[0] for a, b in spans] == [
        "```python",
        "# Step 2: Calculate the number of clips sold in May",
        "# Step 3: Calculate the total number of clips sold",
        "# Print the final answer",
        "This Python program calculates the total number of clips sold by Natalie in April and May and prints it.",
    ]
    assert split_paragraphs("\n \n") == [] and split_paragraphs("a\n\n```\n\n") == [(0, 3), (3, 8)]
    assert split_paragraphs("```python\nx\n\n```\n") == [(0, 17)], "a closing fence is no paragraph of its own"


@PROPERTY
@given(st.lists(st.sampled_from(["a", "\n", "\n\n", "```", "```python\n", " ", "\n```\n", "# b"]), max_size=12).map("".join))
def test_paragraphs_cover_a_text_and_do_not_depend_on_what_follows(text: str) -> None:
    spans = split_paragraphs(text)
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert not spans or (spans[0][0] == 0 and spans[-1][1] == len(text) and all(text[a:b].strip() for a, b in spans))
    for count, (_, end) in enumerate(spans, 1):
        assert split_paragraphs(text[:end]) == spans[:count]
    ProgramSolver("plain", PythonRunner()).parse(text)  # whatever was written


@pytest.mark.parametrize(
    ("text", "answer", "format"),
    [
        (CLIPS, "72", 1.0),
        (BABYSITTING, "10.0", 1.0),
        (SHELL, None, 0.5),
        (f"<think>Let me see: \\boxed{{1}}\n\n```python\nprint(1)\n```</think>\n{CLIPS}", "72", 1.0),
        ("```python\nx = 5\nprint('Steps:', x)\nprint(f'The answer is {x + 67:,} clips.')\n```", "72", 1.0),
        ("```python\nprint(r'\\boxed{72}')\n```", "72", 1.0),
        ("```python\nprint(72)", None, 0.0),
        ("```python\nprint(72)\nprint(1 / 0)\n```", None, 0.5),
        ("```python\nx = input()\nprint(72)\n```", None, 0.5),
        ("She sold 48 + 24 = 72 clips.\n\nThe answer is \\boxed{72}.", "72", 0.5),
        ("I cannot say.", None, 0.0),
        ("", None, 0.0),
    ],
)
def test_the_answer_is_the_last_line_that_the_program_prints(
    text: str, answer: str | None, format: float, task: Task, runner: PythonRunner
) -> None:
    parsed = settle(ProgramSolver("plain", runner), task, text)
    assert (parsed.value.answer, parsed.format) == (answer, format) and parsed.is_valid == (answer is not None)  # type: ignore[union-attr]


def test_a_label_before_the_answer_is_left_out_where_it_is_no_number(task: Task, runner: PythonRunner) -> None:
    solver = ProgramSolver("plain", runner)
    text = "```python\nfrom fractions import Fraction\nprint('Probability:', Fraction(3, 4))\n```"
    assert settle(solver, task, text, r"\frac{3}{4}").value.answer == "3/4"  # type: ignore[union-attr]


def test_a_cut_program_has_no_format_to_be_paid_for_and_texts_stay_as_they_are(task: Task, runner: PythonRunner) -> None:
    solver = ProgramSolver("plain", runner)
    cut = replace(rollout(solver, CLIPS), finish="length")
    assert [(p.format, p.get(type(cut.solution)).answer) for p in solver.settle(task, [cut])] == [(0.0, "72")]
    plain = ProgramSolver("plain")
    assert plain.settle(task, [rollout(plain, "\\boxed{3}")])[0].format == 1.0
    assert [len(plain.parse(text).value.steps) for text in ("### Step 1\n\nIt is 3.\n\n", "### Step 1\n\n")] == [2, 1]  # type: ignore[union-attr]


def test_a_program_that_is_the_answer_itself_is_not_run_for_one(runner: PythonRunner) -> None:
    code = make_task({"name": "code", "dialect": "python"})
    solver = ProgramSolver("plain", runner)
    made = rollout(solver, "```python\ndef f(a):\n    return a\n```", form="program", entry="f")
    assert solver.settle(code, [made])[0].get(type(made.solution)).answer == "def f(a):\n    return a"
    asked = "".join(part.text for part in solver.prompt(made.problem))
    assert "whole program" in asked and "Step 1" not in asked


def test_a_step_holds_if_the_program_up_to_it_runs(task: Task, runner: PythonRunner) -> None:
    solver, text = ProgramSolver("plain", runner), ProgramSolver("plain")
    steps = ["```python\nx = 3\n\n", "```python\nx = y\n\n", "```python\nfor i in 3:\n\n", "Let me think.\n\n"]
    assert solver.check_steps(task, [rollout(solver, step) for step in steps]) == [True, False, False, True]
    assert text.check_steps(task, [rollout(text, step) for step in steps]) == [True] * 4 and text.check_steps(task, []) == []


# Trees of such steps.

PROGRAMS = [
    f"```python\n# a\nx = {x}\n\n# b\nprint(x + {y})\n```\n" for x, y in (("2", "2"), ("2", "3"), ("1", "3"), ("y", "1"))
]
"""Two that are right, one that is wrong, and one whose first step does not run."""


def plan(folder: Path, problems: str, **options: Any) -> Plan:
    model, prompt = chat_folder(folder), folder / "short.jinja"
    prompt.write_text("{{ problem }}")
    generator = {"model": model, "prompt": str(prompt), "lr": 5e-3, "warmup": 0}
    own = {"task": {"name": "jsonl", "path": problems}, "policies": {"generator": generator, "verifier": {"lr": 1e-3}}}
    return resolve([{"recipe": "rstar_math", "batch": {"problems": 1, "rollouts": 12}, "sampling": {"max_tokens": 48}}, own,
                    {"options": {"candidates": 16, "edits": 1, "allow_weak_isolation": True} | options}])  # fmt: skip


def test_trees_of_programs_teach_both_models(tmp_path: Path, problems: str) -> None:
    """A tiny model that has learned four programs by heart searches among their steps; both models learn from what it finds."""
    p = plan(tmp_path, problems)
    engine = make_engine(p)
    run, weights = p.make_run_context(engine), {name: engine.policy(name).clone() for name in ("generator", "verifier")}
    first = Context(run, 0, "generator")
    shown = first.write("generator", first.problems(1) * 4, PROGRAMS)
    assert [t.correct for t in shown] == [1.0, 0.0, 1.0, 0.0] and [len(t.steps) for t in shown] == [2] * 4
    for _ in range(25):
        engine.learn(make_imitation_batch(p.recipe, "generator", shown))
    engine.publish("generator")
    found = p.recipe.rollout(Context(run, 1, "verifier", "search"))
    (tree,) = p.recipe.state["searched"]
    values = {text: qs for text, _, qs in tree["solutions"]}
    assert len(found) >= 3 and {PROGRAMS[0], PROGRAMS[1], PROGRAMS[2]} <= set(values)
    assert [values[PROGRAMS[k]][-1] for k in range(3)] == [1.0, -1.0, 1.0]
    assert -1.0 < values[PROGRAMS[0]][0] == values[PROGRAMS[1]][0] < 1.0, "one step, after which some ends are wrong"
    assert not any("x = y" in text for text in values), "what does not run is no node"
    assert (PROGRAMS[0], PROGRAMS[1]) in {(won, lost) for won, lost, _, _ in tree["pairs"]}
    assert isinstance(p.recipe, RstarMath) and p.recipe.select_trees(held_out=False), "one problem in eight is held out"
    for phase, learner in (("learn", "verifier"), ("", "generator")):
        ctx = Context(run, 2, learner, phase)
        (made,) = p.recipe.credit(ctx, p.recipe.rollout(ctx))
        assert made.policy == learner and len(made.rollouts) >= 2
        if learner == "generator":
            chosen = {t.text for t, weight in zip(made.rollouts, made.weights or [], strict=True) if weight}
            assert len(chosen) == 2 and made.notes["solved"] == 1.0
            assert all(right for text, right, _ in tree["solutions"] if text in chosen)
        engine.learn(made)
        after = engine.policy(learner).clone()
        moved = [not np.array_equal(a.numpy(), b.numpy()) for a, b in zip(weights[learner], after, strict=True)]
        assert any(moved)
    engine.close()


def test_a_text_step_with_a_number_is_no_answer_yet(tmp_path: Path, problems: str) -> None:
    """The task finds the last number of a whole text without a box; of a single step that would end every tree at once."""
    p = plan(tmp_path, problems, steps="text")
    engine = make_engine(p)
    run, text = p.make_run_context(engine), "We add 2 to it.\n\nThat makes 4."
    first = Context(run, 0, "generator")
    shown = first.write("generator", first.problems(1), [text])
    assert shown[0].solution.answer == "4", "without a box, at the end"
    for _ in range(20):
        engine.learn(make_imitation_batch(p.recipe, "generator", Rollouts([*shown] * 2)))
    ctx = Context(run, 1, "verifier", "search")
    roots = make_roots(ctx, [shown[0].problem])
    expand_nodes(ctx, roots, Search(SearchOptions(candidates=4)))
    children = roots[0].children or []
    assert [(child.step, child.is_answered, child.depth) for child in children][:1] == [("We add 2 to it.\n\n", False, 1)]
    expand_nodes(ctx, children[:1], Search(SearchOptions(candidates=4)))
    ends = children[0].children or []
    assert any(child.step == "That makes 4." and child.right for child in ends)
    engine.close()


def test_code_is_the_default_of_prose_and_refused_elsewhere(tmp_path: Path, problems: str) -> None:
    solver = plan(tmp_path, problems).roles["generator"]
    assert isinstance(solver, ProgramSolver) and solver.runner is not None and solver.step_stop == ("\n\n", "\n```\n")
    text = plan(tmp_path, problems, steps="text").roles["generator"]
    assert isinstance(text, ProgramSolver) and text.runner is None
    embedded = resolve([{"recipe": "rstar_math"}]).roles["generator"]
    assert isinstance(embedded, ProgramSolver) and embedded.runner is None
    with pytest.raises(ConfigError, match="is for the plain dialect, not for 'terse'; set it to 'text'"):
        resolve([{"recipe": "rstar_math", "options": {"steps": "code"}}])


def test_the_answer_of_a_search_is_that_of_most_of_its_best_ends(task: Task) -> None:
    def end(answer: str, value: float) -> Node:
        made = make_rollout(1, 1)
        made.parsed = replace(made.parsed, value=replace(made.solution, answer=answer))
        node = Node(made, answer, end=value)
        node.wrongs = 1
        return node

    root = Node(make_rollout(1, 1), children=[end("5", 0.9), end("0.5", 0.8), end("1/2", 0.7), end("5", 0.1)])
    chosen = [select_end(task, root, top) for top in (1, 2, 3, 4)]
    assert [node and node.rollout.solution.answer for node in chosen] == ["5", "5", "0.5", "5"]
    assert select_end(task, Node(make_rollout(1, 1), children=[])) is None
