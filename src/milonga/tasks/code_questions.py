"""Questions about programs, whose answers running them tells: what comes out, what must go in, or which program it was.

What is asked stands in the data of a problem: `output` (the answer is a literal), `input` (arguments of a call), and otherwise
a program, as of any function with hidden tests. Answers are data: they are read as literals and handed over as arguments, and
never become part of a source.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from milonga.reading import NOT_PYTHON, parse_python
from milonga.sandbox.values import Canonical, InvalidValue, parse_arguments, parse_literal, to_canonical
from milonga.tasks.code_python import build_source
from milonga.tasks.code_words import infer_signature, render_arguments, render_value
from milonga.types import Problem

Kind = Literal["deduction", "abduction", "induction"]
KINDS: tuple[Kind, ...] = ("deduction", "abduction", "induction")
ENTRY = "f"
"""What a Python function is called that somebody made up."""
BRACKETS = ("([{", ")]}")
GIVEN = ("input", "inputs")
"""What models call an input that they assign below a program."""
BREAK = re.compile(r"\r\n?|\n")
"""What ends a line of Python."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PROGRAM = {"form": "program"}
"""What tells solvers that the answer is a program: `Problem.wants_program`."""


@dataclass(frozen=True)
class Worked:
    """A program with inputs, as they are written, and what it gave for them."""

    program: str
    inputs: tuple[str, ...]
    outputs: tuple[Canonical, ...]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(given, render_value(output)) for given, output in zip(self.inputs, self.outputs, strict=True)]

    def has_question(self, kind: Kind, told: int) -> bool:
        """Whether there is anything to ask: of an induction, pairs beyond those that are told."""
        return len(self.inputs) > (told if kind == "induction" else 0)


def make_worked_example(problem: Problem, kind: Kind, inputs: int) -> Worked:
    """Make an example from a function of the task `code` as if somebody had proposed it: with one of its calls, or with
    several, and with the name of any such function, since its own may tell what it does. What is not tested by calls, has one
    that is too long to be an answer, or cannot be renamed, leaves no question."""
    number = {"deduction": slice(0, 1), "abduction": slice(1, 2), "induction": slice(0, inputs)}[kind]
    program = rename_function(build_source(problem, problem.answer), problem.data["entry"])
    calls = tuple(render_arguments(call) for call in problem.data["inputs"][number])
    if program is None or None in map(parse_call, calls):
        return Worked("", (), ())
    return Worked(program, calls, tuple(problem.data["outputs"][number]))


def rename_function(source: str, name: str) -> str | None:
    """Rename a function to `ENTRY` wherever its name stands; None if something else is called so already, if its name is also
    that of an attribute or argument, if it is called from within a string, or if the source cannot be read. A program of the
    tiny dialect has no name, and stays as it is."""
    if name in ("", ENTRY):
        return source
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return None
    if any(token.type == tokenize.NAME and token.string == ENTRY for token in tokens) or _names_another(tokens, name):
        return None
    lines = source.split("\n")
    for token in reversed([token for token in tokens if token.type == tokenize.NAME and token.string == name]):
        row, column = token.start
        lines[row - 1] = lines[row - 1][:column] + ENTRY + lines[row - 1][column + len(name) :]
    renamed = "\n".join(lines)
    return None if f"{name}(" in renamed else renamed


def _names_another(tokens: Sequence[tokenize.TokenInfo], name: str) -> bool:
    """Whether a name is also that of an attribute, or of an argument with a value."""
    depth, before = 0, ""
    for token, behind in pairwise(tokens):
        depth += (token.string in BRACKETS[0]) - (token.string in BRACKETS[1]) if token.type == tokenize.OP else 0
        if token.type == tokenize.NAME and token.string == name and (before == "." or (depth and behind.string == "=")):
            return True
        before = token.string
    return False


def make_question_data(worked: Worked, kind: Kind, told: int) -> dict[str, Any]:
    """Make the problem data by which a question's answer is graded. The first `told` pairs are shown, not tested."""
    if not worked.has_question(kind, told):
        raise ValueError(f"{kind}: nothing is left to ask of {len(worked.inputs)} pairs")
    arguments = [parse_arguments(given) for given in worked.inputs]
    known = {"signature": infer_signature(arguments[0]), "entry": ENTRY}
    if kind == "induction":
        hidden = {"inputs": [list(call) for call in arguments[told:]], "outputs": list(worked.outputs[told:])}
        return known | hidden | PROGRAM
    asks = "output" if kind == "deduction" else "input"
    return known | {"asks": asks, "program": worked.program, "outputs": list(worked.outputs[:1])}


def plan_run(problem: Problem, answer: str | None) -> tuple[Problem, str, Sequence[Sequence[Any]]] | None:
    """Return the (problem, program, calls) to run in order to grade an answer; None if nothing must, or can, be run."""
    asks = problem.data.get("asks")
    if asks is None:
        return problem, answer or "", problem.data["inputs"]
    try:
        program = problem.data["program"]
        return (problem, program, [spread_tuple(program, parse_arguments(answer or ""))]) if asks == "input" else None
    except InvalidValue:
        return None


def parse_output(problem: Problem, answer: str | None) -> Canonical | None:
    """Parse the predicted output of a deduction; None if it is invalid, or something else was asked."""
    try:
        return to_canonical(parse_literal(answer or "")) if problem.data.get("asks") == "output" else None
    except InvalidValue:
        return None


def spread_tuple(program: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Spread arguments that were written in brackets of their own: one tuple, where a Python function takes several."""
    if len(arguments) != 1 or not isinstance(arguments[0], tuple):
        return arguments
    functions = [node for node in _parse_statements(program) if isinstance(node, ast.FunctionDef) and node.name == ENTRY]
    takes = [len(each.args.posonlyargs) + len(each.args.args) for each in functions]
    least = [most - len(each.args.defaults) for most, each in zip(takes, functions, strict=True)]
    fits = len(functions) == 1 and 1 < least[0] <= len(arguments[0]) <= takes[0]
    return arguments[0] if fits else arguments


def parse_call(given: str, program: str = "") -> tuple[str, tuple[Any, ...]] | None:
    """Parse an input of a program; return its normalised text and its arguments, None if it is invalid."""
    try:
        arguments = spread_tuple(program, parse_arguments(given))
    except InvalidValue:
        return None
    return render_arguments(arguments), arguments


def is_one_function(source: str) -> bool:
    """Whether a text is Python with exactly one function of its own, called `ENTRY`; constants and imports may stand beside
    it."""
    functions = [node for node in _parse_statements(source) if isinstance(node, DEFINITIONS)]
    return len(functions) == 1 and isinstance(functions[0], ast.FunctionDef) and functions[0].name == ENTRY


def split_usage(source: str, entry: str = ENTRY) -> tuple[str, str | None]:
    """Split a program from the statements beside its definitions that only use its function, as models write examples of use,
    or that only name its input, as in `input = [1, 2]` below it. Return it, and the arguments of the last such call or input;
    None if there is none with positional arguments."""
    lines: list[str | None] = list(BREAK.split(source))
    given, is_defined = None, False
    statements = _parse_statements(source)
    rows = [line.encode() for line in lines if line is not None] if statements else []  # once: cutting must not read all again
    own = {name for name in GIVEN if any(_reads_name(node, name, entry) for node in statements)}
    shared = {one.end_lineno for one, other in pairwise(statements) if one.end_lineno == other.lineno}
    for node in statements:
        if isinstance(node, DEFINITIONS):
            is_defined |= node.name == entry
            continue
        calls = _find_calls(node, entry)
        is_apart = shared.isdisjoint((node.lineno, node.end_lineno))
        held = _render_given(rows, node, own) if is_defined and is_apart and not calls else None
        if calls or held is not None:
            lines[node.lineno - 1 : node.end_lineno] = [None] * ((node.end_lineno or node.lineno) - node.lineno + 1)
            given = (_render_call(rows, calls[-1]) if calls else held) or given
    return "\n".join(line for line in lines if line is not None).strip("\n"), given


def _parse_statements(source: str) -> list[ast.stmt]:
    """Parse the statements of a program, without running it; none, if it is no Python."""
    try:
        return parse_python(source).body
    except NOT_PYTHON:
        return []


def _find_calls(node: ast.stmt, entry: str) -> list[ast.Call]:
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == entry]


def _cut_source(rows: Sequence[bytes], node: ast.expr) -> str:
    """Cut an expression out of the lines of its source; its columns count bytes."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    if first == last:
        return rows[first][node.col_offset : node.end_col_offset].decode()
    return b"\n".join([rows[first][node.col_offset :], *rows[first + 1 : last], rows[last][: node.end_col_offset]]).decode()


def _render_call(rows: Sequence[bytes], call: ast.Call) -> str | None:
    """Render the arguments of a call as they stand in the source; None if some are named, or are variables."""
    if call.keywords or any(isinstance(part, ast.Name | ast.Starred) for part in call.args):
        return None
    return ", ".join(_cut_source(rows, part) for part in call.args)


def _render_given(rows: Sequence[bytes], node: ast.stmt, own: set[str]) -> str | None:
    """Render the literals that a statement assigns to the name of an input; None if it is no such statement, or if the name is
    the program's own."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if not (isinstance(node, ast.Assign) and isinstance(target, ast.Name) and target.id in GIVEN and target.id not in own):
        return None
    try:
        parse_arguments(given := _cut_source(rows, node.value))
    except InvalidValue:
        return None
    return given


def _reads_name(node: ast.stmt, name: str, entry: str) -> bool:
    """Whether a statement reads a name otherwise than to hand it to the entry. A function has its own parameters and, where
    none is nested in it, its own variables."""
    parts = list(ast.walk(node))
    inner = [part for part in parts if isinstance(part, DEFINITIONS) and part is not node]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inner:
        own = {part.arg for part in parts if isinstance(part, ast.arg)}
        own |= {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        if name in own:
            return False
    handed = {id(part) for call in _find_calls(node, entry) for part in call.args}
    names = (part for part in parts if isinstance(part, ast.Name) and part.id == name and id(part) not in handed)
    return any(isinstance(part.ctx, ast.Load) for part in names)


def remove_comments(source: str) -> str:
    """A program without its comments and the lines that were nothing else; unchanged where it cannot be read."""
    lines: list[str | None] = list(source.split("\n"))
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return source
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = token.line[:column].rstrip() or None
    return "\n".join(line for line in lines if line is not None)
