"""Calibration: does the verifier's confidence match how often it is right?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from pydantic import Field

from milonga.charts import Bin, reliability_chart
from milonga.evals.evaluate import get_confidence, get_step_confidence
from milonga.evals.metrics import calibration_error, mean, order_accuracy
from milonga.evals.reliability import bin_by_confidence, brier_limit, brier_score, calibration_floor
from milonga.evals.suites.base import SUITES, Finding, HeldOut, Row, Subject, Suite, draw_held_out
from milonga.types import Rollout

Judged = tuple[list[float], bool]
"""Confidences of repeated verification of one item, each from 0 to 1, and whether the item was right."""


class CalibrationOptions(HeldOut):
    samples: int = Field(4, ge=1)
    """Solutions of each problem."""
    checks: int = Field(8, ge=1)
    """Verifications of each: the share that says "right" is the confidence. A scorer is asked once."""


@SUITES.register("calibration")
class Calibration(Suite):
    """The verifier: is what it calls right with some confidence right as often? Of solutions, and of steps."""

    name = "calibration"
    Options = CalibrationOptions
    columns = ("of", "low", "high", "count", "confidence", "share")
    options: CalibrationOptions

    def measure(self, subject: Subject) -> Finding:
        options = self.options
        subject.refuse_options(options, "checks")
        ctx, problems = draw_held_out(subject, None, options.split, options.problems)
        solutions = ctx.ask(subject.solver, problems, options.samples)
        checks = subject.verify_solutions(ctx, solutions, options.checks)
        facts: Row = {"problems": len(problems), "solutions": len(solutions), "checks": len(checks[0])}
        facts["unreadable_rate"] = mean([not c.parsed.is_valid for group in checks for c in group])
        rows: list[Row] = []
        for of, judged in (("solution", _collect_solution_verdicts(checks)), ("step", collect_step_verdicts(checks))):
            facts |= {f"{of}/{key}": value for key, value in _calibration_metrics(judged).items()}
            bins = bin_by_confidence([sum(said) / len(said) for said, _ in judged], [right for _, right in judged])
            rows += [{"of": of} | asdict(one) for one in bins]
        return Finding(facts, rows)

    def chart(self, rows: Sequence[Row]) -> str:
        kinds = dict.fromkeys(row["of"] for row in rows)
        curves = [(f"{of}s", [Bin(r["confidence"], r["share"], r["count"]) for r in rows if r["of"] == of]) for of in kinds]
        return reliability_chart("calibration of the verifier", curves, x_label="confidence", y_label="share right")


def _collect_solution_verdicts(checks: Sequence[Sequence[Rollout]]) -> list[Judged]:
    """Collect confidences in whole solutions with a known grade; solutions without a parsed verdict are left out."""
    out = []
    for group in checks:
        said = [get_confidence(check.verification) for check in group if check.verification.final is not None]
        grade = group[0].target.grade
        if said and grade is not None and grade.correct is not None:
            out.append((said, grade.correct))
    return out


def collect_step_verdicts(checks: Sequence[Sequence[Rollout]]) -> list[Judged]:
    """Collect confidences in steps up to the first wrong one: after it, verifiers differ in what they call right."""
    out: list[Judged] = []
    for group in checks:
        grade = group[0].target.grade
        said = [scores for check in group if (scores := get_step_confidence(check.verification)) is not None]
        if said and grade is not None and grade.steps is not None and max(map(len, said)) <= len(grade.steps):
            last = len(grade.steps) if grade.first_error in (-1, None) else grade.first_error + 1
            reached = [[scores[k] for scores in said if k < len(scores)] for k in range(last)]
            out += [(column, grade.steps[k]) for k, column in enumerate(reached) if column]
    return out


def _calibration_metrics(judged: Sequence[Judged]) -> Row:
    """Compute calibration errors, each with the baseline it must be compared with."""
    confidence, right = [sum(said) / len(said) for said, _ in judged], [true for _, true in judged]
    base = mean(right)
    return {
        "judged": len(judged),
        "share_right": base,
        "mean_confidence": mean(confidence),
        "calibration_error": calibration_error(confidence, right),
        "calibration_error_by_chance": calibration_floor(confidence),
        "brier": brier_score(confidence, right),
        "brier_of_base_rate": None if base is None else base * (1 - base),
        "brier_of_endless_checks": brier_limit([said for said, _ in judged], right),
        "auroc": order_accuracy(confidence, [float(r) for r in right]),
    }
