"""Multi-agent workflows that recipes share: the order in which agents speak about a problem, and the history of each turn.

A workflow samples rollouts, demonstrates formats to its new agents, and returns for each agent's rows their reward, the reward
before them, and the final outcome (MARTI). It makes no advantages: the recipe does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from milonga.context import Context
from milonga.credit.critiques import agreement_reward, names_answer
from milonga.credit.history import Rounds, Scope, known_mean
from milonga.patterns.conversation import filter_comparable, list_turns, write_teacher_texts
from milonga.patterns.voting import get_true_answer
from milonga.roles import Debater, Reviser, Role, StepVerifier
from milonga.roles.reviser import make_panel
from milonga.types import Floats, Problem, Rollout, Rollouts, Solution

VerifierReward = Literal["agreement", "checker"]


@dataclass(frozen=True)
class Rules:
    """How turns are rewarded: the reward of each by itself, and its history."""

    right: Callable[[Rollout], float]
    """The correctness of a solution, from 0 to 1, by whatever grades it; NaN where it is unknown."""
    pays: VerifierReward = "agreement"
    """What a critique is rewarded for: the right final verdict, or naming the right answer."""
    scope: Scope = "own"
    rounds: Rounds = "all"
    label: Callable[[Problem], str | None] = get_true_answer
    """The answer that `right` grades by, where a critique is rewarded for naming it; None where there is none."""

    def reward_critique(self, critique: Rollout) -> float:
        """Return the reward of a critique by itself."""
        if self.pays == "checker":
            label = self.label(critique.problem)
            return float("nan") if label is None else float(names_answer(critique.text, label))
        return agreement_reward(critique.verification.final, self.right(critique.target))


@dataclass(frozen=True)
class AgentTurns:
    """One agent's rows, and for each of its turns the reward of every row (R), the reward before it (Q, NaN for none), and the
    outcome of the agent's own last turn and of the whole workflow. All arrays: shape (rows,)."""

    agent: str
    rows: Rollouts
    local: list[Floats]
    before: list[Floats]
    own_last: Floats
    whole: Floats
    target_correct: Floats | None = None
    """For critiques: the correctness of the solutions they are about."""


class Workflow(ABC):
    """Agents, and the order in which they speak."""

    agents: dict[str, type[Role]]
    taught: tuple[str, ...]
    """The agents that read what others wrote: a model may need demonstrations for that."""

    @abstractmethod
    def rollout(self, ctx: Context, problems: Sequence[Problem], n: int) -> Rollouts:
        """Sample `n` rollouts of the workflow on each problem."""

    @abstractmethod
    def write_demonstrations(self, ctx: Context, lines: int) -> Rollouts:
        """Return rollouts of a noisy teacher for the `taught` agents, after what the agents themselves wrote before."""

    @abstractmethod
    def score_turns(self, ctx: Context, rollouts: Rollouts, rules: Rules) -> list[AgentTurns]: ...

    @abstractmethod
    def pair_first_and_final(self, rollouts: Rollouts) -> tuple[Rollouts, Rollouts]:
        """Return first solutions and their final versions, row by row."""


def collect_solutions(rollouts: Rollouts) -> Rollouts:
    """Return all solutions of a workflow rollout: of every agent, in every turn."""
    return Rollouts(turn for rollout in rollouts if isinstance(rollout.parsed.value, Solution) for turn in list_turns(rollout))


def _nan_array(rows: Sequence[Rollout]) -> Floats:
    """Return an array of NaN, one per row."""
    return np.full(len(rows), np.nan)


class Refining(Workflow):
    """Generator, verifier (critique), refiner, whose solution is the outcome. Each solution has several critiques."""

    agents = {"generator": Debater, "verifier": StepVerifier, "refiner": Reviser}
    taught = ("refiner",)

    def __init__(self, critiques: int = 1) -> None:
        self.critiques = critiques

    def rollout(self, ctx: Context, problems: Sequence[Problem], n: int) -> Rollouts:
        solutions = ctx.ask("generator", problems, n)
        critiques = self.keep_comparable(ctx.ask("verifier", solutions, self.critiques), n)
        return Rollouts(
            [*solutions, *critiques, *self.keep_comparable(ctx.ask("refiner", _make_critique_panels(critiques)), n)]
        )

    def keep_comparable(self, rows: Rollouts, n: int) -> Rollouts:
        """Drop groups that are too small for a baseline, where rollouts are to be compared."""
        return filter_comparable(rows) if n * self.critiques > 1 else rows

    def write_demonstrations(self, ctx: Context, lines: int) -> Rollouts:
        critiques = ctx.ask("verifier", ctx.ask("generator", ctx.problems(lines)))
        return _write_revisions(ctx, "refiner", _make_critique_panels(critiques))

    def score_turns(self, ctx: Context, rollouts: Rollouts, rules: Rules) -> list[AgentTurns]:
        """Return the rewards. In scope `own` the refiner's history is the solution it refines; in `all` also the reward of the
        critique."""
        solutions, critiques, refined = (rollouts.of(agent) for agent in self.agents)
        ends = np.array([rules.right(rollout) for rollout in refined])
        of_critique = {rollout.target.targets[1].id: end for rollout, end in zip(refined, ends, strict=True)}
        found = np.array([of_critique.get(critique.id, np.nan) for critique in critiques])
        targets = np.array(critiques.target_ids)
        of_solution = np.array([known_mean(found[targets == solution.id]) for solution in solutions])
        first = np.array([rules.right(solution) for solution in solutions])
        judged = np.array([rules.reward_critique(critique) for critique in critiques])
        about = np.array([rules.right(critique.target) for critique in critiques])
        before = []
        for rollout in refined:
            solution, critique = rollout.target.targets
            more = [rules.reward_critique(critique)] if rules.scope == "all" else []
            before.append(known_mean(np.array([rules.right(solution), *more])))
        return [
            AgentTurns("generator", solutions, [first], [_nan_array(solutions)], first, of_solution),
            AgentTurns("verifier", critiques, [judged], [_nan_array(critiques)], judged, found, about),
            AgentTurns("refiner", refined, [ends], [np.array(before)], ends, ends),
        ]

    def pair_first_and_final(self, rollouts: Rollouts) -> tuple[Rollouts, Rollouts]:
        refined = rollouts.of("refiner")
        return Rollouts(rollout.target.targets[0] for rollout in refined), refined


class Mixing(Workflow):
    """Mixture of agents: two proposers, and an aggregator that reads both and whose solution is the outcome."""

    agents = {"generator": Debater, "partner": Debater, "aggregator": Reviser}
    taught = ("aggregator",)

    def rollout(self, ctx: Context, problems: Sequence[Problem], n: int) -> Rollouts:
        mine, theirs = (ctx.ask(agent, problems, n) for agent in ("generator", "partner"))
        joined = ctx.ask("aggregator", pair_proposals(mine, theirs))
        return Rollouts([*mine, *theirs, *(filter_comparable(joined) if n > 1 else joined)])

    def write_demonstrations(self, ctx: Context, lines: int) -> Rollouts:
        problems = ctx.problems(lines)
        return _write_revisions(
            ctx, "aggregator", pair_proposals(*(ctx.ask(agent, problems) for agent in ("generator", "partner")))
        )

    def score_turns(self, ctx: Context, rollouts: Rollouts, rules: Rules) -> list[AgentTurns]:
        """Return the rewards. The aggregator's history is the two proposals that it read."""
        joined = rollouts.of("aggregator")
        ends = np.array([rules.right(rollout) for rollout in joined])
        whole = {one.id: end for rollout, end in zip(joined, ends, strict=True) for one in rollout.target.targets}
        before = np.array([known_mean(np.array([rules.right(one) for one in rollout.target.targets])) for rollout in joined])
        out = []
        for agent in ("generator", "partner"):
            rows = rollouts.of(agent)
            local = np.array([rules.right(rollout) for rollout in rows])
            out.append(
                AgentTurns(agent, rows, [local], [_nan_array(rows)], local, np.array([whole.get(t.id, np.nan) for t in rows]))
            )
        return [*out, AgentTurns("aggregator", joined, [ends], [before], ends, ends)]

    def pair_first_and_final(self, rollouts: Rollouts) -> tuple[Rollouts, Rollouts]:
        both = [(one, rollout) for rollout in rollouts.of("aggregator") for one in rollout.target.targets]
        return Rollouts(one for one, _ in both), Rollouts(rollout for _, rollout in both)


def _make_critique_panels(critiques: Rollouts) -> Rollouts:
    """Combine each solution with its critique, as input of the refiner."""
    return Rollouts(make_panel([critique.target, critique]) for critique in critiques)


def pair_proposals(mine: Rollouts, theirs: Rollouts) -> Rollouts:
    """Pair the proposals of both agents about the same problem, rollout by rollout."""
    rest: dict[str, list[Rollout]] = {}
    for one in theirs:
        rest.setdefault(one.problem.id, []).append(one)
    return Rollouts(make_panel([one, rest[one.problem.id].pop(0)]) for one in mine if rest.get(one.problem.id))


def _write_revisions(ctx: Context, agent: str, read: Rollouts) -> Rollouts:
    """Return what a noisy teacher would write after reading these inputs."""
    return ctx.write(agent, read, write_teacher_texts(ctx, agent, [one.problem for one in read], "revision"))
