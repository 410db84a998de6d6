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
from milonga.runfolder.checkpoints import STATE
from milonga.runfolder.seals import MACHINE, NEEDED, Loss, Seals, find_losses, read_rows


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
    turn, seals, bound_to = _read_state(path, state)
    losses = find_losses(folder, turn, seals)
    changes = [] if bound_to is None else find_changes(bound_to, _read_free_keys(folder), config)
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
    unknown = (
        [] if bound_to is not None else ["the checkpoint is of an older version: edits of config.toml since cannot be seen"]
    )
    return Origin(path, state, losses, [*map(str, losses), *map(str, changes), *unknown])


def _read_state(path: Path, state: Mapping[str, Any]) -> tuple[int, Seals | None, Mapping[str, Any] | None]:
    """Read the turn of a checkpoint, its seals and the keys that it is bound to; older versions have neither of the two."""
    try:
        seals, bound = state.get("files"), state.get("config")
        known = None if seals is None else {name: _read_seal(seal, name in NEEDED) for name, seal in seals.items()}
        return int(state["place"]["turn"]), known, None if bound is None else dict(bound)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunFolderError(f"'{path / STATE}' is not one that milonga wrote; remove this checkpoint") from None


def _read_seal(seal: Mapping[str, Any], with_checksum: bool) -> dict[str, int]:
    return {key: int(seal[key]) for key in (("bytes", "crc32") if with_checksum else ("bytes",))}


def _read_free_keys(folder: Path) -> Mapping[str, Any]:
    """Read the free keys of the process that last worked here, as far as it is known."""
    processes = read_rows(folder / MACHINE, None).kept
    found = processes[-1].get("settings") if processes else None
    return found if isinstance(found, dict) else {}
