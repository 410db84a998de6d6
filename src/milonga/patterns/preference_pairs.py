"""Preference pairs: human ones from a file, or simulated by a weak solver's mistakes; pairs of a round, and train batches of
pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from milonga.context import Context
from milonga.preferences import Preference
from milonga.randomness import key64
from milonga.recipe import Recipe
from milonga.roles import StepSolver
from milonga.roles.solver import demonstration_to_rollout
from milonga.types import Problem, Rollout, Rollouts, TrainBatch

Pair = tuple[str, Rollout, Rollout]
"""Kind or reason of the pair, winner (chosen), loser (rejected)."""
BEFORE = "before"
"""The tag of the snapshot of a policy at the start of a round."""
Weak = Literal["first", "any"]
"""Where a weak solver makes its mistake: only in the first step, or anywhere."""


def assign_learner(text: str) -> str:
    """Return the agent that learns from a problem: the policy or the reward model, never both. By a hash of the text."""
    return ("generator", "verifier")[key64("half", text) % 2]


def write_solution(ctx: Context, problem: Problem, errors: set[int], name: str) -> Rollout:
    """Write a reference solution in the solver's format, with errors in these steps; a reply of the data word for word."""
    if problem.reply is not None:
        return write_reply(ctx, problem, problem.reply, name)
    solver = ctx.role("generator")
    assert isinstance(solver, StepSolver)
    rng = ctx.rng("written", problem.id, name)
    return demonstration_to_rollout(ctx.task.demonstrate(problem, rng, errors), problem, solver, f"{problem.id}/{name}")


def write_reply(ctx: Context, problem: Problem, text: str, name: str) -> Rollout:
    """Write a reply of the data, which nobody has graded, as a rollout that can be judged."""
    return Rollout.from_text(f"{problem.id}/{name}", "generator", problem, text, ctx.role("generator").parse(text, None))


def make_human_pair(ctx: Context, problem: Problem, weak: Weak, flip: float = 0.0) -> tuple[Rollout, Rollout] | None:
    """Return the chosen and the rejected reply of the data; or those of a weak solver, swapped with probability `flip`.

    None where the mistake does not change the answer (people look only at the answer), and where the task has no pairs.
    """
    if problem.reply is not None and problem.rejected is not None:
        return write_reply(ctx, problem, problem.reply, "good"), write_reply(ctx, problem, problem.rejected, "bad")
    if not ctx.task.knows_steps:
        return None
    rng = ctx.rng("human", problem.id)
    at = 0 if weak == "first" else rng.randrange(ctx.task.step_count(problem))
    good, bad = write_solution(ctx, problem, set(), "good"), write_solution(ctx, problem, {at}, "bad")
    if bad.correct == 1.0:
        return None
    return (bad, good) if rng.random() < flip else (good, bad)


def align_pairs(rows: Rollouts, pairs: list[Pair]) -> tuple[Rollouts, list[Pair]]:
    """Return winner and loser of each pair as neighbouring rows in the reward model's tokens, and the pairs that are left. A
    pair is dropped where one of its sides did not fit into the context."""
    found = {t.target.id: t for t in rows}
    kept = [pair for pair in pairs if pair[1].id in found and pair[2].id in found]
    return Rollouts(found[side.id] for _, *sides in kept for side in sides), kept


def to_given_rollout(rollout: Rollout) -> Rollout:
    """Convert a rollout of another version of a policy to a row to train on, with the same ids. It is never
    used for a policy gradient."""
    segments = tuple(replace(segment, trained=segment.policy is not None) for segment in rollout.segments)
    return replace(rollout, segments=segments, origin="given", temperature=1.0)


def is_cut_prose(ctx: Context, answer: Rollout) -> bool:
    """Whether an answer of the generator in prose was cut at the limit: in a pair its missing end would be all that is learned.
    In the terse grammar a cut answer cannot be parsed, and loses for that."""
    return answer.finish == "length" and ctx.role("generator").dialect != "terse"


def pair_best(kind: str, rollouts: Rollouts, scores: Sequence[float]) -> list[Pair]:
    """Pair the best rollout of each problem, the first of equals, with each that has a lower score."""
    out: list[Pair] = []
    for problem in dict.fromkeys(rollouts.problem_ids):
        mine = [(score, t) for score, t in zip(scores, rollouts, strict=True) if t.problem.id == problem]
        best, winner = max(mine, key=lambda one: one[0])
        out += [(kind, winner, t) for score, t in mine if score < best]
    return out


def record_pairs(ctx: Context, pairs: Sequence[Pair]) -> list[Pair]:
    """Record the pairs in the run folder, with their kinds as the reason, and return those that are new in this round."""
    return [(reason, winner, loser) for reason, winner, loser in pairs if ctx.add_preference(winner, loser, reason)]


def recall_pairs(ctx: Context, agent: str, kept: Sequence[Preference], count: int) -> list[Pair]:
    """Draw `count` of the recorded pairs, or all there are, at random by the turn."""
    chosen = ctx.rng("recall", agent).sample(range(len(kept)), min(len(kept), count))
    policy = ctx.policy(agent)
    return [(kept[i].reason, *kept[i].to_rollouts(policy)) for i in sorted(chosen)]


def make_pair_batch(recipe: Recipe, agent: str, pairs: Sequence[Pair], **more: Any) -> TrainBatch:
    """Make a train batch of pairs: winner and loser as neighbouring rows with labels 1 and 0, each pair one unit."""
    rows = Rollouts(side for _, *sides in pairs for side in sides)
    units = [row // 2 for row in range(len(rows))]
    return recipe.train_batch(agent, rows, labels=[1.0, 0.0] * len(pairs), units=units, **more)
