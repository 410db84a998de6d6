"""Tango for code: a generator writes programs, a generative verifier judges whether each piece is sound, hidden tests decide.

As in RL Tango (arXiv 2505.15034) the verifier learns only from whether its final verdict matches the truth, here whether the
program passes all hidden tests, which it never sees; its verdicts on the pieces become a decaying dense reward.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from milonga.context import Context
from milonga.recipe import Refused
from milonga.roles import Coder, StepVerifier
from milonga.systems.tango.recipe import Tango, TangoOptions, Verdicts
from milonga.tasks.code import get_code_task
from milonga.types import Floats, Rollouts, TrainBatch


class TangoCodeOptions(TangoOptions):
    reward: Literal["all", "share"] = "all"
    """The outcome reward of a program: 1 if it passes all hidden tests, or the share that it passes. The verifier's label is
    whether it passes all."""


class TangoCode(Tango):
    """A coder and a verifier of its pieces learn in turns; hidden tests are the ground truth."""

    name = "tango_code"
    truth = "hidden tests"
    agents = {"generator": Coder, "verifier": StepVerifier}
    tasks = ("code",)
    overlap = Refused("the sandbox that grades the rollouts is used for credit too, and cannot do both at once")
    Options = TangoCodeOptions
    options: TangoCodeOptions
    published = {}
    defaults = {"task": {"name": "code"}}

    def credit_generator(self, ctx: Context, solutions: Rollouts, verdicts: Verdicts, right: Floats) -> TrainBatch:
        """Make the generator's train batch as Tango does, with the share of passed tests as outcome if asked for."""
        rewards = passed_shares(ctx, solutions) if self.options.reward == "share" else right
        return super().credit_generator(ctx, solutions, verdicts, rewards)


def passed_shares(ctx: Context, solutions: Rollouts) -> Floats:
    """Return the share of its hidden tests that each program passes; NaN where the sandbox could not tell."""
    passed = get_code_task(ctx.task).run_hidden_tests([(t.problem, t.solution.answer) for t in solutions], apart=True)
    return np.array([np.nan if found is None else np.mean(found) for found in passed])
