"""Baselines of RL Tango: a frozen verifier, one that is trained first and frozen then, exact step labels instead of a verifier,
and a frozen generator."""

from __future__ import annotations

from pydantic import Field

from milonga.context import Context
from milonga.patterns.outcome import sample_solutions
from milonga.recipe import ALLOWED
from milonga.roles import StepSolver
from milonga.schedule import Schedule, always, warm_up
from milonga.systems.tango.recipe import Tango, TangoOptions, verdicts_to_signs
from milonga.tasks.base import STEPS, Capability
from milonga.types import Rollouts, TrainBatch


class Frozen(Tango):
    """Tango with a frozen verifier: step rewards that cannot adapt, and so can be hacked."""

    name = "frozen"
    needs = set[Capability]()
    inference_only = ("verifier",)
    overlap = ALLOWED

    def schedule(self) -> Schedule:
        return always("generator")


class SequentialOptions(TangoOptions):
    n_verifier: int = Field(0, ge=0, le=0)
    """None: the verifier is frozen once the generator learns."""
    warmup: int = Field(15, ge=1)
    """Verifier turns before the generator's first: as many as `tango` has in 30 turns of its generator."""


class Sequential(Tango):
    """Tango in sequence: the verifier learns first, from the generator as it starts, and is frozen while the generator does."""

    name = "sequential"
    overlap = ALLOWED
    inference_only_if = {}
    published = {}
    Options = SequentialOptions
    options: SequentialOptions

    def schedule(self) -> Schedule:
        return warm_up("verifier", self.options.warmup) + always("generator")


class Oracle(Tango):
    """Tango with the exact truth of each step instead of a verifier: an upper bound of what step rewards can give."""

    name = "oracle"
    truth = "answers and steps"
    agents = {"generator": StepSolver}
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    needs = {STEPS}
    overlap = ALLOWED
    judge = "steps"

    def schedule(self) -> Schedule:
        return always("generator")

    def rollout(self, ctx: Context) -> Rollouts:
        return sample_solutions(ctx, "generator", self.objectives["generator"].filter, self.group_size)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        verdicts = [verdicts_to_signs(t.grade.steps if t.grade else None, t) for t in rollouts]
        return [self.credit_generator(ctx, rollouts, verdicts, rollouts.rewards)]


class VerifierOnly(Tango):
    """Tango with a frozen generator: only the verifier learns."""

    name = "verifier_only"
    lead = "verifier"
    pays_outcomes = False
    inference_only = ("generator",)
    inference_only_if = {}
    overlap = ALLOWED

    def schedule(self) -> Schedule:
        return always("verifier")
