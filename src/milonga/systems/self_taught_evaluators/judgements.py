"""Judgements of duels as plain data in the checkpoint: conversion, metrics of the pool, and which judgements make pairs."""

from __future__ import annotations

from typing import Any

from milonga.evals.metrics import mean
from milonga.patterns.preference_pairs import Pair
from milonga.preferences import Side
from milonga.systems.self_taught_evaluators.duels import classify_judgement, get_duel
from milonga.types import Problem, Rollout

Kept = dict[str, Any]
"""One judgement: see `to_json`."""


def to_json(judgement: Rollout, keep: bool) -> Kept:
    """Convert a judgement to plain data: its prompt and token ids, whether to train on it, why, and the right verdict."""
    target = {"problem": judgement.problem.id, "question": judgement.problem.text, "input": judgement.target.id}
    facts = {"keep": keep, "cause": classify_judgement(judgement), "better": get_duel(judgement).better}
    return {**target, **facts, **vars(Side.from_rollout(judgement))}


def from_json(kept: Kept, number: int, policy: str) -> Rollout:
    """Rebuild the judgement as a row to train on."""
    side = Side(kept["text"], tuple(kept["ids"]), kept["start"])
    return side.to_rollout(f"kept/{number}", "judge", Problem(kept["problem"], kept["question"], ""), policy)


def cap_unreadable(pairs: list[Pair], most: float) -> list[Pair]:
    """Drop pairs with unreadable losers, from the end, until their share is at most `most`."""
    others = [pair for pair in pairs if not pair[0].endswith("unreadable")]
    room = int(most * len(others) / (1 - most)) if most < 1 else len(pairs)
    unreadable = [pair for pair in pairs if pair[0].endswith("unreadable")]
    return [*others, *unreadable[:room]]


def compute_pool_metrics(pool: list[Kept]) -> dict[str, float]:
    """Return the shares of judgements by class and of kept ones, how often the first place is better among right judgements
    (position bias), and the share of lost inputs: those that were never judged correctly."""
    right = [one["better"] == "A" for one in pool if one["cause"] == "right"]
    solved = {one["input"] for one in pool if one["cause"] == "right"}
    out = {name: sum(one["cause"] == name for one in pool) / len(pool) for name in ("right", "wrong", "tie", "unreadable")}
    out["kept"] = sum(one["keep"] for one in pool) / len(pool)
    return out | {"right_first": mean(right) or 0.0, "lost_inputs": 1 - len(solved) / len({one["input"] for one in pool})}
