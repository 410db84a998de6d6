"""A made-up knowledge graph: people and how they stand to each other, as short sentences such as `tom ally ann`.

Every relation goes both ways and is stated both ways, so that one can search from an answer back to a question as well as from
a question to its answer. In each relation everybody has one partner; with `extra` some have more, and questions that pass there
have several answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from milonga.randomness import keyed_rng
from milonga.tasks.last_letter import CONSONANTS, VOWELS

RELATIONS = ("ally", "cousin", "foe", "kin", "mate", "pal", "partner", "peer", "rival", "twin")
UNFIT = {"dik", "fag", "fuk", "kok", "kum", "nig", "rap", "suk", "tit"}
NAMES = sorted({a + b + c for a in CONSONANTS for b in VOWELS for c in CONSONANTS} - {*RELATIONS} - UNFIT)
Edges = Mapping[tuple[str, str], frozenset[str]]
"""Who stands in a relation to somebody."""


class Graph:
    """A random knowledge graph; a pure function of its size and its seed."""

    def __init__(self, entities: int, relations: int, extra: float, seed: int) -> None:
        rng = keyed_rng("graph", entities, relations, extra, seed)
        self.entities = tuple(sorted(rng.sample(NAMES, entities)))
        self.relations = RELATIONS[:relations]
        facts: dict[str, None] = {}
        for relation in self.relations:
            # Everybody once, two by two; then some once more.
            row = rng.sample(self.entities, entities)
            row += [name for _ in range(round(extra * entities / 2)) for name in rng.sample(self.entities, 2)]
            for one, other in zip(row[::2], row[1::2], strict=True):
                facts |= {f"{one} {relation} {other}": None, f"{other} {relation} {one}": None}
        self.facts = tuple(rng.sample(list(facts), len(facts)))
        """In no order, so that ties in a ranking favour nobody."""

    @cached_property
    def edges(self) -> Edges:
        return parse_edges(self.facts)


def parse_edges(facts: Iterable[str]) -> Edges:
    """Parse sentences into edges; any other text is ignored."""
    found: dict[tuple[str, str], set[str]] = {}
    for fact in facts:
        parts = fact.split(" ")
        if len(parts) == 3:
            found.setdefault((parts[0], parts[1]), set()).add(parts[2])
    return {key: frozenset(ends) for key, ends in found.items()}


def follow_path(edges: Edges, question: str) -> frozenset[str]:
    """Return all answers of a question such as `ann ally foe` (the foe of the ally of ann); empty if the path breaks off."""
    start, *path = question.split(" ")
    reached = frozenset([start]) if path else frozenset()
    for relation in path:
        reached = frozenset(end for entity in reached for end in edges.get((entity, relation), ()))
    return reached
