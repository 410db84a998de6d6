"""APO (arXiv 2311.08045): a reward model is retrained against the policy's own answers, and the policy trained on its scores.

In each round the reward model starts anew and learns from pairs: what people preferred, and a gold answer against the policy's
own. Then the policy learns the best of its samples by the new reward model. So the reward model never goes stale.

Pairs come from a file of preferences, whose chosen replies are the gold ones; a file of replies, or of worked solutions, has
gold answers alone. On tasks with exact steps people are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import mark_best_rows, term_weights
from milonga.evals.metrics import mean, order_accuracy
from milonga.patterns.preference_pairs import (
    Pair,
    Weak,
    align_pairs,
    assign_learner,
    is_cut_prose,
    make_human_pair,
    write_solution,
)
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role, StepScorer, StepSolver
from milonga.schedule import Action, Phase, Schedule
from milonga.tasks.base import DEMONSTRATIONS, PREFERENCES, Capability
from milonga.types import Problem, Rollout, Rollouts, TrainBatch

REASONS = {"human": "people preferred it", "own": "gold against the policy's own answer"}
MEASURED = 64
"""Held-out problems, at most, of which the recipe measures human pairs and errors for itself."""


class ApoOptions(RecipeOptions):
    rm: Literal["apo", "human", "fixed"] = "apo"
    """apo: each round from human pairs and the policy's own answers. human: each round from human pairs alone. fixed: once,
    from human pairs, before the first round."""
    rm_turns: int = Field(8, ge=1)
    """Turns of the reward model in a round."""
    llm_turns: int = Field(2, ge=1)
    """Turns of the policy in a round. N turns are N / llm_turns rounds. The paper has two or three rounds, as far as known."""
    rm_restart: Literal["base", "continue"] = "base"
    """Whether the reward model of a round starts from the base model, or from that of the round before."""
    human_weight: float = Field(1.0, ge=0)
    """c_h: weight of the term of human pairs."""
    own_weight: float = Field(0.1, ge=0)
    """c_a: weight of the term of gold against own answers. With a large one the reward model forgets the human pairs."""
    flip: float = Field(0.0, ge=0, le=0.5)
    """Share of the human pairs that prefer the wrong solution."""
    weak: Weak = "first"
    """Where the rejected solutions of the human pairs go wrong: in the first step only, or anywhere. A reward model trained on
    these pairs does not know errors that they never show."""
    drop_correct: bool = True
    """True: correct answers of the policy are left out of the pairs. False: they lose against the gold answer all the same."""
    gold_source: Literal["teacher", "human_chosen"] = "teacher"
    """What own answers must lose against: a reference solution, or what people preferred. In a file of preferences these are
    the same."""


class Apo(Recipe):
    """Reward model and policy in rounds: gold answers must beat the policy's own (APO, arXiv 2311.08045)."""

    name = "apo"
    granularity = "sequence"
    truth = "preferences and gold answers"
    agents = {"generator": StepSolver, "verifier": StepScorer}
    lead = "generator"
    overlap = Refused("it learns from pairs, in which older samples cannot be corrected")
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused("the reward model has a value head and restarts each round; the policy does neither"),
    }
    learns = {"generator": ("cross_entropy", "dpo"), "verifier": ("bradley_terry",)}
    measures = ("verifier/human_accuracy", "verifier/length_alone", "generator/late_errors")
    defaults = {
        "policies": {
            "generator": {"objective": {"preset": "cross_entropy"}},
            "verifier": {"objective": {"preset": "bradley_terry"}, "lr": 1e-5},
        },
        "batch": {"rollouts": 4},
    }
    embedded_defaults = {"policies": {"verifier": {"lr": 3e-4}}, "options": {"flip": 0.15}}
    published = {
        "batch": {"problems": 64, "rollouts": 4},
        "sampling": {"max_tokens": 512},
        "policies": {"verifier": {"lr": 1e-6}},
        "options": {"human_weight": 1.0, "own_weight": 0.1, "drop_correct": False, "rm_restart": "base"},
    }
    Options = ApoOptions
    options: ApoOptions

    @property
    def needs(self) -> Set[Capability]:
        """Gold answers in any case; pairs of people where nothing else trains the reward model."""
        return {DEMONSTRATIONS} if self.options.rm == "apo" else {DEMONSTRATIONS, PREFERENCES}

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        return {"generator": StepSolver(dialect), "verifier": StepScorer(dialect, "last")}

    def schedule(self) -> Schedule:
        options = self.options
        anew = (Action("reset", self.policies["verifier"]),) if options.rm_restart == "base" else ()
        model = Phase("verifier", options.rm_turns, enter=anew)
        policy = Phase("generator", options.llm_turns)
        return Schedule((model,), (policy,)) if options.rm == "fixed" else Schedule((), (model, policy))

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample solutions, always with the current policy: its answers are what the reward model must tell from gold ones."""
        return ctx.ask("generator", self.draw_problems(ctx), self.group_size)

    def draw_problems(self, ctx: Context) -> list[Problem]:
        """Draw the learner's problems. Reward model and policy learn on different problems, split by a hash of the text."""
        found: list[Problem] = []
        for _ in range(64):
            missing = ctx.batch_size - len(found)
            found += [p for p in ctx.problems(missing) if assign_learner(p.text) == ctx.learner] if missing else []
        return found

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        return [self.credit_policy(ctx, rollouts) if ctx.learner == "generator" else self.credit_reward_model(ctx, rollouts)]

    def credit_reward_model(self, ctx: Context, own: Rollouts) -> TrainBatch:
        """Make the reward model's train batch.

        The loss is c_h * mean over human pairs + c_a * mean over own pairs of -log sigmoid(r(winner) - r(loser)).
        """
        human = {t.problem.id: make_human_pair(ctx, t.problem, self.options.weak, self.options.flip) for t in own}
        pairs: list[Pair] = [("human", *pair) for pair in human.values() if pair is not None]
        losing = [t for t in own if t.correct != 1.0] if self.options.drop_correct else list(own)
        if self.options.rm == "apo":
            pairs += [
                ("own", gold, t)
                for t in losing
                if not is_cut_prose(ctx, t)
                and (gold := self.make_gold_solution(ctx, t.problem, human[t.problem.id])) is not None
            ]
        sides = [side for _, winner, loser in pairs for side in (winner, loser)]
        rows, kept = align_pairs(ctx.write("verifier", sides, [t.text for t in sides]), pairs)
        for number, (kind, _, _) in enumerate(kept):
            ctx.add_preference(rows[2 * number], rows[2 * number + 1], REASONS[kind])
        kinds = [kind for kind, _, _ in kept for _ in range(2)]
        factors = {"human": self.options.human_weight, "own": self.options.own_weight}
        weights = term_weights(kinds, factors)
        labels = [1.0, 0.0] * len(kept)
        units = [number for number in range(len(kept)) for _ in range(2)]
        terms = {name: factors[kind] * (kind in kinds) for name, kind in (("answers", "human"), ("demonstrations", "own"))}
        sources = {name: factor / (sum(terms.values()) or 1.0) for name, factor in terms.items()}
        notes = {"dropped_correct": 1 - len(losing) / max(1, len(own)), "own_pairs": kinds.count("own") / 2}
        return self.train_batch("verifier", rows, labels=labels, units=units, weights=weights, sources=sources, notes=notes)

    def make_gold_solution(self, ctx: Context, problem: Problem, human: tuple[Rollout, Rollout] | None) -> Rollout | None:
        if self.options.gold_source == "human_chosen":
            return human[0] if human is not None else None
        return write_solution(ctx, problem, set(), "gold")

    def credit_policy(self, ctx: Context, solutions: Rollouts) -> TrainBatch:
        """Make the policy's train batch: imitate the best of each problem's samples by the reward model (best of n), or prefer
        it to the worst (dpo)."""
        judged = ctx.judge("verifier", solutions)
        ranks = {t.target.id: t.verification.rank for t in judged}
        scores = np.array([ranks.get(t.id, np.nan) for t in solutions])
        best, worst = mark_best_rows(scores, solutions.problem_ids), mark_best_rows(-scores, solutions.problem_ids)
        figures = {"chosen_accuracy": mean(solutions.correct[best]), "score": mean(scores)}
        notes = {name: value for name, value in figures.items() if value is not None}
        sources = {"verifier": 1.0}
        if self.objectives["generator"].loss.kind == "cross_entropy":
            sizes = [float(t.length) for t in solutions]
            weights = term_weights(["best"] * len(solutions), {"best": 1.0}, [float(b) for b in best], sizes)
            return self.train_batch("generator", solutions, weights=weights, sources=sources, notes=notes)
        apart = np.flatnonzero(best ^ worst)  # two neighbours of each problem, unless all its samples score alike
        labels, units = [float(best[row]) for row in apart], [number // 2 for number in range(len(apart))]
        rows = Rollouts(solutions[int(row)] for row in apart)
        for winner, loser in _pair_best_and_worst(rows, labels):
            ctx.add_preference(winner, loser, "best against worst by the reward model")
        return self.train_batch("generator", rows, labels=labels, units=units, sources=sources, notes=notes)

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure the reward model's accuracy on human pairs, that of length alone on gold against own answers, and the share
        of wrong solutions whose first error comes after the first step."""
        problems = ctx.problems(min(ctx.batch_size, MEASURED))
        human = [pair for p in problems if (pair := make_human_pair(ctx, p, self.options.weak)) is not None]
        sides = Rollouts(side for pair in human for side in pair)
        scores = {t.target.id: t.verification.rank for t in ctx.judge("verifier", sides)}
        found = [
            order_accuracy([scores[t.id] for t in pair], [1.0, 0.0]) for pair in human if all(t.id in scores for t in pair)
        ]
        own = ctx.ask("generator", problems)
        lengths = [float(-len(t.text)) for t in (*own, *(good for good, _ in human))]
        first_errors = [t.grade.first_error for t in own if t.correct == 0.0 and t.grade is not None]
        return {
            "verifier/human_accuracy": mean([value for value in found if value is not None]),
            "verifier/length_alone": order_accuracy(lengths, [0.0] * len(own) + [1.0] * len(human)),
            "generator/late_errors": mean([first > 0 for first in first_errors if first is not None]),
        }


def _pair_best_and_worst(rows: Rollouts, labels: Sequence[float]) -> list[tuple[Rollout, Rollout]]:
    """Return the pairs of neighbouring rows, the one with the higher label first."""
    pairs = zip(rows[::2], rows[1::2], labels[::2], strict=True)
    return [(first, second) if label else (second, first) for first, second, label in pairs]
