"""A privileged critic, whose prompt has information that the agents of a conversation lack, and its scores of each turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from milonga.context import Context
from milonga.credit import make_token_factors, sum_turns
from milonga.credit.turns import TurnAggregate
from milonga.evals.metrics import mean, order_accuracy
from milonga.systems.sweet_rl.roles import PrivilegedCritic
from milonga.types import Rollout, Rollouts, Segment


def encode_for_critic(ctx: Context, talks: Rollouts, sees: bool) -> dict[str, Rollout]:
    """Return conversations in the critic's form, by their ids. Only the opening prompt differs: with `sees` it has the whole
    problem. All later tokens are the same. Conversations that do not fit into its context are missing, and counted."""
    role, engine, policy = ctx.role("critic"), ctx.engine, ctx.policy("critic")
    assert isinstance(role, PrivilegedCritic)
    openings = [
        role.prompt_with_reference(t.problem, t.problem.data["whole"]) if sees else role.prompt(t.problem) for t in talks
    ]
    out = {}
    for talk, head in zip(talks, engine.encode_all(policy, openings), strict=True):
        cut = talk.segments[0].end
        ids, shift = np.concatenate([head, talk.ids[cut:]]), len(head) - cut
        if len(ids) > engine.context_limit(policy):
            ctx.dropped["critic: conversation longer than the model's context"] += 1
            continue
        shifted = [
            replace(s, start=s.start + shift, end=s.end + shift, trained=s.policy is not None) for s in talk.segments[1:]
        ]
        segments = (Segment("prompt", 0, len(head)), *shifted)
        row = replace(talk, ids=ids, segments=segments, logprobs=np.zeros(len(ids)), steps=(), chars=None)
        out[talk.id] = replace(row, origin="given", temperature=1.0)
    return out


def score_turns(ctx: Context, talks: Rollouts, sees: tuple[bool, bool], how: TurnAggregate, base: str) -> list[list[float]]:
    """Score each turn by the sum over its tokens of their factor times log(critic / reference).

    Returns one list per conversation, with one score per turn; NaN where a conversation does not fit into the context. `sees`
    is whether the critic, and the reference, read the whole problem. The reference is the critic@base.
    """
    found, other = (encode_for_critic(ctx, talks, one) for one in sees)
    ids = [talk.id for talk in talks if talk.id in found and talk.id in other]
    rows, reference = Rollouts(found[id] for id in ids), Rollouts(other[id] for id in ids)
    live = sum_turns(ctx.compute_logprobs("critic", rows), make_token_factors(rows, how), rows)
    start = sum_turns(ctx.compute_logprobs("critic", reference, base), make_token_factors(reference, how), reference)
    scores = {id: [a - b for a, b in zip(*both, strict=True)] for id, *both in zip(ids, live, start, strict=True)}
    return [scores.get(talk.id, [float("nan")] * len(talk.turn_spans)) for talk in talks]


def order_accuracy_by_problem(rollouts: Rollouts, scores: Sequence[float], right: Sequence[float]) -> float | None:
    """Return the order accuracy within problems: the share of pairs in which the right one scores higher, averaged over
    problems."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for rollout, score, label in zip(rollouts, scores, right, strict=True):
        if not np.isnan(score):
            groups.setdefault(rollout.problem.id, []).append((score, label))
    found = [order_accuracy(*zip(*group, strict=True)) for group in groups.values()]
    return mean([value for value in found if value is not None])
