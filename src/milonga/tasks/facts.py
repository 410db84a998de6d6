"""Problems some of whose facts are hidden until they are asked for.

Invariant: which facts are hidden depends on the text of a problem alone; its data keep the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from milonga.randomness import keyed_rng
from milonga.tasks.base import Task
from milonga.types import Problem

HIDDEN = "?"
"""Placeholder of a hidden part."""


def hide_facts(task: Task, problem: Problem, count: int) -> Problem:
    """Hide `count` parts of a problem, or all there are."""
    spans = task.find_facts(problem)
    hidden = sorted(keyed_rng("kept back", problem.text).sample(range(len(spans)), min(count, len(spans))))
    data = {**problem.data, "whole": problem.text, "facts": spans, "hidden": hidden}
    masked = replace(problem, data=data)
    return replace(masked, text=render_known_text(masked, ()))


def render_known_text(problem: Problem, asked: Sequence[int | None]) -> str:
    """Render the text of the problem after these parts were asked for; None asks for nothing."""
    text = str(problem.data["whole"])
    for part in reversed(problem.data["hidden"]):
        start, end = problem.data["facts"][part]
        text = text if part in asked else text[:start] + HIDDEN + text[end:]
    return text
