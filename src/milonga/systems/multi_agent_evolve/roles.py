"""The roles of Multi-Agent Evolve: an asker that writes questions, and a judge of both questions and solutions."""

from __future__ import annotations

import re

from milonga.roles.base import ROLES
from milonga.roles.proposer import EASIER, HARDER, Proposal, Proposer
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
QUESTION = re.compile(r"\s*<question>(?P<text>(?:(?!</?question>).)+)</question>\s*", re.DOTALL)
VERDICT = re.compile(r"\s*<final_verification>\s*\\boxed\{(CORRECT|INCORRECT)\}\s*</final_verification>\s*")


@ROLES.register("asker")
class Asker(Proposer):
    """Writes a question. terse: the text on one line, behind `<` and an old one. tagged: in its tag."""

    name = "asker"

    @classmethod
    def length_factor(cls) -> int:
        return 1

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.dialect == "terse" else ("</question>",)

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return super().prompt(problem, target)
        old = problem.text.removeprefix(EASIER).removeprefix(HARDER)
        how = "easier than it" if problem.text.startswith(EASIER) else "harder than it"
        return (Part(TAGGED_ASK.format(how=how)), Part(old, foreign=True), Part("\n\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        found = QUESTION.fullmatch(text)
        question = text if self.dialect == "terse" else found["text"].strip() if found else ""
        if not question.strip() or (self.dialect == "terse" and "\n" in question):
            return Parsed(Proposal("", None, ""), 0.0, "not one question")
        return Parsed(Proposal(question, None, ""), 1.0)

    def write(self, question: str, work: str = "") -> str:
        """Write the text that parses as this question."""
        return question if self.dialect == "terse" else f"<question>{question}</question>"


@ROLES.register("judge")
class Judge(StepVerifier):
    """A step verifier that also judges questions: those have no steps, so it gives a final verdict only."""

    name = "judge"

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        if target is None or not isinstance(target.parsed.value, Proposal):
            return super().prompt(problem, target)
        asked = Part(target.parsed.get(Proposal).question, foreign=True)
        return (Part("?"), asked, Part("\n!")) if self.dialect == "terse" else (Part(TAGGED_JUDGE), asked, Part("\n\n"))

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        if target is None or not isinstance(target.parsed.value, Proposal):
            return super().parse(text, target)
        tagged = VERDICT.fullmatch(text)
        verdict = {"=+": True, "=-": False}.get(text) if self.dialect == "terse" else tagged[1] == "CORRECT" if tagged else None
        return Parsed(
            Verification(None, verdict), float(verdict is not None), None if verdict is not None else "not one verdict"
        )

    def write_question(self, right: bool) -> str:
        """Write the text that parses as this verdict on a question."""
        if self.dialect == "terse":
            return "=+" if right else "=-"
        return f"<final_verification>\\boxed{{{'CORRECT' if right else 'INCORRECT'}}}</final_verification>"
