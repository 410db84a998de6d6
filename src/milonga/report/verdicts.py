"""The sentence that a report begins with, and the board's page of a comparison: who learned, from what to what, at what cost;
of a comparison, which arm is better and by how much, or that it cannot be told.

Invariant: "better" is said only where an interval or a test says so; what cannot be told is said as that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from milonga.report.curves import F1, GENERATOR, get_title
from milonga.report.sheets import format_interval, shorten_arm_names
from milonga.report.words import format_duration
from milonga.runfolder.record import Record, to_number
from milonga.text import format_amount

SURE = 1.96
"""Standard errors to both sides of a 95 % interval."""
GOOD = ("accuracy", "f1", "auroc", "majority", "best_of_k", "weighted_vote", "reward")
"""Ends of the names of metrics of which more is better; of others only higher or lower is said."""


def describe_run(record: Record) -> str:
    """Say in one sentence what a run came to."""
    changes = [text for text in (_describe_generator(record), _describe_verifier(record)) if text]
    after = _describe_work(record)
    if not after:
        return f"Nothing has learned yet; at the start, {'; '.join(changes)}." if changes else "Nothing has learned yet."
    begun = "" if record.summary is not None else "So far, "
    if not changes:
        return f"{begun or 'A'}{'a' if begun else ''}fter {after}, nothing was measured on held-out problems."
    return f"{begun}{changes[0][0].lower() if begun else changes[0][0].upper()}{'; '.join(changes)[1:]}, after {after}."


def _describe_generator(record: Record) -> str:
    values = record.get_curve(GENERATOR)[1]
    if not values:
        return ""
    start, end = values[0], values[-1]
    if len(values) == 1:
        return f"the generator's held-out accuracy is {start:.3f}"
    chance = estimate_chance(start, end, record.config.eval.problems)
    ways = ("better", "worse")
    verdict = f"got {ways[end < start]}" if abs(end - start) > chance else "changed by no more than chance can explain"
    bound = f"on {record.config.eval.problems} problems chance alone explains ±{chance:.3f}"
    return f"the generator {verdict}: held-out accuracy {start:.3f} → {end:.3f} ({end - start:+.3f}; {bound})"


def estimate_chance(start: float, end: float, problems: int) -> float:
    """Estimate how far two accuracies may differ by the choice of problems alone (95 %).

    A bound from above: as if each problem were solved by all samples or by none, and both were measured on other problems.
    """
    spread = sum(min(max(p, 0.0), 1.0) * (1 - min(max(p, 0.0), 1.0)) for p in (start, end))
    return SURE * math.sqrt(spread / max(problems, 1))


def _describe_verifier(record: Record) -> str:
    values = record.get_curve(F1)[1]
    if not values:
        return ""
    start, end = values[0], values[-1]
    if len(values) == 1:
        return f"the verifier's F1 on first errors is {start:.3f}"
    bounds = [record.get_curve(f"{F1}_{side}")[1] for side in ("low", "high")]
    if not all(bounds):
        return f"the verifier's F1 on first errors went {start:.3f} → {end:.3f}"
    low, high = (edge[-1] for edge in bounds)
    verdict = "got better" if start < low else "got worse" if start > high else "cannot be told from its start"
    return f"the verifier {verdict}: F1 on first errors {start:.3f} → {end:.3f} [{low:.3f}, {high:.3f}]"


def _describe_work(record: Record) -> str:
    """Say how many turns there were, of whom, and what they cost; empty if nobody has learned."""
    learned: dict[str, int] = {}
    for row in record.rows:
        if row.get("learner"):
            learned[str(row["learner"])] = learned.get(str(row["learner"]), 0) + 1
    if not learned:
        return ""
    turns = " and ".join(f"{count} turn{'s' * (count > 1)} of the {agent}" for agent, count in learned.items())
    used = [record.get_curve(f"compute/{what}")[1] for what in ("tokens", "flops")]
    costs = [f"{format_amount(values[-1])} {what}" for what, values in zip(("tokens", "FLOPs"), used, strict=True) if values]
    seconds = sum(to_number(row.get(key)) or 0.0 for row in record.timing for key in ("turn_s", "eval_s"))
    return f"{turns} ({', '.join([*costs, *([format_duration(seconds)] if seconds else [])])})"


def describe_comparison(result: Mapping[str, Any]) -> str:
    """Say in one sentence which arms of a comparison are better than its baseline, by how much, and which cannot be told."""
    metric, baseline = str(result["metric"]), result["baseline"]
    short = shorten_arm_names(list(result["arms"]))
    found = [one for one in result["differences"] if one["metric"] == metric]
    who, _, what = get_title(metric).partition(": ")
    where = f"in {f'the {who}’s {what}' if what else who} on {result['split']}"
    if not found:
        return f"Nothing can be told {where}: no arm and the baseline {short.get(baseline, baseline)} have a seed in common."
    seeds = len(result["seeds"])
    matched = f"{seeds} seed{'s' * (seeds > 1)}, {result['match']} matched"
    told = "; ".join(_describe_difference(one, short) for one in found)
    return f"Against {short.get(baseline, baseline)}, {where} ({matched}): {told}."


def _describe_difference(one: Mapping[str, Any], short: Mapping[str, str]) -> str:
    name = short.get(one["arm"], one["arm"])
    size = f"{one['mean']:+.3f} {format_interval(one['interval'])}".strip()
    if one["verdict"] in ("higher", "lower"):
        word = {"higher": "better", "lower": "worse"}[one["verdict"]] if one["metric"].endswith(GOOD) else one["verdict"]
        return f"{name} is {word} by {size}"
    more = "" if one["smallest_effect"] is None else f"; {one['smallest_effect']:.3f} could have been seen"
    problems = "" if one["problems"] is None else f"; {format_interval(one['problems'])} over problems"
    return f"whether {name} differs cannot be told ({size}{more or problems})"
