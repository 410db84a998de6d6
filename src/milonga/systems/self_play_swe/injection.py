"""Bugs that a model injects into repositories: sampling them, checking them, and new bugs made from failed repairs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.systems.self_play_swe.roles import make_injector_request
from milonga.tasks.bugs import Bugs
from milonga.tasks.bugs_checks import Bug, Injection, NoVerdict, Repository, Requirements, list_changed_files
from milonga.types import Problem, Rollout, Rollouts


@dataclass(frozen=True)
class Found:
    """The result of checking one injected artifact."""

    end: str
    """`valid`; the check that failed; `unreadable`; `known` from an earlier turn; `held_out`; `unknown` without a verdict."""
    first: str = ""
    """The id of the first rollout of this turn with the same bug. Only that one becomes a problem."""
    key: str = ""
    """The identity of a bug: the repository and the edits."""
    problem: Problem | None = None
    entry: tuple[int, str, str, str] | None = None
    """What the bug can be rebuilt from: the repository's index, and the texts of the artifact."""


def _get_bugs_task(ctx: Context) -> Bugs:
    """Return the run's task, which must be `Bugs`."""
    task = ctx.task
    assert isinstance(task, Bugs)
    return task


def sample_injections(ctx: Context, prompts: Sequence[str], n: int, count: int | None = None) -> Rollouts:
    """Sample `n` artifacts for each repository of the turn, each with a randomly drawn kind of prompt."""
    task, asked = _get_bugs_task(ctx), []
    first = ctx.start + ctx.drawn
    for number, problem in enumerate(ctx.problems(count)):
        kind = ctx.rng("prompt", number).choice(sorted(prompts))
        text = task.repositories.render_for_injector(problem.data["bug"].repository)
        request = make_injector_request(problem, kind, text)
        asked.append(replace(request, data={**request.data, "index": first + number}))
    return ctx.ask("injector", asked, n)


def judge_injections(ctx: Context, injected: Rollouts, least: Requirements, seen: Collection[str]) -> dict[str, Found]:
    """Check each artifact; the results are by rollout id. The same bug becomes a problem once in a turn, and never again."""
    found: dict[str, Found] = {}
    firsts: dict[str, Found] = {}
    for rollout in injected:
        one = _examine_injection(ctx, rollout, least)
        if one.end == "valid" and one.key in firsts:
            one = Found("valid", firsts[one.key].first)
        elif one.end == "valid" and one.key in seen:
            one = Found("known")
        elif one.key:
            firsts[one.key] = one
        if one.end == "unknown":
            ctx.dropped["injector: the checks could not be made"] += 1
        found[rollout.id] = one
    return found


def _examine_injection(ctx: Context, rollout: Rollout, least: Requirements) -> Found:
    """Check one artifact by itself, without regard to duplicates."""
    task, repository = _get_bugs_task(ctx), rollout.problem.data["bug"].repository
    injection = rollout.parsed.get(Injection)
    try:
        end, bug = check_injection(task, repository, injection, least) if rollout.parsed.is_valid else ("unreadable", None)
    except NoVerdict:
        return Found("unknown")
    if bug is None:
        return Found(end)
    if ctx.split == "train" and task.repositories.find_split(_get_broken_code(bug)) != "train":
        return Found("held_out")
    problem = _set_bug_order(task.make_problem(f"{rollout.id}/bug", bug, rollout.id), 1)
    entry = (rollout.problem.data["index"], injection.bug, injection.weaken, injection.oracle)
    return Found("valid", rollout.id, _make_bug_key(bug), problem, entry)


def check_injection(task: Bugs, repository: Repository, injection: Injection, least: Requirements) -> tuple[str, Bug | None]:
    """Run the checks on an injection. Return how it ended, and the bug where it is valid."""
    artifact = task.parse_artifact(repository, injection)
    if artifact is None:
        return "unreadable", None
    verdict = task.check_artifact(repository, artifact, least)
    return ("valid", Bug(repository, artifact, verdict)) if verdict.failed is None else (verdict.failed, None)


def _get_broken_code(bug: Bug) -> dict[str, str]:
    """Return the repository's code files with the bug in them, path to text."""
    return {path: text for path, text in bug.state.items() if path in bug.repository.code}


def _make_bug_key(bug: Bug) -> str:
    """Return the identity of a bug: the repository and its edits without white space. The same edit in the same place is the
    same bug."""
    edits = [
        (path, "".join((bug.artifact.bug[path] or "").split()))
        for path in list_changed_files(bug.repository.code, bug.artifact.bug)
    ]
    return repr((bug.repository.name, edits))


def _set_bug_order(problem: Problem, order: int) -> Problem:
    """Return the problem with its bug order (1 or 2) in the data."""
    return replace(problem, data={**problem.data, "order": order})


def make_second_order_bugs(ctx: Context, attempts: Rollouts, chance: float) -> list[Problem]:
    """Make second-order bugs: for some bugs, a failed patch is the start of a new bug with the same specification. There is no
    order above 2."""
    task, failed = _get_bugs_task(ctx), dict[str, Rollout]()
    for rollout in attempts:
        patch = task.parse_patch(rollout.problem, rollout.solution.answer)
        if rollout.correct == 0 and patch and list_changed_files(rollout.problem.data["start"], patch):
            failed.setdefault(rollout.problem.id, rollout)
    again = []
    for id, rollout in failed.items():
        bug: Bug = rollout.problem.data["bug"]
        patch = task.parse_patch(rollout.problem, rollout.solution.answer) or {}
        code = {path: text for path, text in patch.items() if path in bug.repository.code}
        broken = {**_get_broken_code(bug), **{path: text for path, text in code.items() if text is not None}}
        fits = bool(code) and task.repositories.find_split(broken) == "train"
        if fits and ctx.rng("second", id).random() < chance:
            again.append(_set_bug_order(task.make_problem(f"{id}+", bug, rollout.problem.source, code), 2))
    return again


def draw_pool_bugs(ctx: Context, pool: Sequence[Any], count: int, least: Requirements) -> list[Problem]:
    """Draw bugs of earlier turns from the pool, rebuilt from their texts and checked again."""
    task, rng = _get_bugs_task(ctx), ctx.rng("pool")
    problems = []
    for number, (index, *texts) in enumerate(rng.sample(list(pool), min(count, len(pool)))):
        repository = task.repositories.make_bug("train", int(index)).repository
        try:
            bug = check_injection(task, repository, Injection(*texts), least)[1]
        except NoVerdict:
            ctx.dropped["pool: the checks could not be made"] += 1
            continue
        if bug is not None:
            problems.append(_set_bug_order(task.make_problem(f"pool/{ctx.turn}/{number}", bug), 1))
    return problems


def measure_overfitting(ctx: Context, count: int) -> float | None:
    """Return the share of repairs that pass all tests but differ from the original program on untested inputs."""
    task = _get_bugs_task(ctx)
    solved = ctx.ask("generator", ctx.problems(count)).select(lambda t: t.correct == 1)
    holds = [task.matches_on_all_inputs(rollout.problem, rollout.solution.answer) for rollout in solved]
    return mean([float(not held) for held in holds if held is not None])
