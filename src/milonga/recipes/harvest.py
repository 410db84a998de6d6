"""What is kept of searched trees, as plain data that is saved with the weights, and the rows that are made of it later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from milonga.credit.trees import Node, step_pairs, ways
from milonga.randomness import key64
from milonga.recipes.preferences import Pair, in_pairs
from milonga.recipes.scoring import Labelled, as_rows
from milonga.table import Table
from milonga.types import Floats, Problem, Trace, Traces

Harvest = dict[str, Any]
"""Of one tree: see `harvest`."""
HELD_OUT = 8
"""One of so many problems teaches the preference model nothing, and tells how good it is."""


def harvest(root: Node, index: int, margin: float, edits: int) -> Harvest:
    """What is kept of a tree, as plain data: the solutions it reached with the q of their steps, and its pairs with the reason.

    `index` finds the problem again.
    """
    found = [way[1:] for way in ways(root) if way[-1].trace.reading.value.answer is not None]
    pairs = step_pairs(root, margin, edits)
    return {
        "index": index,
        "problem": root.trace.problem.id,
        "text": root.trace.problem.text,
        "solutions": [[way[-1].trace.text, way[-1].right, [node.q for node in way]] for way in found],
        "pairs": [[pair.winner.trace.text, pair.loser.trace.text, pair.weight, pair.why] for pair in pairs],
    }


def is_held_out(tree: Harvest) -> bool:
    return key64("held out", tree["text"]) % HELD_OUT == 0


def pair_rows(table: Table, trees: Sequence[Harvest]) -> tuple[Traces, list[float], list[str]]:
    """Winner and loser of each pair side by side as the verifier reads them, their weights, and why each pair was kept.

    A pair that stands in several trees is one.
    """
    found = {(tree["text"], won, lost): (tree, weight, why) for tree in trees for won, lost, weight, why in tree["pairs"]}
    pairs: list[Pair] = []
    for number, ((_, won, lost), (tree, _, _)) in enumerate(found.items()):
        name = f"{tree['problem']}/{number}"
        pairs.append((name, side(table, tree, won, f"{name}/won"), side(table, tree, lost, f"{name}/lost")))
    sides = [one for _, *both in pairs for one in both]
    rows, kept = in_pairs(table.write("verifier", sides, [one.text for one in sides]), pairs)
    told = {name: (weight, why) for (name, _, _), (_, weight, why) in zip(pairs, found.values(), strict=True)}
    return rows, [told[name][0] for name, _, _ in kept for _ in range(2)], [told[name][1] for name, _, _ in kept]


def kept_rows(table: Table, trees: Sequence[Harvest]) -> tuple[Traces, list[float]]:
    """The same to be learned from: the run folder has the pairs from here on, each with the reason why it was kept."""
    rows, weights, reasons = pair_rows(table, trees)
    for winner, loser, reason in zip(rows[::2], rows[1::2], reasons, strict=True):
        table.prefer(winner, loser, reason)
    return rows, weights


def value_rows(table: Table, trees: Sequence[Harvest], of_outcomes: bool) -> tuple[Traces, list[Floats]]:
    """The solutions with the q of each step, from 0 to 1, or with their outcome alone, as targets of a value head."""
    labelled = []
    for tree in trees:
        for number, (text, right, qs) in enumerate(tree["solutions"]):
            *steps, end = [(q + 1) / 2 for q in qs]
            solution = side(table, tree, text, f"{tree['problem']}/{number}")
            labelled.append(Labelled(solution, (), float(right)) if of_outcomes else Labelled(solution, steps, end))
    return as_rows(table, labelled)


def side(table: Table, tree: Harvest, text: str, id: str) -> Trace:
    """A solution, or its beginning up to a step, which has no end to be read."""
    reading = table.setting.roles["generator"].read(text, None)
    trace = Trace.given(id, "generator", Problem(tree["problem"], tree["text"], ""), text, reading)
    return replace(trace, finish="length" if reading.value.answer is None else "eos")
