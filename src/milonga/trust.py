"""What a run folder that was made elsewhere may do when it is used: nothing but what the user names.

A config can name code (tasks, recipes, rewards, prompts), hosts (endpoints, the hub, trackers, a cluster), variables of the
environment, and files. In a folder with a signature of this user all of them are the user's own. In any other folder each has
to be trusted by its name: `--trust NAME`, or `trust=(NAME, …)`.

Invariant: `check_trust` comes before a folder's config is resolved, wherever a folder is used. Folders that are only looked at
(`show`, `report`, `board`) are never resolved.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milonga.config import Config, EndpointSection, is_endpoint, is_hub_name
from milonga.engine.remote.address import KEY, parse_address
from milonga.errors import RunFolderError
from milonga.loading import is_attribute, is_passed, make_absolute
from milonga.resolve import PATHS
from milonga.runfolder.signature import explain_missing_signature
from milonga.systems.index import RECIPES
from milonga.tasks import GYM, TASKS
from milonga.tasks.data import GSM8K_HUB
from milonga.text import escape_invisible

WEAK = "allow_weak_isolation"


@dataclass(frozen=True)
class Reached:
    """Something outside its folder that a config names: of what kind, and the name to trust it by."""

    kind: str
    name: str
    sends: bool = False
    """Whether it is sent what the run reads."""


def check_trust(folder: Path, config: Config, trust: Collection[str] = ()) -> None:
    """Refuse to use a folder that was not made here, and whose config names what is not in `trust`."""
    trusted = {form for name in trust for form in (name.rstrip("/"), _find_real_path(name))}
    reached = [one for one in list_reached(config, folder) if one.name not in trusted]
    why = explain_missing_signature(folder, config) if reached else None
    if why is None:
        return
    named = escape_invisible(", ".join(f"{one.kind} {one.name}" for one in reached))
    flags = escape_invisible(" ".join(f"--trust {shlex.quote(one.name)}" for one in reached))
    raise RunFolderError(
        f"'{folder}' {why}; its config names {named}: none of it was used; to allow exactly that, add {flags} "
        "(in Python: trust=)"
    )


def list_reached(config: Config, folder: Path) -> list[Reached]:
    """List what a config names outside its folder, each once. Files of data are among it where their content would be sent
    somewhere; models never are."""
    found = [*_list_code(config), *_list_hosts(config)]
    if any(one.sends for one in found):
        found += _list_files(config, folder)
    return list(dict.fromkeys(found))


def _find_real_path(name: str) -> str:
    """Find the file that a path leads to, so that its name says which one is meant."""
    try:
        return str(Path(make_absolute(name)).resolve())
    except (OSError, RuntimeError, ValueError):  # no path, or one that leads round in a circle
        return make_absolute(name)


def _list_code(config: Config) -> Iterator[Reached]:
    """List code of the config's own. What the running program passed under a name is used in its place."""
    task = str(config.task["name"])
    names = [config.recipe] if config.recipe not in RECIPES else []
    names += [task] if task not in TASKS and task.rpartition(":")[0] != GYM else []
    names += [section.function for section in config.rewards] + ([config.extract] if config.extract is not None else [])
    names += [s.prompt for s in config.policies.values() if s.prompt is not None and is_attribute(s.prompt)]
    for name in names:
        place = name.rpartition(":")[0]
        if place and not is_passed(name):
            yield Reached("code", _find_real_path(place) if place.endswith(".py") else name)
    if any(table.get(WEAK) for table in (config.task, config.options)):
        yield Reached("programs outside the sandbox,", WEAK)


def _list_hosts(config: Config) -> Iterator[Reached]:
    for policy, section in config.policies.items():
        if is_endpoint(section.model):
            yield from _list_endpoint(policy, section.model, section.endpoint or EndpointSection())
        elif is_hub_name(section.model):
            yield Reached("the hub's model", section.model)
    if config.task["name"] == "hub":
        yield Reached("the hub's data set", str(config.task.get("dataset")))
    if config.task["name"] == "gsm8k" and config.task.get("path") is None:
        yield Reached("the hub's data set", GSM8K_HUB[0])
    if config.placement.address is not None:
        yield Reached("cluster", config.placement.address, sends=True)
    for tracker in config.keep.trackers:
        if tracker != "tensorboard":
            yield Reached("tracker", tracker, sends=True)


def _list_endpoint(policy: str, model: str, section: EndpointSection) -> Iterator[Reached]:
    """List an endpoint and the variable whose content it would be sent: the one that is named, or else the usual one."""
    address = parse_address(policy, model)
    yield Reached("host", address.url, sends=True)
    if section.api_key_env is not None or address.is_encrypted:
        yield Reached("variable", section.api_key_env or KEY)


def _list_files(config: Config, folder: Path) -> Iterator[Reached]:
    """List the files outside the folder whose content a run reads."""
    tables: tuple[Mapping[str, Any], ...] = (config.task, config.options)
    named = [table[key] for table in tables for key in PATHS if isinstance(table.get(key), str)]
    named += [s.prompt for s in config.policies.values() if s.prompt is not None and not is_attribute(s.prompt)]
    for name in map(_find_real_path, named):
        if not Path(name).is_relative_to(folder.resolve()):
            yield Reached("file", name)
