"""Roles around a program: propose programs and inputs, or infer one of (program, input, output) from the others.

A question holds two of them, or pairs, in the text of its problem, which `Question` writes; the answer is the third. Answers
are read as the solver's are: lines of work, and the answer behind `#`, or in its tag. They are data, and never become source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.coder import Coder
from milonga.roles.solver import StepSolver
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

WORK = """\
Work inside <think> and </think>, every step in its own <step> and </step>, and give the result inside \
<answer>\\boxed{ }</answer>.

"""
TAGGED_INDUCE = """\
Inputs of a program and its outputs are given. Find a program that gives them. Work inside <think> and </think>, every step in \
its own <step> and </step>, and give only the program inside <answer> and </answer>.

"""
TAGGED_PROPOSE = """\
Below are programs with an input each. Write a new one of the same form that differs from them and is harder, inside <program> \
and </program>, and one input for it inside <input> and </input>: its arguments as Python literals, separated by commas. \
{aim}It must do the same every time.

"""
TAGGED_INPUTS = """\
Write {count} inputs for the program below that together show what it does, one in a line, inside <inputs> and </inputs>: its \
arguments as Python literals, separated by commas.

"""
PROPOSAL = re.compile(r"\s*<program>(?P<program>.*?)</program>\s*<input>(?P<input>[^<>]*)</input>\s*", re.DOTALL)
INPUTS = re.compile(r"\s*<inputs>(?P<inputs>[^<>]*)</inputs>\s*")


class Reasoner(StepSolver):
    """A solver of one kind of question about programs; `mark` opens its prompt in the terse dialect."""

    mark: ClassVar[str]
    orders: ClassVar[str]

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return (Part(self.mark), Part(problem.text, foreign=True), Part("\n"))
        return (Part(f"{self.orders} {WORK}"), Part(problem.text, foreign=True), Part("\n\nSolution:\n"))


@ROLES.register("deducer")
class Deducer(Reasoner):
    """Deduction: infers the output from a program and its input."""

    name = "deducer"
    mark = "="
    orders = "A program and its input are given. Find its output, as a Python literal."


@ROLES.register("abducer")
class Abducer(Reasoner):
    """Abduction: infers an input from a program and its output."""

    name = "abducer"
    mark = "^"
    orders = "A program and an output are given. Find arguments for which it gives this output, as Python literals."


@ROLES.register("inducer")
class Inducer(Coder):
    """Induction: infers a program from inputs and outputs; the program is parsed as a coder's is."""

    name = "inducer"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return (Part("&"), Part(problem.text, foreign=True), Part("\n"))
        return (Part(TAGGED_INDUCE), Part(problem.text, foreign=True), Part("\n\nSolution:\n"))


@dataclass(frozen=True)
class Program:
    """A program and an input, as texts."""

    program: str
    input: str
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """Inputs for a program, as texts."""

    inputs: tuple[str, ...]
    ends: tuple[int, ...] = ()


@ROLES.register("programmer")
class ProgramProposer(Role):
    """Writes a program and an input for it. terse: the program on one line, the input behind `#` on the next.

    `aim` says what should be hard about them, where there is room to say it.
    """

    name = "programmer"
    judges = False

    def __init__(self, dialect: Dialect, aim: str = "") -> None:
        super().__init__(dialect)
        self.aim = f"{aim} " if aim else ""

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.dialect == "terse" else ("</input>",)

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """`problem` holds earlier programs with their inputs, as `references` writes them."""
        if self.dialect == "terse":
            return (Part("<"), Part(problem.text, foreign=True), Part("\n"))
        return (Part(TAGGED_PROPOSE.format(aim=self.aim)), Part(problem.text, foreign=True), Part("\n\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "terse":
            program, mark, given = text.partition("\n#")
            found = bool(mark and program.strip() and given.strip()) and "\n" not in program and "\n" not in given
        else:
            match = PROPOSAL.fullmatch(text)
            program, given = (match["program"].strip(), match["input"].strip()) if match else ("", "")
            found = bool(program and given)
        return Parsed(Program(program, given), 1.0) if found else Parsed(Program("", ""), 0.0, "not one program and one input")

    def write(self, program: str, given: str) -> str:
        """Write the text that parses as this program and this input."""
        return f"{program}\n#{given}" if self.dialect == "terse" else f"<program>{program}</program>\n<input>{given}</input>"


@ROLES.register("prober")
class InputProposer(Role):
    """Writes inputs for a program; from the outputs an inducer must infer the program. terse: on one line, `;` between them."""

    name = "prober"
    judges = False
    count: int = 6
    """How many of them."""

    def __init__(self, dialect: Dialect, count: int = count) -> None:
        super().__init__(dialect)
        self.count = count

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.dialect == "terse" else ("</inputs>",)

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return (Part(";"), Part(problem.text, foreign=True), Part("\n"))
        return (Part(TAGGED_INPUTS.format(count=self.count)), Part(problem.text, foreign=True), Part("\n\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        tagged = INPUTS.fullmatch(text)
        parts = text.split(";") if self.dialect == "terse" else tagged["inputs"].splitlines() if tagged else []
        found = tuple(part.strip() for part in parts if part.strip())
        if "\n" in text and self.dialect == "terse":
            found = ()
        return Parsed(Inputs(found), 1.0) if len(found) > 1 else Parsed(Inputs(()), 0.0, "not several inputs")

    def write(self, inputs: Sequence[str]) -> str:
        """Write the text that parses as these inputs."""
        return ";".join(inputs) if self.dialect == "terse" else "<inputs>\n" + "\n".join(inputs) + "\n</inputs>"


@dataclass(frozen=True)
class Question:
    """Renders the texts of questions in a dialect."""

    terse: bool

    def render_deduction(self, program: str, given: str) -> str:
        return f"{program}\n{given}" if self.terse else f"Program:\n{program}\n\nInput:\n{given}"

    def render_abduction(self, program: str, output: str) -> str:
        return f"{program}\n{output}" if self.terse else f"Program:\n{program}\n\nOutput:\n{output}"

    def render_induction(self, pairs: Sequence[tuple[str, str]]) -> str:
        if self.terse:
            return ";".join(f"{given}={output}" for given, output in pairs)
        return "\n".join(f"Input: {given}\nOutput: {output}" for given, output in pairs)

    def render_references(self, programs: Sequence[tuple[str, str]]) -> str:
        """Render earlier programs with their inputs, as references for a proposer."""
        if self.terse:
            return "\n".join(f"{program}#{given}" for program, given in programs)
        return "\n\n".join(f"Program:\n{program}\nInput:\n{given}" for program, given in programs)
