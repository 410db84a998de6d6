"""The workload of a recipe's turns: how many rows each policy samples, and how many tokens each learns from.

Invariant: counts follow from the recipe's own schedule and from the batch as the config has it; a test plays the real recipes
and compares.
"""

from __future__ import annotations

from dataclasses import dataclass

from milonga.planning.lengths import Lengths
from milonga.systems.tango.recipe import TangoOptions

GENERATOR, VERIFIER = "generator", "verifier"
PLANNABLE = ("grpo", "frozen", "tango")
AROUND = 64
"""Tokens of a verification's prompt besides question and solution."""


@dataclass(frozen=True)
class Call:
    """Rows that one policy samples; `prompts` of them differ, and the others share."""

    policy: str
    rows: int
    prompts: int
    prompt: float
    lengths: Lengths


@dataclass(frozen=True)
class Study:
    """Rows that one policy learns from."""

    policy: str
    rows: int
    prompt: float
    lengths: Lengths

    @property
    def row_tokens(self) -> float:
        return self.prompt + self.lengths.truncated_mean()

    @property
    def longest(self) -> float:
        return self.prompt + self.lengths.limit


@dataclass(frozen=True)
class Turn:
    """One kind of turn; `times` of it in a cycle."""

    times: int
    calls: tuple[Call, ...]
    study: Study

    @property
    def rollouts(self) -> int:
        return sum(call.rows for call in self.calls)


@dataclass(frozen=True)
class Workload:
    """A cycle of turns of a recipe."""

    recipe: str
    problems: int
    rollouts: int
    prompt: int
    solution: Lengths
    verification: Lengths

    def turns(self) -> tuple[Turn, ...]:
        rows = self.problems * self.rollouts
        shown = self.prompt + self.solution.truncated_mean() + AROUND
        solve = Call(GENERATOR, rows, self.problems, self.prompt, self.solution)
        learn = Study(GENERATOR, rows, self.prompt, self.solution)
        if self.recipe == "grpo":
            return (Turn(1, (solve,), learn),)
        check = Call(VERIFIER, rows, rows, shown, self.verification)
        if self.recipe == "frozen":
            return (Turn(1, (solve, check), learn),)
        options = TangoOptions()
        once = Call(GENERATOR, self.problems, self.problems, self.prompt, self.solution)
        checks = Call(VERIFIER, rows, self.problems, shown, self.verification)
        verifier = Turn(options.n_verifier, (once, checks), Study(VERIFIER, rows, shown, self.verification))
        return (Turn(options.n_generator, (solve, check), learn), verifier)

    @property
    def cycle(self) -> int:
        """Number of turns in a cycle."""
        return sum(turn.times for turn in self.turns())

    @property
    def policies(self) -> tuple[str, ...]:
        return (GENERATOR,) if self.recipe == "grpo" else (GENERATOR, VERIFIER)

    @property
    def learners(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(turn.study.policy for turn in self.turns()))
