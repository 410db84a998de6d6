"""Self-Rewarding Language Models (arXiv 2401.10020): one model answers, grades its answers, and learns from its own grades.

A seed of graded solutions teaches the model to give points. Then, in rounds, it answers problems and grades each answer several
times; the best of a problem is preferred to the worst by DPO, with the model that made and graded both as reference. The judge
changes with the model: nothing outside the model corrects it after the seed.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import select_best_worst
from milonga.credit.selection import PairRule
from milonga.evals.metrics import mean
from milonga.patterns.imitation import make_imitation_batch, sample_demonstrations
from milonga.patterns.preference_pairs import BEFORE, Pair, make_pair_batch, record_pairs, to_given_rollout
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role, StepSolver
from milonga.schedule import Action, Phase, Schedule
from milonga.systems.self_rewarding.roles import MOST, Grader, award_points
from milonga.tasks.base import DEMONSTRATIONS, STEPS
from milonga.types import Floats, Rollout, Rollouts, TrainBatch

SEED = "seed"
"""The phase that teaches grading, and the tag of the judge as it was after it."""
MEASURED = 64
"""Held-out problems, at most, on which own grades are compared with the truth."""


class SelfRewardingOptions(RecipeOptions):
    seed_turns: int = Field(12, ge=1)
    """Turns that teach the model to grade, before the first round."""
    seed_noise: float = Field(0.0, ge=0, le=1)
    """Share of the seed's grades that are given at random."""
    round_turns: int = Field(4, ge=1)
    """Turns of a round. N turns are N / round_turns rounds; the paper has two."""
    gradings: int = Field(3, ge=1)
    """Gradings of an answer; its score is the mean of those that can be read."""
    judge: Literal["self", "frozen", "oracle"] = "self"
    """self: the model as it was at the start of the round. frozen: as it was after the seed. oracle: the truth of the steps."""
    min_margin: float = Field(1.0, ge=0, le=MOST)
    """Points that must lie between the two answers of a pair; equal ones never make one."""
    pair_rule: PairRule = "best_worst"
    """Which answers make a pair where several have the highest or the lowest score."""
    length_bonus: float = Field(0.0, ge=0)
    """Points that answers longer than the median of their problem get for that alone: a judge who loves length, to show it."""


class SelfRewarding(Recipe):
    """One model is answerer and judge, and prefers its own best to its own worst (arXiv 2401.10020)."""

    name = "self_rewarding"
    granularity = "sequence"
    truth = "graded solutions, at the start"
    needs = {DEMONSTRATIONS, STEPS}
    agents = {"generator": StepSolver, "verifier": Grader}
    lead = "generator"
    overlap = Refused("it learns from pairs of rounds, by what the round before has taught")
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    learns = {"generator": ("dpo",), "verifier": ("cross_entropy", "dpo", "policy_gradient")}
    measures = ("verifier/own_score", "verifier/score_gap")
    defaults = {
        "binding": "shared",
        # The DPO margin alone made both sides unlikely, however right the pairs were.
        "policies": {"generator": {"objective": {"preset": "dpo", "beta": 1.0, "nll_coef": 1.0, "kl_from": BEFORE}}},
        "batch": {"rollouts": 4},
    }
    embedded_defaults = {"options": {"seed_noise": 0.15}}
    Options = SelfRewardingOptions
    options: SelfRewardingOptions

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        return {"generator": StepSolver(dialect), "verifier": Grader(dialect, self.options.seed_noise)}

    def schedule(self) -> Schedule:
        before = tuple(Action("snapshot", policy, BEFORE) for policy in dict.fromkeys(self.policies.values()))
        seeded = Action("snapshot", self.policies["verifier"], SEED)
        turns = self.options.round_turns
        intro = (Phase("verifier", self.options.seed_turns, name=SEED), Phase("generator", turns, enter=(seeded, *before)))
        return Schedule(intro, (Phase("generator", turns, enter=before),))

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample answers and gradings of the model at the start of the round."""
        if ctx.phase == SEED:
            return sample_demonstrations(ctx, "verifier")
        answers = ctx.ask("generator", ctx.problems(), self.group_size, tag=BEFORE)
        if self.options.judge == "oracle":
            return answers
        judge = SEED if self.options.judge == "frozen" else BEFORE
        return Rollouts([*answers, *ctx.ask("verifier", answers, self.options.gradings, tag=judge)])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """-log sigmoid(beta * (log-ratio of the best answer - log-ratio of the worst)), by the own score."""
        if ctx.phase == SEED:
            return [make_imitation_batch(self, "verifier", rollouts)]
        answers = rollouts.of("generator")
        scores = self.score_answers(answers, rollouts.of("verifier"))
        sizes = [float(len(t.text)) for t in answers]
        chosen = select_best_worst(scores, sizes, answers.problem_ids, self.options.pair_rule, self.options.min_margin)
        candidates: list[Pair] = [
            (
                f"{scores[best]:.3g} points against {scores[worst]:.3g}",
                to_given_rollout(answers[best]),
                to_given_rollout(answers[worst]),
            )
            for best, worst in chosen
        ]
        pairs = record_pairs(ctx, candidates)
        notes = {"score": mean(scores) or 0.0, "no_pair": 1 - len(chosen) / max(1, len(set(answers.problem_ids)))}
        if not pairs:
            return []  # every answer of a problem scores alike: the judge has nothing more to say
        notes |= {"pairs": float(len(pairs)), "longer_wins": longer_win_rate(pairs)} | right_win_metrics(pairs)
        source = "steps" if self.options.judge == "oracle" else "verifier"
        return [make_pair_batch(self, "generator", pairs, sources={source: 1.0}, notes=notes)]

    def score_answers(self, answers: Rollouts, gradings: Rollouts) -> Floats:
        """Return one score per answer: the mean of the points that can be parsed, plus the length bonus; NaN where none can."""
        if self.options.judge == "oracle":
            own = np.array([float(award_points(t.grade.steps or ())) if t.grade else np.nan for t in answers])
        else:
            own = mean_points(answers, gradings)
        sizes, groups = np.array([len(t.text) for t in answers]), np.array(answers.problem_ids)
        long = [sizes[row] > np.median(sizes[groups == groups[row]]) for row in range(len(answers))]
        return own + self.options.length_bonus * np.array(long, dtype=float)

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Return the model's own mean score, from 0 to 1, and by how much it exceeds the accuracy."""
        answers = ctx.ask("generator", ctx.problems(min(ctx.batch_size, MEASURED)))
        points = mean_points(answers, ctx.ask("verifier", answers))
        known = ~np.isnan(points)
        own, right = mean(points[known] / MOST), mean(answers.correct[known])
        return {"verifier/own_score": own, "verifier/score_gap": None if own is None or right is None else own - right}


def mean_points(answers: Rollouts, gradings: Rollouts) -> Floats:
    """Return the mean points of each answer over the gradings that can be parsed; NaN where none can."""
    found: dict[str, list[float]] = {}
    for grading in gradings:
        if grading.verification.score is not None:
            found.setdefault(grading.target.id, []).append(MOST * grading.verification.score)
    return np.array([np.mean(found[t.id]) if t.id in found else np.nan for t in answers])


def longer_win_rate(pairs: list[Pair]) -> float:
    """Return the share of the pairs in which the winner is longer; ties count half."""
    signs = [np.sign(len(winner.text) - len(loser.text)) for _, winner, loser in pairs]
    return float(np.mean(signs) / 2 + 0.5)


def right_win_metrics(pairs: list[Pair]) -> dict[str, float]:
    """Return the share of right winners among the pairs of a right and a wrong answer; a metric only."""
    apart: list[tuple[Rollout, Rollout]] = [p[1:] for p in pairs if {p[1].correct, p[2].correct} == {0.0, 1.0}]
    return {"right_wins": float(np.mean([winner.correct for winner, _ in apart]))} if apart else {}
