"""APRM (arXiv 2511.22888): a corruptor learns to make right steps wrong so that a step scorer accepts them. The scorer learns
to catch them. An oracle labels the steps for both: exactly where the task knows its steps, otherwise by answers.

It is a general-sum game: the corruptor also loses where it corrupts nothing, and the scorer gains nothing from that. KL and
entropy terms in the losses, and optimistic gradients (`policies.X.optimism`), keep the game from cycling. The scorer is the
result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import compute_class_weights, outcome_advantages
from milonga.errors import ConfigError
from milonga.patterns.imitation import make_imitation_batch, sample_demonstrations
from milonga.patterns.slicing import build_step_prefix
from milonga.patterns.value_head import Labelled, Scoring, ScoringOptions, build_value_rows
from milonga.recipe import ALLOWED, Refused
from milonga.roles import Dialect, Role, StepScorer, StepSolver
from milonga.roles.scorer import Aggregate
from milonga.schedule import Action, Phase, Schedule
from milonga.systems.aprm import attacks
from milonga.systems.aprm.attacks import Attack, attack_metrics, label_last_step, list_family_metrics, slice_correct_steps
from milonga.systems.aprm.credit import AttackReward
from milonga.systems.aprm.roles import Corruptor
from milonga.tasks.base import ANSWERS, STEPS, Task
from milonga.tasks.corruption import CHAIN_FAMILIES
from milonga.tasks.data import DataTask
from milonga.types import Rollouts, TrainBatch

HELD = {"kl_coef": 0.05, "kl_from": "begin", "entropy_coef": 0.01}
"""KL to the snapshot at the start of the game, and an entropy bonus, for both players."""


class AprmOptions(ScoringOptions):
    replay: float = Field(1 / 3, ge=0)
    """Rewrites of earlier turns that the scorer learns from again, for each new one; a third makes them 25 % of all."""
    attack: Literal["learned", "random"] = "learned"
    """Who rewrites steps: the corruptor, or random corruption from the allowed families, which does not adapt to the scorer."""
    oracle: Literal["auto", "steps", "answers"] = "auto"
    """What says whether a rewritten step is wrong: the task's truth of its steps, or the answers of completions from it; auto:
    the truth where the task knows it, and models do not write prose."""
    completions: int = Field(4, ge=1)
    """Completions of the generator from a rewritten step. By answers, the step is wrong if none of them is right."""
    held_out: list[str] = []
    """Families of mistakes that nobody is trained on: the scorer is measured on them."""
    sft: int = Field(0, ge=0)
    """Turns in which the corruptor first imitates a teacher who knows the allowed families."""
    sft_steps: int = Field(64, ge=1)
    """Rewrites in each of them."""
    measured: int = Field(64, ge=1)
    """Held-out problems to measure the scorer on. One step of each is corrupted by every family."""
    warmup: int = Field(10, ge=0)
    """Turns in which the scorer first learns from random corruptions; they count as its turns."""
    updates: Literal["simultaneous", "alternating"] = "simultaneous"
    """Both players learn from the same rollouts, or each in its own turn from its own rollouts."""
    top: float = 1.0
    """Corruptor: reward of a wrong step that was accepted."""
    middle: float = 0.0
    """Corruptor: reward of a wrong step that was caught."""
    bottom: float = -1.0
    """Corruptor: reward where nothing was corrupted, or no step was written."""


class Aprm(Scoring):
    """A corruptor and a step scorer are trained against each other, with labels of an oracle (APRM, arXiv 2511.22888)."""

    name = "aprm"
    truth = "steps, or answers"
    needs = {ANSWERS}
    agents = {"generator": StepSolver, "corruptor": Corruptor, "verifier": StepScorer}
    inference_only_if = {"generator": {"oracle": "steps"}}
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused("a corruptor that shares the scorer's weights would be paid for fooling itself"),
    }
    defaults = {
        "policies": {
            "corruptor": {"objective": HELD | {"kl": "k2"}, "optimism": True},
            "verifier": {"objective": HELD | {"preset": "value_bce"}, "optimism": True, "lr": 1e-5, "minibatches": 4},
        }
    }
    embedded_defaults = {
        "policies": {"verifier": {"lr": 3e-4}},
        "options": {"sft": 20, "held_out": ["carry_drop", "stale_operand"]},
    }
    published = {"options": {"updates": "alternating"}}
    Options = AprmOptions
    options: AprmOptions
    measures = (*list_family_metrics([*CHAIN_FAMILIES, *DataTask.families]), *attack_metrics([]))

    @property
    def default_aggregate(self) -> Aggregate:
        return "min"

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        return super().roles(dialect) | {"corruptor": Corruptor(dialect, leave_out=self.options.held_out)}

    def check(self, task: Task) -> None:
        """Refuse an oracle, a teacher or random corruptions that the task does not have."""
        o = self.options
        if o.oracle == "steps" and STEPS not in task.offers:
            raise ConfigError(f"options.oracle: task '{task.name}' does not know its steps; set it to 'answers'")
        if o.sft and STEPS not in task.offers:
            raise ConfigError(f"options.sft: nobody can demonstrate mistakes in steps of '{task.name}'; set it to 0")
        if (o.warmup or o.attack == "random") and not task.families:
            raise ConfigError(
                f"task '{task.name}' knows no random corruptions to warm up on; set options.warmup=0 and options.attack=learned"
            )
        Corruptor("terse", o.held_out).list_allowed_families(task)

    def is_exact(self, ctx: Context) -> bool:
        """Whether the oracle is the task's own truth of the steps, which is about steps in its own form, not about prose."""
        known = STEPS in ctx.task.offers and ctx.role("generator").dialect != "plain"
        return self.options.oracle == "steps" or (self.options.oracle == "auto" and known)

    def grade_attacks(self, ctx: Context, rewrites: Rollouts) -> list[Attack]:
        return attacks.grade_attacks(ctx, rewrites, 0 if self.is_exact(ctx) else self.options.completions)

    def schedule(self) -> Schedule:
        """First the corruptor imitates a teacher, then the scorer warms up. Then both are snapshot and the game begins."""
        o, learned = self.options, self.options.attack == "learned"
        intro = [Phase("corruptor", o.sft, name="imitate")] if learned and o.sft else []
        intro += [Phase("verifier", o.warmup, name="warm up")] if o.warmup else []
        begin = tuple(Action("snapshot", self.policies[agent], "begin") for agent in ("corruptor", "verifier"))
        moves = ("corruptor", "verifier") if learned and o.updates == "alternating" else ("verifier",)
        first = tuple(Phase(agent, 1, enter=begin if agent == moves[0] else (), name="game") for agent in moves)
        return Schedule((*intro, *first), tuple(Phase(agent, 1, name="game") for agent in moves))

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample solutions, and several rewrites of one right step of each: by the corruptor, or by random corruption."""
        if ctx.phase == "imitate":
            return sample_demonstrations(ctx, "corruptor", self.options.sft_steps)
        solutions = ctx.ask("generator", ctx.problems())
        rng = ctx.rng("target")
        targets = Rollouts(rng.choice(steps) for steps in slice_correct_steps(ctx, solutions, self.is_exact(ctx)) if steps)
        if self.is_corruptor_active(ctx):
            return Rollouts([*solutions, *ctx.ask("corruptor", targets, self.group_size)])
        return Rollouts([*solutions, *self.corrupt_randomly(ctx, Rollouts(t for t in targets for _ in range(self.group_size)))])

    def is_corruptor_active(self, ctx: Context) -> bool:
        return self.options.attack == "learned" and ctx.phase == "game"

    def corrupt_randomly(self, ctx: Context, targets: Rollouts) -> Rollouts:
        """Corrupt each target step by a random allowed family, where one applies, in the corruptor's format."""
        corruptor = ctx.role("corruptor")
        assert isinstance(corruptor, Corruptor)
        rng = ctx.rng("chance")
        steps = [corruptor.corrupt_step(ctx.task, target, rng) for target in targets]
        made = [(target, corruptor.write(step)) for target, step in zip(targets, steps, strict=True) if step is not None]
        return ctx.write("corruptor", [target for target, _ in made], [text for _, text in made])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        if ctx.phase == "imitate":
            return [make_imitation_batch(self, "corruptor", rollouts)]
        if not rollouts.of("corruptor"):
            return []  # no solution of the turn has a right step to rewrite
        found = self.grade_attacks(ctx, rollouts.of("corruptor"))
        train_batches = []
        unknown = sum(not attack.is_known for attack in found)
        if unknown:
            ctx.dropped["corruptor: nobody could grade its step"] += unknown
        moves = ctx.learner == "corruptor" or self.options.updates == "simultaneous"
        if unknown < len(found) and moves and self.is_corruptor_active(ctx):
            train_batches.append(self.credit_corruptor(ctx, found))
        if ctx.learner == "verifier":
            train_batches.append(self.credit_verifier(ctx, rollouts.of("generator"), found))
        return train_batches

    def credit_corruptor(self, ctx: Context, found: list[Attack]) -> TrainBatch:
        """Make the corruptor's train batch: wrong and accepted earns more than wrong and caught, and that more than not
        corrupted. The baseline is over the rewrites of one step; what nobody could grade is in none, nor in the batch."""
        o, estimator = self.options, self.objectives["corruptor"].estimator
        reward, rewrites = AttackReward(o.top, o.middle, o.bottom), Rollouts(a.rewrite for a in found)
        rewards = np.array([reward(a.right, a.accepted) if a.is_known else np.nan for a in found])
        penalties = ctx.compute_kl_penalties(rewrites, estimator)
        credit = outcome_advantages(rewards, rewrites, rewrites.target_ids, estimator, penalties)
        kept = [(a.rewrite, advantages) for a, advantages in zip(found, credit, strict=True) if a.is_known]
        rows, advantages = Rollouts(row for row, _ in kept), [each for _, each in kept]
        sources = {"steps" if self.is_exact(ctx) else "answers": 0.5, "verifier": 0.5}
        return self.train_batch("corruptor", rows, advantages=advantages, sources=sources)

    def credit_verifier(self, ctx: Context, solutions: Rollouts, found: list[Attack]) -> TrainBatch:
        """Make the scorer's train batch: rewritten steps of this and earlier turns, and as many untouched ones. Weights balance
        the two labels."""
        fresh = {a.shown.id: label_last_step(a.shown, a.right) for a in found if a.shown is not None and a.right is not None}
        rewritten = [*fresh.values(), *self.sample_replay(ctx, len(found))]
        self.add_to_replay(list(fresh.values()))
        untouched, rng = self.label(ctx, solutions), ctx.rng("untouched")
        chosen = rng.sample(untouched, min(len(untouched), len(rewritten)))
        rows, targets = build_value_rows(ctx, [*rewritten, *chosen])
        labels = [float(np.append(target[~np.isnan(target)], np.nan)[0]) for target in targets]
        notes = {key: value for key, value in attack_metrics(found).items() if value is not None}
        weights = compute_class_weights(labels)
        sources = self.sources() if self.is_exact(ctx) else {"answers": 1.0}
        train_batch = self.train_batch("verifier", rows, targets=targets, weights=weights, sources=sources, notes=notes)
        if ctx.phase == "game":
            return train_batch
        return replace(train_batch, loss=train_batch.loss.model_copy(update={"kl_coef": 0.0}))  # no KL snapshot yet

    def label(self, ctx: Context, solutions: Rollouts) -> list[Labelled]:
        """Label the untouched steps that are right."""
        return [
            label_last_step(build_step_prefix(ctx, piece), True)
            for steps in slice_correct_steps(ctx, solutions, self.is_exact(ctx))
            for piece in steps
        ]

    def sources(self) -> dict[str, float]:
        return {"steps": 1.0}

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure the scorer on every family of mistakes, with a mean over held-out ones, and the corruptor's attacks."""
        sample = attacks.sample_gold_steps if self.is_exact(ctx) else attacks.sample_own_steps
        targets = sample(ctx, self.options.measured)
        out = attacks.family_metrics(ctx, targets, self.options.held_out)
        if self.options.attack == "learned":
            out |= attack_metrics(self.grade_attacks(ctx, ctx.ask("corruptor", targets)))
        return dict.fromkeys(self.measures) | out
