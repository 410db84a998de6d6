"""A study: many runs, described in one file. `study.toml` has what all runs share and, for each block of runs, recipes, seeds
and a grid of settings:

    [common]                                   # as in the file of `milonga run --config`
    turns = 60
    task = { name = "gsm8k", path = "$DATA/gsm8k" }

    [[runs]]
    recipe = ["grpo", "tango"]
    seeds = [0, 1, 2]
    grid = { lr = [1e-5, 1e-4] }               # every combination
    set = { policies.generator.model = "$MODEL" }

Invariants: everything is checked before anything runs; `$NAME` stands for what differs between machines and is no part of what
a run is; runs of one seed come before those of the next, so that an unfinished study already has pairs.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milonga.comparing.arms import DEFAULTS, Arm
from milonga.comparing.pool import Run
from milonga.config import expand_keys, merge, read_toml
from milonga.errors import ConfigError, suggest_name
from milonga.resolve import MakeTask, resolve
from milonga.tasks import Task, make_task

BLOCK_KEYS = ("name", "recipe", "seeds", "grid", "set")
STUDY_KEYS = ("common", "runs")
PLACEHOLDER = re.compile(r"\$([A-Z][A-Z0-9_]*)")


@dataclass(frozen=True)
class StudyArm:
    """A recipe with its settings in a study, and the seeds that it is run with."""

    arm: Arm
    block: str
    asked: Mapping[str, Any]
    """Its settings as the file has them, placeholders included: what the run is, on whatever machine."""
    seeds: tuple[int, ...]

    def run(self, seed: int, out: Path) -> Run:
        return Run(self.arm.name, seed, out / self.block / self.arm.folder / f"seed-{seed}")


def read_studies(files: Sequence[Path], known: Mapping[str, str], settings: Sequence[Mapping[str, Any]] = ()) -> list[StudyArm]:
    """Read and check studies whose runs are made together, in the order of the files; `known` are the values of their
    placeholders on this machine, `settings` override those of every run."""
    make = share_tasks()
    arms = [arm for file in files for arm in _read_study(file, known, settings, make)]
    places = [(arm.block, arm.arm.folder) for arm in arms]
    if twice := next((place for place in places if places.count(place) > 1), None):
        named = ", ".join(f"'{file}'" for file in files)
        raise ConfigError(f"{named}: {twice[1]} occurs twice; give its block another name")
    return arms


def _read_study(
    file: Path, known: Mapping[str, str], settings: Sequence[Mapping[str, Any]], make: MakeTask
) -> Iterator[StudyArm]:
    content = read_toml(file)
    _refuse_unknown(content, STUDY_KEYS, str(file))
    blocks = content.get("runs")
    if not isinstance(blocks, list) or not blocks:
        raise ConfigError(f"'{file}' has no runs: add a table [[runs]] with a recipe and seeds")
    common = merge(DEFAULTS, expand_keys(_get_table(content, "common", str(file))))
    overrides: dict[str, Any] = {}
    for setting in settings:
        overrides = merge(overrides, setting)
    for number, block in enumerate(blocks, 1):
        yield from _read_block(file, number, block, common, known, overrides, make)


def share_tasks() -> MakeTask:
    """Make a function that makes each task once: the arms of a study mostly share one, whose data may be large. What is only
    checked, and never drawn from, may be shared."""
    made: dict[str, Task] = {}

    def make(section: Mapping[str, Any]) -> Task:
        key = json.dumps(section, sort_keys=True, default=str)
        if key not in made:
            made[key] = make_task(section)
        return made[key]

    return make


def _read_block(
    file: Path,
    number: int,
    block: Mapping[str, Any],
    common: Mapping[str, Any],
    known: Mapping[str, str],
    overrides: Mapping[str, Any],
    make: MakeTask,
) -> Iterator[StudyArm]:
    where = f"'{file}', block {number} of runs"
    if not isinstance(block, Mapping):
        raise ConfigError(f"{where} is no table: write [[runs]]")
    _refuse_unknown(block, BLOCK_KEYS, where)
    recipes, seeds = _as_list(block.get("recipe")), _as_list(block.get("seeds", [0]))
    if not recipes or not all(isinstance(recipe, str) for recipe in recipes):
        raise ConfigError(f'{where}: recipe = "grpo", or a list of recipes')
    if not seeds or len(set(seeds)) < len(seeds) or not all(isinstance(seed, int) for seed in seeds):
        raise ConfigError(f"{where}: seeds is a list of numbers, each once")
    grid, shared = _get_table(block, "grid", where), merge(common, expand_keys(_get_table(block, "set", where)))
    if not all(isinstance(values, list) and values for values in grid.values()):
        raise ConfigError(f"{where}: every key of grid has a list of values")
    for key in grid:
        if merge(expand_keys({key: None}), overrides) == overrides:
            raise ConfigError(f"{where}: {key} varies there; it cannot be set for all runs")
    for recipe, values in itertools.product(recipes, itertools.product(*grid.values())):
        cell = dict(zip(grid, values, strict=True))
        asked = merge(merge(merge(shared, expand_keys(cell)), overrides), {"recipe": recipe})
        name = ", ".join([recipe, *(f"{key}={value}" for key, value in cell.items())])
        filled = fill_placeholders(asked, known, where)
        arm = Arm(name, recipe, resolve([filled, {"seed": seeds[0]}], make_task=make))
        yield StudyArm(arm, str(block.get("name", f"runs-{number}")), asked, tuple(seeds))


def _refuse_unknown(table: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise ConfigError(f"{where}: unknown key '{key}': {suggest_name(key, allowed)}")


def _get_table(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where}: {key} is a table of settings, not {found!r}")
    return found


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def fill_placeholders(value: Any, known: Mapping[str, str], where: str) -> Any:
    """Put the values of this machine in the place of `$NAME`, in all texts of nested data."""
    if isinstance(value, Mapping):
        return {key: fill_placeholders(inner, known, where) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill_placeholders(inner, known, where) for inner in value]
    if not isinstance(value, str):
        return value
    for name in PLACEHOLDER.findall(value):
        if name not in known:
            raise ConfigError(f"{where}: ${name} has no value; give it with --with {name}=VALUE")
    return PLACEHOLDER.sub(lambda found: known[found[1]], value)


def order_runs(arms: Sequence[StudyArm], out: Path) -> list[tuple[StudyArm, Run]]:
    """List all runs in the order in which they are made: block by block, and in each seed by seed."""
    found: list[tuple[StudyArm, Run]] = []
    for _, group in itertools.groupby(arms, key=lambda arm: arm.block):
        members = list(group)
        for seed in dict.fromkeys(seed for arm in members for seed in arm.seeds):
            found += [(arm, arm.run(seed, out)) for arm in members if seed in arm.seeds]
    return found
