"""A task draws problems and grades answers; where it can, it also grades each step exactly. It never knows a model.

Invariants:
- `problem(split, index)` is a pure function of the task's options, the split and the index: a data cursor is one integer.
- Train, dev and test are disjoint by normalised text. Procedural tasks hash each text into exactly one split.
- A grade of `None` means that the grader could not tell; it is never counted as wrong.
"""

from __future__ import annotations

import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from milonga.registry import Registry
from milonga.types import Grade, Problem, Split


class TaskOptions(BaseModel):
    """Options of a task. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Demonstration:
    """A solution written by the task itself, with the truth of each of its steps and a short check of each."""

    steps: tuple[str, ...]
    truth: tuple[bool, ...]
    checks: tuple[str, ...]
    """What a verifier that redoes the step would write down."""
    answer: str
    correct: bool

    @property
    def first_error(self) -> int:
        return next((i for i, right in enumerate(self.truth) if not right), -1)


class Tool(ABC):
    """What a role may call between the turns of a conversation. It knows no model and rewards nobody.

    Its answer is a pure function of the call: what was observed in a conversation can be made again from its calls, and nobody
    has to trust what a model says it saw.
    """

    calls: int
    """Most calls in one conversation."""

    @abstractmethod
    def answer(self, call: str) -> tuple[str, ...]:
        """The passages that come back; none where nothing was found."""


class Task(ABC):
    """Subclass this to add a task; `problem` and `grade` are enough."""

    name: ClassVar[str]
    Options: ClassVar[type[TaskOptions]] = TaskOptions
    knows_steps: bool = False
    """Whether `grade` fills in the truth of each step. Where that follows from the options, the instance says so."""
    families: ClassVar[tuple[str, ...]] = ()
    """Kinds of mistakes that `corrupt` can put into a right step."""
    base: ClassVar[str] = "base"
    """The embedded model that was warmed up in this task's roles: a folder of `milonga/embedded`. Policies start from it where
    the config names no other model."""
    tool: Tool | None = None
    """What its problems are solved with, where an answer cannot be known without asking."""
    max_tokens: int = 1024
    """A solution longer than this is cut and flagged; a recipe's config may override it."""

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.Options()

    @abstractmethod
    def problem(self, split: Split, index: int) -> Problem: ...

    @abstractmethod
    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade: ...

    def grade_all(self, items: Sequence[tuple[Problem, str | None, Sequence[str]]]) -> list[Grade]:
        """Grades of many solutions; tasks whose grader is a process of its own override this to ask it once."""
        return [self.grade(problem, answer, steps) for problem, answer, steps in items]

    def classes(self, answers: Sequence[str | None]) -> list[int | None]:
        """Which of some answers are the same one, without asking the truth: equal ones get equal numbers, counted from 0 in
        order of appearance; None stays None. Tasks whose grader accepts other forms of an answer override this by it."""
        seen: dict[str, int] = {}
        return [None if answer is None else seen.setdefault(answer.strip(), len(seen)) for answer in answers]

    def size(self, split: Split) -> int | None:
        """How many problems the split has; None if it never ends. Indices wrap around after it."""
        return None

    def demonstrate(self, problem: Problem, rng: random.Random, errors: Collection[int] = ()) -> Demonstration:
        """A solution that is wrong in exactly the steps `errors` (each given the steps before it) and right elsewhere."""
        raise TypeError(f"task '{self.name}' has no worked solutions and cannot demonstrate")

    @property
    def demonstrates(self) -> bool:
        """Whether the task can write solutions itself."""
        return type(self).demonstrate is not Task.demonstrate

    def flawed(self, problem: Problem, rng: random.Random) -> Demonstration | None:
        """A solution with exactly one wrong step; None where the task cannot write one for this problem."""
        return self.demonstrate(problem, rng, {rng.randrange(self.step_count(problem))})

    def compensated(self, problem: Problem, rng: random.Random) -> Demonstration | None:
        """A solution with wrong steps and a right answer; None where the task cannot write one."""
        return None

    def redo(self, problem: Problem, steps: Sequence[str]) -> tuple[str, ...]:
        """What someone who does each step of a solution again, given the steps before it, writes down as its result.

        As `Demonstration.checks`, for a solution that somebody else wrote; empty where there is nothing to do again.
        """
        raise TypeError(f"task '{self.name}' has no exact steps and cannot do them again")

    def is_step(self, text: str) -> bool:
        """Whether a text looks like a step of this task at all, right or wrong."""
        return bool(text.strip())

    def computes(self, text: str) -> bool:
        """Whether what a step computes is right by itself, as running it would show; not whether it had to be computed.

        A task that cannot run its steps knows only whether they look like some.
        """
        return self.is_step(text)

    def corrupt(self, problem: Problem, steps: Sequence[str], at: int, family: str, rng: random.Random) -> str | None:
        """The step `at` of a solution, made wrong in the way that a name of `families` says; None where that cannot be."""
        raise TypeError(f"task '{self.name}' knows no families of corruptions")

    def related(self, problem: Problem, rng: random.Random, changes: int = 1) -> Problem | None:
        """A problem that asks something else in so many places, or in as many as there are: its solution reads as well as one
        of the given problem, and does not solve that. Of a train problem never a held-out one; None where none was found."""
        raise TypeError(f"task '{self.name}' cannot change what a problem asks")

    @property
    def relates(self) -> bool:
        """Whether the task can change what a problem asks."""
        return type(self).related is not Task.related

    def facts(self, problem: Problem) -> list[tuple[int, int]]:
        """The parts of a problem's text, as spans of characters, without which it cannot be solved and which tell nothing
        about each other: what somebody may keep back until he is asked."""
        raise TypeError(f"the problems of task '{self.name}' have no parts that could be kept back")

    @property
    def has_facts(self) -> bool:
        """Whether parts of its problems can be kept back."""
        return type(self).facts is not Task.facts

    def harder(self) -> Task | None:
        """Problems of the same kind with up to twice as many steps, to see how far a skill reaches; None if there are none."""
        return None

    @property
    def levels(self) -> tuple[int, ...]:
        """How hard its train problems may be, from the easiest to the hardest; empty where the task has no such scale."""
        return ()

    def at(self, level: int) -> Task:
        """Problems of one level alone. They are graded like all others, and held-out ones stay held out."""
        raise TypeError(f"task '{self.name}' has no levels")

    def step_count(self, problem: Problem) -> int:
        """How many steps a demonstration of this problem has."""
        raise TypeError(f"task '{self.name}' has no exact steps")

    def draw(self, split: Split, start: int, count: int) -> list[Problem]:
        return [self.problem(split, start + i) for i in range(count)]

    def make_ready(self) -> None:
        """Start what grading will need, so that it fails before anything is trained and not at the first answer."""

    def describe(self) -> dict[str, Any]:
        """Figures for the run's record, such as sizes and overlaps between the splits."""
        return {}


RELATED_TRIES = 64
"""How often a change of a problem is tried before none is found."""
TASKS: Registry[type[Task]] = Registry("task")


def normalised(text: str) -> str:
    """Texts that differ only in case and white space are the same problem."""
    return re.sub(r"\s+", " ", text).strip().casefold()


def keyed(*parts: object) -> random.Random:
    """A random source that depends on its key alone, never on history."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))


def split_of(text: str) -> Split:
    """The one split a procedural problem belongs to: 80 % train, 10 % dev, 10 % test, by its text."""
    bucket = hashlib.blake2b(normalised(text).encode(), digest_size=4).digest()[0] % 10
    return "train" if bucket < 8 else "dev" if bucket == 8 else "test"


def stays_out(problem: Problem, made: Problem) -> bool:
    """Whether a problem that was made of another keeps away from what is held out, where that one is a train problem."""
    return split_of(problem.text) != "train" or split_of(made.text) == "train"
