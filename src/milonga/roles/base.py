"""A role renders an agent's prompt and parses its completion. It holds no weights.

Invariant: one grammar per dialect writes the prompt, reads the output and scores its format, so that the reward can never
accept what the parser rejects. `write` is the inverse of `parse`: reading a written value gives the value back.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from milonga.registry import Registry
from milonga.tasks.base import Task
from milonga.types import Parsed, Problem, Prompt, Rollout

Dialect = Literal["terse", "tagged"]
DIALECTS: tuple[Dialect, ...] = ("terse", "tagged")


class Role(ABC):
    """What an agent does. `target` is the target rollout it judges or answers; None for a role that sees only the problem."""

    name: ClassVar[str]
    judges: ClassVar[bool]
    """Whether the role judges target rollouts, rather than solving problems."""
    kind: ClassVar[Literal["generative", "scalar", "implicit"]] = "generative"
    """How a policy answers in this role: by sampled text, by a value head, or by its log-ratio to its initial weights."""

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
    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt: ...

    @abstractmethod
    def parse(self, text: str, target: Rollout | None) -> Parsed: ...

    def parse_tool_call(self, text: str) -> str | None:
        """Parse the tool call of a completion; None if it calls no tool."""
        return None

    def render_tool_result(self, passages: Sequence[str]) -> Prompt:
        """Render the tool's result as a prompt for the agent that called it."""
        raise TypeError(f"the role '{self.name}' calls no tool")

    def split_solution(self, solution: Rollout) -> list[Rollout] | None:
        """Split a solution into pieces that are judged one by one; None if the judge sees the whole solution at once."""
        return None

    def merge_verdicts(self, solution: Rollout, verdicts: Sequence[Rollout]) -> Parsed:
        """Merge the verdicts on the pieces, in order, into one on the solution; pieces without a verdict are missing."""
        raise TypeError(f"the role '{self.name}' does not judge in parts")

    @classmethod
    def length_factor(cls) -> int:
        """The token limit of a completion as a multiple of the solution's limit. A judge may write twice as much."""
        return 2 if cls.judges else 1

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Return the target (None: the problem itself) and the completion of a noisy teacher; `parse` accepts the text."""
        raise TypeError(f"nobody can demonstrate the role '{self.name}'")


ROLES: Registry[type[Role]] = Registry("role")
