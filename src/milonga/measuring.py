"""Evaluate a run, or a model that comes from no run, by a suite, and report the results."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from milonga.charts import make_standalone
from milonga.config import explain
from milonga.errors import ConfigError, RunFolderError
from milonga.evals.suites import SUITES, Subject, Suite
from milonga.pair import load_finished_run, make_run_context, plan_bare_models, restrict_to_agents
from milonga.resolve import Plan
from milonga.runfolder.console import Ticker, print_to_stderr
from milonga.runfolder.files import to_json, write_atomically

Report = dict[str, Any]


def run_suite(
    path: str | Path, name: str, given: Mapping[str, Any], plot: Path | None = None, trust: Collection[str] = ()
) -> Report:
    """Run a suite on a run's newest checkpoint, or on a model, and return the report. `plot` also draws the rows as SVG; what a
    suite keeps is also written into the run folder."""
    suite = make_suite(name, given)
    suite.check()
    _check_plot(plot)
    if suite.keeps:
        _check_writable(Path(path))
    with open_subject(path, suite.bare, suite.needs, trust) as (head, subject):
        found = suite.measure(subject)
    if plot is not None:
        write_atomically(plot, make_standalone(suite.chart(found.rows)))
    options = suite.options.model_dump(mode="json")
    report = head | {"suite": name, "options": options} | found.facts | {"rows": found.rows}
    if suite.keeps:
        write_atomically(Path(path) / f"{name}.json", to_json(report) + "\n")
    return report


def make_suite(name: str, given: Mapping[str, Any]) -> Suite:
    """Make a suite with validated options."""
    kind = SUITES.get(name)
    refuse_unknown_options(f"suite '{name}'", given, kind.Options.model_fields)
    try:
        return kind(kind.Options.model_validate(given))
    except ValidationError as error:
        raise explain(error, kind.Options, name) from None


def refuse_unknown_options(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse options that do not apply: one that would be ignored is a mistake of the user."""
    wrong = next((name for name in given if name not in known), None)
    if wrong is not None:
        raise ConfigError(f"option '{wrong}' does not apply to {what}: it takes {', '.join(known)}")


def _check_plot(plot: Path | None) -> None:
    """Check the path of the chart before anything is measured."""
    if plot is not None and plot.suffix != ".svg":
        raise ConfigError(f"charts are written as SVG: name a file that ends in .svg, not '{plot}'")
    if plot is not None and not plot.parent.is_dir():
        raise ConfigError(f"there is no folder '{plot.parent}' to write the chart to")


def _check_writable(folder: Path) -> None:
    """Check before anything is measured that the report can be kept."""
    if folder.is_dir() and not os.access(folder, os.W_OK):
        raise RunFolderError(f"'{folder}' cannot be written, and the report is kept there: measure a copy of the run")


@contextmanager
def open_subject(
    path: str | Path, bare: bool, needs: Sequence[str], trust: Collection[str] = ()
) -> Iterator[tuple[Report, Subject]]:
    """Open the subject of a suite, with the head of its report: a run's newest checkpoint, or if `bare` a model of no run."""
    if bare and not (Path(path) / "config.toml").exists():
        plan, weights, checkpoints = plan_bare_models(str(path), str(path)), None, None
        head: Report = {"model": str(path)}
    else:
        found = load_finished_run(Path(path), trust=trust)
        plan, weights, checkpoints = found.plan, found.weights, found.list_checkpoints
        head = {"run": str(path), "recipe": plan.config.recipe, "turn": found.turn}
    with load_subject(plan, weights, needs, trust) as subject:
        yield head, replace(subject, list_checkpoints=checkpoints)


@contextmanager
def load_subject(plan: Plan, weights: Path | None, needs: Sequence[str], trust: Collection[str] = ()) -> Iterator[Subject]:
    """Load the agents of a plan that a suite needs, with their weights; the others are not loaded."""
    agents = {"solver": plan.recipe.solving, "judge": plan.recipe.judging}
    for agent in (agents[side] for side in needs):
        if agent not in plan.roles:
            raise ConfigError(
                f"recipe '{plan.config.recipe}' has no {agent} to measure; its agents are {', '.join(plan.roles)}"
            )
    run_context = make_run_context(restrict_to_agents(plan, [agents[side] for side in needs]), weights)
    run_context.engine.watch = Ticker(print_to_stderr)
    with closing(run_context.engine):
        another = partial(open_generator, trust=trust)
        yield Subject(run_context, agents["solver"], agents["judge"], weights is None, another)


@contextmanager
def open_generator(name: str, trust: Collection[str] = ()) -> Iterator[Subject]:
    """Open the generator of another run, or another model in its place."""
    with open_subject(name, True, ["solver"], trust) as (_, subject):
        yield subject
