"""RLP (arXiv 2510.01265): reinforcement as a pretraining objective.

On plain text the model writes a short thought before the next token. The thought is rewarded by how much likelier it makes the
token that truly follows, compared with a slow copy of the model that does not think. No verifier, no labels: the text is all.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import outcome_advantages
from milonga.errors import ConfigError, UserError
from milonga.evals.metrics import mean
from milonga.objectives import make_objective
from milonga.patterns.imitation import make_imitation_batch
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.schedule import Action, Phase, Schedule, always
from milonga.systems.rlp.roles import Predictor, Thinker
from milonga.systems.rlp.thinking import (
    Pick,
    copy_rate,
    cut_lines,
    group_stds,
    make_plain_prompts,
    sample_thoughts,
    score_next_tokens,
    swap_thoughts,
)
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, Capability, Task
from milonga.types import Problem, Rollouts, TrainBatch

FORMAT = "format"


class RlpOptions(RecipeOptions):
    format_turns: int = Field(0, ge=0)
    """Turns of imitation before the first thought is rewarded: a model that never uses the tags learns nothing by thinking."""
    format_lines: int = Field(64, ge=1)
    """Lines in each of them."""
    format_share: float = Field(0.5, ge=0, le=1)
    """Share of those lines that have a scratchpad in tags; the others are plain."""
    pick: Pick = "random"
    """Where a line is cut: after a random token, or before its answer."""
    target_span: int = Field(1, ge=1)
    """How many tokens after a thought it is rewarded for."""
    next_token: Literal["none", "also", "only"] = "none"
    """Next-token training on the same lines: not at all, as a step of its own after that of the thoughts, or in their place."""
    least_spread: float = Field(1e-3, ge=0)
    """Refuse to begin where the rewards of one line's thoughts differ by less than this: nothing could be learned."""
    measured: int = Field(64, ge=2)
    """Held-out lines in an evaluation."""


class Rlp(Recipe):
    """A thought is worth what it adds to the log-probability of the true next token (RLP, arXiv 2510.01265)."""

    name = "rlp"
    granularity = "sequence"
    truth = "text"
    agents = {"generator": Thinker, "predictor": Predictor}
    lead = "generator"
    overlap = Refused("what a thought is worth is a score under the weights of the moment")
    bindings = {
        "own": Refused("thinker and predictor are one model in RLP: a thought is worth what its writer makes of it"),
        "lora": Refused(
            "thinker and predictor are one model in RLP: policies.generator.lora.rank=16 trains one adapter for both"
        ),
        "shared": ALLOWED,
    }
    defaults = {
        "binding": "shared",
        "policies": {
            "generator": {"objective": {"preset": "grpo", "advantage": "leave_one_out"}, "ema": 0.999, "chat": "off"},
        },
    }
    embedded_defaults = {"options": {"format_turns": 20}}
    published = {
        "batch": {"rollouts": 16},
        "sampling": {"max_tokens": 2048},
        "policies": {"generator": {"ema": 0.999}},
        "options": {"format_turns": 0, "pick": "random", "target_span": 1, "next_token": "none"},
    }
    Options = RlpOptions
    options: RlpOptions
    measures = (
        *(f"generator/ce_{what}" for what in ("thought", "shuffled", "plain", "baseline")),
        *(f"generator/{what}" for what in ("gain", "accuracy", "plain_accuracy", "copy_rate", "thought_length")),
    )

    @property
    def needs(self) -> Set[Capability]:
        return {ANSWERS} if self.options.pick == "answer" else frozenset()

    def check(self, task: Task) -> None:
        if self.options.format_turns and self.options.format_share and DEMONSTRATIONS not in task.offers:
            raise ConfigError(
                f"options.format_turns={self.options.format_turns}: recipe '{self.name}' shows worked solutions as thoughts, "
                f"which task '{task.name}' does not have for all problems; set options.format_turns=0"
            )

    def schedule(self) -> Schedule:
        """The format first; then the slow copy starts anew from there, and thoughts are rewarded."""
        imitate = Phase("predictor", self.options.format_turns, name=FORMAT)
        begin = Phase("generator", 1, enter=(Action("snapshot", self.policies["generator"], "ema"),))
        return Schedule((imitate, begin)) + always("generator")

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample thoughts about one place in each line. They see only what stands before it."""
        if ctx.phase == FORMAT:
            return self.write_format_examples(ctx)
        places = cut_lines(ctx, ctx.problems(), self.options.pick, self.options.target_span)
        return (
            self.write_plain_lines(ctx, places)
            if self.options.next_token == "only"
            else sample_thoughts(ctx, places, self.group_size)
        )

    def write_format_examples(self, ctx: Context) -> Rollouts:
        """Write format examples like those a model may have met in pretraining: plain lines, and some with a scratchpad in
        tags."""
        places = cut_lines(ctx, ctx.problems(self.options.format_lines), "answer")
        count = round(self.options.format_share * len(places))
        teacher, task = ctx.role("generator"), ctx.task
        keys = [ctx.rng("demonstration", place.id) for place in places[:count]]
        texts = [teacher.demonstrate(task, place, key)[1] for place, key in zip(places, keys, strict=False)]
        return Rollouts([*ctx.write("generator", places[:count], texts), *self.write_plain_lines(ctx, places[count:])])

    def write_plain_lines(self, ctx: Context, places: list[Problem]) -> Rollouts:
        """Write the whole lines as plain text: to be predicted from the beginning, not to be graded."""
        written = ctx.write("predictor", [replace(p, text="") for p in places], [str(p.data["line"]) for p in places])
        return Rollouts(replace(rollout, grade=None) for rollout in written)

    def credit(self, ctx: Context, rollouts: Rollouts) -> Iterator[TrainBatch]:
        if ctx.phase == FORMAT:
            yield make_imitation_batch(self, "generator", rollouts)
            return
        if self.options.next_token != "only":
            yield self.credit_thoughts(ctx, rollouts)
        if self.options.next_token != "none":
            places = list({t.problem.id: t.problem for t in rollouts}.values())
            loss = make_objective("cross_entropy").loss
            yield TrainBatch(self.policies["generator"], loss, self.write_plain_lines(ctx, places), sources={"text": 1.0})

    def credit_thoughts(self, ctx: Context, thoughts: Rollouts) -> TrainBatch:
        """Make the train batch of the thoughts. r(c) = log p(x_t | x_<t, c) - log p_ema(x_t | x_<t); the baseline is the other
        thoughts about the same place.

        The second term is the same for all of them: it says what thinking gains, and cancels in the advantage.
        """
        places = {t.problem.id: t.problem for t in thoughts}
        known = dict(zip(places, score_next_tokens(ctx, make_plain_prompts(ctx, list(places.values())), "ema"), strict=True))
        after, before = score_next_tokens(ctx, thoughts), np.array([known[id] for id in thoughts.problem_ids])
        rewards = after - before
        spread = group_stds(rewards, thoughts.problem_ids)
        self.require_signal(float(spread.mean()))
        estimator = self.objectives["generator"].estimator
        penalties = ctx.compute_kl_penalties(thoughts, estimator)
        advantages = outcome_advantages(rewards, thoughts, thoughts.problem_ids, estimator, penalties)
        notes = {
            "reward": float(rewards.mean()),
            "reward_spread": float(spread.mean()),
            "flat_groups": float((spread < self.options.least_spread).mean()),
            "ce_thought": -float(after.mean()),
            "ce_baseline": -float(before.mean()),
            "copy_rate": copy_rate(thoughts),
        }
        return self.train_batch("generator", thoughts, advantages=advantages, sources={"text": 1.0}, notes=notes)

    def require_signal(self, spread: float) -> None:
        """Raise an error if the rewards do not vary; checked once, at the first thoughts."""
        if not self.state.get("begun") and spread < self.options.least_spread:
            raise UserError(
                f"the thoughts make no difference to the next token (rewards within a line differ by {spread:.1e}): show the "
                "model the format first (options.format_turns), or set options.least_spread = 0"
            )
        self.state["begun"] = True

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure the cross-entropy of the answer's first tokens on held-out lines (in plain text: at a random place): after
        the own thought, after that of another line, without one, and of the EMA copy without one; and, where there are answers,
        the accuracy with a thought and without."""
        pick: Pick = "answer" if ctx.task.has_answers else "random"
        places = cut_lines(ctx, ctx.problems(self.options.measured), pick, self.options.target_span)
        thoughts = sample_thoughts(ctx, places, 1)
        places = [t.problem for t in thoughts]  # without those that did not fit into the context
        bare = make_plain_prompts(ctx, places)
        found = {
            "ce_thought": -score_next_tokens(ctx, thoughts),
            "ce_shuffled": -score_next_tokens(ctx, swap_thoughts(thoughts)),
            "ce_plain": -score_next_tokens(ctx, bare),
            "ce_baseline": -score_next_tokens(ctx, bare, "ema"),
        }
        out = {f"generator/{key}": mean(values) for key, values in found.items()}
        out["generator/gain"] = mean(found["ce_baseline"] - found["ce_thought"])
        out |= self.measure_accuracy(ctx, places, thoughts) if ctx.task.has_answers else {}
        out["generator/copy_rate"] = copy_rate(thoughts)
        out["generator/thought_length"] = mean([float(t.length) for t in thoughts])
        return out

    def measure_accuracy(self, ctx: Context, places: list[Problem], thoughts: Rollouts) -> dict[str, float | None]:
        """Measure how many lines go on to the right answer: after a thought, and without one."""
        ended = ctx.complete("generator", [(t, 1) for t in thoughts if t.steps], step=True)
        return {
            "generator/accuracy": float(np.nansum(ended.correct)) / len(thoughts),
            "generator/plain_accuracy": mean(ctx.ask("predictor", places).correct),
        }
