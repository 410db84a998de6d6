"""`milonga.json`, a note beside an exported model: agents, dialect, origin, recipe, task and turn.

A folder without it is treated like any other model: plain dialect, and the default learning rate of large models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from milonga.config import Config, is_embedded
from milonga.errors import ConfigError
from milonga.loading import expand_home
from milonga.reading import SETTINGS, UNREADABLE, check_shape, read_json
from milonga.runfolder.files import write_atomically

FILE = "milonga.json"


@dataclass(frozen=True)
class Note:
    """The facts of an exported model. `origin` is the model that training began with, across any number of runs."""

    agents: tuple[str, ...]
    dialect: Literal["auto", "plain", "tagged", "terse"]
    origin: str
    recipe: str
    task: str
    turn: int

    def write(self, folder: Path) -> None:
        write_atomically(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def make_note(config: Config, policy: str, agents: Sequence[str], turn: int) -> Note:
    """Make the note for a policy of a run at a turn."""
    model = config.policies[policy].model
    recipe, task = (Path(name).name for name in (config.recipe, str(config.task["name"])))  # may be paths
    return Note(tuple(agents), config.dialect, find_origin(model), recipe, task, turn)


def read_note(model: str) -> Note | None:
    """Read the note beside a model; None if it is not a folder, or has none."""
    path = expand_home(model) / FILE
    try:
        return check_shape(Note, read_json(path, SETTINGS))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UNREADABLE:
        raise ConfigError(f"'{path}' is not a note that milonga wrote; remove it, or export the model again") from None


def find_origin(model: str) -> str:
    """Return the model that training began with: from its note, or the model itself."""
    note = read_note(model)
    return model if note is None else note.origin


def find_dialect(model: str) -> str:
    """Return the dialect of a model: that of its note if it was exported, terse if embedded, otherwise plain."""
    note = read_note(model)
    if note is not None:
        return note.dialect
    return "terse" if is_embedded(model) else "plain"
