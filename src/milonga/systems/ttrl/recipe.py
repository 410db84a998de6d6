"""TTRL (arXiv 2504.16084): GRPO on problems without answers. The majority answer of a problem's samples replaces the label.

With `examples = 1` and `label = "truth"` it is one-example RLVR (arXiv 2504.20571): GRPO on copies of a single problem whose
answer is known. Both show how little has to be known where the skill is there already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import has_both_outcomes, outcome_advantages
from milonga.credit.baselines import group_rows
from milonga.credit.votes import Vote, agreement_rewards, keep_first_samples, leave_one_out_rewards
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.outcome import sample_useful_groups, shape_rewards
from milonga.patterns.voting import label_correctness, tally_votes, winner_correctness
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import StepSolver
from milonga.schedule import Schedule, always
from milonga.tasks import Task
from milonga.types import Floats, Problem, Rollouts, TrainBatch


class TtrlOptions(RecipeOptions):
    votes: int | None = Field(None, ge=2)
    """Samples of a problem that vote; the first `batch.rollouts` of them are trained on. Twice as many by default, as in the
    paper: 64 and 32."""
    label: Literal["majority", "truth", "random", "format"] = "majority"
    """What replaces the label: the most frequent answer; the true one; that of a random sample; or nothing, and every readable
    sample is rewarded. The last two are controls."""
    examples: int | None = Field(None, ge=1)
    """Learn from so many problems alone, copied to fill every turn; by default from new ones in every turn."""
    select: Literal["first", "mid_accuracy"] = "first"
    """Which problems these are: the first ones, or those of `candidates` whose samples agree with the label closest to half the
    time."""
    candidates: int = Field(32, ge=1)
    """Problems among which mid_accuracy chooses, once, before the first turn."""
    min_majority: float = Field(0.0, ge=0, le=1)
    """Learn nothing from a problem whose most frequent answer has a smaller share; not in the paper."""
    leave_one_out_vote: bool = False
    """Compare a sample with what the others voted for, without its own vote; not in the paper."""


class Ttrl(Recipe):
    """The majority of a model's own answers as reward (TTRL, arXiv 2504.16084); GRPO on one example (arXiv 2504.20571)."""

    name = "ttrl"
    granularity = "sequence"
    truth = "none"
    agents = {"generator": StepSolver}
    pays_format = ("generator",)
    lead = "generator"
    overlap = Refused("votes take the place of answers: they must be those of the generator that learns, not of older ones")
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    published = {
        "turns": 625,
        "batch": {"problems": 8, "rollouts": 32},
        "sampling": {"max_tokens": 3072},
        "policies": {
            # 150 steps: 3 % of 625 turns of eight updates each.
            "generator": {"lr": 5e-7, "schedule": "cosine", "warmup": 150, "minibatches": 8, "objective": {"kl_coef": 0.001}},
        },
    }
    Options = TtrlOptions
    options: TtrlOptions
    measures = ("majority_share", "label_accuracy", "reward_accuracy", "known_accuracy")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.votes = self.options.votes or 2 * self.group_size
        if self.votes < self.group_size:
            raise ConfigError(f"options.votes={self.votes} is less than batch.rollouts={self.group_size}: who learns votes too")

    def check(self, task: Task) -> None:
        asked, size = self.options.examples, task.size("train")
        if asked is not None and size is not None and asked > size:
            raise ConfigError(
                f"options.examples={asked}, but task '{task.name}' has {size} problems to learn from; ask for fewer. "
                "To learn on all questions of a test set, hold none of them out: task.dev_path=OTHER and task.test=0"
            )

    def schedule(self) -> Schedule:
        return always("generator")

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample all voters. With dynamic sampling (DAPO), keep problems whose rewards by the label differ, whatever the truth
        is."""
        rules = self.objectives["generator"].filter
        if self.options.examples is not None:
            return ctx.ask("generator", self.copy_examples(ctx), self.votes)
        if not rules.dynamic_sampling:
            return ctx.ask("generator", ctx.problems(), self.votes)

        def divided(solutions: Rollouts) -> Rollouts:
            keep = has_both_outcomes(self.compute_rewards(ctx, solutions)[0], solutions.problem_ids)
            return Rollouts(rollout for rollout, kept in zip(solutions, keep, strict=True) if kept)

        return sample_useful_groups(ctx, "generator", divided, rules.max_tries, self.votes)

    def copy_examples(self, ctx: Context) -> list[Problem]:
        """Copy the few problems until the turn is full. Each copy has an id, and so a baseline, of its own."""
        if "examples" not in self.state:
            self.state["examples"] = self.select_examples(ctx)
        known = self.load_examples(ctx)
        return [replace(p, id=f"{p.id}/copy{n}") for n in range(ctx.batch_size) for p in (known[n % len(known)],)]

    def load_examples(self, ctx: Context) -> list[Problem]:
        """Return the problems that are learned from."""
        return [ctx.task.draw_problems("train", index, 1)[0] for index in self.state.get("examples", ())]

    def select_examples(self, ctx: Context) -> list[int]:
        """Select the indices of the problems to learn from."""
        count = self.options.examples or 0
        if self.options.select == "first":
            return list(range(count))
        solutions = ctx.ask("generator", ctx.task.draw_problems("train", 0, max(count, self.options.candidates)), self.votes)
        rewards, _ = self.compute_rewards(ctx, solutions)
        known = [mean(rewards[rows]) for rows in group_rows(solutions.problem_ids)]
        distance = [1.0 if share is None else abs(share - 0.5) for share in known]
        return sorted(sorted(range(len(distance)), key=lambda index: distance[index])[:count])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make the train batch: all samples have voted; the first ones of each problem are trained on, and form its group."""
        objective = self.objectives["generator"]
        rewards, votes = self.compute_rewards(ctx, rollouts)
        found = dict(zip((rollout.id for rollout in rollouts), rewards, strict=True))
        trained = keep_first_samples(rollouts, self.group_size)
        own = np.array([found[rollout.id] for rollout in trained])
        shaped = shape_rewards(own, ctx, trained, objective.filter)
        penalties = ctx.compute_kl_penalties(trained, objective.estimator)
        advantages = outcome_advantages(shaped, trained, trained.problem_ids, objective.estimator, penalties)
        notes = {
            "reward": mean(own) or 0.0,
            "majority_share": mean([v.share for v in votes]) or 0.0,
            "without_answer": float(np.mean([v.winner is None for v in votes])),
            "flat_groups": 1 - float(has_both_outcomes(own, trained.problem_ids).mean()),
        }
        source = {"majority": "generator", "random": "generator", "truth": "answers", "format": "format"}[self.options.label]
        return [self.train_batch("generator", trained, advantages=advantages, sources={source: 1.0}, notes=notes)]

    def compute_rewards(self, ctx: Context, solutions: Rollouts) -> tuple[Floats, list[Vote]]:
        """Return the reward of each solution, shape (solutions,), and the vote on each problem.

        The reward is 0 where there was no answer to vote for, NaN where too few agreed. The truth is used only where the label
        is the truth.
        """
        o, rewards, votes = self.options, np.zeros(len(solutions)), []
        found = tally_votes(ctx, solutions)
        for rows in group_rows(solutions.problem_ids):
            ballot = found[solutions[rows[0]].problem.id]
            rng = ctx.rng("label", solutions[rows[0]].problem.id)
            votes.append(ballot.vote)
            if o.label == "truth":
                rewards[rows] = ballot.voters.rewards
            elif o.label == "format":
                rewards[rows] = [float(t.parsed.is_valid) for t in ballot.voters]
            elif o.label == "random":
                rewards[rows] = agreement_rewards(
                    ballot.answers, rng.choice([a for a in ballot.answers if a is not None] or [None])
                )
            elif ballot.vote.share < o.min_majority:
                rewards[rows] = float("nan")
            else:
                alone = o.leave_one_out_vote
                rewards[rows] = (
                    leave_one_out_rewards(ballot.answers, rng)
                    if alone
                    else agreement_rewards(ballot.answers, ballot.vote.winner)
                )
        return rewards, votes

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure the vote against the hidden truth on held-out problems; and accuracy on the few problems that are learned
        from."""
        found = tally_votes(ctx, ctx.ask("generator", ctx.problems(), self.votes)).values()
        known = self.load_examples(ctx)
        return {
            "majority_share": mean([ballot.vote.share for ballot in found]),
            "label_accuracy": mean([winner_correctness(ballot) for ballot in found]),
            "reward_accuracy": mean([right for ballot in found for right in label_correctness(ballot)]),
            "known_accuracy": mean(ctx.ask("generator", known, self.group_size).correct) if known else None,
        }
