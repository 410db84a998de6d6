"""Results of a dialogue (artefacts): what a message hands in, the reference that only the user knows, and how near they are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from milonga.tasks.answers import find_last_box
from milonga.tasks.base import Task
from milonga.tasks.code import Code
from milonga.tasks.code_python import find_blocks
from milonga.tasks.worked import MARK
from milonga.text import compare_words, longest_common_run
from milonga.types import Problem

FINAL = re.compile(
    r"^[\s>*#_`-]{0,9}(?:my |the )?final (?:answer|version|program|text|result)\b"
    r"(?:[*_`. \t]{0,9}:[*_` \t]*|[*_`][*_`. \t]*|[. \t]*$)",
    re.IGNORECASE | re.MULTILINE,
)
"""The mark under which a result is handed in, as models write it, in any case: with a colon, in bold, or alone on its line. The
words in a sentence are none."""
LEAK = 8
"""Words and signs of the reference, in a row, that give it away."""


def find_reference(problem: Problem) -> str:
    """Find what the user of a problem knows: the whole problem, a worked solution or a reference text, or else the right answer
    or program. Calculator marks are no part of a worked solution."""
    return MARK.sub("", str(problem.data.get("whole") or problem.data.get("worked") or problem.answer))


def hands_in(message: str) -> bool:
    """Whether a message hands in a result: by the mark, in a box, or as a function in Python. One line under the mark that is a
    question hands in nothing."""
    marks = list(FINAL.finditer(message))
    behind = message[marks[-1].end() :].strip() if marks else ""
    asks = behind.endswith("?") and "\n" not in behind
    return (
        (bool(marks) and not asks)
        or find_last_box(message) is not None
        or any("def " in block for block in find_blocks(message))
    )


def find_artefact(message: str) -> str:
    """Find the result in a message: what stands behind the last mark; the whole message where there is none."""
    marks = list(FINAL.finditer(message))
    return message[marks[-1].end() if marks else 0 :].strip()


def gives_away(reply: str, problem: Problem) -> bool:
    """Whether a user's reply repeats so much of the reference in a row that nothing is left to find out."""
    return longest_common_run(reply, find_reference(problem)) >= LEAK


def score_artefacts(task: Task, results: Sequence[tuple[Problem, str | None, str]]) -> list[float] | None:
    """Return the outcome of each result (its problem, its answer, its whole message), from 0 to 1: the share of hidden tests
    that are passed or, where the task has no answers, how similar it is to the reference. NaN if the sandbox could not tell;
    None for tasks whose answers are right or wrong and nothing between."""
    if isinstance(task, Code):
        passed = task.run_hidden_tests([(problem, answer) for problem, answer, _ in results], apart=True)
        return [float("nan") if tests is None else sum(tests) / len(tests) for tests in passed]
    if task.has_answers:
        return None
    return [compare_words(find_artefact(message), find_reference(problem)) for problem, _, message in results]
