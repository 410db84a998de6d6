"""V-STaR (arXiv 2402.06457): the generator learns from its own right solutions, a verifier from right against wrong ones.

In each round the generator samples solutions, their answers are checked, and it is trained from its start again on all right
ones so far. The wrong ones are used too: after the last round every right solution is preferred to the wrong ones of its
problem, by DPO from the same start, and the likelihood under that model selects among samples.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import term_weights
from milonga.errors import ConfigError
from milonga.evals.metrics import correlation, mean
from milonga.patterns.imitation import demonstrate_problems
from milonga.patterns.preference_pairs import Pair, make_pair_batch, recall_pairs, record_pairs, to_given_rollout
from milonga.preferences import Side
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, ImplicitScorer, Role, StepSolver
from milonga.roles.scorer import RankBy
from milonga.schedule import Action, Phase, Schedule
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, Capability, normalise_text
from milonga.types import Problem, Rollout, Rollouts, TrainBatch

MEASURED = 64
"""Held-out problems, at most, on which the recipe measures its verifier for itself."""


class VStarOptions(RecipeOptions):
    rounds: int = Field(3, ge=1)
    """Rounds of sampling and learning before the verifier's first turn."""
    collect: int = Field(1, ge=1)
    """Turns of a round in which the generator samples `batch.rollouts` solutions of each problem."""
    train: int = Field(4, ge=1)
    """Turns of a round in which the generator learns from the right ones of all rounds."""
    rows: int = Field(256, ge=2)
    """Solutions in a turn of the generator, and pairs in one of the verifier, drawn from all that were kept."""
    restart: Literal["base", "continue"] = "base"
    """Whether the generator of a round starts from the base model, or from that of the round before: another method."""
    demonstrations: bool = True
    """Whether the task's own solutions are among the right ones."""
    max_pairs: int = Field(32, ge=1)
    """Pairs of one problem, at most: few problems would have most of them otherwise."""
    rank: RankBy = "loglik"
    """What the verifier orders solutions by."""


class VStar(Recipe):
    """Right own solutions for the generator, right against wrong ones for a DPO verifier (V-STaR, arXiv 2402.06457)."""

    name = "v_star"
    granularity = "sequence"
    truth = "answers"
    agents = {"generator": StepSolver, "verifier": ImplicitScorer}
    lead = "verifier"
    overlap = Refused("it learns from pairs and solutions that are kept from turn to turn")
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused(
            "the verifier starts from where the generator began and never feeds back: they are two sets of weights"
        ),
    }
    learns = {"generator": ("cross_entropy",), "verifier": ("dpo",)}
    measures = ("verifier/as_sampler", "verifier/rank_by_length")
    defaults = {
        "policies": {
            "generator": {"objective": {"preset": "cross_entropy"}},
            "verifier": {"objective": {"preset": "dpo"}},
        },
        "batch": {"rollouts": 16},
    }
    published = {
        "binding": "lora",
        "batch": {"rollouts": 16},
        "options": {"rounds": 3, "restart": "base", "demonstrations": True, "max_pairs": 128, "rank": "loglik"},
    }
    Options = VStarOptions
    options: VStarOptions

    @property
    def needs(self) -> Set[Capability]:
        return {ANSWERS, DEMONSTRATIONS} if self.options.demonstrations else {ANSWERS}

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        judge = ImplicitScorer(dialect, self.objectives["verifier"].loss.beta, self.options.rank)
        return {"generator": StepSolver(dialect), "verifier": judge}

    def schedule(self) -> Schedule:
        """Rounds of the generator, then the verifier: it never feeds back, and is trained once, when all its pairs are
        there."""
        anew = (Action("reset", self.policies["generator"]),) if self.options.restart == "base" else ()
        one = (
            Phase("generator", self.options.collect, name="collect"),
            Phase("generator", self.options.train, enter=anew, name="train"),
        )
        return Schedule(one * self.options.rounds, (Phase("verifier", 1),))

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample solutions in the collecting phase; the other turns learn from what was kept."""
        if not ctx.engine.has_same_vocabulary(self.policies["generator"], self.policies["verifier"]):
            raise ConfigError("'v_star' compares the generator's tokens: generator and verifier need models of one vocabulary")
        collecting = ctx.phase == "collect"
        return ctx.ask("generator", ctx.problems(), self.group_size) if collecting else Rollouts([])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        if ctx.phase == "collect":
            self.collect(ctx, rollouts)
            return []
        return self.credit_generator(ctx) if ctx.learner == "generator" else self.credit_verifier(ctx)

    def collect(self, ctx: Context, rollouts: Rollouts) -> None:
        """Store distinct solutions with their labels, and the preference pairs of each problem; nothing is learned yet."""
        problems = list({t.problem.id: t.problem for t in rollouts}.values())
        demonstrations = demonstrate_problems(ctx, "generator", problems) if self.options.demonstrations else Rollouts([])
        # A truncated solution has no end, and would lose by that alone.
        known = [t for t in (*demonstrations, *rollouts) if not np.isnan(t.correct) and t.finish != "length"]
        pool = self.state.setdefault("solutions", [])
        for problem in problems:
            mine = drop_duplicates([t for t in known if t.problem.id == problem.id])
            pool += [to_json(t) for t in mine]
            right, wrong = ([to_given_rollout(t) for t in mine if t.correct == label] for label in (1.0, 0.0))
            pairs: list[Pair] = [("right against wrong", good, bad) for good in right for bad in wrong]
            rng = ctx.rng("pairs", problem.id)
            record_pairs(ctx, rng.sample(pairs, min(len(pairs), self.options.max_pairs)))

    def credit_generator(self, ctx: Context) -> list[TrainBatch]:
        """Make a cross-entropy train batch of the right solutions of all rounds; the wrong ones weigh 0."""
        pool = self.state["solutions"]
        rng = ctx.rng("solutions")
        drawn = [pool[i] for i in sorted(rng.sample(range(len(pool)), min(len(pool), self.options.rows)))]
        rows = Rollouts(from_json(one, number, self.policies["generator"]) for number, one in enumerate(drawn))
        right = [float(one["right"]) for one in drawn]
        sizes = [float(t.length) for t in rows] if self.objectives["generator"].loss.aggregate == "token_mean" else None
        weights = term_weights(["right"] * len(rows), {"right": 1.0}, right, sizes)
        unsound = mean([one["sound"] is False for one in pool if one["right"]])
        notes = {"solutions": float(len(pool)), "right": sum(right) / max(1, len(right)), "unsound": unsound or 0.0}
        sources = {"answers": 1.0}
        return [self.train_batch("generator", rows, weights=weights, sources=sources, notes=notes)] if any(right) else []

    def credit_verifier(self, ctx: Context) -> list[TrainBatch]:
        """-log sigmoid(beta * (log-ratio of the right solution - log-ratio of the wrong one)), from the start of both."""
        kept = ctx.preferences.kept
        pairs = recall_pairs(ctx, "verifier", kept, self.options.rows)
        if not pairs:
            return []
        notes = {"pairs": float(len(kept)), "problems": float(len({one.problem for one in kept}))}
        return [make_pair_batch(self, "verifier", pairs, sources={"answers": 1.0}, notes=notes)]

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure the verifier as a sampler, which is not its purpose; and the correlation of its ranks with length."""
        problems = ctx.problems(min(ctx.batch_size, MEASURED))
        swapped = replace(ctx.run, policies={**ctx.run.policies, "generator": self.policies["verifier"]})
        own = Context(swapped, f"{ctx.turn}/sampler", "", split=ctx.split).ask("generator", problems)
        judged = ctx.judge("verifier", ctx.ask("generator", problems, 2))
        ranks = [(float(t.target.length), t.verification.rank) for t in judged]
        return {"verifier/as_sampler": mean(own.correct), "verifier/rank_by_length": correlation(ranks)}


def drop_duplicates(solutions: list[Rollout]) -> list[Rollout]:
    """Keep each normalised text once: what is written again and again would flood both sets."""
    found: dict[str, Rollout] = {}
    for solution in solutions:
        found.setdefault(normalise_text(solution.text), solution)
    return list(found.values())


def to_json(solution: Rollout) -> dict[str, Any]:
    problem, grade = solution.problem, solution.grade
    label = {"right": solution.correct == 1.0, "sound": None if grade is None else grade.is_sound}
    return {"problem": problem.id, "question": problem.text, **vars(Side.from_rollout(solution)), **label}


def from_json(kept: dict[str, Any], number: int, policy: str) -> Rollout:
    side = Side(kept["text"], tuple(kept["ids"]), kept["start"])
    return side.to_rollout(f"kept/{number}", "generator", Problem(kept["problem"], kept["question"], ""), policy)
