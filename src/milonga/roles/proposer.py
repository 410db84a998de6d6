"""Writers of questions. The proposer makes a harder or an easier one from an old question, and answers it."""

from __future__ import annotations

from dataclasses import dataclass

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.questions import read_question
from milonga.roles.solver import StepSolver
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Solution

HARDER, EASIER = "^", "_"
"""The first character of an old question as it is put to a proposer: what the new one should be."""
PROPOSER_PROMPT = """\
Below is an old question. Write a new one of the same form that is {how}, inside <question> and </question>. Then solve it: \
work inside <think> and </think>, every step in its own <step> and </step>, and the result inside <answer>\\boxed{{ }}</answer>.

Old question:
"""
PLAIN_PROMPT = """\
Write one new question that is {how} than the question below. It must be of the same kind and complete in itself. Then answer \
it yourself. Reply in this form:
Question: [the new question]
Solution: [{solution}]

Old question:
"""
WORKED, OPEN = "your work, step by step, with the final answer within \\boxed{}", "your answer"
"""What a solution is asked to be: where answers are put into a box, and where any text is one."""


@dataclass(frozen=True)
class Proposal:
    """A new question, with a solution in the solver's words and the answer that is claimed."""

    question: str
    answer: str | None
    work: str
    ends: tuple[int, ...] = ()


@ROLES.register("proposer")
class Proposer(Role):
    """Writes a question, and then a solution of it as the solver would.

    plain: behind the words "Question:" and "Solution:", read with tolerance. terse: `>` and the question on the first line, as
    the solver is asked it, then the solution. tagged: the question in its tag, then the solution.
    """

    name = "proposer"
    judges = False

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.solver = StepSolver(dialect)

    @classmethod
    def length_factor(cls) -> int:
        return 2

    @property
    def stop(self) -> tuple[str, ...]:
        return self.solver.stop

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """`problem` is the old question, its text marked with what the new one should be."""
        if self.dialect == "terse":
            return (Part("<"), Part(problem.text, foreign=True), Part("\n"))
        how, old = split_request(problem)
        if self.dialect == "plain":
            asked = PLAIN_PROMPT.format(how=how, solution=OPEN if problem.is_open else WORKED)
            return (Part(asked), Part(old, foreign=True), Part("\n\nQuestion:" if self.example else ""))
        return (Part(PROPOSER_PROMPT.format(how=how)), Part(old, foreign=True), Part("\n\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            return self._parse_plain(text)
        head, seam, work = text.partition("\n" if self.dialect == "terse" else "</question>")
        opening = ">" if self.dialect == "terse" else "<question>"
        question = head.strip().removeprefix(opening).strip()
        solution = self.solver.parse(work.removeprefix("\n"))
        value = Proposal(question, solution.get(Solution).answer, work.removeprefix("\n"))
        if not seam or not question or not head.strip().startswith(opening):
            return Parsed(value, 0.0, "no question")
        return Parsed(value, solution.format, solution.invalid)

    def _parse_plain(self, text: str) -> Parsed:
        """Parse prose. Without a box the whole solution is what is claimed, at a lower format score."""
        read = read_question(text)
        boxed = self.solver.parse(read.work).get(Solution).answer
        value = Proposal(read.question, boxed or read.work or None, read.work)
        if not read.question or not read.work:
            return Parsed(value, 0.0, "no question" if not read.question else "no solution")
        return Parsed(value, read.format if boxed else read.format / 2)

    def write(self, question: str, work: str) -> str:
        """Write the text that parses as this question and this solution."""
        if self.dialect == "plain":
            return f"Question: {question}\nSolution: {work}"
        return f">{question}\n{work}" if self.dialect == "terse" else f"<question>{question}</question>\n{work}"


@ROLES.register("question_writer")
class QuestionWriter(Role):
    """Writes one question: `orders` say which, and the problem's text follows them. It writes prose in every dialect."""

    name = "question_writer"
    judges = False

    def __init__(self, dialect: Dialect, orders: str = "") -> None:
        super().__init__(dialect)
        self.orders = orders

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return (Part(self.orders), Part(problem.text, foreign=True), Part("\n\nQuestion:" if self.example else ""))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        return parse_question(text)


def parse_question(text: str) -> Parsed:
    """Parse a question in prose, without an answer."""
    read = read_question(text)
    return Parsed(Proposal(read.question, None, ""), read.format, None if read.question else "no question")


def make_proposer_request(problem: Problem, harder: bool) -> Problem:
    """Make the proposer's problem from an old question. Its claimed answer is dropped."""
    return Problem(problem.id, (HARDER if harder else EASIER) + problem.text, "", problem.data, problem.source)


def split_request(problem: Problem) -> tuple[str, str]:
    """Split a proposer's problem into how the new question should be, "easier" or "harder", and the old question."""
    easier = problem.text.startswith(EASIER)
    return "easier" if easier else "harder", problem.text.removeprefix(EASIER if easier else HARDER)
