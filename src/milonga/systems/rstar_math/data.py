"""Training data from search trees: what is kept of a tree as plain data in the checkpoint, and the rows made of it later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from milonga.context import Context
from milonga.patterns.preference_pairs import Pair, align_pairs
from milonga.patterns.value_head import Labelled, build_value_rows, pick_prompt_data
from milonga.randomness import key64
from milonga.systems.rstar_math.trees import Node, collect_step_pairs, iterate_paths
from milonga.types import Floats, Problem, Rollout, Rollouts

Harvest = dict[str, Any]
"""The data of one tree: see `harvest_tree`."""
HELD_OUT = 8
"""One of this many problems is held out from the preference model, to measure it."""


def corrupt_keys(ctx: Context, problems: list[Problem], share: float) -> list[Problem]:
    """Replace the answers of a random share of the problems by their neighbours' (label noise)."""
    keys = [problem.answer for problem in problems]
    rng = ctx.rng("wrong keys")
    return [replace(p, answer=keys[i - 1]) if rng.random() < share else p for i, p in enumerate(problems)]


def harvest_tree(root: Node, index: int, margin: float, edits: int) -> Harvest:
    """Convert a tree to plain data: its complete solutions with the q of their steps, and its step pairs with the reason.

    `index` finds the problem again. `spans`, where any exceeds 1: the steps of each node of a solution before its end.
    """
    found = [way[1:] for way in iterate_paths(root) if way[-1].is_answered]
    pairs, problem = collect_step_pairs(root, margin, edits), root.rollout.problem
    spans = [[b.depth - a.depth for a, b in zip([root, *way], way[:-1], strict=False)] for way in found]
    tree = {
        "index": index,
        "problem": problem.id,
        "text": problem.text,
        **pick_prompt_data(problem.data),
        "solutions": [[way[-1].rollout.text, way[-1].right, [node.q for node in way]] for way in found],
        "pairs": [[pair.winner.rollout.text, pair.loser.rollout.text, pair.weight, pair.reason] for pair in pairs],
    }
    return tree | ({"spans": spans} if any(span > 1 for way in spans for span in way) else {})


def is_held_out(tree: Harvest) -> bool:
    """Return whether the tree's problem is held out from training, by a hash of its text."""
    return key64("held out", tree["text"]) % HELD_OUT == 0


def make_pair_rows(ctx: Context, trees: Sequence[Harvest]) -> tuple[Rollouts, list[float], list[str]]:
    """Return winner and loser of each pair as neighbouring rows in the verifier's tokens, the weight of each row, and the
    reason of each pair.

    A pair that occurs in several trees counts once.
    """
    found = {(tree["text"], won, lost): (tree, weight, why) for tree in trees for won, lost, weight, why in tree["pairs"]}
    pairs: list[Pair] = []
    for number, ((_, won, lost), (tree, _, _)) in enumerate(found.items()):
        name = f"{tree['problem']}/{number}"
        winner, loser = (_rebuild_solution(ctx, tree, *one) for one in ((won, f"{name}/won"), (lost, f"{name}/lost")))
        pairs.append((name, winner, loser))
    sides = [one for _, *both in pairs for one in both]
    rows, kept = align_pairs(ctx.write("verifier", sides, [one.text for one in sides]), pairs)
    details = {name: (weight, why) for (name, _, _), (_, weight, why) in zip(pairs, found.values(), strict=True)}
    return rows, [details[name][0] for name, _, _ in kept for _ in range(2)], [details[name][1] for name, _, _ in kept]


def make_value_rows(ctx: Context, trees: Sequence[Harvest], of_outcomes: bool) -> tuple[Rollouts, list[Floats]]:
    """Return the solutions with value-head targets: the q of each step scaled to [0, 1], or only the outcome.

    targets: one float array per row, aligned with its ids; NaN where there is no target.
    """
    labelled = []
    for tree in trees:
        for number, (text, right, qs) in enumerate(tree["solutions"]):
            *nodes, end = [(q + 1) / 2 for q in qs]
            spans = tree["spans"][number] if "spans" in tree else [1] * len(nodes)
            steps = [q for q, span in zip(nodes, spans, strict=True) for _ in range(span)]
            solution = _rebuild_solution(ctx, tree, text, f"{tree['problem']}/{number}")
            steps += [end] * (len(solution.solution.steps) - len(steps))  # in prose the answer stands in a step of its own
            labelled.append(Labelled(solution, (), float(right)) if of_outcomes else Labelled(solution, steps, end))
    return build_value_rows(ctx, labelled)


def _rebuild_solution(ctx: Context, tree: Harvest, text: str, id: str) -> Rollout:
    """Rebuild a solution, or a prefix of one, from its text. A prefix has finish "length"."""
    problem = Problem(tree["problem"], tree["text"], "", pick_prompt_data(tree))
    rollout = Rollout.from_text(id, "generator", problem, text, ctx.role("generator").parse(text, None))
    is_whole = any(text == solution for solution, _, _ in tree["solutions"])
    return replace(rollout, finish="eos" if is_whole else "length")
