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
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from milonga.registry import Registry
from milonga.types import Grade, Problem, Split


class TaskOptions(BaseModel):
    """Options of a task. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PassRate(TaskOptions):
    """Options that any task has beside its own: which of its train problems to keep, by how often the model that a run starts
    from solves them."""

    pass_rate: tuple[float, float]
    """Keep train problems whose share of right solutions lies within these two, ends included."""
    pass_rate_samples: int = Field(8, ge=1)
    """Solutions of each problem that are sampled to measure it."""
    pass_rate_problems: int = Field(512, ge=1)
    """How many train problems are measured, at most, from the first on; the rest is not used."""

    @model_validator(mode="after")
    def _ascends(self) -> PassRate:
        low, high = self.pass_rate
        if not 0 <= low <= high <= 1:
            raise ValueError(f"pass_rate={[low, high]} is not a range of shares, such as [0.1, 0.9]")
        return self


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


@dataclass(frozen=True)
class Capability:
    """Something that a recipe `needs` and a task `offers`, or does not."""

    name: str
    missing: str
    """What is wrong where it is missing: the end of a sentence about the recipe, with the task's name as {task}."""


ANSWERS = Capability("answers", "needs to know which answers are right, which task '{task}' does not")
"""`grade` tells right answers from wrong ones."""
STEPS = Capability("steps", "needs the exact truth of each step, which task '{task}' does not know")
"""`grade` fills in the truth of each step."""
LEVELS = Capability("levels", "chooses among levels of difficulty, which task '{task}' does not have")
"""The task knows how hard its problems are, and draws those of one level."""
RELATED = Capability("related", "changes what problems ask, which task '{task}' does not know how to do")
"""The task makes related problems: the same one with a changed question."""
FACTS = Capability("facts", "keeps back parts of problems, which those of task '{task}' do not have")
"""Parts (facts) of its problems can be hidden until they are asked for."""
DEMONSTRATIONS = Capability("demonstrations", "needs worked solutions, which task '{task}' does not have for all problems")
"""The task writes solutions itself."""
PREFERENCES = Capability(
    "preferences",
    "needs pairs that people preferred, which task '{task}' does not have; task.form=preferences reads a file of them",
)
"""Problems have a chosen and a rejected reply, or the task can make such pairs of solutions with and without an error."""
LABELS = Capability(
    "labels", "needs solutions with labelled steps, which task '{task}' does not have; task.form=steps reads a file of them"
)
"""Problems have a solution whose steps are labelled, or `grade` labels the steps of any solution."""
CAPABILITIES = (ANSWERS, STEPS, LEVELS, RELATED, FACTS, DEMONSTRATIONS, PREFERENCES, LABELS)
"""All of them, in the order in which they are checked."""


class Tool(ABC):
    """A tool that a role may call between the turns of a conversation. It knows no model and gives no reward.

    Its answer is a pure function of the call: what was observed in a conversation can be made again from its calls, and nobody
    has to trust what a model says it saw.
    """

    calls: int
    """Most calls in one conversation."""

    @abstractmethod
    def answer(self, call: str) -> tuple[str, ...]:
        """Return the passages found for a call; empty if nothing was found."""


class Task(ABC):
    """Subclass this to add a task; `problem` and `grade` are enough."""

    name: ClassVar[str]
    Options: ClassVar[type[TaskOptions]] = TaskOptions
    knows_steps: bool = False
    """Whether `grade` fills in the truth of each step. Where that follows from the options, the instance says so."""
    families: ClassVar[tuple[str, ...]] = ()
    """Kinds of mistakes that `corrupt_step` can put into a right step."""
    base: ClassVar[str] = "base"
    """The embedded model that was warmed up in this task's roles: a folder of `milonga/embedded`. Policies start from it where
    the config names no other model."""
    tool: Tool | None = None
    """The tool its problems are solved with, if they need one."""
    max_tokens: int = 1024
    """A solution longer than this is cut and flagged; a recipe's config may override it."""
    pass_rate: PassRate | None = None
    """How train problems are chosen by their pass rates; None: all are used."""
    kept: Mapping[int, float] | None = None
    """The train problems that were chosen so: index to pass rate. None before it is measured, and where all are used."""

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.Options()

    @abstractmethod
    def problem(self, split: Split, index: int) -> Problem: ...

    @abstractmethod
    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade: ...

    @property
    def has_answers(self) -> bool:
        """Whether `grade` can tell right answers from wrong ones; where it cannot, only reward functions can pay."""
        return True

    @property
    def offers(self) -> Set[Capability]:
        """What recipes may need of it, as its class defines it; a task whose options take something away overrides this."""
        here = type(self)
        demonstrates = here.demonstrate is not Task.demonstrate
        defined = {
            ANSWERS: self.has_answers,
            STEPS: self.knows_steps,
            LEVELS: bool(self.levels),
            RELATED: here.make_related_problem is not Task.make_related_problem,
            FACTS: here.find_facts is not Task.find_facts,
            DEMONSTRATIONS: demonstrates,
            PREFERENCES: self.knows_steps and demonstrates,
            LABELS: self.knows_steps,
        }
        return {capability for capability, is_there in defined.items() if is_there}

    def grade_all(self, items: Sequence[tuple[Problem, str | None, Sequence[str]]]) -> list[Grade]:
        """Grade a batch of solutions; tasks whose grader is a separate process override this to ask it once."""
        return [self.grade(problem, answer, steps) for problem, answer, steps in items]

    def extract(self, text: str, problem: Problem) -> str | None:
        """Extract the answer of a free text that has no box, as this kind of task reads it; None if there is none."""
        return None

    def group_equal_answers(self, answers: Sequence[str | None]) -> list[int | None]:
        """Group equal answers for voting, without knowing the truth: equal answers get equal class numbers, from 0 in order of
        appearance; None stays None. Tasks whose grader accepts several forms of an answer override this with it."""
        seen: dict[str, int] = {}
        return [None if answer is None else seen.setdefault(answer.strip(), len(seen)) for answer in answers]

    def size(self, split: Split) -> int | None:
        """The number of problems in a split; None if it is infinite. Indices wrap around after it."""
        return None

    def demonstrate(self, problem: Problem, rng: random.Random, errors: Collection[int] = ()) -> Demonstration:
        """Write a solution that is wrong in exactly the steps `errors` (each given the steps before it), right elsewhere."""
        raise TypeError(f"task '{self.name}' has no worked solutions and cannot demonstrate")

    def demonstrate_flawed(self, problem: Problem, rng: random.Random) -> Demonstration | None:
        """Write a solution with exactly one wrong step; None if the task cannot for this problem."""
        return self.demonstrate(problem, rng, {rng.randrange(self.step_count(problem))})

    def demonstrate_compensated(self, problem: Problem, rng: random.Random) -> Demonstration | None:
        """Write a solution with wrong steps whose errors cancel, so that its answer is right; None if the task cannot."""
        return None

    def redo_steps(self, problem: Problem, steps: Sequence[str]) -> tuple[str, ...]:
        """Redo each step of a solution, given the steps before it, and return the results.

        Like `Demonstration.checks`, for any given solution; "" for a step that has nothing to redo.
        """
        raise TypeError(f"task '{self.name}' has no exact steps and cannot do them again")

    def is_step(self, text: str) -> bool:
        """Whether a text looks like a step of this task at all, right or wrong."""
        return bool(text.strip())

    def is_computation_right(self, text: str) -> bool:
        """Whether a step's computation is right by itself, as running it would show; not whether the problem asks for it.

        A task that cannot run its steps only checks that the text looks like a step.
        """
        return self.is_step(text)

    def corrupt_step(self, problem: Problem, steps: Sequence[str], at: int, family: str, rng: random.Random) -> str | None:
        """Corrupt the step `at` of a solution by one of `families`; None if that family does not apply."""
        raise TypeError(f"task '{self.name}' knows no families of corruptions")

    def make_related_problem(self, problem: Problem, rng: random.Random, changes: int = 1) -> Problem | None:
        """Make a related problem by changing `changes` places (or all there are): its solution looks like one of the given
        problem, but does not solve it. From a train problem never makes a held-out one; None if none was found."""
        raise TypeError(f"task '{self.name}' cannot change what a problem asks")

    def find_facts(self, problem: Problem) -> list[tuple[int, int]]:
        """Find the facts of a problem's text, as character spans [start, end): each is needed to solve it, and none tells about
        another, so that they can be hidden until they are asked for."""
        raise TypeError(f"the problems of task '{self.name}' have no parts that could be kept back")

    def make_harder(self) -> Task | None:
        """Return the same task with up to twice as many steps, to measure generalisation; None if there is none."""
        return None

    @property
    def levels(self) -> tuple[int, ...]:
        """The difficulty levels of its train problems, easiest first; empty if the task has no such scale."""
        return ()

    def at_level(self, level: int) -> Task:
        """Return the task restricted to one level. Grading is the same, and held-out problems stay held out."""
        raise TypeError(f"task '{self.name}' has no levels")

    def step_count(self, problem: Problem) -> int:
        """The number of steps of a demonstration of this problem."""
        raise TypeError(f"task '{self.name}' has no exact steps")

    def draw_problems(self, split: Split, start: int, count: int) -> list[Problem]:
        """Draw problems by consecutive indices; of train problems that were chosen by pass rate, those alone, in order."""
        if split != "train" or self.kept is None:
            return [self.problem(split, start + i) for i in range(count)]
        indices = tuple(self.kept)
        return [self.problem(split, indices[(start + i) % len(indices)]) for i in range(count)]

    def make_ready(self) -> None:
        """Start what grading will need, so that it fails before anything is trained and not at the first answer."""

    def describe(self) -> dict[str, Any]:
        """Figures for the run's record, such as sizes and overlaps between the splits."""
        return {}


RELATED_TRIES = 64
"""Tries to change a problem before giving up."""
TASKS: Registry[type[Task]] = Registry("task")


def normalise_text(text: str) -> str:
    """Normalise a text for deduplication: texts that differ only in case and white space are the same problem."""
    return re.sub(r"\s+", " ", text).strip().casefold()


def assign_split(text: str) -> Split:
    """Assign a procedural problem to its one split: 80 % train, 10 % dev, 10 % test, by its text."""
    bucket = hashlib.blake2b(normalise_text(text).encode(errors="surrogatepass"), digest_size=4).digest()[0] % 10
    return "train" if bucket < 8 else "dev" if bucket == 8 else "test"


def avoids_held_out(problem: Problem, made: Problem) -> bool:
    """Whether a derived problem avoids the held-out splits: made from a train problem, it must be a train problem."""
    return assign_split(problem.text) != "train" or assign_split(made.text) == "train"
