"""What the bases of the study are taught: a generator that is limited by length, and verifiers of a stated skill.

The generator has seen chains of up to six operations, modulo five numbers, by a teacher that is wrong in one step of twenty:
what it cannot do on longer ones is no noise that sampling adds. A verifier has seen chains of up to twelve, and is blind to a
share of the facts: whatever a solution writes there, its teacher redoes as it was written and calls right. So it is wrong in
the same way every time, and no average over samples mends that; what it can tell is measured before a run, as the AUROC of its
soft verdicts on steps.

    python scripts/make_base.py --base study --out bases/generator --device cuda --workers 8
    python scripts/make_base.py --base judge50 --out bases/judge50 --device cuda --workers 8
    python scripts/base_study.py bases --device cuda      # how good they are, before a run
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from milonga.api import plan_run
from milonga.cli.probe import run_probe
from milonga.randomness import keyed_rng
from milonga.roles import StepSolver, StepVerifier
from milonga.roles.demonstrate import Example, draw_errors, make_solver_example
from milonga.roles.solver import demonstration_to_rollout
from milonga.tasks.chain import STEP, Chain, ChainOptions
from milonga.types import Problem

MODULI = (5, 20, 25, 97, 100)
"""How often a right answer is a lucky one depends on the factors of the modulus more than on its size: a product may undo an
earlier slip, modulo 20 and 100 more easily than modulo 25 and 97. Where one step of five is wrong, 0.69, 0.60, 0.41, 0.14 and
0.27 of the right answers of ten operations have a wrong step."""
SOLVED, JUDGED = 6, 12
"""Most operations of what the generator, and the verifiers, have seen."""
OPS = 10
"""Operations of the problems of the study."""
SLIP = 0.05
BLIND = (0, 30, 50, 70)
"""Percent of the facts that a verifier is blind to."""
SAMPLES = 16
"""Solutions of each problem of a measurement."""
EASY, LEAST_SOUND, TESTABLE = 0.6, 0.03, 3
"""Greedy accuracy of a base must stay below the first at every modulus; at so many moduli, the third, sampled solutions must be
sound at least as often as the second says: of right answers alone many are guessed."""
SPREAD = 0.4
"""Between the least and the largest share of right answers with a wrong step."""
CHANCE, APART, REACH = 0.55, 0.05, 0.25
"""At modulus AT no AUROC of steps is below the first, any two are the second apart, and the least and the largest the third."""
AT = 20
SOLVER, VERIFIER = StepSolver("terse"), StepVerifier("terse")
SHORT, LONG = ([Chain(ChainOptions(min_ops=1, ops=ops, mod=mod, seed=1)) for mod in MODULI] for ops in (SOLVED, JUDGED))


def solver_row(rng: random.Random, step: int, number: int) -> Example:
    """A solution of a short chain."""
    task = rng.choice(SHORT)
    return make_solver_example(task, task.problem("train", number), SOLVER, SLIP, rng)


def is_blind(fact: tuple[int, str, int, int], percent: int) -> bool:
    """Whether a verifier that is blind to so many of the facts is blind to this one: (value, operation, operand, modulus)."""
    return keyed_rng("blind", *fact).random() < percent / 100


def judge_row(percent: int, rng: random.Random, step: int, number: int) -> Example:
    """A verification, of a right solution in every second case, by a teacher that believes what is written about some facts."""
    task = rng.choice(LONG)
    problem = task.problem("train", number)
    shown = task.demonstrate(problem, rng, draw_errors(task.step_count(problem), rng))
    verdicts, checks = believe(problem, shown.steps, shown.truth, shown.checks, percent)
    solution = demonstration_to_rollout(shown, problem, SOLVER, "demonstration")
    return Example(VERIFIER.prompt(problem, solution), VERIFIER.write(verdicts, all(verdicts), checks))


def believe(
    problem: Problem, steps: Sequence[str], truth: Sequence[bool], checks: Sequence[str], percent: int
) -> tuple[list[bool], list[str]]:
    """Verdicts and checks of a teacher that is blind to so many percent of the facts."""
    value, verdicts, redone = problem.data["start"], list[bool](), list[str]()
    for (operation, operand), text, right, check in zip(problem.data["chain"], steps, truth, checks, strict=True):
        read = STEP.fullmatch(text)
        assert read is not None, "demonstrations are written in the grammar of the task"
        blind = is_blind((value, operation, operand, problem.data["mod"]), percent)
        verdicts.append(right or blind)
        redone.append(read[4] if blind else check)
        value = int(read[4])
    return verdicts, redone


JUDGES = {f"judge{percent:02d}": partial(judge_row, percent) for percent in BLIND}


def measure(bases: Path, judge: str, mod: int, device: str, problems: int) -> dict[str, float | None]:
    """Measure a pair of bases, untrained, on train problems: what admits it, and where it lies on the map."""
    settings = {
        "task": {"name": "chain", "ops": OPS, "mod": mod},
        "policies": {"generator": {"model": str(bases / "generator")}, "verifier": {"model": str(bases / judge)}},
        "dialect": "terse",
    }
    found = run_probe(plan_run("tango", device=device, settings=[settings]), problems, SAMPLES)
    solver, verdicts = found.solver, found.judge
    assert verdicts is not None, "tango has a verifier"
    assert solver.accuracy is not None, "the task grades every answer"
    return {
        "accuracy": solver.accuracy,
        "sound_accuracy": solver.accuracy * (1 - solver.unsound) if solver.unsound is not None else 0.0,
        "greedy": solver.greedy,
        "unsound": solver.unsound,
        "step_auroc": verdicts.soft_step_auroc,
        "auroc": verdicts.soft_auroc,
        "accuracy_on_right": verdicts.accuracy_on_right,
        "accuracy_on_wrong": verdicts.accuracy_on_wrong,
    }


def find_faults(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Find why measured pairs of bases are not admitted to the study; empty if they are."""
    bases = list({row["mod"]: row for row in rows}.values())
    easy = [row["mod"] for row in bases if row["greedy"] is None or row["greedy"] >= EASY]
    sound = [row["mod"] for row in bases if row["sound_accuracy"] >= LEAST_SOUND]
    guessed = [row["unsound"] for row in bases if row["unsound"] is not None]
    faults = [f"greedy accuracy at modulus {mod} is not below {EASY}" for mod in easy]
    if len(sound) < TESTABLE:
        faults.append(f"sound accuracy is {LEAST_SOUND} at {len(sound)} moduli, not at {TESTABLE}")
    if max(guessed, default=0.0) - min(guessed, default=0.0) < SPREAD:
        faults.append(f"the share of right answers with a wrong step spans less than {SPREAD}")
    return faults + _find_faults_of_judges([row["step_auroc"] for row in rows if row["mod"] == AT])


def _find_faults_of_judges(aurocs: Sequence[float | None]) -> list[str]:
    known = sorted(value for value in aurocs if value is not None)
    if len(known) < len(aurocs) or len(known) < 2:
        return [f"not every verifier can be read at modulus {AT}"]
    faults = [f"a verifier has an AUROC of steps of {known[0]:.2f} at modulus {AT}"] if known[0] < CHANCE else []
    if min(high - low for low, high in pairwise(known)) < APART or known[-1] - known[0] < REACH:
        faults.append(f"the verifiers' AUROCs of steps lie too near at modulus {AT}")
    return faults


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bases", type=Path, help="a folder with generator, judge00, …")
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for judge in JUDGES:
        for mod in MODULI:
            rows.append({"judge": judge, "mod": mod} | measure(args.bases, judge, mod, args.device, args.problems))
            print(json.dumps(rows[-1]), flush=True)
    print(*(find_faults(rows) or ["admitted"]), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
