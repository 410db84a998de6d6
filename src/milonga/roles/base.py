"""A role is a seat at the table: the prompt to write, and the reading of what came back. It holds no weights.

Invariant: one grammar per dialect writes the prompt, reads the output and scores its format, so that the reward can never
accept what the parser rejects. `write` is the inverse of `read`: reading a written value gives the value back.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from milonga.registry import Registry
from milonga.tasks.base import Task
from milonga.types import Problem, Prompt, Reading, Trace

Dialect = Literal["terse", "tagged"]
DIALECTS: tuple[Dialect, ...] = ("terse", "tagged")


class Role(ABC):
    """A seat. `about` is the trace this one judges or answers, None for a role that sees only the problem."""

    name: ClassVar[str]
    judges: ClassVar[bool]
    """Whether the role is given other traces to judge, rather than problems."""
    kind: ClassVar[Literal["generative", "scalar", "implicit"]] = "generative"
    """How a policy speaks in this role: by writing, by a value head, or by its log-ratio to its own start."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    @property
    @abstractmethod
    def stop(self) -> tuple[str, ...]:
        """Strings that end an output, besides the end-of-sequence token."""

    @property
    def step_stop(self) -> tuple[str, ...]:
        """Strings that end one step of an output."""
        raise TypeError(f"outputs of the role '{self.name}' have no steps")

    @abstractmethod
    def prompt(self, problem: Problem, about: Trace | None) -> Prompt: ...

    @abstractmethod
    def read(self, text: str, about: Trace | None) -> Reading: ...

    def call(self, text: str) -> str | None:
        """What an output asks of the task's tool; None where it asks nothing."""
        return None

    def returned(self, passages: Sequence[str]) -> Prompt:
        """What the tool answered, as it is said to who asked."""
        raise TypeError(f"the role '{self.name}' calls no tool")

    def parts(self, solution: Trace) -> list[Trace] | None:
        """The pieces of a solution that this judge is asked about one by one; None where it is shown the whole at once."""
        return None

    def whole(self, solution: Trace, verdicts: Sequence[Trace]) -> Reading:
        """What its verdicts on the pieces, in their order, say of the solution; pieces without a verdict are missing."""
        raise TypeError(f"the role '{self.name}' does not judge in parts")

    @classmethod
    def room(cls) -> int:
        """How many times a solution's length an output may have. Who judges one may write twice as much as its writer."""
        return 2 if cls.judges else 1

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Trace | None, str]:
        """What a noisy teacher would be asked about (None: the problem itself) and would write; `read` accepts the text."""
        raise TypeError(f"nobody can demonstrate the role '{self.name}'")


ROLES: Registry[type[Role]] = Registry("role")
