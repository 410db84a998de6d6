"""Plan the arms of a comparison: validated configs, fairness checks, and the folder of the comparison.

Invariants: every arm runs every seed, from the same start, on the same task and with the same evaluations; the plan is
written to `compare.toml` before the first run and never changes in a folder; nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from milonga.config import flatten_keys, merge, parse_settings, read_toml, to_toml
from milonga.errors import ConfigError, RunFolderError, suggest_name
from milonga.evals import metric_names
from milonga.evals.bench import has_bench
from milonga.resolve import Plan, drop_foreign_settings, read_layer, resolve
from milonga.runfolder.files import write_atomically
from milonga.systems.custom import find_recipe
from milonga.systems.index import RECIPES

Match = Literal["turns", "tokens", "flops"]
Matching = Literal["auto", "turns", "tokens", "flops"]
Tree = Mapping[str, Any]

FIRST_SEED = 100
"""Seeds for reported results start here; seeds used during development are smaller."""
METRIC = "eval/generator/accuracy"
DEFAULTS: Tree = {"keep": {"checkpoints": 1}, "probe": "off", "stop_without_signal": 0}
"""Defaults below the user's own settings: many runs would otherwise fill the disk with checkpoints, and an arm that learns
nothing is a result too, measured after as many turns as the others."""
OURS = {"recipe": "name the recipe as an arm", "seed": "use --seeds", "budget": "use --match tokens or flops"}
SHARED = ("turns", "task", "eval", "device", "dialect", "thought_steps", "keep")
"""Config keys that an arm may not set for itself."""


@dataclass(frozen=True)
class Arm:
    """One arm of a comparison: a recipe with its validated settings. The seed in its plan is the first seed."""

    name: str
    recipe: str
    plan: Plan

    @property
    def folder(self) -> str:
        return make_folder_name(self.name)

    @property
    def turns(self) -> int | None:
        """Number of turns of a run without a compute budget; None if it is not known in advance."""
        return self.plan.schedule.count_turns_until(self.plan.recipe.lead, self.plan.config.turns)

    def config(self, seed: int, budget: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Make the complete config of one run."""
        plain = self.plan.config.model_dump(mode="json", exclude_none=True)
        return plain | {"seed": seed, "budget": dict(budget or {})}


def make_folder_name(arm: str) -> str:
    """Make the name of an arm's folder; a long one is cut and made unique by a checksum."""
    plain = re.sub(r"[^\w.,=+-]+", "-", arm, flags=re.ASCII)
    return plain if len(plain) <= 80 else f"{plain[:70]}-{hashlib.blake2b(arm.encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True)
class Comparison:
    """A planned comparison. The first arm is the reference: with matched compute the others get the budget it used."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    match: Match
    metric: str
    baseline: str
    """The arm that all differences are taken against."""

    @property
    def reference(self) -> Arm:
        return self.arms[0]

    def record(self) -> dict[str, Any]:
        """The plan as data, as it is written to `compare.toml`."""
        return {
            "match": self.match,
            "reference": self.reference.name,
            "names": sorted(arm.name for arm in self.arms),
            "seeds": list(self.seeds),
            "metric": self.metric,
            "baseline": self.baseline,
            "arms": {arm.name: {k: v for k, v in arm.config(0).items() if k != "seed"} for arm in self.arms},
        }


def plan_comparison(
    recipes: Sequence[str],
    *,
    task: str | Tree | None = None,
    seeds: int | str | Sequence[int] = 5,
    turns: int | None = None,
    match: str = "auto",
    metric: str = METRIC,
    baseline: str | None = None,
    device: str | None = None,
    sampler: str | None = None,
    config: str | Path | None = None,
    settings: Sequence[Tree] = (),
) -> Comparison:
    """Plan a comparison: everything is checked, nothing is loaded or written."""
    if match not in get_args(Matching):
        raise ConfigError(f"unknown match '{match}': {suggest_name(match, get_args(Matching))}")
    named = dict(parse_arm(text) for text in recipes)
    if len(named) < max(2, len(recipes)):
        raise ConfigError("a comparison needs at least two arms, each named once")
    flags = {"turns": turns, "device": device, "task": {"name": task} if isinstance(task, str) else task}
    flags["sampling"] = None if sampler is None else {"sampler": sampler}
    layers = [
        {} if config is None else _read_common_layer(Path(config), [_get_recipe_name(name) for name in named]),
        {k: v for k, v in flags.items() if v is not None},
        *settings,
    ]
    for layer in settings:
        _refuse_keys(layer, OURS)
    common: dict[str, Any] = dict(DEFAULTS)
    for layer in layers:
        common = merge(common, layer)
    chosen = parse_seeds(seeds)
    arms = tuple(_plan_arm(name, own, common, list(named), chosen[0]) for name, own in named.items())
    _check_same(arms)
    if match == "auto":
        match = _choose_match(arms)
    elif match == "flops":
        check_flops_known(arms)
    _check_metric(add_eval_prefix(metric), arms)
    return Comparison(arms, chosen, cast(Match, match), add_eval_prefix(metric), _find_baseline(baseline, list(named)))


def _read_common_layer(path: Path, recipes: Sequence[str]) -> dict[str, Any]:
    """Read a config file for all arms: that of a run serves too, without what is asked for otherwise here."""
    return {key: value for key, value in read_layer(path, recipes).items() if key not in OURS}


def parse_arm(text: str) -> tuple[str, dict[str, Any]]:
    """Parse `frozen:options.alpha=0.9,batch.rollouts=8` into the arm's name and its own settings."""
    recipe, rest = _split_arm(text)
    find_recipe(recipe)
    own = parse_settings(rest)
    _refuse_keys(own, OURS | dict.fromkeys(SHARED, "all arms must share it; use --set or a flag"))
    return text, own


def _split_arm(text: str) -> tuple[str, str]:
    """Split an arm into recipe and settings: `RECIPE[:settings]`, or `file.py:Class[:settings]`."""
    recipe, _, rest = text.partition(":")
    if recipe in RECIPES or not rest:
        return recipe, rest
    attribute, _, own = rest.partition(":")
    return f"{recipe}:{attribute}", own


def _refuse_keys(layer: Tree, forbidden: Mapping[str, str]) -> None:
    for key, advice in forbidden.items():
        if key in layer:
            raise ConfigError(f"'{key}' cannot be set here in a comparison: {advice}")


def parse_seeds(seeds: int | str | Sequence[int]) -> tuple[int, ...]:
    """Parse seeds: `5` means five seeds from 100 on; `100,103` or a sequence means exactly those."""
    if isinstance(seeds, str):
        try:
            numbers = [int(part) for part in seeds.split(",") if part.strip()]
        except ValueError:
            raise ConfigError(f"--seeds takes a number or a list such as 100,101,102, not '{seeds}'") from None
        return parse_seeds(numbers if "," in seeds or len(numbers) != 1 else numbers[0])
    if isinstance(seeds, int):
        if seeds < 1:
            raise ConfigError(f"a comparison needs at least one seed, not {seeds}")
        return tuple(range(FIRST_SEED, FIRST_SEED + seeds))
    chosen = tuple(seeds)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError("a comparison needs at least one seed, and each once")
    return chosen


def _plan_arm(name: str, own: Tree, common: Tree, names: Sequence[str], seed: int) -> Arm:
    recipe = _get_recipe_name(name)
    fitting = drop_foreign_settings(common, recipe, [_get_recipe_name(other) for other in names])
    return Arm(name, recipe, resolve([fitting, own, {"recipe": recipe, "seed": seed, "budget": {}}]))


def _get_recipe_name(name: str) -> str:
    return _split_arm(name)[0]


def _check_same(arms: Sequence[Arm]) -> None:
    """Check that all arms share start, task and evaluation, whether set by the user or by a recipe's defaults."""
    first = arms[0]
    folders: dict[str, str] = {}
    for arm in arms:
        for what, read in SAME.items():
            ours, theirs = read(arm.plan), read(first.plan)
            if ours != theirs:
                raise ConfigError(
                    f"arms '{first.name}' and '{arm.name}' differ in {what}, which must be one: {theirs} and {ours}"
                )
        if folders.setdefault(arm.folder, arm.name) != arm.name:
            raise ConfigError(f"arms '{folders[arm.folder]}' and '{arm.name}' would share the folder '{arm.folder}'")


def _choose_match(arms: Sequence[Arm]) -> Match:
    """Choose what all arms get alike: FLOPs where their recipes differ, and with them what a turn costs; turns where one recipe
    has several settings, or where nobody knows the FLOPs of a policy."""
    if len({arm.recipe for arm in arms}) == 1:
        return "turns"
    try:
        check_flops_known(arms)
    except ConfigError:
        return "turns"
    return "flops"


def check_flops_known(arms: Sequence[Arm]) -> None:
    """Check that the FLOPs of every policy are known, which matching FLOPs needs."""
    for arm in arms:
        for name, section in arm.plan.policies.items():
            if section.endpoint is not None and section.endpoint.parameters is None:
                raise ConfigError(
                    f"arm '{arm.name}': the FLOPs of policy '{name}' are not known; set policies.{name}.endpoint.parameters, "
                    "or match tokens"
                )


def _get_start_weights(plan: Plan) -> str:
    """Return the weights that the generator starts from."""
    section = plan.policies[plan.agents["generator"]]
    return section.model if section.adapter is None else f"{section.model} with adapter {section.adapter}"


SAME: Mapping[str, Callable[[Plan], Any]] = {
    "the generator's model": _get_start_weights,
    "dialect": lambda plan: plan.config.dialect,
    "thought_steps": lambda plan: plan.config.thought_steps,
    "task": lambda plan: plan.config.task,
    "eval": lambda plan: plan.config.eval.model_dump(),
    "turns": lambda plan: plan.config.turns,
    "device": lambda plan: plan.config.device,
}
"""What must be equal in all arms. The resolved values are compared: a recipe's own defaults may change them too."""


def add_eval_prefix(metric: str) -> str:
    """Return the full name of a metric of evaluations."""
    return metric if metric.startswith("eval/") else f"eval/{metric}"


def _check_metric(metric: str, arms: Sequence[Arm]) -> None:
    """Check that some arm measures the metric, before any run: otherwise it would be noticed only after all runs."""
    if not arms[0].plan.config.eval.problems:
        raise ConfigError("eval.problems is 0, so that nothing is measured that could be compared: set it to 64, say")
    known = set[str]().union(*(list_metrics(arm.plan) for arm in arms))
    if metric not in known:
        raise ConfigError(f"no arm measures '{metric}': {suggest_name(metric, known)}")


def list_metrics(plan: Plan) -> set[str]:
    """List the names of all metrics that an evaluation of this plan gives."""
    section = plan.config.eval
    bench = section.bench > 0 and has_bench(plan.task)
    solver, judge = plan.roles.get(plan.recipe.solving), plan.roles.get(plan.recipe.judging)
    return metric_names(solver, judge, section, bench) | {f"eval/{name}" for name in plan.recipe.measures}


def _find_baseline(name: str | None, names: Sequence[str]) -> str:
    """Return the named arm; by default `grpo` if it is an arm, otherwise the last arm."""
    if name is None:
        return "grpo" if "grpo" in names else names[-1]
    if name not in names:
        raise ConfigError(f"baseline '{name}' is not an arm of the comparison: {suggest_name(name, names)}")
    return name


def check_folder(out: Path) -> None:
    """Refuse a folder that holds something else, before even a lock file is written to it."""
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"'{out}' is not a folder; choose another --out")
    if out.exists() and not (out / "compare.toml").exists() and any(path.name != "lock" for path in out.iterdir()):
        raise RunFolderError(f"'{out}' is not empty and holds no comparison; choose another --out")


def write_plan(out: Path, comparison: Comparison) -> list[str]:
    """Write the plan into the folder before any run. A folder that holds another comparison is refused.

    Another metric or baseline needs no new runs: it is allowed, and returned as a note.
    """
    path = out / "compare.toml"
    text = to_toml(comparison.record())
    if not path.exists():
        write_atomically(path, text)
        return []
    old, new = flatten_keys(read_toml(path)), flatten_keys(tomllib.loads(text))
    # Top-level keys first: differences in the arms often follow from them.
    keys = sorted(old.keys() | new.keys(), key=lambda key: (key.startswith("arms."), key))
    changed = [key for key in keys if old.get(key) != new.get(key)]
    reported = [key for key in changed if key in ("metric", "baseline")]
    bad = [key for key in changed if key not in reported]
    if bad:
        shown = "; ".join(f"{key} is {old.get(key)} there and {new.get(key)} here" for key in bad[:3])
        more = f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
        again = f", or go on with it by --match {old['match']}" if "match" in bad and "match" in old else ""
        raise RunFolderError(f"'{out}' holds a comparison with other settings: {shown}{more}; choose another --out{again}")
    return [f"the {key} was '{old.get(key)}' when this comparison was begun" for key in reported]
