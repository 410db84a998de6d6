"""The Python API: `run`, `resume`, `evaluate`. Torch is imported only when something is computed."""

from __future__ import annotations

import datetime as dt
import json
import random
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milonga.config import Config, EvalSection, expand_keys, read_toml
from milonga.engine import Engine, factory
from milonga.errors import ConfigError, DataError, OutOfMemory, RunFolderError, StalledError, UserError, explain_lost_memory
from milonga.flags import RewardLike, list_rewards, make_layer
from milonga.loading import name_object, pass_again
from milonga.pair import load_finished_run, make_run_context
from milonga.recipe import Recipe
from milonga.resolve import Plan, read_layer, resolve
from milonga.runfolder.console import Ticker, print_to_stderr
from milonga.systems.custom import find_recipe
from milonga.systems.index import RECIPES
from milonga.tasks import Task
from milonga.tasks.functions import load_rewards
from milonga.trust import check_trust, list_reached

if TYPE_CHECKING:
    from milonga.context import RunContext
    from milonga.probing import Probe
    from milonga.runfolder.folder import RunFolder
    from milonga.runfolder.origin import Origin

Report = dict[str, Any]
TO_LEARN = (
    "lower policies.NAME.micro_tokens, sampling.rows, --max-tokens, --rollouts or --problems, "
    "or take a smaller model, or --lora"
)
"""What a run needs less memory with."""
SMALLER_PIECES = ("policies.NAME.micro_tokens", "sampling.rows")
SMALLER_TURNS = ("sampling.max_tokens", "batch.rollouts", "batch.problems")
"""The same as keys: those that a checkpoint is not bound to, and those that it is bound to."""
TaskLike = str | Mapping[str, Any] | type[Task] | Task | Callable[[random.Random], tuple[str, str]]


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
    layers = [] if config is None else [_read_config_layer(Path(config), recipe)]
    return resolve([*layers, flags, *settings])


def _read_config_layer(path: Path, recipe: str | None) -> dict[str, Any]:
    """Read a config file for a recipe, or for the one that the file names."""
    name = recipe if recipe is not None else read_toml(path).get("recipe")
    return read_layer(path, [str(name)]) if name is not None else read_toml(path)


def preview_placement(plan: Plan) -> list[str]:
    """Preview the placement of workers and the memory each needs; empty for the local engine. Raises if it cannot fit."""
    if plan.config.engine == "local":
        return []
    from milonga.engine.ray import preview

    return preview(plan.policies, plan.config.placement, plan.config.device, factory.get_vllm_section(plan.config))


def preview_learning(plan: Plan) -> list[str]:
    """Preview the turns of each agent, and the learning rate of each policy that learns, by default or as set."""
    names = [name for name in plan.list_learning_policies() if plan.policies[name].endpoint is None]
    return [line for line in [plan.explain_turns(), *(_describe_rate(plan, name) for name in names)] if line]


def _describe_rate(plan: Plan, policy: str) -> str:
    """Describe a policy's learning rate, and how it is had where the warm-up before it is longer than all its turns."""
    section, steps = plan.policies[policy], plan.count_own_steps(policy)
    warm = f"after {section.warmup_steps} steps of warm-up"
    if steps is not None and steps < section.warmup_steps:
        warm += f", of which its turns have only {steps}: --set policies.{policy}.warmup=0 leaves them out"
    return f"{policy}: learning rate {section.learning_rate:g}, {section.schedule}, {warm}"


def make_engine(plan: Plan, say: Callable[[str], None] | None = None) -> Engine:
    """Make the engine of a plan, and load its models. `say` is told before what may take long."""
    return factory.make_engine(plan.policies, plan.config, say)


def run(
    recipe: str | type[Recipe],
    *,
    model: str | None = None,
    data: str | Path | Iterable[Mapping[str, Any]] | None = None,
    question: str | None = None,
    answer: str | None = None,
    task: TaskLike | None = None,
    prompt: str | Path | Callable[..., str] | None = None,
    reward: RewardLike | list[RewardLike] | None = None,
    extract: str | Callable[..., Any] | None = None,
    generator: str | None = None,
    verifier: str | None = None,
    models: Mapping[str, str] | None = None,
    lora: bool = False,
    lr: float | None = None,
    problems: int | None = None,
    rollouts: int | None = None,
    max_tokens: int | None = None,
    turns: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    force: bool = False,
    quiet: bool = False,
) -> Report:
    """Train by a recipe and return its report.

        milonga.run("tango", task="chain", turns=100)
        milonga.run("grpo", model="Qwen/Qwen2.5-0.5B-Instruct", data=rows, reward=my_reward, lora=True)

    `model` is that of the lead agent, `models` maps agents to theirs. `data` is a file, or rows with a question and an answer
    each (or in the columns that `question` and `answer` name); they are kept in the run folder. `task` may also be a function
    `f(rng)`, a Task class or a Task. `prompt` is a Jinja template in a file, or a function `f(problem, **more)` that returns
    the solver's prompt. `reward` is a function `f(prompts, completions, **columns)` (see
    `milonga.tasks.functions.RewardFunction`), a pair of one and its weight, or a list of such; `extract` a function
    `f(text, problem)` that finds the answer in a solution. `settings` has any other key of the config, dotted or nested:
    `{"eval.every": 5, "batch": {"rollouts": 16}}`.

    What was passed as a lambda, an instance or from a notebook has to be passed to `resume` again. With `force` it runs even if
    the probe says that nothing can be learned.
    """
    name = name_recipe(recipe)
    folder = Path(out) if out is not None else choose_run_folder(name)
    named = [(find_recipe(name).lead, model), ("generator", generator), ("verifier", verifier)]
    path = data if data is None or isinstance(data, str | Path) else _keep_rows(data, folder)
    flags = make_layer(
        task=task if task is None or isinstance(task, str | Mapping) else name_object(task),
        data=path,
        question=question,
        answer=answer,
        prompt=prompt,
        solver=find_recipe(name).solving,
        reward=reward,
        extract=extract,
        lora=lora,
        lr=lr,
        problems=problems,
        rollouts=rollouts,
        max_tokens=max_tokens,
    )
    plan = plan_run(
        name,
        turns=turns,
        seed=seed,
        device=device,
        models={agent: found for agent, found in named if found is not None} | dict(models or {}),
        config=config,
        settings=[flags, expand_keys(settings or {})],
    )
    return start(plan, folder, quiet, force)


def name_recipe(recipe: str | type[Recipe]) -> str:
    """Return the name of a recipe: that of the catalogue, or the place of the user's own class."""
    if isinstance(recipe, str):
        return recipe
    known = getattr(recipe, "name", "")
    return known if known in RECIPES and RECIPES.get(known) is recipe else name_object(recipe)


def _keep_rows(rows: Iterable[Mapping[str, Any]], out: Path) -> Path:
    """Keep the rows of a data set in the folder of the run that learns from them, where `resume` finds them again."""
    from milonga.runfolder.files import write_atomically
    from milonga.runfolder.folder import DATA, RunFolder

    lines = []
    for number, row in enumerate(rows, 1):
        try:
            lines.append(json.dumps(dict(row), allow_nan=False) + "\n")
        except (TypeError, ValueError) as error:
            raise DataError(f"row {number} of data cannot be written as JSON: {error}") from None
    with RunFolder(out, 1) as folder:
        folder.require_new()
        write_atomically(out / DATA, "".join(lines))
    return out / DATA


def choose_run_folder(recipe: str) -> Path:
    """Choose a free folder: `runs/tango-20260131-142501`, or with a number. Of `file.py:Class` only the class name is used."""
    base = Path("runs") / f"{recipe.rpartition(':')[2]}-{dt.datetime.now():%Y%m%d-%H%M%S}"
    names = [base, *(base.with_name(f"{base.name}-{n}") for n in range(2, 1000))]
    return next(path for path in names if not path.exists())


def start(plan: Plan, out: Path, quiet: bool = False, force: bool = False) -> Report:
    """Run a plan in a new folder; with `force` even if the probe says that nothing can be learned."""
    from milonga.runfolder.folder import RunFolder

    plan = settle_threads(plan)
    with RunFolder(out, plan.config.keep.checkpoints) as folder:
        folder.require_new()
        return _run_loop(plan, folder, quiet, begin=True, force=force)


def settle_threads(plan: Plan) -> Plan:
    """Settle with how many threads a plan is computed: as its config says, else with the cores that are idle now."""
    from milonga.engine.local.threads import choose_threads

    if plan.config.threads is not None or plan.config.engine != "local":
        return plan
    return replace(plan, config=plan.config.model_copy(update={"threads": choose_threads()}))


def resume(
    path: str | Path,
    quiet: bool = False,
    *,
    recipe: type[Recipe] | None = None,
    task: type[Task] | Task | Callable[[random.Random], tuple[str, str]] | None = None,
    prompt: Callable[..., str] | None = None,
    reward: RewardLike | list[RewardLike] | None = None,
    extract: Callable[..., Any] | None = None,
    turns: int | None = None,
    force: bool = False,
    accept_loss: bool = False,
    accept_changes: bool = False,
    trust: Collection[str] = (),
) -> Report:
    """Resume a run from its newest intact checkpoint; on a CPU it ends in the same bits as one that was never stopped.

    What the run was given as a lambda, an instance or from a notebook is passed again, as it was to `run`. `turns` extends the
    run to so many turns of its lead agent. What follows the progress of a run (a weight that decays, say) then goes back to
    where it is in a run of that length: the result is not that of one that was planned so. With `force` a run that stopped
    because it found nothing to learn from goes on, and does not stop for that again. `trust` names what a run that was not made
    here may use of code, hosts and variables.

    A run of which something is missing or damaged that the rest depends on stops before anything is changed; with `accept_loss`
    it goes on with what is left, and its report names the turns. So does one whose config.toml was edited since the checkpoint
    in more than `milonga.runfolder.changes.FREE`; with `accept_changes` it goes on with the new values.
    """
    from milonga.report import write_report_safely
    from milonga.runfolder.console import Panel
    from milonga.runfolder.folder import RunFolder, read_config
    from milonga.runfolder.origin import check_origin

    config = read_config(Path(path))
    rewards = [one[0] if isinstance(one, tuple) else one for one in list_rewards(reward)]
    _pass_again("recipe", [config.recipe], [] if recipe is None else [recipe])
    _pass_again("task", [str(config.task["name"])], [] if task is None else [task])
    prompts = [section.prompt for section in config.policies.values() if section.prompt is not None]
    _pass_again("prompt", prompts, [] if prompt is None else [prompt])
    _pass_again("reward", [section.function for section in config.rewards], rewards)
    _pass_again("extract", [] if config.extract is None else [config.extract], [] if extract is None else [extract])
    check_trust(Path(path), config, trust)
    say = Panel(quiet).say
    with RunFolder(Path(path), config.keep.checkpoints) as folder:
        found = folder.checkpoints.find_newest()
        if turns is None and (report := _read_final_report(folder, found)) is not None:
            further = f"milonga resume {shlex.quote(str(path))} --turns {2 * config.turns}"
            say(
                f"finished: the run has ended after {report['turns']} turns"
                + ("" if config.budget else f"; to go on: {further}")
            )
            if not (folder.path / "report.html").exists():  # killed while it was written
                write_report_safely(folder.path, say)
            return report
        for what in (damaged := folder.checkpoints.list_damaged()):
            say(f"checkpoint {what}; using an older one")
        if found is None and damaged:
            raise RunFolderError(f"'{path}' holds no complete checkpoint to resume from")
        origin = None if found is None else check_origin(folder.path, config, *found, accept_loss, accept_changes)
        if turns is not None:
            config = _extend(config, turns)
        plan = resolve([config.model_dump(mode="json", exclude_none=True), {"stop_without_signal": 0} if force else {}])
        if turns is not None:
            folder.extend(config)
        if origin is None and folder.restart():
            say(f"'{path}' holds no checkpoint any more: it begins again; the metrics that it had are kept beside")
        return _run_loop(plan, folder, quiet, origin=origin)


def _extend(config: Config, turns: int) -> Config:
    """Return the config of a run with more turns of its lead agent."""
    if config.budget:
        raise RunFolderError("the length of this run is its budget of compute, not a number of turns: it cannot be extended")
    if turns <= config.turns:
        raise RunFolderError(f"the run has {config.turns} turns of its lead agent; to extend it, name more than that")
    return config.model_copy(update={"turns": turns})


def _read_final_report(folder: RunFolder, found: tuple[Path, dict[str, Any]] | None) -> Report | None:
    """Return the report of a run that has ended; None if turns are left, or have to be made again for lack of a checkpoint. A
    report that cannot be read is made again."""
    from milonga.runfolder.record import Summary, read_json, read_shape

    try:
        report = read_shape(folder.path / "report.json", Summary)
    except RunFolderError:
        return None
    ended = report is not None and found is not None and found[1]["place"]["turn"] == report.turns
    return read_json(folder.path / "report.json") if ended else None


def _pass_again(kind: str, names: Sequence[str], given: Sequence[Any]) -> None:
    """Give what a run was passed, and is passed again, the names that its config has for it."""
    if given and len(given) != len(names):
        raise ConfigError(f"{kind}: {len(given)} given, but the run has {len(names)}; pass what was passed when it began")
    for name, found in zip(names, given, strict=False):
        if not isinstance(found, str):
            pass_again(name, found)


def _run_loop(
    plan: Plan, folder: RunFolder, quiet: bool, begin: bool = False, origin: Origin | None = None, force: bool = False
) -> Report:
    from milonga.loop import Loop
    from milonga.probing import should_probe
    from milonga.report import write_report_safely
    from milonga.runfolder.changes import list_keys
    from milonga.runfolder.console import LiveView
    from milonga.runfolder.machine import describe_machine

    counted = plan.count_turns()
    total = None if counted is None else counted.total()
    title = f"{plan.config.recipe} on {plan.task.name} → {folder.path}"
    with LiveView(title, total, quiet) as view, explain_lost_memory(TO_LEARN), closing(make_engine(plan, view.say)) as engine:
        engine.watch = view.watch
        loop = Loop(plan, engine, folder, view)
        if origin is not None:
            for what in origin.notes:
                view.say(what)
            loop.restore(origin)
        loop.prepare()
        probed = _probe_run(plan, loop.run_context, view.say, force) if begin and should_probe(plan) else None
        loop.open_trackers()
        if begin:
            # Only now: if a model is missing or the disk is full, no run is left behind that would have to be resumed.
            folder.begin(plan.config)
        with _say_how_to_go_on(folder, plan.config, view.say), explain_lost_memory(TO_LEARN):
            if probed is not None:
                probed.write(folder.path)
            row = describe_machine(loop.place.turn) | {"settings": list_keys(plan.config, free=True)}
            loop.machine = row
            folder.machine.append(row | ({"notes": origin.notes} if origin and origin.notes else {}))
            try:
                report = loop.run()
            except StalledError:
                write_report_safely(folder.path, view.say)
                raise
        write_report_safely(folder.path, view.say)
        return report


@contextmanager
def _say_how_to_go_on(folder: RunFolder, config: Config, say: Callable[[str], None]) -> Iterator[None]:
    """Say how a run goes on that is stopped in this block, or that runs out of memory. It need not have a checkpoint yet."""
    try:
        yield
    except (KeyboardInterrupt, OutOfMemory) as error:
        begun = folder.checkpoints.has_any()
        how = "to go on from the last checkpoint" if begun else "there is no checkpoint yet; to begin again"
        command = f"milonga resume {shlex.quote(str(folder.path))}"
        if isinstance(error, OutOfMemory):
            keys = SMALLER_PIECES if begun else SMALLER_PIECES + SMALLER_TURNS
            # An edited config has no signature any more.
            command += "".join(f" --trust {shlex.quote(one.name)}" for one in list_reached(config, folder.path))
            command = f"lower {', '.join(keys)} in {shlex.quote(str(folder.path / 'config.toml'))}, then {command}"
            command += f" (with --accept-changes after lowering {', '.join(SMALLER_TURNS)})" if begun else ""
        say(f"{how}: {command}")
        raise


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


def evaluate(
    path: str | Path,
    suite: str | None = None,
    *,
    plot: str | Path | None = None,
    trust: Collection[str] = (),
    **options: Any,
) -> Report:
    """Measure a run's newest checkpoint on held-out problems, or by a suite: see `milonga list suites`.

        milonga.evaluate("runs/tango", split="dev")
        milonga.evaluate("runs/tango", "best_of_n", samples=16, plot="best.svg")

    Options are those of the suite; without one, `split` and `problems`. For `processbench` the path may also be a model (a
    folder or a name) that comes from no run. `plot` names an SVG file to write. `trust` names what a run that was not made here
    may use of code, hosts and variables.
    """
    from milonga.loop import make_evaluator
    from milonga.measuring import refuse_unknown_options, run_suite

    given = {key: value for key, value in options.items() if value is not None}
    if suite is not None:
        return run_suite(path, suite, given, None if plot is None else Path(plot), trust)
    refuse_unknown_options(
        "an evaluation without a suite", given if plot is None else {**given, "plot": plot}, ("split", "problems")
    )
    from milonga.runfolder.folder import read_config

    if given.get("problems") == 0:
        raise ConfigError("'eval.problems' is 0: nothing would be measured")
    usual = {"split": "test", "problems": read_config(Path(path)).eval.problems or EvalSection().problems}
    found = load_finished_run(Path(path), {"eval": usual | given}, trust)
    config = found.plan.config
    plan = replace(found.plan, rewards=load_rewards(config.rewards))
    run_context = make_run_context(plan, found.weights)
    run_context.engine.watch = Ticker(print_to_stderr)
    with closing(run_context.engine):
        metrics = make_evaluator(plan, run_context)()
    head = {"run": str(path), "recipe": config.recipe, "turn": found.turn, "split": config.eval.split}
    return head | {key.removeprefix("eval/"): value for key, value in metrics.items()}
