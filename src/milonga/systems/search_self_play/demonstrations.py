"""Demonstrated conversations of a noisy teacher that searches the knowledge graph, for warm-starting models."""

from __future__ import annotations

import random
from dataclasses import dataclass

from milonga.roles.demonstrate import Example
from milonga.roles.searcher import (
    ANSWER,
    QUESTION,
    SEARCH,
    Searcher,
    SearchProposer,
    SearchReader,
    make_parsed_problem,
    write_turn,
)
from milonga.tasks.search import Search
from milonga.types import Problem, Prompt


@dataclass(frozen=True)
class Talk:
    """A conversation: the prompt, and in turns what is said and what is heard; the last turn hears nothing."""

    prompt: Prompt
    turns: tuple[tuple[str, Prompt], ...]


def search_partner(task: Search, entity: str, relation: str, rng: random.Random, slip: float) -> tuple[str, tuple[str, ...]]:
    """Search for an entity's relation; return the partner found and the passages. A slip takes another name from them."""
    passages = task.tool.answer(f"{entity} {relation}")
    right = [fact.split()[2] for fact in passages if fact.startswith(f"{entity} {relation} ")]
    if not right or rng.random() < slip:
        names = {word for fact in passages for word in fact.split()[::2]} - {entity}
        return rng.choice(sorted(names) or [entity]), passages
    return right[0], passages


def _sample_relation(task: Search, relation: str, rng: random.Random, slip: float) -> str:
    assert task.graph is not None
    return rng.choice(task.graph.relations) if rng.random() < slip else relation


def demonstrate_search(task: Search, problem: Problem, role: Searcher, rng: random.Random, slip: float) -> Talk:
    """Demonstrate a solver: one search per hop. At every turn, with probability `slip`, a relation or a name is misread."""
    at, *path = problem.text.split()
    turns: list[tuple[str, Prompt]] = []
    for wanted in path:
        relation = _sample_relation(task, wanted, rng, slip / 2)
        said = write_turn(SEARCH, f"{at} {relation}", role.dialect)
        at, passages = search_partner(task, at, relation, rng, slip / 2)
        turns.append((said, role.render_tool_result(passages)))
    return Talk(role.prompt(problem), (*turns, (write_turn(ANSWER, at, role.dialect), ())))


def demonstrate_proposal(task: Search, target: Problem, role: SearchProposer, rng: random.Random, slip: float) -> Talk:
    """Demonstrate a proposer: walk from the answer along a random number of relations; the question is the way back."""
    assert task.graph is not None
    at, path = target.text, list[str]()
    turns: list[tuple[str, Prompt]] = []
    for _ in range(rng.randint(task.options.min_hops, task.options.hops)):
        relation = rng.choice([r for r in task.graph.relations if r not in path[-1:]])
        said = write_turn(SEARCH, f"{at} {relation}", role.dialect)
        at, passages = search_partner(task, at, relation, rng, slip / 2)
        turns.append((said, role.render_tool_result(passages)))
        path.append(_sample_relation(task, relation, rng, slip / 2))
    question = " ".join([at, *reversed(path)])
    return Talk(role.prompt(target), (*turns, (write_turn(QUESTION, question, role.dialect), ())))


def make_reader_example(
    task: Search, problem: Problem, role: SearchReader, rng: random.Random, slip: float, noise: int
) -> Example:
    """Make a reader example: the facts on the path to the answer, among distractors; each step is wrong with prob. `slip`."""
    assert task.graph is not None
    at, *path = problem.text.split()
    shown, steps = list(rng.sample(task.graph.facts, noise)), []
    for relation in path:
        after, passages = search_partner(task, at, relation, rng, slip)
        shown += passages
        steps.append(f"{at} {relation} {after}")
        at = after
    rng.shuffle(shown)
    return Example(role.prompt(make_parsed_problem(problem.id, problem.text, "", shown)), role.write(steps, at))
