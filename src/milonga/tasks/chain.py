"""Chain arithmetic: a start value and operations applied from left to right, modulo m. Every step has an exact truth.

`37+5*3%100` is solved as `37+5=42`, `42*3=26`, answer `26`. A step is right if it takes the value written before it, the
problem's operation and operand, and computes them rightly: a slip makes one step wrong, and what follows consistently is right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence

from pydantic import Field, model_validator

from milonga.randomness import keyed_rng
from milonga.tasks.base import (
    RELATED_TRIES,
    TASKS,
    Demonstration,
    Task,
    TaskOptions,
    assign_split,
    avoids_held_out,
)
from milonga.tasks.corruption import CHAIN_FAMILIES, ChainStep
from milonga.types import Grade, Problem, Split

OPERATIONS = "+-*"
MOST_OPS = 64
STEP = re.compile(r"([0-9]{1,9})([+*-])([0-9]{1,9})=([0-9]{1,9})")


class ChainOptions(TaskOptions):
    ops: int = Field(6, ge=1, le=MOST_OPS)
    """The number of operations; the largest one where `min_ops` is given."""
    min_ops: int | None = Field(None, ge=1)
    """Draw the number of operations from min_ops to ops."""
    mod: int = Field(100, ge=2, le=1000)
    """Values are taken modulo this. A small one makes answers guessable."""
    seed: int = 0
    """Keys the problems."""

    @model_validator(mode="after")
    def _ordered(self) -> ChainOptions:
        if self.min_ops is not None and self.min_ops > self.ops:
            raise ValueError(f"min_ops={self.min_ops} is larger than ops={self.ops}")
        return self


def compute(left: int, operation: str, right: int, mod: int) -> int:
    value = left + right if operation == "+" else left - right if operation == "-" else left * right
    return value % mod


def _change_operation(operation: str, operand: int, rng: random.Random) -> tuple[str, int]:
    """Return another operation or another operand."""
    if rng.random() < 0.5:
        return rng.choice([o for o in OPERATIONS if o != operation]), operand
    return operation, rng.choice([d for d in range(2, 10) if d != operand])


def make_problem(id: str, start: int, chain: Sequence[tuple[str, int]], mod: int) -> Problem:
    """Make the problem of these operations, with its answer."""
    text = f"{start}" + "".join(f"{operation}{operand}" for operation, operand in chain) + f"%{mod}"
    value = start
    for operation, operand in chain:
        value = compute(value, operation, operand, mod)
    return Problem(id, text, str(value), {"start": start, "chain": list(chain), "mod": mod})


@TASKS.register("chain")
class Chain(Task):
    """Chain arithmetic with exact step truth; difficulty is the number of operations."""

    name = "chain"
    Options = ChainOptions
    knows_steps = True
    families = tuple(CHAIN_FAMILIES)
    options: ChainOptions

    def __init__(self, options: ChainOptions | None = None) -> None:
        super().__init__(options)
        self.max_tokens = 10 * self.options.ops + 8

    def make_harder(self) -> Task | None:
        ops = min(MOST_OPS, 2 * self.options.ops)
        return Chain(self.options.model_copy(update={"min_ops": None, "ops": ops})) if ops > self.options.ops else None

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(range(self.options.min_ops or 1, self.options.ops + 1))

    def at_level(self, level: int) -> Task:
        return Chain(self.options.model_copy(update={"min_ops": None, "ops": level}))

    def problem(self, split: Split, index: int) -> Problem:
        rng = keyed_rng("chain", self.options.model_dump_json(), split, index)
        while True:
            count = rng.randint(self.options.min_ops or self.options.ops, self.options.ops)
            start = rng.randrange(self.options.mod)
            chain = [(rng.choice(OPERATIONS), rng.randint(2, 9)) for _ in range(count)]
            made = make_problem(f"chain/{split}/{index}", start, chain, self.options.mod)
            if assign_split(made.text) == split:
                return made

    def make_related_problem(self, problem: Problem, rng: random.Random, changes: int = 1) -> Problem | None:
        """Change the operand or the operation in some places."""
        chain, mod = problem.data["chain"], problem.data["mod"]
        for _ in range(RELATED_TRIES):
            places = set(rng.sample(range(len(chain)), min(changes, len(chain))))
            other = [_change_operation(o, b, rng) if k in places else (o, b) for k, (o, b) in enumerate(chain)]
            made = make_problem(f"{problem.id}/related", problem.data["start"], other, mod)
            if avoids_held_out(problem, made):
                return made
        return None

    def find_facts(self, problem: Problem) -> list[tuple[int, int]]:
        """The operands."""
        return [found.span(1) for found in re.finditer(r"[+*-]([0-9]+)", problem.text)]

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        """Extra steps are wrong; a solution that leaves operations out is wrong in its last step, where it stops."""
        chain, mod = problem.data["chain"], problem.data["mod"]
        truth: list[bool] = []
        value = problem.data["start"]
        for k, text in enumerate(steps):
            read = STEP.fullmatch(text)
            right = False
            if read and k < len(chain):
                left, operation, operand, result = int(read[1]), read[2], int(read[3]), int(read[4])
                right = (left, operation, operand) == (value, *chain[k]) and result == compute(left, operation, operand, mod)
            if read:
                value = int(read[4])
            truth.append(right)
        if truth and len(steps) < len(chain):
            truth[-1] = False
        return Grade(answer is not None and answer == problem.answer, tuple(truth))

    def redo_steps(self, problem: Problem, steps: Sequence[str]) -> tuple[str, ...]:
        chain, mod = problem.data["chain"], problem.data["mod"]
        value = problem.data["start"]
        out = []
        for k, text in enumerate(steps):
            operation, operand = chain[k] if k < len(chain) else ("", 0)
            out.append(str(compute(value, operation, operand, mod)) if operation else "")
            read = STEP.fullmatch(text)
            value = int(read[4]) if read else value
        return tuple(out)

    def is_step(self, text: str) -> bool:
        return STEP.fullmatch(text) is not None

    def is_computation_right(self, text: str) -> bool:
        read = STEP.fullmatch(text)
        return read is not None and int(read[4]) == compute(int(read[1]), read[2], int(read[3]), self.options.mod)

    def corrupt_step(self, problem: Problem, steps: Sequence[str], at: int, family: str, rng: random.Random) -> str | None:
        chain = problem.data["chain"]
        if at >= len(chain):  # a step too many, behind a right answer: there is no operation that it could get wrong
            return None
        values = [problem.data["start"], *(int(read[4]) for text in steps[:at] if (read := STEP.fullmatch(text)))]
        operation, operand = chain[at]
        step = ChainStep(values[-1], operation, operand, problem.data["mod"], values[:-1])
        for _ in range(8):
            text = CHAIN_FAMILIES[family](step, rng)
            if text is not None and text != step.text():
                return text
        return None

    def step_count(self, problem: Problem) -> int:
        return len(problem.data["chain"])

    def demonstrate(self, problem: Problem, rng: random.Random, errors: Collection[int] = ()) -> Demonstration:
        mod = problem.data["mod"]
        value = problem.data["start"]
        steps, truth, checks = [], [], []
        for k, (operation, operand) in enumerate(problem.data["chain"]):
            right = compute(value, operation, operand, mod)
            if k in errors:
                text, value = _write_wrong_step(value, operation, operand, mod, rng)
            else:
                text, value = f"{value}{operation}{operand}={right}", right
            steps.append(text)
            truth.append(k not in errors)
            checks.append(str(right))
        answer = str(value)
        return Demonstration(tuple(steps), tuple(truth), tuple(checks), answer, answer == problem.answer)

    def demonstrate_compensated(self, problem: Problem, rng: random.Random) -> Demonstration | None:
        """Two wrong steps whose errors cancel, so that the answer is right and the reasoning is not."""
        chain, mod = problem.data["chain"], problem.data["mod"]
        if len(chain) < 2:
            return None
        at = sorted(rng.sample(range(len(chain)), 2))
        good = self.demonstrate(problem, rng)
        values = [int(step.split("=")[1]) for step in good.steps]
        value, steps, truth, checks = problem.data["start"], [], [], []
        for k, (operation, operand) in enumerate(chain):
            right = compute(value, operation, operand, mod)
            result = values[k] if k >= at[1] else right
            if k == at[0]:
                result = (right + rng.choice((1, -1, 10, -10))) % mod
            steps.append(f"{value}{operation}{operand}={result}")
            truth.append(result == right)
            checks.append(str(right))
            value = result
        if all(truth) or str(value) != problem.answer:
            return None  # modulo a small number a slip may be none
        return Demonstration(tuple(steps), tuple(truth), tuple(checks), str(value), correct=True)


def _write_wrong_step(value: int, operation: str, operand: int, mod: int, rng: random.Random) -> tuple[str, int]:
    """Write one wrong step and its result: off by one, a carry dropped, an operand or value misread, the wrong operation."""
    right = compute(value, operation, operand, mod)
    while True:
        kind = rng.choice(("off_by_one", "carry", "operand", "value", "operation"))
        left, op, by = value, operation, operand
        if kind == "operand":
            by = operand + rng.choice((1, -1))
        elif kind == "value":
            left = (value + rng.choice((1, -1, 10, -10))) % mod
        elif kind == "operation":
            op = rng.choice([o for o in OPERATIONS if o != operation])
        result = compute(left, op, by, mod)
        if kind == "off_by_one":
            result = (right + rng.choice((1, -1))) % mod
        elif kind == "carry":
            result = (right - 10) % mod
        # Half of the misreadings are written down as read, the others only in the result: both kinds must be found.
        shown = (left, op, by) if kind in ("value", "operation") and rng.random() < 0.5 else (value, operation, operand)
        if shown != (value, operation, operand) or result != right:
            return f"{shown[0]}{shown[1]}{shown[2]}={result}", result
