"""The checkpoint that a run resumes from, checked against the run folder around it.

Invariant: nothing is changed before it is known that the run goes on. What stops it names every file, turn and key.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milonga.config import Config
from milonga.errors import RunFolderError
from milonga.runfolder.changes import find_changes
from milonga.runfolder.seals import MACHINE, Loss, find_losses, read_rows


@dataclass(frozen=True)
class Origin:
    """A checkpoint to resume from."""

    path: Path
    state: Mapping[str, Any]
    losses: Sequence[Loss]
    """What is missing or damaged up to its turn: nothing that the run needs, unless that was accepted."""
    notes: Sequence[str]
    """What the user should know: losses, and keys of the config that have changed."""


def check_origin(
    folder: Path, config: Config, path: Path, state: Mapping[str, Any], accept_loss: bool, accept_changes: bool
) -> Origin:
    """Check a checkpoint and its state against the files and the config of its run. What was lost, or changed, must have been
    accepted, unless nothing depends on it."""
    turn = state["place"]["turn"]
    losses = find_losses(folder, turn, state.get("files"))
    processes = read_rows(folder / MACHINE, None).kept
    free = processes[-1].get("settings", {}) if processes else {}
    changes = find_changes(state["config"], free, config) if "config" in state else []
    command = f"'milonga resume {shlex.quote(str(folder))}"
    needed = [str(loss) for loss in losses if loss.needed]
    if needed and not accept_loss:
        raise RunFolderError(
            f"'{folder}' has lost something that the rest of it depends on, up to the checkpoint of turn {turn}: "
            f"{'; '.join(needed)}. Nothing was changed: put it back, or go on with what is left: {command} --accept-loss'"
        )
    bound = [str(change) for change in changes if not change.free]
    if bound and not accept_changes:
        raise RunFolderError(
            f"'{folder}': {'; '.join(bound)}: the run would not be what it was. Put it back, begin another run with "
            f"--config {shlex.quote(str(folder / 'config.toml'))}, or go on all the same: {command} --accept-changes'"
        )
    unknown = [] if "config" in state else ["the checkpoint is of an older version: edits of config.toml since cannot be seen"]
    return Origin(path, state, losses, [*map(str, losses), *map(str, changes), *unknown])
