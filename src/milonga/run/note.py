"""`milonga.json`, a note beside an exported model: what a folder of weights does not say of itself.

Without it a folder is a model like any other: it speaks in tags, and learns at the rate that is usual for large ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from milonga.config import Config, is_embedded
from milonga.errors import ConfigError
from milonga.run.files import write_atomically

FILE = "milonga.json"


@dataclass(frozen=True)
class Note:
    """Who the model is. `origin` is the model that training began with, through however many runs."""

    seats: tuple[str, ...]
    dialect: str
    origin: str
    recipe: str
    task: str
    turn: int

    def write(self, folder: Path) -> None:
        write_atomically(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def note_of(config: Config, policy: str, seats: Sequence[str], turn: int) -> Note:
    """The note for a policy of a run, at a turn."""
    model = config.policies[policy].model
    recipe, task = (Path(name).name for name in (config.recipe, str(config.task["name"])))  # of one's own: whole paths
    return Note(tuple(seats), config.dialect, origin_of(model), recipe, task, turn)


def read_note(model: str) -> Note | None:
    """The note beside a model; None where it is not a folder, or has none."""
    path = Path(model).expanduser() / FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Note(**{**raw, "seats": tuple(raw["seats"])})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError):
        raise ConfigError(f"'{path}' is not a note that milonga wrote; remove it, or export the model again") from None


def origin_of(model: str) -> str:
    """The model that training began with: what a note says, or the model itself."""
    note = read_note(model)
    return model if note is None else note.origin


def dialect_of(model: str) -> str:
    """What a model speaks: an embedded one tersely, an exported one as it was taught, any other in tags."""
    note = read_note(model)
    if note is not None:
        return note.dialect
    return "terse" if is_embedded(model) else "tagged"
