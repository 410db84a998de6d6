"""Where prompts and seeds come from: new prompts in the style of the task's own, with their filter, and graded answers.

New prompts are written by the model as it started. Nobody knows their answers, and none is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from milonga.context import Context
from milonga.roles.proposer import Proposal
from milonga.systems.self_rewarding.roles import Grader
from milonga.tasks.base import normalise_text
from milonga.tasks.graded import Graded
from milonga.tasks.invention import pose_question
from milonga.types import Problem, Rollout, Rollouts

START = "ref"
"""The tag of the model that writes new prompts: as it started."""
WORDS = (4, 200)
"""Words that a new prompt has at least and at most."""
UNUSABLE = {"image", "picture", "graph", "figure", "diagram", "file", "map", "video", "audio", "draw", "plot"}
"""Words of prompts that a text cannot answer."""


def write_prompts(ctx: Context, shots: int, most_similar: float) -> tuple[Rollouts, list[Problem]]:
    """Sample as many new prompts as the turn has problems, each after `shots` of those, and return them with the problems that
    pass the filter."""
    own = ctx.problems()
    requests, shown = [], {}
    for number, problem in enumerate(own):
        texts = [one.text for one in ctx.rng("shots", number).sample(own, min(shots, len(own)))]
        request = Problem(f"{problem.id}/style", "\n\n".join(f"Question: {text}" for text in texts), "")
        requests.append(request)
        shown[request.id] = texts
    written = ctx.ask("proposer", requests, tag=START)
    kept: dict[str, Problem] = {}
    for one in written:
        text = one.parsed.get(Proposal).question
        if is_usable(text, shown[one.problem.id], most_similar):
            kept.setdefault(normalise_text(text), pose_question(ctx.task, text, f"posed/{one.id}", one.id))
    return written, list(kept.values())


def is_usable(text: str, shown: Sequence[str], most_similar: float) -> bool:
    """Whether a new prompt is neither too short nor too long, can be answered by a text, and repeats none that were shown."""
    words = split_words(text)
    if not WORDS[0] <= len(words) <= WORDS[1] or UNUSABLE & set(words):
        return False
    return all(compute_rouge(words, split_words(old)) < most_similar for old in shown)


def split_words(text: str) -> list[str]:
    """Split a text into words, without case and punctuation; at most two more than a prompt may have."""
    found = ("".join(c for c in word if c.isalnum()) for word in text.casefold().split()[: WORDS[1] + 2])
    return [word for word in found if word]


def compute_rouge(one: Sequence[str], other: Sequence[str]) -> float:
    """Compute ROUGE-L: the F-measure of the longest common subsequence of two lists of words."""
    row = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for place, against in enumerate(other, 1):
            before, row[place] = row[place], before + 1 if word == against else max(row[place], row[place - 1])
    return 2 * row[-1] / (len(one) + len(other)) if one and other else 0.0


def show_graded(ctx: Context, examples: Sequence[Graded]) -> Rollouts:
    """Return gradings of the file to be imitated, as many as the turn has problems."""
    grader, solver = ctx.role("verifier"), ctx.role("generator")
    assert isinstance(grader, Grader)
    chosen = ctx.rng("graded").sample(range(len(examples)), min(len(examples), ctx.batch_size))
    targets, texts = [], []
    for row in chosen:
        one = examples[row]
        problem = pose_question(ctx.task, one.question, f"graded/{row}")
        parsed = solver.parse(one.response, None)
        targets.append(Rollout.from_text(f"{ctx.turn}/graded/{row}", "generator", problem, one.response, parsed))
        texts.append(grader.write((), one.score, [one.grading] if one.grading else ()))
    return ctx.write("verifier", targets, texts)
