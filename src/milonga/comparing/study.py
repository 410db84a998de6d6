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
    match = "flops"                            # the other recipes get what the first one used

Invariants: everything is checked before anything runs; `$NAME` stands for what differs between machines and is no part of what
a run is; runs of one seed come before those of the next, so that an unfinished study already has pairs; a run that is matched
has the budget that the first recipe of its block used with the same seed and the same settings of the grid; what a recipe does
not have makes no further runs of it, and is no part of their names.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from milonga.comparing.arms import DEFAULTS, Arm, Match, check_flops_known
from milonga.comparing.pool import Run
from milonga.config import expand_keys, flatten_keys, merge, read_toml
from milonga.errors import ConfigError, suggest_name
from milonga.resolve import MakeTask, drop_foreign_settings, resolve
from milonga.tasks import Task, make_task

BLOCK_KEYS = ("name", "recipe", "seeds", "grid", "set", "match")
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
    match: Match = "turns"
    reference: Arm | None = None
    """The arm whose compute this one gets; None where turns are matched, and for the reference itself."""

    @property
    def identity(self) -> dict[str, Any]:
        """What its runs are, but for their seeds."""
        return dict(self.asked) | ({} if self.reference is None else {"match": {self.match: self.reference.name}})

    def run(self, seed: int, out: Path) -> Run:
        return self._place(self.arm, seed, out)

    def reference_run(self, seed: int, out: Path) -> Run | None:
        """The run that has to be finished before this one can begin, if there is one."""
        return None if self.reference is None else self._place(self.reference, seed, out)

    def config(self, seed: int, out: Path) -> dict[str, Any]:
        """Make the config of a run; one that is matched has the budget that its reference used."""
        reference = self.reference_run(seed, out)
        return self.arm.config(seed, None if reference is None else {self.match: reference.read_compute(self.match)})

    def _place(self, arm: Arm, seed: int, out: Path) -> Run:
        return Run(arm.name, seed, out / self.block / arm.folder / f"seed-{seed}")


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
    parsed = [_parse_block(block, number, f"'{file}', block {number} of runs") for number, block in enumerate(blocks, 1)]
    recipes = [recipe for block in parsed for recipe in block.recipes]
    for block in parsed:
        yield from _plan_block(block, common, recipes, known, overrides, make)


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


@dataclass(frozen=True)
class _Block:
    """A block of runs as the file has it, checked as far as it can be without its recipes."""

    name: str
    where: str
    recipes: Sequence[str]
    seeds: Sequence[int]
    grid: Mapping[str, Sequence[Any]]
    shared: Mapping[str, Any]
    match: Match

    def cells(self) -> Iterator[dict[str, Any]]:
        """List every combination of the grid."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))


def _parse_block(block: Any, number: int, where: str) -> _Block:
    if not isinstance(block, Mapping):
        raise ConfigError(f"{where} is no table: write [[runs]]")
    _refuse_unknown(block, BLOCK_KEYS, where)
    recipes, seeds, match = _as_list(block.get("recipe")), _as_list(block.get("seeds", [0])), block.get("match", "turns")
    if not recipes or len(set(recipes)) < len(recipes) or not all(isinstance(recipe, str) for recipe in recipes):
        raise ConfigError(f'{where}: recipe = "grpo", or a list of recipes, each once')
    if not seeds or len(set(seeds)) < len(seeds) or not all(isinstance(seed, int) for seed in seeds):
        raise ConfigError(f"{where}: seeds is a list of numbers, each once")
    if match not in get_args(Match):
        raise ConfigError(f"{where}: unknown match '{match}': {suggest_name(str(match), get_args(Match))}")
    if match != "turns" and len(recipes) < 2:
        raise ConfigError(f"{where}: match = '{match}' needs a second recipe, which gets what the first one used")
    grid = _get_table(block, "grid", where)
    if not all(isinstance(values, list) and values for values in grid.values()):
        raise ConfigError(f"{where}: every key of grid has a list of values")
    for key, values in grid.items():
        # Equal ones would be one run under two names, and those that read alike two runs under one.
        if any(one == other or f"{one}" == f"{other}" for one, other in itertools.combinations(values, 2)):
            raise ConfigError(f"{where}: grid has a value of {key} that occurs twice; give each once")
    shared = expand_keys(_get_table(block, "set", where))
    return _Block(str(block.get("name", f"runs-{number}")), where, recipes, seeds, grid, shared, match)


def _plan_block(
    block: _Block,
    common: Mapping[str, Any],
    recipes: Sequence[str],
    known: Mapping[str, str],
    overrides: Mapping[str, Any],
    make: MakeTask,
) -> Iterator[StudyArm]:
    """Plan the arms of a block. A recipe has no agents and options that only others of the file's `recipes` have."""
    for key in block.grid:
        if merge(expand_keys({key: None}), overrides) == overrides:
            raise ConfigError(f"{block.where}: {key} varies there; it cannot be set for all runs")
    references: dict[int, Arm] = {}
    made: dict[str, StudyArm] = {}
    for recipe, (number, cell) in itertools.product(block.recipes, enumerate(block.cells())):
        matched = block.match != "turns" and recipe != block.recipes[0]
        told = [recipe, block.recipes[0]] if matched else [recipe]  # budgets differ by what the reference has
        named = {key: _select_known(key, value, told, recipes) for key, value in cell.items()}
        name = ", ".join([recipe, *(f"{key}={value}" for key, value in named.items() if value is not None)])
        if name in made:
            references.setdefault(number, made[name].arm)
            continue
        asked = merge(merge(merge(common, block.shared), expand_keys(cell)), overrides)
        asked = drop_foreign_settings(asked, recipe, recipes) | {"recipe": recipe}
        filled = fill_placeholders(asked, known, block.where)
        arm = Arm(name, recipe, resolve([filled, {"seed": block.seeds[0]}], make_task=make))
        if block.match == "flops":
            check_flops_known([arm])
        reference = references[number] if matched else None
        references.setdefault(number, arm)
        made[name] = StudyArm(arm, block.name, asked, tuple(block.seeds), block.match, reference)
    yield from made.values()


def _select_known(key: str, value: Any, told: Sequence[str], recipes: Sequence[str]) -> Any:
    """Select what any recipe of `told` has of a key's value in the grid: of a table of options or agents a part, without those
    that only others of `recipes` have. None if that is nothing."""
    asked = expand_keys({key: value})
    known: Any = {}
    for recipe in told:
        known = merge(known, drop_foreign_settings(asked, recipe, recipes))
    if not flatten_keys(known):
        return None
    if not isinstance(value, Mapping):
        return value
    for part in key.split("."):
        known = known[part]
    return known


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
