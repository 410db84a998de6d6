"""Transfer: does the verifier judge solutions of generators it was not trained with?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from milonga.charts import Bars, bar_chart
from milonga.config import parse_settings
from milonga.errors import ConfigError
from milonga.evals.bench import make_bench
from milonga.evals.evaluate import add_prefix, ranking_metrics
from milonga.evals.metrics import bootstrap_interval, find_first_wrong, mean, process_f1, trivial_f1
from milonga.evals.suites.base import (
    SUITES,
    Finding,
    HeldOut,
    Row,
    Subject,
    Suite,
    count_held_out,
    draw_held_out,
    ensure_list,
    measure_judging,
    with_interval,
)
from milonga.tasks import Task, make_task
from milonga.types import Rollouts

OWN, ITSELF = "own", "own generator"


class TransferOptions(HeldOut):
    samples: int = Field(4, ge=1)
    """Solutions of each problem."""
    generator: Annotated[list[str], BeforeValidator(ensure_list)] = Field(default_factory=list)
    """Other generators: run folders or models."""
    task: Annotated[list[str], BeforeValidator(ensure_list)] = Field(default_factory=list)
    """Other tasks: NAME or NAME,key=value,..."""


class Source(NamedTuple):
    """Solutions to judge: their task, and who wrote them."""

    task: str
    by: str
    made: Task
    solutions: Rollouts


@SUITES.register("transfer")
class Transfer(Suite):
    """The verifier on solutions by its own generator, by others, on harder problems and on other tasks."""

    name = "transfer"
    Options = TransferOptions
    columns = ("task", "by", "accuracy", "balanced_accuracy", "auroc", "f1", "trivial/no_knowledge", "trivial/error_modal")
    options: TransferOptions

    def check(self) -> None:
        for name in self.options.task:
            make_task(parse_task_section(name))

    def measure(self, subject: Subject) -> Finding:
        own = subject.run_context.task
        tasks = {name: make_task(parse_task_section(name)) for name in self.options.task}
        # First what may not be there: nobody should wait for that.
        others = [Source(OWN, name, own, self.sample_other_generator(name, subject, own)) for name in self.options.generator]
        rows = [
            {"task": s.task, "by": s.by} | _measure_source(subject, s) for s in self.iterate_sources(subject, others, tasks)
        ]
        measured = count_held_out(own, self.options.split, self.options.problems)
        return Finding({"problems": measured, "samples": self.options.samples}, rows)

    def chart(self, rows: Sequence[Row]) -> str:
        names = [f"{row['task']} task: {row['by']}" for row in rows]
        shown = ("balanced_accuracy", "f1")
        bars = [Bars(key.replace("_", " "), *([r[key + end] for r in rows] for end in ("", "_low", "_high"))) for key in shown]
        trivial = Bars("F1 of an error oracle", [row["trivial/error_modal"] for row in rows])
        return bar_chart("the verifier on solutions of", names, [*bars, trivial], value_range=(0, 1))

    def iterate_sources(self, subject: Subject, others: Sequence[Source], tasks: Mapping[str, Task]) -> Iterator[Source]:
        own = subject.run_context.task
        yield Source(OWN, ITSELF, own, self.sample_solutions(subject, own))
        if subject.is_trained:
            yield Source(OWN, "its start", own, self.sample_solutions(subject, own, "ref"))
        yield from self.make_task_solutions(subject, OWN, own)
        yield from others
        harder = own.make_harder()
        for name, task in (tasks if harder is None else {"harder": harder, **tasks}).items():
            yield Source(name, ITSELF, task, self.sample_solutions(subject, task))
            yield from self.make_task_solutions(subject, name, task)

    def sample_solutions(self, subject: Subject, task: Task, tag: str = "live") -> Rollouts:
        ctx, problems = draw_held_out(subject, task, self.options.split, self.options.problems)
        return ctx.ask(subject.solver, problems, self.options.samples, tag=tag)

    def sample_other_generator(self, name: str, subject: Subject, task: Task) -> Rollouts:
        """Sample another generator's solutions of the same problems, with the same random keys."""
        assert subject.another is not None, "who measures transfer can open other generators"
        with subject.another(name) as other:
            mine, theirs = (s.run_context.roles[s.solver].dialect for s in (subject, other))
            if mine != theirs:
                raise ConfigError(f"'{name}' writes in the {theirs} dialect, which a verifier of the {mine} one cannot read")
            return self.sample_solutions(
                replace(other, run_context=replace(other.run_context, seed=subject.run_context.seed)), task
            )

    def make_task_solutions(self, subject: Subject, name: str, task: Task) -> Iterator[Source]:
        """Yield the task's own solutions, about half of them right, if it can write them."""
        split = self.options.split
        bench = make_bench(
            task, subject.run_context.roles[subject.solver], count_held_out(task, split, self.options.problems), split
        )
        if bench:
            yield Source(name, "the task", task, Rollouts(bench))


def parse_task_section(text: str) -> dict[str, Any]:
    """Parse `chain,ops=12` into the section of a config."""
    name, _, settings = text.partition(",")
    return {"name": name} | parse_settings(settings)


def _measure_source(subject: Subject, source: Source) -> Row:
    """Measure the verifier on these solutions: verdicts, ranking and first errors, with trivial baselines."""
    ctx = subject.make_context(source.made)
    checks = subject.verify_all(ctx, source.solutions)
    row: Row = {"solutions": len(source.solutions), "accuracy": mean(source.solutions.correct)} | measure_judging(checks)
    row["auroc"] = ranking_metrics(source.solutions, checks)["auroc"]
    return row | _first_error_metrics(checks)


def _first_error_metrics(checks: Rollouts) -> Row:
    """Compute the F1 of first errors over solutions whose steps have a known truth."""
    stepped = [(c, grade) for c in checks if (grade := c.target.grade) is not None and grade.steps]
    predictions = [find_first_wrong(c.verification.steps) for c, _ in stepped]
    labels = [-1 if grade.first_error is None else grade.first_error for _, grade in stepped]
    found = process_f1(predictions, labels)
    items = [c.problem.id for c, _ in stepped]
    trivial = trivial_f1(labels, [g.correct is True for _, g in stepped], [len(g.steps or ()) for _, g in stepped])
    return (
        with_interval("f1", found["f1"], bootstrap_interval(predictions, labels, items))
        | {"stepped": len(stepped), "error_accuracy": found["error_accuracy"], "right_accuracy": found["right_accuracy"]}
        | add_prefix("trivial", dict(trivial))
    )
