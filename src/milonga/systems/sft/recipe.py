"""SFT: generator and verifier imitate worked examples, before anything is rewarded. Other recipes start from it.

The generator learns to write the task's own solutions, step by step, in the dialect of the run. The verifier learns to check
such solutions, half of them wrong in one step, by redoing every step. Verdicts are known by construction.
"""

from __future__ import annotations

from pydantic import Field

from milonga.context import Context
from milonga.errors import ConfigError
from milonga.patterns.imitation import sample_demonstrations
from milonga.randomness import keyed_rng
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role, StepSolver, StepVerifier
from milonga.schedule import Schedule, alternate
from milonga.tasks.base import DEMONSTRATIONS, Task
from milonga.types import Rollout, Rollouts, TrainBatch

SEARCHED = 100
"""Worked solutions that are tried before a run begins: how many of them can be given a flaw?"""
# Half of the solutions that a verifier sees are given a flaw where they can be. With less than a quarter of them that is fewer
# than one in eight, and a verifier that calls everything right is hardly ever wrong.
LEAST_FLAWED = 0.25
"""Share of them without which the verifier is not trained."""


class SftOptions(RecipeOptions):
    n_generator: int = Field(1, ge=1)
    """Generator turns in a cycle."""
    n_verifier: int = Field(1, ge=0)
    """Verifier turns in a cycle; 0 to warm up the generator alone."""
    noise: float = Field(0.0, ge=0, le=1)
    """Share of the examples that the teacher spoils: a solution with a wrong step, a check with a wrong verdict. They are found
    by the exact truth and weigh nothing; without them the control with shuffled rewards would learn the same."""


class Sft(Recipe):
    """Generator and verifier imitate worked examples: the warm start of other recipes."""

    name = "sft"
    granularity = "token"
    truth = "worked solutions"
    needs = {DEMONSTRATIONS}
    agents = {"generator": StepSolver, "verifier": StepVerifier}
    lead = "generator"
    overlap = Refused("it imitates: older samples can be corrected in a policy gradient alone")
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused("a warm start is kept for each agent of the runs that begin from it"),
    }
    learns = {"generator": ("cross_entropy",), "verifier": ("cross_entropy",)}
    defaults = {
        "policies": {agent: {"objective": {"preset": "cross_entropy"}, "lr": 1e-5} for agent in ("generator", "verifier")},
    }
    embedded_defaults = {"policies": {agent: {"lr": 2e-4} for agent in ("generator", "verifier")}}
    Options = SftOptions
    options: SftOptions

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        noise = self.options.noise
        return {"generator": StepSolver(dialect, noise), "verifier": StepVerifier(dialect, noise)}

    def schedule(self) -> Schedule:
        # The lead agent comes last in a cycle: a run of N turns ends when both have had their turns.
        return alternate(verifier=self.options.n_verifier, generator=self.options.n_generator)

    def rollout(self, ctx: Context) -> Rollouts:
        """Return one example of the learner for each problem of the turn."""
        return sample_demonstrations(ctx, ctx.learner)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make a cross-entropy train batch of the right examples; the others weigh 0."""
        weights = [float(is_right(rollout)) for rollout in rollouts]
        notes = {"kept": sum(weights) / max(1, len(weights))}
        if ctx.learner == "verifier":
            notes["flawed"] = sum(not rollout.target.correct for rollout in rollouts) / max(1, len(rollouts))
        return [self.train_batch(ctx.learner, rollouts, weights=weights, sources={"demonstrations": 1.0}, notes=notes)]

    def check(self, task: Task) -> None:
        """Refuse worked solutions of which too few can be given a flaw: a verifier would learn to call everything right."""
        problems = task.draw_problems("train", 0, SEARCHED) if self.options.n_verifier else []
        flawed = sum(task.demonstrate_flawed(p, keyed_rng("flawed", p.id)) is not None for p in problems)
        if flawed < LEAST_FLAWED * len(problems):
            count = "none" if flawed == 0 else f"only {flawed}"
            raise ConfigError(
                f"recipe 'sft': {count} of {len(problems)} worked solutions of task '{task.name}' can be given a wrong step, "
                "so the verifier would learn to call everything right; set options.n_verifier=0 to train the generator alone"
            )


def is_right(example: Rollout) -> bool:
    """Whether an example is right: a solution with the right answer and no wrong step; a reply of the data if no answer is
    known; a check whose step and final verdicts are all true."""
    if example.agent == "generator":
        if example.problem.reply is not None and (example.grade is None or example.grade.correct is None):
            return True
        return example.correct == 1.0 and (example.grade is None or example.grade.is_sound is not False)
    truth = example.target.grade.steps if example.target.grade else None
    value = example.verification
    return truth is not None and value.steps == truth and value.final == all(truth)
