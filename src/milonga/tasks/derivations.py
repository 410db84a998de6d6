"""Derivations: chain arithmetic treated as a proof, in which a step may also be missing. Flaws are known exactly.

A proof is complete if every operation has its step and every value is right; a step that starts from a value which nobody
derived (one operation was skipped) is a gap; any wrong value is fatal. Both are counted at the step where they show.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from milonga.errors import UserError
from milonga.tasks.base import Task
from milonga.tasks.chain import STEP, compute
from milonga.types import Problem

GAP, MISTAKE = 0.5, 0.0


def score_from_flaws(flaws: Collection[float]) -> float:
    """Return the score of a proof with these flaws: 1 without any, one gap costs half, anything more costs all."""
    return 1.0 if not flaws else min(flaws) if len(flaws) == 1 else 0.0


def is_exact(task: Task) -> bool:
    """Whether the flaws of a task's proofs are known exactly: chain arithmetic alone."""
    return task.name == "chain"


@dataclass(frozen=True)
class Examination:
    """The exact flaws and checks of a derivation."""

    flaws: dict[int, float]
    """Steps that are defective, each with the score that a proof with this flaw alone deserves."""
    checks: tuple[str, ...]
    """What each step should have arrived at, given the steps before it; `?` for one too many."""

    @property
    def score(self) -> float:
        return score_from_flaws(self.flaws.values())


def find_flaws(problem: Problem, steps: Sequence[str], answer: str | None) -> Examination:
    """Find the flaws of a list of steps. Whatever is missing at the end is a flaw of the last step."""
    chain: Sequence[tuple[str, int]] = problem.data["chain"]
    value, done = problem.data["start"], 0
    flaws: dict[int, float] = {}
    checks = []

    def result(left: int, at: int) -> int:
        return compute(left, chain[at][0], chain[at][1], problem.data["mod"])

    def right(read: tuple[int, str, int, int], left: int, at: int) -> bool:
        return at < len(chain) and read == (left, *chain[at], result(left, at))

    for k, text in enumerate(steps):
        found = STEP.fullmatch(text.partition("\n")[0])  # in prose the answer stands below the last step
        read = (int(found[1]), found[2], int(found[3]), int(found[4])) if found else None
        after = result(value, done) if done < len(chain) else None
        checks.append("?" if after is None else str(after))
        if read and after is not None and not right(read, value, done):
            skips = right(read, after, done + 1)
            flaws[k] = GAP if skips else MISTAKE
            done += skips
        elif read is None or after is None:
            flaws[k] = MISTAKE
        done, value = done + 1, read[3] if read else value
    last = max(0, len(steps) - 1)
    if steps and done == len(chain) - 1 and answer == str(result(value, done)):
        flaws[last] = MISTAKE if last in flaws else GAP
    elif not steps or done < len(chain) or answer != str(value):
        flaws[last] = MISTAKE
    return Examination(flaws, tuple(checks))


def write_derivation(task: Task, problem: Problem, rng: random.Random, score: float) -> tuple[tuple[str, ...], str]:
    """Write a derivation with this true score: complete, with one step left out, or with one or two mistakes."""
    if "chain" not in problem.data or task.step_count(problem) < 2:
        raise UserError(
            "derivations are made of chain arithmetic with at least two operations; use task.name=chain, task.ops=4"
        )
    places = range(task.step_count(problem))
    while True:
        errors = rng.sample(places, rng.choice((1, 1, 2))) if score == MISTAKE else ()
        demonstration = task.demonstrate(problem, rng, errors)
        gone = rng.choice(places[:-1]) if score == GAP else None
        steps = tuple(step for k, step in enumerate(demonstration.steps) if k != gone)
        if find_flaws(problem, steps, demonstration.answer).score == score:  # a misreading may look like a gap
            return steps, demonstration.answer
