"""What a recipe is: one file per published system, that says who plays, who is credited for what, and who learns when.

A recipe opens no files, touches no device and imports no torch. It reads as its paper's algorithm box: `schedule`, `play`,
`credit`. Whatever it must remember between turns (running counts, pools) it keeps in `state`, which is saved with the weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from milonga.config import Binding
from milonga.objectives import Kind, Objective
from milonga.registry import Registry
from milonga.roles import Dialect, Role
from milonga.schedule import Schedule
from milonga.table import Table
from milonga.tasks import Task
from milonga.types import Lesson, Traces


class RecipeOptions(BaseModel):
    """A recipe's own settings. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


UNSAID = "its class does not say, by `overlap`, that its turns need nothing of what was just learned"


class Recipe(ABC):
    """Subclass, set the class attributes, and write `schedule`, `play` and `credit`."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    """Where it was published; nothing for a recipe of the user's own."""
    paradigm: ClassVar[str]
    granularity: ClassVar[str]
    """How fine its rewards are: sequence, step or token."""
    truth: ClassVar[str]
    """The ground truth it needs."""
    seats: ClassVar[Mapping[str, type[Role]]]
    solving: ClassVar[str] = "generator"
    """The seat whose solutions are measured; as `generator/...`, whatever it is called."""
    judging: ClassVar[str] = "verifier"
    """The seat whose verifications are; as `verifier/...`."""
    lead: ClassVar[str]
    """The seat whose turns are counted: a run of N turns has N turns of this seat."""
    bindings: ClassVar[Mapping[Binding, str]]
    """Which bindings make sense ("" for yes), and for the others the reason why not."""
    Options: ClassVar[type[RecipeOptions]] = RecipeOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Config values that this recipe starts from, below the user's own."""
    needs_steps: bool = False
    """Whether the task must know the exact truth of each step. Where that follows from the options, the instance says so."""
    needs_demonstrations: bool = False
    """Whether the task must be able to write solutions; as above."""
    needs_related: ClassVar[bool] = False
    """Whether the task must be able to change what a problem asks."""
    needs_facts: ClassVar[bool] = False
    """Whether parts of the task's problems must be such that they can be kept back."""
    needs_levels: ClassVar[bool] = False
    """Whether the task must know how hard its problems are, and draw those of one level."""
    tasks: ClassVar[tuple[str, ...]] = ()
    """The only tasks that can serve it, where it must know how their problems are made; any where none is named."""
    tools: ClassVar[bool] = False
    """Whether its solver may call a task's tool between its turns. Recipes that judge solutions, or go on from a part of one,
    would see the last turn alone."""
    overlap: ClassVar[str] = UNSAID
    """Why turns cannot be played while earlier ones are learned; "" where they can: `play` then needs nothing but problems and
    what seats sample live, neither `state` nor scores nor kept pairs, and no problems that follow from what was just learned;
    `credit` asks no seat. A reason is inherited; the permission is not: whatever a subclass changes, it says it anew."""
    learns: ClassVar[Mapping[str, tuple[Kind, ...]]] = {}
    """Seats that learn by something else than a policy gradient, with the kinds of objectives that fit."""
    only_sampled: ClassVar[tuple[str, ...]] = ()
    """Seats whose whole outputs are all that the recipe wants of them: nothing there learns, is scored, or goes on from a part
    of an output. A model behind an endpoint may sit on these, and on no others."""

    measures: ClassVar[tuple[str, ...]] = ()
    """The names of what `measure` may give, so that a comparison can refuse a misspelt metric before anything runs."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.overlap and "overlap" not in vars(cls):
            cls.overlap = UNSAID

    def __init__(self, options: Any, objectives: Mapping[str, Objective], policies: Mapping[str, str], rollouts: int) -> None:
        self.options = options
        self.objectives = objectives
        """Seat to objective."""
        self.policies = policies
        self.rollouts = rollouts
        self.state: dict[str, Any] = {}

    @classmethod
    def seated(cls, options: Any) -> Mapping[str, type[Role]]:
        """Which of the seats are taken under these options: all of them, but in a recipe that has several casts."""
        return cls.seats

    @abstractmethod
    def schedule(self) -> Schedule: ...

    @abstractmethod
    def play(self, table: Table) -> Traces:
        """The turn's traces, for `table.learner` to learn from."""

    @abstractmethod
    def credit(self, table: Table, played: Traces) -> Iterable[Lesson]:
        """The turn's lessons. Each is learned before the next is asked for: a recipe that yields them can score in between."""

    def check(self, task: Task) -> None:
        """Refuse, by a ConfigError, a task that these options cannot be used with; before anything is loaded."""

    def measure(self, table: Table) -> dict[str, float | None]:
        """What this recipe measures at every evaluation besides the metrics of all; `table` draws held-out problems."""
        return {}

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        """Who sits where; recipes whose options shape a role override this."""
        return {seat: role(dialect) for seat, role in self.seats.items()}

    def lesson(self, seat: str, traces: Traces, **targets: Any) -> Lesson:
        """A lesson for the policy that sits on a seat, by that seat's objective."""
        return Lesson(self.policies[seat], self.objectives[seat], traces, **targets)


def joined(one: Lesson, other: Lesson) -> Lesson:
    """Two policy-gradient lessons of one policy as one: it learns from the rows of both in the same steps."""
    rows, notes = Traces([*one.traces, *other.traces]), one.notes | other.notes
    advantages = [*(one.advantages or []), *(other.advantages or [])]
    weights = None
    if one.weights is not None or other.weights is not None:
        weights = [weight for lesson in (one, other) for weight in lesson.weights or [1.0] * len(lesson.traces)]
    return Lesson(one.policy, one.objective, rows, advantages=advantages, weights=weights, sources=one.sources, notes=notes)


RECIPES: Registry[type[Recipe]] = Registry("recipe")
