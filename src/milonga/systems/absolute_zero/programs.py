"""Programs that the agents propose: running them, making questions about them, and held-out ones for measurement.

A program counts if it can be parsed, runs on its inputs, gives the same in another process, and has short outputs. A held-out
program is never taken: the agents are measured on those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milonga.context import Context
from milonga.systems.absolute_zero.roles import Inputs, Program, Question
from milonga.tasks.code import Code
from milonga.tasks.code_python import extract_source
from milonga.tasks.code_questions import ENTRY, Kind, Worked, is_one_function, make_question_data, parse_call
from milonga.tasks.code_words import infer_signature, render_value
from milonga.types import Problem, Rollout

UNKNOWN, HELD_OUT = "the sandbox could not tell", "its program is held out"
VOID = (UNKNOWN, HELD_OUT)
"""Reasons to leave a proposal out, rather than to penalise its proposer."""


Draft = tuple[str, Sequence[str]]
"""A program and its inputs, as proposed."""


def run_drafts(task: Code, drafts: Sequence[Draft], longest: int) -> list[Worked | str]:
    """Run programs on their inputs. Returns each program with its outputs, or the reason why it does not count."""
    calls = [_parse_calls(task, *draft) for draft in drafts]
    runs = [
        (_make_call_problem(found), _extract_program_source(task, program), [arguments for _, arguments in found])
        for (program, _), found in zip(drafts, calls, strict=True)
        if not isinstance(found, str)
    ]
    results = iter(task.run_programs(runs, twice=True))
    out: list[Worked | str] = []
    for (program, _), found in zip(drafts, calls, strict=True):
        if isinstance(found, str):
            out.append(found)
            continue
        values = next(results)
        outputs = tuple(value for value in values or () if value is not None and len(render_value(value)) <= longest)
        if values is None or len(outputs) == len(values):
            texts = tuple(text for text, _ in found)
            out.append(UNKNOWN if values is None else Worked(_extract_program_source(task, program), texts, outputs))
        else:
            out.append("it does not run, not the same twice, or gives too much")
    return out


def _parse_calls(task: Code, program: str, inputs: Sequence[str]) -> list[tuple[str, tuple[Any, ...]]] | str:
    """Parse the inputs of a draft into distinct calls of one signature; or return the reason why it has none."""
    found = [parse_call(given, _extract_program_source(task, program)) for given in inputs]
    calls = [call for call in found if call is not None]
    if not calls or len(calls) < len(found) or len({text for text, _ in calls}) < len(calls):
        return "its inputs are no literals, or the same"
    names = {infer_signature(arguments) for _, arguments in calls}
    if task.tiny and (len(names) > 1 or len(set(name := names.pop())) < len(name)):
        return "its inputs are not of one signature"
    if not task.tiny and not is_one_function(_extract_program_source(task, program)):
        return f"it is not one function called {ENTRY}"
    return HELD_OUT if task.holds_out_program(_extract_program_source(task, program)) else calls


def _extract_program_source(task: Code, program: str) -> str:
    """Extract the source text of a program."""
    return program.strip() if task.tiny else extract_source(program)


def _make_call_problem(calls: Sequence[tuple[str, tuple[Any, ...]]]) -> Problem:
    """Make the problem for which the task runs calls: it takes signature and entry from a problem."""
    return Problem("", "", "", {"signature": infer_signature(calls[0][1]), "entry": ENTRY})


def make_question(ctx: Context, kind: Kind, worked: Worked, id: str, pairs: int, from_proposal: str | None = None) -> Problem:
    """Make a question about a program; an induction shows the first `pairs` pairs and asks for the others."""
    texts = Question(is_terse(ctx))
    given, output = worked.pairs[0]
    if kind == "deduction":
        text, answer = texts.render_deduction(worked.program, given), output
    elif kind == "abduction":
        text, answer = texts.render_abduction(worked.program, output), given
    else:
        text, answer = texts.render_induction(worked.pairs[:pairs]), worked.program
    return Problem(id, text, answer, make_question_data(worked, kind, pairs), from_proposal)


def is_terse(ctx: Context) -> bool:
    """Whether the run uses the terse dialect."""
    return ctx.role("deducer").dialect == "terse"


def extract_draft(proposal: Rollout) -> Draft:
    """Extract the draft of a proposal: a program with an input, or inputs for the program that was shown."""
    data = proposal.problem.data
    if "program" in data:
        return data["program"], proposal.parsed.get(Inputs).inputs
    drafted = proposal.parsed.get(Program)
    return drafted.program, (drafted.input,)
