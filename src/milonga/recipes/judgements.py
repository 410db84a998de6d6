"""Judgements of duels as plain data that is saved with the weights, what they tell, and which of them make pairs."""

from __future__ import annotations

from typing import Any

from milonga.evals.metrics import mean
from milonga.preferences import Side
from milonga.recipes.duelling import cause, shown
from milonga.recipes.preferences import Pair
from milonga.types import Problem, Trace

Kept = dict[str, Any]
"""One judgement: see `to_json`."""


def to_json(judgement: Trace, keep: bool) -> Kept:
    """With its own prompt and its very ids, whether it is to be learned, why, and what was right."""
    about = {"problem": judgement.problem.id, "question": judgement.problem.text, "input": judgement.subject.id}
    said = {"keep": keep, "cause": cause(judgement), "better": shown(judgement).better}
    return {**about, **said, **vars(Side.of(judgement))}


def from_json(kept: Kept, number: int, policy: str) -> Trace:
    """The judgement as a row to learn from."""
    side = Side(kept["text"], tuple(kept["ids"]), kept["start"])
    return side.trace(f"kept/{number}", "judge", Problem(kept["problem"], kept["question"], ""), policy)


def capped(pairs: list[Pair], most: float) -> list[Pair]:
    """Without those pairs, from the end, that make the share of unreadable losers larger than `most`."""
    others = [pair for pair in pairs if not pair[0].endswith("unreadable")]
    room = int(most * len(others) / (1 - most)) if most < 1 else len(pairs)
    unreadable = [pair for pair in pairs if pair[0].endswith("unreadable")]
    return [*others, *unreadable[:room]]


def pool_figures(pool: list[Kept]) -> dict[str, float]:
    """How much is kept and why the rest is not, how often the first place has what is right, and inputs that were never judged
    rightly: those are lost."""
    right = [one["better"] == "A" for one in pool if one["cause"] == "right"]
    solved = {one["input"] for one in pool if one["cause"] == "right"}
    out = {name: sum(one["cause"] == name for one in pool) / len(pool) for name in ("right", "wrong", "tie", "unreadable")}
    out["kept"] = sum(one["keep"] for one in pool) / len(pool)
    return out | {"right_first": mean(right) or 0.0, "lost_inputs": 1 - len(solved) / len({one["input"] for one in pool})}
