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

from milonga.credit.critiques import agreement_reward, names_answer
from milonga.credit.history import Rounds, Scope, known_mean
from milonga.recipes.conversing import filter_comparable, list_turns, write_teacher_texts
from milonga.roles import Debater, Reviser, Role, StepVerifier
from milonga.roles.reviser import make_panel
from milonga.table import Table
from milonga.types import Floats, Problem, Solution, Trace, Traces

VerifierReward = Literal["agreement", "checker"]


@dataclass(frozen=True)
class Rules:
    """How turns are rewarded: the reward of each by itself, and its history."""

    right: Callable[[Trace], float]
    """The correctness of a solution, from 0 to 1, whoever grades it; NaN where it is unknown."""
    pays: VerifierReward = "agreement"
    """What a critique is paid for: the right final verdict, or naming the right answer."""
    scope: Scope = "own"
    rounds: Rounds = "all"

    def reward_critique(self, critique: Trace) -> float:
        """Return the reward of a critique by itself."""
        if self.pays == "checker":
            return float(names_answer(critique.text, critique.problem.answer))
        return agreement_reward(critique.reading.value.final, self.right(critique.subject))


@dataclass(frozen=True)
class AgentTurns:
    """One agent's rows, and for each of its turns the reward of every row (R), the reward before it (Q, NaN for none), and the
    outcome of the agent's own last turn and of the whole workflow. All arrays: shape (rows,)."""

    seat: str
    rows: Traces
    local: list[Floats]
    before: list[Floats]
    own_last: Floats
    whole: Floats
    about: Floats | None = None
    """For critiques: the correctness of the solutions they are about."""


class Workflow(ABC):
    """Agents, and the order in which they speak."""

    seats: dict[str, type[Role]]
    taught: tuple[str, ...]
    """The agents that read what others wrote: a model may need demonstrations for that."""

    @abstractmethod
    def play(self, table: Table, problems: Sequence[Problem], n: int) -> Traces:
        """Sample `n` rollouts of the workflow on each problem."""

    @abstractmethod
    def write_demonstrations(self, table: Table, lines: int) -> Traces:
        """Return rollouts of a noisy teacher for the `taught` agents, after what the agents themselves wrote before."""

    @abstractmethod
    def score_turns(self, table: Table, played: Traces, rules: Rules) -> list[AgentTurns]: ...

    @abstractmethod
    def pair_first_and_final(self, played: Traces) -> tuple[Traces, Traces]:
        """Return first solutions and their final versions, row by row."""


def filter_by_agent(played: Traces, seat: str) -> Traces:
    """Filter the rollouts of one agent."""
    return played.select(lambda trace: trace.seat == seat)


def collect_solutions(played: Traces) -> Traces:
    """Return all solutions of a workflow rollout: of every agent, in every turn."""
    return Traces(turn for trace in played if isinstance(trace.reading.value, Solution) for turn in list_turns(trace))


def nan_array(rows: Sequence[Trace]) -> Floats:
    """Return an array of NaN, one per row."""
    return np.full(len(rows), np.nan)


class Refining(Workflow):
    """Generator, verifier (critique), refiner, whose solution is the outcome. Each solution has several critiques."""

    seats = {"generator": Debater, "verifier": StepVerifier, "refiner": Reviser}
    taught = ("refiner",)

    def __init__(self, critiques: int = 1) -> None:
        self.critiques = critiques

    def play(self, table: Table, problems: Sequence[Problem], n: int) -> Traces:
        solutions = table.ask("generator", problems, n)
        critiques = self.keep_comparable(table.ask("verifier", solutions, self.critiques), n)
        return Traces([*solutions, *critiques, *self.keep_comparable(table.ask("refiner", make_critique_panels(critiques)), n)])

    def keep_comparable(self, rows: Traces, n: int) -> Traces:
        """Drop groups that are too small for a baseline, where rollouts are to be compared."""
        return filter_comparable(rows) if n * self.critiques > 1 else rows

    def write_demonstrations(self, table: Table, lines: int) -> Traces:
        critiques = table.ask("verifier", table.ask("generator", table.problems(lines)))
        return write_revisions(table, "refiner", make_critique_panels(critiques))

    def score_turns(self, table: Table, played: Traces, rules: Rules) -> list[AgentTurns]:
        """Return the rewards. In scope `own` the refiner's history is the solution it refines; in `all` also the reward of the
        critique."""
        solutions, critiques, refined = (filter_by_agent(played, seat) for seat in self.seats)
        ends = np.array([rules.right(trace) for trace in refined])
        of_critique = {trace.subject.about[1].id: end for trace, end in zip(refined, ends, strict=True)}
        found = np.array([of_critique.get(critique.id, np.nan) for critique in critiques])
        subjects = np.array(critiques.subjects)
        of_solution = np.array([known_mean(found[subjects == solution.id]) for solution in solutions])
        first = np.array([rules.right(solution) for solution in solutions])
        judged = np.array([rules.reward_critique(critique) for critique in critiques])
        about = np.array([rules.right(critique.subject) for critique in critiques])
        before = []
        for trace in refined:
            solution, critique = trace.subject.about
            more = [rules.reward_critique(critique)] if rules.scope == "all" else []
            before.append(known_mean(np.array([rules.right(solution), *more])))
        return [
            AgentTurns("generator", solutions, [first], [nan_array(solutions)], first, of_solution),
            AgentTurns("verifier", critiques, [judged], [nan_array(critiques)], judged, found, about),
            AgentTurns("refiner", refined, [ends], [np.array(before)], ends, ends),
        ]

    def pair_first_and_final(self, played: Traces) -> tuple[Traces, Traces]:
        refined = filter_by_agent(played, "refiner")
        return Traces(trace.subject.about[0] for trace in refined), refined


class Mixing(Workflow):
    """Mixture of agents: two proposers, and an aggregator that reads both and whose solution is the outcome."""

    seats = {"generator": Debater, "partner": Debater, "aggregator": Reviser}
    taught = ("aggregator",)

    def play(self, table: Table, problems: Sequence[Problem], n: int) -> Traces:
        mine, theirs = (table.ask(seat, problems, n) for seat in ("generator", "partner"))
        joined = table.ask("aggregator", pair_proposals(mine, theirs))
        return Traces([*mine, *theirs, *(filter_comparable(joined) if n > 1 else joined)])

    def write_demonstrations(self, table: Table, lines: int) -> Traces:
        problems = table.problems(lines)
        return write_revisions(
            table, "aggregator", pair_proposals(*(table.ask(seat, problems) for seat in ("generator", "partner")))
        )

    def score_turns(self, table: Table, played: Traces, rules: Rules) -> list[AgentTurns]:
        """Return the rewards. The aggregator's history is the two proposals that it read."""
        joined = filter_by_agent(played, "aggregator")
        ends = np.array([rules.right(trace) for trace in joined])
        whole = {one.id: end for trace, end in zip(joined, ends, strict=True) for one in trace.subject.about}
        before = np.array([known_mean(np.array([rules.right(one) for one in trace.subject.about])) for trace in joined])
        out = []
        for seat in ("generator", "partner"):
            rows = filter_by_agent(played, seat)
            local = np.array([rules.right(trace) for trace in rows])
            out.append(
                AgentTurns(seat, rows, [local], [nan_array(rows)], local, np.array([whole.get(t.id, np.nan) for t in rows]))
            )
        return [*out, AgentTurns("aggregator", joined, [ends], [before], ends, ends)]

    def pair_first_and_final(self, played: Traces) -> tuple[Traces, Traces]:
        both = [(one, trace) for trace in filter_by_agent(played, "aggregator") for one in trace.subject.about]
        return Traces(one for one, _ in both), Traces(trace for _, trace in both)


def make_critique_panels(critiques: Traces) -> Traces:
    """Combine each solution with its critique, as input of the refiner."""
    return Traces(make_panel([critique.subject, critique]) for critique in critiques)


def pair_proposals(mine: Traces, theirs: Traces) -> Traces:
    """Pair the proposals of both agents about the same problem, rollout by rollout."""
    rest: dict[str, list[Trace]] = {}
    for one in theirs:
        rest.setdefault(one.problem.id, []).append(one)
    return Traces(make_panel([one, rest[one.problem.id].pop(0)]) for one in mine if rest.get(one.problem.id))


def write_revisions(table: Table, seat: str, read: Traces) -> Traces:
    """Return what a noisy teacher would write after reading these inputs."""
    return table.write(seat, read, write_teacher_texts(table, seat, [one.problem for one in read], "revision"))
