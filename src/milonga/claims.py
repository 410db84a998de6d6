"""Run a claim, and decide its verdict.

Invariants: the claim's one difference is tested at 5 %, two-sided, over paired seeds; a claim holds only where the interval
lies on its side of zero, and does not hold only where the interval leaves no room for an effect that would matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from milonga.comparing import stats
from milonga.comparing.arms import Comparison, plan_comparison
from milonga.comparing.comparison import print_warning, run_planned_comparison
from milonga.config import merge
from milonga.report import write_report_safely
from milonga.runfolder.files import to_json, write_atomically
from milonga.systems.claim import Claim

Verdict = Literal["holds", "does not hold", "undecided"]
COMMON: Mapping[str, Any] = {
    "eval": {"split": "test", "greedy": False},
    "keep": {"rollouts_every": 0, "checkpoint_every": 1000},
}
"""Defaults below a claim's own settings."""


def plan_claim(
    claim: Claim, seeds: int | str = 5, full: bool = False, device: str | None = None, sampler: str | None = None
) -> Comparison:
    """Plan a claim as a comparison: everything is checked, nothing is loaded or written. A claim is about so many turns of the
    lead agent, whatever they cost; that is shown beside it."""
    arms = [*claim.arms, *(claim.more if full else ())]
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
        settings=[merge(COMMON, claim.settings)],
    )


def run_claim(claim: Claim, comparison: Comparison, out: Path, jobs: int | None = None, quiet: bool = False) -> dict[str, Any]:
    """Run the missing runs, decide the verdict, and write OUT/claim.json."""
    result = run_planned_comparison(comparison, out, jobs, quiet)
    found = summarise_claim(claim, result)
    write_atomically(out / "claim.json", to_json(found) + "\n")
    write_report_safely(out, print_warning)  # again: now with the verdict
    return found


def summarise_claim(claim: Claim, result: Mapping[str, Any]) -> dict[str, Any]:
    """Extract the claim's own difference from a comparison, with its verdict and the compute of each arm."""
    metric = f"area of {result['metric']}" if claim.area else result["metric"]
    difference = next((d for d in result["differences"] if d["arm"] == claim.arms[0] and d["metric"] == metric), None)
    verdict, interval = "undecided", None
    if difference is not None:
        interval = difference["interval"]
        verdict = judge_claim(claim, interval, len(difference["values"]), difference["problems"])
    return {
        "claim": claim.recipe,
        "says": claim.says,
        "arms": list(result["arms"]),
        "metric": metric,
        "better": "higher" if claim.higher else "lower",
        "matters": claim.matters,
        "seeds": result["seeds"],
        "difference": None if difference is None else difference["mean"],
        "interval": interval,
        "p": None if difference is None else difference["p"],
        "smallest_effect": None if difference is None else difference["smallest_effect"],
        "verdict": verdict,
        "values": {name: _get_arm_value(arm, claim, result["metric"]) for name, arm in result["arms"].items()},
        "compute": {name: {cost: arm[cost] for cost in ("turns", "tokens", "flops")} for name, arm in result["arms"].items()},
        "failed": result["failed"],
        "out": result["out"],
    }


def _get_arm_value(arm: Mapping[str, Any], claim: Claim, metric: str) -> float | None:
    found = arm["metrics"].get(metric)
    return None if found is None else found["area" if claim.area else "final"]


def judge_claim(
    claim: Claim, interval: tuple[float, float] | None, pairs: int, problems: tuple[float, float] | None = None
) -> Verdict:
    """Decide whether a claim holds. If problems can be resampled, their interval must lie on the same side of zero too."""
    if interval is None or pairs < stats.FEWEST_PAIRS:
        return "undecided"
    low, high = interval if claim.higher else (-interval[1], -interval[0])
    if high < claim.matters:
        return "does not hold"
    if low <= 0:
        return "undecided"
    if problems is not None and problems[0] <= 0 <= problems[1]:
        return "undecided"
    return "holds"
