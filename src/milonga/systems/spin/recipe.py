"""SPIN (arXiv 2401.01335): self-play fine-tuning; the data's answers are preferred to those of the model's previous round.

At the start of a round the model is copied. The copy answers the data's problems and loses every time; by DPO the model raises
the odds of the data's answer over the copy's, with the copy as reference. Then it becomes the next copy. Nobody checks any
answer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.evals.metrics import mean, order_accuracy
from milonga.patterns.imitation import demonstrate_problems
from milonga.patterns.preference_pairs import BEFORE, Pair, make_pair_batch, recall_pairs, record_pairs, to_given_rollout
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role, StepSolver
from milonga.schedule import Schedule, rounds
from milonga.tasks.base import DEMONSTRATIONS
from milonga.types import Rollout, Rollouts, TrainBatch

MEASURED = 64
"""Held-out problems, at most, whose data answers are scored at an evaluation."""


class SpinOptions(RecipeOptions):
    round_turns: int = Field(4, ge=1)
    """Turns of a round. N turns are N / round_turns rounds; the paper has four."""
    answers: int = Field(1, ge=1)
    """Answers of the copy to each problem."""
    replay: float = Field(1.0, ge=0)
    """Pairs of the round before that are learned from again, for each new one; their reference is the new copy."""
    noise: float = Field(0.0, ge=0, le=1)
    """Share of the data's answers that are wrong in a step. What the data do not know, nobody learns."""
    shorten: float = Field(0.0, ge=0, lt=1)
    """Share of the copy's answer that is cut off before its end: a cue to win by length alone, to show that trap."""


class Spin(Recipe):
    """The data's answers must beat those of the model's own last round (SPIN, arXiv 2401.01335)."""

    name = "spin"
    granularity = "sequence"
    truth = "worked solutions"
    needs = {DEMONSTRATIONS}
    agents = {"generator": StepSolver}
    lead = "generator"
    overlap = Refused("it learns from pairs of rounds, by what the round before has taught")
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    learns = {"generator": ("dpo",)}
    measures = ("generator/data_surprise",)
    defaults = {"policies": {"generator": {"objective": {"preset": "dpo", "beta": 1.0, "kl_from": BEFORE}}}}
    published = {
        "turns": 3124,
        "batch": {"problems": 64},
        "sampling": {"max_tokens": 256},
        "policies": {"generator": {"lr": 5e-7, "objective": {"beta": 0.1}}},
        "options": {"round_turns": 781, "answers": 1, "replay": 1.0},
    }
    Options = SpinOptions
    options: SpinOptions

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        return {"generator": StepSolver(dialect, self.options.noise)}

    def schedule(self) -> Schedule:
        return rounds("generator", self.options.round_turns, self.policies["generator"], BEFORE)

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample answers of the copy, which does not change within a round."""
        return ctx.ask("generator", ctx.problems(), self.options.answers, tag=BEFORE)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """-log sigmoid(beta * (log-ratio of the data's answer - log-ratio of the copy's)), old pairs and new alike."""
        problems = {t.problem.id: t.problem for t in rollouts}
        data = {t.problem.id: t for t in demonstrate_problems(ctx, "generator", list(problems.values()))}
        # A truncated answer has no end-of-sequence token, and would lose by that alone.
        whole = [t for t in rollouts if t.finish != "length" and t.problem.id in data]
        candidates: list[Pair] = [
            ("data against own answer", data[t.problem.id], shorten_answer(to_given_rollout(t), self.options.shorten))
            for t in whole
        ]
        fresh = record_pairs(ctx, candidates)
        again = ctx.preferences.select_round(ctx.round - 1)
        pairs = [*fresh, *recall_pairs(ctx, "generator", again, round(self.options.replay * len(fresh)))]
        same = mean([t.text == data[t.problem.id].text for t in whole])
        notes = {
            "new_pairs": float(len(fresh)),
            "old_pairs": float(len(pairs) - len(fresh)),
            "length_alone": length_accuracy(fresh),
        }
        if not pairs:
            return []  # the copy answers as the data do: there is nothing left to tell apart
        notes = {name: value for name, value in (notes | {"same": same}).items() if value is not None}
        return [make_pair_batch(self, "generator", pairs, sources={"demonstrations": 1.0}, notes=notes)]

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure the negative log-probability of the data's own answers: only the difference is trained, so they may become
        less likely."""
        data = demonstrate_problems(ctx, "generator", ctx.problems(min(ctx.batch_size, MEASURED)))
        found = ctx.compute_logprobs("generator", data)
        return {"generator/data_surprise": mean([-float(x[t.mask].mean()) for x, t in zip(found, data, strict=True)])}


def shorten_answer(answer: Rollout, share: float) -> Rollout:
    """Cut the last share of an answer's tokens but keep its end-of-sequence token, as if it had stopped there."""
    start, end = answer.segments[-1].start, len(answer.ids)
    left = start + round((1 - share) * (end - 1 - start))
    if left == end - 1:
        return answer
    segments = (*answer.segments[:-1], replace(answer.segments[-1], end=left + 1))
    keep = np.r_[:left, end - 1]
    text = answer.text[: round(len(answer.text) * (left - start) / (end - 1 - start))]
    cut = replace(answer, ids=answer.ids[keep], logprobs=answer.logprobs[keep], segments=segments)
    return replace(cut, text=text, steps=())


def length_accuracy(pairs: list[Pair]) -> float | None:
    """Return how well length alone, the longer or the shorter one, would separate winners from losers; 0.5 is chance."""
    lengths = [float(side.length) for _, *sides in pairs for side in sides]
    found = order_accuracy(lengths, [1.0, 0.0] * len(pairs)) if pairs else None
    return None if found is None else max(found, 1 - found)
