"""Monte Carlo tree search over steps: selection by UCT, backpropagation of values, and step preferences from a tree.

A node is a solution up to one of its steps. Every simulation walks from the root to an end and adds the value of that end, from
-1 to 1, to all nodes on its path: q is the mean over the simulations through a node.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from milonga.text import edit_distance
from milonga.types import Rollout


@dataclass(eq=False)
class Node:
    """A partial solution, and the steps that were sampled after it."""

    rollout: Rollout
    step: str = ""
    """What this node adds to its parent: a step, or the answer."""
    depth: int = 0
    """The number of steps so far."""
    children: list[Node] | None = None
    """None until it is expanded."""
    end: float | None = None
    """The value of this end; None where the solution goes on."""
    right: bool = False
    """Whether an end has the right answer."""
    visits: int = 0
    total: float = 0.0
    rights: int = 0
    """Simulations through this node that ended right."""
    wrongs: int = 0
    """Simulations through this node that ended wrong, dead ends included."""

    @property
    def q(self) -> float:
        """The mean value of the visits; 0 without visits."""
        return self.total / self.visits if self.visits else 0.0

    @property
    def is_answered(self) -> bool:
        """Whether this is a whole solution, with an answer."""
        return self.rollout.solution.answer is not None

    @property
    def is_simulated(self) -> bool:
        """Whether any simulation went through this node: a prior value does not count."""
        return self.rights + self.wrongs > 0

    @property
    def visited_children(self) -> list[Node]:
        """The children that at least one simulation went through."""
        return [child for child in self.children or () if child.is_simulated]

    def add_prior_visit(self, value: float) -> None:
        """Add one virtual visit with a prior value of the step, before it is tried."""
        self.visits, self.total = self.visits + 1, self.total + value


def uct(node: Node, parent_visits: int, explore: float, untried: float = math.inf) -> float:
    """Return q + c * sqrt(ln N_parent / N). An untried node scores `untried`: with 0, one that failed would often come before
    it."""
    if not node.visits:
        return untried
    return node.q + explore * math.sqrt(math.log(max(1, parent_visits)) / node.visits)


def select_child(node: Node, explore: float, untried: float, rng: random.Random) -> Node:
    """Select the child with the highest UCT score; ties are broken at random, or the first child would always win."""
    assert node.children
    scores = [uct(child, node.visits, explore, untried) for child in node.children]
    return rng.choice([child for child, score in zip(node.children, scores, strict=True) if score == max(scores)])


def backpropagate(path: Sequence[Node], worth: float, right: bool) -> None:
    """Add the value of an end to all nodes of its path."""
    for node in path:
        node.visits += 1
        node.total += worth
        node.rights += right
        node.wrongs += not right


@dataclass(frozen=True)
class StepPair:
    """A preference pair of two steps after the same prefix."""

    winner: Node
    loser: Node
    weight: float
    """All pairs of a node together weigh 1."""

    @property
    def reason(self) -> str:
        """The two Q values, for the record of the pair."""
        return f"Q {self.winner.q:+.2f} against {self.loser.q:+.2f}"


def collect_step_pairs(root: Node, margin: float = 0.5, edits: int = 1) -> list[StepPair]:
    """Return the preference pairs at every node of a tree.

    At most two children with the highest q that led to a right end, against two with the lowest that led to a wrong one; up to
    four where the other side has a single member. The winner's q must exceed the loser's by `margin`, its best continuation the
    loser's worst, and the steps must be `edits` characters apart. A pair's weight is 1 / the number of pairs of its node,
    counted after all these filters.
    """
    by_q = sorted(root.visited_children, key=lambda child: child.q)
    good = [child for child in reversed(by_q) if child.rights]
    bad = [child for child in by_q if child.wrongs]
    most_good, most_bad = (4 if len(other) == 1 else 2 for other in (bad, good))
    pairs = [
        (winner, loser)
        for winner in good[:most_good]
        for loser in bad[:most_bad]
        if winner.q > loser.q
        and winner.q - loser.q >= margin
        and max(path_mean_values(winner)) > min(path_mean_values(loser))
        and edit_distance(winner.step, loser.step, edits) >= edits
    ]
    own = [StepPair(winner, loser, 1 / len(pairs)) for winner, loser in pairs]
    return own + [pair for child in root.visited_children for pair in collect_step_pairs(child, margin, edits)]


def path_mean_values(node: Node) -> list[float]:
    """Return the mean q along each path from this node to an end, this node included."""
    return [sum(step.q for step in way) / len(way) for way in iterate_paths(node)]


def iterate_paths(node: Node) -> Iterator[list[Node]]:
    """Yield every path from a node to an end that was reached."""
    if node.end is not None:
        yield [node]
    for child in node.visited_children:
        yield from ([node, *way] for way in iterate_paths(child))
