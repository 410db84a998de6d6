"""What the embedded base `bugs` is taught, and how well it has learned it.

Both roles of the task `bugs`, by a noisy teacher, on repositories of the train split: who repairs, and who breaks. The right
answer is the mode of what it shows, and sampling is poor.

    python scripts/base_bugs.py
"""

from __future__ import annotations

import argparse
import random
from functools import lru_cache
from itertools import count

from milonga.randomness import keyed_rng
from milonga.roles import StepSolver
from milonga.roles.demonstrate import Example, make_solver_example
from milonga.systems.self_play_swe.roles import Injector, make_injector_request
from milonga.tasks.bugs import Bugs, BugsOptions
from milonga.tasks.bugs_checks import CHECKS, Injection, Requirements
from milonga.tasks.bugs_tiny import (
    NAMES,
    PREFIX,
    WAYS,
    draw_edits,
    find_removed_tests,
    hide_bug,
    mutate_line,
    parse_tests,
    render_lines,
    render_test_ids,
)
from milonga.types import Problem

SLIP, WRONG = 0.25, 0.3
"""How often an edit of the repairer is wrong, and an artifact of the injector."""
PATIENCE = 1000
"""Draws of one way to break a repository: a few know no bug of that way."""
TASK = Bugs(BugsOptions(seed=1))
SOLVER, INJECTOR = StepSolver("terse"), Injector("terse")


def row(rng: random.Random, step: int, number: int) -> Example:
    """One example: half of them repair. Two rows in a row are about one repository, which takes longer to draw than to show."""
    problem = drawn(number // 2)
    return make_solver_example(TASK, problem, SOLVER, SLIP, rng) if rng.random() < 0.5 else inject(problem, rng)


@lru_cache(maxsize=4)
def drawn(index: int) -> Problem:
    return TASK.problem("train", index)


def inject(problem: Problem, rng: random.Random) -> Example:
    """An artifact that passes the checks; sometimes another line, or other tests, take the place of the right ones."""
    repository, way = problem.data["bug"].repository, ""
    for tries in count():
        if tries % PATIENCE == 0:
            way = rng.choice(sorted(WAYS))
        artifact = hide_bug(repository, draw_edits(repository, way, rng.randint(1, TASK.options.changed), rng), rng)
        if TASK.check_artifact(repository, artifact, Requirements()).failed is None:
            break
    lines = {name: line for name, line in artifact.bug.items() if line is not None}
    removed = list(find_removed_tests(repository.tests, artifact.weaken))
    if rng.random() < WRONG:
        name = rng.choice(sorted(lines))
        if rng.random() < 0.5:
            lines[name] = repository.code[name] if rng.random() < 0.5 else mutate_line(lines[name], NAMES[:1], rng)
        removed = rng.sample(every_test(repository.tests), len(removed))
    told = make_injector_request(problem, way, TASK.repositories.render_for_injector(repository))
    return Example(INJECTOR.prompt(told), INJECTOR.write(Injection(render_lines(lines), render_test_ids(removed))))


def every_test(tests: dict[str, str]) -> list[str]:
    return [f"{path.removeprefix(PREFIX)}{x}" for path, text in sorted(tests.items()) for x in parse_tests(text) or {}]


def main() -> None:
    """The share of right outputs of the embedded model on held-out repositories, sampled at temperature 1 and greedily."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded/bugs")
    parser.add_argument("--count", type=int, default=300, help="prompts for each role")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    from milonga.config import PolicySection
    from milonga.engine import Decoding, Request
    from milonga.engine.local import LocalEngine

    engine = LocalEngine({"p": PolicySection(model=args.model)}, args.device, 512)
    task = Bugs()
    problems = [task.problem("dev", n) for n in range(args.count)]
    ways = [keyed_rng("way", n).choice(["history", "removal"]) for n in range(args.count)]
    asked = [
        make_injector_request(p, way, task.repositories.render_for_injector(p.data["bug"].repository))
        for p, way in zip(problems, ways, strict=True)
    ]
    for name, greedy in (("sampled", False), ("greedy", True)):
        texts = {}
        for role, prompts in (
            ("solver", [SOLVER.prompt(p) for p in problems]),
            ("injector", [INJECTOR.prompt(p) for p in asked]),
        ):
            requests = [Request(ids, n) for n, ids in enumerate(engine.encode_all("p", prompts))]
            texts[role] = [out.text for out in engine.sample("p", requests, Decoding(80, 1.0, (), greedy), "live")]
        right = [
            bool(task.grade(p, SOLVER.parse(t).value.answer, ()).correct)
            for p, t in zip(problems, texts["solver"], strict=True)
        ]
        ends = [judged(task, p, t) for p, t in zip(problems, texts["injector"], strict=True)]
        failed = {end: ends.count(end) for end in ("valid", "unreadable", *CHECKS) if end in ends}
        print(f"{name:8s} repaired {sum(right) / len(right):.2f}  artifacts {failed}", flush=True)


def judged(task: Bugs, problem: Problem, text: str) -> str:
    """The first check that an artifact fails; `valid` where there is none."""
    artifact = task.parse_artifact(problem.data["bug"].repository, INJECTOR.parse(text).value)
    if artifact is None:
        return "unreadable"
    return task.check_artifact(problem.data["bug"].repository, artifact, Requirements()).failed or "valid"


if __name__ == "__main__":
    main()
