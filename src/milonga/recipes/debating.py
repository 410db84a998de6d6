"""Multi-agent debates that recipes share: agents answer, read each other's answers, and answer again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from milonga.credit.history import compute_histories
from milonga.recipes.conversing import list_turns, write_teacher_texts
from milonga.recipes.imitation import sample_demonstrations
from milonga.recipes.voting import majority_correctness
from milonga.recipes.workflows import AgentTurns, Rules, Workflow, filter_by_agent
from milonga.roles import Debater
from milonga.table import Table
from milonga.types import Floats, Problem, Prompt, Trace, Traces

Round = dict[str, Traces]
"""Agent to its conversations; the same row of every agent is the same debate."""


@dataclass(frozen=True)
class Debates:
    """Debates as the conversations of each agent after the last turn. The same row of every agent is the same debate."""

    talks: Round

    @property
    def correct(self) -> Floats:
        """Correctness of every answer: float array of shape (debates, turns, agents)."""
        return self.map_turns(lambda trace: trace.correct)

    @property
    def readable(self) -> Floats:
        """1 where an answer could be parsed, else 0: float array of shape (debates, turns, agents)."""
        return self.map_turns(lambda trace: float(trace.reading.is_valid))

    def map_turns(self, value: Callable[[Trace], float]) -> Floats:
        """Apply `value` to every turn: float array of shape (debates, turns, agents)."""
        agents = [[[value(turn) for turn in list_turns(talk)] for talk in talks] for talks in self.talks.values()]
        return np.moveaxis(np.array(agents, dtype=float), 0, 2)

    def select_turn(self, turn: int) -> Traces:
        """Return the rollouts of all agents after a turn."""
        return Traces(list_turns(talk)[turn] for talks in self.talks.values() for talk in talks)


def sample_debates(table: Table, seats: Sequence[str], problems: Sequence[Problem], turns: int, n: int = 1) -> Debates:
    """Sample `n` debates about each problem. Turn 0 is independent; later each agent reads what the others said last.

    A debate in which one agent has no room left for another turn is dropped for all agents. With `n` > 1 a debate that is then
    the only one of its problem is dropped too: it has no baseline.
    """
    with table.cache_conversations():
        talks = {seat: table.ask(seat, problems, n) for seat in seats}
        for _ in range(turns - 1):
            replies = {
                seat: table.reply(seat, talks[seat], build_debate_prompts(table, seat, talks), speaker="debate")
                for seat in seats
            }
            talks = match_replies(talks, replies)
    counts = Counter(talks[seats[0]].problem_ids)
    return Debates({seat: talks[seat].select(lambda talk: n == 1 or counts[talk.problem.id] > 1) for seat in seats})


def build_debate_prompts(table: Table, seat: str, talks: Round) -> list[Prompt]:
    """Build the next prompt of each of an agent's conversations: what the others said last in the same debate."""
    role = table.setting.roles[seat]
    assert isinstance(role, Debater)
    others = [talks[other] for other in talks if other != seat]
    return [role.render_other_solutions(talk.problem, [other[row] for other in others]) for row, talk in enumerate(talks[seat])]


def match_replies(before: Round, replies: Round) -> Round:
    """Return the replies of debates in which every agent replied, in the order of the earlier conversations."""
    found = {seat: {reply.subject.id: reply for reply in traces} for seat, traces in replies.items()}
    rows = range(len(next(iter(before.values()))))
    whole = [row for row in rows if all(before[seat][row].id in found[seat] for seat in before)]
    return {seat: Traces(found[seat][before[seat][row].id] for row in whole) for seat in before}


def demonstrate_debates(table: Table, seats: Sequence[str], turns: int, lines: int) -> Traces:
    """Write a noisy teacher's demonstrations for every turn of every agent, after what the agents themselves said before."""
    each = max(1, lines // turns)
    out: list[Trace] = [trace for seat in seats for trace in sample_demonstrations(table, seat, each)]
    problems = table.problems(each)
    with table.cache_conversations():
        talks = {seat: table.ask(seat, problems) for seat in seats}
        for turn in range(1, turns):
            said = {seat: build_debate_prompts(table, seat, talks) for seat in seats}
            for seat in seats:
                texts = write_teacher_texts(table, seat, [talk.problem for talk in talks[seat]], f"turn {turn}")
                out += table.write_reply(seat, talks[seat], said[seat], texts)
            if turn < turns - 1:
                replies = {seat: table.reply(seat, talks[seat], said[seat], speaker="debate") for seat in seats}
                talks = match_replies(talks, replies)
    return Traces(out)


class Debating(Workflow):
    """Two debaters over several rounds. The majority of the last round is the outcome."""

    seats = {"generator": Debater, "partner": Debater}
    taught = ("generator", "partner")

    def __init__(self, rounds: int = 2) -> None:
        self.rounds = rounds

    def play(self, table: Table, problems: Sequence[Problem], n: int) -> Traces:
        found = sample_debates(table, tuple(self.seats), problems, self.rounds, n)
        return Traces(talk for talks in found.talks.values() for talk in talks)

    def write_demonstrations(self, table: Table, lines: int) -> Traces:
        return demonstrate_debates(table, tuple(self.seats), self.rounds, lines)

    def score_turns(self, table: Table, played: Traces, rules: Rules) -> list[AgentTurns]:
        debates = self.group_debates(played)
        local = debates.map_turns(rules.right)
        before = np.array([compute_histories(one, rules.scope, rules.rounds) for one in local])
        last = zip(*debates.talks.values(), strict=True)
        voted = np.array([majority_correctness(table, Traces(talks), rules.right) for talks in last])
        return [
            AgentTurns(seat, rows, list(local[:, :, agent].T), list(before[:, :, agent].T), local[:, -1, agent], voted)
            for agent, (seat, rows) in enumerate(debates.talks.items())
        ]

    def pair_first_and_final(self, played: Traces) -> tuple[Traces, Traces]:
        debates = self.group_debates(played)
        return debates.select_turn(0), debates.select_turn(-1)

    def group_debates(self, played: Traces) -> Debates:
        return Debates({seat: filter_by_agent(played, seat) for seat in self.seats})
