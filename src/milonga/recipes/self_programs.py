"""Programs that the players make up: running them, asking about them, and held-out ones to measure by.

A program counts if it can be read, runs on its inputs, does the same in another process, and writes out short. None whose text
falls into a held-out split is ever taken: on those the players are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milonga.roles.programs import Question
from milonga.table import Table
from milonga.tasks.base import split_of
from milonga.tasks.code import Code
from milonga.tasks.code_python import source_in
from milonga.tasks.code_questions import ENTRY, Kind, Worked, as_call, asking, one_function
from milonga.tasks.code_words import names_of, shown, written
from milonga.types import Problem, Split, Trace

UNKNOWN, HELD_OUT = "the sandbox could not tell", "its program is held out"
VOID = (UNKNOWN, HELD_OUT)
"""Why a proposal is left out, rather than held against who made it."""
SCANNED = 40
"""Held-out functions that are looked at for each one that is measured on; a tenth of them will do."""
Draft = tuple[str, Sequence[str]]
"""A program and its inputs, as somebody wrote them."""


def code_of(table: Table) -> Code:
    assert isinstance(table.setting.task, Code)  # the recipe takes no other
    return table.setting.task


def run_drafts(task: Code, drafts: Sequence[Draft], longest: int) -> list[Worked | str]:
    """Programs with what they give for their inputs; or why one does not count."""
    calls = [calls_of(task, *draft) for draft in drafts]
    runs = [
        (called_by(found), source(task, program), [arguments for _, arguments in found])
        for (program, _), found in zip(drafts, calls, strict=True)
        if not isinstance(found, str)
    ]
    results = iter(task.ran(runs, twice=True))
    out: list[Worked | str] = []
    for (program, _), found in zip(drafts, calls, strict=True):
        if isinstance(found, str):
            out.append(found)
            continue
        values = next(results)
        outputs = tuple(value for value in values or () if value is not None and len(shown(value)) <= longest)
        if values is None or len(outputs) == len(values):
            texts = tuple(text for text, _ in found)
            out.append(UNKNOWN if values is None else Worked(source(task, program), texts, outputs))
        else:
            out.append("it does not run, not the same twice, or gives too much")
    return out


def valid(found: Sequence[Worked | str]) -> list[Worked]:
    return [worked for worked in found if isinstance(worked, Worked)]


def calls_of(task: Code, program: str, inputs: Sequence[str]) -> list[tuple[str, tuple[Any, ...]]] | str:
    """The calls of a draft, different ones of one signature; or why it has none."""
    found = [as_call(given) for given in inputs]
    calls = [call for call in found if call is not None]
    if not calls or len(calls) < len(found) or len({text for text, _ in calls}) < len(calls):
        return "its inputs are no literals, or the same"
    names = {names_of(arguments) for _, arguments in calls}
    if task.tiny and (len(names) > 1 or len(set(name := names.pop())) < len(name)):
        return "its inputs are not of one signature"
    if not task.tiny and not one_function(source(task, program)):
        return f"it is not one function called {ENTRY}"
    return calls if split_of(source(task, program)) == "train" else HELD_OUT


def source(task: Code, program: str) -> str:
    return program.strip() if task.tiny else source_in(program)


def called_by(calls: Sequence[tuple[str, tuple[Any, ...]]]) -> Problem:
    """Whom the task runs for: it takes signature and entry from a problem."""
    return Problem("", "", "", {"signature": names_of(calls[0][1]), "entry": ENTRY})


def question(table: Table, kind: Kind, worked: Worked, id: str, pairs: int, from_proposal: str | None = None) -> Problem:
    """A question about a program; of an induction the first `pairs` are told, and the others asked for."""
    texts = Question(terse_in(table))
    given, output = worked.pairs[0]
    if kind == "deduction":
        text, answer = texts.deduction(worked.program, given), output
    elif kind == "abduction":
        text, answer = texts.abduction(worked.program, output), given
    else:
        text, answer = texts.induction(worked.pairs[:pairs]), worked.program
    return Problem(id, text, answer, asking(worked, kind, pairs), from_proposal)


def terse_in(table: Table) -> bool:
    return table.setting.roles["deducer"].dialect == "terse"


def draft_of(proposal: Trace) -> Draft:
    """What was proposed: a program with an input, or inputs for the program that was shown."""
    value, data = proposal.reading.value, proposal.problem.data
    if "program" in data:
        return data["program"], value.inputs
    return value.program, (value.input,)


def of_task(problem: Problem, kind: Kind, inputs: int) -> Worked:
    """A function of the task as somebody might have made it up: with one of its calls, or with several."""
    number = {"deduction": slice(0, 1), "abduction": slice(1, 2), "induction": slice(0, inputs)}[kind]
    calls = tuple(written(call) for call in problem.data["inputs"][number])
    return Worked(problem.answer, calls, tuple(problem.data["outputs"][number]))


def ladder(task: Code, split: Split, count: int) -> list[Problem]:
    """Functions of a held-out split whose programs nobody may make up, and that have one."""
    size = task.size(split)
    most = SCANNED * count if size is None else min(size, SCANNED * count)
    found: list[Problem] = []
    for index in range(most):
        problem = task.problem(split, index)
        if problem.answer and split_of(problem.answer) == split:
            found.append(problem)
        if len(found) == count:
            break
    return found
