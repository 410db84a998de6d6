"""SCoRe (arXiv 2409.12917): one model learns to correct its own first answer, by two stages of two-turn RL.

Stage I rewards the second turn alone and keeps the first close to the start by a KL penalty. Stage II rewards both, and the
second also for its progress over the first. No reward flows from the second turn to the first: it would reward a wrong first
answer.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import kl_penalties, progress_reward, turn_advantages
from milonga.evals.metrics import mean
from milonga.patterns.conversation import (
    CHANGES,
    compute_change_metrics,
    compute_turn_costs,
    filter_comparable,
    write_teacher_texts,
)
from milonga.patterns.imitation import make_imitation_batch, sample_demonstrations
from milonga.patterns.outcome import add_format_rewards
from milonga.recipe import ALLOWED, Recipe, RecipeOptions
from milonga.roles import Dialect, Role
from milonga.schedule import Action, Phase, Schedule
from milonga.systems.score.roles import Corrector
from milonga.tasks.base import DEMONSTRATIONS, Capability
from milonga.types import Floats, Rollouts, TrainBatch

FORMAT, STAGE1, STAGE2 = "format", "stage1", "stage2"
BASE = "base"
"""The weights after the format was learned: the KL reference."""


class ScoreOptions(RecipeOptions):
    formats: int = Field(0, ge=0)
    """Turns of imitating a noisy teacher in both turns, before anything is rewarded; 0 for models that can talk."""
    format_lines: int = Field(64, ge=2)
    """Examples in each of them: half are first solutions, half second ones behind the model's own first."""
    noise: float = Field(0.0, ge=0, le=1)
    """Share of the teacher's solutions with a wrong step."""
    stage1: int = Field(20, ge=0)
    """Turns of stage I; what is left of the run is stage II."""
    alpha: float = Field(10.0, ge=0)
    """Weight of the progress from the first turn to the second in stage II."""
    beta1: float = Field(0.01, ge=0)
    """KL coefficient on both turns, to the start, inside the reward."""
    beta2: float = Field(0.1, ge=0)
    """KL coefficient on the first turn in stage I, instead of beta1."""
    stage2_beta_turn1: float | None = Field(None, ge=0)
    """KL coefficient on the first turn in stage II; beta1 where it is not given."""
    offline_first_attempts: float = Field(0.0, ge=0, lt=1)
    """Share of the first attempts that the base model samples: a wider choice of errors to correct. They are not trained."""
    first_only: bool = False
    """Reward the first turn alone: single-turn RL, whose second turn is only measured."""
    measured: int = Field(64, ge=1)
    """Held-out conversations in an evaluation."""


class Score(Recipe):
    """Two-stage, two-turn reinforcement for self-correction (SCoRe, arXiv 2409.12917)."""

    name = "score"
    granularity = "turn"
    truth = "answers"
    pays_outcomes = True
    agents = {"generator": Corrector}
    lead = "generator"
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    defaults = {"policies": {"generator": {"objective": {"preset": "grpo", "advantage": "leave_one_out"}}}, "turns": 40}
    embedded_defaults = {"options": {"formats": 12, "noise": 0.3}, "turns": 52}
    published = {
        "turns": 3000,
        "batch": {"problems": 256, "rollouts": 2},
        "policies": {"generator": {"lr": 5e-6}},
        "options": {"stage1": 1500},
    }
    Options = ScoreOptions
    options: ScoreOptions
    measures = tuple(f"generator/{what}" for what in CHANGES)

    @property
    def needs(self) -> Set[Capability]:
        return {DEMONSTRATIONS} if self.options.formats > 0 else set()

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        return {"generator": Corrector(dialect, self.options.noise)}

    def schedule(self) -> Schedule:
        """The format; then the start is kept, and stage I and stage II follow."""
        stage1 = self.options.stage1
        keep = (Action("snapshot", self.policies["generator"], BASE),)
        begin = Phase("generator", 1, enter=keep, name=STAGE1 if stage1 else STAGE2)
        rest = Phase("generator", max(0, stage1 - 1), name=STAGE1)
        intro = (Phase("generator", self.options.formats, name=FORMAT), begin, rest)
        return Schedule(intro, (Phase("generator", 1, name=STAGE2),))

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample conversations of two turns, each with a first attempt of its own."""
        if ctx.phase == FORMAT:
            return self.write_format_examples(ctx)
        problems, offline = ctx.problems(), round(self.options.offline_first_attempts * self.group_size)
        with ctx.cache_conversations():
            first = ctx.ask("generator", problems, self.group_size - offline)
            if offline:
                first = Rollouts([*first, *ctx.ask("generator", problems, offline, tag=BASE)])
            return filter_comparable(self.sample_corrections(ctx, first))

    def sample_corrections(self, ctx: Context, first: Rollouts) -> Rollouts:
        """Sample the second turns."""
        return ctx.reply("generator", first, self.make_instructions(ctx, first))

    def make_instructions(self, ctx: Context, first: Rollouts) -> list[Any]:
        """Return the message before each second turn."""
        role = ctx.role("generator")
        assert isinstance(role, Corrector)
        return [role.render_second_turn(attempt.problem) for attempt in first]

    def write_format_examples(self, ctx: Context) -> Rollouts:
        """Write format examples: first solutions by the teacher, and second ones after the model's own first attempts."""
        half = self.options.format_lines // 2
        plain = sample_demonstrations(ctx, "generator", half)
        first = ctx.ask("generator", ctx.problems(self.options.format_lines - half))
        texts = write_teacher_texts(ctx, "generator", [t.problem for t in first], "second turn")
        return Rollouts([*plain, *ctx.write_reply("generator", first, self.make_instructions(ctx, first), texts)])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        if ctx.phase == FORMAT:
            return [make_imitation_batch(self, "generator", rollouts)]
        if not len(rollouts):
            return []  # no conversation had room for its second turn, which was counted
        first = Rollouts(talk.target for talk in rollouts)
        rewards = self.compute_turn_rewards(ctx.phase, first.rewards, rollouts.rewards)
        if ctx.phase != STAGE1 or self.options.first_only:  # otherwise the first turn has no reward at all
            rewards[0] = add_format_rewards(rewards[0], first, self.objectives["generator"].filter)
        if not self.options.first_only:
            rewards[1] = add_format_rewards(rewards[1], rollouts, self.objectives["generator"].filter)
        difference = kl_penalties(rollouts, ctx.compute_logprobs("generator", rollouts, BASE), 1.0)
        costs = compute_turn_costs(rollouts, difference, self.select_betas(ctx.phase))
        estimator = self.objectives["generator"].estimator
        advantages = turn_advantages(rewards, rollouts, rollouts.problem_ids, estimator, costs)
        notes = {key: value for key, value in compute_change_metrics(first, rollouts).items() if value is not None}
        for turn in range(2):
            spans = [talk.turn_spans[turn] for talk in rollouts]
            apart = [float(kl[start:end].sum()) for kl, (start, end) in zip(difference, spans, strict=True)]
            notes[f"kl_turn{turn + 1}"] = mean(apart) or 0.0
        notes["reward"] = mean(rewards[-1]) or 0.0
        return [self.train_batch("generator", rollouts, advantages=advantages, sources={"answers": 1.0}, notes=notes)]

    def compute_turn_rewards(self, stage: str, first: Floats, second: Floats) -> list[Floats]:
        """Return the rewards of each turn, shape (conversations,) each. In stage I the first turn has reward 0: only its KL
        counts."""
        if self.options.first_only:
            return [first]
        if stage == STAGE1:
            return [np.zeros(len(first)), second]
        return [first, progress_reward(first, second, self.options.alpha)]

    def select_betas(self, stage: str) -> tuple[float, float]:
        """Return the KL coefficients of the first and the second turn."""
        o = self.options
        if stage == STAGE1:
            return o.beta2, o.beta1
        return o.beta1 if o.stage2_beta_turn1 is None else o.stage2_beta_turn1, o.beta1

    def measure(self, ctx: Context) -> dict[str, float | None]:
        with ctx.cache_conversations():
            second = self.sample_corrections(ctx, ctx.ask("generator", ctx.problems(self.options.measured)))
        figures = compute_change_metrics(Rollouts(talk.target for talk in second), second)
        return {f"generator/{key}": value for key, value in figures.items()}
