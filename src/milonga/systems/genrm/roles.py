"""The annotator: it checks a solution as the verifier does, but is shown the reference, which the verifier never sees."""

from __future__ import annotations

import re

from milonga.roles.base import ROLES
from milonga.roles.yes_no import YesNoVerifier
from milonga.tasks.worked import MARK
from milonga.types import Part, Problem, Prompt, Rollout

SECRET = """

For your eyes only, the reference. Use it to find mistakes, but check the solution on its own terms: whoever reads your check \
does not have the reference, so never speak of it, nor of an expected answer.
"""
MENTIONED = re.compile(
    r"\b(?:reference|expected (?:solution|answer|result)|(?:correct|given) answer provided)\b", re.IGNORECASE
)


@ROLES.register("annotator")
class Annotator(YesNoVerifier):
    """Writes a verifier's check with the reference in sight: the worked solution where there is one, and the answer."""

    name = "annotator"

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        """Render the verifier's prompt with the reference behind the problem."""
        asked, question = super().prompt(problem, target), Part(problem.text, foreign=True)
        behind = asked.index(question) + 1
        known = "\n".join(filter(None, (MARK.sub("", problem.data.get("worked", "")), f"Final answer: {problem.answer}")))
        return (*asked[:behind], Part(SECRET), Part(known, foreign=True), *asked[behind:])


def mentions_reference(text: str) -> bool:
    """Whether a check speaks of a reference that its reader does not have."""
    return MENTIONED.search(text) is not None
