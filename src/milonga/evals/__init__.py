"""Evaluations: metrics of the generator and of the verifier."""

from milonga.evals.bench import make_bench, read_processbench
from milonga.evals.evaluate import (
    Evaluator,
    Metrics,
    judge_bench,
    judge_metrics,
    metric_names,
    output_metrics,
    solver_metrics,
)

__all__ = [
    "Evaluator",
    "Metrics",
    "judge_bench",
    "judge_metrics",
    "make_bench",
    "metric_names",
    "output_metrics",
    "read_processbench",
    "solver_metrics",
]
