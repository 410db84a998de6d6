"""The Python API: `run`, `resume`, `evaluate`. Torch is imported only when something is computed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milonga.config import read_toml
from milonga.engine import Engine, factory
from milonga.errors import StalledError, UserError
from milonga.pair import load_finished_run, make_run_context
from milonga.resolve import Plan, resolve

if TYPE_CHECKING:
    from milonga.context import RunContext
    from milonga.probing import Probe

Report = dict[str, Any]


def plan_run(
    recipe: str | None = None,
    *,
    task: str | Mapping[str, Any] | None = None,
    turns: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    sampler: str | None = None,
    engine: str | None = None,
    models: Mapping[str, str] | None = None,
    config: str | Path | None = None,
    settings: Sequence[Mapping[str, Any]] = (),
) -> Plan:
    """Plan a run: everything is checked, nothing is loaded. Later sources win: recipe defaults, config file, arguments,
    settings."""
    flags: dict[str, Any] = {}
    if recipe is not None:
        flags["recipe"] = recipe
    if task is not None:
        flags["task"] = {"name": task} if isinstance(task, str) else dict(task)
    for key, value in (("turns", turns), ("seed", seed), ("device", device), ("engine", engine)):
        if value is not None:
            flags[key] = value
    if sampler is not None:
        flags["sampling"] = {"sampler": sampler}
    if models:
        flags["policies"] = {agent: {"model": model} for agent, model in models.items()}
    layers = [read_toml(Path(config))] if config is not None else []
    return resolve([*layers, flags, *settings])


def preview_placement(plan: Plan) -> list[str]:
    """Preview the placement of workers and the memory each needs; empty for the local engine. Raises if it cannot fit."""
    if plan.config.engine == "local":
        return []
    from milonga.engine.ray import preview

    return preview(plan.policies, plan.config.placement, plan.config.device, factory.get_vllm_section(plan.config))


def make_engine(plan: Plan) -> Engine:
    """Make the engine of a plan, and load its models."""
    return factory.make_engine(plan.policies, plan.config)


def run(
    recipe: str,
    *,
    task: str | Mapping[str, Any] | None = None,
    turns: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    models: Mapping[str, str] | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Report:
    """Train by a recipe and return its report.

        milonga.run("tango", task="chain", turns=100)

    `settings` is a nested mapping with any key of the config, such as `{"batch": {"rollouts": 16}}`.
    """
    plan = plan_run(
        recipe,
        task=task,
        turns=turns,
        seed=seed,
        device=device,
        models=models,
        config=config,
        settings=[settings] if settings else (),
    )
    return start(plan, Path(out) if out is not None else choose_run_folder(recipe), quiet)


def choose_run_folder(recipe: str) -> Path:
    """Choose a free folder: `runs/tango-20260131-142501`, or with a number. Of `file.py:Class` only the class name is used."""
    base = Path("runs") / f"{recipe.rpartition(':')[2]}-{dt.datetime.now():%Y%m%d-%H%M%S}"
    names = [base, *(base.with_name(f"{base.name}-{n}") for n in range(2, 1000))]
    return next(path for path in names if not path.exists())


def start(plan: Plan, out: Path, quiet: bool = False, force: bool = False) -> Report:
    """Run a plan in a new folder; with `force` even if the probe says that nothing can be learned."""
    from milonga.engine.local.threads import choose_threads
    from milonga.runfolder.folder import RunFolder

    if plan.config.threads is None and plan.config.engine == "local":
        plan = replace(plan, config=plan.config.model_copy(update={"threads": choose_threads()}))
    with RunFolder(out, plan.config.keep.checkpoints) as folder:
        folder.require_new()
        return _run_loop(plan, folder, quiet, begin=True, force=force)


def resume(path: str | Path, quiet: bool = False, force: bool = False) -> Report:
    """Resume a run from its newest intact checkpoint; on a CPU it ends in the same bits as one that was never stopped.

    With `force` a run that stopped because it found nothing to learn from goes on, and does not stop for that again.
    """
    from milonga.runfolder.folder import RunFolder, read_config

    config = read_config(Path(path))
    plan = resolve([config.model_dump(mode="json", exclude_none=True), {"stop_without_signal": 0} if force else {}])
    with RunFolder(Path(path), config.keep.checkpoints) as folder:
        if folder.checkpoints.find_newest() is None and not folder.checkpoints.list_damaged():
            # Killed before the first checkpoint: start again from the beginning.
            folder.rewind(-1)
            return _run_loop(plan, folder, quiet)
        return _run_loop(plan, folder, quiet, restore=True)


def _run_loop(plan: Plan, folder: Any, quiet: bool, begin: bool = False, restore: bool = False, force: bool = False) -> Report:
    from milonga.loop import Loop
    from milonga.probing import should_probe
    from milonga.report import write_report_safely
    from milonga.runfolder.console import LiveView
    from milonga.runfolder.machine import describe_machine

    total = plan.recipe.schedule().count_turns_until(plan.recipe.lead, plan.config.turns) if not plan.config.budget else None
    title = f"{plan.config.recipe} on {plan.task.name} → {folder.path}"
    with LiveView(title, total, quiet) as view, closing(make_engine(plan)) as engine:
        loop = Loop(plan, engine, folder, view)
        if restore:
            loop.restore()
        loop.prepare()
        probed = _probe_run(plan, loop.run_context, view.say, force) if begin and should_probe(plan) else None
        loop.open_trackers()
        if begin:
            # Only now: if a model is missing or the disk is full, no run is left behind that would have to be resumed.
            folder.begin(plan.config)
        if probed is not None:
            probed.write(folder.path)
        folder.machine.append(describe_machine(loop.place.turn))
        try:
            report = loop.run()
        except StalledError:
            write_report_safely(folder.path, view.say)
            raise
        write_report_safely(folder.path, view.say)
        return report


def _probe_run(plan: Plan, run_context: RunContext, say: Callable[[str], None], force: bool) -> Probe:
    """Probe before a run, print what was found, and refuse the run if nothing can be learned."""
    from milonga.probing import PROBLEMS, ROLLOUTS, probe

    say(f"probe: {PROBLEMS} train problems, {ROLLOUTS} solutions of each (--no-probe leaves it out)")
    found = probe(plan, run_context)
    for line in found.describe():
        say(f"probe: {line}")
    if found.blocking and not force:
        reasons = "; ".join(str(advice) for advice in found.blocking)
        raise UserError(f"nothing can be learned: {reasons}; 'milonga probe' shows examples, --force runs it all the same")
    return found


def evaluate(path: str | Path, suite: str | None = None, *, plot: str | Path | None = None, **options: Any) -> Report:
    """Measure a run's newest checkpoint on held-out problems, or by a suite: see `milonga list suites`.

        milonga.evaluate("runs/tango", split="dev")
        milonga.evaluate("runs/tango", "best_of_n", samples=16, plot="best.svg")

    Options are those of the suite; without one, `split` and `problems`. For `processbench` the path may also be a model (a
    folder or a name) that comes from no run. `plot` names an SVG file to write.
    """
    from milonga.loop import make_evaluator
    from milonga.measuring import refuse_unknown_options, run_suite

    given = {key: value for key, value in options.items() if value is not None}
    if suite is not None:
        return run_suite(path, suite, given, None if plot is None else Path(plot))
    refuse_unknown_options(
        "an evaluation without a suite", given if plot is None else {**given, "plot": plot}, ("split", "problems")
    )
    found = load_finished_run(Path(path), {"eval": {"split": "test"} | given})
    run_context = make_run_context(found.plan, found.weights)
    with closing(run_context.engine):
        metrics = make_evaluator(found.plan, run_context)()
    head = {"run": str(path), "recipe": found.plan.config.recipe, "turn": found.turn, "split": found.plan.config.eval.split}
    return head | {key.removeprefix("eval/"): value for key, value in metrics.items()}
