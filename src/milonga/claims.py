"""Run a claim, and decide its verdict.

Invariants: what the claim needs in order to say anything is checked in a pilot run, before any seed that is reported; its one
difference is tested at 5 %, two-sided, over paired seeds; a claim holds only where the interval lies on its side of zero, and
does not hold only where a difference that would matter can be ruled out at 5 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from milonga.comparing import stats
from milonga.comparing.arms import Comparison, add_eval_prefix, list_metrics, plan_comparison
from milonga.comparing.comparison import print_warning, run_planned_comparison
from milonga.comparing.results import read_outcome
from milonga.config import merge
from milonga.errors import ConfigError, suggest_name
from milonga.report import write_report_safely
from milonga.report.sheets import shorten_arm_names
from milonga.runfolder.files import to_json, write_atomically
from milonga.systems.claim import Claim, Condition, Measured

Verdict = Literal["holds", "does not hold", "undecided", "not testable"]
COMMON: Mapping[str, Any] = {
    "eval": {"split": "test", "greedy": False},
    "keep": {"rollouts_every": 0, "checkpoint_every": 1000},
}
"""Defaults below a claim's own settings."""
SEEDS = 5
"""Of a claim that does not say how far its seeds spread."""
PILOT_SEED = 0
"""Seeds below 100 are never reported."""
ONE_SIDED = 0.9
"""The level of an interval each of whose ends is passed by chance in 5 % of all experiments."""


def count_seeds(claim: Claim) -> int:
    """Return how many seeds show the expected difference in 80 % of all experiments, as far as its spread is known."""
    if claim.spread is None:
        return SEEDS
    return stats.plan_seeds(claim.matters if claim.effect is None else claim.effect, claim.spread)


def plan_claim(
    claim: Claim, seeds: int | str | None = None, full: bool = False, device: str | None = None, sampler: str | None = None
) -> Comparison:
    """Plan a claim as a comparison: everything is checked, nothing is loaded or written. A claim is about so many turns of the
    lead agent, whatever they cost; that is shown beside it."""
    arms = [*claim.arms, *(claim.more if full else ())]
    return _plan(claim, arms, count_seeds(claim) if seeds is None else seeds, device, sampler, {})


def plan_pilot(claim: Claim, device: str | None = None, sampler: str | None = None) -> Comparison | None:
    """Plan the run of one seed in which the claim's conditions are checked; None if it has none."""
    if not claim.conditions:
        return None
    named = [one for each in claim.conditions for one in (each.of, each.minus) if one is not None]
    greedy = any("greedy" in one.metric for one in named)
    pilot = _plan(claim, claim.arms, (PILOT_SEED,), device, sampler, {"eval": {"greedy": True}} if greedy else {})
    for one in named:
        known = list_metrics(pilot.arms[one.arm].plan)
        if (metric := _get_metric(claim, one)) not in known:
            advice = suggest_name(metric, known)
            raise ConfigError(f"a condition of the claim is on '{metric}', which '{claim.arms[one.arm]}' has not: {advice}")
    return pilot


def _plan(
    claim: Claim,
    arms: Sequence[str],
    seeds: int | str | Sequence[int],
    device: str | None,
    sampler: str | None,
    more: Mapping[str, Any],
) -> Comparison:
    return plan_comparison(
        arms,
        task=claim.task,
        seeds=seeds,
        turns=claim.turns,
        match="turns",
        metric=claim.metric,
        baseline=claim.arms[1],
        device=device,
        sampler=sampler,
        settings=[merge(merge(COMMON, claim.settings), more)],
    )


def _get_metric(claim: Claim, one: Measured) -> str:
    return add_eval_prefix(one.metric or claim.metric)


def find_unmet(claim: Claim, read: Callable[[Measured], float | None]) -> list[str]:
    """Say which conditions of a claim are not met; `read` gives the measured numbers, None for what nobody measured."""
    return [said for each in claim.conditions if (said := _check_condition(claim, each, read)) is not None]


def _check_condition(claim: Claim, condition: Condition, read: Callable[[Measured], float | None]) -> str | None:
    value = read(condition.of)
    less = 0.0 if condition.minus is None else read(condition.minus)
    if value is None or less is None or condition.least <= value - less <= condition.most:
        return None
    bound = f"at most {condition.most:g}" if value - less > condition.most else f"at least {condition.least:g}"
    said = f"{_name_measured(claim, condition.of)} is {value:.3f}"
    if condition.minus is None:
        return f"{condition.why}: {said}, and should be {bound}"
    return f"{condition.why}: {said}, {_name_measured(claim, condition.minus)} {less:.3f}; the difference should be {bound}"


def _name_measured(claim: Claim, one: Measured) -> str:
    metric = _get_metric(claim, one).removeprefix("eval/")
    return f"{metric} of '{shorten_arm_names(claim.arms)[claim.arms[one.arm]]}' at its {'start' if one.start else 'end'}"


def check_claim(
    claim: Claim, pilot: Comparison, out: Path, jobs: int | None = None, quiet: bool = False
) -> dict[str, Any] | None:
    """Run the pilot, or what is missing of it. Return None if the conditions are met, else what is to be said instead of a
    result, which OUT/claim.json has too."""
    result = run_planned_comparison(pilot, out, jobs, quiet)
    outcomes = [read_outcome(out / arm.folder / f"seed-{PILOT_SEED}") for arm in pilot.arms]

    def read(one: Measured) -> float | None:
        found = outcomes[one.arm]
        points = [] if found is None else found.points(_get_metric(claim, one))
        return None if not points else points[0 if one.start else -1][1]

    unmet = find_unmet(claim, read)
    if not unmet:
        return None
    found = summarise_claim(claim, result, unmet)
    _keep(found, out)
    return found


def run_claim(claim: Claim, comparison: Comparison, out: Path, jobs: int | None = None, quiet: bool = False) -> dict[str, Any]:
    """Run the missing runs, decide the verdict, and write OUT/claim.json."""
    result = run_planned_comparison(comparison, out, jobs, quiet)
    found = summarise_claim(claim, result)
    _keep(found, out)
    return found


def _keep(found: dict[str, Any], out: Path) -> None:
    """Write what was found into a folder of runs, and its report again: now with the verdict."""
    write_atomically(out / "claim.json", to_json(found) + "\n")
    write_report_safely(out, print_warning)


def summarise_claim(claim: Claim, result: Mapping[str, Any], unmet: Sequence[str] = ()) -> dict[str, Any]:
    """Extract the claim's own difference from a comparison, with its verdict and the compute of each arm. Where conditions are
    not met, the comparison is the pilot's, and there is no difference to be told."""
    metric = f"area of {result['metric']}" if claim.area else result["metric"]
    difference = next((d for d in result["differences"] if d["arm"] == claim.arms[0] and d["metric"] == metric), None)
    if unmet:
        difference = None
    reached = None
    if difference is not None and claim.threshold is not None:
        reached = count_reached(claim, claim.threshold, result)
    return {
        "claim": claim.recipe,
        "says": claim.says,
        "arms": list(result["arms"]),
        "metric": metric,
        "better": "higher" if claim.higher else "lower",
        "matters": claim.matters,
        "seeds": result["seeds"],
        "difference": None if difference is None else difference["mean"],
        "interval": None if difference is None else difference["interval"],
        "p": None if difference is None else difference["p"] if reached is None else reached["p"],
        "smallest_effect": None if difference is None else difference["smallest_effect"],
        "reached": reached,
        "verdict": _decide(claim, difference, reached, unmet),
        "unmet": list(unmet),
        "values": {name: _get_arm_value(arm, claim, result["metric"]) for name, arm in result["arms"].items()},
        "compute": {name: {cost: arm[cost] for cost in ("turns", "tokens", "flops")} for name, arm in result["arms"].items()},
        "failed": result["failed"],
        "out": result["out"],
    }


def _decide(
    claim: Claim, difference: Mapping[str, Any] | None, reached: Mapping[str, Any] | None, unmet: Sequence[str]
) -> Verdict:
    if unmet:
        return "not testable"
    if difference is None:
        return "undecided"
    if reached is not None:
        return judge_reached(claim, reached)
    return judge_claim(claim, difference["interval"], len(difference["values"]), difference["problems"])


def _get_arm_value(arm: Mapping[str, Any], claim: Claim, metric: str) -> float | None:
    found = arm["metrics"].get(metric)
    return None if found is None else found["area" if claim.area else "final"]


def count_reached(claim: Claim, threshold: float, result: Mapping[str, Any]) -> dict[str, Any]:
    """Count the paired seeds in which only the first arm, or only the second, ended on the better side of the threshold."""
    ends = []
    for name in claim.arms[:2]:
        found = result["arms"][name]["metrics"][result["metric"]]
        ends.append(dict(zip(found["seeds"], found["values"], strict=True)))
    first, second = ends
    sign = 1 if claim.higher else -1
    pairs = [[sign * (end[seed] - threshold) > 0 for end in ends] for seed in first if seed in second]
    wins, losses = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    return {
        "threshold": threshold,
        "shares": [stats.average([float(pair[i]) for pair in pairs]) for i in (0, 1)],
        "wins": wins,
        "losses": losses,
        "p": stats.sign_test(wins, losses),
    }


def judge_reached(claim: Claim, reached: Mapping[str, Any]) -> Verdict:
    """Decide whether a claim about the share of seeds holds, by McNemar's exact test."""
    if reached["p"] >= 1 - stats.LEVEL:
        return "undecided"
    return "holds" if reached["wins"] > reached["losses"] else "does not hold"


def judge_claim(
    claim: Claim, interval: tuple[float, float] | None, pairs: int, problems: tuple[float, float] | None = None
) -> Verdict:
    """Decide whether a claim holds, by the 95 % interval of its difference. If problems can be resampled, their interval must
    lie on the same side of zero too."""
    if interval is None or pairs < stats.FEWEST_PAIRS:
        return "undecided"
    low, high = interval if claim.higher else (-interval[1], -interval[0])
    if stats.narrow_interval((low, high), pairs, ONE_SIDED)[1] < claim.matters:
        return "does not hold"
    if low <= 0 or (problems is not None and problems[0] <= 0 <= problems[1]):
        return "undecided"
    return "holds"
