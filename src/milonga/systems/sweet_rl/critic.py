"""A privileged critic, whose prompt has information that the agents of a conversation lack, and its scores of each turn."""

from __future__ import annotations

from milonga.context import Context
from milonga.credit import make_token_factors, sum_turns
from milonga.credit.turns import TurnAggregate
from milonga.patterns.conversation import reopen
from milonga.systems.sweet_rl.roles import PrivilegedCritic
from milonga.tasks.artefacts import find_reference
from milonga.types import Rollout, Rollouts


def encode_for_critic(ctx: Context, talks: Rollouts, sees: bool) -> dict[str, Rollout]:
    """Return conversations in the critic's form, by their ids. Only the opening prompt differs: with `sees` it has the
    reference. Those that do not fit into its context are missing."""
    role = ctx.role("critic")
    assert isinstance(role, PrivilegedCritic)
    problems = [talk.problem for talk in talks]
    openings = [role.prompt_with_reference(p, find_reference(p)) if sees else role.prompt(p) for p in problems]
    return reopen(ctx, "critic", talks, openings)


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
