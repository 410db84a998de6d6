"""pass@k: how often is at least one of k samples right?"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from milonga.charts import line_chart
from milonga.evals.metrics import mean, mean_interval, pass_at_k
from milonga.evals.subsets import list_subset_sizes
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


class PassOptions(HeldOut):
    samples: int = Field(16, ge=1)
    """Solutions of each problem; the largest k."""


@SUITES.register("pass_at_k")
class PassAtK(Suite):
    """The generator: chance that one of k samples is right (or sound), now and as it started."""

    name = "pass_at_k"
    needs = ("solver",)
    Options = PassOptions
    columns = ("of", "k", "pass", "sound")
    options: PassOptions

    def measure(self, subject: Subject) -> Finding:
        options = self.options
        rows: list[Row] = []
        counts: Row = {}
        for of, tag in (("now", "live"), ("start", "ref"))[: 2 if subject.is_trained else 1]:
            ctx, problems = draw_held_out(subject, None, options.split, options.problems)
            groups = group_graded(ctx.ask(subject.solver, problems, options.samples, tag=tag))
            counts |= {"problems": len(problems), f"left_out_{of}": len(problems) - len(groups)}
            rows += [{"of": of, "k": k} | _measure_pass_at_k(groups, k) for k in list_subset_sizes(options.samples)]
        return Finding({"samples": options.samples} | counts, rows)

    def chart(self, rows: Sequence[Row]) -> str:
        series = []
        for of in dict.fromkeys(row["of"] for row in rows):
            own = [row for row in rows if row["of"] == of]
            series.append(make_series(of, own, "k", "pass"))
            if own[0]["sound"] is not None:
                series.append(make_series(f"{of}, every step right", own, "k", "sound"))
        return line_chart("pass@k", series, x_label="k", y_label="share of problems", log_x=True, y_range=(0, 1))


def _measure_pass_at_k(groups: Sequence[list[Rollout]], k: int) -> Row:
    """Measure pass@k over problems: of right answers and, if the task knows its steps, of sound solutions."""
    row: Row = {}
    for name, field in (("pass", "correct"), ("sound", "is_sound")):
        known = [[getattr(rollout.grade, field) for rollout in group] for group in groups]
        values = [pass_at_k(sum(group), len(group), k) for group in known if None not in group]
        row |= with_interval(name, mean(values), mean_interval(values))
    return row
