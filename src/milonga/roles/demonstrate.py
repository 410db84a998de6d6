"""Demonstrations of the roles by a noisy teacher. They warm-start models (SFT) and build fixed sets of solutions.

A model trained on clean demonstrations is either too poor or perfect; one trained on noisy ones is in the regime of a real base
model: the right step is the mode, sampling is poor, and reinforcement learning has something to sharpen.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from milonga.roles.solver import StepSolver, demonstration_to_rollout
from milonga.roles.verifier import StepVerifier
from milonga.roles.yes_no import YesNoVerifier
from milonga.tasks.base import Task
from milonga.types import Problem, Prompt, Rollout


@dataclass(frozen=True)
class Example:
    """A prompt and the text that should follow it."""

    prompt: Prompt
    completion: str


def make_solver_example(task: Task, problem: Problem, solver: StepSolver, slip: float, rng: random.Random) -> Example:
    """Make an SFT example: a solution in which each step is wrong with probability `slip`."""
    errors = {k for k in range(task.step_count(problem)) if rng.random() < slip}
    shown = task.demonstrate(problem, rng, errors)
    return Example(solver.prompt(problem), solver.write(shown.steps, shown.answer))


def draw_errors(count: int, rng: random.Random) -> set[int]:
    """Draw the wrong steps of a solution that a verifier is shown: none in half of the cases, since one that is warmed up on
    rare errors learns to say "correct" to everything."""
    if rng.random() >= 0.5:
        return set()
    rate = rng.choice((0.0, 0.2, 0.5))
    return {k for k in range(count) if rng.random() < rate} or {rng.randrange(count)}


def make_verifier_example(
    task: Task, problem: Problem, roles: tuple[StepSolver, StepVerifier], flip: float, rng: random.Random
) -> Example:
    """Make an SFT example: a verification whose step verdicts are each flipped with probability `flip`.

    The final verdict follows from the step verdicts.
    """
    solver, verifier = roles
    shown = task.demonstrate(problem, rng, draw_errors(task.step_count(problem), rng))
    verdicts = [right != (rng.random() < flip) for right in shown.truth]
    solution = demonstration_to_rollout(shown, problem, solver, "demonstration")
    return Example(verifier.prompt(problem, solution), verifier.write(verdicts, all(verdicts), shown.checks))


def write_check(
    task: Task, solution: Rollout, verifier: StepVerifier | YesNoVerifier, corrupt: float, rng: random.Random
) -> str:
    """Write the check of a given solution: each step is redone and compared; the final verdict follows.

    With probability `corrupt` the verdict on one step is flipped, like an annotator's error. Some of these checks get the
    final verdict wrong and can be filtered by it; others are right for the wrong reasons.
    """
    if solution.grade is None or not solution.grade.steps:
        raise ValueError(f"solution {solution.id} has no steps with a known truth")
    verdicts = list(solution.grade.steps)
    if rng.random() < corrupt:
        turned = rng.randrange(len(verdicts))
        verdicts[turned] = not verdicts[turned]
    steps = solution.solution.steps
    return verifier.write(verdicts, all(verdicts), task.redo_steps(solution.problem, steps))
