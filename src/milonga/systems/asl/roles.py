"""The generative reward model: from a question and an answer, it reasons and ends with one of two verdicts."""

from __future__ import annotations

from milonga.roles.base import ROLES
from milonga.roles.verdicts import read_conclusion
from milonga.roles.verifier import StepVerifier
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Verification

JUDGE = """\
Decide whether the answer to the question below is right. Do not trust it: work the question out yourself, and compare.

Question:
"""
END = """

Reason in a few sentences. Then end with one line that is "Final verdict: CORRECT" or "Final verdict: INCORRECT"."""


@ROLES.register("reward_model")
class RewardModel(StepVerifier):
    """Judges an answer as a whole. plain: reasoning, then a final verdict. In the other dialects it checks each step first, as
    a step verifier does."""

    name = "reward_model"

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        if self.dialect != "plain" or target is None:
            return super().prompt(problem, target)
        shown = (Part(problem.text, foreign=True), Part("\n\nAnswer:\n"), Part(target.text, foreign=True))
        return (Part(JUDGE), *shown, Part(END + ("\n\nJudgement:\n" if self.example else "")))

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        """Parse the verdict. In prose the format score is 1 for a verdict in its own line, one half for one elsewhere at the
        end."""
        if self.dialect != "plain":
            return super().parse(text, target)
        verdict, marked = read_conclusion(text)
        if verdict is None:
            return Parsed(Verification(None, None), 0.0, "no single final verdict")
        return Parsed(Verification(None, verdict), 1.0 if marked else 0.5)

    def soften(self, rollout: Rollout) -> Parsed:
        """In prose the verdict is taken as it is: a reward of 0 or 1."""
        return rollout.parsed if self.dialect == "plain" else super().soften(rollout)
