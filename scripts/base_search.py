"""What the embedded base `search` is taught: its solver, its proposer and its reader, by a noisy teacher; see make_base.py."""

from __future__ import annotations

import random
from functools import cache

from milonga.roles import Searcher, SearchProposer, SearchReader
from milonga.roles.demonstrate import Example
from milonga.roles.search_talks import Talk, proposing, reading, solving
from milonga.tasks import Search
from milonga.tasks.search import SearchOptions
from milonga.types import Problem

SEARCHER, PROPOSER, READER = Searcher("terse"), SearchProposer("terse"), SearchReader("terse")
GRAPHS = 48
"""Knowledge graphs, none of them that of a run: so many that searching is easier than knowing them by heart."""
EASY_STEPS = 90
"""Steps with ways of at most two hops, before longer ones join: the skill is the same, and rows are half as long."""
NOISE = 4
"""Passages beside those that a reader needs, as in the recipe."""


def row(rng: random.Random, step: int, number: int) -> Example | Talk:
    task = graphs(2 if step < EASY_STEPS else 3)[rng.randrange(GRAPHS)]
    problem, seat = task.problem("train", number), rng.random()
    if seat < 0.1:
        return reading(task, problem, READER, rng, 0.15, NOISE)
    if seat < 0.55:
        return solving(task, problem, SEARCHER, rng, 0.25)
    return proposing(task, Problem(problem.id, problem.answer, ""), PROPOSER, rng, 0.2)


@cache
def graphs(hops: int) -> list[Search]:
    return [Search(SearchOptions(seed=1000 + number, hops=hops)) for number in range(GRAPHS)]
