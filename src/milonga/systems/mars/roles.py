"""The roles of MARS: a planner that asks for documents and then solves, and a reader that condenses what comes back.

The planner sees the question and what the reader wrote, never a document. The reader sees documents and a purpose, never the
question. `Planner` and `Reader` know the form of `haystack` problems; where there is a tool, `SearchPlanner` searches with it
and states a purpose in its own words, for which a `Condenser` reads what was found.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from milonga.errors import ConfigError
from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.searcher import Condenser, Documents, Note, Request, SearchPlanner
from milonga.roles.solver import StepSolver
from milonga.tasks.base import Task, Tool
from milonga.tasks.haystack import WORDS_MARK, extract_names, extract_question, extract_thread, join_threads, parse_documents
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

ASK = "@"
ARITHMETIC, LETTERS = "=", "~"
PURPOSES = (ARITHMETIC, LETTERS)
"""What a reader can be asked to keep of a document: its arithmetic, or its letters."""
TAGGED_PLAN = """\
The question below begins with the names of documents that you cannot see. Ask for documents in one line: @, their names, and \
= if their arithmetic matters or ~ if their letters do. After you were told what they say, solve the problem in the format \
<think><step>…</step>…</think><answer>\\boxed{ }</answer>.

Question:
"""
TAGGED_TOLD = "The documents say:\n"
TAGGED_READ = """\
Each line below weaves arithmetic and letters. Copy only the {what} of each line, on a line of its own.

"""
TAGGED_WHAT = {ARITHMETIC: "arithmetic", LETTERS: "letters"}


@ROLES.register("planner")
class Planner(Role):
    """Asks for documents, `@names` and a purpose, or solves. A solution is written as the step solver writes one.

    terse: the notes replace the names in its question. `noise` is how often the teacher's solutions are wrong.
    """

    name = "planner"
    judges = False
    repeats = True
    """Whether a message repeats the notes of earlier ones."""

    def __init__(self, dialect: Dialect, noise: float = 0.0, calls: int = 1) -> None:
        super().__init__(dialect)
        self.solver, self.calls = StepSolver(dialect, noise), calls

    def adapt_to_tool(self, tool: Tool) -> Role:
        if self.dialect == "terse":
            raise ConfigError("mars searches in words, which the embedded model cannot write: name a model with --generator")
        return SearchPlanner("plain", self.calls)

    def find_documents(self, task: Task, talk: Rollout) -> list[str]:
        """Find the requested documents that exist."""
        documents = parse_documents(talk.problem.text)
        return [documents[name] for name in talk.parsed.get(Request).names if name in documents]

    @property
    def stop(self) -> tuple[str, ...]:
        return self.solver.stop

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        question = Part(extract_question(problem.text), foreign=True)
        return (Part(">"), question, Part("\n")) if self.dialect == "terse" else (Part(TAGGED_PLAN), question, Part("\n\n"))

    def render_notes(self, problem: Problem, notes: Sequence[str], is_last: bool = False) -> Prompt:
        """Render the prompt after a request: all notes so far, joined into one problem."""
        threads = Part(join_threads(notes, extract_question(problem.text)), foreign=True)
        return (
            (Part(">"), threads, Part("\n"))
            if self.dialect == "terse"
            else (Part(TAGGED_TOLD), threads, Part("\n\nSolution:\n"))
        )

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if not text.startswith(ASK):
            return self.solver.parse(text)
        names, purpose = text[1:].rstrip("\n")[:-1], text[1:].rstrip("\n")[-1:]
        if not names.isalpha() or purpose not in PURPOSES:
            return Parsed(Request((), (), None), 0.0, "not the names of documents and a purpose")
        return Parsed(Request((), (), None, "".join(dict.fromkeys(names)), purpose), 1.0)

    def write(self, names: str, purpose: str) -> str:
        """Write the text that parses as this request."""
        return f"{ASK}{names}{purpose}"

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate the request that the question needs."""
        question = extract_question(problem.text)
        return None, self.write(extract_names(question), LETTERS if question.endswith(WORDS_MARK) else ARITHMETIC)


@ROLES.register("reader")
class Reader(Role):
    """Copies one thread of each document. terse: behind `<` and the purpose; tagged: behind what it means."""

    name = "reader"
    judges = False

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def adapt_to_tool(self, tool: Tool) -> Role:
        return Condenser("plain")

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """Render the documents of a bin; without one, all documents of the problem, for their arithmetic."""
        purpose = ARITHMETIC if target is None else target.parsed.get(Documents).purpose
        text = "\n".join(parse_documents(problem.text).values()) if target is None else target.text
        opening = f"<{purpose}\n" if self.dialect == "terse" else TAGGED_READ.format(what=TAGGED_WHAT[purpose])
        return Part(opening), Part(text, foreign=True), Part("\n")

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        lines = tuple(text.rstrip("\n").split("\n"))
        wanted = None if target is None else len(target.text.split("\n"))
        if not text.strip() or (wanted is not None and len(lines) != wanted):
            return Parsed(Note(lines), 0.0, f"{len(lines)} lines for {wanted} documents")
        return Parsed(Note(lines), 1.0)

    def write(self, lines: Sequence[str]) -> str:
        """Write the text that parses as these lines."""
        return "\n".join(lines)

    def write_exact_note(self, target: Rollout) -> str:
        """Write the exact note on a bin."""
        return self.write(
            [extract_thread(line, target.parsed.get(Documents).purpose == LETTERS) for line in target.text.split("\n")]
        )

    def write_noisy_note(self, target: Rollout, slip: float, rng: random.Random) -> str:
        """Write a noisy teacher's note on a bin: with probability `slip` one character is lost."""
        text = self.write_exact_note(target)
        if rng.random() >= slip or len(text) < 2:
            return text
        lost = rng.choice([at for at, char in enumerate(text) if char != "\n"])
        return text[:lost] + text[lost + 1 :]
