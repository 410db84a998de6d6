"""Best-of-N: does the verifier help to choose among N solutions?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic import Field

from milonga.charts import line_chart
from milonga.evals.metrics import mean, mean_interval, pass_at_k
from milonga.evals.subsets import best_of_n_accuracy, list_subset_sizes, vote_accuracy
from milonga.evals.suites.base import (
    SUITES,
    Finding,
    HeldOut,
    Row,
    Subject,
    Suite,
    draw_held_out,
    group_graded,
    make_series,
    with_interval,
)
from milonga.types import Rollout

Pick = Callable[[list[Rollout], list[float], int], float]
"""From a problem's solutions and their ranks: the probability that the choice among N of them is right."""


class BestOptions(HeldOut):
    samples: int = Field(8, ge=1)
    """Solutions of each problem; the largest N."""
    checks: int = Field(1, ge=1)
    """Verifications of each, whose mean rank is taken."""


def _list_correct(group: list[Rollout]) -> list[float]:
    return [rollout.correct for rollout in group]


PICKS: Mapping[str, Pick] = {
    "verifier": lambda group, ranks, n: best_of_n_accuracy(ranks, _list_correct(group), n),
    "vote": lambda group, ranks, n: vote_accuracy(
        [t.solution.answer for t in group], _list_correct(group), [1.0] * len(group), n
    ),
    "weighted_vote": lambda group, ranks, n: vote_accuracy([t.solution.answer for t in group], _list_correct(group), ranks, n),
    "oracle": lambda group, ranks, n: pass_at_k(int(sum(_list_correct(group))), len(group), n),
}
"""Who chooses: the verifier's rank, the most frequent answer, the answer with the largest sum of ranks, the truth."""


@SUITES.register("best_of_n")
class BestOfN(Suite):
    """The pair: accuracy of the choice among N samples, by verifier, vote, weighted vote and oracle."""

    name = "best_of_n"
    Options = BestOptions
    columns = ("n", *PICKS, "verifier_minus_vote")
    options: BestOptions

    def measure(self, subject: Subject) -> Finding:
        options = self.options
        subject.refuse_options(options, "checks")
        ctx, problems = draw_held_out(subject, None, options.split, options.problems)
        solutions = ctx.ask(subject.solver, problems, options.samples)
        groups = group_graded(solutions)
        checks = subject.verify_solutions(ctx, solutions, options.checks)
        ranks = {group[0].target.id: sum(c.verification.rank for c in group) / len(group) for group in checks}
        facts = {
            "problems": len(groups),
            "left_out": len(problems) - len(groups),
            "samples": options.samples,
            "checks": len(checks[0]),
            "unreadable_rate": mean([not c.parsed.is_valid for group in checks for c in group]),
        }
        return Finding(facts, [_measure_choice(groups, ranks, n) for n in list_subset_sizes(options.samples)])

    def chart(self, rows: Sequence[Row]) -> str:
        series = [make_series(name.replace("_", " "), rows, "n", name) for name in PICKS]
        return line_chart("best of N", series, x_label="N", y_label="accuracy", log_x=True, y_range=(0, 1))


def _measure_choice(groups: Sequence[list[Rollout]], ranks: Mapping[str, float], n: int) -> Row:
    """Measure the accuracy of each way to choose among `n`; intervals bootstrap over problems, the same draws for all."""
    values = {name: [pick(group, [ranks[t.id] for t in group], n) for group in groups] for name, pick in PICKS.items()}
    row: Row = {"n": n}
    for name, of_problems in values.items():
        row |= with_interval(name, mean(of_problems), mean_interval(of_problems))
    gains = [a - b for a, b in zip(values["verifier"], values["vote"], strict=True)]
    return row | with_interval("verifier_minus_vote", mean(gains), mean_interval(gains))
