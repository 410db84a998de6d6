"""Roles around a program: propose programs and inputs, or infer one of (program, input, output) from the others.

A question holds two of them, or pairs, in the text of its problem, which `Question` writes; the answer is the third. Answers
are read as the solver's are, behind `#`, in a tag or in a code block. They are data, and never become source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.coder import Coder
from milonga.roles.fences import clean_arguments, find_fenced_blocks, find_named, list_inputs, parse_named_answer
from milonga.roles.prose import skip_thought
from milonga.roles.solver import LOOSE_FORMAT, StepSolver
from milonga.roles.tags import find_tags
from milonga.roles.templates import load_packaged_prompt
from milonga.tasks.code_questions import ENTRY, parse_call, split_usage
from milonga.types import Parsed, Part, Problem, Prompt, Rollout


def render_prompt(role: Role, mark: str, problem: Problem, **own: object) -> Prompt:
    """Render the prompt of a role here: its mark and the problem in the terse dialect, else its template."""
    if role.dialect == "terse":
        return (Part(mark), Part(problem.text, foreign=True), Part("\n"))
    template, tagged = load_packaged_prompt(role.name, __package__), role.dialect == "tagged"
    return template.render({"problem": problem.text}, entry=ENTRY, tagged=tagged, **own)


class Reasoner(StepSolver):
    """A solver of one kind of question about programs; `mark` opens its prompt in the terse dialect. In prose its answer stands
    in a code block called `block`."""

    mark: ClassVar[str]
    block: ClassVar[Literal["input", "output"]]

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return render_prompt(self, self.mark, problem)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect != "plain":
            return super().parse(text, target)
        return parse_named_answer(text, self.block, self.thought_steps)

    def write(self, steps: Sequence[str], answer: str) -> str:
        if self.dialect != "plain":
            return super().write(steps, answer)
        return "\n\n".join([*steps[:-1], "\n".join([*steps[-1:], f"```{self.block}\n{answer}\n```"])])


@ROLES.register("deducer")
class Deducer(Reasoner):
    """Deduction: infers the output from a program and its input."""

    name = "deducer"
    mark = "="
    block = "output"


@ROLES.register("abducer")
class Abducer(Reasoner):
    """Abduction: infers an input from a program and its output."""

    name = "abducer"
    mark = "^"
    block = "input"


@ROLES.register("inducer")
class Inducer(Coder):
    """Induction: infers a program from inputs and outputs; the program is parsed as a coder's is."""

    name = "inducer"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return render_prompt(self, "&", problem)


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
        self.aim = aim

    @property
    def stop(self) -> tuple[str, ...]:
        return ("</input>",) if self.dialect == "tagged" else ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """`problem` holds earlier programs with their inputs, as `references` writes them."""
        return render_prompt(self, "<", problem, aim=self.aim)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            return _parse_plain_program(skip_thought(text))
        if self.dialect == "terse":
            program, mark, given = text.partition("\n#")
            found = bool(mark and program.strip() and given.strip()) and "\n" not in program and "\n" not in given
        else:
            last = {name: find_tags(text, name)[-1:] for name in ("program", "input")}
            program, given = ("".join(tag.body for tag in tags).strip() for tags in last.values())
            found = bool(program and given)
        return Parsed(Program(program, given), 1.0) if found else Parsed(Program("", ""), 0.0, "not one program and one input")

    def write(self, program: str, given: str) -> str:
        """Write the text that parses as this program and this input."""
        if self.dialect == "plain":
            return f"```python\n{program}\n```\n\n```input\n{given}\n```"
        return f"{program}\n#{given}" if self.dialect == "terse" else f"<program>{program}</program>\n<input>{given}</input>"


def _parse_plain_program(text: str) -> Parsed:
    """Parse the last block with the function, and the input: a block of its own, or else a call below the function."""
    blocks = [block.body for block in find_fenced_blocks(text) if f"def {ENTRY}(" in block.body]
    if not blocks:
        return Parsed(Program("", ""), 0.0, f"no code block with a function called {ENTRY}")
    program, used = split_usage(blocks[-1])
    found = [(clean_arguments(each), asked) for each, asked in find_named(text, "input")]
    likely = [*(pair for pair in found if pair[1]), (clean_arguments(used or ""), False), *found]
    given, asked = next((pair for pair in likely if pair[0] is not None), (None, False))
    if given is None:
        return Parsed(Program("", ""), LOOSE_FORMAT / 2, "a program without an input")
    return Parsed(Program(program, given), 1.0 if asked else LOOSE_FORMAT)


@ROLES.register("prober")
class InputProposer(Role):
    """Writes inputs for a program; from the outputs an inducer must infer the program. terse: on one line, `;` between them."""

    name = "prober"
    judges = False

    def __init__(self, dialect: Dialect, count: int = 6) -> None:
        super().__init__(dialect)
        self.count = count

    @property
    def stop(self) -> tuple[str, ...]:
        return ("</inputs>",) if self.dialect == "tagged" else ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return render_prompt(self, ";", problem, count=self.count)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            return self._parse_plain(skip_thought(text))
        tagged = find_tags(text, "inputs")[-1:]
        if self.dialect == "terse":
            parts = text.split(";") if "\n" not in text else []
        else:
            parts = [line for tag in tagged for line in tag.body.splitlines()]
        found = tuple(part.strip() for part in parts if part.strip())
        return Parsed(Inputs(found), 1.0) if len(found) > 1 else Parsed(Inputs(()), 0.0, "not several inputs")

    def _parse_plain(self, text: str) -> Parsed:
        """Parse the lines that are different inputs; those outside of a block called `input` have a lower format score."""
        lines, named = list_inputs(text, ENTRY)
        calls = [parse_call(given) for line in lines if (given := clean_arguments(line)) is not None]
        found = tuple(dict.fromkeys(call[0] for call in calls if call is not None))[: self.count]
        score = (1.0 if named else LOOSE_FORMAT) * len(found) / self.count
        return Parsed(Inputs(found), score) if len(found) > 1 else Parsed(Inputs(()), 0.0, "not several inputs")

    def write(self, inputs: Sequence[str]) -> str:
        """Write the text that parses as these inputs."""
        if self.dialect == "plain":
            return "```input\n" + "\n".join(inputs) + "\n```"
        return ";".join(inputs) if self.dialect == "terse" else "<inputs>\n" + "\n".join(inputs) + "\n</inputs>"


@dataclass(frozen=True)
class Question:
    """Renders the texts of questions in a dialect: terse, or with each part in a code block."""

    terse: bool

    def render_deduction(self, program: str, given: str) -> str:
        return self._render_parts(program, "input", given)

    def render_abduction(self, program: str, output: str) -> str:
        return self._render_parts(program, "output", output)

    def _render_parts(self, program: str, name: str, value: str) -> str:
        if self.terse:
            return f"{program}\n{value}"
        return f"Program:\n```python\n{program}\n```\n\n{name.capitalize()}:\n```{name}\n{value}\n```"

    def render_induction(self, pairs: Sequence[tuple[str, str]]) -> str:
        if self.terse:
            return ";".join(f"{given}={output}" for given, output in pairs)
        return "\n".join(f"Input: {given}\nOutput: {output}" for given, output in pairs)

    def render_references(self, programs: Sequence[tuple[str, str]]) -> str:
        """Render earlier programs with their inputs, as references for a proposer."""
        if self.terse:
            return "\n".join(f"{program}#{given}" for program, given in programs)
        return "\n\n".join(self.render_deduction(program, given) for program, given in programs)
