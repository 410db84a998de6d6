"""Thoughts before the next token: lines of text cut at a place, and the effect of a thought on the next tokens'
log-probability.

Everything after a thought happens in token space: what was sampled is never encoded again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from milonga.context import Context
from milonga.credit.baselines import group_rows
from milonga.systems.rlp.roles import Thinker
from milonga.types import Floats, Parsed, Problem, Rollout, Rollouts, Segment

Pick = Literal["random", "answer"]


def cut_lines(ctx: Context, problems: Sequence[Problem], pick: Pick, span: int = 1) -> list[Problem]:
    """Return problems as lines of text (question and answer, no work; the text itself if there is no answer), each cut at one
    place.

    The text before the place is the new problem's text; the next `span` tokens are in `data["next"]` and the whole line in
    `data["line"]`, which no prompt shows. `answer` cuts before the answer; `random` after any token but the last.
    """
    thinker, engine = ctx.role("generator"), ctx.engine
    policy = ctx.policy("generator")
    assert isinstance(thinker, Thinker)
    out = []
    for problem in problems:
        line = thinker.render_question(problem) + problem.answer if problem.answer else problem.text
        place = len(line) - len(problem.answer)
        if pick == "random":
            ends = engine.encode_completion(policy, line, end=False).ends
            place = int(ends[ctx.rng("place", problem.id).randrange(len(ends) - 1)]) if len(ends) > 1 else 0
        ends = engine.encode_completion(policy, line[place:], end=False).ends
        # Tokens may be parts of a character: at least one is whole.
        end = next((int(end) for end in ends[min(span, len(ends)) - 1 :] if end), len(line) - place)
        following = line[place : place + end]
        data = {**problem.data, "next": following, "line": line}
        out.append(replace(problem, id=f"{problem.id}@{place}", text=line[:place], data=data))
    return out


def sample_thoughts(ctx: Context, places: Sequence[Problem], n: int) -> Rollouts:
    """Sample `n` thoughts about each place. They answer nothing yet, and so have no grade."""
    return Rollouts(replace(rollout, grade=None) for rollout in ctx.ask("generator", places, n))


def make_plain_prompts(ctx: Context, places: Sequence[Problem]) -> Rollouts:
    """Return the same places without a thought: the prefix of the line alone, in a template without tags."""
    engine, policy, role = ctx.engine, ctx.policy("predictor"), ctx.role("predictor")
    out = []
    for place in places:
        ids = engine.encode(policy, role.prompt(place, None))
        prompt = (Segment("prompt", 0, len(ids)),)
        parsed = Parsed(None, 1.0)
        out.append(Rollout(place.id, "predictor", place, ids, prompt, np.zeros(len(ids)), "", parsed, origin="given"))
    return Rollouts(out)


def score_next_tokens(ctx: Context, rollouts: Rollouts, tag: str = "live") -> Floats:
    """Return the log-probability of the true next tokens after each rollout, under policy@tag. Shape (rollouts,)."""
    asked = Rollouts(append_target(ctx, rollout) for rollout in rollouts)
    return np.array([float(found.sum()) for found in ctx.compute_logprobs("generator", asked, tag)])


def append_target(ctx: Context, rollout: Rollout) -> Rollout:
    """Append the true next tokens to a rollout; they are its only trained tokens. A thought that was not closed gets its
    closing tag, unscored; an end-of-sequence token is removed."""
    engine, policy = ctx.engine, ctx.policy("generator")
    thinker = ctx.role("generator")
    assert isinstance(thinker, Thinker)
    kept = rollout.ids[: len(rollout.ids) - (rollout.origin == "sampled" and rollout.finish == "eos")]
    closing = engine.encode_completion(policy, "" if rollout.parsed.is_valid else thinker.closing_tag, end=False).ids
    target = engine.encode_completion(policy, str(rollout.problem.data["next"]), end=False).ids
    ids = np.concatenate([kept, closing, target]).astype(np.int64)
    start = len(ids) - len(target)
    segments = (Segment("prompt", 0, start), Segment(rollout.agent, start, len(ids), policy, trained=True))
    return replace(rollout, ids=ids, segments=segments, logprobs=np.zeros(len(ids)), steps=(), origin="given", temperature=1.0)


def swap_thoughts(thoughts: Rollouts) -> Rollouts:
    """Give every line the thought of the next one: a control for what a thought is worth beyond being there."""
    out = []
    for rollout, other in zip(thoughts, [*thoughts[1:], *thoughts[:1]], strict=True):
        own, foreign = rollout.segments[-1], other.segments[-1]
        ids = np.concatenate([rollout.ids[: own.start], other.ids[foreign.start : foreign.end]])
        segments = (*rollout.segments[:-1], replace(own, end=len(ids)))
        moved = replace(rollout, ids=ids, segments=segments, logprobs=np.zeros(len(ids)), text=other.text)
        out.append(replace(moved, parsed=other.parsed, finish=other.finish, steps=()))
    return Rollouts(out)


def copy_rate(thoughts: Rollouts) -> float:
    """Return the share of the thoughts that are empty, or only repeat a piece of the line."""
    written = [(t.solution.steps[0], t.problem.text) for t in thoughts if t.parsed.is_valid]
    return float(np.mean([thought in text for thought, text in written])) if written else 0.0


def group_stds(rewards: Floats, groups: Sequence[Hashable]) -> Floats:
    """Return the standard deviation of the rewards within each group. Shape (groups,)."""
    return np.array([rewards[rows].std() for rows in group_rows(groups)])
