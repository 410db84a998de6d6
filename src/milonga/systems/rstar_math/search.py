"""Monte Carlo tree search over steps, for all problems of a turn at once: nodes at one depth are expanded in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from milonga.context import Context
from milonga.recipe import RecipeOptions
from milonga.roles import ProgramSolver
from milonga.systems.rstar_math.trees import Node, backpropagate, iterate_paths, select_child
from milonga.tasks.base import Task
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
    """Whether a step stays in the tree only if the program up to it runs or, in text, its computation is right."""
    allow_weak_isolation: bool = False
    """Run programs where they cannot be isolated. Only on a machine that you can throw away."""
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
            blamed = path[-1].is_answered or search.options.blame
            backpropagate(path if blamed else path[-1:], path[-1].end or 0.0, path[-1].right)


def expand_nodes(ctx: Context, nodes: Sequence[Node], search: Search) -> None:
    """Sample steps after each of these nodes. A node without a surviving step becomes a dead end, and its samples are
    dropped."""
    each, deep = search.options.candidates, [node for node in nodes if node.depth < search.options.depth]
    sampled = ctx.complete("generator", [(node.rollout, node.depth) for node in deep], each, step=True)
    children = [_make_child(deep[number // each], rollout) for number, rollout in enumerate(sampled)]
    if search.options.check:
        children = _drop_failed_steps(ctx, children)
    for number, node in enumerate(deep):
        mine = children[number * each : (number + 1) * each]
        node.children = list({child.step: child for child in mine if child is not None}.values())
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


def _make_child(node: Node, rollout: Rollout) -> Node | None:
    """Return a sample as a child node, if it is an answer or at least one more step."""
    rollout = replace(rollout, targets=())
    step, value = rollout.text[len(node.rollout.text) :], rollout.solution
    if value.answer is not None:
        known = rollout.grade is not None and rollout.grade.correct is not None
        right = rollout.correct == 1.0
        return Node(rollout, step, node.depth, end=1.0 if right else -1.0, right=right) if known else None
    if rollout.finish != "stop" or len(rollout.steps) <= node.depth:
        return None
    return Node(rollout, step, len(rollout.steps))


def _drop_failed_steps(ctx: Context, children: Sequence[Node | None]) -> list[Node | None]:
    """Drop steps that fail the solver's check, which sees all of them at once. All answers survive, right or wrong."""
    solver = ctx.role("generator")
    assert isinstance(solver, ProgramSolver)
    steps = [child for child in children if child is not None and child.end is None]
    holds = solver.check_steps(ctx.task, [child.rollout for child in steps])
    failed = {child for child, held in zip(steps, holds, strict=True) if not held}
    return [None if child in failed else child for child in children]


def score_nodes(ctx: Context, nodes: Sequence[Node]) -> list[float]:
    """Return the verifier's value of each node: of an end by the whole solution, of others by the newest step.

    2 p - 1 is tanh of half its logit. The value is 0 where the verifier cannot parse the solution.
    """
    judged = {check.target.id: check.verification for check in ctx.judge("verifier", Rollouts(n.rollout for n in nodes))}
    values = []
    for node in nodes:
        found = judged.get(node.rollout.id) or Verification(None, None)
        score = found.score if node.end is not None else (found.step_scores or (None,))[-1]
        values.append(0.0 if score is None else 2 * score - 1)
    return values


def select_end(task: Task, root: Node, top: int = 1) -> Node | None:
    """Select an end with the answer that most of the `top` ends of the highest values have, among equals that of the highest;
    None where no answer was reached."""
    ends = [way[-1] for way in iterate_paths(root) if way[-1].is_answered]
    best = sorted(ends, key=lambda node: node.end or 0.0, reverse=True)[:top]
    groups = task.group_equal_answers([node.rollout.solution.answer for node in best])
    return max(zip(best, groups, strict=True), key=lambda one: groups.count(one[1]), default=(None, None))[0]
