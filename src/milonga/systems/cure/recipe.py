"""CURE (arXiv 2506.03136): one model writes programs and unit tests for the same task, and both learn from running them.

Hidden tests label the programs. The labelled programs reward the generated tests by how well they tell right code from wrong.
A generated test never rewards a program, so the two roles cannot collude. Afterwards the tests can rank programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import outcome_advantages
from milonga.evals.metrics import mean
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Coder
from milonga.schedule import Action, Phase, Schedule
from milonga.systems.cure.credit import UnitTestReward, estimate_separation, passed_by_all, shape_by_length
from milonga.systems.cure.roles import Tester
from milonga.systems.cure.unit_tests import Bench, label_noise, run_benches, sample_tests, score_best_program
from milonga.types import Floats, Rollouts, TrainBatch

PHASE = "phase"
"""The tag of the snapshot of a policy at the start of the turn."""
FIGURES = ("validity", "p01", "p00", "mu")


class CureOptions(RecipeOptions):
    tests: int = Field(16, ge=2)
    """m: tests that are written for each task; `batch.rollouts` is n, the programs."""
    reward: Literal["mu", "validity"] = "mu"
    """mu: reward a test for being valid, minus the share of wrong programs that pass it. validity: for being valid only."""
    all_correct_policy: Literal["zero", "sign"] = "zero"
    """Where every program is right: tests earn nothing, as the paper's formula says, or +1 and -1, as released."""
    format_fail_value: float = -0.5
    """Reward of a test that cannot be parsed; the release gives 0, as to a valid test that catches no wrong program."""
    train_tester: bool = True
    """Off: the arm in which the coder alone learns."""
    public: float = Field(1.0, ge=0, le=1)
    """How often the tester's prompt has one public example."""
    post_stage_at: int | None = Field(None, ge=0)
    """From this turn on: the hard reward, and no public example. When the authors switched is not said."""
    length_transform: bool = False
    """For models that reason at length: short correct tests earn most."""
    length_low: float = Field(0.0, ge=0)
    """Lower bound of the middle length of `length_transform`; the release has 1000."""
    length_high: float = Field(8000.0, gt=0)
    """Upper bound of the middle length."""
    measured: int = Field(32, ge=1)
    """Held-out tasks on which tests are compared with the reference program."""


class Cure(Recipe):
    """Coder and unit tester in one model, both rewarded by execution (CURE, arXiv 2506.03136)."""

    name = "cure"
    granularity = "sequence"
    truth = "hidden tests"
    agents = {"generator": Coder, "tester": Tester}
    inference_only_if = {"tester": {"train_tester": False}}
    lead = "generator"
    learns_along = ("tester",)
    overlap = Refused("each turn begins with a snapshot of what was just learned")
    tasks = ("code",)
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    Options = CureOptions
    options: CureOptions
    defaults = {
        "task": {"name": "code"},
        "binding": "shared",
        "batch": {"rollouts": 16},
        "policies": {"generator": {"objective": {"preset": "grpo", "advantage": "zscore_population", "kl_coef": 0.01}}},
    }
    published = {
        "turns": 350,
        "batch": {"problems": 100},
        "sampling": {"max_tokens": 8192},
        "policies": {"generator": {"lr": 1e-6, "warmup": 0}},
        "options": {"format_fail_value": 0.0},
    }
    measures = (*(f"tester/{name}" for name in FIGURES), "tester/readable", "best_of_n", "pass_1", "label_noise")

    def schedule(self) -> Schedule:
        """Snapshot policies with `kl_from=phase` as every turn starts: the release's KL to such a snapshot has no gradient."""
        asked = {self.policies[agent] for agent in self.agents if self.objectives[agent].loss.kl_from == PHASE}
        return Schedule(cycle=(Phase("generator", 1, enter=tuple(Action("snapshot", name, PHASE) for name in sorted(asked))),))

    def is_post_stage(self, ctx: Context) -> bool:
        """Return whether the post stage has begun (`post_stage_at`)."""
        return self.options.post_stage_at is not None and isinstance(ctx.turn, int) and ctx.turn > self.options.post_stage_at

    def rollout(self, ctx: Context) -> Rollouts:
        problems = ctx.problems()
        programs = ctx.ask("generator", problems, self.group_size)
        share = 0.0 if self.is_post_stage(ctx) else self.options.public
        return Rollouts([*programs, *sample_tests(ctx, problems, self.options.tests, share)])

    def credit(self, ctx: Context, rollouts: Rollouts) -> Iterator[TrainBatch]:
        """Yield the coder's train batch, then the tester's. Importance ratios are to the policy that sampled, before both."""
        found = run_benches(ctx, rollouts)
        programs = rollouts.of("generator")
        passed = {rollout.id: share for bench in found for rollout, share in zip(bench.programs, bench.shares, strict=True)}
        rewards = np.array([passed[rollout.id] for rollout in programs])
        yield self.credit_agent(ctx, "generator", programs, rewards, {"answers": 1.0}, {"passed": mean(rewards) or 0.0})
        if self.options.train_tester:
            yield from self.credit_tester(ctx, found)

    def credit_tester(self, ctx: Context, found: list[Bench]) -> Iterator[TrainBatch]:
        """Yield the tester's train batch; none where no problem gives its tests a reward."""
        o = self.options
        by = UnitTestReward(o.reward, self.is_post_stage(ctx), o.all_correct_policy, o.format_fail_value)
        rewards = [by.rewards(*bench.labelled, bench.readable_mask) for bench in found]
        rewarded = [(bench, reward) for bench, reward in zip(found, rewards, strict=True) if reward is not None]
        if not rewarded:
            return
        tests = Rollouts(test for bench, _ in rewarded for test in bench.tests)
        notes = self.track_separation([bench for bench, _ in rewarded]) | {"unlabelled": 1 - len(rewarded) / len(found)}
        values = np.concatenate([self.shape_by_length(bench, reward) for bench, reward in rewarded])
        yield self.credit_agent(ctx, "tester", tests, values, {"generator": 0.5, "answers": 0.5}, notes)

    def shape_by_length(self, bench: Bench, rewards: Floats) -> Floats:
        """Apply the length transform to a problem's test rewards, if the options ask for it."""
        if not self.options.length_transform:
            return rewards
        lengths = np.array([float(test.length) for test in bench.tests])
        return shape_by_length(rewards, lengths, self.options.length_low, self.options.length_high)

    def credit_agent(
        self, ctx: Context, agent: str, rows: Rollouts, rewards: Floats, sources: dict[str, float], notes: dict[str, float]
    ) -> TrainBatch:
        """Make a role's train batch. The baseline is over its rollouts of a problem; equal rewards give advantage 0."""
        estimator = self.objectives[agent].estimator
        advantages = outcome_advantages(rewards, rows, rows.problem_ids, estimator, ctx.compute_kl_penalties(rows, estimator))
        return self.train_batch(agent, rows, advantages=advantages, sources=sources, notes=notes)

    def track_separation(self, found: list[Bench]) -> dict[str, float]:
        """Return p_u, p01, p00 and mu on the generated programs, and an alarm where validity rises while mu falls."""
        labelled = [bench.labelled for bench in found]
        known = estimate_separation([(passes, right, passed_by_all(passes[right])) for passes, right in labelled])
        if known is None:
            return {}
        before = self.state.get("separation", [known.valid, known.mu])
        self.state["separation"] = [known.valid, known.mu]
        alarm = known.valid > before[0] and known.mu < before[1]
        return known.to_metrics() | {"trivial_tests": float(alarm)}

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure tests against the reference program, and how often the program that passes most of them is right."""
        problems = ctx.problems(self.options.measured)
        programs = ctx.ask("generator", problems, self.group_size)
        tests = sample_tests(ctx, problems, self.options.tests, self.options.public)
        found = run_benches(ctx, Rollouts([*programs, *tests]), reference=True)
        known = estimate_separation([(*bench.labelled, bench.valid) for bench in found if bench.valid is not None])
        figures = dict.fromkeys(FIGURES) if known is None else known.to_metrics()
        return {f"tester/{name}": figures[name] for name in FIGURES} | {
            "tester/readable": mean([float(test.parsed.is_valid) for test in tests]),
            "best_of_n": mean([score_best_program(bench) for bench in found]),
            "pass_1": mean([float(right) for bench in found for right in bench.labelled[1]]),
            "label_noise": label_noise(ctx, found),
        }
