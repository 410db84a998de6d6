"""The sentence that a report begins with, and the board's page of a comparison: who learned, from what to what, at what cost;
of a comparison, which arm is better and by how much, or that it cannot be told.

Invariant: "better" is said only where an interval or a test says so, and only of an agent that was trained; what cannot be told
is said as that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from milonga.report.curves import F1, GENERATOR, get_title
from milonga.report.sheets import format_interval, shorten_arm_names
from milonga.runfolder.record import Record, to_number
from milonga.systems.index import RECIPES
from milonga.text import format_amount, format_duration

SURE = 1.96
"""Standard errors to both sides of a 95 % interval."""
FEW = 16
"""Problems below which two accuracies tell nothing of a change: of so few, a handful more decides."""
VERIFIER = {
    F1: "F1 on first errors",
    "eval/verifier/balanced_accuracy": "balanced accuracy",
    "eval/verifier/soft_auroc": "area under ROC of the soft verdict",
}
"""What is said of a verifier: the first of these that was measured."""
GOOD = ("accuracy", "f1", "auroc", "majority", "best_of_k", "weighted_vote", "reward")
"""Ends of the names of metrics of which more is better; of others only higher or lower is said."""


def describe_run(record: Record) -> str:
    """Say in one sentence what a run came to."""
    main = {"generator": _describe_generator(record), "verifier": _describe_verifier(record)}
    told = {agent: text for agent, text in main.items() if text}
    changes = [*told.values(), *_describe_others(record, told)]
    after = _describe_work(record)
    if not after:
        return f"Nothing has learned yet; at the start, {'; '.join(changes)}." if changes else "Nothing has learned yet."
    begun = "" if record.summary is not None else "So far, "
    if not changes:
        return f"{begun or 'A'}{'a' if begun else ''}fter {after}, nothing was measured on held-out problems."
    return f"{begun}{changes[0][0].lower() if begun else changes[0][0].upper()}{'; '.join(changes)[1:]}, after {after}."


def _is_trained(record: Record, agent: str) -> bool:
    """Whether an agent has learned: in turns of its own, or its policy in those of others."""
    names = list(record.config.policies)
    policy = agent if agent in names or len(names) != 1 else names[0]
    return agent in _count_turns(record) or bool(record.metrics(f"learn/{policy}/"))


def _describe_generator(record: Record) -> str:
    values = record.get_curve(GENERATOR)[1]
    if not values:
        return ""
    start, end, problems = values[0], values[-1], record.config.eval.problems
    if len(values) == 1:
        return f"the generator's held-out accuracy is {start:.3f}"
    if not _is_trained(record, "generator"):
        return f"the generator was not trained: held-out accuracy {_format_way(start, end)}"
    way = f"held-out accuracy {start:.3f} → {end:.3f} ({end - start:+.3f}"
    if problems < FEW:
        return f"whether the generator changed cannot be told: {way}; {problems} problems are too few)"
    chance = estimate_chance(start, end, problems)
    ways = ("better", "worse")
    verdict = f"got {ways[end < start]}" if abs(end - start) > chance else "changed by no more than chance can explain"
    return f"the generator {verdict}: {way}; on {problems} problems chance alone explains ±{chance:.3f})"


def _format_way(start: float, end: float) -> str:
    """Format the start and the end of a metric, once if they are the same."""
    ends = dict.fromkeys((f"{start:.3f}", f"{end:.3f}"))
    return " → ".join(ends)


def estimate_chance(start: float, end: float, problems: int) -> float:
    """Estimate how far two accuracies may differ by the choice of problems alone (95 %).

    As if each problem were solved by all samples or by none, and both were measured on other problems. Two solved and two
    failed ones are added to each (Agresti and Coull), since nothing solved of a few problems is not nothing solved of all.
    """
    shares = ((min(max(p, 0.0), 1.0) * problems + 2) / (problems + 4) for p in (start, end))
    return SURE * math.sqrt(sum(p * (1 - p) for p in shares) / (problems + 4))


def _describe_verifier(record: Record) -> str:
    metric = next((metric for metric in VERIFIER if record.get_curve(metric)[1]), None)
    if metric is None:
        return ""
    values, what = record.get_curve(metric)[1], VERIFIER[metric]
    start, end = values[0], values[-1]
    if len(values) == 1:
        return f"the verifier's {what} is {start:.3f}"
    if not _is_trained(record, "verifier"):
        return f"the verifier was not trained: {what} {_format_way(start, end)}"
    bounds = [record.get_curve(f"{metric}_{side}")[1] for side in ("low", "high")]
    if not all(bounds):
        return f"the verifier's {what} went {start:.3f} → {end:.3f}"
    low, high = (edge[-1] for edge in bounds)
    verdict = "got better" if start < low else "got worse" if start > high else "cannot be told from its start"
    return f"the verifier {verdict}: {what} {start:.3f} → {end:.3f} [{low:.3f}, {high:.3f}]"


def _describe_others(record: Record, told: Collection[str]) -> list[str]:
    """Say what was measured first of each agent of which nothing is told yet: of those that learned, or, where nothing at all
    is told, of all. What the recipe names as its own comes before other metrics."""
    name = record.config.recipe
    own: Any = RECIPES.get(name).measures if name in RECIPES else ()  # a property where they follow from the options
    wanted = [f"eval/{metric}" for metric in own] if isinstance(own, tuple) else []
    known = [metric for metric in dict.fromkeys([*wanted, *record.metrics("eval/")]) if record.get_curve(metric)[1]]
    first: dict[str, str] = {}
    for metric in known:
        agent, _, rest = metric.removeprefix("eval/").partition("/")
        if rest and agent not in told and (not told or agent in _count_turns(record)):
            first.setdefault(agent, metric)
    chosen = list(first.values()) or ([] if told else known[:1])
    return [_describe_measured(metric, record.get_curve(metric)[1]) for metric in chosen]


def _describe_measured(metric: str, values: Sequence[float]) -> str:
    agent, _, what = metric.removeprefix("eval/").partition("/")
    way, name = _format_way(values[0], values[-1]), f"the {agent}'s {what}" if what else agent
    return f"{name} {'went' if '→' in way else 'is'} {way}"


def _count_turns(record: Record) -> dict[str, int]:
    """Count the turns of each agent that learned."""
    learned: dict[str, int] = {}
    for row in record.rows:
        if row.get("learner"):
            learned[str(row["learner"])] = learned.get(str(row["learner"]), 0) + 1
    return learned


def _describe_work(record: Record) -> str:
    """Say how many turns there were, of whom, and what they cost; empty if nobody has learned."""
    learned = _count_turns(record)
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
    where = f"in {_name_measured(metric)} on {result['split']}"
    if not found:
        return f"Nothing can be told {where}: no arm and the baseline {short.get(baseline, baseline)} have a seed in common."
    paired = {one["arm"]: len(one["seeds"]) for one in found}
    alike = len(set(paired.values())) == 1
    of_all = [_count_seeds(len(found[0]["seeds"]))] if alike else []
    matched = ", ".join([*of_all, f"{result['match']} matched"])
    told = [_describe_difference(one, short) + ("" if alike else f", {_count_seeds(paired[one['arm']])}") for one in found]
    alone = [short.get(arm, arm) for arm in result["arms"] if arm != baseline and arm not in paired]
    told += [f"{arm} has no pair with the baseline" for arm in alone]
    return f"Against {short.get(baseline, baseline)}, {where} ({matched}): {'; '.join(told)}."


def _name_measured(metric: str) -> str:
    """Name a metric within a sentence: whose it is, and what; by its own name where it has no words."""
    title = get_title(metric)
    who, _, what = title.partition(": ")
    return f"the {who}’s {what}" if what else f"the {title}" if title != metric else metric


def _count_seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def _describe_difference(one: Mapping[str, Any], short: Mapping[str, str]) -> str:
    name = short.get(one["arm"], one["arm"])
    size = f"{one['mean']:+.3f} {format_interval(one['interval'])}".strip()
    if one["verdict"] in ("higher", "lower"):
        word = {"higher": "better", "lower": "worse"}[one["verdict"]] if one["metric"].endswith(GOOD) else one["verdict"]
        return f"{name} is {word} by {size}"
    return f"whether {name} differs cannot be told ({'; '.join(filter(None, (size, _explain_undecided(one))))})"


def _explain_undecided(one: Mapping[str, Any]) -> str:
    """Explain why a difference is undecided: the guard that stops it, where it is significant alone; else how large a
    difference could have been seen, or how much hangs on the choice of problems."""
    if one.get("guard"):
        return str(one["guard"])
    if one["smallest_effect"] is not None:
        return f"{one['smallest_effect']:.3f} could have been seen"
    return "" if one["problems"] is None else f"{format_interval(one['problems'])} over problems"
