"""Monte Carlo tree search over steps, for all problems of a turn at once: nodes at one depth are expanded in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from milonga.context import Context
from milonga.recipe import RecipeOptions
from milonga.systems.rstar_math.trees import Node, backpropagate, iterate_paths, select_child
from milonga.types import Problem, Rollout, Rollouts, Verification

Values = Callable[[Sequence[Node]], list[float]]
"""A value function of nodes, from -1 to 1."""


class SearchOptions(RecipeOptions):
    candidates: int = Field(6, ge=1)
    """Steps that are sampled at each node of a tree; batch.rollouts is the number of simulations."""
    depth: int = Field(16, ge=1)
    """Most steps of a solution."""
    explore: float = Field(2.0, ge=0)
    """c of UCT."""
    untried: float | None = None
    """The UCT score of an untried step; None: it comes before all others. The public code has 0, by which steps that failed
    come before untried ones."""
    check: bool = True
    """Whether a step stays in the tree only if its computation is right, as running it would show."""
    blame: bool = True
    """Whether dead ends (no step survives, too deep) count as wrong for all nodes on their path. The public code blames
    none."""


@dataclass(frozen=True)
class Search:
    """The settings of a tree search, and its value function."""

    options: SearchOptions
    values: Values | None = None
    """The value function: it gives every new step its first visit, if `guided`, and its value to an end, if `blind`."""
    guided: bool = False
    blind: bool = False
    """Search without the truth, which otherwise makes an end worth 1 or -1."""


def make_roots(ctx: Context, problems: Sequence[Problem]) -> list[Node]:
    """Return a root for each problem: an empty solution."""
    return [Node(rollout) for rollout in ctx.write("generator", problems, [""] * len(problems))]


def run_simulations(ctx: Context, roots: Sequence[Node], simulations: int, search: Search) -> None:
    """Run `simulations` more walks from each root to an end. A walk that meets an unexpanded node expands it."""
    sources = [ctx.rng("walk", root.rollout.id, root.visits) for root in roots]
    untried = math.inf if search.options.untried is None else search.options.untried
    for _ in range(simulations):
        paths = [[root] for root in roots]
        while any(path[-1].end is None for path in paths):
            going = [(path, rng) for path, rng in zip(paths, sources, strict=True) if path[-1].end is None]
            expand_nodes(ctx, [path[-1] for path, _ in going if path[-1].children is None], search)
            for path, rng in going:
                if path[-1].end is None:  # it may have turned out to be a dead end
                    path.append(select_child(path[-1], search.options.explore, untried, rng))
        for path in paths:
            dead = path[-1].rollout.solution.answer is None
            backpropagate(path[-1:] if dead and not search.options.blame else path, path[-1].end or 0.0, path[-1].right)


def expand_nodes(ctx: Context, nodes: Sequence[Node], search: Search) -> None:
    """Sample steps after each of these nodes. A node without a surviving step becomes a dead end, and its samples are
    dropped."""
    each, deep = search.options.candidates, [node for node in nodes if node.depth < search.options.depth]
    sampled = ctx.complete("generator", [(node.rollout, node.depth) for node in deep], each, step=True)
    for number, node in enumerate(deep):
        children = [
            _make_child(ctx, node, rollout, search.options.check) for rollout in sampled[number * each : (number + 1) * each]
        ]
        found = {child.step: child for child in children if child is not None}
        node.children = list(found.values())
    for node in nodes:
        if not node.children:
            node.end = -1.0
    born = [child for node in nodes for child in node.children or ()]
    if search.values is None:
        return
    for child, value in zip(born, search.values(born), strict=True):
        if search.guided:
            child.add_prior_visit(value)
        if search.blind and child.end is not None:
            child.end = value


def _make_child(ctx: Context, node: Node, rollout: Rollout, check: bool) -> Node | None:
    """Return a sample as a child node, if it is an answer or one more step, and passes the check. All answers survive, right or
    wrong."""
    rollout = replace(rollout, targets=())
    step, value = rollout.text[len(node.rollout.text) :], rollout.solution
    if value.answer is not None:
        known = rollout.grade is not None and rollout.grade.correct is not None
        right = rollout.correct == 1.0
        return Node(rollout, step, node.depth, end=1.0 if right else -1.0, right=right) if known else None
    if rollout.finish != "stop" or len(rollout.steps) != node.depth + 1:
        return None
    if check and not ctx.task.is_computation_right(value.steps[-1]):
        return None
    return Node(rollout, step, node.depth + 1)


def score_nodes(ctx: Context, nodes: Sequence[Node]) -> list[float]:
    """Return the verifier's value of each node: of an end by the whole solution, of others by the newest step.

    2 p - 1 is tanh of half its logit. The value is 0 where the verifier cannot parse the solution.
    """
    judged = {check.target.id: check.verification for check in ctx.judge("verifier", Rollouts(n.rollout for n in nodes))}
    return [_verification_to_value(node, judged.get(node.rollout.id)) for node in nodes]


def _verification_to_value(node: Node, verification: Verification | None) -> float:
    """Convert a verification into a value from -1 to 1; 0 where there is no score."""
    if verification is None:
        return 0.0
    newest = verification.step_scores[-1] if verification.step_scores else None
    score = newest if node.end is None else verification.score
    return 0.0 if score is None else 2 * score - 1


def select_best_end(root: Node) -> Node | None:
    """Select the end with an answer that has the highest value; None where no answer was reached."""
    ends = [way[-1] for way in iterate_paths(root) if way[-1].rollout.solution.answer is not None]
    return max(ends, key=lambda node: node.end or 0.0, default=None)


def corrupt_answer_keys(ctx: Context, problems: list[Problem], share: float) -> list[Problem]:
    """Replace the answers of a random share of the problems by their neighbours' (label noise)."""
    keys = [problem.answer for problem in problems]
    rng = ctx.rng("wrong keys")
    return [replace(p, answer=keys[i - 1]) if rng.random() < share else p for i, p in enumerate(problems)]
