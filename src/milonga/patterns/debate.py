"""Multi-agent debates that recipes share: agents answer, read each other's answers, and answer again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from milonga.context import Context
from milonga.credit.history import compute_histories
from milonga.patterns.conversation import list_turns, write_teacher_texts
from milonga.patterns.imitation import sample_demonstrations
from milonga.patterns.voting import majority_correctness
from milonga.patterns.workflows import AgentTurns, Rules, Workflow
from milonga.roles import Debater
from milonga.types import Floats, Problem, Prompt, Rollout, Rollouts

Round = dict[str, Rollouts]
"""Agent to its conversations; the same row of every agent is the same debate."""


@dataclass(frozen=True)
class Debates:
    """Debates as the conversations of each agent after the last turn. The same row of every agent is the same debate."""

    talks: Round

    @property
    def correct(self) -> Floats:
        """Correctness of every answer: float array of shape (debates, turns, agents)."""
        return self.map_turns(lambda rollout: rollout.correct)

    @property
    def rewards(self) -> Floats:
        """Outcome reward of every answer: float array of shape (debates, turns, agents)."""
        return self.map_turns(lambda rollout: rollout.reward)

    @property
    def readable(self) -> Floats:
        """1 where an answer could be parsed, else 0: float array of shape (debates, turns, agents)."""
        return self.map_turns(lambda rollout: float(rollout.parsed.is_valid))

    @property
    def formats(self) -> Floats:
        """Format score of every answer: float array of shape (debates, turns, agents)."""
        return self.map_turns(lambda rollout: rollout.parsed.format)

    def map_turns(self, value: Callable[[Rollout], float]) -> Floats:
        """Apply `value` to every turn: float array of shape (debates, turns, agents)."""
        debaters = [[[value(turn) for turn in list_turns(talk)] for talk in talks] for talks in self.talks.values()]
        return np.moveaxis(np.array(debaters, dtype=float), 0, 2)

    def select_turn(self, turn: int) -> Rollouts:
        """Return the rollouts of all agents after a turn."""
        return Rollouts(list_turns(talk)[turn] for talks in self.talks.values() for talk in talks)


def sample_debates(ctx: Context, agents: Sequence[str], problems: Sequence[Problem], turns: int, n: int = 1) -> Debates:
    """Sample `n` debates about each problem. Turn 0 is independent; later each agent reads what the others said last.

    A debate in which one agent has no room left for another turn is dropped for all agents. With `n` > 1 a debate that is then
    the only one of its problem is dropped too: it has no baseline.
    """
    with ctx.cache_conversations():
        talks = {agent: ctx.ask(agent, problems, n) for agent in agents}
        for _ in range(turns - 1):
            replies = {
                agent: ctx.reply(agent, talks[agent], build_debate_prompts(ctx, agent, talks), speaker="debate")
                for agent in agents
            }
            talks = match_replies(talks, replies)
    counts = Counter(talks[agents[0]].problem_ids)
    return Debates({agent: talks[agent].select(lambda talk: n == 1 or counts[talk.problem.id] > 1) for agent in agents})


def build_debate_prompts(ctx: Context, agent: str, talks: Round) -> list[Prompt]:
    """Build the next prompt of each of an agent's conversations: what the others said last in the same debate."""
    role = ctx.role(agent)
    assert isinstance(role, Debater)
    others = [talks[other] for other in talks if other != agent]
    return [
        role.render_other_solutions(talk.problem, [other[row] for other in others]) for row, talk in enumerate(talks[agent])
    ]


def match_replies(before: Round, replies: Round) -> Round:
    """Return the replies of debates in which every agent replied, in the order of the earlier conversations."""
    found = {agent: {reply.target.id: reply for reply in rollouts} for agent, rollouts in replies.items()}
    rows = range(len(next(iter(before.values()))))
    whole = [row for row in rows if all(before[agent][row].id in found[agent] for agent in before)]
    return {agent: Rollouts(found[agent][before[agent][row].id] for row in whole) for agent in before}


def demonstrate_debates(ctx: Context, agents: Sequence[str], turns: int, lines: int) -> Rollouts:
    """Write a noisy teacher's demonstrations for every turn of every agent, after what the agents themselves said before."""
    each = max(1, lines // turns)
    out: list[Rollout] = [rollout for agent in agents for rollout in sample_demonstrations(ctx, agent, each)]
    problems = ctx.problems(each)
    with ctx.cache_conversations():
        talks = {agent: ctx.ask(agent, problems) for agent in agents}
        for turn in range(1, turns):
            messages = {agent: build_debate_prompts(ctx, agent, talks) for agent in agents}
            for agent in agents:
                texts = write_teacher_texts(ctx, agent, [talk.problem for talk in talks[agent]], f"turn {turn}")
                out += ctx.write_reply(agent, talks[agent], messages[agent], texts)
            if turn < turns - 1:
                replies = {agent: ctx.reply(agent, talks[agent], messages[agent], speaker="debate") for agent in agents}
                talks = match_replies(talks, replies)
    return Rollouts(out)


class Debating(Workflow):
    """Two debaters over several rounds. The majority of the last round is the outcome."""

    agents = {"generator": Debater, "partner": Debater}
    taught = ("generator", "partner")

    def __init__(self, rounds: int = 2) -> None:
        self.rounds = rounds

    def rollout(self, ctx: Context, problems: Sequence[Problem], n: int) -> Rollouts:
        found = sample_debates(ctx, tuple(self.agents), problems, self.rounds, n)
        return Rollouts(talk for talks in found.talks.values() for talk in talks)

    def write_demonstrations(self, ctx: Context, lines: int) -> Rollouts:
        return demonstrate_debates(ctx, tuple(self.agents), self.rounds, lines)

    def score_turns(self, ctx: Context, rollouts: Rollouts, rules: Rules) -> list[AgentTurns]:
        debates = self.group_debates(rollouts)
        local = debates.map_turns(rules.right)
        before = np.array([compute_histories(one, rules.scope, rules.rounds) for one in local])
        last = zip(*debates.talks.values(), strict=True)
        voted = np.array([majority_correctness(ctx, Rollouts(talks), rules.right) for talks in last])
        return [
            AgentTurns(agent, rows, list(local[:, :, debater].T), list(before[:, :, debater].T), local[:, -1, debater], voted)
            for debater, (agent, rows) in enumerate(debates.talks.items())
        ]

    def pair_first_and_final(self, rollouts: Rollouts) -> tuple[Rollouts, Rollouts]:
        debates = self.group_debates(rollouts)
        return debates.select_turn(0), debates.select_turn(-1)

    def group_debates(self, rollouts: Rollouts) -> Debates:
        return Debates({agent: rollouts.of(agent) for agent in self.agents})
