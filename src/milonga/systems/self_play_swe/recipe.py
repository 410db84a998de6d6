"""Self-play SWE-RL, SSR (arXiv 2512.18552): one model injects bugs into repositories, hides them from the tests, and repairs
them.

An injector hands in a change of code and a weakening of tests. Consistency checks decide what counts as a bug. A solver sees
the broken code and the reverse of the weakening, and is rewarded by the original tests; the injector by the solve rate.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import outcome_advantages
from milonga.evals.metrics import mean
from milonga.patterns.outcome import outcome_credit
from milonga.recipe import ALLOWED, Recipe, RecipeOptions
from milonga.schedule import Schedule, always
from milonga.systems.self_play_swe.credit import INVALID, injector_reward
from milonga.systems.self_play_swe.injection import (
    Found,
    draw_pool_bugs,
    judge_injections,
    make_second_order_bugs,
    measure_overfitting,
    sample_injections,
)
from milonga.systems.self_play_swe.roles import Injector, Repairer
from milonga.tasks.bugs_checks import CHECKS, Requirements
from milonga.types import Floats, Problem, Rollouts, TrainBatch

Kind = Literal["removal", "history", "direct"]
ENDS = ("valid", "unreadable", *CHECKS, "known", "held_out", "unknown")
"""The outcomes of an artifact; the share of each is a metric of every turn."""


class SelfPlaySweOptions(RecipeOptions):
    learn: Literal["joint", "repair", "inject"] = "joint"
    """repair: the injector is frozen, and the solver learns from a fixed pool of its early bugs. inject: the injector learns
    alone, which the paper found to harm repair."""
    reward: Literal["solve_rate", "consistency"] = "solve_rate"
    """consistency: +1 for a bug that passes the checks, whatever its solve rate."""
    alpha: float = Field(0.8, ge=0, lt=1)
    """The cost of a bug that all or none of the attempts repair; see `injector_reward`."""
    injections: int = Field(8, ge=2)
    """Artifacts for each repository; `batch.rollouts` is the number of attempts at each bug."""
    bugs: int = Field(16, ge=1)
    """Most bugs that are attempted in a turn."""
    prompts: list[Kind] = Field(default=["removal", "history"], min_length=1)
    """What the injector may be asked for; one is drawn for each repository."""
    min_passing_tests: int = Field(4, ge=0)
    """More oracle tests than this must pass on the original; the paper gives none of these three numbers."""
    min_changed_files: int = Field(1, ge=1)
    """Least files that a bug changes."""
    min_failing_tests: int = Field(1, ge=1)
    """Least tests that it breaks."""
    order2_prob: float = Field(0.2, ge=0, le=1)
    """How often a failed patch of a bug becomes a bug of the second order; the paper does not say."""
    order2_to_injector: bool = False
    """Whether attempts at those count for the injector's reward."""
    gather: int = Field(4, ge=1)
    """With learn=repair: turns in which the pool is filled."""
    keep: int = Field(512, ge=1)
    """Most bugs that are remembered, to know them again and for the pool."""
    measured: int = Field(32, ge=1)
    """Held-out repositories on which the injector is measured."""


class SelfPlaySwe(Recipe):
    """One model injects bugs and repairs them, rewarded by checks and tests alone (SSR, arXiv 2512.18552)."""

    name = "self_play_swe"
    granularity = "sequence"
    truth = "tests"
    agents = {"injector": Injector, "generator": Repairer}
    pays_format = ("generator",)
    inference_only_if = {"injector": {"learn": "repair"}}
    lead = "generator"
    learns_along = ("injector",)
    tasks = ("bugs",)
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    Options = SelfPlaySweOptions
    options: SelfPlaySweOptions
    defaults = {"task": {"name": "bugs"}, "binding": "shared", "batch": {"problems": 4, "rollouts": 8}}
    published = {"turns": 150, "batch": {"rollouts": 8}, "policies": {"generator": {"lr": 3e-6, "warmup": 30}}}
    measures = (
        *(f"injector/{name}" for name in ("valid", "solved", "too_easy", "too_hard", "changed_files")),
        "generator/overfit",
    )

    def schedule(self) -> Schedule:
        return always("generator")

    @property
    def requirements(self) -> Requirements:
        """The least that the checks require of an artifact."""
        o = self.options
        return Requirements(o.min_passing_tests, o.min_changed_files, o.min_failing_tests)

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample artifacts, attempts at those that pass the checks, and attempts at second-order bugs made by failed
        patches."""
        pooled = self.options.learn == "repair" and len(self.state.setdefault("gathered", [])) >= self.options.gather
        injected = Rollouts([]) if pooled else sample_injections(ctx, self.options.prompts, self.options.injections)
        found = judge_injections(ctx, injected, self.requirements, self.state.get("seen", []))
        self.state["ends"] = {id: [one.end, one.first] for id, one in found.items()}
        bugs = self.draw_from_pool(ctx) if pooled else self.select_bugs(found)
        if self.options.learn == "repair" and not pooled:
            self.state["gathered"].append([one.entry for one in found.values() if one.problem is not None])
        self.state["seen"] = [*self.state.get("seen", []), *(one.key for one in found.values() if one.problem is not None)]
        self.state["seen"] = self.state["seen"][-self.options.keep :]
        attempts = ctx.ask("generator", bugs, self.group_size) if bugs else Rollouts([])
        again = make_second_order_bugs(ctx, attempts, self.options.order2_prob)
        more = ctx.ask("generator", again, self.group_size) if again else Rollouts([])
        return Rollouts([*injected, *attempts, *more])

    def select_bugs(self, found: dict[str, Found]) -> list[Problem]:
        """Select the valid bugs of this turn, at most `bugs`."""
        return [one.problem for one in found.values() if one.problem is not None][: self.options.bugs]

    def draw_from_pool(self, ctx: Context) -> list[Problem]:
        """Draw bugs of the early turns, as many as a turn attempts."""
        pool = [entry for turn in self.state["gathered"] for entry in turn][-self.options.keep :]
        return draw_pool_bugs(ctx, pool, self.options.bugs, self.requirements)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make one train batch for both agents where they share a policy: it never learns to break without learning to
        repair."""
        injected, attempts = (rollouts.of(agent) for agent in ("injector", "generator"))  # type: ignore[misc]
        objective = self.objectives["generator"]
        notes = self.compute_metrics(injected, attempts)
        learn = self.options.learn
        broken = self.compute_injector_advantages(ctx, injected, attempts) if len(injected) and learn != "repair" else None
        mended = outcome_credit(ctx, attempts, objective) if len(attempts) and learn != "inject" else None
        injector_sources = {"generator": 0.5, "answers": 0.5} if self.options.reward == "solve_rate" else {"answers": 1.0}
        if broken is not None and mended is not None and self.policies["injector"] == self.policies["generator"]:
            share = len(injected) / len(rollouts)
            sources = {"generator": share * injector_sources.get("generator", 0.0)}
            sources = {"answers": 1 - sources["generator"]} | ({} if not sources["generator"] else sources)
            rows, credit = Rollouts([*injected, *attempts]), [*broken, *mended]
            return [self.train_batch("generator", rows, advantages=credit, sources=sources, notes=notes)]
        train_batches = []
        alone = learn == "inject" or self.policies["injector"] != self.policies["generator"]
        if broken is not None and alone:
            train_batches.append(
                self.train_batch("injector", injected, advantages=broken, sources=injector_sources, notes=notes)
            )
        if mended is not None:
            train_batches.append(
                self.train_batch("generator", attempts, advantages=mended, sources={"answers": 1.0}, notes=notes)
            )
        return train_batches

    def compute_injector_advantages(self, ctx: Context, injected: Rollouts, attempts: Rollouts) -> list[Floats]:
        """Return the injector's token advantages; the baseline is the other artifacts for the same repository and prompt."""
        rewards = np.array([self.reward_artifact(rollout.id, attempts) for rollout in injected])
        estimator = self.objectives["injector"].estimator
        return outcome_advantages(
            rewards, injected, injected.problem_ids, estimator, ctx.compute_kl_penalties(injected, estimator)
        )

    def reward_artifact(self, id: str, attempts: Rollouts) -> float:
        """Return r_inject of an artifact; NaN where a bug was not attempted, or its outcome is unknown."""
        end, first = self.state["ends"][id]
        if end in ("unknown", "held_out"):
            return float("nan")
        if end != "valid":
            return -self.options.alpha if end == "known" else INVALID
        if self.options.reward == "consistency":
            return 1.0
        solved = mean([t.correct for t in self.select_attempts(first, attempts)])
        return float("nan") if solved is None else injector_reward(solved, self.options.alpha)

    def select_attempts(self, source: str, attempts: Rollouts) -> Rollouts:
        """Select the attempts at a bug that count for its injector."""
        second = self.options.order2_to_injector
        return attempts.select(lambda t: t.problem.source == source and (second or t.problem.data["order"] == 1))

    def compute_metrics(self, injected: Rollouts, attempts: Rollouts) -> dict[str, float]:
        """Return metrics: where artifacts fail, how hard the bugs are, and how many tokens each agent learns from."""
        ends = Counter(self.state["ends"][rollout.id][0] for rollout in injected)
        shares = {f"check/{end}": ends[end] / len(injected) for end in ENDS if len(injected)}
        tokens = {
            f"tokens/{agent}": float(sum(t.length for t in rows))
            for agent, rows in (("injector", injected), ("generator", attempts))
        }
        second = [t.correct for t in attempts if t.problem.data["order"] == 2]
        return shares | tokens | {"solved": mean(attempts.correct) or 0.0, "second_order": len(second) / max(1, len(attempts))}

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure bugs injected into held-out repositories and the attempts at them, and whether repairs of the task's own bugs
        hold where nothing is tested."""
        asked = sample_injections(ctx, self.options.prompts, 1, self.options.measured)
        found = judge_injections(ctx, asked, self.requirements, [])
        bugs = [one.problem for one in found.values() if one.problem is not None]
        attempts = ctx.ask("generator", bugs, self.group_size) if bugs else Rollouts([])
        rates = [mean([t.correct for t in attempts if t.problem.id == problem.id]) for problem in bugs]
        known = [rate for rate in rates if rate is not None]
        files = [float(len(problem.data["bug"].artifact.bug)) for problem in bugs]
        return {
            "injector/valid": mean([float(one.end == "valid") for one in found.values()]),
            "injector/solved": mean(known),
            "injector/too_easy": mean([float(rate == 1) for rate in known]),
            "injector/too_hard": mean([float(rate == 0) for rate in known]),
            "injector/changed_files": mean(files),
            "generator/overfit": measure_overfitting(ctx, self.options.measured),
        }
