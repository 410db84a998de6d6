"""The roles of Multi-Agent Evolve: an asker that writes questions, and a judge of both questions and solutions.

In prose the judge gives 1 to 10 points, as in the paper; in the other dialects it says right or wrong.
"""

from __future__ import annotations

import re

from milonga.roles.base import ROLES
from milonga.roles.grades import Scale, parse_grading
from milonga.roles.proposer import Proposal, Proposer, parse_question, split_request
from milonga.roles.verifier import StepVerifier
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Verification

TAGGED_ASK = """\
Write one new question of the form shown below, {how}. Put only the question inside <question> and </question>.

Example:
"""
TAGGED_JUDGE = """\
Judge the question below: is it complete, unambiguous and solvable? Answer inside <final_verification> and \
</final_verification> with one \\boxed{CORRECT} or \\boxed{INCORRECT}, and nothing else.

Question:
"""
ASK = """\
Write one new question that is {how} than the question below. It must be of the same kind, complete in itself, clear, and \
possible to answer. Reply with one paragraph that begins with "Question:", and do not answer it.

Old question:
"""
JUDGE_QUESTION = """\
Judge the quality of the question below. Is it complete, clear and free of contradictions, and can it be answered?
1, 2 or 3 points: it makes no sense, or cannot be answered.
4, 5, 6 or 7 points: it can be answered, but something is unclear or missing.
8, 9 or 10 points: it is clear and complete, and can be answered.

Question:
"""
JUDGE_ANSWER = """\
Judge the answer to the question below. Do not trust it: work the question out yourself and compare.
1, 2 or 3 points: the answer is wrong, or has any error.
4, 5, 6 or 7 points: it has no error, but is incomplete or unclear.
8, 9 or 10 points: it is right, complete and clear.

Question:
"""
SCALE = Scale(1, 10, 8)
GRADE = SCALE.render_request("First explain your judgement in a few sentences.")
QUESTION = re.compile(r"\s*<question>(?P<text>(?:(?!</?question>).)+)</question>\s*", re.DOTALL)
VERDICT = re.compile(r"\s*<final_verification>\s*\\boxed\{(CORRECT|INCORRECT)\}\s*</final_verification>\s*")


@ROLES.register("asker")
class Asker(Proposer):
    """Writes a question. plain: behind the word "Question:", read with tolerance. terse: the text on one line, behind `<` and
    an old one. tagged: in its tag."""

    name = "asker"

    @classmethod
    def length_factor(cls) -> int:
        return 1

    @property
    def stop(self) -> tuple[str, ...]:
        return ("</question>",) if self.dialect == "tagged" else ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return super().prompt(problem, target)
        how, old = split_request(problem)
        if self.dialect == "plain":
            return (Part(ASK.format(how=how)), Part(old, foreign=True), Part("\n\nQuestion:" if self.example else ""))
        return (Part(TAGGED_ASK.format(how=f"{how} than it")), Part(old, foreign=True), Part("\n\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            return parse_question(text)
        found = QUESTION.fullmatch(text)
        question = text if self.dialect == "terse" else found["text"].strip() if found else ""
        if not question.strip() or (self.dialect == "terse" and "\n" in question):
            return Parsed(Proposal("", None, ""), 0.0, "not one question")
        return Parsed(Proposal(question, None, ""), 1.0)

    def write(self, question: str, work: str = "") -> str:
        """Write the text that parses as this question."""
        if self.dialect == "plain":
            return f"Question: {question}"
        return question if self.dialect == "terse" else f"<question>{question}</question>"


@ROLES.register("judge")
class Judge(StepVerifier):
    """A step verifier that also judges questions: those have no steps, so it gives a final verdict only. In prose it gives
    points to both."""

    name = "judge"

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        if self.dialect == "plain" and target is not None:
            return self.prompt_for_points(problem, target)
        if target is None or not isinstance(target.parsed.value, Proposal):
            return super().prompt(problem, target)
        asked = Part(target.parsed.get(Proposal).question, foreign=True)
        return (Part("?"), asked, Part("\n!")) if self.dialect == "terse" else (Part(TAGGED_JUDGE), asked, Part("\n\n"))

    def prompt_for_points(self, problem: Problem, target: Rollout) -> Prompt:
        """Render a question, or an answer with its question, for a judge that gives points."""
        end = Part(GRADE + ("\n\nJudgement:\n" if self.example else ""))
        if isinstance(target.parsed.value, Proposal):
            return (Part(JUDGE_QUESTION), Part(target.parsed.value.question, foreign=True), end)
        shown = (Part(problem.text, foreign=True), Part("\n\nAnswer:\n"), Part(target.text, foreign=True))
        return (Part(JUDGE_ANSWER), *shown, end)

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        if self.dialect == "plain":
            return parse_grading(text, SCALE)
        if target is None or not isinstance(target.parsed.value, Proposal):
            return super().parse(text, target)
        tagged = VERDICT.fullmatch(text)
        verdict = {"=+": True, "=-": False}.get(text) if self.dialect == "terse" else tagged[1] == "CORRECT" if tagged else None
        return Parsed(
            Verification(None, verdict), float(verdict is not None), None if verdict is not None else "not one verdict"
        )

    def soften(self, rollout: Rollout) -> Parsed:
        """Points are not softened: they are a score already."""
        return rollout.parsed if self.dialect == "plain" else super().soften(rollout)

    def write_question(self, right: bool) -> str:
        """Write the text that parses as this verdict on a question."""
        if self.dialect == "terse":
            return "=+" if right else "=-"
        return f"<final_verification>\\boxed{{{'CORRECT' if right else 'INCORRECT'}}}</final_verification>"
