"""A role renders an agent's prompt and parses its completion. It holds no weights.

Invariant: one grammar per dialect renders the prompt, parses the output and scores its format, so that the reward can never
accept what the parser rejects. `write` is the inverse of `parse`: parsing what `write` returns gives the value back. Format
has a score of its own and never hides an answer that can be read.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Protocol

from milonga.engine.base import Engine
from milonga.registry import Registry
from milonga.roles.templates import PromptFunction, PromptTemplate
from milonga.tasks.base import Task, Tool
from milonga.types import Parsed, PerToken, Problem, Prompt, Rollout, Rollouts, Solution

Dialect = Literal["plain", "tagged", "terse"]
DIALECTS: tuple[Dialect, ...] = ("plain", "tagged", "terse")
"""plain: ordinary prose, for any instruct model. tagged: for models trained in it. terse: for the embedded models. A role of
one's own that has no prose form writes and parses tags in the plain dialect too."""


class JudgeContext(Protocol):
    """The part of a `Context` that a role needs to judge solutions: sampling, writing and scoring for an agent."""

    turn: int | str

    @property
    def engine(self) -> Engine: ...

    def policy(self, agent: str) -> str: ...

    def ask(self, agent: str, inputs: Rollouts, n: int = 1, greedy: bool = False, tag: str = "live") -> Rollouts: ...

    def write(self, agent: str, inputs: Sequence[Rollout] | Rollouts, texts: Sequence[str]) -> Rollouts: ...

    def compute_logprobs(self, agent: str, rollouts: Rollouts, tag: str = "live") -> list[PerToken]: ...

    def compute_log_ratios(self, agent: str, rollouts: Rollouts, live: Sequence[PerToken]) -> list[PerToken]: ...

    def score_tokens(self, agent: str, rollouts: Rollouts, tag: str = "live") -> list[PerToken]: ...


class Role(ABC):
    """What an agent does. `target` is the target rollout it judges or answers; None for a role that sees only the problem."""

    name: ClassVar[str]
    judges: ClassVar[bool]
    """Whether the role judges target rollouts, rather than solving problems."""
    kind: ClassVar[Literal["generative", "scalar", "implicit"]] = "generative"
    """How a policy answers in this role: by sampled text, by a value head, or by its log-ratio to its initial weights."""

    template: PromptTemplate | PromptFunction | None = None
    """The user's own prompt, in place of the role's."""
    example: bool = False
    """Whether the prompts of the plain dialect show a worked example: a model without a chat template has no other way to know
    the form."""
    thought_steps: bool = False
    """Whether the steps of a solution are those of its thought in <think> and </think>, rather than of what follows it."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def render_prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        """Render the prompt by the user's template, or else as the role does."""
        if self.template is None:
            return self.prompt(problem, target)
        foreign: dict[str, str | Sequence[str]] = {"problem": problem.text}
        count = 0
        if target is not None:
            steps = target.parsed.value.steps if isinstance(target.parsed.value, Solution) else ()
            foreign |= {"solution": target.text, "steps": steps}
            count = len(steps)
        return self.template.render(foreign, count=count, example=self.example, program=problem.wants_program)

    @property
    @abstractmethod
    def stop(self) -> tuple[str, ...]:
        """Strings that end an output, besides the end-of-sequence token."""

    def ends_in_stop(self, text: str) -> bool:
        """Whether a given text ends as a sample does that a stop string ended: then no end-of-sequence token follows it, by
        which it could be told from samples. Terse texts always have one, as the embedded models were taught."""
        return self.dialect != "terse" and text.endswith(self.stop)

    @property
    def step_stop(self) -> tuple[str, ...]:
        """Strings that end one step of an output."""
        raise TypeError(f"outputs of the role '{self.name}' have no steps")

    @abstractmethod
    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt: ...

    @abstractmethod
    def parse(self, text: str, target: Rollout | None) -> Parsed: ...

    def soften(self, rollout: Rollout) -> Parsed:
        """Return what was parsed from a sampled completion with what its log-probabilities add to it. Nothing, by default."""
        return rollout.parsed

    def settle(self, task: Task, rollouts: Sequence[Rollout]) -> list[Parsed]:
        """Return what was parsed from completions with what their texts alone do not tell, such as what a program prints.
        Nothing, by default. One call for a whole batch."""
        return [rollout.parsed for rollout in rollouts]

    def make_ready(self) -> None:
        """Start what `settle` will need, so that it fails before anything is sampled."""

    def parse_tool_call(self, text: str) -> str | None:
        """Parse the tool call of a completion; None if it calls no tool."""
        return None

    def render_tool_result(self, passages: Sequence[str], is_last: bool = False) -> Prompt:
        """Render the tool's result as a prompt for the agent that called it; `is_last`: it can call the tool no more."""
        raise TypeError(f"the role '{self.name}' calls no tool")

    def adapt_to_tool(self, tool: Tool) -> Role:
        """Return the role for a task with this tool. Itself, by default."""
        return self

    def split_solution(self, solution: Rollout) -> list[Rollout] | None:
        """Split a solution into pieces that are judged one by one; None if the judge sees the whole solution at once."""
        return None

    def merge_verdicts(self, solution: Rollout, verdicts: Sequence[Rollout]) -> Parsed:
        """Merge the verdicts on the pieces, in order, into one on the solution; pieces without a verdict are missing."""
        raise TypeError(f"the role '{self.name}' does not judge in parts")

    def judge(self, ctx: JudgeContext, agent: str, solutions: Rollouts, n: int, greedy: bool, tag: str) -> Rollouts:
        """Make `n` verifications of each solution by policy@tag of the agent; each has its solution as target.

        A generative verifier is sampled: on the whole solution, or on each of its pieces, whose verdicts are then merged.
        Roles that score instead of writing override this.
        """
        pieces = [parts for solution in solutions if (parts := self.split_solution(solution)) is not None]
        if len(pieces) < len(solutions):
            return ctx.ask(agent, solutions, n, greedy, tag)
        verdicts = ctx.ask(agent, Rollouts(piece for parts in pieces for piece in parts), n, greedy, tag)
        by_piece: dict[str, list[Rollout]] = {}
        for verdict in verdicts:
            by_piece.setdefault(verdict.target.id, []).append(verdict)
        merged = []
        for solution, parts in zip(solutions, pieces, strict=True):
            for number in range(n):
                given = [by_piece[part.id][number] for part in parts if part.id in by_piece]
                text, parsed = "\n".join(verdict.text for verdict in given), self.merge_verdicts(solution, given)
                id = f"{ctx.turn}/{agent}/{solution.id}*{number}"
                merged.append(replace(Rollout.from_text(id, agent, solution.problem, text, parsed), targets=(solution,)))
        return Rollouts(merged)

    @classmethod
    def length_factor(cls) -> int:
        """The token limit of a completion as a multiple of the solution's limit. A judge may write twice as much."""
        return 2 if cls.judges else 1

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Return the target (None: the problem itself) and the completion of a noisy teacher; `parse` accepts the text."""
        raise TypeError(f"nobody can demonstrate the role '{self.name}'")


ROLES: Registry[type[Role]] = Registry("role")
