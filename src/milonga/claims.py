"""Run a claim, and decide its verdict.

Invariants: what the claim needs in order to say anything is checked in a pilot, before any seed that is reported; its one
difference is tested at 5 % over paired seeds. A claim does not hold where a difference that would matter can be ruled out; it
holds where that is not so, and the 95 % interval lies on its side of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from milonga.comparing import stats
from milonga.comparing.arms import FIRST_SEED, Comparison, add_eval_prefix, list_metrics, plan_comparison
from milonga.comparing.comparison import print_warning, run_planned_comparison
from milonga.comparing.results import read_outcome
from milonga.config import merge
from milonga.errors import ConfigError, suggest_name
from milonga.report import write_report_safely
from milonga.report.sheets import shorten_arm_names
from milonga.runfolder.files import to_json, write_atomically
from milonga.systems.claim import Claim, Condition, Measured

Verdict = Literal["holds", "does not hold", "undecided", "not testable"]
Conditions = Literal["met", "unmet", "not checked", "none"]
"""What became of a claim's conditions."""
COMMON: Mapping[str, Any] = {
    "eval": {"split": "test", "greedy": False},
    "keep": {"rollouts_every": 0, "checkpoint_every": 1000},
}
"""Defaults below a claim's own settings."""
SEEDS, MOST_SEEDS = 5, 20
"""Of a claim that does not say how far its seeds spread; and the most that are planned: a claim that needs more is one about
larger differences, or needs another setting."""
LEAST_REACHED = 8
"""Seeds, at least, of a claim about the share that break through: if six do in one arm alone, p is 0.03."""
PLANNED_FROM = 200
"""The first seed of a claim whose spread is known: seeds from 100 on are those that it is known from."""
PILOT_SEEDS = (0, 1, 2)
"""Seeds below 100 are never reported."""
ROUNDING = 1e-9
"""A difference of 0.84 and 0.86 is a little more than 0.02."""
ONE_SIDED = 0.9
"""The level of an interval each of whose ends is passed by chance in 5 % of all experiments."""


def count_seeds(claim: Claim) -> int:
    """Return how many seeds show the expected difference in 80 % of all experiments, and rule out one that would matter in 80 %
    of those in which there is none; as far as the spread is known, and at most `MOST_SEEDS`."""
    least = SEEDS if claim.threshold is None else LEAST_REACHED
    if claim.spread is None:
        return least
    shown = stats.plan_seeds(claim.matters if claim.effect is None else claim.effect, claim.spread)
    return min(MOST_SEEDS, max(least, shown, stats.plan_seeds(claim.matters, claim.spread, ONE_SIDED)))


def list_seeds(claim: Claim) -> tuple[int, ...]:
    """List the seeds that are planned for a claim."""
    first = FIRST_SEED if claim.spread is None else PLANNED_FROM
    return tuple(range(first, first + count_seeds(claim)))


def find_visible(claim: Claim, seeds: int) -> float | None:
    """Find the smallest difference that so many seeds show in 80 % of all experiments, if its spread is known."""
    return None if claim.spread is None or seeds < stats.FEWEST_PAIRS else stats.detectable_effect(seeds, claim.spread)


def _choose_seeds(claim: Claim, seeds: int | str | None) -> str | tuple[int, ...]:
    """The planned seeds; so many, from the first of these on; or those that are named."""
    if isinstance(seeds, str) and not seeds.strip().isdigit():
        return seeds
    planned = list_seeds(claim)
    return planned if seeds is None else tuple(range(planned[0], planned[0] + int(seeds)))


def plan_claim(
    claim: Claim, seeds: int | str | None = None, full: bool = False, device: str | None = None, sampler: str | None = None
) -> Comparison:
    """Plan a claim as a comparison: everything is checked, nothing is loaded or written. A claim is about so many turns of the
    lead agent, whatever they cost; that is shown beside it."""
    arms = [*claim.arms, *(claim.more if full else ())]
    return _plan(claim, arms, _choose_seeds(claim, seeds), device, sampler, {})


def plan_pilot(claim: Claim, device: str | None = None, sampler: str | None = None) -> Comparison | None:
    """Plan the few runs in which the claim's conditions are checked; None if it has none."""
    if not claim.conditions:
        return None
    named = [one for condition in claim.conditions for one in (condition.of, condition.minus) if one is not None]
    greedy = any("greedy" in one.metric for one in named)
    pilot = _plan(claim, claim.arms, PILOT_SEEDS, device, sampler, {"eval": {"greedy": True}} if greedy else {})
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


def check_conditions(claim: Claim, read: Callable[[Measured], Sequence[float]]) -> tuple[list[str], list[str]]:
    """Say which conditions of a claim are not met, and which nobody can tell, since what they are about was not measured.
    `read` gives a measured number of every seed.

    A bound is missed where the mean over seeds lies beyond it by more than its standard error: of comparators that are exactly
    as good as they have to be, three seeds send one in five away.
    """
    unmet, unknown = [], []
    for condition in claim.conditions:
        values, less = read(condition.of), [] if condition.minus is None else read(condition.minus)
        if not values or (condition.minus is not None and not less):
            unknown.append(f"it was not measured whether {condition.why}")
        elif (bound := _find_missed(condition, values, less)) is not None:
            unmet.append(f"{condition.why}: {_say_measured(claim, condition, values, less)} {bound}")
    return unmet, unknown


def _find_missed(condition: Condition, values: Sequence[float], less: Sequence[float]) -> str | None:
    """Say which bound of a condition these values miss, if they do."""
    paired = condition.minus is None or len(less) == len(values)
    differences = [a - b for a, b in zip(values, less, strict=True)] if less and paired else list(values)
    centre = (stats.average(differences) or 0.0) if paired else (stats.average(values) or 0.0) - (stats.average(less) or 0.0)
    error = (stats.standard_error(differences) or 0.0) if paired else 0.0
    if centre - error > condition.most + ROUNDING:
        return f"at most {condition.most:g}"
    return f"at least {condition.least:g}" if centre + error < condition.least - ROUNDING else None


def _say_measured(claim: Claim, condition: Condition, values: Sequence[float], less: Sequence[float]) -> str:
    said = f"{_name_measured(claim, condition.of)} is {stats.average(values):.3f}"
    if condition.minus is None:
        return f"{said}, and should be"
    return f"{said}, {_name_measured(claim, condition.minus)} {stats.average(less):.3f}; the difference should be"


def describe_condition(claim: Claim, condition: Condition) -> str:
    """Say what a condition demands: what is measured, its bounds, and what is wrong if they are missed."""
    less = "" if condition.minus is None else f" less {_name_measured(claim, condition.minus)}"
    bounds = [f"at least {condition.least:g}"] if condition.least > float("-inf") else []
    bounds += [f"at most {condition.most:g}"] if condition.most < float("inf") else []
    return f"{_name_measured(claim, condition.of)}{less} must be {' and '.join(bounds)} (else {condition.why})"


def _name_measured(claim: Claim, one: Measured) -> str:
    metric = _get_metric(claim, one).removeprefix("eval/")
    return f"{metric} of '{shorten_arm_names(claim.arms)[claim.arms[one.arm]]}' at its {'start' if one.start else 'end'}"


def check_claim(
    claim: Claim, pilot: Comparison, out: Path, jobs: int | None = None, quiet: bool = False
) -> dict[str, Any] | None:
    """Run the pilot, or what is missing of it. Return None if the conditions are met, else what is to be said instead of a
    result, which OUT/claim.json has too."""
    result = run_planned_comparison(pilot, out, jobs, quiet)
    outcomes = [[read_outcome(out / arm.folder / f"seed-{seed}") for seed in pilot.seeds] for arm in pilot.arms]

    def read(one: Measured) -> list[float]:
        curves = [found.points(_get_metric(claim, one)) for found in outcomes[one.arm] if found is not None]
        return [points[0 if one.start else -1][1] for points in curves if points]

    unmet, unknown = check_conditions(claim, read)
    unmet += [
        *unknown,
        *(f"a run of the pilot failed: {run['arm']}, seed {run['seed']}: {run['error']}" for run in result["failed"]),
    ]
    if not unmet:
        (out / "claim.json").unlink(missing_ok=True)  # that of an earlier, unfinished pilot
        write_report_safely(out, print_warning)
        return None
    found = summarise_claim(claim, result, "unmet", unmet)
    _keep(found, out)
    return found


def run_claim(
    claim: Claim, comparison: Comparison, out: Path, jobs: int | None = None, quiet: bool = False, checked: bool = True
) -> dict[str, Any]:
    """Run the missing runs, decide the verdict, and write OUT/claim.json. `checked`: whether a pilot met the conditions."""
    result = run_planned_comparison(comparison, out, jobs, quiet)
    found = summarise_claim(claim, result, "none" if not claim.conditions else "met" if checked else "not checked")
    _keep(found, out)
    return found


def _keep(found: dict[str, Any], out: Path) -> None:
    """Write what was found into a folder of runs, and its report again: now with the verdict."""
    write_atomically(out / "claim.json", to_json(found) + "\n")
    write_report_safely(out, print_warning)


def summarise_claim(
    claim: Claim, result: Mapping[str, Any], conditions: Conditions, unmet: Sequence[str] = ()
) -> dict[str, Any]:
    """Extract the claim's own difference from a comparison, with its verdict and the compute of each arm. Where conditions are
    not met, the comparison is the pilot's, and there is no difference to be told."""
    metric = f"area of {result['metric']}" if claim.area else result["metric"]
    difference = next((d for d in result["differences"] if d["arm"] == claim.arms[0] and d["metric"] == metric), None)
    if unmet:
        difference = None
    pairs = 0 if difference is None else len(difference["values"])
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
        "pairs": pairs,
        "difference": None if difference is None else difference["mean"],
        "interval": None if difference is None else difference["interval"],
        "p": None if difference is None else difference["p"] if reached is None else reached["p"],
        "smallest_effect": None if difference is None else difference["smallest_effect"],
        "reached": reached,
        "conditions": conditions,
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
    """Decide whether a claim about the share of seeds holds, by McNemar's exact test. Where as many seeds break through in both
    arms, nothing is decided: no share that would matter is stated that could be ruled out."""
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


def find_deciding_p(claim: Claim, found: Mapping[str, Any], verdict: Verdict) -> float | None:
    """Find the p-value of the test that a verdict rests on: that a difference that would matter can be ruled out where the
    claim does not hold, else that there is none. None where nothing was tested."""
    pairs = found.get("pairs", len(found["seeds"]))
    if verdict != "does not hold" or found.get("reached") is not None or found["interval"] is None:
        return None if found["p"] is None else float(found["p"])
    low, high = found["interval"]
    return stats.p_below((low, high) if claim.higher else (-high, -low), pairs, claim.matters)
