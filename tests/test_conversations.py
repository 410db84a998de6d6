"""Systems whose agents talk to each other, with a chat model and a file of problems in words: prompts, and turns end to end.

The model is random: nothing that it writes is right. An extractor of the test's own reads an answer off any text, so that there
is something to reward; what real models write in these seats is held by `REAL`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import milonga
from engine_helpers import chat_folder
from milonga.roles import Debater, Dialect, Reviser, StepSolver
from milonga.roles.reviser import make_panel
from milonga.runfolder.files import JsonLines
from milonga.systems.score.roles import Corrector
from milonga.types import Parsed, Problem, Prompt, Rollout, Solution

SUM = Problem("p", "What is 2 + 2?", "4")
PROGRAM = Problem("q", "Write f(a).", "", {"form": "program"})
HEARD = Rollout.from_text("x", "partner", SUM, "It is 5: \\boxed{5} <eos>", Parsed(None, 1.0))


def render(role: StepSolver, problem: Problem) -> Prompt:
    """What a seat is told after the first solutions."""
    if isinstance(role, Corrector):
        return role.render_second_turn(problem)
    if isinstance(role, Debater):
        return role.render_other_solutions(problem, [HEARD])
    return role.prompt(problem, make_panel([HEARD]))


@pytest.mark.parametrize("kind", [Corrector, Debater, Reviser])
@pytest.mark.parametrize("example", [False, True])
def test_later_messages_in_prose_ask_for_the_form_of_the_first(kind: type[StepSolver], example: bool) -> None:
    role = kind("plain")
    role.example = example
    parts, program = render(role, SUM), render(role, PROGRAM)
    text, other = ("".join(part.text for part in said) for said in (parts, program))
    assert "within \\boxed{}." in text and "```python" not in text and "<think>" not in text
    assert "```python" in other and "\\boxed{}." not in other.replace(HEARD.text, "")
    assert text.endswith("\n\nSolution:\n") == example, "a base model has no template that hands it the turn"
    assert all(part.foreign for part in parts if "<eos>" in part.text)


@pytest.mark.parametrize("dialect", ["tagged", "terse"])
def test_other_dialects_repeat_their_own_form(dialect: Dialect) -> None:
    for kind in (Corrector, Debater, Reviser):
        text = "".join(part.text for part in render(kind(dialect), SUM))
        assert "within \\boxed{}." not in text and text.endswith("\n")


REAL = [
    (
        r"""Let's correct the solution step by step and write it again in the required format:

269 licks in total (Dan alone plus Micheal total + Sam & David total + Lance)

4 people total
\[
\frac{269}{4} = 64.25 \text{ licks per person}
\]
There may be a mathematical error in the division, but the correct average is indeed 64.25.

Therefore, the average amount of licks it takes to get to the center of a lollipop is \(\boxed{64.25}\).""",
        4,
        "64.25",
    ),
    (
        r"""To find her overall age when her sister is 56, we add 56 to her sister's current age:

\[ 16 + 56 = 72 \]

The correct answer is \(\boxed{72}\).""",
        2,
        "72",
    ),
    (
        r"""I apologize. Let's approach the problem step by step. Each person gives 70 licks to get to the center of a lollipop.

First, calculate the total number of licks taken by the three individuals together:
\[ \text{Total licks} = 58 + 63 + 70 + 39 = 240 \]""",
        2,
        None,
    ),
]
"""Second turns of Qwen2.5-Coder-0.5B-Instruct in `score` on GSM8K at temperature 1, the last two shortened: the text, its steps
and the answer that a person reads in it."""


@pytest.mark.parametrize(("text", "steps", "answer"), REAL)
def test_second_turns_of_a_real_model_are_read(text: str, steps: int, answer: str | None) -> None:
    found = Corrector("plain").parse(text)
    value = found.get(Solution)
    assert (len(value.steps), value.answer) == (steps, answer) and found.is_valid == (answer is not None)


# End to end.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return chat_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "problems.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"Is {n} even?", "answer": str(n % 2)}) for n in range(40)))
    return str(path)


@pytest.fixture(scope="module")
def extract(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("code") / "mine.py"
    path.write_text("def extract(text, problem):\n    return str(len(text) % 2)\n")
    return f"{path}:extract"


SEATS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "score": ("score", {"options.stage1": 0, "options.measured": 1}, {"generator"}),
    "maporl": ("maporl", {"options.talk": 2, "options.measured": 1}, {"generator", "partner"}),
    "marti": ("marti", {"options.measured": 1}, {"generator"}),
    "debate": ("marti", {"options.measured": 1, "options.workflow": "debate"}, {"generator", "partner"}),
    "mixture": ("marti", {"options.measured": 1, "options.workflow": "mixture"}, {"generator", "partner"}),
    "ttrl": ("ttrl", {"options.votes": 8}, {"generator"}),
    "prime": ("prime", {"options.accuracy_low": 0.0, "options.accuracy_high": 1.0}, {"generator", "verifier"}),
}
"""Recipe, settings, and the policies that move whatever is written: a random verifier gives no verdict to be paid for."""


@pytest.mark.parametrize("name", SEATS)
def test_a_turn_in_prose_moves_the_weights(name: str, model: str, problems: str, extract: str, tmp_path: Path) -> None:
    recipe, more, moved = SEATS[name]
    quick = {"problems": 2, "rollouts": 4, "max_tokens": 8, "turns": 1, "quiet": True}
    settings = {"probe": "off", "eval.problems": 1, "eval.samples": 1, "eval.greedy": False, "extract": extract, **more}
    milonga.run(recipe, model=model, data=problems, out=tmp_path / "run", settings=settings, **quick)
    (row,) = [row for row in JsonLines(tmp_path / "run" / "metrics.jsonl").rows() if row.get("lead_turn") == 1]
    assert {policy for policy in moved if row[f"learn/{policy}/steps"] and row[f"learn/{policy}/grad_norm"] > 0} == moved


def test_a_turn_of_tango_free_in_prose_ends_in_train_batches(model: str, problems: str, extract: str, tmp_path: Path) -> None:
    quick = {"problems": 2, "rollouts": 4, "max_tokens": 8, "turns": 1, "quiet": True}
    settings = {"probe": "off", "eval.problems": 1, "eval.samples": 1, "eval.greedy": False, "extract": extract}
    more = {"options.warmup": 1, "options.votes": 4, "options.checks": 1, "options.audit": 1}
    milonga.run("tango_free", model=model, data=problems, out=tmp_path / "run", settings=settings | more, **quick)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    assert {"credit/verifier/verdict_consistency", "credit/generator/step_share"} <= {key for row in rows for key in row}
