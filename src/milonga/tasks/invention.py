"""Problems that a model invented: chain arithmetic read from a text, or any question in words, with the answer that its
inventor claims.

The claimed answer may be wrong: it is what the problem is graded by, and the truth is computed only to look at. Of chain
arithmetic only texts of the train split are taken, so that nobody can invent a held-out problem.
"""

from __future__ import annotations

import random
import re

from milonga.tasks.base import Task, assign_split
from milonga.tasks.chain import OPERATIONS, Chain, compute
from milonga.types import Problem

CHAIN = re.compile(r"(0|[1-9][0-9]{0,2})((?:[+*-][2-9])+)%([0-9]{1,4})")
LINK = re.compile(r"([+*-])([2-9])")


def parse_invented(task: Task, text: str, claimed: str, source: str) -> Problem | None:
    """Parse an invented problem with its claimed answer, from the rollout `source`; None if it is not valid in the task. In
    words every text is."""
    if not isinstance(task, Chain):
        form = {"form": "open"} if asks_openly(task) else {}
        return Problem(f"invented/{source}", text, claimed, form, source) if text.strip() else None
    read = CHAIN.fullmatch(text)
    if read is None or int(read[3]) != task.options.mod or int(read[1]) >= task.options.mod:
        return None
    chain = [(operation, int(operand)) for operation, operand in LINK.findall(read[2])]
    if len(chain) > task.options.ops or assign_split(text) != "train":
        return None
    data = {"start": int(read[1]), "chain": chain, "mod": task.options.mod}
    return Problem(f"invented/{source}", text, claimed, data, source)


def pose_question(task: Task, text: str, id: str, source: str | None = None) -> Problem:
    """Make a problem of a question in words that has no known answer. It is asked in the form of the task's own, so that nobody
    can tell answers to the two apart by their form."""
    form = "open" if asks_openly(task) else "program" if task.problem("train", 0).wants_program else ""
    return Problem(id, text, "", {"posed": True} | ({"form": form} if form else {}), source)


def asks_openly(task: Task) -> bool:
    """Whether the task's questions ask for free text."""
    first = task.problem("train", 0)
    return first.is_open or first.reply is not None


def compute_answer(problem: Problem) -> str:
    """Compute the true answer; for metrics, never for a reward."""
    value = problem.data["start"]
    for operation, operand in problem.data["chain"]:
        value = compute(value, operation, operand, problem.data["mod"])
    return str(value)


def vary_problem(task: Task, problem: Problem, harder: bool, rng: random.Random) -> Problem:
    """Make a variation of a problem: other numbers, and one operation more or less, as far as the task goes."""
    assert isinstance(task, Chain)
    count = max(1, min(task.options.ops, len(problem.data["chain"]) + (1 if harder else -1)))
    while True:
        chain = "".join(f"{rng.choice(OPERATIONS)}{rng.randint(2, 9)}" for _ in range(count))
        text = f"{rng.randrange(task.options.mod)}{chain}%{task.options.mod}"
        made = parse_invented(task, text, "", "demonstration")
        if made is not None:
            return made


def spoil_question(text: str, rng: random.Random) -> str:
    """Make an invalid question: an operator, the modulus or a number is missing or doubled."""
    at = rng.randrange(len(text))
    return rng.choice((text[:at] + text[at + 1 :], text.partition("%")[0], text[:at] + rng.choice("+*%") + text[at:]))
