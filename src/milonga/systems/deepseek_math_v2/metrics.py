"""Metrics of proof analyses: reported defects against the true ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from milonga.evals.metrics import mean
from milonga.systems.deepseek_math_v2.credit import analysis_quality, score_from_flaws


class Finding(NamedTuple):
    """One analysis and the truth. `said` is its score, None if the analysis could not be parsed."""

    reported: Collection[int]
    said: float | None
    flaws: Mapping[int, float]


def defect_metrics(findings: Sequence[Finding]) -> dict[str, float | None]:
    """Compute precision and recall of reported defects, pooled over flawed proofs, quality by the rubric, and the scores.

    A verifier that reports nothing has no precision, and a recall of 0: the two are read together.
    """
    flawed = [f for f in findings if f.flaws]
    readable = [f for f in findings if f.said is not None]
    reported = [k in f.flaws for f in flawed for k in f.reported]
    true = [k in f.reported for f in flawed for k in f.flaws]
    return {
        "defect_precision": mean(reported),
        "defect_recall": mean(true),
        "false_alarm_rate": mean([bool(f.reported) for f in findings if not f.flaws]),
        "analysis_quality": mean([analysis_quality(f.reported, f.said or 0.0, f.flaws) for f in readable]),
        "score_accuracy": mean([f.said == score_from_flaws(f.flaws.values()) for f in findings]),
        "analysis_unreadable": mean([f.said is None for f in findings]),
    }
