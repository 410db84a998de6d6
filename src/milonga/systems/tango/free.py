"""Tango without ground truth: the verifier learns from the vote of solutions, the generator from the verifier's verdicts.

Nothing in the loop knows what is right, and both may come to agree on a wrong answer: collusion. It is measured with the hidden
truth at every evaluation. Remedies are a few labelled problems, frozen anchors and an adversarial third agent. The
specification is `free.md` in this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit.baselines import group_rows
from milonga.credit.votes import verdict_consistency
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.voting import collusion_metrics, mean_final_verdicts, mean_step_verdicts, tally_votes
from milonga.recipe import Refused
from milonga.systems.tango.recipe import Tango, TangoOptions
from milonga.tasks import Capability
from milonga.types import Problem, Rollouts, TrainBatch

LABELLED = "labelled/"
"""The id prefix of problems whose answers are known."""


class TangoFreeOptions(TangoOptions):
    votes: int = Field(8, ge=2)
    """Solutions of a problem that vote, in a verifier turn."""
    checks: int = Field(3, ge=1)
    """Verdicts on each solution that make the generator's reward."""
    self_consistency: float = Field(0.5, ge=0)
    """Weight of agreeing with one's other verdicts on the same solution; agreeing with the vote has weight 1."""
    min_majority: float = Field(0.0, ge=0, le=1)
    """The verifier learns nothing from a problem whose most frequent answer has a smaller share."""
    labelled: int = Field(0, ge=0)
    """Remedy: so many problems have known answers; in verifier turns the truth is their label."""
    labelled_share: float = Field(0.25, gt=0, le=1)
    """Share of the verifier's problems that are taken from these."""
    anchors: int = Field(0, ge=0)
    """Remedy: so many solutions of the initial generator vote too, and so many verdicts of the initial verifier are added."""
    audit: int = Field(64, ge=1)
    """Held-out problems on which collusion is measured."""


class TangoFree(Tango):
    """Tango in which the majority vote of solutions and the verifier's own verdicts replace the ground truth."""

    name = "tango_free"
    truth = "none"
    needs = set[Capability]()
    pays_outcomes = False
    published = {}
    pays_format: ClassVar[tuple[str, ...]] = ("generator",)
    overlap = Refused("agreement takes the place of answers: it must be that of the generator that learns, not of older ones")
    Options = TangoFreeOptions
    options: TangoFreeOptions
    measures = tuple(collusion_metrics([], Rollouts([])))

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        for agent, objective in self.objectives.items():
            if objective.filter.dynamic_sampling:
                switch = f"policies.{agent}.objective.dynamic_sampling"
                raise ConfigError(f"'{self.name}' has no truth by which problems could be chosen; set {switch}=false")

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample a generator turn (solutions, a few checks of each) or a verifier turn (voters, many checks of two of them)."""
        o = self.options
        if ctx.learner == "generator":
            solutions = ctx.ask("generator", ctx.problems(), self.group_size)
            return Rollouts([*solutions, *self.sample_verdicts(ctx, solutions)])
        problems = self.draw_problems(ctx)
        voters = Rollouts([*ctx.ask("generator", problems, o.votes), *self.sample_anchors(ctx, problems)])
        return Rollouts([*voters, *ctx.ask("verifier", self.select_for_judging(ctx, voters), self.group_size)])

    def draw_problems(self, ctx: Context) -> list[Problem]:
        """Draw the turn's problems; the first of them are labelled ones, reused in every turn, where there are any."""
        o, count = self.options, ctx.batch_size
        known = round(o.labelled_share * count) if o.labelled else 0
        first = count * int(ctx.turn)
        old = [ctx.task.draw_problems("train", (first + n) % o.labelled, 1)[0] for n in range(known)]
        return [replace(p, id=f"{LABELLED}{n}/{p.id}") for n, p in enumerate(old)] + ctx.problems(count - known)

    def sample_anchors(self, ctx: Context, problems: list[Problem]) -> Rollouts:
        """Sample solutions of the initial generator, which vote too; none without anchors."""
        return ctx.ask("generator", problems, self.options.anchors, tag="ref") if self.options.anchors else Rollouts([])

    def sample_verdicts(self, ctx: Context, solutions: Rollouts) -> Rollouts:
        """Sample verdicts on solutions: of the current verifier, and of the initial one where there are anchors."""
        checks = ctx.ask("verifier", solutions, self.options.checks)
        frozen = ctx.ask("verifier", solutions, self.options.anchors, tag="ref") if self.options.anchors else ()
        return Rollouts([*checks, *frozen])

    def select_for_judging(self, ctx: Context, voters: Rollouts) -> Rollouts:
        """Select for each problem the first solution that gives the winning answer and the first that does not.

        Rare errors, or rare successes, would teach one verdict for everything.
        """
        found = []
        for ballot in tally_votes(ctx, voters).values():
            own = [rollout for rollout in ballot.voters if rollout.mask.any()]  # an anchor votes, but is not judged
            for gives in (1.0, 0.0):
                found += [rollout for rollout in own if ballot.gives[rollout.id] == gives][:1]
        return Rollouts(found)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        solutions, checks = rollouts.of("generator"), rollouts.of("verifier")
        if ctx.learner == "generator":
            verdicts, right = mean_step_verdicts(solutions, checks), mean_final_verdicts(solutions, checks)
            train_batch = self.credit_generator(ctx, solutions, verdicts, right)
            return [replace(train_batch, sources={"verifier": 1.0})]
        return [self.credit_judge(ctx, checks, self.make_labels(ctx, solutions, checks.targets))]

    def make_labels(self, ctx: Context, voters: Rollouts, judged: Rollouts) -> dict[str, float]:
        """Return the pseudo-label of each judged solution: whether it gives the winning answer.

        NaN where too few agree; the truth itself on labelled problems, and nowhere else.
        """
        out: dict[str, float] = {}
        asked = {rollout.id for rollout in voters}
        for ballot in tally_votes(ctx, voters, judged.select(lambda t: t.id not in asked)).values():
            known = ballot.vote.winner is not None and ballot.vote.share >= self.options.min_majority
            out |= {id: gives if known else float("nan") for id, gives in ballot.gives.items()}
        return out | {t.id: t.correct for t in judged if t.problem.id.startswith(LABELLED)}

    def credit_judge(self, ctx: Context, checks: Rollouts, labels: Mapping[str, float]) -> TrainBatch:
        """Make Tango's train batch of the verifier with these labels, and with a reward for self-consistency."""
        o, agrees = self.options, np.zeros(len(checks))
        for rows in group_rows(checks.target_ids):
            agrees[rows] = verdict_consistency([checks[row].verification.final for row in rows])
        train_batch = self.credit_verifier(ctx, checks, labels, o.self_consistency * agrees)
        own = o.self_consistency / (1 + o.self_consistency)
        labelled = mean([t.target.problem.id.startswith(LABELLED) for t in checks]) or 0.0
        sources = {"generator": (1 - own) * (1 - labelled), "verifier": own, "answers": (1 - own) * labelled}
        notes = train_batch.notes | {"verdict_consistency": mean(agrees) or 0.0}
        return replace(train_batch, sources={key: share for key, share in sources.items() if share}, notes=notes)

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure collusion of generator and verifier against the hidden truth, on held-out problems."""
        solutions = ctx.ask("generator", ctx.problems(self.options.audit), self.options.votes)
        checks = ctx.ask("verifier", solutions, max(2, self.options.checks))  # consistency needs two verdicts
        return collusion_metrics(list(tally_votes(ctx, solutions).values()), checks)
