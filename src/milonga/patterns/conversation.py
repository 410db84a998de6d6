"""Helpers for multi-turn rollouts: dialogues of open length, conversations after another opening, those with a baseline,
metrics between two turns, and teacher demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.tasks.base import normalise_text
from milonga.types import Floats, Problem, Prompt, Rollout, Rollouts, Segment, Solution


def filter_comparable(talks: Rollouts) -> Rollouts:
    """Drop conversations that are the only one of their problem: they have no baseline. That happens where the others had no
    room for another turn."""
    counts = Counter(talks.problem_ids)
    return talks.select(lambda talk: counts[talk.problem.id] > 1)


def list_turns(talk: Rollout) -> list[Rollout]:
    """Return the conversation after each of its turns, the first one first."""
    out = [talk]
    while (before := out[0].earlier_conversation) is not None:
        out.insert(0, before)
    return out


Answer = Callable[[Rollouts], tuple[Rollouts, list[Prompt]]]
"""Answers conversations: those that can go on, and what is said in each of them next."""


def is_open(talk: Rollout) -> bool:
    """Whether a conversation goes on: its last turn is no solution."""
    return not isinstance(talk.parsed.value, Solution)


def hold_dialogues(ctx: Context, agent: str, talks: Rollouts, answer: Answer, most: int, tag: str = "live") -> Rollouts:
    """Let conversations of the agent go on until its turn is a solution, for at most so many turns; `answer` speaks in between.
    Those without room for their next turn are missing, and counted."""
    for _ in range(most):
        going, said = answer(talks.select(is_open))
        replies = {t.target.id: t for t in ctx.reply(agent, going, said, tag=tag, speaker="user")}
        talks = Rollouts(replies.get(talk.id, talk) for talk in talks if talk.id in replies or not is_open(talk))
    return talks


def sample_turns(ctx: Context, agent: str, talks: Rollouts, answer: Answer, most: int, n: int, tag: str) -> Rollouts:
    """Let conversations go on as `hold_dialogues` does. Returns `n` candidates for each of their turns after the first."""
    out: list[Rollout] = []
    for turn in range(1, most + 1):
        going, said = answer(talks.select(is_open))
        out += ctx.reply(agent, going, said, n, tag=tag, speaker="user")
        talks = ctx.reply(agent, going, said, tag=tag, speaker="user") if turn < most else going
    return Rollouts(out)


def reopen(ctx: Context, agent: str, talks: Rollouts, openings: Sequence[Prompt]) -> dict[str, Rollout]:
    """Return conversations behind other openings, in the tokens of the agent, by their ids: all later tokens are the same, and
    those that a policy sampled are trained. Conversations that do not fit into its context are missing, and counted."""
    engine, policy, out = ctx.engine, ctx.policy(agent), dict[str, Rollout]()
    for talk, head in zip(talks, engine.encode_all(policy, openings), strict=True):
        cut = talk.segments[0].end
        ids, shift = np.concatenate([head, talk.ids[cut:]]), len(head) - cut
        if len(ids) > engine.context_limit(policy):
            ctx.dropped[f"{agent}: conversation longer than the model's context"] += 1
            continue
        shifted = [
            replace(s, start=s.start + shift, end=s.end + shift, trained=s.policy is not None) for s in talk.segments[1:]
        ]
        segments = (Segment("prompt", 0, len(head)), *shifted)
        row = replace(talk, ids=ids, segments=segments, logprobs=np.zeros(len(ids)), steps=(), chars=None)
        out[talk.id] = replace(row, origin="given", temperature=1.0)
    return out


def write_teacher_texts(ctx: Context, agent: str, problems: Sequence[Problem], what: str) -> list[str]:
    """Return the text of the agent's noisy teacher for each problem. `what` keys its random mistakes."""
    role = ctx.role(agent)
    return [role.demonstrate(ctx.task, problem, ctx.rng(what, agent, problem.id))[1] for problem in problems]


def compute_turn_costs(talks: Rollouts, differences: list[Floats], betas: Sequence[float]) -> list[Floats]:
    """Return token costs (KL penalties): the differences times the beta of their turn.

    differences: one float array per conversation, aligned with its ids, as the result is. betas: one per turn.
    """
    out = [np.zeros(len(talk.ids)) for talk in talks]
    for talk, cost, difference in zip(talks, out, differences, strict=True):
        for (start, end), beta in zip(talk.turn_spans, betas, strict=True):
            cost[start:end] = beta * difference[start:end]
    return out


CHANGES = ("first_accuracy", "last_accuracy", "gain", "fixed", "broken", "copy_rate")
"""The names of the metrics that `compute_change_metrics` returns."""


def compute_change_metrics(earlier: Rollouts, later: Rollouts) -> dict[str, float | None]:
    """Compare two turns of the same conversations: accuracy of both and its gain, wrong to right, right to wrong, copies."""
    before, after = earlier.correct, later.correct
    same = [normalise_text(a.text) == normalise_text(b.text) for a, b in zip(earlier, later, strict=True)]
    return {
        "first_accuracy": mean(before),
        "last_accuracy": mean(after),
        "gain": mean(after - before),
        "fixed": mean((1 - before) * after),
        "broken": mean(before * (1 - after)),
        "copy_rate": mean(same),
    }
