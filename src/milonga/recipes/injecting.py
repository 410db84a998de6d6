"""Bugs that a model puts into repositories: asking for them, checking them, and what failed repairs make of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from milonga.evals.metrics import mean
from milonga.roles.repairs import request
from milonga.table import Table
from milonga.tasks.base import keyed
from milonga.tasks.bugs import Bugs
from milonga.tasks.bugs_checks import Bug, Injection, NoVerdict, Repository, Requirements, changed_files
from milonga.types import Problem, Trace, Traces


@dataclass(frozen=True)
class Found:
    """What became of an artifact."""

    end: str
    """`valid`; a check that failed; `unreadable`; `known` from an earlier turn; `held_out`, or `unknown`: nobody could tell."""
    first: str = ""
    """The trace that handed in the same bug first in this turn, which is the one that is posed."""
    key: str = ""
    """What makes a bug the same as another: the repository and the edits."""
    problem: Problem | None = None
    entry: tuple[int, str, str, str] | None = None
    """From what the bug can be made again: the repository's index, and the texts of the artifact."""


def bugs_of(table: Table) -> Bugs:
    task = table.setting.task
    assert isinstance(task, Bugs)
    return task


def injections(table: Table, prompts: Sequence[str], n: int, count: int | None = None) -> Traces:
    """`n` artifacts for each repository of the turn, each asked for by a prompt that is drawn."""
    task, asked = bugs_of(table), []
    first = table.start + table.drawn
    for number, problem in enumerate(table.problems(count)):
        kind = keyed("prompt", table.setting.seed, table.turn, number).choice(sorted(prompts))
        text = task.repositories.injector_text(problem.data["bug"].repository)
        told = request(problem, kind, text)
        asked.append(replace(told, data={**told.data, "index": first + number}))
    return table.ask("injector", asked, n)


def judged(table: Table, injected: Traces, least: Requirements, seen: Collection[str]) -> dict[str, Found]:
    """What became of each artifact, by its trace. The same bug is posed once in a turn, and never again."""
    found: dict[str, Found] = {}
    firsts: dict[str, Found] = {}
    for trace in injected:
        one = examined(table, trace, least)
        if one.end == "valid" and one.key in firsts:
            one = Found("valid", firsts[one.key].first)
        elif one.end == "valid" and one.key in seen:
            one = Found("known")
        elif one.key:
            firsts[one.key] = one
        if one.end == "unknown":
            table.dropped["injector: the checks could not be made"] += 1
        found[trace.id] = one
    return found


def examined(table: Table, trace: Trace, least: Requirements) -> Found:
    task, repository = bugs_of(table), trace.problem.data["bug"].repository
    injection: Injection = trace.reading.value
    try:
        end, bug = checked(task, repository, injection, least) if trace.reading.valid else ("unreadable", None)
    except NoVerdict:
        return Found("unknown")
    if bug is None:
        return Found(end)
    if table.split == "train" and task.repositories.split(part_of(bug)) != "train":
        return Found("held_out")
    problem = ordered(task.posed(f"{trace.id}/bug", bug, trace.id), 1)
    entry = (trace.problem.data["index"], injection.bug, injection.weaken, injection.oracle)
    return Found("valid", trace.id, key_of(bug), problem, entry)


def checked(task: Bugs, repository: Repository, injection: Injection, least: Requirements) -> tuple[str, Bug | None]:
    artifact = task.artifact(repository, injection)
    if artifact is None:
        return "unreadable", None
    verdict = task.check(repository, artifact, least)
    return ("valid", Bug(repository, artifact, verdict)) if verdict.failed is None else (verdict.failed, None)


def part_of(bug: Bug) -> dict[str, str]:
    return {path: text for path, text in bug.state.items() if path in bug.repository.code}


def key_of(bug: Bug) -> str:
    """The repository and its edits, white space aside: the same place broken in the same way is the same bug."""
    edits = [
        (path, "".join((bug.artifact.bug[path] or "").split())) for path in changed_files(bug.repository.code, bug.artifact.bug)
    ]
    return repr((bug.repository.name, edits))


def ordered(problem: Problem, order: int) -> Problem:
    return replace(problem, data={**problem.data, "order": order})


def second_order(table: Table, attempts: Traces, chance: float) -> list[Problem]:
    """For some of the bugs, a failed patch as the start of a new one, with the same specification; never beyond order 2."""
    task, failed = bugs_of(table), dict[str, Trace]()
    for trace in attempts:
        patch = task.patch(trace.problem, trace.reading.value.answer)
        if trace.correct == 0 and patch and changed_files(trace.problem.data["start"], patch):
            failed.setdefault(trace.problem.id, trace)
    again = []
    for id, trace in failed.items():
        bug: Bug = trace.problem.data["bug"]
        patch = task.patch(trace.problem, trace.reading.value.answer) or {}
        code = {path: text for path, text in patch.items() if path in bug.repository.code}
        broken = {**part_of(bug), **{path: text for path, text in code.items() if text is not None}}
        fits = bool(code) and task.repositories.split(broken) == "train"
        if fits and keyed("second", table.setting.seed, table.turn, id).random() < chance:
            again.append(ordered(task.posed(f"{id}+", bug, trace.problem.source, code), 2))
    return again


def held_back(table: Table, pool: Sequence[Any], count: int, least: Requirements) -> list[Problem]:
    """Bugs of earlier turns, drawn from their texts."""
    task, rng = bugs_of(table), keyed("pool", table.setting.seed, table.turn)
    made = []
    for number, (index, *texts) in enumerate(rng.sample(list(pool), min(count, len(pool)))):
        repository = task.repositories.bug("train", int(index)).repository
        try:
            bug = checked(task, repository, Injection(*texts), least)[1]
        except NoVerdict:
            table.dropped["pool: the checks could not be made"] += 1
            continue
        if bug is not None:
            made.append(ordered(task.posed(f"pool/{table.turn}/{number}", bug), 1))
    return made


def overfitted(table: Table, count: int) -> float | None:
    """Of the repairs that pass all tests, the share that gives something else than the original where nothing is tested."""
    task = bugs_of(table)
    solved = table.ask("generator", table.problems(count)).keep(lambda t: t.correct == 1)
    holds = [task.holds_beyond(trace.problem, trace.reading.value.answer) for trace in solved]
    return mean([float(not held) for held in holds if held is not None])
